//! The generator for a sample's augmentation: keyed by the sample's position, never by the worker that loads it.

#[cfg(feature = "rand_core")]
mod rand_core;
mod range;

pub use range::NumberRange;

/// Which numbers a [`SampleRng`] gives: they follow from the loader's seed, the epoch, and a position in the epoch's global order.
///
/// It has names because its parts are of one type, and exchanged ones give other numbers without a word.
///
/// # Examples
///
/// ```
/// use pinfeed::SampleRng;
/// use pinfeed::rng::RngKey;
///
/// let first = RngKey { seed: 17, epoch: 0, position: 0 };
/// let second = RngKey { position: 1, ..first };
/// let number = |key| SampleRng::for_sample(key).next_u64();
/// assert_eq!(number(first), number(first));
/// assert_ne!(number(first), number(second));
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct RngKey {
    /// The seed of the loader ([`Builder::seed`](crate::loader::Builder::seed)).
    pub seed: u64,
    /// The epoch, from 0.
    pub epoch: u64,
    /// The position in the epoch's global order, from 0.
    pub position: u64,
}

/// A small counter-based random generator, one for each sample of each epoch.
///
/// Its numbers are a pure function of (seed, epoch, position in the epoch): they do not depend on the number of
/// workers, on the rank, or on time. It is Philox4x32-10 (Salmon, Moraes, Dror and Shaw, "Parallel random numbers: as
/// easy as 1, 2, 3", SC 2011): the key is the seed, and the counter holds epoch and position, so no two samples share a
/// stream. It is not cryptographically secure.
///
/// Batches ([`for_batch`](SampleRng::for_batch)) and samplers ([`for_sampler`](SampleRng::for_sampler)) have separate
/// streams. With the feature `rand_core`, it also implements `rand_core::Rng`, for `rand` and similar crates.
///
/// # Examples
///
/// ```
/// use pinfeed::SampleRng;
/// use pinfeed::rng::RngKey;
///
/// let key = RngKey { seed: 17, epoch: 0, position: 3 };
/// let mut rng = SampleRng::for_sample(key);
/// let flip = rng.bool(0.5);
/// let scale = rng.range(0.08..1.0);
/// let corner = ["left", "right"][rng.range(0..2)];
/// let again = &mut SampleRng::for_sample(key);
/// assert_eq!((flip, scale), (again.bool(0.5), again.range(0.08..1.0)));
/// ```
#[derive(Debug, Clone)]
pub struct SampleRng {
    key: [u32; 2],
    /// Words 2 and 3 of the counter identify the stream; words 0 and 1 count its blocks.
    stream: [u32; 2],
    block: u64,
    buffer: [u32; 4],
    used: u32,
    /// The pass that the sample is loaded for; 0: unknown. No number depends on it.
    pass: u32,
}

impl SampleRng {
    /// Makes the generator of one sample: the one at the key's position in its epoch's global order.
    ///
    /// [`Dataset::get`](crate::Dataset::get) is given this generator, with the loader's seed. Do not use it in a
    /// [`Sampler`](crate::sampler::Sampler) with the same seed: the same numbers would choose a sample and then augment
    /// it. Use [`for_sampler`](SampleRng::for_sampler) there.
    #[inline]
    pub fn for_sample(key: RngKey) -> SampleRng {
        SampleRng::at_block(key, 0)
    }

    /// Makes the generator for a whole batch, the one whose first row is at the key's position in its epoch's global order. Use it
    /// for what is drawn once for all of a batch's samples, on the device
    /// ([`Mixup::draw`](crate::ops::Mixup::draw)). It shares no numbers with any sample.
    ///
    /// [`BatchInfo::rng`](crate::loader::BatchInfo::rng) makes it for a loader's batch. (Batches are not counted here,
    /// because a resumed run counts them from 0: it would draw the same numbers again.)
    pub fn for_batch(key: RngKey) -> SampleRng {
        // No sample draws enough blocks to reach this one.
        SampleRng::at_block(key, 1 << 63)
    }

    /// Makes the generator for one position of a sampler's order. It shares no numbers with the sample at that
    /// position, nor with any batch, so the sampler can use the loader's seed.
    ///
    /// # Examples
    ///
    /// Each sample as often as its weight demands:
    ///
    /// ```
    /// use pinfeed::SampleRng;
    /// use pinfeed::rng::RngKey;
    /// use pinfeed::sampler::Sampler;
    ///
    /// struct Weighted {
    ///     /// The running sum of the weights, up to and including each sample's.
    ///     sums: Vec<f64>,
    ///     seed: u64,
    /// }
    ///
    /// impl Sampler for Weighted {
    ///     fn len(&self) -> u64 {
    ///         self.sums.len() as u64
    ///     }
    ///
    ///     fn index(&self, epoch: u64, position: u64) -> u64 {
    ///         let mut rng = SampleRng::for_sampler(RngKey { seed: self.seed, epoch, position });
    ///         let drawn = rng.range(0.0..self.sums[self.sums.len() - 1]);
    ///         self.sums.partition_point(|sum| *sum <= drawn) as u64
    ///     }
    ///
    ///     fn set_seed(&mut self, seed: u64) {
    ///         self.seed = seed; // the loader's
    ///     }
    /// }
    ///
    /// let sampler = Weighted { sums: vec![1.0, 1.0, 4.0], seed: 17 }; // 1, 0 and 3
    /// assert!((0..3).all(|position| sampler.index(0, position) != 1));
    /// ```
    pub fn for_sampler(key: RngKey) -> SampleRng {
        // Between the blocks of samples and of batches; none draws enough to reach the next range.
        SampleRng::at_block(key, 1 << 62)
    }

    /// Makes the generator that draws which samples may take the row of one that failed. It shares no numbers with the
    /// others.
    pub(crate) fn for_replacement(key: RngKey) -> SampleRng {
        SampleRng::at_block(key, 3 << 62)
    }

    /// Makes the generator that draws which of some pictures a device decodes: the key's position counts pictures in the epoch's order. It
    /// shares no numbers with the others.
    pub(crate) fn for_decoders(key: RngKey) -> SampleRng {
        SampleRng::at_block(key, 1 << 61)
    }

    #[inline]
    fn at_block(key: RngKey, block: u64) -> SampleRng {
        // A stream's identifier has 64 bits: 44 for the position and 20 for the epoch; larger values wrap around.
        let stream = key.position ^ key.epoch.rotate_left(44);
        SampleRng {
            key: split(key.seed),
            stream: split(stream),
            block,
            buffer: [0; 4],
            used: 4,
            pass: 0,
        }
    }

    /// The same generator, which says for which [pass](crate::dataset::Pass) the sample is loaded.
    pub(crate) fn of_pass(self, pass: u32) -> SampleRng {
        SampleRng { pass, ..self }
    }

    pub(crate) fn pass(&self) -> u32 {
        self.pass
    }

    /// Draws 32 random bits.
    pub fn next_u32(&mut self) -> u32 {
        if self.used == 4 {
            let [low, high] = split(self.block);
            self.buffer = philox4x32([low, high, self.stream[0], self.stream[1]], self.key);
            self.block += 1;
            self.used = 0;
        }
        self.used += 1;
        self.buffer[self.used as usize - 1]
    }

    /// Draws 64 random bits.
    pub fn next_u64(&mut self) -> u64 {
        u64::from(self.next_u32()) | u64::from(self.next_u32()) << 32
    }

    /// Draws uniformly from [0, 1), in steps of 2⁻²⁴.
    pub fn f32(&mut self) -> f32 {
        (self.next_u32() >> 8) as f32 / (1 << 24) as f32
    }

    /// Draws uniformly from [0, 1), in steps of 2⁻⁵³.
    pub fn f64(&mut self) -> f64 {
        (self.next_u64() >> 11) as f64 / (1u64 << 53) as f64
    }

    /// Draws uniformly from a range of integers or floats: from `a..b`, excluding `b`, or from `a..=b`, including it.
    ///
    /// `range(0..n)` draws the same number as [`below(n)`](SampleRng::below), in the type of `n`. For floats, the steps
    /// are those of [`f32`](SampleRng::f32) and [`f64`](SampleRng::f64), scaled. A range of floats whose ends are equal
    /// returns that number.
    ///
    /// # Panics
    ///
    /// If the range is empty: for integers, `a..b` with `a >= b`, or `a..=b` with `a > b`; for floats, either with `a >
    /// b`, or if `b - a` is not finite. (In [`Dataset::get`](crate::Dataset::get), a panic is an error of the sample.)
    ///
    /// # Examples
    ///
    /// ```
    /// use pinfeed::SampleRng;
    /// use pinfeed::rng::RngKey;
    ///
    /// let mut rng = SampleRng::for_sample(RngKey { seed: 17, epoch: 0, position: 3 });
    /// let shift: i32 = rng.range(-4..=4);
    /// let words = ["sunny", "rainy", "cloudy"];
    /// let word = words[rng.range(0..words.len())];
    /// let gamma: f32 = rng.range(0.8..1.25);
    /// # assert!((-4..=4).contains(&shift) && words.contains(&word) && (0.8..1.25).contains(&gamma));
    /// ```
    #[inline]
    pub fn range<R: NumberRange>(&mut self, range: R) -> R::Number {
        range.draw(self)
    }

    /// Draws an integer below `bound`, without bias.
    ///
    /// Lemire, "Fast random integer generation in an interval", 2019.
    ///
    /// # Panics
    ///
    /// If `bound` is 0.
    pub fn below(&mut self, bound: u64) -> u64 {
        assert!(bound > 0, "there is no whole number below 0");
        loop {
            let product = u128::from(self.next_u64()) * u128::from(bound);
            let low = product as u64;
            if low >= bound || low >= bound.wrapping_neg() % bound {
                return (product >> 64) as u64;
            }
        }
    }

    /// Draws `true` with the given probability.
    pub fn bool(&mut self, probability: f64) -> bool {
        self.f64() < probability
    }
}

#[inline]
fn split(word: u64) -> [u32; 2] {
    [word as u32, (word >> 32) as u32]
}

/// One block of Philox4x32 with ten rounds.
fn philox4x32(mut counter: [u32; 4], mut key: [u32; 2]) -> [u32; 4] {
    for _ in 0..10 {
        let product0 = u64::from(counter[0]) * 0xD251_1F53;
        let product1 = u64::from(counter[2]) * 0xCD9E_8D57;
        counter = [
            (product1 >> 32) as u32 ^ counter[1] ^ key[0],
            product1 as u32,
            (product0 >> 32) as u32 ^ counter[3] ^ key[1],
            product0 as u32,
        ];
        key = [
            key[0].wrapping_add(0x9E37_79B9),
            key[1].wrapping_add(0xBB67_AE85),
        ];
    }
    counter
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The known answers of the authors' own Random123 distribution (`kat_vectors`, philox4x32 10).
    #[test]
    fn philox_gives_its_authors_answers() {
        assert_eq!(
            philox4x32([0; 4], [0; 2]),
            [0x6627_e8d5, 0xe169_c58d, 0xbc57_ac4c, 0x9b00_dbd8]
        );
        assert_eq!(
            philox4x32([u32::MAX; 4], [u32::MAX; 2]),
            [0x408f_276d, 0x41c8_3b0e, 0xa20b_c7c6, 0x6d54_51fd]
        );
        assert_eq!(
            philox4x32(
                [0x243f_6a88, 0x85a3_08d3, 0x1319_8a2e, 0x0370_7344],
                [0xa409_3822, 0x299f_31d0]
            ),
            [0xd16c_fe09, 0x94fd_cceb, 0x5001_e420, 0x2412_6ea1]
        );
    }

    #[test]
    fn neighbours_draw_different_numbers() {
        let draw = |seed, epoch, position| {
            SampleRng::for_sample(RngKey {
                seed,
                epoch,
                position,
            })
            .next_u64()
        };
        let mut seen: Vec<u64> = Vec::new();
        for seed in 0..4 {
            for epoch in 0..4 {
                seen.extend((0..64).map(|position| draw(seed, epoch, position)));
            }
        }
        let drawn = seen.len();
        seen.sort_unstable();
        seen.dedup();
        assert_eq!(seen.len(), drawn);
    }

    #[test]
    fn samples_batches_and_samplers_draw_other_numbers() {
        let numbers =
            |mut rng: SampleRng| -> Vec<u64> { (0..256).map(|_| rng.next_u64()).collect() };
        let batch = |number| {
            numbers(SampleRng::for_batch(RngKey {
                seed: 7,
                epoch: 1,
                position: number,
            }))
        };
        let sampler = |position| {
            numbers(SampleRng::for_sampler(RngKey {
                seed: 7,
                epoch: 1,
                position,
            }))
        };
        assert_eq!((batch(3), sampler(3)), (batch(3), sampler(3)));
        let mut seen: Vec<u64> = (0..4).flat_map(batch).collect();
        seen.extend((0..4).flat_map(sampler));
        seen.extend((0..4).flat_map(|position| {
            numbers(SampleRng::for_sample(RngKey {
                seed: 7,
                epoch: 1,
                position,
            }))
        }));
        let drawn = seen.len();
        seen.sort_unstable();
        seen.dedup();
        assert_eq!(seen.len(), drawn);
    }

    /// The numbers of an earlier version: they must not change with a new one.
    #[test]
    fn streams_stay_what_they_are() {
        let mut sample = SampleRng::for_sample(RngKey {
            seed: 17,
            epoch: 3,
            position: 5,
        });
        assert_eq!(
            (sample.next_u64(), sample.next_u32(), sample.below(1_000)),
            (13_579_322_811_539_566_593, 1_821_313_028, 730)
        );
        assert_eq!(
            SampleRng::for_batch(RngKey {
                seed: 17,
                epoch: 3,
                position: 5
            })
            .next_u64(),
            2_310_582_582_051_744_323
        );
        assert_eq!(
            SampleRng::for_sampler(RngKey {
                seed: 17,
                epoch: 3,
                position: 5
            })
            .next_u64(),
            15_078_741_219_845_479_568
        );
    }

    #[test]
    fn below_reaches_every_number_and_none_beyond() {
        let mut rng = SampleRng::for_sample(RngKey {
            seed: 1,
            epoch: 2,
            position: 3,
        });
        let mut counts = [0; 7];
        for _ in 0..7_000 {
            counts[rng.below(7) as usize] += 1;
        }
        assert!(
            counts.iter().all(|count| (800..1200).contains(count)),
            "{counts:?}"
        );
    }

    #[test]
    fn fractions_lie_in_the_unit_interval_around_a_half() {
        let mut rng = SampleRng::for_sample(RngKey {
            seed: 5,
            epoch: 0,
            position: 0,
        });
        let draws: Vec<f64> = (0..10_000).map(|_| rng.f64()).collect();
        assert!(draws.iter().all(|x| (0.0..1.0).contains(x)));
        let mean = draws.iter().sum::<f64>() / 10_000.0;
        assert!((mean - 0.5).abs() < 0.02, "{mean}");
    }
}
