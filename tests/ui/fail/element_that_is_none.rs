//~ ERROR E0277
//~ says: `bool` is not an element type of tensors
//~ says: a bool travels as u8

use pinfeed::Tensor;

fn main() {
    let mask = vec![true, false];
    let _ = Tensor::from(mask); //~ HERE
}
