//! What the scenarios share.

use std::ops::Range;

use pinfeed::{Dataset, Tensor, from_fn};

/// How many bytes a sample has.
const BYTES: usize = 40;

fn bytes_of(index: u64) -> Vec<u8> {
    (0..BYTES as u64).map(|at| (index * 7 + at) as u8).collect()
}

/// Samples whose bytes follow from their index.
pub fn samples(len: u64) -> impl Dataset<Sample = Tensor<u8>> {
    from_fn(len, |index, _| {
        Ok(Tensor::from_vec(bytes_of(index), &[BYTES])?)
    })
}

/// Checks every byte of a batch, whose samples must be these.
pub fn check(batch: &Tensor<u8>, expected: Range<u64>) {
    let bytes: Vec<u8> = expected.clone().flat_map(bytes_of).collect();
    assert!(batch.as_slice() == bytes, "samples {expected:?}");
}
