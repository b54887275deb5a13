//! Distributions, as statistics show them.

use std::fmt;
use std::marker::PhantomData;
use std::ops::AddAssign;
use std::time::Duration;

use crate::meter::{Buckets, middle_of};

/// How values are distributed: times (`Histogram`, whose quantiles are [`Duration`]s), or numbers of batches (`Histogram<u64>`).
///
/// It counts in buckets, eight for each power of two: so quantiles are within 6.25 % of the true value, and exact below 16 (nanoseconds, or
/// batches). Times of 73 minutes and more share the last bucket. It takes 2.5 KiB at most, and two of them are added without loss.
///
/// With `serde`, it is written as `count`, `mean`, `p50` and `p99`; times in seconds.
///
/// # Examples
///
/// ```
/// use std::time::Duration;
///
/// use pinfeed::{DataLoader, from_fn};
///
/// let samples = from_fn(100, |index, _| {
///     std::thread::sleep(Duration::from_millis(if index % 10 == 0 { 2 } else { 0 }));
///     Ok(index as i64)
/// });
/// let loader = DataLoader::builder(samples).batch_size(10).build()?;
/// let mut epoch = loader.epoch(0);
/// epoch.by_ref().try_for_each(|batch| batch.map(drop))?;
///
/// let waits = epoch.stats().consumer_wait.each; // for each batch
/// assert_eq!(waits.count(), 10);
/// println!("half of the batches came within {:?}, 99 % within {:?}", waits.p50(), waits.p99());
/// # assert!(waits.p50() >= Duration::from_micros(1_800) && waits.quantile(0.0) <= waits.p99());
/// # Ok::<(), pinfeed::Error>(())
/// ```
#[derive(Clone, PartialEq, Eq, Default)]
pub struct Histogram<V = Duration> {
    /// Without the empty ones at the end.
    counts: Vec<u64>,
    values: PhantomData<V>,
}

impl<V> Histogram<V> {
    pub(super) fn of(buckets: &Buckets) -> Histogram<V> {
        Histogram {
            counts: buckets.get(),
            values: PhantomData,
        }
    }

    /// Returns how many values were counted.
    pub fn count(&self) -> u64 {
        self.counts.iter().sum()
    }

    fn number_at(&self, q: f64) -> u64 {
        let wanted = (q.clamp(0.0, 1.0) * self.count() as f64).ceil().max(1.0) as u64;
        let mut seen = 0;
        let reached = self.counts.iter().position(|count| {
            seen += count;
            seen >= wanted
        });
        reached.map_or(0, middle_of)
    }

    fn mean_number(&self) -> f64 {
        let counts = self.counts.iter().enumerate();
        let sum: f64 = counts
            .map(|(bucket, count)| middle_of(bucket) as f64 * *count as f64)
            .sum();
        sum / (self.count() as f64).max(1.0)
    }
}

impl Histogram {
    /// Returns the shortest time that at least the share `q` of all do not exceed: 0.5 for the median, 1 for the longest; zero if none was
    /// counted. A `q` outside 0 to 1 is clamped.
    pub fn quantile(&self, q: f64) -> Duration {
        Duration::from_nanos(self.number_at(q))
    }

    /// Returns the median; zero if no time was counted.
    pub fn p50(&self) -> Duration {
        self.quantile(0.5)
    }

    /// Returns the time that one in a hundred exceeds; zero if none was counted.
    pub fn p99(&self) -> Duration {
        self.quantile(0.99)
    }

    /// Returns the mean; zero if no time was counted.
    pub fn mean(&self) -> Duration {
        Duration::from_nanos(self.mean_number() as u64)
    }
}

impl Histogram<u64> {
    /// Returns the smallest number that at least the share `q` of all do not exceed: 0.5 for the median, 1 for the largest; 0 if there are
    /// none. A `q` outside 0 to 1 is clamped.
    pub fn quantile(&self, q: f64) -> u64 {
        self.number_at(q)
    }

    /// Returns the median; 0 if there are no numbers.
    pub fn p50(&self) -> u64 {
        self.quantile(0.5)
    }

    /// Returns the number that one in a hundred exceeds; 0 if there are no numbers.
    pub fn p99(&self) -> u64 {
        self.quantile(0.99)
    }

    /// Returns the mean; 0 if there are no numbers.
    pub fn mean(&self) -> f64 {
        self.mean_number()
    }

    /// Returns the share of the numbers that are 0; 0 if there are no numbers.
    pub fn share_of_zero(&self) -> f64 {
        let zeros = self.counts.first().copied().unwrap_or(0);
        zeros as f64 / (self.count() as f64).max(1.0)
    }
}

impl<V> AddAssign<&Histogram<V>> for Histogram<V> {
    fn add_assign(&mut self, other: &Histogram<V>) {
        let most = self.counts.len().max(other.counts.len());
        self.counts.resize(most, 0);
        let sums = self.counts.iter_mut().zip(&other.counts);
        sums.for_each(|(sum, more)| *sum += more);
    }
}

impl fmt::Debug for Histogram {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Histogram")
            .field("count", &self.count())
            .field("p50", &self.p50())
            .field("p99", &self.p99())
            .finish()
    }
}

impl fmt::Debug for Histogram<u64> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Histogram")
            .field("count", &self.count())
            .field("p50", &self.p50())
            .field("p99", &self.p99())
            .finish()
    }
}

/// As `count`, `mean`, `p50` and `p99`, in seconds.
#[cfg(feature = "serde")]
impl serde::Serialize for Histogram {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let quantiles = [self.p50(), self.p99()].map(|time| time.as_secs_f64());
        serialize(
            self.count(),
            self.mean().as_secs_f64(),
            quantiles,
            serializer,
        )
    }
}

/// As `count`, `mean`, `p50` and `p99`.
#[cfg(feature = "serde")]
impl serde::Serialize for Histogram<u64> {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serialize(
            self.count(),
            self.mean(),
            [self.p50(), self.p99()],
            serializer,
        )
    }
}

#[cfg(feature = "serde")]
fn serialize<V: serde::Serialize, S: serde::Serializer>(
    count: u64,
    mean: f64,
    [p50, p99]: [V; 2],
    serializer: S,
) -> Result<S::Ok, S::Error> {
    use serde::ser::SerializeStruct;
    let mut fields = serializer.serialize_struct("Histogram", 4)?;
    fields.serialize_field("count", &count)?;
    fields.serialize_field("mean", &mean)?;
    fields.serialize_field("p50", &p50)?;
    fields.serialize_field("p99", &p99)?;
    fields.end()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(values: impl IntoIterator<Item = u64>) -> Histogram<u64> {
        let buckets = Buckets::default();
        values.into_iter().for_each(|value| buckets.count(value));
        Histogram::of(&buckets)
    }

    #[test]
    fn quantiles_are_those_of_the_sorted_values_within_a_sixteenth() {
        let uniform: Vec<u64> = (1..=10_000).map(|value| value * 977).collect();
        // Most are fast, a few are very slow.
        let tailed: Vec<u64> = (0..1000u64)
            .map(|n| {
                if n % 50 == 0 {
                    80_000_000 + n
                } else {
                    1_500 + n
                }
            })
            .collect();
        for values in [uniform, tailed, vec![7], vec![0, 0, 0, 1 << 40]] {
            let histogram = of(values.iter().copied());
            let mut sorted = values.clone();
            sorted.sort_unstable();
            for q in [0.0, 0.1, 0.5, 0.9, 0.98, 0.99, 1.0] {
                let place = (q * sorted.len() as f64).ceil().max(1.0) as usize - 1;
                let (found, expected) = (histogram.quantile(q), sorted[place]);
                assert!(
                    found.abs_diff(expected) * 16 <= expected,
                    "{q}: {found}, and not {expected}"
                );
            }
        }
    }

    #[test]
    fn small_numbers_are_exact() {
        let ready = of([0, 2, 2, 0, 1, 2, 15, 0]);
        assert_eq!((ready.count(), ready.p50(), ready.p99()), (8, 1, 15));
        assert_eq!((ready.mean(), ready.share_of_zero()), (22.0 / 8.0, 0.375));
        let none = of([]);
        assert_eq!((none.count(), none.p50(), none.mean()), (0, 0, 0.0));
        assert_eq!(none, Histogram::default());
    }

    #[test]
    fn times_are_those_of_the_nanoseconds() {
        let buckets = Buckets::default();
        [4_000, 4_000, 12, 1 << 41]
            .into_iter()
            .for_each(|ns| buckets.count(ns));
        let (times, numbers): (Histogram, Histogram<u64>) =
            (Histogram::of(&buckets), Histogram::of(&buckets));
        for q in [0.0, 0.5, 0.75, 1.0] {
            assert_eq!(times.quantile(q).as_nanos(), numbers.quantile(q).into());
        }
        assert_eq!(times.quantile(0.0), Duration::from_nanos(12));
        assert_eq!(times.mean().as_nanos(), numbers.mean() as u128);
        assert_eq!(
            (times.p50(), times.p99()),
            (times.quantile(0.5), times.quantile(1.0))
        );
        assert!(
            format!("{times:?}").starts_with("Histogram { count: 4, p50: 3.967µs"),
            "{times:?}"
        );
        let none: Histogram = Histogram::default();
        assert_eq!((none.p99(), none.mean()), (Duration::ZERO, Duration::ZERO));
    }

    #[test]
    fn a_sum_is_that_of_all_values() {
        let (few, many) = (vec![3, 900, 5], vec![1 << 30, 17, 18, 19]);
        let both = of(few.iter().chain(&many).copied());
        let (few, many) = (of(few), of(many));
        let [mut sum, mut other] = [few.clone(), many.clone()];
        sum += &many;
        other += &few;
        assert_eq!((&sum, &other), (&both, &both));
    }
}
