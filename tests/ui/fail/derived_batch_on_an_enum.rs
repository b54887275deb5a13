//~ ERROR
//~ once
//~ says: only structs are sent field by field

use pinfeed::{Batch, Tensor};

#[derive(Batch)]
enum Padded {
    //~ HERE
    Short(Tensor<i64>),
    Long(Tensor<i64>),
}

fn main() {}
