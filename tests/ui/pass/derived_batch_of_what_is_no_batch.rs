use pinfeed::{Batch, Host, Tensor};

#[derive(Batch)]
struct Padded {
    tokens: Tensor<i64>,
    scale: Host<f32>,
    #[pinfeed(host)]
    other_scale: f32,
}

fn main() {}
