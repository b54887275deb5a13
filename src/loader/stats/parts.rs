//! What `Stats` is made of: times with their distribution, and what belongs to one topic.

use std::collections::BTreeMap;
use std::time::Duration;

use super::Histogram;
use crate::meter::{Buckets, MOST_BAD_SAMPLES, Meter, Sum};

/// How long a stage took: in all, and each time ([`Stats`](super::Stats) says of which stages, and what is timed).
///
/// # Examples
///
/// ```
/// use pinfeed::{DataLoader, from_fn};
///
/// let loader = DataLoader::builder(from_fn(100, |index, _| Ok(index as i64))).batch_size(10).build()?;
/// for batch in &loader {
///     batch?;
/// }
/// let collating = loader.stats().collating;
/// println!("{:?} in all, {:?} for most batches, {:?} for the slowest", collating.total, collating.each.p50(), collating.each.quantile(1.0));
/// assert_eq!(collating.each.count(), 10); // of batches, each is timed
/// # Ok::<(), pinfeed::Error>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Default)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct Timed {
    /// The sum; zero where the stage did not happen. (With `serde`, in seconds.)
    #[cfg_attr(feature = "serde", serde(serialize_with = "crate::meter::seconds"))]
    pub total: Duration,
    /// How long each took, of those that were timed. Where samples take microseconds, only some are: the sum of these is not `total`.
    pub each: Histogram,
}

/// How often something happened, and how long it took in all.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct Tally {
    /// How often.
    pub count: u64,
    /// The sum; zero if it did not happen. (With `serde`, in seconds.)
    #[cfg_attr(feature = "serde", serde(serialize_with = "crate::meter::seconds"))]
    pub total: Duration,
}

/// What was made ([`Stats::made`](super::Stats::made)): what the program was given, and what was loaded ahead, was left with its epoch, or
/// failed on its way to the device.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct MadeStats {
    /// Samples in these batches.
    pub samples: u64,
    /// Batches that were made.
    pub batches: u64,
}

/// Copies to the device ([`Stats::transfers`](super::Stats::transfers)). All is 0 where no batch goes to a device.
///
/// Of a batch whose pictures the device decodes, these are the copies of what the CPU made of it. The files' are the decoder's.
///
/// # Examples
///
/// ```
/// use pinfeed::{DataLoader, Device, from_fn};
///
/// let device = Device::cpu();
/// let loader = DataLoader::builder(from_fn(100, |index, _| Ok([index as f32; 256])))
///     .batch_size(10)
///     .num_workers(2)
///     .pin_memory(&device)
///     .build()?;
/// for batch in loader.epoch(0).prefetch_to_device(&device, 2) {
///     batch?;
/// }
/// let transfers = loader.stats().transfers;
/// assert_eq!(transfers.bytes, 100 * 256 * 4);
/// println!("{} copies, {:.1} GB/s", transfers.count, transfers.bytes_per_second() / 1e9);
/// # Ok::<(), pinfeed::Error>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Default)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct TransferStats {
    /// Copies, each of all tensors of a batch or part, or of small batches that were sent together.
    pub count: u64,
    /// Bytes copied.
    pub bytes: u64,
    /// Time of the copies, measured by events on the device's stream. Of batches smaller than 1 MiB, the first 64 of
    /// an epoch are measured, and then one in 16, which stands for as many: measuring costs more of the driver's calls than the copy. (For
    /// a timeline, all are: [`record`](crate::DataLoader::record).) With `serde`, in seconds.
    #[cfg_attr(feature = "serde", serde(serialize_with = "crate::meter::seconds"))]
    pub total: Duration,
    /// How long single copies took, of those that were measured.
    pub each: Histogram,
}

/// Batches, or parts of batches, that should have been page-locked and were not ([`Stats::unpinned`](super::Stats::unpinned)). All is 0 where
/// each was, and without [`pin_memory`](crate::loader::Builder::pin_memory).
///
/// Each has one of three reasons: `count` is `over_budget`, `unlockable` and [`held`](UnpinnedStats::held) together.
///
/// # Examples
///
/// ```
/// use pinfeed::{DataLoader, Device, from_fn};
///
/// let device = Device::cpu();
/// device.set_pinned_budget_bytes(0);
/// let loader = DataLoader::builder(from_fn(100, |index, _| Ok(index as i64)))
///     .batch_size(10)
///     .pin_memory(&device)
///     .build()?;
/// for batch in &loader {
///     batch?;
/// }
/// let stats = loader.stats();
/// assert_eq!((stats.unpinned.count, stats.unpinned.over_budget), (10, 10)); // raise the budget
/// assert_eq!(stats.unpinned.count, stats.made.batches);
/// # Ok::<(), pinfeed::Error>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct UnpinnedStats {
    /// How many, for whatever reason.
    pub count: u64,
    /// How many of these the budget of page-locked memory had no room for
    /// ([`Device::set_pinned_budget_bytes`](crate::Device::set_pinned_budget_bytes)).
    pub over_budget: u64,
    /// The size of the largest of those that were over the budget, in bytes; 0 if none was.
    pub over_budget_bytes: u64,
    /// How many the system refused to page-lock.
    pub unlockable: u64,
}

/// Pictures that the program left to a device's decoder ([`Stats::decoder`](super::Stats::decoder)): `ImageFolder::with_decode`, with the
/// feature `nvjpeg`. All is 0, or empty, without that.
///
/// # Examples
///
/// ```
/// use pinfeed::{DataLoader, from_fn};
///
/// let loader = DataLoader::builder(from_fn(10, |index, _| Ok(index as i64))).build()?;
/// for batch in &loader {
///     batch?;
/// }
/// let decoder = loader.stats().decoder;
/// println!("{} pictures by the device, and by the CPU: {:?}", decoder.decoded, decoder.left_to_cpu);
/// assert_eq!(decoder.decoded, 0); // there are no pictures
/// # Ok::<(), pinfeed::Error>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Default)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct DecoderStats {
    /// How many pictures the decoder decoded.
    pub decoded: u64,
    /// How long it took for them: one thread drives it, however many workers there are. (What several batches or loaders have in it at
    /// once is counted for each by its pictures.) With `serde`, in seconds.
    #[cfg_attr(feature = "serde", serde(serialize_with = "crate::meter::seconds"))]
    pub decoding: Duration,
    /// How many of `decoded` kernels decoded, as the GPU has no hardware decoder, or `PINFEED_NVJPEG_BACKEND` asks for kernels. What the
    /// device trains is slower for it.
    pub by_kernels: u64,
    /// Where device and CPU share the pictures (`Decode::Both`): how many of 64 the device is given, once that is fixed.
    pub device_share: Option<u8>,
    /// Why pictures that the program left to the device were decoded by the CPU, and how many for each reason. Most reasons lie in the file
    /// or the transform, and workers decode. But what the decoder itself refused, skipped or had no memory for is decoded by the one thread
    /// that drives it: if that is much, it costs more than `Decode::Cpu`. (A batch with a picture that cannot be decoded at all is made
    /// again without the device, and is not counted here.)
    pub left_to_cpu: BTreeMap<&'static str, u64>,
}

/// Samples that failed ([`Stats::bad`](super::Stats::bad)). All is 0, or empty, where none did, and without
/// [`on_error`](crate::loader::Builder::on_error) and [`retry`](crate::loader::Builder::retry), where a sample that fails is its batch's error.
///
/// # Examples
///
/// ```
/// use pinfeed::loader::OnError;
/// use pinfeed::{DataLoader, from_fn};
///
/// let samples = from_fn(20, |index, _| match index {
///     13 => Err("a bad file".into()),
///     _ => Ok(index as i64),
/// });
/// let loader = DataLoader::builder(samples).batch_size(5).on_error(OnError::Skip { at_most: 3 }).build()?;
/// for batch in &loader {
///     batch?;
/// }
/// let bad = loader.stats().bad;
/// assert_eq!((bad.skipped, bad.replaced, bad.retried), (1, 0, 0));
/// println!("{}", bad.listed.join("\n"));
/// # assert!(bad.listed[0].contains("sample 13") && bad.listed[0].contains("a bad file"));
/// # Ok::<(), pinfeed::Error>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Default)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct BadSampleStats {
    /// Samples whose rows others took ([`OnError::Replace`](crate::loader::OnError::Replace)).
    pub replaced: u64,
    /// Samples that were left out ([`OnError::Skip`](crate::loader::OnError::Skip)).
    pub skipped: u64,
    /// How often samples were tried again ([`Builder::retry`](crate::loader::Builder::retry)).
    pub retried: u64,
    /// Which samples were replaced, skipped or retried, and why they failed: a line for each of the first hundred.
    pub listed: Vec<String>,
}

impl Timed {
    pub(super) fn of(total_ns: &Sum, each: &Buckets) -> Timed {
        Timed {
            total: total_ns.time(),
            each: Histogram::of(each),
        }
    }

    pub(super) fn absorb(&mut self, other: &Timed) {
        let Timed { total, each } = other;
        self.total = self.total.saturating_add(*total);
        self.each += each;
    }
}

impl Tally {
    pub(super) fn of(count: &Sum, total_ns: &Sum) -> Tally {
        Tally {
            count: count.get(),
            total: total_ns.time(),
        }
    }

    pub(super) fn absorb(&mut self, other: &Tally) {
        let Tally { count, total } = other;
        self.count = self.count.saturating_add(*count);
        self.total = self.total.saturating_add(*total);
    }
}

impl MadeStats {
    pub(super) fn of(meter: &Meter) -> MadeStats {
        MadeStats {
            samples: meter.samples.get(),
            batches: meter.batches.get(),
        }
    }

    pub(super) fn absorb(&mut self, other: &MadeStats) {
        let MadeStats { samples, batches } = other;
        self.samples = self.samples.saturating_add(*samples);
        self.batches = self.batches.saturating_add(*batches);
    }
}

impl TransferStats {
    pub(super) fn of(meter: &Meter) -> TransferStats {
        TransferStats {
            count: meter.transfers.get(),
            bytes: meter.transfer_bytes.get(),
            total: meter.transfer_ns.time(),
            each: Histogram::of(&meter.transfer_times),
        }
    }

    pub(super) fn absorb(&mut self, other: &TransferStats) {
        let TransferStats {
            count,
            bytes,
            total,
            each,
        } = other;
        self.count = self.count.saturating_add(*count);
        self.bytes = self.bytes.saturating_add(*bytes);
        self.total = self.total.saturating_add(*total);
        self.each += each;
    }

    /// Returns the bandwidth to the device while copies ran, in bytes per second; 0 if none was measured.
    pub fn bytes_per_second(&self) -> f64 {
        match self.total {
            Duration::ZERO => 0.0,
            total => self.bytes as f64 / total.as_secs_f64(),
        }
    }
}

impl UnpinnedStats {
    pub(super) fn of(meter: &Meter) -> UnpinnedStats {
        UnpinnedStats {
            count: meter.unpinned.get(),
            over_budget: meter.over_budget.get(),
            over_budget_bytes: meter.over_budget_bytes.get(),
            unlockable: meter.unlockable.get(),
        }
    }

    pub(super) fn absorb(&mut self, other: &UnpinnedStats) {
        let UnpinnedStats {
            count,
            over_budget,
            over_budget_bytes,
            unlockable,
        } = other;
        self.count = self.count.saturating_add(*count);
        self.over_budget = self.over_budget.saturating_add(*over_budget);
        self.over_budget_bytes = self.over_budget_bytes.max(*over_budget_bytes);
        self.unlockable = self.unlockable.saturating_add(*unlockable);
    }

    /// Returns how many found no slab because the program held all of them: drop batches sooner, or raise
    /// [`prefetch`](crate::loader::Builder::prefetch).
    pub fn held(&self) -> u64 {
        let others = self.over_budget.saturating_add(self.unlockable);
        self.count.saturating_sub(others)
    }
}

impl DecoderStats {
    pub(super) fn of(meter: &Meter, device_share: Option<u8>) -> DecoderStats {
        DecoderStats {
            decoded: meter.device_decoded.get(),
            decoding: meter.device_decoding_ns.time(),
            by_kernels: meter.decoded_by_kernels.get(),
            device_share,
            left_to_cpu: meter.left_to_cpu.lock().clone(),
        }
    }

    pub(super) fn absorb(&mut self, other: &DecoderStats) {
        let DecoderStats {
            decoded,
            decoding,
            by_kernels,
            device_share,
            left_to_cpu,
        } = other;
        self.decoded = self.decoded.saturating_add(*decoded);
        self.decoding = self.decoding.saturating_add(*decoding);
        self.by_kernels = self.by_kernels.saturating_add(*by_kernels);
        self.device_share = self.device_share.max(*device_share);
        for (reason, more) in left_to_cpu {
            *self.left_to_cpu.entry(reason).or_default() += more;
        }
    }
}

impl BadSampleStats {
    pub(super) fn of(meter: &Meter) -> BadSampleStats {
        BadSampleStats {
            replaced: meter.replaced.get(),
            skipped: meter.skipped.get(),
            retried: meter.retried.get(),
            listed: meter.bad_samples(),
        }
    }

    pub(super) fn absorb(&mut self, other: &BadSampleStats) {
        let BadSampleStats {
            replaced,
            skipped,
            retried,
            listed,
        } = other;
        self.replaced = self.replaced.saturating_add(*replaced);
        self.skipped = self.skipped.saturating_add(*skipped);
        self.retried = self.retried.saturating_add(*retried);
        let room = MOST_BAD_SAMPLES.saturating_sub(self.listed.len());
        self.listed.extend(listed.iter().take(room).cloned());
    }
}
