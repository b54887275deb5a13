//! The data set's own order.

use super::Sampler;
use crate::length::Length;

/// The samples in the data set's order: 0, 1, 2, ...
///
/// # Examples
///
/// The first 50 samples of a large data set, for a quick look:
///
/// ```
/// use pinfeed::sampler::SequentialSampler;
/// use pinfeed::{DataLoader, from_fn};
///
/// let samples = from_fn(1_000_000, |index, _| Ok(index as i64));
/// let loader = DataLoader::builder(samples).batch_size(10).sampler(SequentialSampler::new(50)).build()?;
/// assert_eq!(loader.len(), 5);
/// # Ok::<(), pinfeed::Error>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SequentialSampler {
    len: u64,
}

impl SequentialSampler {
    /// Makes the order of `len` samples, which may be a `usize` ([`Length`]).
    ///
    /// # Panics
    ///
    /// If `len` is a negative `i32`.
    #[track_caller]
    pub fn new(len: impl Length) -> SequentialSampler {
        SequentialSampler { len: len.samples() }
    }
}

impl Sampler for SequentialSampler {
    fn len(&self) -> u64 {
        self.len
    }

    fn index(&self, _epoch: u64, position: u64) -> u64 {
        position
    }
}
