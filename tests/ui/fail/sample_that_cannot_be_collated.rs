//~ ERROR E0277
//~ says: samples of type `HashMap<String, f32>` cannot be collated into a batch
//~ once
//~ says: wrap a value in pinfeed::Host(..) to keep it on the host

use std::collections::HashMap;

use pinfeed::{Sample, Tensor};

#[derive(Sample)]
struct Example {
    image: Tensor<u8>,
    scores: HashMap<String, f32>, //~ HERE
}

fn main() {}
