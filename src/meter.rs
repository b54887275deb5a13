//! Counters of where an epoch's time goes: plain sums and distributions, cheap enough to be always on.

mod buckets;
mod meters;
mod recorder;
#[cfg(feature = "serde")]
mod seconds;

use std::cell::Cell;
use std::collections::BTreeMap;
use std::time::Duration;

pub(crate) use self::buckets::{Buckets, middle_of};
pub(crate) use self::meters::Meters;
pub(crate) use self::recorder::{
    Activity, Bar, Enqueued, Event, More, Recorder, Row, Subject, Tape,
};
#[cfg(feature = "serde")]
pub(crate) use self::seconds::seconds;
use crate::sync::plain::AtomicU64;
use crate::sync::{Arc, AtomicBool, Instant, Mutex, Ordering, Weak, thread_local};
use crate::tuning::{FULLY_TIMED_UPLOADS, TIMED_UPLOAD_BYTES, UPLOADS_PER_TIMED_ONE};

/// How many bad samples an epoch lists.
pub(crate) const MOST_BAD_SAMPLES: usize = 100;

/// Why the CPU decoded pictures that a device should have, and how many for each reason.
pub(crate) type Reasons = BTreeMap<&'static str, u64>;

/// Sums of one epoch, shared by all threads that work on it. All accesses are relaxed: they are statistics, and order
/// nothing.
///
/// What the consumer writes, what workers write, and what all of them read lie in different cache lines: where batches take microseconds,
/// each of these is touched several times a batch. So the order of the fields is kept.
#[derive(Default)]
#[repr(C)]
pub(crate) struct Meter {
    /// How many epochs were begun that it counts for.
    pub(crate) epochs: Sum,
    /// The last of them.
    pub(crate) epoch: Largest,
    /// What the program was given.
    pub(crate) given_samples: Sum,
    pub(crate) given_batches: Sum,
    pub(crate) host_ns: Sum,
    pub(crate) consumer_wait_ns: Sum,
    /// Of that, the wait for the first batch; and how many of these waits there were.
    pub(crate) first_wait_ns: Sum,
    pub(crate) first_waits: Sum,
    /// How much of the consumers' time passed beside that of another, which shares the epochs.
    pub(crate) parallel_ns: Sum,
    pub(crate) consumer_wait_times: Buckets,
    /// How many batches were ready when the consumer asked for one.
    pub(crate) ready_batches: Buckets,
    _workers: Line,
    /// What was made, for which the times of workers are.
    pub(crate) samples: Sum,
    pub(crate) batches: Sum,
    /// Asking the sampler, or the batch sampler.
    pub(crate) sampling_ns: Sum,
    /// Pulling items from an iterable.
    pub(crate) pulling_ns: Sum,
    pub(crate) loading_ns: Sum,
    /// Of that, waiting for what is fetched.
    pub(crate) fetching_ns: Sum,
    pub(crate) decoding_ns: Sum,
    pub(crate) collating_ns: Sum,
    pub(crate) pinning_ns: Sum,
    pub(crate) slab_wait_ns: Sum,
    pub(crate) transfers: Sum,
    pub(crate) transfer_bytes: Sum,
    pub(crate) transfer_ns: Sum,
    /// How many uploads were small, of which not all are measured.
    small_uploads: Sum,
    pub(crate) processed: Sum,
    pub(crate) processing_ns: Sum,
    /// How long samples took in the data set, of those that were timed.
    pub(crate) loading_times: Buckets,
    /// How long they took to decode, of those that were.
    pub(crate) decoding_times: Buckets,
    /// How long batches, or parts of them, took to collate.
    pub(crate) collating_times: Buckets,
    pub(crate) slab_wait_times: Buckets,
    pub(crate) transfer_times: Buckets,
    pub(crate) unpinned: Sum,
    /// Of the unpinned batches, those that exceeded the budget of page-locked memory, and the size of the largest of
    /// them.
    pub(crate) over_budget: Sum,
    pub(crate) over_budget_bytes: Largest,
    /// The most bytes in flight at once, if they are limited.
    pub(crate) most_bytes_in_flight: Largest,
    /// Of the unpinned batches, those whose memory the system did not page-lock.
    pub(crate) unlockable: Sum,
    /// Pictures that a device's decoder decoded; and those that the CPU did in its place, by the reason.
    pub(crate) device_decoded: Sum,
    /// How long that took, by the one thread that drives the decoder.
    pub(crate) device_decoding_ns: Sum,
    /// Of these pictures, those that kernels decoded.
    pub(crate) decoded_by_kernels: Sum,
    pub(crate) left_to_cpu: Mutex<Reasons>,
    /// Samples that failed, whose rows others took, or that were left out.
    pub(crate) replaced: Sum,
    pub(crate) skipped: Sum,
    /// How often samples were tried again.
    pub(crate) retried: Sum,
    has_used_up_quota: AtomicBool,
    has_used_up_retries: AtomicBool,
    /// A call for several samples panicked, and none of them did alone.
    has_panicked_together: AtomicBool,
    /// What the first of them are, and why they failed.
    bad_samples: Mutex<Vec<String>>,
    _all: Line,
    /// The data set's share of the time that making a batch takes, as last measured.
    pub(crate) get_share: Share,
    /// The same for the sampler's.
    pub(crate) sampler_share: Share,
    /// Of what is left, that of telling the data set what comes.
    pub(crate) announcing_share: Share,
    /// How long the last batch took that one thread made.
    pub(crate) solo: LastSolo,
    /// There are pictures that a device and the CPU share. (Relaxed: the thread that measures the share may see it a batch later.)
    pub(crate) shares_pictures: AtomicBool,
    /// The number of its epoch, and the recorder of what happens in it, if a timeline is wanted.
    number: u64,
    recorder: Option<Arc<Recorder>>,
    /// The devices that measure for the epoch.
    devices: Mutex<Vec<Weak<dyn Settle>>>,
}

/// Where other cache lines begin (two at once, as they are fetched).
#[derive(Default)]
#[repr(align(128))]
struct Line;

/// Measures with events, and adds up those that have completed.
pub(crate) trait Settle: Send + Sync {
    /// Adds up what has completed.
    fn settle(&self);
}

impl Meter {
    fn of(number: u64, recorder: &Arc<Recorder>) -> Meter {
        Meter {
            number,
            recorder: Some(Arc::clone(recorder)),
            ..Meter::default()
        }
    }

    /// The recorder, epoch and batch that an event is recorded for; `None` unless the program wants a timeline.
    #[inline]
    pub(crate) fn subject(&self, batch: impl FnOnce() -> Option<u64>) -> Option<Subject<'_>> {
        let recorder = self.recorder.as_deref();
        let recorder = recorder.filter(|recorder| recorder.is_on())?;
        Some(Subject {
            recorder,
            epoch: self.number,
            batch: batch(),
        })
    }

    /// For how many uploads like it the time of one of this many bytes stands, which is about to begin; `None`: it is not measured. All
    /// large ones are, and all while a timeline is recorded.
    pub(crate) fn stands_for(&self, bytes: usize) -> Option<u64> {
        if bytes >= TIMED_UPLOAD_BYTES || self.subject(|| None).is_some() {
            return Some(1);
        }
        let number = self.small_uploads.0.fetch_add(1, Ordering::Relaxed);
        match number < FULLY_TIMED_UPLOADS {
            true => Some(1),
            // From the middle of those that it stands for, so that the sum is too large as often as too small.
            false => (number % UPLOADS_PER_TIMED_ONE == UPLOADS_PER_TIMED_ONE / 2)
                .then_some(UPLOADS_PER_TIMED_ONE),
        }
    }

    /// Remembers a device that measures for the epoch.
    pub(crate) fn measured_by<D: Settle + 'static>(&self, device: &Arc<D>) {
        let mut devices = self.devices.lock();
        let address = Arc::as_ptr(device).cast::<()>();
        if !devices
            .iter()
            .any(|known| known.as_ptr().cast::<()>() == address)
        {
            let device: Weak<D> = Arc::downgrade(device);
            devices.push(device);
        }
    }

    /// Adds the time that samples took on their way into a batch, in nanoseconds.
    pub(crate) fn made_in(&self, took: TookNs) {
        self.sampling_ns.add_some(took.sampling);
        self.loading_ns.add_some(took.loading);
        self.fetching_ns.add_some(took.fetching);
        self.decoding_ns.add_some(took.decoding);
        self.collating_ns.add_some(took.collating);
    }

    /// Counts pictures that the CPU decoded.
    pub(crate) fn leave_to_cpu(&self, reasons: &Reasons) {
        let mut all = self.left_to_cpu.lock();
        for (reason, count) in reasons {
            *all.entry(reason).or_default() += count;
        }
    }

    /// Lists a bad sample, unless there are many already. Returns whether it did.
    pub(crate) fn note_bad(&self, what: &str) -> bool {
        let mut listed = self.bad_samples.lock();
        let has_room = listed.len() < MOST_BAD_SAMPLES;
        if has_room {
            listed.push(what.to_owned());
        }
        has_room
    }

    /// Returns `true` the first time.
    pub(crate) fn quota_used_up(&self) -> bool {
        !self.has_used_up_quota.swap(true, Ordering::Relaxed)
    }

    /// Returns `true` the first time.
    pub(crate) fn retries_used_up(&self) -> bool {
        !self.has_used_up_retries.swap(true, Ordering::Relaxed)
    }

    /// Returns `true` the first time.
    pub(crate) fn many_panicked(&self) -> bool {
        !self.has_panicked_together.swap(true, Ordering::Relaxed)
    }

    pub(crate) fn bad_samples(&self) -> Vec<String> {
        self.bad_samples.lock().clone()
    }

    /// Adds what another has counted. (All but what is no sum: the share of `get`, and the devices, which add by themselves.)
    fn absorb(&self, other: &Meter) {
        // Each by its name, so that none is forgotten.
        let Meter {
            epochs,
            epoch,
            samples,
            batches,
            given_samples,
            given_batches,
            sampling_ns,
            pulling_ns,
            loading_ns,
            fetching_ns,
            decoding_ns,
            collating_ns,
            pinning_ns,
            slab_wait_ns,
            transfers,
            transfer_bytes,
            transfer_ns,
            small_uploads,
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
            unlockable,
            device_decoded,
            device_decoding_ns,
            decoded_by_kernels,
            left_to_cpu,
            shares_pictures: _,
            replaced,
            skipped,
            retried,
            has_used_up_quota: _,
            has_used_up_retries: _,
            has_panicked_together: _,
            bad_samples,
            get_share: _,
            sampler_share: _,
            announcing_share: _,
            solo: _,
            _workers: _,
            _all: _,
            number: _,
            recorder: _,
            devices: _,
        } = other;
        let sums = [
            (&self.epochs, epochs),
            (&self.samples, samples),
            (&self.batches, batches),
            (&self.given_samples, given_samples),
            (&self.given_batches, given_batches),
            (&self.sampling_ns, sampling_ns),
            (&self.pulling_ns, pulling_ns),
            (&self.fetching_ns, fetching_ns),
            (&self.loading_ns, loading_ns),
            (&self.decoding_ns, decoding_ns),
            (&self.collating_ns, collating_ns),
            (&self.pinning_ns, pinning_ns),
            (&self.slab_wait_ns, slab_wait_ns),
            (&self.transfers, transfers),
            (&self.transfer_bytes, transfer_bytes),
            (&self.transfer_ns, transfer_ns),
            (&self.small_uploads, small_uploads),
            (&self.processed, processed),
            (&self.processing_ns, processing_ns),
            (&self.host_ns, host_ns),
            (&self.consumer_wait_ns, consumer_wait_ns),
            (&self.first_wait_ns, first_wait_ns),
            (&self.first_waits, first_waits),
            (&self.parallel_ns, parallel_ns),
            (&self.unpinned, unpinned),
            (&self.over_budget, over_budget),
            (&self.unlockable, unlockable),
            (&self.device_decoded, device_decoded),
            (&self.device_decoding_ns, device_decoding_ns),
            (&self.decoded_by_kernels, decoded_by_kernels),
            (&self.replaced, replaced),
            (&self.skipped, skipped),
            (&self.retried, retried),
        ];
        sums.iter().for_each(|(sum, more)| sum.add(more.get()));
        let times = [
            (&self.loading_times, loading_times),
            (&self.decoding_times, decoding_times),
            (&self.collating_times, collating_times),
            (&self.slab_wait_times, slab_wait_times),
            (&self.transfer_times, transfer_times),
            (&self.consumer_wait_times, consumer_wait_times),
            (&self.ready_batches, ready_batches),
        ];
        times.iter().for_each(|(sum, more)| sum.absorb(more));
        self.epoch.see(epoch.get());
        self.over_budget_bytes.see(over_budget_bytes.get());
        self.most_bytes_in_flight.see(most_bytes_in_flight.get());
        let reasons = left_to_cpu.lock().clone();
        self.leave_to_cpu(&reasons);
        let bad = bad_samples.lock().clone();
        bad.iter().all(|bad| self.note_bad(bad));
    }

    /// Makes all devices add up what has completed.
    pub(crate) fn settle(&self) {
        let devices: Vec<_> = self
            .devices
            .lock()
            .iter()
            .filter_map(Weak::upgrade)
            .collect();
        devices.iter().for_each(|device| device.settle());
    }
}

/// What the time went to in which samples were made, in nanoseconds.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct TookNs {
    pub(crate) sampling: u64,
    pub(crate) loading: u64,
    /// Of `loading`.
    pub(crate) fetching: u64,
    pub(crate) decoding: u64,
    pub(crate) collating: u64,
}

impl std::fmt::Debug for Meter {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Meter").finish_non_exhaustive()
    }
}

thread_local! {
    /// The nanoseconds that this thread has decoded within its current piece of work.
    static DECODED_NS: Cell<u64> = const { Cell::new(0) };
    /// An outer scope is already counting.
    static IS_DECODING: Cell<bool> = const { Cell::new(false) };
    /// The nanoseconds that this thread has waited for what is fetched, within its current piece of work.
    static FETCHED_NS: Cell<u64> = const { Cell::new(0) };
}

/// Counts the time until it is dropped as decoding by this thread. Only lazy samples use it; for all others the clock
/// is not read.
pub(crate) struct Decoding {
    start: Option<Instant>,
}

impl Decoding {
    pub(crate) fn begin() -> Decoding {
        let is_inner = IS_DECODING.with(|is_decoding| is_decoding.replace(true));
        Decoding {
            start: (!is_inner).then(Instant::now),
        }
    }
}

impl Drop for Decoding {
    fn drop(&mut self) {
        if let Some(start) = self.start {
            let elapsed_ns = nanoseconds(start.elapsed());
            DECODED_NS.with(|decoded_ns| decoded_ns.set(decoded_ns.get() + elapsed_ns));
            IS_DECODING.with(|is_decoding| is_decoding.set(false));
        }
    }
}

/// Counts the time until it is dropped as waiting for what is fetched.
pub(crate) struct Fetching(Instant);

impl Fetching {
    pub(crate) fn begin() -> Fetching {
        Fetching(Instant::now())
    }
}

impl Drop for Fetching {
    fn drop(&mut self) {
        let elapsed_ns = nanoseconds(self.0.elapsed());
        FETCHED_NS.with(|fetched_ns| fetched_ns.set(fetched_ns.get() + elapsed_ns));
    }
}

/// A piece of work that may include decoding, and waiting for what is fetched. Decoding inside a nested piece of work (a loader that a data
/// set iterates) counts for the nested one.
pub(crate) struct Decoded {
    before: u64,
    fetched_before: u64,
}

impl Decoded {
    pub(crate) fn begin() -> Decoded {
        Decoded {
            before: DECODED_NS.with(Cell::get),
            fetched_before: FETCHED_NS.with(Cell::get),
        }
    }

    /// The nanoseconds that this thread has decoded since the start.
    pub(crate) fn ns(&self) -> u64 {
        DECODED_NS.with(Cell::get) - self.before
    }

    /// The nanoseconds that this thread has waited for what is fetched since the start.
    pub(crate) fn fetched_ns(&self) -> u64 {
        FETCHED_NS.with(Cell::get) - self.fetched_before
    }
}

impl Drop for Decoded {
    fn drop(&mut self) {
        DECODED_NS.with(|decoded_ns| decoded_ns.set(self.before));
        FETCHED_NS.with(|fetched_ns| fetched_ns.set(self.fetched_before));
    }
}

pub(crate) fn nanoseconds_between(from: Instant, to: Instant) -> u64 {
    nanoseconds(to.saturating_duration_since(from))
}

fn nanoseconds(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

/// A share that is measured now and then, in parts of 2^32.
#[derive(Debug)]
pub(crate) struct Share(AtomicU64);

impl Default for Share {
    fn default() -> Share {
        Share(AtomicU64::new(u64::MAX))
    }
}

impl Share {
    const WHOLE: u64 = 1 << Share::BITS;
    const BITS: u32 = 32;

    pub(crate) fn set(&self, part: u64, of: u64) {
        let share = (u128::from(part) << Share::BITS) / u128::from(of.max(1));
        let share = share.min(u128::from(Share::WHOLE));
        self.0.store(share as u64, Ordering::Relaxed);
    }

    /// This share of `whole`; `None` before the first measurement.
    #[inline]
    pub(crate) fn of(&self, whole: u64) -> Option<u64> {
        let share = self.0.load(Ordering::Relaxed);
        // (No division: this is asked for each batch.)
        let part = (u128::from(whole) * u128::from(share)) >> Share::BITS;
        (share <= Share::WHOLE).then_some(part as u64)
    }
}

/// How long the last batch took that one thread made, as far as that decides which samples are timed. It is written where it changes only,
/// because all workers read it for each batch.
#[derive(Debug, Default)]
pub(crate) struct LastSolo(AtomicU64);

impl LastSolo {
    const SEEN: u64 = 1;
    const LONG_BATCH: u64 = 2;
    const LONG_SAMPLES: u64 = 4;

    pub(crate) fn see(&self, is_long: bool, has_long_samples: bool) {
        let long_batch = LastSolo::LONG_BATCH * u64::from(is_long);
        let long_samples = LastSolo::LONG_SAMPLES * u64::from(has_long_samples);
        let seen = LastSolo::SEEN | long_batch | long_samples;
        if self.0.load(Ordering::Relaxed) != seen {
            self.0.store(seen, Ordering::Relaxed);
        }
    }

    /// Whether it took long. Before the first, it did not.
    pub(crate) fn is_long(&self) -> bool {
        self.0.load(Ordering::Relaxed) & LastSolo::LONG_BATCH > 0
    }

    /// Whether a sample of it took long. `None`: there was none.
    pub(crate) fn has_long_samples(&self) -> Option<bool> {
        let seen = self.0.load(Ordering::Relaxed);
        (seen > 0).then_some(seen & LastSolo::LONG_SAMPLES > 0)
    }
}

/// The largest of the numbers seen; 0 before the first.
#[derive(Debug, Default)]
pub(crate) struct Largest(AtomicU64);

impl Largest {
    pub(crate) fn see(&self, number: u64) {
        self.0.fetch_max(number, Ordering::Relaxed);
    }

    pub(crate) fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// A sum.
#[derive(Debug, Default)]
pub(crate) struct Sum(AtomicU64);

impl Sum {
    pub(crate) fn add(&self, amount: u64) {
        self.0.fetch_add(amount, Ordering::Relaxed);
    }

    /// The same for an amount that is often 0: then its cache line stays where it is.
    #[inline]
    pub(crate) fn add_some(&self, amount: u64) {
        if amount > 0 {
            self.add(amount);
        }
    }

    /// Takes back what was added, and turned out not to count.
    pub(crate) fn take_back(&self, amount: u64) {
        self.0.fetch_sub(amount, Ordering::Relaxed);
    }

    /// Adds one, unless the sum is `most` already. Returns whether it did.
    pub(crate) fn add_up_to(&self, most: u64) -> bool {
        let more = |sum: u64| (sum < most).then(|| sum + 1);
        let (set, fetch) = (Ordering::Relaxed, Ordering::Relaxed);
        self.0.fetch_update(set, fetch, more).is_ok()
    }

    /// Adds the nanoseconds since `start`, and returns them.
    pub(crate) fn add_since(&self, start: Instant) -> u64 {
        let elapsed = nanoseconds(start.elapsed());
        self.add(elapsed);
        elapsed
    }

    /// Adds the nanoseconds between two instants, and returns them.
    pub(crate) fn add_between(&self, start: Instant, end: Instant) -> u64 {
        let elapsed = nanoseconds(end.saturating_duration_since(start));
        self.add(elapsed);
        elapsed
    }

    pub(crate) fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }

    /// A sum of nanoseconds, as statistics show it.
    pub(crate) fn time(&self) -> Duration {
        Duration::from_nanos(self.get())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn decode() {
        let _decoding = Decoding::begin();
        let start = Instant::now();
        while start.elapsed() < Duration::from_micros(50) {}
    }

    /// Of small uploads, the first ones and one in sixteen are measured, which stand for all; of large ones, each for itself.
    #[test]
    fn uploads_that_are_measured_stand_for_those_that_are_not() {
        let meter = Meter::default();
        let sums: Vec<u64> = (0..1024)
            .scan(0, |sum, _| {
                *sum += meter.stands_for(2_688).unwrap_or(0);
                Some(*sum)
            })
            .collect();
        for (count, sum) in (1u64..).zip(&sums) {
            match count <= FULLY_TIMED_UPLOADS {
                true => assert_eq!(*sum, count),
                false => assert!(sum.abs_diff(count) <= UPLOADS_PER_TIMED_ONE / 2, "{count}"),
            }
        }
        assert_eq!(sums[1023], 1024);
        let large = || meter.stands_for(TIMED_UPLOAD_BYTES);
        assert!((0..100).all(|_| large() == Some(1)));
    }

    /// A loader within a loader, and a lazy sample within a lazy sample.
    #[test]
    fn each_piece_of_work_has_its_own_decoding() {
        let outer = Decoded::begin();
        assert_eq!(outer.ns(), 0);
        decode();
        let once = outer.ns();
        assert!(once >= 50_000);
        {
            let inner = Decoded::begin();
            assert_eq!(inner.ns(), 0);
            decode();
            assert!(inner.ns() >= 50_000);
        }
        assert_eq!(outer.ns(), once);

        let start = Instant::now();
        {
            let _decoding = Decoding::begin();
            decode();
        }
        assert!(outer.ns() - once <= nanoseconds(start.elapsed()));
        // A scope that panics also ends.
        let panicked = std::panic::catch_unwind(|| {
            let _decoding = Decoding::begin();
            panic!("broken");
        });
        assert!(panicked.is_err());
        let before = outer.ns();
        decode();
        assert!(outer.ns() - before >= 50_000);
    }
}
