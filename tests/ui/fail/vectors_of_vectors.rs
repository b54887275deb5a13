//~ ERROR E0277
//~ once
//~ says: samples that are arrays or Vecs of `Vec<f32>` cannot be collated into a batch
//~ says: take a Tensor, or where lengths differ pinfeed::Padded or pinfeed::Ragged

use pinfeed::Sample;

#[derive(Sample)]
struct Example {
    label: u64,
    rows: Vec<Vec<f32>>, //~ HERE
}

fn main() {}
