//! Statuses: what each worker is doing, for the threads that wait for it.
//!
//! A worker writes down which row it is at, and in which [`Stage`]. If the loader has a `timeout`, it also says since when, sample by
//! sample. A consumer that waits looks at the statuses: one whose sample takes too long is [given up](WorkerStatus::give_up). Then another
//! thread reports for the worker. Which of the two reports is decided once, by the status's state: either the worker
//! [leaves](WorkerStatus::leave) the program's code first, or it is given up, and whatever it brings back is dropped.

use std::time::Duration;

use super::plan::partition::Place;
use crate::error::{Error, SampleId, Stage, TimedOut};
use crate::sync::plain::{AtomicU64, AtomicUsize as PlainUsize};
use crate::sync::{Arc, AtomicUsize, Instant, Ordering, Weak};

/// The number of a status that no other thread looks at: the caller's own, or the pin thread's.
const NOBODY: usize = usize::MAX;

/// The state of a status: the worker does not run the program's code, it does, or it was given up while it did.
const FREE: usize = 0;
const WORKING: usize = 1;
const GIVEN_UP: usize = 2;

/// What a worker runs of the program's. (The order is that of [`STAGES`].)
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Doing {
    /// Asks the sampler for a position's index.
    Sampling,
    /// Gets a sample.
    Loading,
    /// Fills it into its row.
    Filling,
    /// Lays a batch out from all of its samples.
    Planning,
    /// Makes a batch of filled rows.
    Collating,
    /// Takes memory for the batch, or makes some. That is not the program's code, and takes as long as it takes.
    Memory,
    /// Describes the sample of a worker that was given up.
    Describing,
    /// Opens a stream, or pulls an item from it.
    Pulling,
}

const STAGES: [Doing; 8] = [
    Doing::Sampling,
    Doing::Loading,
    Doing::Filling,
    Doing::Planning,
    Doing::Collating,
    Doing::Memory,
    Doing::Describing,
    Doing::Pulling,
];

/// What one worker is doing. A cache line of its own: it is written for each sample.
#[repr(align(64))]
pub(crate) struct WorkerStatus {
    number: usize,
    /// A worker's, for what outlives its calls; that of a caller has none.
    me: Weak<WorkerStatus>,
    /// Statuses count nanoseconds from here.
    epoch: Instant,
    /// Samples have a timeout, so their beginning is written down.
    is_timed: bool,
    state: AtomicUsize,
    // The rest is for other threads to look at, and orders nothing but itself.
    doing: PlainUsize,
    /// The row of its place, also where a task is made again without some of them.
    row: PlainUsize,
    /// The index of the sample; `u64::MAX` if it is not known here, or is the one that the order has for the row.
    index: AtomicU64,
    /// How many samples one call gets: those from `row` on.
    count: PlainUsize,
    /// When this began, or 0 if that is not known, or about to change.
    began_ns: AtomicU64,
}

/// What a worker was seen to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Seen {
    pub(crate) doing: Doing,
    pub(crate) row: usize,
    pub(crate) index: Option<u64>,
    /// How many samples one call gets, from this row on: they have as much time as all of them together.
    pub(crate) count: usize,
    /// For how long, if that is known.
    pub(crate) elapsed: Option<Duration>,
}

impl WorkerStatus {
    pub(crate) fn new(number: usize, epoch: Instant, is_timed: bool) -> Arc<WorkerStatus> {
        Arc::new_cyclic(|me| WorkerStatus::with(number, Weak::clone(me), epoch, is_timed))
    }

    fn with(number: usize, me: Weak<WorkerStatus>, epoch: Instant, is_timed: bool) -> WorkerStatus {
        WorkerStatus {
            number,
            me,
            epoch,
            is_timed,
            state: AtomicUsize::new(FREE),
            doing: PlainUsize::new(Doing::Loading as usize),
            row: PlainUsize::new(0),
            index: AtomicU64::new(u64::MAX),
            count: PlainUsize::new(1),
            began_ns: AtomicU64::new(0),
        }
    }

    /// The status of a thread that no other waits for: the caller's own, or the pin thread's.
    pub(crate) fn of_caller(epoch: Instant) -> WorkerStatus {
        WorkerStatus::with(NOBODY, Weak::new(), epoch, false)
    }

    /// Whether it is that of the caller, or of the pin thread.
    pub(crate) fn is_nobodys(&self) -> bool {
        self.number == NOBODY
    }

    /// That of a worker, to keep.
    pub(crate) fn shared(&self) -> Option<Arc<WorkerStatus>> {
        self.me.upgrade()
    }

    /// The number of its worker.
    pub(crate) fn number(&self) -> usize {
        self.number
    }

    /// The name of its worker.
    pub(crate) fn name(&self) -> String {
        format!("pinfeed-worker-{}", self.number)
    }

    pub(crate) fn is_timed(&self) -> bool {
        self.is_timed
    }

    /// The worker enters code of the program's.
    pub(crate) fn enter(&self, doing: Doing, row: usize) {
        self.began_ns.store(0, Ordering::Relaxed);
        self.row.store(row, Ordering::Release);
        self.index.store(u64::MAX, Ordering::Release);
        self.doing.store(doing as usize, Ordering::Release);
        self.state.store(WORKING, Ordering::Release);
    }

    /// The worker has left it, by a return or by a panic. `false`: it was given up, another thread reports for it, and it must not.
    #[must_use]
    pub(crate) fn leave(&self) -> bool {
        let (order, failed) = (Ordering::AcqRel, Ordering::Acquire);
        let left = self.state.compare_exchange(WORKING, FREE, order, failed);
        left != Err(GIVEN_UP)
    }

    /// The worker is given up, because what it was seen to do takes too long. `false`: it has left just now.
    #[must_use]
    pub(crate) fn give_up(&self) -> bool {
        let (order, failed) = (Ordering::AcqRel, Ordering::Relaxed);
        let given_up = self
            .state
            .compare_exchange(WORKING, GIVEN_UP, order, failed);
        given_up.is_ok()
    }

    pub(crate) fn is_given_up(&self) -> bool {
        self.state.load(Ordering::Acquire) == GIVEN_UP
    }

    /// The worker comes to a row. (No other thread writes, and others read it for their messages.)
    #[inline(always)]
    pub(crate) fn comes_to(&self, row: usize) {
        self.row.store(row, Ordering::Relaxed);
    }

    /// The row that the worker is at.
    pub(crate) fn row(&self) -> usize {
        self.row.load(Ordering::Relaxed)
    }

    /// What the worker entered began then.
    pub(crate) fn since(&self, began: Instant) {
        if self.number != NOBODY {
            self.count.store(1, Ordering::Release);
            self.began_ns.store(self.ns(began), Ordering::Release);
        }
    }

    /// The worker begins a sample, and asks the sampler for it.
    pub(crate) fn samples(&self, row: usize, began: Instant) {
        if self.is_timed {
            // First, so that the new row is not taken for one that began when the last did.
            self.began_ns.store(0, Ordering::Relaxed);
            self.row.store(row, Ordering::Release);
            self.index.store(u64::MAX, Ordering::Release);
            self.count.store(1, Ordering::Release);
            self.doing
                .store(Doing::Sampling as usize, Ordering::Release);
            self.began_ns.store(self.ns(began), Ordering::Release);
        }
    }

    /// It gets the sample.
    pub(crate) fn gets(&self, index: u64) {
        if self.is_timed {
            self.index.store(index, Ordering::Relaxed);
        }
        self.is(Doing::Loading);
    }

    /// It gets this sample and those behind it in one call, so many together.
    pub(crate) fn gets_many(&self, index: u64, count: usize) {
        if self.is_timed {
            self.count.store(count, Ordering::Release);
        }
        self.gets(index);
    }

    /// It begins to fill a sample that was loaded before. `index`: the sample's, if it is not the one that the order has for the row.
    pub(crate) fn fills(&self, row: usize, index: impl FnOnce() -> Option<u64>) {
        match self.is_timed {
            true => {
                let index = index();
                self.samples(row, Instant::now());
                if let Some(index) = index {
                    self.index.store(index, Ordering::Relaxed);
                }
                self.is(Doing::Filling);
            }
            false => self.comes_to(row),
        }
    }

    /// It is in another stage of the same sample.
    pub(crate) fn is(&self, doing: Doing) {
        self.doing.store(doing as usize, Ordering::Relaxed);
    }

    /// It begins another stage, with the timeout of its own.
    pub(crate) fn begins(&self, doing: Doing) {
        match self.is_timed {
            true => {
                self.began_ns.store(0, Ordering::Relaxed);
                self.doing.store(doing as usize, Ordering::Release);
                self.since(Instant::now());
            }
            false => self.is(doing),
        }
    }

    fn ns(&self, at: Instant) -> u64 {
        let ns = at.saturating_duration_since(self.epoch).as_nanos() as u64;
        ns.max(1)
    }

    /// What the worker is doing; `None` if it is in no code of the program's.
    pub(crate) fn look(&self, now: Instant) -> Option<Seen> {
        if self.state.load(Ordering::Acquire) != WORKING {
            return None;
        }
        let began = self.began_ns.load(Ordering::Acquire);
        let row = self.row.load(Ordering::Acquire);
        let index = self.index.load(Ordering::Acquire);
        let count = self.count.load(Ordering::Acquire);
        let doing = self.doing.load(Ordering::Acquire);
        let is_same = self.began_ns.load(Ordering::Acquire) == began;
        let elapsed_ns = self.ns(now).saturating_sub(began);
        Some(Seen {
            doing: STAGES[doing],
            row,
            index: Some(index).filter(|index| *index != u64::MAX),
            count,
            // If it goes on to another sample right now, nothing is late.
            elapsed: (is_same && began > 0).then(|| Duration::from_nanos(elapsed_ns)),
        })
    }

    /// When the worker's sample began, or whatever it is doing, and how long that may take with this timeout for one.
    pub(crate) fn began(&self, timeout: Duration) -> Option<(Instant, Duration)> {
        let ns = self.began_ns.load(Ordering::Acquire);
        let of_all = times(timeout, self.count.load(Ordering::Acquire));
        let began = (ns > 0 && self.state.load(Ordering::Acquire) != FREE)
            .then(|| self.epoch.checked_add(Duration::from_nanos(ns)))?;
        Some((began?, of_all))
    }
}

/// How long so many samples may take that are got in one call.
fn times(timeout: Duration, count: usize) -> Duration {
    timeout.saturating_mul(u32::try_from(count).unwrap_or(u32::MAX))
}

impl Seen {
    /// Whether it takes longer than samples may.
    pub(crate) fn is_late(&self, timeout: Duration) -> bool {
        self.left(timeout).is_some_and(|left| left.is_zero())
    }

    /// How long it may still take, if that counts.
    pub(crate) fn left(&self, timeout: Duration) -> Option<Duration> {
        let elapsed = self.elapsed.filter(|_| self.doing != Doing::Memory)?;
        Some(times(timeout, self.count).saturating_sub(elapsed))
    }

    /// The error of a task whose worker was seen to do this for too long. `sample`: what is known of it, and of those behind it that
    /// the same call gets.
    pub(crate) fn error(
        self,
        place: Place,
        worker: String,
        sample: Option<SampleId>,
        others: Vec<u64>,
    ) -> Error {
        let stage = match self.doing {
            Doing::Sampling => Stage::Sampling,
            Doing::Loading | Doing::Memory | Doing::Describing => Stage::Loading,
            Doing::Filling => Stage::Filling,
            Doing::Pulling => Stage::Pulling,
            Doing::Planning => Stage::Planning,
            Doing::Collating => Stage::Collating,
        };
        Error::TimedOut(Box::new(TimedOut {
            count: if sample.is_some() { self.count } else { 1 },
            sample,
            others,
            epoch: place.epoch,
            batch: place.batch,
            stage,
            elapsed: self.elapsed.unwrap_or_default(),
            worker,
        }))
    }

    /// Whether it is a certain sample that takes so long, and not the batch or the sampler.
    pub(crate) fn is_of_sample(&self) -> bool {
        matches!(self.doing, Doing::Loading | Doing::Filling)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_leaves_first_reports() {
        let status = WorkerStatus::new(3, Instant::now(), true);
        assert!(!status.give_up(), "it is free");
        status.enter(Doing::Loading, 5);
        assert!(status.leave());
        assert!(!status.give_up());
        status.enter(Doing::Collating, 0);
        assert!(status.give_up());
        assert!(!status.leave());
        assert!(!status.give_up(), "it was already");
        assert!(status.is_given_up());
    }

    #[test]
    fn a_status_shows_the_sample() {
        let start = Instant::now();
        let status = WorkerStatus::new(3, start, true);
        assert_eq!(status.look(start), None);
        status.enter(Doing::Loading, 5);
        let seen = status.look(start).map(|seen| (seen.row, seen.elapsed));
        assert_eq!(seen, Some((5, None)));
        let began = start + Duration::from_secs(1);
        status.samples(6, began);
        status.gets(17);
        let seen = status.look(began + Duration::from_secs(2));
        let expected = Seen {
            doing: Doing::Loading,
            row: 6,
            index: Some(17),
            count: 1,
            elapsed: Some(Duration::from_secs(2)),
        };
        assert_eq!(seen, Some(expected));
        assert!(expected.is_late(Duration::from_secs(2)));
        assert!(!expected.is_late(Duration::from_secs(3)));
        // Several in one call have as much time as each of them.
        status.gets_many(17, 8);
        let seen = status.look(began + Duration::from_secs(2));
        let left = seen.and_then(|seen| seen.left(Duration::from_secs(1)));
        assert_eq!(left, Some(Duration::from_secs(6)));
        status.samples(6, began);
        let seen = status.look(began + Duration::from_secs(2));
        assert!(seen.is_some_and(|seen| seen.is_late(Duration::from_secs(1))));
        status.is(Doing::Memory);
        let seen = status.look(began + Duration::from_secs(2));
        assert!(!seen.is_some_and(|seen| seen.is_late(Duration::from_secs(2))));
    }
}
