//! Orders of indices: which samples an epoch gives, and in which order.

use std::fmt;

use crate::rng::philox4x32;

/// An order of a data set's samples: which index stands at each position of an epoch.
///
/// It is a pure function, evaluated wherever it is needed and never stored: workers ask it for single positions, in
/// any order, from several threads. An index may come up more than once, or not at all.
///
/// # Examples
///
/// ```
/// use pinfeed::{DataLoader, Sampler};
///
/// /// Every other sample.
/// struct Evens(u64);
///
/// impl Sampler for Evens {
///     fn len(&self) -> u64 {
///         self.0.div_ceil(2)
///     }
///
///     fn index(&self, _epoch: u64, position: u64) -> u64 {
///         2 * position
///     }
/// }
///
/// let loader = DataLoader::builder(vec![10i64, 11, 12, 13, 14]).sampler(Evens(5)).batch_size(8).build()?;
/// let batch = loader.epoch(0).next().unwrap()?;
/// assert_eq!(batch.as_slice(), [10, 12, 14]);
/// # Ok::<(), pinfeed::Error>(())
/// ```
pub trait Sampler: Send + Sync + 'static {
    /// The number of positions in an epoch.
    fn len(&self) -> u64;

    /// Whether an epoch has no positions.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The index of the sample at `position`, which is below [`len`](Sampler::len).
    fn index(&self, epoch: u64, position: u64) -> u64;
}

/// The samples in their own order: 0, 1, 2, ...
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SequentialSampler {
    len: u64,
}

impl SequentialSampler {
    /// The order of `len` samples.
    pub fn new(len: u64) -> SequentialSampler {
        SequentialSampler { len }
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

/// All samples once, in a random order that is another one in each epoch; PyTorch's `RandomSampler` without
/// replacement.
///
/// The order is a keyed permutation that is evaluated, not stored, so that 10¹² samples cost no memory: an
/// alternating Feistel network of 12 rounds (32 below 256 samples) over the smallest power of two that holds `len`, whose values beyond
/// `len` are put in again (Black and Rogaway, "Ciphers with arbitrary finite domains", CT-RSA 2002), keyed by seed
/// and epoch. An evaluation takes two passes at worst on average.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RandomSampler {
    len: u64,
    seed: u64,
}

impl RandomSampler {
    /// Random orders of `len` samples.
    pub fn new(len: u64, seed: u64) -> RandomSampler {
        RandomSampler { len, seed }
    }
}

impl Sampler for RandomSampler {
    fn len(&self) -> u64 {
        self.len
    }

    fn index(&self, epoch: u64, position: u64) -> u64 {
        permute(position, self.len, self.seed, epoch)
    }
}

/// An explicit list of indices, the same in each epoch.
impl Sampler for Vec<u64> {
    fn len(&self) -> u64 {
        self.as_slice().len() as u64
    }

    fn index(&self, _epoch: u64, position: u64) -> u64 {
        self[position as usize]
    }
}

impl fmt::Debug for dyn Sampler {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Sampler")
            .field("len", &self.len())
            .finish_non_exhaustive()
    }
}

/// How many rounds it takes until all orders come up evenly: small halves mix slowly. (Measured: of six samples, ten rounds
/// draw orders whose chi-square is 24 standard deviations off; 24 rounds and more, none.)
fn rounds(bits: u32) -> u64 {
    if bits <= 8 { 32 } else { 12 }
}

/// Where `position` goes in the permutation of `0..len` that `seed` and `epoch` name.
fn permute(position: u64, len: u64, seed: u64, epoch: u64) -> u64 {
    if len <= 1 {
        return position;
    }
    let [low, high, more, most] = philox4x32(
        [epoch as u32, (epoch >> 32) as u32, 0, 0x7065_726d], // "perm": not a sample's stream
        [seed as u32, (seed >> 32) as u32],
    );
    let keys = [
        u64::from(low) | u64::from(high) << 32,
        u64::from(more) | u64::from(most) << 32,
    ];
    let bits = u64::BITS - (len - 1).leading_zeros();
    let mut value = position;
    loop {
        value = feistel(value, bits, keys);
        if value < len {
            return value;
        }
    }
}

/// A permutation of the numbers of so many bits: each half in turn is changed by a function of the other.
fn feistel(value: u64, bits: u32, keys: [u64; 2]) -> u64 {
    let low_bits = bits / 2;
    let low_mask = (1u64 << low_bits) - 1;
    let high_mask = (1u64 << (bits - low_bits)) - 1;
    let (mut high, mut low) = (value >> low_bits & high_mask, value & low_mask);
    for round in 0..rounds(bits) {
        if round % 2 == 0 {
            high ^= mix(low, keys, round) & high_mask;
        } else {
            low ^= mix(high, keys, round) & low_mask;
        }
    }
    high << low_bits | low
}

/// The finalizer of splitmix64 (Steele, Lea and Flood, OOPSLA 2014), over value, key and round.
fn mix(value: u64, keys: [u64; 2], round: u64) -> u64 {
    let mut word = value
        .wrapping_add(keys[0])
        .wrapping_add((2 * round + 1).wrapping_mul(keys[1] | 1));
    word = (word ^ word >> 30).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    word = (word ^ word >> 27).wrapping_mul(0x94D0_49BB_1331_11EB);
    word ^ word >> 31
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn every_sample_comes_up_once(len in 0u64..3_000, seed: u64, epoch: u64) {
            let sampler = RandomSampler::new(len, seed);
            let mut order: Vec<u64> = (0..len).map(|position| sampler.index(epoch, position)).collect();
            order.sort_unstable();
            prop_assert!(order.iter().copied().eq(0..len));
        }

        #[test]
        fn huge_sets_need_no_memory(position in 0u64..1 << 62, seed: u64) {
            prop_assert!(RandomSampler::new(1 << 62, seed).index(0, position) < 1 << 62);
        }
    }

    /// All orders of five and six samples come up about equally often: 100 times each on average.
    #[test]
    fn orders_are_evenly_drawn() {
        for (len, orders) in [(5, 120), (6, 720)] {
            let sampler = RandomSampler::new(len, 9);
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
        // The mean distance of two random numbers below n is n / 3.
        let sampler = RandomSampler::new(100_000, 1);
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
