use pinfeed::{Host, Ragged, Sample, Tensor};

#[derive(Sample)]
struct Example {
    label: u64,
    rows: Tensor<f32>,
    ragged: Ragged<f32>,
    fixed: Vec<[[f32; 3]; 2]>,
    words: Vec<String>,
    host: Host<Vec<Vec<f32>>>,
}

fn main() {}
