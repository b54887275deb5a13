//! Several data sets, mixed in fixed proportions.

use std::fmt;

use super::permutation::{Permutation, mix};
use super::splits::Splits;
use super::weighted::check_weights;
use super::{Sampler, positions};
use crate::error::{Error, Result};
use crate::length::Length;
use crate::sync::Arc;

/// Several data sets mixed by weight, each in its own random order; for a
/// [`ConcatDataset`](crate::dataset::ConcatDataset).
///
/// The proportions are not left to chance. Of the first `n` positions, data set `i` has `n * weights[i] / sum(weights)`,
/// give or take less than 1.7; with two data sets, the nearest integer. That holds at every `n`, for any number of data
/// sets (and up to 10¹² positions, where rounding begins to show). In any run of positions, a batch's for example, it
/// is less than 3.4. Which data set is at which position follows from the weights alone, and repeats itself. So where
/// ranks load only a few samples of each batch, one of them may have more of a data set throughout; the batch of all
/// ranks has its share.
///
/// Each data set is gone through without replacement, and then again in another order, over and over: the samples of a
/// small one come up more often. Epochs continue where the one before ended, so a data set that an epoch has no time
/// for goes on in the next. All of it is a function of seed, epoch and position. Nothing is stored; a position takes a
/// walk down a tree of the data sets (a Huffman tree, so heavy ones are near the root) and the evaluation of a
/// permutation.
///
/// # Examples
///
/// Of four samples, three from the web and one from books, however many there are of each:
///
/// ```
/// use pinfeed::dataset::ConcatDataset;
/// use pinfeed::sampler::MixtureSampler;
/// use pinfeed::{DataLoader, Dataset, from_fn};
///
/// let web = from_fn(1_000_000, |index, _| Ok((index as i64, 'w' as u8)));
/// let books = from_fn(100, |index, _| Ok((index as i64, 'b' as u8)));
/// let all = ConcatDataset::new(vec![
///     Box::new(web) as Box<dyn Dataset<Sample = (i64, u8)>>,
///     Box::new(books),
/// ])?;
///
/// let mixture = MixtureSampler::new(&all.lengths(), &[0.75, 0.25], 17)?.with_num_samples(1_200);
/// let loader = DataLoader::builder(all).batch_size(12).sampler(mixture).build()?;
/// for batch in &loader {
///     let (_, sources) = batch?;
///     assert_eq!(sources.as_slice().iter().filter(|source| **source == b'b').count(), 3);
/// }
/// # Ok::<(), pinfeed::Error>(())
/// ```
#[derive(Clone)]
pub struct MixtureSampler {
    sets: Arc<[Set]>,
    splits: Arc<Splits>,
    num_samples: u64,
}

/// Where a data set lies in the concatenation.
#[derive(Debug, Clone, Copy)]
struct Set {
    offset: u64,
    len: u64,
    /// The key of its orders.
    seed: u64,
}

impl MixtureSampler {
    /// Makes a mixture of data sets that lie one behind the other: of `lengths[i]` samples and `weights[i]`. Weights need not sum
    /// to 1. Lengths may be `usize` ([`Length`]).
    ///
    /// # Errors
    ///
    /// [`Error::InvalidOption`] if there are not as many weights as lengths, or none; if a weight is negative, infinite or not
    /// a number, or all are 0; if a data set without samples has a weight; or if the lengths' sum is beyond `u64`.
    ///
    /// # Panics
    ///
    /// If a length is a negative `i32`.
    #[track_caller]
    pub fn new(lengths: &[impl Length], weights: &[f64], seed: u64) -> Result<MixtureSampler> {
        let refused = |reason| Err(Error::option("MixtureSampler::new", reason));
        if lengths.len() != weights.len() {
            return refused(format!(
                "there are {} lengths and {} weights: one of each for each data set",
                lengths.len(),
                weights.len()
            ));
        }
        check_weights("MixtureSampler::new", weights)?;
        let (mut sets, mut end) = (Vec::with_capacity(lengths.len()), 0u64);
        for (at, (len, weight)) in lengths.iter().zip(weights).enumerate() {
            let len = len.samples();
            if len == 0 && *weight > 0.0 {
                return refused(format!(
                    "data set {at} has no samples, and a weight of {weight}: its weight must be 0"
                ));
            }
            sets.push(Set {
                offset: end,
                len,
                seed: mix(seed ^ mix(at as u64 ^ 0x6d69_7875)), // "mixu": separates it from the other samplers' orders
            });
            end = match end.checked_add(len) {
                Some(end) => end,
                None => return refused("the data sets have more than 2⁶⁴ samples".to_owned()),
            };
        }
        Ok(MixtureSampler {
            sets: sets.into(),
            splits: Arc::new(Splits::new(weights)),
            num_samples: end,
        })
    }

    /// Sets how many positions an epoch has. Default: as many as there are samples.
    ///
    /// # Panics
    ///
    /// If `num_samples` is a negative `i32`.
    #[track_caller]
    pub fn with_num_samples(self, num_samples: impl Length) -> MixtureSampler {
        MixtureSampler {
            num_samples: num_samples.samples(),
            ..self
        }
    }
}

impl Sampler for MixtureSampler {
    fn len(&self) -> u64 {
        self.num_samples
    }

    fn index(&self, epoch: u64, position: u64) -> u64 {
        let mut index = [0];
        self.indices(epoch, position, &mut index);
        index[0]
    }

    fn indices(&self, epoch: u64, start: u64, indices: &mut [u64]) {
        let positions = positions(start, indices, self.num_samples);
        // All epochs are one order. (Beyond 2⁶⁴ positions, it begins anew.)
        let before = epoch.wrapping_mul(self.num_samples);
        for (index, position) in indices.iter_mut().zip(positions) {
            let (set, rank) = self.splits.find(before.wrapping_add(position));
            let Set { offset, len, seed } = self.sets[set];
            let mut place = [rank % len];
            Permutation::new(len, seed, 0, rank / len).apply(&mut place);
            *index = offset + place[0];
        }
    }
}

impl fmt::Debug for MixtureSampler {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MixtureSampler")
            .field("sets", &self.sets.len())
            .field("num_samples", &self.num_samples)
            .finish_non_exhaustive()
    }
}
