//! A random number generator that is a pure function of its key.

/// SplitMix64 (Steele, Lea, Flood: "Fast splittable pseudorandom number generators", 2014).
pub struct Rng(u64);

impl Rng {
    /// Even similar keys, such as `(seed, epoch, index)`, give unrelated streams.
    pub fn new(key: [u64; 3]) -> Self {
        key.into_iter().fold(Rng(0), |mut rng, part| {
            rng.0 ^= part;
            Rng(rng.next_u64())
        })
    }

    pub fn next_u64(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number from `low` (inclusive) to `high` (exclusive).
    pub fn between(&mut self, low: f32, high: f32) -> f32 {
        let unit = (self.next_u64() >> 40) as f32 / (1 << 24) as f32;
        low + unit * (high - low)
    }
}
