//! Distributions: counts in buckets whose widths grow with the values.
//!
//! Each power of two is cut into eight buckets, so a value in the middle of its bucket is off by a sixteenth at most. That makes 320
//! buckets for everything from a nanosecond to an hour, and two distributions are added bucket by bucket.

use super::Sum;
use crate::sync::OnceLock;

/// Each power of two has 2³ buckets.
const BITS: u32 = 3;

/// Values of 2⁴² and more (73 minutes, in nanoseconds) are in the last bucket.
const MOST_BITS: u32 = 42;

const COUNT: usize = ((MOST_BITS - BITS + 1) << BITS) as usize;

/// Counts values by size. They are made when the first is counted.
#[derive(Default)]
pub(crate) struct Buckets(OnceLock<Box<[Sum]>>);

impl Buckets {
    pub(crate) fn count(&self, value: u64) {
        self.count_times(value, 1);
    }

    /// Counts a value so many times.
    pub(crate) fn count_times(&self, value: u64, times: u64) {
        self.counts()[bucket_of(value)].add(times);
    }

    fn counts(&self) -> &[Sum] {
        let new = || (0..COUNT).map(|_| Sum::default()).collect();
        self.0.get_or_init(new)
    }

    /// How many values each bucket has, without the empty ones at the end.
    pub(crate) fn get(&self) -> Vec<u64> {
        let counts = self.0.get().map(|counts| counts.iter().map(Sum::get));
        let mut counts: Vec<u64> = counts.into_iter().flatten().collect();
        let used = counts.iter().rposition(|count| *count > 0);
        counts.truncate(used.map_or(0, |last| last + 1));
        counts
    }

    pub(super) fn absorb(&self, other: &Buckets) {
        if let Some(others) = other.0.get() {
            let counts = self.counts().iter();
            counts
                .zip(others)
                .for_each(|(sum, more)| sum.add(more.get()));
        }
    }
}

fn bucket_of(value: u64) -> usize {
    let power = 63 - (value | 1).leading_zeros();
    if power < BITS {
        return value as usize;
    }
    if power >= MOST_BITS {
        return COUNT - 1;
    }
    let within = (value >> (power - BITS)) & ((1 << BITS) - 1);
    (((power - BITS + 1) as usize) << BITS) + within as usize
}

/// The value in the middle of a bucket: it is off by a sixteenth at most. Below 16, each value has its own.
pub(crate) fn middle_of(bucket: usize) -> u64 {
    let first = first_of(bucket);
    first + (first_of(bucket + 1) - first - 1) / 2
}

fn first_of(bucket: usize) -> u64 {
    let (power, within) = (bucket >> BITS, (bucket & ((1 << BITS) - 1)) as u64);
    match power {
        0 => within,
        _ => ((1 << BITS) + within) << (power - 1),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_is_near_the_middle_of_its_bucket() {
        let most = 1 << MOST_BITS;
        let powers = (0..MOST_BITS).map(|power| 1u64 << power);
        let around = powers.flat_map(|power| [power - 1, power, power + power / 3, 2 * power - 1]);
        for value in around.chain(0..4096).filter(|value| *value < most) {
            let bucket = bucket_of(value);
            assert!(first_of(bucket) <= value && value < first_of(bucket + 1));
            let off = middle_of(bucket).abs_diff(value);
            assert!(
                off * 16 <= value,
                "{value} is taken for {}",
                middle_of(bucket)
            );
        }
        assert_eq!(bucket_of(most - 1), COUNT - 1);
        assert_eq!(bucket_of(u64::MAX), COUNT - 1);
        assert!((0..16).all(|value| middle_of(bucket_of(value)) == value));
    }

    #[test]
    fn buckets_are_added() {
        let (one, other) = (Buckets::default(), Buckets::default());
        assert!(one.get().is_empty());
        one.absorb(&other);
        [0, 3, 3].into_iter().for_each(|value| one.count(value));
        [3, 5].into_iter().for_each(|value| other.count(value));
        one.absorb(&other);
        assert_eq!(one.get(), [1, 0, 0, 3, 0, 1]);
        assert_eq!(other.get(), [0, 0, 0, 1, 0, 1]);
    }
}
