//! Where the time goes: sums over an epoch, and a sentence that names what limits the loop.

mod table;

use std::collections::BTreeMap;
use std::iter::Sum;
use std::ops::{Add, AddAssign};

use super::histogram::Histogram;
use crate::meter::{MOST_BAD_SAMPLES, Meter};
use crate::pipeline::{Options, WorkerSizing};

/// Of a shorter loop, it is not said what limits it: threads that start, and first batches, are most of it.
const SHORTEST_JUDGED_NS: u64 = 10_000_000;

/// Where the time went: in one epoch ([`Epoch::stats`](super::Epoch::stats), [`DataLoader::stats`](crate::DataLoader::stats)), in all of
/// them ([`DataLoader::total_stats`](crate::DataLoader::total_stats)), or in several, which are added. It prints as a short table.
///
/// Loading, decoding, collating and pinning are sums over all workers; the others are of one stream or thread each.
///
/// # What is measured
///
/// The sums hold everything. Of the distributions (`..._times`), those of batches and copies hold each of them. `loading_times` and
/// `decoding_times` hold the samples that were timed, because reading the clock takes as long as loading a small sample: all where a sample
/// takes more than about 25 us, one in a run of those that take less, and a few in every 16th batch where whole batches take microseconds
/// (and the sums follow from these). With a [`timeout`](super::Builder::timeout), all are timed. Samples that wait for memory before they
/// are decoded (those of the first batches) are in the sum only.
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
///     println!("{} ms in the data set's `get`", stats.loading_ns / 1_000_000);
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
    /// Samples in batches that were made: beside those that the program was given, what was loaded ahead. The times of workers are for
    /// these.
    pub made_samples: u64,
    /// Batches that were made: beside those that the program was given, what was loaded ahead.
    pub made_batches: u64,
    /// The number of workers that load now; 0 if the caller loads.
    pub workers: usize,
    /// Why it is that many.
    pub sizing: WorkerSizing,
    /// Time in the sampler, over all workers, in nanoseconds; or the time that the [batch sampler](crate::sampler::BatchSampler) took to
    /// list the epoch's batches, on whatever thread that was.
    pub sampling_ns: u64,
    /// Time to pull items from an iterable, by one worker at a time, in nanoseconds.
    pub pulling_ns: u64,
    /// Time in the data set's `get`, and in telling it what comes ([`Dataset::will_need`](crate::Dataset::will_need)), over all workers, in
    /// nanoseconds.
    pub loading_ns: u64,
    /// Of that, the wait for what a [`Staged`](crate::dataset::Staged) data set fetches.
    pub fetch_wait_ns: u64,
    /// Time that lazy samples took to make the elements of their rows, over all workers, in nanoseconds: decoding and transforming
    /// pictures and masks, and what your own samples count by [`Row::decoding`](crate::sample::Row::decoding).
    pub decoding_ns: u64,
    /// Time filling rows and finishing batches, without decoding, over all workers, in nanoseconds.
    pub collating_ns: u64,
    /// Time taking slabs (page-locking new ones) and copying into them, in nanoseconds.
    pub pinning_ns: u64,
    /// Time that batches waited for a slab, in nanoseconds.
    pub slab_wait_ns: u64,
    /// Copies to the device. (Of a batch whose pictures the device decodes, these are what the CPU made of it. The files' are the
    /// decoder's.)
    pub transfers: u64,
    /// Bytes copied to the device.
    pub transfer_bytes: u64,
    /// Time of the copies to the device, measured by events on its stream, in nanoseconds. Of batches smaller than 1 MiB, the first 64 of
    /// an epoch are measured, and then one in 16, which stands for as many: measuring costs more of the driver's calls than the copy. (For
    /// a timeline, all are: [`record`](crate::DataLoader::record).)
    pub transfer_ns: u64,
    /// Batches whose processing was measured: those whose copy was, unless they were sent together with others.
    pub processed: u64,
    /// Time from the first loan of a device batch to the end of its last, measured by events on the consumer's stream, in
    /// nanoseconds: of the batches that [`processed`](Stats::processed) counts.
    pub processing_ns: u64,
    /// The host's own time between two batches, in nanoseconds; of several devices that share an epoch, the sum over their loops.
    pub host_ns: u64,
    /// Time that the consumer waited for the loader, in nanoseconds; over all loops, as `host_ns`.
    pub consumer_wait_ns: u64,
    /// Of that, the wait for the first batch of each epoch, which cannot be loaded ahead unless the epoch followed another.
    pub first_wait_ns: u64,
    /// How many these waits were: one for each epoch of each device.
    pub first_waits: u64,
    /// How much of `host_ns` and `consumer_wait_ns` passed beside another device's loop, which shares the epochs.
    ///
    /// It comes about in two ways. Of one epoch, all devices' times are known, and all but the longest passed beside it
    /// ([`side_by_side`](Stats::side_by_side)). In the total, times of epochs that are over are added up without their devices, so it is
    /// counted as time passes (`Pace::behind_ns`): against the device that is ahead over all epochs of a split, which in a single epoch may
    /// be another.
    parallel_ns: u64,
    /// How long single samples took to load, in nanoseconds. Of samples that the data set gets several at a time, the mean of each call.
    pub loading_times: Histogram,
    /// How long single samples took to decode, in nanoseconds.
    pub decoding_times: Histogram,
    /// How long single batches (or parts that travel on their own) took to collate, over all workers, in nanoseconds.
    pub collating_times: Histogram,
    /// How long single batches (or parts) waited for their slab, in nanoseconds.
    pub slab_wait_times: Histogram,
    /// How long single copies to the device took (each of all tensors of a batch or part, or of small batches that were sent
    /// together), in nanoseconds: of those that were measured, as for [`transfer_ns`](Stats::transfer_ns).
    pub transfer_times: Histogram,
    /// How long the consumer waited for single batches, in nanoseconds.
    pub consumer_wait_times: Histogram,
    /// How many batches were ready when the consumer asked for the next one: the occupancy of the queue. Batches that were sent to the
    /// device ahead count. Empty without workers, where nothing is loaded ahead. (Of batches that take microseconds, several are taken
    /// at once, and those behind them do not count.)
    pub ready_batches: Histogram,
    /// Batches, or parts of batches, that should have been page-locked and were not.
    pub unpinned: u64,
    /// How many of these the budget of page-locked memory had no room for
    /// ([`Device::set_pinned_budget_bytes`](crate::Device::set_pinned_budget_bytes)).
    pub over_budget: u64,
    /// The size of the largest of them, in bytes.
    pub over_budget_bytes: u64,
    /// The current pinned budget of the device that the loader pins for, in bytes; 0 if the loader does not pin.
    pub pinned_budget_bytes: u64,
    /// The most bytes of host memory that were in flight at once while batches of the epoch were loaded; 0 without
    /// [`max_bytes_in_flight`](crate::loader::Builder::max_bytes_in_flight).
    pub most_bytes_in_flight: u64,
    /// How many of the unpinned ones the system refused to page-lock.
    pub unlockable: u64,
    /// How many pictures a device's decoder decoded
    /// (`ImageFolder::with_decode`, with the feature `nvjpeg`).
    pub device_decoded: u64,
    /// How long the device's decoder took for them, in nanoseconds: one thread drives it. (What several batches or loaders have in it at
    /// once is counted for each by its pictures.)
    pub device_decoding_ns: u64,
    /// How many of them kernels decoded, as the GPU has no hardware decoder, or `PINFEED_NVJPEG_BACKEND` asks for kernels. What the device
    /// trains is slower for it.
    pub decoded_by_kernels: u64,
    /// Where device and CPU share the pictures (`Decode::Both`): how many of 64 the device is given, once that is fixed.
    pub device_share: Option<u8>,
    /// Why pictures that the program left to the device were decoded by the CPU, and how many for each reason. Most reasons lie in the file
    /// or the transform, and workers decode. But what the decoder itself refused, skipped or had no memory for is decoded by the one thread
    /// that drives it: if that is much, it costs more than `Decode::Cpu`. (A batch with a picture that cannot be decoded at all is made
    /// again without the device, and is not counted here.)
    pub left_to_cpu: BTreeMap<&'static str, u64>,
    /// Samples that failed, and whose rows others took ([`OnError::Replace`](crate::loader::OnError::Replace)).
    pub replaced: u64,
    /// Samples that failed, and were left out ([`OnError::Skip`](crate::loader::OnError::Skip)).
    pub skipped: u64,
    /// How often samples were tried again ([`Builder::retry`](crate::loader::Builder::retry)).
    pub retried: u64,
    /// Which samples were replaced, left out or tried again, and why they failed: the first hundred.
    pub bad_samples: Vec<String>,
}

/// What limits a loop.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Limit {
    /// Nothing was measured, or too little: the loop took less than 10 ms.
    Unknown,
    /// The consumer: the training step is slower than the loader.
    Consumer,
    /// The sampler, or the batch sampler.
    Sampling,
    /// The iterable, from which one worker at a time pulls items.
    Pulling,
    /// The data set's `get`.
    Loading,
    /// Lazy samples: decoding and transforming pictures.
    Decoding,
    /// The device's decoder, which one thread drives, however many workers there are.
    DeviceDecoding,
    /// Filling rows and finishing batches.
    Collating,
    /// Taking slabs, or waiting for them.
    Pinning,
    /// The copies to the device.
    Transfer,
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
            made_samples: meter.samples.get(),
            made_batches: meter.batches.get(),
            workers,
            sizing,
            sampling_ns: meter.sampling_ns.get(),
            pulling_ns: meter.pulling_ns.get(),
            loading_ns: meter.loading_ns.get(),
            fetch_wait_ns: meter.fetching_ns.get(),
            decoding_ns: meter.decoding_ns.get(),
            collating_ns: meter.collating_ns.get(),
            pinning_ns: meter.pinning_ns.get(),
            slab_wait_ns: meter.slab_wait_ns.get(),
            transfers: meter.transfers.get(),
            transfer_bytes: meter.transfer_bytes.get(),
            transfer_ns: meter.transfer_ns.get(),
            processed: meter.processed.get(),
            processing_ns: meter.processing_ns.get(),
            host_ns: meter.host_ns.get(),
            consumer_wait_ns: meter.consumer_wait_ns.get(),
            first_wait_ns: meter.first_wait_ns.get(),
            first_waits: meter.first_waits.get(),
            parallel_ns: meter.parallel_ns.get(),
            loading_times: Histogram::of(&meter.loading_times),
            decoding_times: Histogram::of(&meter.decoding_times),
            collating_times: Histogram::of(&meter.collating_times),
            slab_wait_times: Histogram::of(&meter.slab_wait_times),
            transfer_times: Histogram::of(&meter.transfer_times),
            consumer_wait_times: Histogram::of(&meter.consumer_wait_times),
            ready_batches: Histogram::of(&meter.ready_batches),
            unpinned: meter.unpinned.get(),
            over_budget: meter.over_budget.get(),
            over_budget_bytes: meter.over_budget_bytes.get(),
            pinned_budget_bytes: options.pinning.as_ref().map_or(0, |pinning| {
                pinning.device.memory().pinned_budget_bytes as u64
            }),
            most_bytes_in_flight: meter.most_bytes_in_flight.get(),
            unlockable: meter.unlockable.get(),
            device_decoded: meter.device_decoded.get(),
            device_decoding_ns: meter.device_decoding_ns.get(),
            decoded_by_kernels: meter.decoded_by_kernels.get(),
            device_share,
            left_to_cpu: meter.left_to_cpu.lock().clone(),
            replaced: meter.replaced.get(),
            skipped: meter.skipped.get(),
            retried: meter.retried.get(),
            bad_samples: meter.bad_samples(),
        }
    }

    /// Those of one device, which may be one of several that share the epoch.
    pub(super) fn of_one_device(self) -> Stats {
        Stats {
            epochs: 1,
            parallel_ns: 0,
            ..self
        }
    }

    /// Those of an epoch that these devices share, each of them once. (One of them may have gone on to the next epoch.)
    pub(super) fn side_by_side(of_each: &[Stats]) -> Stats {
        let mut sum: Stats = of_each.iter().cloned().sum();
        let longest = of_each.iter().map(Stats::wall_ns).max();
        let mut epochs: Vec<u64> = of_each.iter().map(|stats| stats.epoch).collect();
        epochs.sort_unstable();
        epochs.dedup();
        sum.epochs = epochs.len() as u64;
        sum.parallel_ns = sum.wall_ns() - longest.unwrap_or(0);
        sum
    }

    /// The wall time of the consumer's loop: the wait for batches, and its own work between them. Of several devices that share the
    /// epochs, whose loops run side by side, the longest.
    pub fn wall_ns(&self) -> u64 {
        let all = self.consumer_wait_ns + self.host_ns;
        all.saturating_sub(self.parallel_ns)
    }

    /// How many samples the program was given in a second of its loop ([`wall_ns`](Stats::wall_ns)).
    ///
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
        self.samples as f64 * 1e9 / self.wall_ns().max(1) as f64
    }

    /// Returns the share of the loop's time that the consumer waited for batches, from 0 to 1. The wait for the first batch counts in
    /// neither ([`first_wait_ns`](Stats::first_wait_ns)), unless it was the only one.
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
        let (waited, wall) = self.waited_ns();
        waited as f64 / wall.max(1) as f64
    }

    /// How long the consumer waited, and how long its loop took: without the first batches, if there are others.
    fn waited_ns(&self) -> (u64, u64) {
        let first = match self.has_others_than_first() {
            true => self.first_wait_ns,
            false => 0,
        };
        let without = |ns: u64| ns.saturating_sub(first);
        let all = self.consumer_wait_ns + self.host_ns; // over all devices, as the wait
        (without(self.consumer_wait_ns), without(all))
    }

    /// Whether the program was given other batches than the first of each epoch.
    fn has_others_than_first(&self) -> bool {
        self.consumer_wait_times.count() > self.first_waits
    }

    /// Returns what limits the loop: the consumer, if it waits for less than a tenth of the time (as [`starvation`](Stats::starvation)
    /// counts); otherwise the stage of the loader that takes longest, divided by the number of threads that do it. It is [`Limit::Unknown`]
    /// if the program was given no batch, or its loop took less than 10 ms.
    pub fn limit(&self) -> Limit {
        if self.batches == 0 || self.wall_ns() < SHORTEST_JUDGED_NS {
            return Limit::Unknown;
        }
        let (waited, wall) = self.waited_ns();
        if waited * 10 < wall {
            return Limit::Consumer;
        }
        let workers = self.workers.max(1) as u64;
        let stages = [
            (Limit::Sampling, self.sampling_ns / workers),
            (Limit::Pulling, self.pulling_ns),
            (Limit::Loading, self.loading_ns / workers),
            (Limit::Decoding, self.decoding_ns / workers),
            (Limit::DeviceDecoding, self.device_decoding_ns),
            (Limit::Collating, self.collating_ns / workers),
            (Limit::Pinning, self.pinning_ns.max(self.slab_wait_ns)),
            (Limit::Transfer, self.transfer_ns),
        ];
        stages
            .into_iter()
            .max_by_key(|(_, ns)| *ns)
            .map_or(Limit::Unknown, |(limit, _)| limit)
    }
}

/// Statistics of several epochs: sums, and the distributions of all together.
impl AddAssign<&Stats> for Stats {
    fn add_assign(&mut self, other: &Stats) {
        // Each by its name, so that none is forgotten.
        let Stats {
            epoch,
            epochs,
            samples,
            batches,
            made_samples,
            made_batches,
            workers,
            sizing,
            sampling_ns,
            pulling_ns,
            loading_ns,
            fetch_wait_ns,
            decoding_ns,
            collating_ns,
            pinning_ns,
            slab_wait_ns,
            transfers,
            transfer_bytes,
            transfer_ns,
            processed,
            processing_ns,
            host_ns,
            consumer_wait_ns,
            first_wait_ns,
            first_waits,
            parallel_ns,
            most_bytes_in_flight,
            loading_times,
            decoding_times,
            collating_times,
            slab_wait_times,
            transfer_times,
            consumer_wait_times,
            ready_batches,
            unpinned,
            over_budget,
            over_budget_bytes,
            pinned_budget_bytes,
            unlockable,
            device_decoded,
            device_decoding_ns,
            decoded_by_kernels,
            device_share,
            left_to_cpu,
            replaced,
            skipped,
            retried,
            bad_samples,
        } = other;
        let sums = [
            (&mut self.epochs, epochs),
            (&mut self.samples, samples),
            (&mut self.batches, batches),
            (&mut self.made_samples, made_samples),
            (&mut self.made_batches, made_batches),
            (&mut self.sampling_ns, sampling_ns),
            (&mut self.pulling_ns, pulling_ns),
            (&mut self.loading_ns, loading_ns),
            (&mut self.fetch_wait_ns, fetch_wait_ns),
            (&mut self.decoding_ns, decoding_ns),
            (&mut self.collating_ns, collating_ns),
            (&mut self.pinning_ns, pinning_ns),
            (&mut self.slab_wait_ns, slab_wait_ns),
            (&mut self.transfers, transfers),
            (&mut self.transfer_bytes, transfer_bytes),
            (&mut self.transfer_ns, transfer_ns),
            (&mut self.processed, processed),
            (&mut self.processing_ns, processing_ns),
            (&mut self.host_ns, host_ns),
            (&mut self.consumer_wait_ns, consumer_wait_ns),
            (&mut self.first_wait_ns, first_wait_ns),
            (&mut self.first_waits, first_waits),
            (&mut self.parallel_ns, parallel_ns),
            (&mut self.unpinned, unpinned),
            (&mut self.over_budget, over_budget),
            (&mut self.unlockable, unlockable),
            (&mut self.device_decoded, device_decoded),
            (&mut self.device_decoding_ns, device_decoding_ns),
            (&mut self.decoded_by_kernels, decoded_by_kernels),
            (&mut self.replaced, replaced),
            (&mut self.skipped, skipped),
            (&mut self.retried, retried),
        ];
        for (sum, more) in sums {
            *sum = sum.saturating_add(*more);
        }
        for (reason, more) in left_to_cpu {
            *self.left_to_cpu.entry(reason).or_default() += more;
        }
        let times = [
            (&mut self.loading_times, loading_times),
            (&mut self.decoding_times, decoding_times),
            (&mut self.collating_times, collating_times),
            (&mut self.slab_wait_times, slab_wait_times),
            (&mut self.transfer_times, transfer_times),
            (&mut self.consumer_wait_times, consumer_wait_times),
            (&mut self.ready_batches, ready_batches),
        ];
        for (sum, more) in times {
            *sum += more;
        }
        self.epoch = self.epoch.max(*epoch);
        self.device_share = self.device_share.max(*device_share);
        if *workers >= self.workers {
            (self.workers, self.sizing) = (*workers, *sizing);
        }
        self.most_bytes_in_flight = self.most_bytes_in_flight.max(*most_bytes_in_flight);
        self.over_budget_bytes = self.over_budget_bytes.max(*over_budget_bytes);
        self.pinned_budget_bytes = self.pinned_budget_bytes.max(*pinned_budget_bytes);
        let room = MOST_BAD_SAMPLES.saturating_sub(self.bad_samples.len());
        let bad = bad_samples.iter().take(room).cloned();
        self.bad_samples.extend(bad);
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
