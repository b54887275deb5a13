//~ ERROR E0277
//~ says: `bool` is not an element type of tensors

use pinfeed::{Sample, Tensor};

#[derive(Sample)]
struct Example {
    image: Tensor<u8>,
    mask: Tensor<bool>, //~ HERE
}

fn main() {}
