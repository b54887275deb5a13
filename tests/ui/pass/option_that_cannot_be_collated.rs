use pinfeed::{Host, Sample, Tensor};

#[derive(Sample)]
struct Example {
    image: Tensor<u8>,
    weight: (f32, bool),
    caption: Option<String>,
    other: Host<Option<f32>>,
}

fn main() {}
