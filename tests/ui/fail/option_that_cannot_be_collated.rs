//~ ERROR E0277
//~ once
//~ says: Option<f32>` cannot be collated into a batch
//~ says: instead of an Option, take the value and a bool

use pinfeed::{Sample, Tensor};

#[derive(Sample)]
struct Example {
    image: Tensor<u8>,
    weight: Option<f32>, //~ HERE
}

fn main() {}
