use pinfeed::Tensor;

fn main() {
    let mask = vec![1u8, 0];
    let _ = Tensor::from(mask);
}
