use std::collections::HashMap;

use pinfeed::{Sample, Tensor};

#[derive(Sample)]
struct Example {
    image: Tensor<u8>,
    #[pinfeed(host)]
    scores: HashMap<String, f32>,
}

fn main() {}
