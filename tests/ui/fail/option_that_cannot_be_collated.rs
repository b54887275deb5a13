//~ ERROR E0277
//~ once
//~ says: Option<(f32, String)>` cannot be collated into a batch
//~ says: instead of an Option of a tuple or a struct, take one whose parts are Options

use pinfeed::{Sample, Tensor};

#[derive(Sample)]
struct Example {
    image: Tensor<u8>,
    weight: Option<(f32, String)>, //~ HERE
}

fn main() {}
