//! Segments: the epochs of a line.

use std::ops::RangeBounds;

use super::{Schedule, Unit};
use crate::pipeline::plan::epoch_plan::EpochPlan;

/// One epoch of a line.
#[derive(Debug)]
pub(super) struct Segment<E> {
    pub(super) id: u64,
    /// `None` until it is planned.
    pub(super) units: Option<EpochUnits>,
    /// Somebody is planning it.
    pub(super) is_planning: bool,
    /// It may be planned before the consumer reaches it.
    pub(super) may_plan_early: bool,
    /// The consumer has reached it.
    pub(super) is_reached: bool,
    pub(super) payload: E,
}

/// The units of one epoch: how they are made, and their numbers within the line.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct EpochUnits {
    pub(crate) plan: EpochPlan,
    /// The first unit, and the one after the last: [`OPEN_END`] as long as it is not known.
    pub(crate) first: Unit,
    pub(crate) end: Unit,
}

/// The end of an epoch whose stream has not ended yet.
const OPEN_END: Unit = Unit(u64::MAX);

impl EpochUnits {
    /// The number of a unit within its epoch. (Those of batches that were given out before have none.)
    pub(crate) fn number(&self, unit: Unit) -> u64 {
        self.plan.given.missing(unit.0 - self.first.0)
    }
}

/// What left the schedule: payloads, to be dropped without the lock.
#[derive(Debug)]
pub(crate) struct Removed<E, U> {
    pub(crate) epochs: Vec<E>,
    pub(crate) units: Vec<U>,
}

impl<E, U> Default for Removed<E, U> {
    fn default() -> Removed<E, U> {
        Removed {
            epochs: Vec::new(),
            units: Vec::new(),
        }
    }
}

impl<E, U> Schedule<E, U> {
    /// Appends an epoch. Returns the id of its segment. `is_reached`: the consumer is there already.
    pub(crate) fn append(&mut self, payload: E, is_reached: bool) -> u64 {
        let id = self.appended;
        self.appended += 1;
        self.segments.push_back(Segment {
            id,
            units: None,
            is_planning: false,
            may_plan_early: !is_reached,
            is_reached,
            payload,
        });
        id
    }

    fn index_of(&self, id: u64) -> Option<usize> {
        self.segments.iter().position(|segment| segment.id == id)
    }

    /// The payload of a segment; `None` if the segment is gone.
    pub(crate) fn epoch(&mut self, id: u64) -> Option<&mut E> {
        let index = self.index_of(id)?;
        Some(&mut self.segments[index].payload)
    }

    /// The payload of the segment before this one.
    pub(crate) fn epoch_before(&self, id: u64) -> Option<&E> {
        let index = self.index_of(id)?.checked_sub(1)?;
        Some(&self.segments[index].payload)
    }

    /// The id of the segment after this one.
    pub(crate) fn id_after(&self, id: u64) -> Option<u64> {
        let after = self.segments.get(self.index_of(id)? + 1)?;
        Some(after.id)
    }

    pub(crate) fn is_planned(&self, id: u64) -> bool {
        let index = self.index_of(id);
        index.is_some_and(|index| self.segments[index].units.is_some())
    }

    /// The segment that a unit lies in.
    pub(super) fn segment_of(&self, unit: Unit) -> Option<(usize, &EpochUnits)> {
        let mut segments = self.segments.iter().enumerate();
        segments.find_map(|(index, segment)| {
            let units = segment.units.as_ref()?;
            let range = units.first..units.end;
            range.contains(&unit).then_some((index, units))
        })
    }

    /// The end of the epoch that the consumer is at.
    pub(super) fn consumers_end(&self) -> Unit {
        let first = self.segments.front().filter(|segment| segment.is_reached);
        let units = first.and_then(|segment| segment.units.as_ref());
        units.map_or(self.first, |units| units.end)
    }

    /// The segment to plan next, if workers will soon have nothing else to do.
    pub(super) fn segment_to_plan(&mut self) -> Option<&mut Segment<E>> {
        let before = self.segments.front()?.units.as_ref()?;
        let next = self.segments.get(1)?;
        let is_due = before.end != OPEN_END && next.may_plan_early;
        if next.units.is_some() || next.is_planning || !is_due {
            return None;
        }
        // Whether all units can be opened once the consumer has taken what it can take next.
        let unopened = before.end.0 - self.end().0.min(before.end.0);
        let room = self.room(&before.plan).saturating_add(self.together());
        (unopened <= room as u64).then(|| &mut self.segments[1])
    }

    /// Sets the plan of a segment. `None`: the segment is gone, or planned already; or its plan does not join that of the segment before
    /// it, which is not used up, so the consumer must reach it first.
    pub(crate) fn enter_plan(&mut self, id: u64, plan: EpochPlan) -> Option<EpochUnits> {
        let index = self.index_of(id)?;
        self.segments[index].is_planning = false;
        if self.segments[index].units.is_some() {
            return None;
        }
        let first = match index.checked_sub(1) {
            None => self.first,
            Some(before) => {
                let before = self.segments[before].units.as_ref();
                if before.is_some_and(|before| before.end == OPEN_END) {
                    return None; // for now
                }
                let end = before.filter(|before| plan.joins(&before.plan));
                let Some(end) = end.map(|before| before.end) else {
                    self.segments[index].may_plan_early = false;
                    return None;
                };
                end
            }
        };
        if plan.is_cut() {
            self.streamed_bytes = plan.streamed_bytes;
        }
        self.pulls_first |= plan.pulls.is_some_and(|pulls| pulls.before_loading);
        self.any_order |= plan.any_order;
        self.is_bounded |= plan.bound.is_some();
        self.shares_slabs |= plan.solo.is_some_and(|solo| solo.is_pinned);
        let units = EpochUnits {
            first,
            end: match plan.pulls {
                Some(_) => OPEN_END,
                None => Unit(first.0.saturating_add(plan.units())),
            },
            plan,
        };
        Some(self.segments[index].units.insert(units).clone())
    }

    /// The stream of a segment ended, or is given up: all of its units are open, or were. Returns how many it has; `None`: that was known
    /// before, or the segment is gone.
    pub(crate) fn close_end(&mut self, id: u64) -> Option<u64> {
        let end = self.end();
        let index = self.index_of(id)?;
        let units = self.segments[index].units.as_mut();
        let units = units.filter(|units| units.end == OPEN_END)?;
        units.end = end;
        Some(end.0 - units.first.0)
    }

    /// How many units a segment has, if that is known.
    pub(crate) fn units_of(&self, id: u64) -> Option<u64> {
        let units = self.segments[self.index_of(id)?].units.as_ref()?;
        (units.end != OPEN_END).then(|| units.end.0 - units.first.0)
    }

    /// Nothing was left to pull for the last open unit, whose stream is at its end. Returns how many units the segment has: the unit is
    /// none of them. `None`: its end was known.
    pub(crate) fn close_end_before(
        &mut self,
        unit: Unit,
        id: u64,
        removed: &mut Removed<E, U>,
    ) -> Option<u64> {
        let index = self.index_of(id)?;
        let units = self.segments[index].units.as_ref();
        units.filter(|units| units.end == OPEN_END)?;
        debug_assert_eq!(unit.0 + 1, self.end().0);
        let count = self.open.len() - 1;
        self.remove_units(count.., removed);
        self.is_blocked &= count > 0;
        self.close_end(id)
    }

    /// The segment cannot be planned before the consumer reaches it.
    pub(crate) fn plan_when_reached(&mut self, id: u64) {
        if let Some(index) = self.index_of(id) {
            let segment = &mut self.segments[index];
            (segment.is_planning, segment.may_plan_early) = (false, false);
        }
    }

    /// The segment that the consumer is at.
    pub(crate) fn current(&self) -> Option<u64> {
        Some(self.segments.front()?.id)
    }

    /// Whether the consumer is at this segment.
    pub(crate) fn is_at(&self, id: u64) -> bool {
        let front = self.segments.front();
        front.is_some_and(|front| front.id == id && front.is_reached)
    }

    /// How many units of the consumer's segment are not behind it; `None` before it is planned. 0: all were delivered.
    pub(crate) fn remaining(&self) -> Option<u64> {
        let units = self.segments.front()?.units.as_ref()?;
        Some(units.end.0 - self.first.0)
    }

    /// The consumer comes to a segment. `false`: a segment before it still has units to come.
    pub(crate) fn come_to(&mut self, id: u64, removed: &mut Removed<E, U>) -> bool {
        while let Some(front) = self.segments.front_mut() {
            if front.id == id {
                front.is_reached = true;
                return true;
            }
            if self.remaining() != Some(0) {
                return false;
            }
            self.remove_first(removed);
        }
        false
    }

    /// The consumer leaves the segment that it is at. Its open units are removed; those of later segments stay.
    pub(crate) fn leave(&mut self, id: u64, removed: &mut Removed<E, U>) {
        let Some(front) = self.segments.front().filter(|front| front.id == id) else {
            return;
        };
        let end = front
            .units
            .as_ref()
            .map_or(self.first, |units| match units.end {
                OPEN_END => self.end(),
                end => end,
            });
        let count = (end.0 - self.first.0).min(self.open.len() as u64) as usize;
        self.remove_units(..count, removed);
        self.first = end;
        self.remove_first(removed);
    }

    /// Removes the segments that the consumer has not reached: nobody will.
    pub(crate) fn truncate(&mut self, removed: &mut Removed<E, U>) {
        let kept = self
            .segments
            .iter()
            .take_while(|segment| segment.is_reached);
        let kept = kept.count();
        let units = |segment: &Segment<E>| segment.units.as_ref().map(|units| units.first);
        if let Some(first) = self.segments.get(kept).and_then(units) {
            let count = first.0.saturating_sub(self.first.0);
            let count = count.min(self.open.len() as u64) as usize;
            self.remove_units(count.., removed);
        }
        let segments = self.segments.drain(kept..);
        removed
            .epochs
            .extend(segments.map(|segment| segment.payload));
    }

    /// Removes everything.
    pub(crate) fn clear(&mut self, removed: &mut Removed<E, U>) {
        self.remove_units(.., removed);
        let segments = self.segments.drain(..);
        removed
            .epochs
            .extend(segments.map(|segment| segment.payload));
    }

    fn remove_first(&mut self, removed: &mut Removed<E, U>) {
        let segment = self.segments.pop_front();
        removed
            .epochs
            .extend(segment.map(|segment| segment.payload));
        self.taken = 0;
        self.is_blocked = false;
    }

    fn remove_units(&mut self, range: impl RangeBounds<usize>, removed: &mut Removed<E, U>) {
        let units = self.open.drain(range);
        removed
            .units
            .extend(units.filter_map(|entry| entry.payload));
        let away = self.open.iter().filter(|entry| entry.is_away);
        self.open_away = away.count();
    }

    /// Whether no segment is left.
    pub(crate) fn is_over(&self) -> bool {
        self.segments.is_empty()
    }
}
