use pinfeed::{Host, Sample, Tensor};

#[derive(Sample)]
struct Example {
    image: Tensor<u8>,
    weight: (Option<f32>, Option<String>),
    mask: Option<Tensor<u8>>,
    other: Host<Option<(f32, String)>>,
}

fn main() {}
