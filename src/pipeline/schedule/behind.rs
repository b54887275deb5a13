//! An epoch that is loaded behind another, once that leaves workers nothing to open.

use super::Schedule;
use super::entry::Entry;

/// What an epoch leaves for the one behind it: both share what one epoch may have ahead, and its slabs.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Behind {
    /// There are batches that nobody has opened: they come first.
    pub(super) unopened: bool,
    /// How many batches are ahead of the consumer.
    pub(super) ahead: usize,
    /// How many of them will need a slab.
    pub(super) needing: usize,
}

impl Schedule {
    /// What an epoch behind this one must leave to it.
    pub(crate) fn left(&self) -> Behind {
        let needing = |entry: &&Entry| entry.needs_slab();
        Behind {
            unopened: self.unopened() > 0,
            ahead: self.ahead(),
            needing: self.open.iter().filter(needing).count(),
        }
    }

    /// Says what is left of the epoch before this one.
    pub(crate) fn stand_behind(&mut self, behind: Behind) {
        self.behind = behind;
    }

    /// Whether all batches may be opened once the consumer took what it can take next: then workers have room for batches
    /// of another epoch.
    pub(crate) fn is_ending(&self) -> bool {
        let room = self.room().saturating_add(self.at_once());
        self.unopened() <= room as u64
    }
}
