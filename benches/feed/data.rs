//! Random data, made by all cores, and what it is compared by.

use std::thread;

use pinfeed::Tensor;
use pinfeed::error::ShapeError;
use pinfeed::tensor::Element;

use crate::args::cores;

/// An element type that random data can be made of.
pub trait Number: Element {
    const NAME: &'static str;

    /// Fills a slice with numbers that follow from the seed.
    fn fill(target: &mut [Self], seed: u64);
}

impl Number for u8 {
    const NAME: &'static str = "u8";

    fn fill(target: &mut [u8], seed: u64) {
        let mut words = SplitMix(seed);
        for chunk in target.chunks_mut(8) {
            chunk.copy_from_slice(&words.next().to_le_bytes()[..chunk.len()]);
        }
    }
}

impl Number for f32 {
    const NAME: &'static str = "f32";

    fn fill(target: &mut [f32], seed: u64) {
        let mut words = SplitMix(seed);
        for chunk in target.chunks_mut(2) {
            let word = words.next();
            let pair = [(word >> 40) as f32, (word as u32 >> 8) as f32];
            chunk.copy_from_slice(&pair[..chunk.len()]);
        }
    }
}

/// A tensor of random numbers.
pub fn random<T: Number>(shape: &[usize], seed: u64) -> Result<Tensor<T>, ShapeError> {
    let mut tensor = Tensor::zeros(shape);
    let part = tensor.len().div_ceil(cores()).max(1);
    let numbers = tensor.as_mut_slice().unwrap_or_default(); // a new tensor is not shared
    thread::scope(|scope| {
        for (index, part) in numbers.chunks_mut(part).enumerate() {
            scope.spawn(move || T::fill(part, SplitMix(seed ^ (index as u64) << 32).next()));
        }
    });
    Ok(tensor)
}

/// SplitMix64 (Steele, Lea, Flood: "Fast splittable pseudorandom number generators", 2014).
pub struct SplitMix(pub u64);

impl SplitMix {
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let word = (self.0 ^ self.0 >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let word = (word ^ word >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        word ^ word >> 31
    }
}

/// The bytes of a tensor's elements.
#[expect(unsafe_code, reason = "it reads elements as their bytes")]
pub fn bytes<T: Element>(tensor: &Tensor<T>) -> &[u8] {
    let elements = tensor.as_slice();
    // SAFETY: elements have no padding (`Element` is sealed), and any byte is a `u8`.
    unsafe { std::slice::from_raw_parts(elements.as_ptr().cast(), size_of_val(elements)) }
}
