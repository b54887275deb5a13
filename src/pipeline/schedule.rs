//! The schedule of one epoch: which batch is opened, claimed, granted a slab, finished and delivered, and when.
//!
//! It is a plain state machine, without threads, clocks or devices: everybody who works on an epoch asks it, under the
//! board's lock, what to do next, and tells it what was done. Its tests play all of them at once.
//!
//! Where batches are cut into parts, what is called a batch here is a part: each is loaded, granted a slab and delivered by
//! itself ([`Cut`]).

mod behind;
mod cut;
mod deliver;
mod entry;
mod missing;

use std::collections::VecDeque;
use std::ops::Range;

pub(crate) use self::behind::Behind;
pub(crate) use self::cut::Cut;
use self::entry::{Entry, SlabState, Stage};
pub(crate) use self::missing::{Missing, missing};
use crate::tuning::{COPYING_BYTES_PER_10_NS, MOST_BATCHES_AHEAD as MOST_AHEAD, RUN_NS};

/// An epoch's batches, from the first that was not delivered to the last that was opened.
#[derive(Debug)]
pub(crate) struct Schedule {
    cut: Cut,
    batches: u64,
    /// How many batches may be open: ahead of the one that the consumer has.
    prefetch: usize,
    /// How many may be open while loading is copying, so that their slabs stay in the processor's cache. `None` where they
    /// are not cut for that, or it turned out that loading takes longer.
    resident: Option<usize>,
    open: VecDeque<Entry>,
    /// The number of the first open batch: the one that the consumer gets next.
    first: u64,
    /// The consumer is blocked on the first open batch.
    blocked: bool,
    /// Batches that the consumer took together with one before, and has not come to yet.
    taken: usize,
    /// How many of the open batches were sent: they are in nobody's way.
    sent: usize,
    /// Whether one worker may make a batch, or several, from end to end.
    whole: Option<Whole>,
    /// How long a sample takes, in nanoseconds, smoothed; 0 before the first.
    sample_ns: u64,
    /// How many bytes a sample has, where the epoch's slabs outgrow the processor's cache, or are cut so that they do not; 0
    /// where neither is so.
    streamed_bytes: u64,
    /// What is left of the epoch before it, if it is loaded behind one.
    behind: Behind,
}

/// How batches are made from end to end by one worker: where no slab must be waited for.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Whole {
    /// How many workers share the batches; 0: the consumer makes them.
    pub(crate) workers: usize,
    /// Whether more batches may be open than `prefetch`, where they are made in no time.
    pub(crate) grows: bool,
}

/// Something to do for a worker.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Claim {
    /// Load these rows of the batch.
    Rows { batch: u64, rows: Range<usize> },
    /// Make the batch: its samples are loaded and its slab is there.
    Finish { batch: u64 },
    /// Make these batches from end to end, and report each when it is done.
    Whole { batches: Range<u64> },
}

/// A slab to be granted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Want {
    pub(crate) batch: u64,
    pub(crate) bytes: usize,
    /// How many earlier batches will need a slab too: as many must be left.
    pub(crate) reserve: usize,
    /// The consumer is blocked on this very batch.
    pub(crate) blocked: bool,
    /// The batch is made, and is to be copied into the slab.
    pub(crate) relocation: bool,
}

/// What follows when rows were loaded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Loaded {
    /// Others still load, or the slab is still missing.
    Wait,
    /// All samples are loaded, and the batch did not say how large a slab it needs: ask it.
    Plan,
    /// All samples are loaded and the slab is there: the caller makes the batch.
    Finish,
    /// The batch failed, and this was its last worker: its error can be delivered.
    Failed,
}

impl Schedule {
    pub(crate) fn new(cut: Cut, prefetch: usize, whole: Option<Whole>) -> Schedule {
        Schedule {
            cut,
            batches: cut.count(),
            prefetch,
            resident: None,
            open: VecDeque::new(),
            first: 0,
            blocked: false,
            taken: 0,
            sent: 0,
            whole,
            sample_ns: 0,
            streamed_bytes: 0,
            behind: Behind::default(),
        }
    }

    /// Cuts each batch into so many parts, before the first is opened. While loading is copying, `resident` of them are
    /// open at most, if that is given.
    pub(crate) fn cut_into(&mut self, parts: usize, resident: Option<usize>, sample_bytes: usize) {
        debug_assert!(self.open.is_empty() && self.first == 0);
        self.cut = self.cut.into_parts(parts);
        self.batches = self.cut.count();
        self.prefetch = self.prefetch.saturating_mul(self.cut.parts() as usize);
        self.resident = resident;
        self.streamed_bytes = sample_bytes as u64;
    }

    /// How the samples are cut into batches.
    pub(crate) fn cut(&self) -> Cut {
        self.cut
    }

    /// Says, once, that more may be open than what the cache holds: a batch came, and loading is far from copying (less than a
    /// byte in a nanosecond).
    pub(crate) fn widens(&mut self) -> bool {
        let known = self.sample_ns > 0 && self.first >= self.cut.parts();
        let widens = self.resident.is_some() && known && self.streamed_bytes < self.sample_ns;
        if widens {
            self.resident = None;
        }
        widens
    }

    /// Batches that were not delivered.
    pub(crate) fn remaining(&self) -> u64 {
        self.batches - self.first
    }

    /// The number of the batch that the consumer gets next.
    pub(crate) fn first(&self) -> u64 {
        self.first
    }

    pub(crate) fn is_blocked(&self) -> bool {
        self.blocked
    }

    fn entry(&mut self, batch: u64) -> &mut Entry {
        &mut self.open[(batch - self.first) as usize]
    }

    /// How many samples the batch has.
    pub(crate) fn rows_of(&self, batch: u64) -> usize {
        self.cut.rows(batch)
    }

    /// What a worker should do next: the oldest batch first. A batch beyond the open ones is opened by this call; its
    /// number is then `first + opened`, as the caller can tell by comparing.
    ///
    /// `spare`: the worker is one of those beyond [`COPYING_WORKERS`](crate::tuning::COPYING_WORKERS).
    pub(crate) fn claim(&mut self, spare: bool) -> Option<Claim> {
        let run = self.run();
        let may_load = self.may_load(spare);
        for (index, entry) in self.open.iter_mut().enumerate() {
            let batch = self.first + index as u64;
            if entry.can_finish() {
                entry.stage = Stage::Finishing;
                return Some(Claim::Finish { batch });
            }
            if may_load && entry.has_rows() {
                return Some(entry.take_rows(batch, run));
            }
        }
        if !may_load || !self.can_open() {
            return None;
        }
        let batch = self.first + self.open.len() as u64;
        let whole = self.whole_run();
        if whole > 0 {
            for batch in batch..batch + whole {
                let mut entry = self.new_entry(batch);
                entry.stage = Stage::Whole;
                self.open.push_back(entry);
            }
            return Some(Claim::Whole {
                batches: batch..batch + whole,
            });
        }
        let mut entry = self.new_entry(batch);
        let claim = entry.take_rows(batch, run);
        self.open.push_back(entry);
        Some(claim)
    }

    fn new_entry(&self, batch: u64) -> Entry {
        Entry::new(self.rows_of(batch))
    }

    /// Whether [`claim`](Schedule::claim) would give something.
    pub(crate) fn has_claim(&self, spare: bool) -> bool {
        let may_load = self.may_load(spare);
        may_load && self.can_open()
            || self
                .open
                .iter()
                .any(|entry| entry.can_finish() || may_load && entry.has_rows())
    }

    fn can_open(&self) -> bool {
        self.room() > 0 && self.unopened() > 0 && !self.behind.unopened
    }

    /// How many batches may be opened, as far as the consumer is concerned.
    fn room(&self) -> usize {
        let ahead = self.ahead().saturating_add(self.behind.ahead);
        self.window().saturating_sub(ahead)
    }

    /// How many batches are ahead of the consumer.
    fn ahead(&self) -> usize {
        self.open.len() - self.sent + self.taken
    }

    /// How many batches nobody has opened.
    fn unopened(&self) -> u64 {
        self.batches - self.first - self.open.len() as u64
    }

    /// How many batches may be ahead of the consumer.
    fn window(&self) -> usize {
        match (self.whole, self.batch_ns()) {
            (
                Some(Whole {
                    workers: 1..,
                    grows: true,
                }),
                Some(ns),
            ) => {
                let fast = usize::try_from(4 * RUN_NS / ns.max(1)).unwrap_or(usize::MAX);
                self.prefetch.max(fast.min(MOST_AHEAD))
            }
            _ => self.prefetch.min(self.resident.unwrap_or(usize::MAX)),
        }
    }

    /// How long a batch takes, once that is known.
    fn batch_ns(&self) -> Option<u64> {
        (self.sample_ns > 0).then(|| self.sample_ns.saturating_mul(self.cut.rows(0) as u64))
    }

    /// Whether such a worker may load rows: spare ones do not where loading is copying.
    fn may_load(&self, spare: bool) -> bool {
        !spare || !self.copies()
    }

    /// Whether loading is copying, of slabs whose place in the cache matters.
    fn copies(&self) -> bool {
        10 * self.streamed_bytes > COPYING_BYTES_PER_10_NS * self.sample_ns
    }

    /// How many batches a worker claims from end to end; 0: it claims rows.
    fn whole_run(&self) -> u64 {
        let left = self.unopened();
        match (self.whole, self.batch_ns()) {
            // The caller's thread is the only one.
            (Some(Whole { workers: 0, .. }), _) => 1,
            // Half a run at most, so that the others find something to do too.
            (Some(Whole { workers, .. }), Some(ns)) if ns <= RUN_NS / 2 => {
                let share = (self.window() / (2 * workers)).max(1);
                let fast = usize::try_from(RUN_NS / ns.max(1)).unwrap_or(usize::MAX);
                left.min(share.min(fast).min(self.room()) as u64)
            }
            _ => 0,
        }
    }

    /// How many samples a worker claims at once.
    fn run(&self) -> usize {
        match self.sample_ns {
            0 => 1,
            ns => usize::try_from(RUN_NS / ns).unwrap_or(usize::MAX).max(1),
        }
    }

    /// A worker is done with rows that it claimed, in `elapsed_ns`. `failed`: not all of them were loaded.
    pub(crate) fn loaded(
        &mut self,
        batch: u64,
        rows: usize,
        elapsed_ns: u64,
        failed: bool,
    ) -> Loaded {
        self.learn(rows, elapsed_ns);
        let entry = self.entry(batch);
        entry.loaded += rows;
        entry.failed |= failed;
        entry.after_loading()
    }

    fn learn(&mut self, rows: usize, elapsed_ns: u64) {
        let each = elapsed_ns / rows.max(1) as u64;
        self.sample_ns = match self.sample_ns {
            0 => each.max(1),
            smoothed => (smoothed * 7 + each).div_ceil(8).max(1),
        };
    }

    /// A batch that was claimed as a whole was made, or failed, in `elapsed_ns`.
    pub(crate) fn made(&mut self, batch: u64, elapsed_ns: u64) {
        let rows = self.entry(batch).rows;
        self.learn(rows, elapsed_ns);
        self.done(batch);
    }

    /// Says how many bytes a batch has whose slab outgrows the processor's cache; 0 if it does not.
    pub(crate) fn streams(&mut self, batch: u64, bytes: usize) {
        if self.cut.parts() > 1 {
            return; // known since it was cut
        }
        self.streamed_bytes = bytes as u64 / self.rows_of(batch).max(1) as u64;
    }

    /// The batch needs a slab of so many bytes.
    pub(crate) fn want(&mut self, batch: u64, bytes: usize) {
        let entry = self.entry(batch);
        debug_assert_eq!(entry.slab, SlabState::Unknown);
        entry.slab = SlabState::Wanted { bytes };
    }

    /// The batch is made, and is to be copied into a slab of so many bytes.
    pub(crate) fn want_relocation(&mut self, batch: u64, bytes: usize) {
        let entry = self.entry(batch);
        entry.stage = Stage::Relocating;
        entry.slab = SlabState::Wanted { bytes };
    }

    /// The first slab that somebody waits for, in the order of the batches.
    pub(crate) fn next_want(&self) -> Option<Want> {
        let mut reserve = self.behind.needing;
        for (index, entry) in self.open.iter().enumerate() {
            if let (SlabState::Wanted { bytes }, false) = (entry.slab, entry.failed) {
                return Some(Want {
                    batch: self.first + index as u64,
                    bytes,
                    reserve,
                    blocked: index == 0 && self.blocked,
                    relocation: entry.stage == Stage::Relocating,
                });
            }
            reserve += usize::from(entry.needs_slab());
        }
        None
    }

    /// Whether a batch waits for its slab, also one for which somebody is at the ring right now.
    pub(crate) fn waits_for_slab(&self) -> bool {
        let waits = |entry: &Entry| {
            matches!(
                entry.slab,
                SlabState::Wanted { .. } | SlabState::Granting { .. }
            )
        };
        self.open.iter().any(waits)
    }

    /// The want of this batch, if it is the next.
    pub(crate) fn want_of(&self, batch: u64) -> Option<Want> {
        self.next_want().filter(|want| want.batch == batch)
    }

    /// Somebody goes to the ring for the slab.
    pub(crate) fn granting(&mut self, batch: u64) {
        let entry = self.entry(batch);
        if let SlabState::Wanted { bytes } = entry.slab {
            entry.slab = SlabState::Granting { bytes };
        }
    }

    /// The ring had none: the batch waits on.
    pub(crate) fn not_granted(&mut self, batch: u64) {
        let entry = self.entry(batch);
        if let SlabState::Granting { bytes } = entry.slab {
            entry.slab = SlabState::Wanted { bytes };
        }
    }

    /// The batch has its slab, or goes without.
    pub(crate) fn granted(&mut self, batch: u64) {
        self.entry(batch).slab = SlabState::Granted;
    }

    /// Who asked the batch what it needs is done with it; says whether it is to make the batch at once.
    pub(crate) fn planned(&mut self, batch: u64) -> bool {
        let entry = self.entry(batch);
        // If it failed meanwhile, for want of a slab, somebody else delivers its error, or has done so.
        if entry.stage != Stage::Planning {
            return false;
        }
        entry.stage = Stage::Loading;
        let ready = entry.can_finish();
        if ready {
            entry.stage = Stage::Finishing;
        }
        ready
    }

    /// The batch failed; says whether nobody works on it any more.
    pub(crate) fn failed(&mut self, batch: u64) -> bool {
        let entry = self.entry(batch);
        entry.failed = true;
        if entry.stage == Stage::Planning {
            entry.stage = Stage::Loading;
        }
        entry.after_loading() == Loaded::Failed
    }

    /// The batch, or its error, can be delivered.
    pub(crate) fn done(&mut self, batch: u64) {
        self.entry(batch).stage = Stage::Done;
    }

    /// The batch was sent to where it goes; the consumer will be told.
    pub(crate) fn sent(&mut self, batch: u64) {
        let entry = self.entry(batch);
        entry.stage = Stage::Done;
        entry.sent = true;
        self.sent += 1;
    }

    /// Whether the batch, or its error, waits for the consumer.
    pub(crate) fn is_done(&mut self, batch: u64) -> bool {
        self.entry(batch).stage == Stage::Done
    }

    /// The consumer blocks on the first batch.
    pub(crate) fn block(&mut self) {
        self.blocked = true;
    }
}

#[cfg(test)]
#[allow(unreachable_pub, clippy::unwrap_used, clippy::expect_used)]
// a model of its own, in several files
mod tests;
