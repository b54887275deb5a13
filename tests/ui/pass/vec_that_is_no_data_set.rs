use pinfeed::Dataset;
use pinfeed::dataset::VecDataset;

fn main() {
    let items: Box<dyn Dataset<Sample = f32>> = Box::new(VecDataset::new(vec![0.5f32; 10]));
    let _ = items;
}
