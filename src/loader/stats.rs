//! Where the time goes: sums over an epoch, and a sentence that names what limits the loop.

mod limit;
mod parts;
mod table;
mod verdict;

use std::iter::Sum;
use std::ops::{Add, AddAssign};
use std::time::Duration;

pub use self::limit::Limit;
pub use self::parts::{
    BadSampleStats, DecoderStats, MadeStats, Tally, Timed, TransferStats, UnpinnedStats,
};
use super::histogram::Histogram;
use crate::meter::Meter;
use crate::pipeline::{Options, WorkerSizing};

/// Where the time went: in one epoch ([`Epoch::stats`](super::Epoch::stats), [`DataLoader::stats`](crate::DataLoader::stats)), in all of
/// them ([`DataLoader::total_stats`](crate::DataLoader::total_stats)), or in several, which are added. It prints as a short table, whose
/// rows have the names of the fields.
///
/// # What is measured
///
/// A stage is a [`Timed`] where single samples or batches are timed (`total` is the sum, `each` the distribution), a [`Tally`] where it is
/// known how many there were, and a [`Duration`] where only the sum is. What did not happen is zero: decoding without lazy samples,
/// transfers without a device.
///
/// | stage | whose time it is |
/// | --- | --- |
/// | `sampling`, `loading`, `decoding`, `collating` | sums over all workers: divide by `workers` to compare them with the loop's time |
/// | `pulling` | one worker at a time |
/// | `pinning` | workers, the pin thread |
/// | `slab_wait` | batches: several may wait at the same time |
/// | `decoder.decoding` | the one thread that drives the device's decoder |
/// | `transfers`, `processing` | the device's streams |
/// | `consumer_wait`, `step` | the loop that iterates: these two are all of its time |
///
/// What was *made* is counted apart from what the program was *given* ([`made`](Stats::made)).
///
/// The totals hold everything. Of the distributions, those of batches hold each of them, and that of copies those that are measured
/// ([`TransferStats::total`]). `loading.each` and
/// `decoding.each` hold the samples that were timed, because reading the clock takes as long as loading a small sample: all where a sample
/// takes more than about 25 us, one in a run of those that take less, and a few in every 16th batch where whole batches take microseconds
/// (and the totals follow from these). With a [`timeout`](super::Builder::timeout), all are timed. Samples that wait for memory before they
/// are decoded (those of the first batches) are in the total only.
///
/// # With `serde`
///
/// The fields have the names and the nesting that they have here. Times are seconds, as floating point numbers:
/// `{"loading": {"total": 1.25, "each": {"count": 1000, "mean": 0.00125, "p50": 0.0012, "p99": 0.0021}}, "sampling": 0.003, ..}`.
///
/// # Examples
///
/// ```
/// use pinfeed::loader::Limit;
/// use pinfeed::{DataLoader, from_fn};
///
/// let loader = DataLoader::builder(from_fn(10, |index, _| Ok(index as i64)))
///     .batch_size(4)
///     .build()?;
/// for batch in &loader {
///     batch?;
/// }
/// let stats = loader.stats();
/// println!("{stats}"); // a table, and a sentence that names what limits the loop
/// assert_eq!((stats.batches, stats.samples), (3, 10));
/// if stats.limit() == Limit::Loading {
///     println!("{:?} in the data set's `get`, and {:?} for the slowest", stats.loading.total, stats.loading.each.quantile(1.0));
/// }
/// # Ok::<(), pinfeed::Error>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Default)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct Stats {
    /// The epoch; of several, that of the highest number.
    pub epoch: u64,
    /// How many epochs these are. One that several devices share is one.
    pub epochs: u64,
    /// Samples in the batches that the program was given. (Filler rows count; those that were left out do not.)
    pub samples: u64,
    /// Batches that the program was given, without those that were errors.
    pub batches: u64,
    /// What was made, which the times of workers are for. It is apart from `samples` and `batches`, because what was loaded ahead of a loop
    /// that ended early was made and never given.
    pub made: MadeStats,
    /// The number of workers that load now; 0 if the caller loads.
    pub workers: usize,
    /// Why it is that many.
    pub sizing: WorkerSizing,
    /// Time in the sampler, over all workers; or the time that the [batch sampler](crate::sampler::BatchSampler) took to
    /// list the epoch's batches, on whatever thread that was.
    #[cfg_attr(feature = "serde", serde(serialize_with = "crate::meter::seconds"))]
    pub sampling: Duration,
    /// Time to pull items from an iterable, by one worker at a time; zero for data sets with an index.
    #[cfg_attr(feature = "serde", serde(serialize_with = "crate::meter::seconds"))]
    pub pulling: Duration,
    /// Time in the data set's `get`, and in telling it what comes ([`Dataset::will_need`](crate::Dataset::will_need)), over all workers.
    /// `each` is of single samples; of those that the data set gets several at a time, the mean of each call.
    pub loading: Timed,
    /// Of `loading`, the wait for what a [`Staged`](crate::dataset::Staged) data set fetches; zero for others.
    #[cfg_attr(feature = "serde", serde(serialize_with = "crate::meter::seconds"))]
    pub fetch_wait: Duration,
    /// Time that lazy samples took to make the elements of their rows, over all workers: decoding and transforming
    /// pictures and masks, and what your own samples count by [`Row::decoding`](crate::sample::Row::decoding). Zero for samples that are not
    /// lazy. `each` is of single samples.
    pub decoding: Timed,
    /// Time filling rows and finishing batches, without decoding, over all workers. `each` is of single batches, or parts that travel on
    /// their own.
    pub collating: Timed,
    /// Time taking slabs (page-locking new ones) and copying into them; zero without [`pin_memory`](super::Builder::pin_memory).
    #[cfg_attr(feature = "serde", serde(serialize_with = "crate::meter::seconds"))]
    pub pinning: Duration,
    /// Time that batches waited for a slab; zero without [`pin_memory`](super::Builder::pin_memory). `each` is of single batches, or parts.
    pub slab_wait: Timed,
    /// The copies to the device.
    pub transfers: TransferStats,
    /// Time from the first loan of a device batch to the end of its last, measured by events on the consumer's stream. `count` is of the
    /// batches that were measured: those whose copy was, unless they were sent together with others, or handed over by a copy
    /// ([`copy_to`](crate::interop::raw::copy_to)).
    pub processing: Tally,
    /// Time that the consumer waited for the loader, the first batches included; of several devices that share an epoch, the sum over their
    /// loops. `each` is of single batches.
    pub consumer_wait: Timed,
    /// Of `consumer_wait`, the wait for the first batch of each epoch, which cannot be loaded ahead unless the epoch followed another.
    /// `count` is one for each epoch of each device. It is apart because it belongs to starting, and not to the loop's pace:
    /// [`starvation`](Stats::starvation) and [`limit`](Stats::limit) leave it out.
    pub first_wait: Tally,
    /// The consumer's own time between two batches: the loop's body, as far as the host takes part. (Kernels that it launches without
    /// waiting for them are in `processing`.) Of several devices that share an epoch, the sum over their loops.
    ///
    /// It is beside `consumer_wait`, because the two are all of the loop's time ([`wall_time`](Stats::wall_time)). A timeline has both
    /// under the same names ([`record`](crate::DataLoader::record)).
    #[cfg_attr(feature = "serde", serde(serialize_with = "crate::meter::seconds"))]
    pub step: Duration,
    /// How much of `consumer_wait` and `step` passed beside another device's loop, which shares the epochs; zero unless an epoch is
    /// [split](super::Epoch::split). [`wall_time`](Stats::wall_time) is what is left without it: the three are here so that a reader of the
    /// JSON can tell it, too.
    ///
    /// In the statistics of one epoch, all devices' times are known, and all but the longest passed beside it. In the total, it is counted
    /// as time passes, against the device that is ahead over all epochs of a split, which in a single epoch may be another.
    #[cfg_attr(feature = "serde", serde(serialize_with = "crate::meter::seconds"))]
    pub parallel: Duration,
    /// How many batches were ready when the consumer asked for the next one: the occupancy of the queue. Batches that were sent to the
    /// device ahead count. Empty without workers, where nothing is loaded ahead. (Of batches that take microseconds, several are taken
    /// at once, and those behind them do not count.)
    pub ready_batches: Histogram<u64>,
    /// Batches that should have been page-locked and were not, and why.
    pub unpinned: UnpinnedStats,
    /// The current pinned budget of the device that the loader pins for, in bytes; 0 if the loader does not pin.
    pub pinned_budget_bytes: u64,
    /// The most bytes of host memory that were in flight at once while batches of the epoch were loaded; 0 without
    /// [`max_bytes_in_flight`](crate::loader::Builder::max_bytes_in_flight).
    pub most_bytes_in_flight: u64,
    /// Pictures that were left to the device's decoder.
    pub decoder: DecoderStats,
    /// Samples that failed: replaced, skipped, retried.
    pub bad: BadSampleStats,
}

impl Stats {
    pub(super) fn of(
        meter: &Meter,
        options: &Options,
        (workers, sizing): (usize, WorkerSizing),
        device_share: Option<u8>,
    ) -> Stats {
        meter.settle();
        Stats {
            epoch: meter.epoch.get(),
            epochs: meter.epochs.get(),
            samples: meter.given_samples.get(),
            batches: meter.given_batches.get(),
            made: MadeStats::of(meter),
            workers,
            sizing,
            sampling: meter.sampling_ns.time(),
            pulling: meter.pulling_ns.time(),
            loading: Timed::of(&meter.loading_ns, &meter.loading_times),
            fetch_wait: meter.fetching_ns.time(),
            decoding: Timed::of(&meter.decoding_ns, &meter.decoding_times),
            collating: Timed::of(&meter.collating_ns, &meter.collating_times),
            pinning: meter.pinning_ns.time(),
            slab_wait: Timed::of(&meter.slab_wait_ns, &meter.slab_wait_times),
            transfers: TransferStats::of(meter),
            processing: Tally::of(&meter.processed, &meter.processing_ns),
            consumer_wait: Timed::of(&meter.consumer_wait_ns, &meter.consumer_wait_times),
            first_wait: Tally::of(&meter.first_waits, &meter.first_wait_ns),
            step: meter.host_ns.time(),
            parallel: meter.parallel_ns.time(),
            ready_batches: Histogram::of(&meter.ready_batches),
            unpinned: UnpinnedStats::of(meter),
            pinned_budget_bytes: options.pinning.as_ref().map_or(0, |pinning| {
                pinning.device.memory().pinned_budget_bytes as u64
            }),
            most_bytes_in_flight: meter.most_bytes_in_flight.get(),
            decoder: DecoderStats::of(meter, device_share),
            bad: BadSampleStats::of(meter),
        }
    }

    /// Those of one device, which may be one of several that share the epoch.
    pub(super) fn of_one_device(self) -> Stats {
        Stats {
            epochs: 1,
            parallel: Duration::ZERO,
            ..self
        }
    }

    /// Those of an epoch that these devices share, each of them once. (One of them may have gone on to the next epoch.)
    pub(super) fn side_by_side(of_each: &[Stats]) -> Stats {
        let mut sum: Stats = of_each.iter().cloned().sum();
        let longest = of_each.iter().map(Stats::wall_time).max();
        let mut epochs: Vec<u64> = of_each.iter().map(|stats| stats.epoch).collect();
        epochs.sort_unstable();
        epochs.dedup();
        sum.epochs = epochs.len() as u64;
        sum.parallel = sum.wall_time().saturating_sub(longest.unwrap_or_default());
        sum
    }

    /// Returns the wall time of the consumer's loop: the wait for batches, and its own work between them. Of several devices that share the
    /// epochs, whose loops run side by side, the longest.
    pub fn wall_time(&self) -> Duration {
        self.loop_time().saturating_sub(self.parallel)
    }

    /// Over all devices.
    fn loop_time(&self) -> Duration {
        self.consumer_wait.total.saturating_add(self.step)
    }

    /// Returns how many samples the program was given in a second of its loop ([`wall_time`](Stats::wall_time)); 0 before there was one.
    /// # Examples
    ///
    /// ```
    /// use pinfeed::{DataLoader, from_fn};
    ///
    /// let loader = DataLoader::builder(from_fn(1_000, |index, _| Ok(index as i64))).batch_size(10).num_workers(2).build()?;
    /// for batch in loader.epoch(0).take(20) {
    ///     batch?; // the training step
    /// }
    /// let stats = loader.stats();
    /// assert_eq!(stats.samples, 200); // whatever was loaded ahead
    /// println!("{:.0} samples/s", stats.samples_per_second());
    /// # Ok::<(), pinfeed::Error>(())
    /// ```
    pub fn samples_per_second(&self) -> f64 {
        self.samples as f64 / self.wall_time().max(SHORTEST).as_secs_f64()
    }

    /// Returns the share of the loop's time that the consumer waited for batches, from 0 to 1. The wait for the first batch counts in
    /// neither ([`first_wait`](Stats::first_wait)), unless it was the only one.
    ///
    /// # Examples
    ///
    /// ```
    /// use pinfeed::{DataLoader, from_fn};
    ///
    /// let loader = DataLoader::builder(from_fn(100, |index, _| Ok(index as i64))).batch_size(10).num_workers(2).build()?;
    /// let mut epoch = loader.epoch(0);
    /// for (step, batch) in epoch.by_ref().enumerate() {
    ///     batch?; // the training step
    /// }
    /// let stats = epoch.stats();
    /// println!("the loop starved {:.1} % of the time", 100.0 * stats.starvation());
    /// println!("{:.1} batches were ready when it asked", stats.ready_batches.mean());
    /// # assert!((0.0..=1.0).contains(&stats.starvation()));
    /// # Ok::<(), pinfeed::Error>(())
    /// ```
    pub fn starvation(&self) -> f64 {
        let (waited, wall) = self.waited();
        waited.as_secs_f64() / wall.max(SHORTEST).as_secs_f64()
    }

    /// How long the consumer waited, and how long its loop took: without the first batches, if there are others.
    fn waited(&self) -> (Duration, Duration) {
        let first = match self.has_others_than_first() {
            true => self.first_wait.total,
            false => Duration::ZERO,
        };
        let without = |time: Duration| time.saturating_sub(first);
        (without(self.consumer_wait.total), without(self.loop_time()))
    }

    /// Whether the program was given other batches than the first of each epoch.
    fn has_others_than_first(&self) -> bool {
        self.consumer_wait.each.count() > self.first_wait.count
    }
}

/// No time is divided by less.
const SHORTEST: Duration = Duration::from_nanos(1);

/// Statistics of several epochs: sums, and the distributions of all together.
impl AddAssign<&Stats> for Stats {
    fn add_assign(&mut self, other: &Stats) {
        // Each by its name, so that none is forgotten.
        let Stats {
            epoch,
            epochs,
            samples,
            batches,
            made,
            workers,
            sizing,
            sampling,
            pulling,
            loading,
            fetch_wait,
            decoding,
            collating,
            pinning,
            slab_wait,
            transfers,
            processing,
            consumer_wait,
            first_wait,
            step,
            parallel,
            ready_batches,
            unpinned,
            pinned_budget_bytes,
            most_bytes_in_flight,
            decoder,
            bad,
        } = other;
        self.epoch = self.epoch.max(*epoch);
        if *workers >= self.workers {
            (self.workers, self.sizing) = (*workers, *sizing);
        }
        let counts = [
            (&mut self.epochs, epochs),
            (&mut self.samples, samples),
            (&mut self.batches, batches),
        ];
        for (sum, more) in counts {
            *sum = sum.saturating_add(*more);
        }
        let times = [
            (&mut self.sampling, sampling),
            (&mut self.pulling, pulling),
            (&mut self.fetch_wait, fetch_wait),
            (&mut self.pinning, pinning),
            (&mut self.step, step),
            (&mut self.parallel, parallel),
        ];
        for (sum, more) in times {
            *sum = sum.saturating_add(*more);
        }
        let timed = [
            (&mut self.loading, loading),
            (&mut self.decoding, decoding),
            (&mut self.collating, collating),
            (&mut self.slab_wait, slab_wait),
            (&mut self.consumer_wait, consumer_wait),
        ];
        for (sum, more) in timed {
            sum.absorb(more);
        }
        self.made.absorb(made);
        self.transfers.absorb(transfers);
        self.processing.absorb(processing);
        self.first_wait.absorb(first_wait);
        self.ready_batches += ready_batches;
        self.unpinned.absorb(unpinned);
        self.decoder.absorb(decoder);
        self.bad.absorb(bad);
        self.pinned_budget_bytes = self.pinned_budget_bytes.max(*pinned_budget_bytes);
        self.most_bytes_in_flight = self.most_bytes_in_flight.max(*most_bytes_in_flight);
    }
}

impl Add for Stats {
    type Output = Stats;

    fn add(mut self, other: Stats) -> Stats {
        self += &other;
        self
    }
}

impl Sum for Stats {
    fn sum<I: Iterator<Item = Stats>>(stats: I) -> Stats {
        stats.fold(Stats::default(), Add::add)
    }
}

#[cfg(test)]
mod testing {
    use super::*;

    pub(super) fn ms(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    pub(super) fn timed(total: Duration) -> Timed {
        Timed {
            total,
            ..Timed::default()
        }
    }

    pub(super) fn made(batches: u64) -> MadeStats {
        MadeStats {
            batches,
            ..MadeStats::default()
        }
    }
}
