//! The generator as a `rand_core` generator: for `rand`, `rand_distr` and other crates built on it.

use std::convert::Infallible;

use rand_core::TryRng;

use super::SampleRng;

/// With the feature `rand_core`. This makes it a `rand_core::Rng`, so it works with `rand`'s `RngExt`.
impl TryRng for SampleRng {
    type Error = Infallible;

    #[inline]
    fn try_next_u32(&mut self) -> Result<u32, Infallible> {
        Ok(self.next_u32())
    }

    #[inline]
    fn try_next_u64(&mut self) -> Result<u64, Infallible> {
        Ok(self.next_u64())
    }

    fn try_fill_bytes(&mut self, bytes: &mut [u8]) -> Result<(), Infallible> {
        for chunk in bytes.chunks_mut(size_of::<u32>()) {
            chunk.copy_from_slice(&self.next_u32().to_le_bytes()[..chunk.len()]);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use rand_core::Rng;

    use super::*;
    use crate::rng::RngKey;

    #[test]
    fn it_is_a_generator_of_rand_core() {
        fn drawn(rng: &mut impl Rng) -> (u32, u64, [u8; 6]) {
            let mut bytes = [0; 6];
            let drawn = (rng.next_u32(), rng.next_u64());
            rng.fill_bytes(&mut bytes);
            (drawn.0, drawn.1, bytes)
        }
        let rng = SampleRng::for_sample(RngKey {
            seed: 17,
            epoch: 0,
            position: 3,
        });
        let mut ours = rng.clone();
        let (word, double) = (ours.next_u32(), ours.next_u64());
        let [low, high] = [ours.next_u32(), ours.next_u32()].map(u32::to_le_bytes);
        let bytes = [low[0], low[1], low[2], low[3], high[0], high[1]];
        assert_eq!(drawn(&mut rng.clone()), (word, double, bytes));
    }
}
