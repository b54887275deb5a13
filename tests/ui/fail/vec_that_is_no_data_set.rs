//~ ERROR E0277
//~ says: `Vec<f32>` is not a data set
//~ says: a Vec of samples is one inside pinfeed::dataset::VecDataset::new(..)
//~ once
use pinfeed::Dataset;

fn main() {
    let items: Box<dyn Dataset<Sample = f32>> = Box::new(vec![0.5f32; 10]); //~ HERE
    let _ = items;
}
