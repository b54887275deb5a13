//! One open batch of a schedule: what was claimed, loaded and granted.

use super::{Claim, Loaded};

/// One open batch.
#[derive(Debug)]
pub(super) struct Entry {
    pub(super) rows: usize,
    /// Rows from here on are not claimed.
    pub(super) claimed: usize,
    /// Rows that were loaded, or given up.
    pub(super) loaded: usize,
    pub(super) slab: SlabState,
    pub(super) stage: Stage,
    pub(super) failed: bool,
    pub(super) sent: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum SlabState {
    /// Nobody knows yet how large it must be.
    Unknown,
    Wanted {
        bytes: usize,
    },
    /// Somebody is taking it from the ring.
    Granting {
        bytes: usize,
    },
    Granted,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Stage {
    /// Samples are being loaded.
    Loading,
    /// All samples are loaded, and somebody asks what the batch needs.
    Planning,
    /// Somebody makes the batch.
    Finishing,
    /// Somebody makes the batch from end to end.
    Whole,
    /// The batch is made, and is to be copied into a slab.
    Relocating,
    /// The batch, or its error, can be delivered.
    Done,
}

impl Entry {
    pub(super) fn new(rows: usize) -> Entry {
        Entry {
            rows,
            claimed: 0,
            loaded: 0,
            slab: SlabState::Unknown,
            stage: Stage::Loading,
            failed: false,
            sent: false,
        }
    }

    pub(super) fn has_rows(&self) -> bool {
        let parks = matches!(
            self.slab,
            SlabState::Wanted { .. } | SlabState::Granting { .. }
        );
        self.stage == Stage::Loading && !self.failed && self.claimed < self.rows && !parks
    }

    pub(super) fn take_rows(&mut self, batch: u64, run: usize) -> Claim {
        let start = self.claimed;
        self.claimed = (start + run).min(self.rows);
        Claim::Rows {
            batch,
            rows: start..self.claimed,
        }
    }

    pub(super) fn can_finish(&self) -> bool {
        self.stage == Stage::Loading
            && !self.failed
            && self.loaded == self.rows
            && self.slab == SlabState::Granted
    }

    pub(super) fn needs_slab(&self) -> bool {
        !self.failed && self.slab != SlabState::Granted && self.stage != Stage::Done
    }

    pub(super) fn after_loading(&mut self) -> Loaded {
        if self.failed {
            // Rows that nobody claimed are given up; those that were claimed are waited for.
            let last = self.stage == Stage::Loading && self.loaded == self.claimed;
            return if last { Loaded::Failed } else { Loaded::Wait };
        }
        if self.stage != Stage::Loading || self.loaded < self.rows {
            return Loaded::Wait;
        }
        match self.slab {
            SlabState::Unknown => {
                self.stage = Stage::Planning;
                Loaded::Plan
            }
            SlabState::Granted => {
                self.stage = Stage::Finishing;
                Loaded::Finish
            }
            SlabState::Wanted { .. } | SlabState::Granting { .. } => Loaded::Wait,
        }
    }
}
