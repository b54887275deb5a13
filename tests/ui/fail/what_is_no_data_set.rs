//~ ERROR E0277
//~ says: is not a data set
//~ says: implement pinfeed::Dataset for it, or make one of a function, by pinfeed::from_fn
//~ says: samples
//~ once
use pinfeed::DataLoader;

fn main() {
    let loader = DataLoader::builder([0.5f32; 10]); //~ HERE
    let _ = loader;
}
