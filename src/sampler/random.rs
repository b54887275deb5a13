//! Random orders in which all samples are equally likely.

use super::permutation::Permutation;
use super::{Sampler, positions};
use crate::length::Length;
use crate::rng::{RngKey, SampleRng};

/// All samples once, in a random order that differs in each epoch; PyTorch's `RandomSampler`.
///
/// The order is a keyed permutation, evaluated instead of stored, so 10¹² samples cost no memory: an alternating
/// Feistel network of 12 rounds (32 below 256 samples) over the smallest power of two that holds `len`, keyed by seed
/// and epoch. Results of `len` and more are permuted again (cycle walking: Black and Rogaway, "Ciphers with arbitrary
/// finite domains", CT-RSA 2002). An evaluation takes at most two passes on average.
///
/// An epoch may be [shorter or longer](RandomSampler::with_num_samples) than the data set, or drawn [with
/// replacement](RandomSampler::with_replacement).
///
/// # Examples
///
/// The first 80 of 100 samples, shuffled; the rest is for validation:
///
/// ```
/// use pinfeed::DataLoader;
/// use pinfeed::sampler::RandomSampler;
///
/// let samples: Vec<i64> = (0..100).collect();
/// let train = DataLoader::builder(samples.clone()).batch_size(20).seed(17).sampler(RandomSampler::new(80)).build()?;
/// let val = DataLoader::builder(samples).batch_size(20).sampler((80..100).collect::<Vec<u64>>()).build()?;
/// assert_eq!((train.len(), val.len()), (4, 1));
/// for batch in &train {
///     assert!(batch?.as_slice().iter().all(|number| *number < 80));
/// }
/// # Ok::<(), pinfeed::Error>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RandomSampler {
    /// How many samples the data set has.
    samples: u64,
    seed: u64,
    /// The seed is the sampler's own, whatever the loader's is.
    has_own_seed: bool,
    num_samples: u64,
    replacement: bool,
}

impl RandomSampler {
    /// Makes random orders of `len` samples, which may be a `usize` ([`Length`]). They follow from the loader's seed
    /// ([`Builder::seed`](crate::loader::Builder::seed)); without a loader, from the seed 0.
    ///
    /// A sampler in an `Arc` that something else holds, too, does not learn the loader's seed: make it with
    /// [`with_seed`](RandomSampler::with_seed).
    ///
    /// # Panics
    ///
    /// If `len` is a negative `i32`.
    #[track_caller]
    pub fn new(len: impl Length) -> RandomSampler {
        RandomSampler {
            has_own_seed: false,
            ..RandomSampler::with_seed(len, 0)
        }
    }

    /// Makes random orders of `len` samples that follow from this seed, whatever the loader's is. With the loader's seed, they are those of
    /// [`new`](RandomSampler::new).
    ///
    /// # Examples
    ///
    /// ```
    /// use pinfeed::sampler::{RandomSampler, Sampler};
    ///
    /// let mut sampler = RandomSampler::new(100);
    /// sampler.set_seed(17); // as a loader with this seed does
    /// let same = RandomSampler::with_seed(100, 17);
    /// assert!((0..100).all(|position| sampler.index(0, position) == same.index(0, position)));
    /// ```
    ///
    /// # Panics
    ///
    /// If `len` is a negative `i32`.
    #[track_caller]
    pub fn with_seed(len: impl Length, seed: u64) -> RandomSampler {
        let len = len.samples();
        RandomSampler {
            samples: len,
            seed,
            has_own_seed: true,
            num_samples: len,
            replacement: false,
        }
    }

    /// Sets how many positions an epoch has. Default: `len`, the number of samples.
    ///
    /// Fewer positions are the first ones of the epoch's permutation. More are whole permutations, each different, and
    /// then a part of one, as in PyTorch: no sample comes up for the second time before each came up once.
    ///
    /// If there are no samples (`len` is 0) and an epoch has positions all the same, they have index 0, which is an error
    /// of their batches.
    ///
    /// # Examples
    ///
    /// ```
    /// use pinfeed::sampler::{RandomSampler, Sampler};
    ///
    /// let sampler = RandomSampler::with_seed(4, 17).with_num_samples(10);
    /// let mut order = vec![0; sampler.len() as usize];
    /// sampler.indices(0, 0, &mut order);
    /// order[..4].sort();
    /// order[4..8].sort();
    /// assert_eq!(order[..8], [0, 1, 2, 3, 0, 1, 2, 3]);
    /// assert_ne!(order[8], order[9]);
    /// ```
    ///
    /// # Panics
    ///
    /// If `num_samples` is a negative `i32`.
    #[track_caller]
    pub fn with_num_samples(self, num_samples: impl Length) -> RandomSampler {
        RandomSampler {
            num_samples: num_samples.samples(),
            ..self
        }
    }

    /// Draws each position's sample from all, whatever stands at other positions; PyTorch's `replacement=True`.
    ///
    /// One draw of [`SampleRng::for_sampler`] for each position. Of as many draws as there are samples, about 63 % are
    /// different ones.
    ///
    /// # Examples
    ///
    /// ```
    /// use pinfeed::sampler::{RandomSampler, Sampler};
    ///
    /// let sampler = RandomSampler::with_seed(6, 17).with_replacement().with_num_samples(1_000);
    /// let sixes = (0..1_000).filter(|&position| sampler.index(0, position) == 5).count();
    /// assert!((120..220).contains(&sixes));
    /// ```
    pub fn with_replacement(self) -> RandomSampler {
        RandomSampler {
            replacement: true,
            ..self
        }
    }
}

impl Sampler for RandomSampler {
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
        if self.samples == 0 {
            return indices.fill(0);
        }
        if self.replacement {
            for (index, position) in indices.iter_mut().zip(positions) {
                *index = SampleRng::for_sampler(RngKey {
                    seed: self.seed,
                    epoch,
                    position,
                })
                .below(self.samples);
            }
            return;
        }
        let (mut start, mut rest) = (start, indices);
        while !rest.is_empty() {
            let (pass, first) = (start / self.samples, start % self.samples);
            let left = usize::try_from(self.samples - first).unwrap_or(usize::MAX);
            let (run, behind) = rest.split_at_mut(left.min(rest.len()));
            for (index, place) in run.iter_mut().zip(first..) {
                *index = place;
            }
            Permutation::new(self.samples, self.seed, epoch, pass).apply(run);
            start += run.len() as u64;
            rest = behind;
        }
    }

    fn set_seed(&mut self, seed: u64) {
        if !self.has_own_seed {
            self.seed = seed;
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn every_sample_comes_up_once(len in 0u64..3_000, seed: u64, epoch: u64) {
            let sampler = RandomSampler::with_seed(len, seed);
            let mut order: Vec<u64> = (0..len).map(|position| sampler.index(epoch, position)).collect();
            order.sort_unstable();
            prop_assert!(order.iter().copied().eq(0..len));
        }

        #[test]
        fn many_positions_are_as_each(len in 1u64..3_000, seed: u64, epoch: u64, start in 0u64..3_000, count in 0usize..300) {
            let sampler = RandomSampler::with_seed(len, seed);
            let start = start % len;
            let mut indices = vec![0; count.min((len - start) as usize)];
            sampler.indices(epoch, start, &mut indices);
            let each: Vec<u64> = (start..).take(indices.len()).map(|position| sampler.index(epoch, position)).collect();
            prop_assert_eq!(indices, each);
        }

        #[test]
        fn huge_sets_need_no_memory(position in 0u64..1 << 62, seed: u64) {
            prop_assert!(RandomSampler::with_seed(1u64 << 62, seed).index(0, position) < 1 << 62);
        }
    }

    /// All orders of five and six samples come up about equally often: 100 times each on average.
    #[test]
    fn orders_are_evenly_drawn() {
        for (len, orders) in [(5, 120), (6, 720)] {
            let sampler = RandomSampler::with_seed(len, 9);
            let mut counts = std::collections::HashMap::new();
            for epoch in 0..100 * orders as u64 {
                let order: Vec<u64> = (0..len)
                    .map(|position| sampler.index(epoch, position))
                    .collect();
                *counts.entry(order).or_insert(0u32) += 1;
            }
            assert_eq!(counts.len(), orders);
            let chi: f64 = counts
                .values()
                .map(|&count| (f64::from(count) - 100.0).powi(2) / 100.0)
                .sum();
            let degrees = (orders - 1) as f64;
            let deviations = (chi - degrees) / (2.0 * degrees).sqrt();
            assert!(
                deviations < 4.0,
                "{len} samples: {deviations} standard deviations off"
            );
        }
    }

    #[test]
    fn neighbours_are_spread() {
        // The mean distance between two random numbers below n is n / 3.
        let sampler = RandomSampler::with_seed(100_000, 1);
        let distance = |position| {
            sampler
                .index(0, position)
                .abs_diff(sampler.index(0, position + 1))
        };
        let mean = (0..10_000)
            .map(|position| distance(position) as f64)
            .sum::<f64>()
            / 10_000.0;
        assert!((30_000.0..37_000.0).contains(&mean), "{mean}");
    }
}
