//! Slabs: which unit is granted one next, and how many must be left for those before it.

use super::entry::{SlabState, Stage, UnitEntry};
use super::{EpochUnits, Schedule, Unit};

/// A slab to be granted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Want {
    pub(crate) unit: Unit,
    pub(crate) bytes: usize,
    /// How many slabs must be left for earlier units.
    pub(crate) reserve: usize,
    /// The consumer is blocked on this very unit.
    pub(crate) is_blocked: bool,
    /// The unit is made, and will be copied into the slab.
    pub(crate) moves: bool,
}

impl<E, U> Schedule<E, U> {
    /// Notes the bytes of a unit if its slabs outgrow the last-level cache, else 0.
    pub(crate) fn streams(&mut self, unit: Unit, bytes: usize) {
        let is_cut = |(_, units): (usize, &EpochUnits)| units.plan.is_cut();
        if self.segment_of(unit).is_some_and(is_cut) {
            return; // known since it was cut
        }
        self.streamed_bytes = bytes as u64 / self.entry(unit).rows.max(1) as u64;
    }

    /// The unit needs a slab of `bytes`.
    pub(crate) fn want(&mut self, unit: Unit, bytes: usize) {
        let entry = self.entry(unit);
        debug_assert_eq!(entry.slab, SlabState::Unknown);
        entry.slab = SlabState::Wanted { bytes };
    }

    /// The unit is made, and needs a slab of `bytes` to be copied into.
    pub(crate) fn want_to_move(&mut self, unit: Unit, bytes: usize) {
        let entry = self.entry(unit);
        entry.stage = Stage::Moving;
        entry.needs_slabs = 1;
        entry.slab = SlabState::Wanted { bytes };
    }

    /// The first slab that is wanted, in the order of the units.
    pub(crate) fn next_want(&self) -> Option<Want> {
        let mut reserve = 0;
        for (index, entry) in self.open.iter().enumerate() {
            if let (SlabState::Wanted { bytes }, false) = (entry.slab, entry.has_failed) {
                return Some(Want {
                    unit: Unit(self.first.0 + index as u64),
                    bytes,
                    reserve,
                    is_blocked: index == 0 && self.is_blocked,
                    moves: entry.stage == Stage::Moving,
                });
            }
            reserve += entry.reserve();
        }
        None
    }

    /// Whether any unit waits for its slab, even if somebody asks the ring for it right now.
    pub(crate) fn waits_for_slab(&self) -> bool {
        self.open.iter().any(UnitEntry::waits_for_slab)
    }

    /// The caller will ask the ring for the unit's slab; `None` if the unit is not the first that wants one.
    pub(crate) fn granting(&mut self, unit: Unit) -> Option<Want> {
        let want = self.next_want().filter(|want| want.unit == unit)?;
        self.entry(unit).slab = SlabState::Granting { bytes: want.bytes };
        Some(want)
    }

    /// The ring had none: the unit goes on waiting.
    pub(crate) fn not_granted(&mut self, unit: Unit) {
        let entry = self.entry(unit);
        if let SlabState::Granting { bytes } = entry.slab {
            entry.slab = SlabState::Wanted { bytes };
        }
    }

    /// The unit has its slab, or does without.
    pub(crate) fn granted(&mut self, unit: Unit) {
        let entry = self.entry(unit);
        entry.slab = SlabState::Granted;
        entry.needs_slabs = entry.needs_slabs.saturating_sub(1);
    }

    /// The unit has pageable memory; it may need a slab of the ring when it is made.
    pub(crate) fn granted_pageable(&mut self, unit: Unit) {
        self.entry(unit).slab = SlabState::Granted;
    }

    /// How many slabs must be left for the unit.
    pub(crate) fn reserve_of(&mut self, unit: Unit) -> usize {
        self.entry(unit).reserve()
    }
}
