//~ ERROR
//~ says: only structs are collated field by field

use pinfeed::{Sample, Tensor};

#[derive(Sample)]
enum Example {
    //~ HERE
    Image(Tensor<u8>),
    Label(i64),
}

fn main() {}
