//! Segments: the epochs of a line.

use super::entry::Entry;
use super::{Schedule, Unit};
use crate::pipeline::plan::Plan;

/// One epoch of a line.
#[derive(Debug)]
pub(crate) struct Segment<P> {
    pub(super) id: u64,
    pub(super) planned: Option<Planned>,
    /// Somebody plans it.
    pub(super) is_planning: bool,
    /// It may be planned before the consumer comes to it.
    pub(super) may_be_early: bool,
    /// The consumer has come to it.
    pub(super) is_given: bool,
    pub(super) carries: P,
}

/// How and where a segment's units are made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Planned {
    pub(crate) plan: Plan,
    /// Its first unit, and the one behind its last.
    pub(crate) first: Unit,
    pub(crate) end: Unit,
}

impl Planned {
    /// How many rows a unit of it has.
    pub(crate) fn rows(&self, unit: Unit) -> usize {
        self.plan.cut.rows(unit.0 - self.first.0)
    }
}

impl<P, T> Schedule<P, T> {
    /// Appends an epoch. Returns what names it within the line. `is_given`: the consumer is there already.
    pub(crate) fn append(&mut self, carries: P, is_given: bool) -> u64 {
        let id = self.appended;
        self.appended += 1;
        self.segments.push_back(Segment {
            id,
            planned: None,
            is_planning: false,
            may_be_early: !is_given,
            is_given,
            carries,
        });
        id
    }

    /// What the segment before this one carries; `None`: there is none any more.
    pub(crate) fn before(&self, id: u64) -> Option<&P> {
        let index = self.index_of(id)?.checked_sub(1)?;
        Some(&self.segments[index].carries)
    }

    /// The segment behind this one.
    pub(crate) fn behind(&self, id: u64) -> Option<u64> {
        let behind = self.segments.get(self.index_of(id)? + 1)?;
        Some(behind.id)
    }

    /// The segment cannot be planned before the consumer comes to it.
    pub(crate) fn plan_late(&mut self, id: u64) {
        if let Some(index) = self.index_of(id) {
            let segment = &mut self.segments[index];
            (segment.is_planning, segment.may_be_early) = (false, false);
        }
    }

    fn index_of(&self, id: u64) -> Option<usize> {
        self.segments.iter().position(|segment| segment.id == id)
    }

    /// What a segment carries.
    pub(crate) fn segment(&mut self, id: u64) -> Option<&mut P> {
        let index = self.index_of(id)?;
        Some(&mut self.segments[index].carries)
    }

    /// How a segment's units are made, if that is decided.
    pub(crate) fn planned_of(&self, id: u64) -> Option<Planned> {
        self.segments[self.index_of(id)?].planned
    }

    /// The segment that a unit lies in.
    pub(super) fn segment_of(&self, unit: Unit) -> Option<(usize, &Planned)> {
        let mut segments = self.segments.iter().enumerate();
        segments.find_map(|(index, segment)| {
            let planned = segment.planned.as_ref()?;
            (planned.first..planned.end)
                .contains(&unit)
                .then_some((index, planned))
        })
    }

    /// Where the epoch ends that the consumer is at.
    pub(super) fn consumers_end(&self) -> Unit {
        let first = self.segments.front().filter(|segment| segment.is_given);
        let planned = first.and_then(|segment| segment.planned.as_ref());
        planned.map_or(self.first, |planned| planned.end)
    }

    /// A segment that it is time to plan: workers will soon have nothing else to do.
    pub(super) fn segment_to_plan(&mut self) -> Option<&mut Segment<P>> {
        let before = self.segments.front()?.planned?;
        let next = self.segments.get(1)?;
        if next.planned.is_some() || next.is_planning || !next.may_be_early {
            return None;
        }
        // All units may be opened once the consumer took what it can take next.
        let unopened = before.end.0 - self.end().0.min(before.end.0);
        let room = self.room(&before.plan).saturating_add(self.at_once());
        (unopened <= room as u64).then(|| &mut self.segments[1])
    }

    /// Enters the plan of a segment. `None`: it is gone, or it is planned; or the segment before it, which is not used up, is made
    /// in another way, so that the boundary must be waited for.
    pub(crate) fn enter_plan(&mut self, id: u64, plan: Plan) -> Option<Planned> {
        let index = self.index_of(id)?;
        self.segments[index].is_planning = false;
        if self.segments[index].planned.is_some() {
            return None;
        }
        let first = match index.checked_sub(1) {
            None => self.first,
            Some(before) => {
                let joined = self.segments[before].planned;
                let Some(before) = joined.filter(|before| plan.joins(&before.plan)) else {
                    self.segments[index].may_be_early = false;
                    return None;
                };
                before.end
            }
        };
        if plan.is_cut() {
            self.streamed_bytes = plan.streamed_bytes;
        }
        let planned = Planned {
            plan,
            first,
            end: Unit(first.0.saturating_add(plan.cut.units())),
        };
        self.segments[index].planned = Some(planned);
        Some(planned)
    }

    /// Whether the consumer is at this segment.
    pub(crate) fn is_at(&self, id: u64) -> bool {
        self.segments
            .front()
            .is_some_and(|segment| segment.id == id && segment.is_given)
    }

    /// How many units of the consumer's segment are to come; `None` before it is planned.
    pub(crate) fn remaining(&self) -> Option<u64> {
        let planned = self.segments.front()?.planned.as_ref()?;
        Some(planned.end.0 - self.first.0)
    }

    /// The consumer comes to a segment. `false`: it is not the next, because one before it has units to come.
    pub(crate) fn come_to(&mut self, id: u64, gone: &mut Vec<P>) -> bool {
        while let Some(front) = self.segments.front_mut() {
            if front.id == id {
                front.is_given = true;
                return true;
            }
            if self.remaining() != Some(0) {
                return false;
            }
            gone.extend(self.pop_segment());
        }
        false
    }

    fn pop_segment(&mut self) -> Option<P> {
        let segment = self.segments.pop_front()?;
        self.taken = 0;
        self.is_blocked = false;
        Some(segment.carries)
    }

    /// The consumer leaves the segment that it is at: its open units go, and those behind it stay.
    pub(crate) fn leave(&mut self, id: u64, gone: &mut Vec<P>, units: &mut Vec<T>) {
        if self.segments.front().is_none_or(|front| front.id != id) {
            return;
        }
        let end = self.segments[0]
            .planned
            .map_or(self.first, |planned| planned.end);
        let count = (end.0 - self.first.0).min(self.open.len() as u64) as usize;
        let drained = self.open.drain(..count);
        units.extend(drained.map(|entry| entry.carries));
        self.first = end;
        self.count_sent();
        gone.extend(self.pop_segment());
    }

    /// Nobody will come to the segments that the consumer has not come to.
    pub(crate) fn truncate(&mut self, gone: &mut Vec<P>, units: &mut Vec<T>) {
        let kept = self.segments.iter().take_while(|segment| segment.is_given);
        let kept = kept.count();
        let first_gone = self.segments.get(kept).and_then(|segment| segment.planned);
        if let Some(planned) = first_gone {
            let count = planned.first.0.saturating_sub(self.first.0);
            let count = count.min(self.open.len() as u64) as usize;
            units.extend(self.open.drain(count..).map(|entry| entry.carries));
            self.count_sent();
        }
        gone.extend(self.segments.drain(kept..).map(|segment| segment.carries));
    }

    fn count_sent(&mut self) {
        let sent = |entry: &&Entry<T>| entry.sent;
        self.sent = self.open.iter().filter(sent).count();
    }

    /// Whether no segment is left.
    pub(crate) fn is_over(&self) -> bool {
        self.segments.is_empty()
    }

    /// Takes everything out.
    pub(crate) fn empty(&mut self, gone: &mut Vec<P>, units: &mut Vec<T>) {
        units.extend(self.open.drain(..).map(|entry| entry.carries));
        gone.extend(self.segments.drain(..).map(|segment| segment.carries));
        self.sent = 0;
    }
}
