//! Orders of indices: which samples an epoch has, and in which order.

use std::fmt;

use crate::fingerprint::{Fingerprint, spread};
use crate::sync::Arc;

/// An order of a data set's samples: which index is at each position of an epoch.
///
/// It is a pure function, evaluated when needed and never stored: workers ask for positions in any order, from several
/// threads. An index may occur more than once, or not at all.
///
/// For a random order, draw from [`SampleRng::for_sampler`](crate::SampleRng::for_sampler) (its example draws by
/// weight), whose numbers no sample gets. With [`SampleRng::new`](crate::SampleRng::new) and the loader's seed, the
/// same numbers would choose a sample and then augment it.
///
/// A `Box` or an `Arc` of a sampler is a sampler too: use `Box<dyn Sampler>` to choose the order at run time.
///
/// # Examples
///
/// ```
/// use pinfeed::DataLoader;
/// use pinfeed::sampler::Sampler;
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

    /// The index of the sample at `position`, which is below [`len`](Sampler::len). (The loader asks for no other
    /// position; the crate's own samplers panic if they have no index for it.)
    fn index(&self, epoch: u64, position: u64) -> u64;

    /// Writes the indices for as many positions as `indices` has places, from `start` on. Workers call this. It must
    /// agree with [`index`](Sampler::index), as the default does.
    fn indices(&self, epoch: u64, start: u64, indices: &mut [u64]) {
        for (index, position) in indices.iter_mut().zip(start..) {
            *index = self.index(epoch, position);
        }
    }

    /// A fingerprint of the order, by which [`DataLoader::resume`](crate::DataLoader::resume) tells another one. Default: of the
    /// number of positions, and of 32 indices of epoch 0 and as many of epoch 1.
    fn fingerprint(&self) -> u32 {
        let mut print = Fingerprint::new();
        print.add_number(self.len());
        for epoch in 0..2 {
            spread(self.len(), 32)
                .for_each(|position| print.add_number(self.index(epoch, position)));
        }
        print.finish()
    }
}

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
    /// Makes the order of `len` samples.
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

/// All samples once, in a random order that differs in each epoch; PyTorch's `RandomSampler` without replacement.
///
/// The order is a keyed permutation, evaluated instead of stored, so 10¹² samples cost no memory: an alternating
/// Feistel network of 12 rounds (32 below 256 samples) over the smallest power of two that holds `len`, keyed by seed
/// and epoch. Results of `len` and more are permuted again (cycle walking: Black and Rogaway, "Ciphers with arbitrary
/// finite domains", CT-RSA 2002). An evaluation takes at most two passes on average.
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
/// let train = DataLoader::builder(samples.clone()).batch_size(20).sampler(RandomSampler::new(80, 17)).build()?;
/// let val = DataLoader::builder(samples).batch_size(20).sampler((80..100).collect::<Vec<u64>>()).build()?;
/// assert_eq!((train.len(), val.len()), (4, 1));
/// for batch in &train {
///     assert!(batch?.as_slice().iter().all(|number| *number < 80));
/// }
/// # Ok::<(), pinfeed::Error>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RandomSampler {
    len: u64,
    seed: u64,
}

impl RandomSampler {
    /// Makes random orders of `len` samples.
    pub fn new(len: u64, seed: u64) -> RandomSampler {
        RandomSampler { len, seed }
    }
}

impl Sampler for RandomSampler {
    fn len(&self) -> u64 {
        self.len
    }

    fn index(&self, epoch: u64, position: u64) -> u64 {
        let mut index = [0];
        self.indices(epoch, position, &mut index);
        index[0]
    }

    fn indices(&self, epoch: u64, start: u64, indices: &mut [u64]) {
        let end = start.checked_add(indices.len() as u64);
        assert!(
            end.is_some_and(|end| end <= self.len),
            "positions {start} and on are not all below {}",
            self.len
        );
        for (index, position) in indices.iter_mut().zip(start..) {
            *index = position;
        }
        Permutation::new(self.len, self.seed, epoch).apply(indices);
    }
}

/// A list of indices, the same in each epoch.
impl Sampler for Vec<u64> {
    fn len(&self) -> u64 {
        self.as_slice().len() as u64
    }

    fn index(&self, _epoch: u64, position: u64) -> u64 {
        self[position as usize]
    }
}

/// Forwards all methods to the sampler inside.
macro_rules! forwarded {
    ($($holder:ident),*) => {$(
        impl<S: Sampler + ?Sized> Sampler for $holder<S> {
            fn len(&self) -> u64 {
                (**self).len()
            }

            fn is_empty(&self) -> bool {
                (**self).is_empty()
            }

            fn index(&self, epoch: u64, position: u64) -> u64 {
                (**self).index(epoch, position)
            }

            fn indices(&self, epoch: u64, start: u64, indices: &mut [u64]) {
                (**self).indices(epoch, start, indices);
            }

            fn fingerprint(&self) -> u32 {
                (**self).fingerprint()
            }
        }
    )*};
}

forwarded!(Box, Arc);

impl fmt::Debug for dyn Sampler {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Sampler")
            .field("len", &self.len())
            .finish_non_exhaustive()
    }
}

/// A keyed permutation of `0..len`: an alternating Feistel network over the smallest power of two that holds `len`.
/// Each round changes one half by a function of the other.
struct Permutation {
    len: u64,
    low_bits: u32,
    low_mask: u64,
    high_mask: u64,
    keys: [Key; MOST_ROUNDS],
    rounds: usize,
}

/// A round's function of one half, which has at most 32 bits: multiply-shift hashing (Dietzfelbinger, Hagerup,
/// Katajainen and Penttonen, 1997). It takes a 32 by 32 bit product, which even old vector units have.
#[derive(Clone, Copy)]
struct Key {
    flip: u64,
    factor: u64,
}

impl Key {
    #[inline(always)]
    fn hash(self, half: u64) -> u64 {
        let product = ((half ^ self.flip) & 0xFFFF_FFFF) * (self.factor & 0xFFFF_FFFF);
        product >> 16
    }
}

/// How many rounds it takes until all orders are equally likely: small halves mix slowly. (Measured: over all orders of
/// seven samples, chi-square is 15 standard deviations off with 24 rounds, 1 with 32; over pairs among 40 to 700
/// samples, 8 rounds are enough.)
fn rounds(bits: u32) -> usize {
    if bits <= 8 { MOST_ROUNDS } else { 12 }
}

const MOST_ROUNDS: usize = 32;

/// How many values are permuted side by side. Each round depends on the one before, so one value alone would leave the
/// processor idle.
const LANES: usize = 8;

/// How many positions are handled together before those with results of `len` and more are permuted again.
const CHUNK: usize = 64;

impl Permutation {
    fn new(len: u64, seed: u64, epoch: u64) -> Permutation {
        let bits = u64::BITS - len.saturating_sub(1).leading_zeros();
        let low_bits = bits / 2;
        let rounds = rounds(bits);
        let mut words = SplitMix(mix(seed ^ mix(epoch ^ 0x7065_726d))); // "perm": separates it from the samples' streams
        let mut keys = [Key { flip: 0, factor: 1 }; MOST_ROUNDS];
        for key in &mut keys[..rounds] {
            let word = words.next();
            *key = Key {
                flip: word & 0xFFFF_FFFF,
                factor: word >> 32 | 1,
            };
        }
        Permutation {
            len,
            low_bits,
            low_mask: (1 << low_bits) - 1,
            high_mask: (1 << (bits - low_bits)) - 1,
            keys,
            rounds,
        }
    }

    /// Replaces each position by its index.
    fn apply(&self, values: &mut [u64]) {
        if self.len <= 1 {
            return;
        }
        #[cfg(target_arch = "x86_64")]
        if std::is_x86_feature_detected!("avx2") {
            // SAFETY: the processor supports AVX2.
            return unsafe { self.apply_by_avx2(values) };
        }
        self.apply_to_chunks(values);
    }

    /// The same function, compiled for wider vectors.
    #[cfg(target_arch = "x86_64")]
    #[target_feature(enable = "avx2")]
    fn apply_by_avx2(&self, values: &mut [u64]) {
        self.apply_to_chunks(values);
    }

    #[inline(always)]
    fn apply_to_chunks(&self, values: &mut [u64]) {
        for chunk in values.chunks_mut(CHUNK) {
            // The values that are no sample's index, and are permuted again.
            let mut pending = [0u8; CHUNK];
            let mut count = 0;
            let mut start = 0;
            for group in chunk.chunks_mut(LANES) {
                let mut words = [0; LANES];
                words[..group.len()].copy_from_slice(group);
                let words = self.feistel(words);
                group.copy_from_slice(&words[..group.len()]);
                for (lane, word) in group.iter().enumerate() {
                    pending[count % CHUNK] = (start + lane) as u8;
                    count += usize::from(*word >= self.len);
                }
                start += group.len();
            }
            while count > 0 {
                count = self.once_more(chunk, &mut pending, count);
            }
        }
    }

    /// Permutes the pending values, and returns how many are still pending.
    #[inline(always)]
    fn once_more(&self, values: &mut [u64], pending: &mut [u8; CHUNK], count: usize) -> usize {
        let (mut left, mut start) = (0, 0);
        while start < count {
            let lanes = LANES.min(count - start);
            let mut words = [0; LANES];
            for (word, index) in words.iter_mut().zip(&pending[start..start + lanes]) {
                *word = values[usize::from(*index)];
            }
            let words = self.feistel(words);
            for (lane, word) in words[..lanes].iter().enumerate() {
                let index = pending[start + lane];
                values[usize::from(index)] = *word;
                pending[left] = index; // never overwrites an entry that is still to be read
                left += usize::from(*word >= self.len);
            }
            start += lanes;
        }
        left
    }

    #[inline(always)]
    fn feistel(&self, values: [u64; LANES]) -> [u64; LANES] {
        let mut high = values.map(|value| value >> self.low_bits & self.high_mask);
        let mut low = values.map(|value| value & self.low_mask);
        for keys in self.keys[..self.rounds].chunks_exact(2) {
            for lane in 0..LANES {
                high[lane] ^= keys[0].hash(low[lane]) & self.high_mask;
            }
            for lane in 0..LANES {
                low[lane] ^= keys[1].hash(high[lane]) & self.low_mask;
            }
        }
        std::array::from_fn(|lane| high[lane] << self.low_bits | low[lane])
    }
}

/// splitmix64 (Steele, Lea and Flood, OOPSLA 2014).
struct SplitMix(u64);

impl SplitMix {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        mix(self.0)
    }
}

/// The finalizer of splitmix64.
fn mix(mut word: u64) -> u64 {
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
        fn many_positions_are_as_each(len in 1u64..3_000, seed: u64, epoch: u64, start in 0u64..3_000, count in 0usize..300) {
            let sampler = RandomSampler::new(len, seed);
            let start = start % len;
            let mut indices = vec![0; count.min((len - start) as usize)];
            sampler.indices(epoch, start, &mut indices);
            let each: Vec<u64> = (start..).take(indices.len()).map(|position| sampler.index(epoch, position)).collect();
            prop_assert_eq!(indices, each);
        }

        /// With the widest vectors that the processor has, and without them.
        #[test]
        fn both_ways_give_the_same(bits in 0u32..64, less in 0u64..3, seed: u64, epoch: u64, start: u64, count in 0usize..200) {
            let len = (1u64 << bits).saturating_sub(less).max(2);
            let permutation = Permutation::new(len, seed, epoch);
            let mut one: Vec<u64> = (0..count as u64).map(|at| start.wrapping_add(at) % len).collect();
            let mut other = one.clone();
            permutation.apply(&mut one);
            permutation.apply_to_chunks(&mut other);
            prop_assert!(one.iter().all(|index| *index < len));
            prop_assert_eq!(one, other);
        }

        #[test]
        fn huge_sets_need_no_memory(position in 0u64..1 << 62, seed: u64) {
            prop_assert!(RandomSampler::new(1 << 62, seed).index(0, position) < 1 << 62);
        }
    }

    #[test]
    fn the_smallest_and_the_largest_sets_are_permuted() {
        for len in (0..70).chain([
            127, 128, 129, 255, 256, 257, 511, 513, 65_535, 65_536, 65_537,
        ]) {
            for seed in 0..3 {
                let mut order: Vec<u64> = (0..len).collect();
                Permutation::new(len, seed, 1).apply(&mut order);
                order.sort_unstable();
                assert!(order.into_iter().eq(0..len), "{len} samples");
            }
        }
        // No value comes out twice: the halves have 32 bits here.
        for len in [u64::MAX, 1 << 63, (1 << 63) + 1, (1 << 33) + 1, 1 << 32] {
            let mut order: Vec<u64> = (0..20_000).chain(len - 20_000..len).collect();
            Permutation::new(len, 7, 0).apply(&mut order);
            order.sort_unstable();
            order.dedup();
            assert_eq!(order.len(), 40_000);
            assert!(order.last().is_some_and(|last| *last < len));
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
        // The mean distance between two random numbers below n is n / 3.
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
