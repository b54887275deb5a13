//! Slabs: which unit is granted one next, and how many must be left for those before it.

use super::entry::{SlabState, Stage, UnitEntry};
use super::{Claimant, EpochUnits, Next, Schedule, Unit};
use crate::device::block_bytes;
use crate::sync::planted;

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
        let wanted = bytes;
        // Whole pages, as they are counted.
        entry.bytes = block_bytes(bytes).unwrap_or(bytes);
        let bytes = entry.bytes;
        self.largest_unit = self.largest_unit.max(bytes);
        self.unit_bytes = self.unit_bytes.max(wanted);
    }

    /// The unit needs a slab of pageable memory. `true`: it can have one now.
    pub(crate) fn want_pageable(&mut self, unit: Unit, bytes: usize, free_bytes: usize) -> bool {
        self.want(unit, bytes);
        let is_free = self.is_free(unit, bytes, free_bytes);
        self.entry(unit).slab = match is_free {
            true => SlabState::Granting { bytes },
            false => SlabState::Held { bytes },
        };
        is_free
    }

    /// The first unit that was held, and can have its slab now. That on which the consumer is blocked can in any case: nobody knows whether
    /// there will be room otherwise.
    pub(super) fn next_held(&self, claimant: Claimant) -> Option<(Unit, usize)> {
        let units = self.numbered();
        let mut held = units.filter_map(|(unit, entry)| Some((unit, entry.held_bytes()?)));
        held.find(|(unit, bytes)| self.is_free(*unit, *bytes, claimant.free_bytes))
    }

    /// Whether a unit waits until fewer bytes are in flight, of whatever line.
    pub(crate) fn holds_back(&self) -> bool {
        self.is_bounded && self.open.iter().any(|entry| entry.held_bytes().is_some())
    }

    /// Whether a unit can have its slab: there is room for it beside the earlier ones that have none, or it is the last resort.
    fn is_free(&self, unit: Unit, bytes: usize, free_bytes: usize) -> bool {
        let before = self.open.iter().take((unit.0 - self.first.0) as usize);
        let before = before.filter(|entry| entry.is_to_come());
        let mut before = before.map(|entry| entry.bytes).peekable();
        let bound = self
            .segment_of(unit)
            .and_then(|(_, units)| units.plan.bound);
        let room = match (before.peek(), bound) {
            (Some(_), Some(bound)) => free_bytes.min(bound.bytes),
            _ => free_bytes, // it may be larger than the limit, if it is alone
        };
        before.fold(bytes, usize::saturating_add) <= room || self.is_last_resort(unit)
    }

    fn is_last_resort(&self, unit: Unit) -> bool {
        self.is_blocked
            && unit == self.first
            && !planted("who is blocked waits for room that does not come")
    }

    /// How many bytes a unit of this epoch will have, as far as anybody knows.
    pub(super) fn expected_bytes(&self, units: &EpochUnits, unit: Unit) -> Option<usize> {
        let bound = units.plan.bound?;
        match bound.row_bytes {
            Some(bytes) => {
                let rows = units.plan.cut.rows(units.number(unit));
                block_bytes(bytes.saturating_mul(rows))
            }
            None => Some(self.largest_unit).filter(|bytes| *bytes > 0),
        }
    }

    /// Whether another unit can be opened, if bytes are limited: there is room for it beside those that are open and were not sent, or there
    /// are none. (What was sent counts when the unit needs its slab.)
    pub(super) fn has_room_for(&self, units: &EpochUnits, unit: Unit) -> bool {
        let Some(bound) = units.plan.bound else {
            return true;
        };
        let ahead = self.open.iter().filter(|entry| !entry.is_away);
        let mut ahead = ahead.map(|entry| entry.bytes).peekable();
        if ahead.peek().is_none() {
            return true;
        }
        let expected = self.expected_bytes(units, unit);
        let bytes = ahead.fold(0, usize::saturating_add);
        expected.is_some_and(|expected| bytes.saturating_add(expected) <= bound.bytes)
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

    /// The unit cannot have its slab, and fails.
    pub(crate) fn refused(&mut self, unit: Unit) -> Next {
        match self.wants_still(unit) {
            true => self.failed(unit),
            false => Next::Wait,
        }
    }

    /// The unit has its slab, or does without.
    pub(crate) fn granted(&mut self, unit: Unit) {
        if self.wants_still(unit) {
            let entry = self.entry(unit);
            entry.slab = SlabState::Granted;
            entry.needs_slabs = entry.needs_slabs.saturating_sub(1);
        }
    }

    /// The unit has pageable memory; it may need a slab of the ring when it is made.
    pub(crate) fn granted_pageable(&mut self, unit: Unit) {
        if self.wants_still(unit) {
            self.entry(unit).slab = SlabState::Granted;
        }
    }

    /// Whether a unit wants the slab that somebody got it, or did not get. One that failed meanwhile and is made again has given that slab
    /// up, and may want another to move to.
    fn wants_still(&mut self, unit: Unit) -> bool {
        matches!(self.entry(unit).stage, Stage::Loading | Stage::LayingOut)
            || planted("a unit that is made again has a slab that it gave up")
    }

    /// How many slabs must be left for the unit.
    pub(crate) fn reserve_of(&mut self, unit: Unit) -> usize {
        self.entry(unit).reserve()
    }
}
