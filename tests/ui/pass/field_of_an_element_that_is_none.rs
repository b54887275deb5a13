use pinfeed::{Sample, Tensor};

#[derive(Sample)]
struct Example {
    image: Tensor<u8>,
    mask: Tensor<u8>,
}

fn main() {}
