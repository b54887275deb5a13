//~ ERROR
//~ once
//~ says: the options of a batch are `on_device = "Name"` and `crate = "path"`

use pinfeed::{Batch, Tensor};

#[derive(Batch)]
#[pinfeed(name = "PaddedThere")] //~ HERE
struct Padded {
    tokens: Tensor<i64>,
}

fn main() {}
