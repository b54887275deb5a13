//! One open task: which rows are claimed, parked and filled, and whether it has its slab.

use std::ops::Range;

/// The number of a task within its session. Numbers run through all epochs and are never reused, so a late report finds nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct TaskId(pub(crate) u64);

/// What the schedule knows of one open task.
#[derive(Debug)]
pub(super) struct TaskEntry<U> {
    pub(super) rows: usize,
    /// Rows from here on are not claimed.
    claimed: usize,
    /// Rows that are being loaded or filled right now.
    busy: usize,
    /// Rows whose sample is loaded and waits for the slab.
    parked: usize,
    /// Rows that are done.
    filled: usize,
    pub(super) slab: SlabState,
    /// How many bytes it has, or will have; 0 if that is not known. Only where bytes are limited, or its slab was wanted.
    pub(super) bytes: usize,
    /// How many slabs of the ring it may need from now on.
    pub(super) needs_slabs: usize,
    pub(super) stage: Stage,
    pub(super) has_failed: bool,
    /// It was sent, or given out: it does not count in the window.
    pub(super) is_away: bool,
    /// `None` once it is given out.
    pub(super) payload: Option<U>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum SlabState {
    /// Its size is not known yet.
    Unknown,
    Wanted {
        bytes: usize,
    },
    /// It waits until fewer bytes are in flight. A worker grants it pageable memory then.
    Held {
        bytes: usize,
    },
    /// The ring is being asked for it.
    Granting {
        bytes: usize,
    },
    /// It begins a run of so many tasks, whose slab the quota has counted, and whose worker takes it.
    Reservation {
        tasks: usize,
    },
    Granted,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Stage {
    /// Its items are being pulled from a stream.
    Pulling,
    /// Samples are being loaded.
    Loading,
    /// All samples are parked, and one thread lays the task out from them.
    LayingOut,
    /// One thread makes a batch of its rows.
    Finishing,
    /// One thread makes it from end to end.
    Solo,
    /// It is made, and is to be copied into a slab.
    Moving,
    /// It was ready, and is being sent to its device; or it was sent, and the device decodes it.
    Sending,
    /// It, or its error, can be delivered.
    Ready,
    /// It was delivered before an earlier one: it only keeps its place, and reports no longer find it.
    Given,
}

/// What was claimed: rows to load, or a number of parked samples to fill into their rows.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Claimed {
    Rows(Range<usize>),
    Parked(usize),
}

impl Claimed {
    pub(crate) fn len(&self) -> usize {
        match self {
            Claimed::Rows(rows) => rows.len(),
            Claimed::Parked(count) => *count,
        }
    }
}

/// What became of rows that were claimed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Loaded {
    /// How many were claimed.
    pub(crate) claimed: usize,
    pub(crate) filled: usize,
    pub(crate) parked: usize,
}

/// What the caller that reports on a task must do next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Next {
    /// Nothing: other threads still work on it, or the slab is missing.
    Wait,
    /// Lay the task out: all samples are parked, and none of them told the size of the slab.
    LayOut,
    /// Make the batch: all rows are filled.
    Finish,
    /// Deliver the error: the task failed, and no thread works on it any more.
    Fail,
}

impl<U> TaskEntry<U> {
    pub(super) fn new(rows: usize, needs_slabs: usize, stage: Stage, payload: U) -> TaskEntry<U> {
        TaskEntry {
            rows,
            claimed: 0,
            busy: 0,
            parked: 0,
            filled: 0,
            slab: SlabState::Unknown,
            bytes: 0,
            needs_slabs,
            stage,
            has_failed: false,
            is_away: false,
            payload: Some(payload),
        }
    }

    /// Whether there are rows to claim. While the slab is missing no more samples are loaded, as they would only be parked.
    pub(super) fn has_rows(&self) -> bool {
        self.stage == Stage::Loading
            && !self.has_failed
            && self.claimed < self.rows
            && !self.waits_for_slab()
    }

    pub(super) fn waits_for_slab(&self) -> bool {
        use SlabState::{Granting, Held, Wanted};
        matches!(self.slab, Wanted { .. } | Granting { .. } | Held { .. })
    }

    /// Whether it will need a slab, and has none.
    pub(super) fn is_to_come(&self) -> bool {
        let has_none = !matches!(self.slab, SlabState::Granting { .. } | SlabState::Granted);
        let may_ask = matches!(
            self.stage,
            Stage::Pulling | Stage::Loading | Stage::LayingOut
        );
        has_none && may_ask && !self.has_failed
    }

    /// How many bytes it waits for, if its slab is held and it has not failed.
    pub(super) fn held_bytes(&self) -> Option<usize> {
        match self.slab {
            SlabState::Held { bytes } if !self.has_failed => Some(bytes),
            _ => None,
        }
    }

    pub(super) fn claim_rows(&mut self, most: usize) -> Claimed {
        let start = self.claimed;
        self.claimed = start.saturating_add(most).min(self.rows);
        self.busy += self.claimed - start;
        Claimed::Rows(start..self.claimed)
    }

    /// Whether there are parked samples whose slab has come.
    pub(super) fn has_parked(&self) -> bool {
        self.stage == Stage::Loading
            && !self.has_failed
            && self.parked > 0
            && self.slab == SlabState::Granted
    }

    pub(super) fn claim_parked(&mut self, most: usize) -> Claimed {
        let count = most.min(self.parked);
        self.parked -= count;
        self.busy += count;
        Claimed::Parked(count)
    }

    pub(super) fn loaded(&mut self, rows: Loaded) {
        self.busy -= rows.claimed;
        self.parked += rows.parked;
        self.filled += rows.filled;
        debug_assert!(self.busy + self.parked + self.filled <= self.claimed);
    }

    /// What the caller must do next. `LayOut` and `Finish` are given once, and give the task to the caller. `Fail` may be given
    /// to several; the first takes the failure.
    pub(super) fn next_step(&mut self) -> Next {
        if self.stage != Stage::Loading || self.busy > 0 {
            return Next::Wait;
        }
        if self.has_failed {
            return Next::Fail;
        }
        match self.slab {
            SlabState::Unknown if self.filled + self.parked == self.rows => {
                self.stage = Stage::LayingOut;
                Next::LayOut
            }
            SlabState::Granted if self.filled == self.rows => {
                self.stage = Stage::Finishing;
                Next::Finish
            }
            _ => Next::Wait,
        }
    }

    /// Whether all that is left is to make the batch, and no thread has begun to.
    pub(super) fn can_finish(&self) -> bool {
        self.stage == Stage::Loading
            && !self.has_failed
            && self.filled == self.rows
            && self.slab == SlabState::Granted
    }

    /// How many slabs of the ring must be left for it.
    pub(super) fn reserve(&self) -> usize {
        let is_done = matches!(self.stage, Stage::Sending | Stage::Ready | Stage::Given);
        match self.slab {
            _ if self.has_failed || is_done => 0,
            // If there is none for the run, each of its tasks needs one.
            SlabState::Reservation { tasks } => tasks,
            _ => self.needs_slabs,
        }
    }
}
