//! Samples drawn by weight.

use std::fmt;

use super::alias::AliasTable;
use super::successive::Successive;
use super::{Sampler, positions};
use crate::error::{Error, Result};
use crate::fingerprint::{Fingerprint, spread};
use crate::length::Length;
use crate::rng::{RngKey, SampleRng};
use crate::sync::Arc;
use crate::system::room::check_room;

/// Samples drawn by weight, with replacement unless [told otherwise](WeightedRandomSampler::without_replacement);
/// PyTorch's `WeightedRandomSampler`.
///
/// Weights need not sum to 1; a sample of weight 0 is never drawn. With replacement, a draw takes constant time,
/// whatever the number of samples, and one number of [`SampleRng::for_sampler`]: the alias method (Walker, 1977; Vose,
/// 1991). Each weight takes 24 bytes. Clones share them.
///
/// # Examples
///
/// Classes as often as each other, however many samples they have:
///
/// ```
/// use pinfeed::DataLoader;
/// use pinfeed::sampler::WeightedRandomSampler;
///
/// let labels: Vec<i64> = (0..1_000).map(|index| i64::from(index % 10 == 0)).collect(); // 900 and 100
/// let weights: Vec<f64> = labels.iter().map(|label| [1.0 / 900.0, 1.0 / 100.0][*label as usize]).collect();
/// let sampler = WeightedRandomSampler::new(&weights, 1_000, 17)?;
/// let loader = DataLoader::builder(labels).batch_size(1_000).sampler(sampler).build()?;
/// let batch = loader.epoch(0).next().unwrap()?;
/// let ones: i64 = batch.as_slice().iter().sum();
/// assert!((440..560).contains(&ones));
/// # Ok::<(), pinfeed::Error>(())
/// ```
///
/// A weight that is none:
///
/// ```
/// use pinfeed::sampler::WeightedRandomSampler;
///
/// let error = WeightedRandomSampler::new(&[0.5, f64::NAN], 10, 17).unwrap_err();
/// assert!(error.to_string().contains("weight 1 is NaN"));
/// ```
#[derive(Clone)]
pub struct WeightedRandomSampler {
    num_samples: u64,
    seed: u64,
    weights: Arc<[f64]>,
    draws: Draws,
}

#[derive(Clone)]
enum Draws {
    WithReplacement(Arc<AliasTable>),
    WithoutReplacement(Arc<Successive>),
}

/// What each weight takes while the table is made: a copy of it, its column (16 bytes), its height, and a place among those that are not
/// placed yet, in a list that grows. (An order without replacement takes no more.)
const MAKING_BYTES: usize = 48;

impl WeightedRandomSampler {
    /// Makes a sampler that draws sample `i` with a probability proportional to `weights[i]`, at each of an epoch's
    /// `num_samples` positions, which may be a `usize` ([`Length`]).
    ///
    /// # Errors
    ///
    /// [`Error::InvalidOption`] if there are no weights, if one is negative, infinite or not a number, if all are 0, or if what is made of them
    /// exceeds the memory that the process may use.
    ///
    /// # Panics
    ///
    /// If `num_samples` is a negative `i32`.
    #[track_caller]
    pub fn new(
        weights: &[f64],
        num_samples: impl Length,
        seed: u64,
    ) -> Result<WeightedRandomSampler> {
        const NEW: &str = "WeightedRandomSampler::new";
        check_weights(NEW, weights)?;
        check_room(weights.len() as u64, MAKING_BYTES).map_err(|no_room| {
            let reason = format!(
                "the table of {} weights takes {no_room}: give each group of samples a weight instead (MixtureSampler)",
                weights.len()
            );
            Error::option(NEW, reason)
        })?;
        Ok(WeightedRandomSampler {
            num_samples: num_samples.samples(),
            seed,
            weights: weights.into(),
            draws: Draws::WithReplacement(Arc::new(AliasTable::new(weights))),
        })
    }

    /// Draws each sample at most once in an epoch: each position's by weight among those that are left, the
    /// distribution of PyTorch's `replacement=False` (`torch.multinomial`).
    ///
    /// An epoch's order is computed when it is first asked for, by the worker that asks; the others wait. It takes one
    /// random number and two logarithms for each weight, and sorts the `num_samples` that are drawn: a tenth of a
    /// second for a million on one core. The orders of the last four epochs are kept, 8 bytes for each position. A
    /// program that goes through more epochs at the same time has orders computed again and again.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidOption`] if an epoch has more positions than weights are positive.
    ///
    /// # Examples
    ///
    /// ```
    /// use pinfeed::sampler::{Sampler, WeightedRandomSampler};
    ///
    /// let sampler = WeightedRandomSampler::new(&[1.0, 0.0, 8.0, 1.0], 3, 17)?.without_replacement()?;
    /// let mut order = vec![0; 3];
    /// sampler.indices(0, 0, &mut order); // 2 most likely comes first
    /// order.sort();
    /// assert_eq!(order, [0, 2, 3]);
    /// # Ok::<(), pinfeed::Error>(())
    /// ```
    pub fn without_replacement(self) -> Result<WeightedRandomSampler> {
        let positive = self.weights.iter().filter(|weight| **weight > 0.0).count();
        let num_samples = usize::try_from(self.num_samples).unwrap_or(usize::MAX);
        if num_samples > positive {
            let reason = format!(
                "{num_samples} samples would take as many positive weights, and {positive} of {} are positive: draw \
                 fewer, or with replacement",
                self.weights.len()
            );
            let option = "WeightedRandomSampler::without_replacement";
            return Err(Error::option(option, reason));
        }
        let successive = Successive::new(&self.weights, num_samples, self.seed);
        Ok(WeightedRandomSampler {
            draws: Draws::WithoutReplacement(Arc::new(successive)),
            ..self
        })
    }
}

impl Sampler for WeightedRandomSampler {
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
        match &self.draws {
            Draws::WithReplacement(table) => {
                for (index, position) in indices.iter_mut().zip(positions) {
                    let bits = SampleRng::for_sampler(RngKey {
                        seed: self.seed,
                        epoch,
                        position,
                    })
                    .next_u64();
                    *index = table.draw(bits);
                }
            }
            Draws::WithoutReplacement(successive) => successive.with_order(epoch, |order| {
                let positions = positions.start as usize..positions.end as usize;
                indices.copy_from_slice(&order[positions]);
            }),
        }
    }

    /// Of what the orders are made of, for making two of them may take long.
    fn fingerprint(&self) -> u32 {
        let replacement = matches!(self.draws, Draws::WithReplacement(_));
        let mut print = Fingerprint::new();
        for number in [self.num_samples, self.seed, u64::from(replacement)] {
            print.add_number(number);
        }
        let weights = self.weights.len() as u64;
        print.add_number(weights);
        spread(weights, 64).for_each(|at| print.add_number(self.weights[at as usize].to_bits()));
        print.finish()
    }
}

impl fmt::Debug for WeightedRandomSampler {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WeightedRandomSampler")
            .field("weights", &self.weights.len())
            .field("num_samples", &self.num_samples)
            .field("seed", &self.seed)
            .field(
                "replacement",
                &matches!(self.draws, Draws::WithReplacement(_)),
            )
            .finish()
    }
}

/// Refuses weights that nothing can be drawn by.
pub(super) fn check_weights(option: &'static str, weights: &[f64]) -> Result<()> {
    let invalid = |weight: &f64| !(weight.is_finite() && *weight >= 0.0);
    let reason = match weights.iter().position(invalid) {
        Some(at) => format!(
            "weight {at} is {}: a weight is a finite number of 0 or more",
            weights[at]
        ),
        None if weights.is_empty() => "there are no weights".to_owned(),
        None if weights.iter().all(|weight| *weight == 0.0) => {
            format!(
                "all weights ({}) are 0: one at least must not be",
                weights.len()
            )
        }
        None => return Ok(()),
    };
    Err(Error::option(option, reason))
}
