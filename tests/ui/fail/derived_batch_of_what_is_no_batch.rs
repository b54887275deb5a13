//~ ERROR E0277
//~ once
//~ says: `f32` is not a batch
//~ says: pinfeed::Host (which stay on the host)
//~ says: by #[pinfeed(host)]

use pinfeed::{Batch, Tensor};

#[derive(Batch)]
struct Padded {
    tokens: Tensor<i64>,
    scale: f32, //~ HERE
}

fn main() {}
