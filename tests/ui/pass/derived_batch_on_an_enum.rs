use pinfeed::{Batch, Tensor};

#[derive(Batch)]
struct Padded(Tensor<i64>, Tensor<i64>);

fn main() {}
