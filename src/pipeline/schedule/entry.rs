//! One open unit: which of its rows are claimed, parked and filled, and whether it has its slab.

/// One open unit. It payload a `T`, of which the schedule knows nothing.
#[derive(Debug)]
pub(super) struct UnitEntry<U> {
    pub(super) rows: usize,
    /// Rows from here on are not claimed.
    claimed: usize,
    /// Rows that somebody loads or fills right now.
    busy: usize,
    /// Rows whose sample is loaded, and waits for the slab.
    parked: usize,
    /// Rows that are done.
    filled: usize,
    pub(super) slab: SlabState,
    /// How many slabs of the ring it may need from now on.
    pub(super) needs_slabs: usize,
    pub(super) stage: Stage,
    pub(super) has_failed: bool,
    pub(super) is_sent: bool,
    pub(super) payload: U,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum SlabState {
    /// Nobody knows yet how large it must be.
    Unknown,
    Wanted {
        bytes: usize,
    },
    /// Somebody is at the ring for it.
    Granting {
        bytes: usize,
    },
    Granted,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Stage {
    /// Samples are being loaded.
    Loading,
    /// All samples are parked, and somebody plans the unit from them.
    LayingOut,
    /// Somebody makes the batch of its rows.
    Finishing,
    /// Somebody makes it from end to end.
    Solo,
    /// It is made, and is to be copied into a slab.
    Moving,
    /// It was ready, and somebody sends it to its device.
    Sending,
    /// It, or its error, can be delivered.
    Ready,
}

/// Rows that somebody claimed, and what became of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Loaded {
    /// How many were claimed.
    pub(crate) claimed: usize,
    pub(crate) filled: usize,
    pub(crate) parked: usize,
}

/// What whoever reports on a unit does next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Next {
    /// Others are at it, or the slab is missing.
    Wait,
    /// All samples are parked, and the unit did not say how large a slab it needs: the caller plans it.
    LayOut,
    /// All rows are filled: the caller makes the batch.
    Finish,
    /// The unit failed, and nobody is at it any more: the caller delivers the error.
    Fail,
}

impl<U> UnitEntry<U> {
    pub(super) fn new(rows: usize, needs_slabs: usize, stage: Stage, payload: U) -> UnitEntry<U> {
        UnitEntry {
            rows,
            claimed: 0,
            busy: 0,
            parked: 0,
            filled: 0,
            slab: SlabState::Unknown,
            needs_slabs,
            stage,
            has_failed: false,
            is_sent: false,
            payload,
        }
    }

    /// Whether there are rows that nobody claimed. While the slab is missing, no more samples are loaded: they would be parked.
    pub(super) fn has_rows(&self) -> bool {
        let is_missing = matches!(
            self.slab,
            SlabState::Wanted { .. } | SlabState::Granting { .. }
        );
        self.stage == Stage::Loading && !self.has_failed && self.claimed < self.rows && !is_missing
    }

    pub(super) fn take_rows(&mut self, most: usize) -> std::ops::Range<usize> {
        let start = self.claimed;
        self.claimed = start.saturating_add(most).min(self.rows);
        self.busy += self.claimed - start;
        start..self.claimed
    }

    /// Whether parked samples can be filled in.
    pub(super) fn has_parked(&self) -> bool {
        self.stage == Stage::Loading
            && !self.has_failed
            && self.parked > 0
            && self.slab == SlabState::Granted
    }

    pub(super) fn take_parked(&mut self, most: usize) -> usize {
        let count = most.min(self.parked);
        self.parked -= count;
        self.busy += count;
        count
    }

    pub(super) fn loaded(&mut self, rows: Loaded) {
        self.busy -= rows.claimed;
        self.parked += rows.parked;
        self.filled += rows.filled;
        debug_assert!(self.busy + self.parked + self.filled <= self.claimed);
    }

    /// What follows from what it is like now. Each answer but `Wait` is given once: it gives the unit to the caller.
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

    /// Whether nothing but the batch itself is left to be made, and nobody does so.
    pub(super) fn can_finish(&self) -> bool {
        self.stage == Stage::Loading
            && !self.has_failed
            && self.filled == self.rows
            && self.slab == SlabState::Granted
    }

    /// How many slabs of the ring are to be left to it.
    pub(super) fn reserve(&self) -> usize {
        match self.has_failed || matches!(self.stage, Stage::Sending | Stage::Ready) {
            true => 0,
            false => self.needs_slabs,
        }
    }
}
