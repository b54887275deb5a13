//! The schedule of a line: which unit is opened, claimed, granted a slab, finished and delivered, and when.
//!
//! It is a plain state machine, without threads, clocks or devices. Everybody who works on a line asks it, under the board's lock,
//! what to do next, and reports what was done. `README.md` has the states of a unit as a table.
//!
//! A *line* is what one consumer iterates: epochs that follow each other, as [segments](Segment) of one sequence of units. So the
//! boundary of two epochs changes neither the window, nor the order in which slabs are granted and units delivered.

mod delivery;
mod entry;
mod runs;
mod segment;
mod slabs;

use std::collections::VecDeque;
use std::ops::Range;

pub(crate) use self::entry::{Claimed, Loaded, Next};
use self::entry::{SlabState, Stage, UnitEntry};
pub(crate) use self::runs::RunSlab;
use self::segment::Segment;
pub(crate) use self::segment::{EpochUnits, Removed};
pub(crate) use self::slabs::Want;
use super::plan::delivered::MOST_BEHIND;
use super::plan::epoch_plan::{EpochPlan, Solo};
use crate::sync::planted;
use crate::tuning::{COPYING_BYTES_PER_10_NS, MOST_BATCHES_AHEAD, RUN_NS, RUN_NS_PER_DEVICE};

/// The number of a unit within its line. Numbers run through all epochs and are never reused, so a late report finds nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Unit(pub(crate) u64);

/// A line's units, from the first that was not delivered to the last that was opened. Segments and units have
/// payloads, of which the schedule knows nothing.
#[derive(Debug)]
pub(crate) struct Schedule<E, U> {
    /// The first is the one that the consumer is at, or will come to next.
    segments: VecDeque<Segment<E>>,
    appended: u64,
    open: VecDeque<UnitEntry<U>>,
    /// The first open unit, which the consumer gets next.
    first: Unit,
    /// The consumer is blocked on the first open unit.
    is_blocked: bool,
    /// How many units the consumer took in advance, and has not come to yet.
    taken: usize,
    /// How many of the open units were sent, or given out. They do not count in the window.
    open_away: usize,
    /// How long a sample takes, in nanoseconds, smoothed; 0 before the first.
    sample_ns: u64,
    /// The fewest samples that a worker claims at once, if there are as many.
    least_run: usize,
    /// The bytes of a sample, if units outgrow the last-level cache, or are cut so that they do not; 0 otherwise.
    streamed_bytes: u64,
    /// Loading takes much longer than copying, so slabs need not stay in the cache. `None`: not known yet.
    is_wide: Option<bool>,
    /// Units of some plan are pulled before rows of earlier ones are loaded.
    pulls_first: bool,
    /// Units are delivered in the order in which they are ready.
    any_order: bool,
    /// The bytes of the largest unit whose slab was wanted: in whole pages, and what was wanted.
    largest_unit: usize,
    unit_bytes: usize,
    /// Units of some plan are page-locked, and may share slabs.
    shares_slabs: bool,
    /// How many runs there was no slab for, and the first unit that may be in another one.
    runs_without: u32,
    runs_from: Unit,
    /// Bytes are limited.
    is_bounded: bool,
}

/// Something to do for a worker.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Claim {
    /// Plan the epoch of this segment.
    Plan { segment: u64 },
    /// Load rows of the unit, or fill its parked samples into theirs.
    Load { unit: Unit, claimed: Claimed },
    /// Make the unit's batch: its rows are filled.
    Finish { unit: Unit },
    /// Make these units from end to end, and report each as it is done.
    Solo { units: Range<u64> },
    /// Grant the unit a slab of so many bytes: there are few enough in flight.
    Grant { unit: Unit, bytes: usize },
    /// Pull the items of the unit, which was opened for them, from its epoch's stream.
    Pull { unit: Unit },
}

/// Who asks for something to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Claimant {
    /// It is a worker beyond [`COPYING_WORKERS`](crate::tuning::COPYING_WORKERS).
    pub(crate) is_spare: bool,
    /// For how many devices workers load.
    pub(crate) devices: usize,
    /// It also works beyond the epoch that the consumer is at.
    pub(crate) beyond: bool,
    /// How many more bytes may be in flight, if they are limited.
    pub(crate) free_bytes: usize,
    /// How many more slabs the line may have, if some that are page-locked [may be shared](Schedule::shares_slabs).
    pub(crate) free_slabs: usize,
}

impl Claimant {
    /// The consumer, for the epoch that it is at: there are no workers, or none that could work.
    pub(crate) const CONSUMER: Claimant = Claimant {
        is_spare: false,
        devices: 1,
        beyond: false,
        free_bytes: usize::MAX,
        free_slabs: 0,
    };
}

impl<E, U> Schedule<E, U> {
    /// `is_wide`: what an earlier line found out.
    pub(crate) fn new(is_wide: Option<bool>, least_run: usize) -> Schedule<E, U> {
        Schedule {
            segments: VecDeque::new(),
            appended: 0,
            open: VecDeque::new(),
            first: Unit(0),
            is_blocked: false,
            taken: 0,
            open_away: 0,
            sample_ns: 0,
            least_run,
            streamed_bytes: 0,
            is_wide,
            pulls_first: false,
            any_order: false,
            largest_unit: 0,
            unit_bytes: 0,
            shares_slabs: false,
            runs_without: 0,
            runs_from: Unit(0),
            is_bounded: false,
        }
    }

    /// What a worker should do next, oldest unit first. `open` makes the payload of a new unit; its flag says whether one worker
    /// has the unit to itself: it makes it alone, or pulls its items first.
    pub(crate) fn claim(
        &mut self,
        claimant: Claimant,
        mut open: impl FnMut(&E, Unit, bool) -> U,
    ) -> Option<Claim> {
        if self.is_bounded
            && let Some((unit, bytes)) = self.next_held(claimant)
        {
            self.entry(unit).slab = SlabState::Granting { bytes };
            return Some(Claim::Grant { unit, bytes });
        }
        let run = self.run(claimant);
        let may_load = self.may_load(claimant);
        let pulls = self.pulls_first && self.can_pull(claimant);
        let count = match may_load {
            true => self.open.len().min(self.reach(claimant)),
            false => 0,
        };
        for (index, entry) in self.open.iter_mut().take(count).enumerate() {
            let unit = Unit(self.first.0 + index as u64);
            if entry.can_finish() {
                entry.stage = Stage::Finishing;
                return Some(Claim::Finish { unit });
            }
            if entry.has_parked() {
                let claimed = entry.claim_parked(run);
                return Some(Claim::Load { unit, claimed });
            }
            if !pulls && entry.has_rows() {
                let claimed = entry.claim_rows(run);
                return Some(Claim::Load { unit, claimed });
            }
        }
        if let Some(segment) = self.segment_to_plan().filter(|_| claimant.beyond) {
            segment.is_planning = true;
            return Some(Claim::Plan {
                segment: segment.id,
            });
        }
        let (index, units, solo) = self.opens(claimant).filter(|_| may_load)?;
        let unit = self.end();
        let is_pulled = units.plan.pulls.is_some();
        let segment = &self.segments[index];
        let stage = match solo {
            _ if is_pulled => Stage::Pulling,
            0 => Stage::Loading,
            _ => Stage::Solo,
        };
        let opened = unit.0..unit.0 + solo.max(1);
        for unit in opened.clone().map(Unit) {
            let Some(units) = &segment.units else {
                unreachable!("units are opened of epochs that are planned");
            };
            let is_own = solo > 0 || is_pulled;
            let payload = open(&segment.payload, unit, is_own);
            let rows = units.plan.cut.rows(units.number(unit));
            let slabs = match solo {
                0 => units.plan.slabs_per_unit,
                _ => 0, // they share one, for which `run_slab` asks
            };
            let bytes = self.expected_bytes(units, unit);
            let mut entry = UnitEntry::new(rows, slabs, stage, payload);
            entry.bytes = bytes.unwrap_or(0);
            self.open.push_back(entry);
        }
        if is_pulled {
            return Some(Claim::Pull { unit });
        }
        if solo > 0 {
            return Some(Claim::Solo { units: opened });
        }
        let claimed = self.entry(unit).claim_rows(run);
        Some(Claim::Load { unit, claimed })
    }

    /// Whether [`claim`](Schedule::claim) would return something.
    pub(crate) fn has_claim(&mut self, claimant: Claimant) -> bool {
        let mut entries = self.open.iter().take(self.reach(claimant));
        let has_work =
            |entry: &UnitEntry<U>| entry.can_finish() || entry.has_parked() || entry.has_rows();
        self.may_load(claimant) && (entries.any(has_work) || self.opens(claimant).is_some())
            || self.is_bounded && self.next_held(claimant).is_some()
            || claimant.beyond && self.segment_to_plan().is_some()
    }

    /// How many of the open units the claimant may work on.
    fn reach(&self, claimant: Claimant) -> usize {
        match claimant.beyond {
            true => usize::MAX,
            false => (self.consumers_end().0 - self.first.0) as usize,
        }
    }

    /// The segment of the units that the claimant opens, with its plan; and how many it makes from end to end, or 0: it claims rows of one.
    fn opens(&self, claimant: Claimant) -> Option<(usize, &EpochUnits, u64)> {
        let (index, units) = self.next_to_open(claimant)?;
        let run = match units.plan.solo {
            None => 0,
            Some(solo) if solo.is_pinned => self.pinned_run(units, solo, claimant)?,
            Some(solo) => self.solo_run(units, solo),
        };
        Some((index, units, run))
    }

    /// The segment whose unit may be opened next, with its plan.
    fn next_to_open(&self, claimant: Claimant) -> Option<(usize, &EpochUnits)> {
        let next = self.end();
        if !claimant.beyond && next >= self.consumers_end() {
            return None;
        }
        let (index, units) = self.segment_of(next)?;
        let may_open = match units.plan.pulls {
            Some(_) => !self.is_pulling(),
            None => self.is_near(next, units),
        };
        let may_open = may_open && self.has_room_for(units, next);
        (self.room(&units.plan) > 0 && may_open).then_some((index, units))
    }

    /// Whether the claimant could pull the items of another unit, before it loads those of earlier ones.
    fn can_pull(&self, claimant: Claimant) -> bool {
        let next = self.next_to_open(claimant);
        let pulls = next.and_then(|(_, units)| units.plan.pulls);
        pulls.is_some_and(|pulls| pulls.before_loading)
    }

    /// Whether somebody pulls the items of a unit: one at a time, in order.
    fn is_pulling(&self) -> bool {
        let last = self.open.back();
        last.is_some_and(|entry| entry.stage == Stage::Pulling)
    }

    /// Whether a unit is no further behind the first than what was given out can be told from what was not. Only units of the consumer's
    /// epoch are given out, so those of later ones are always near.
    fn is_near(&self, unit: Unit, units: &EpochUnits) -> bool {
        !self.any_order
            || self.first < units.first
            || units.number(unit) - units.number(self.first) <= MOST_BEHIND
    }

    /// How many more units fit in the window.
    fn room(&self, plan: &EpochPlan) -> usize {
        self.window(plan).saturating_sub(self.ahead())
    }

    /// How many units are ahead of the consumer.
    fn ahead(&self) -> usize {
        self.open.len() - self.open_away + self.taken
    }

    /// The unit that is opened next.
    fn end(&self) -> Unit {
        Unit(self.first.0 + self.open.len() as u64)
    }

    /// The open units, in order. (Of numbers up to the largest that there is.)
    fn numbered(&self) -> impl Iterator<Item = (Unit, &UnitEntry<U>)> {
        let units = self.open.iter().enumerate();
        units.map(|(index, entry)| (Unit(self.first.0 + index as u64), entry))
    }

    /// How many units may be ahead of the consumer.
    fn window(&self, plan: &EpochPlan) -> usize {
        match (plan.solo, plan.resident) {
            (Some(solo), _) if solo.grows => self.grown_window(plan, solo),
            (_, Some(resident)) if !self.is_wide() => plan.window.min(resident),
            _ => plan.window,
        }
    }

    #[inline(never)]
    fn grown_window(&self, plan: &EpochPlan, solo: Solo) -> usize {
        let Some(ns) = self.unit_ns(plan) else {
            return plan.window;
        };
        let most = match solo.is_pinned {
            true => self.most_in_runs(plan, solo),
            false => MOST_BATCHES_AHEAD,
        };
        let fast = usize::try_from(4 * RUN_NS / ns.max(1)).unwrap_or(usize::MAX);
        // Those that are made whole keep all workers busy: each makes one, and the next may begin.
        let fast = match solo.is_pinned && self.is_whole(plan, solo, ns) {
            true => fast.max(2 * solo.runs()),
            false => fast,
        };
        plan.window.max(fast.min(most))
    }

    /// How long a unit takes, once that is known.
    fn unit_ns(&self, plan: &EpochPlan) -> Option<u64> {
        let rows = plan.cut.usual_rows() as u64;
        (self.sample_ns > 0).then(|| self.sample_ns.saturating_mul(rows))
    }

    /// Whether the claimant may work on units: spare workers do not while loading is little more than copying.
    fn may_load(&self, claimant: Claimant) -> bool {
        !claimant.is_spare || !self.copies()
    }

    /// Whether loading is little more than copying, into slabs whose place in the cache matters.
    pub(crate) fn copies(&self) -> bool {
        let bytes = self.streamed_bytes.saturating_mul(10);
        bytes > COPYING_BYTES_PER_10_NS.saturating_mul(self.sample_ns)
    }

    /// Whether units take microseconds, so that one worker makes several of them: more workers would wait for the lock, and for each other.
    pub(crate) fn is_tiny(&self) -> bool {
        let mut planned = self.segments.iter();
        let units = planned.find_map(|segment| segment.units.as_ref());
        units.is_some_and(|units| {
            let ns = self.unit_ns(&units.plan);
            units.plan.solo.is_some() && ns.is_some_and(|ns| ns <= RUN_NS / 2)
        })
    }

    /// How many units a worker claims to make from end to end; 0: it claims rows instead.
    fn solo_run(&self, units: &EpochUnits, solo: Solo) -> u64 {
        let plan = &units.plan;
        match (solo, self.unit_ns(plan)) {
            // The caller's thread is the only one.
            (Solo { workers: 0, .. }, _) => 1,
            // Half a run at most, to leave something for the others.
            (solo, Some(ns)) if ns <= RUN_NS / 2 => {
                let share = (self.window(plan) / solo.runs()).max(1);
                let fast = usize::try_from(RUN_NS / ns.max(1)).unwrap_or(usize::MAX);
                // In any order, none waits in the hands of a worker for a slow one before it.
                let most = if self.any_order { 1 } else { usize::MAX };
                let left = units.end.0 - self.end().0;
                left.min(share.min(fast).min(self.room(plan)).min(most) as u64)
            }
            _ => 0,
        }
    }

    /// How many samples a worker claims at once.
    fn run(&self, claimant: Claimant) -> usize {
        let run_ns = match claimant.devices {
            1 => RUN_NS,
            devices => RUN_NS_PER_DEVICE.saturating_mul(devices as u64),
        };
        let run = match self.sample_ns {
            0 => 1,
            ns => usize::try_from(run_ns / ns).unwrap_or(usize::MAX),
        };
        // Whole calls of `get_many`.
        match self.least_run {
            1 => run.max(1),
            calls => (run / calls).max(1).saturating_mul(calls),
        }
    }

    /// Whether the unit is open, and was not given out.
    pub(crate) fn holds(&self, unit: Unit) -> bool {
        let index = unit.0.checked_sub(self.first.0);
        let entry = index.and_then(|index| self.open.get(index as usize));
        entry.is_some_and(|entry| entry.stage != Stage::Given)
    }

    fn entry(&mut self, unit: Unit) -> &mut UnitEntry<U> {
        &mut self.open[(unit.0 - self.first.0) as usize]
    }

    /// The payload of an open unit.
    pub(crate) fn payload(&mut self, unit: Unit) -> &mut U {
        match &mut self.entry(unit).payload {
            Some(payload) => payload,
            None => unreachable!("who looks for a unit asks first whether it is held"),
        }
    }

    /// A worker is done with what it claimed. `elapsed_ns`: how long rows took to load; `None` for parked samples, which were loaded
    /// before.
    pub(crate) fn loaded(&mut self, unit: Unit, rows: Loaded, elapsed_ns: Option<u64>) -> Next {
        if let Some(elapsed_ns) = elapsed_ns {
            self.learn(rows.claimed, elapsed_ns);
        }
        let entry = self.entry(unit);
        entry.loaded(rows);
        entry.has_failed |= rows.filled + rows.parked < rows.claimed;
        entry.next_step()
    }

    fn learn(&mut self, rows: usize, elapsed_ns: u64) {
        let each = elapsed_ns / rows.max(1) as u64;
        self.sample_ns = match self.sample_ns {
            0 => each.max(1),
            smoothed => (smoothed * 7 + each).div_ceil(8).max(1),
        };
    }

    /// A unit that one worker makes alone was made, or failed. `elapsed_ns`: how long it took, if that is known.
    pub(crate) fn made(&mut self, unit: Unit, elapsed_ns: Option<u64>) {
        self.took(unit, elapsed_ns);
        self.ready(unit);
    }

    /// One worker loaded all of a unit's rows, in that time, if it is known.
    pub(crate) fn took(&mut self, unit: Unit, elapsed_ns: Option<u64>) {
        if let Some(elapsed_ns) = elapsed_ns {
            let rows = self.entry(unit).rows;
            self.learn(rows, elapsed_ns);
        }
    }

    /// The items of a unit were pulled, and others may load its `rows`.
    pub(crate) fn pulled(&mut self, unit: Unit, rows: usize) {
        let entry = self.entry(unit);
        debug_assert_eq!(entry.stage, Stage::Pulling);
        entry.rows = rows;
        entry.stage = Stage::Loading;
    }

    /// The caller has laid out the unit.
    pub(crate) fn laid_out(&mut self, unit: Unit) -> Next {
        let entry = self.entry(unit);
        if entry.stage != Stage::LayingOut {
            // It failed meanwhile for lack of a slab: somebody else delivers the error, or already has.
            return Next::Wait;
        }
        entry.stage = Stage::Loading;
        entry.next_step()
    }

    /// The unit failed, and the caller makes it again, alone. The slab that it had is given up; it may have to move into another. If it was
    /// sent, it is ahead of the consumer again.
    pub(crate) fn remaking(&mut self, unit: Unit) {
        self.set_away(unit, false);
        let entry = self.entry(unit);
        entry.has_failed = planted("a unit that is made again stays failed");
        entry.stage = Stage::Finishing;
        entry.slab = SlabState::Unknown;
        entry.needs_slabs = entry.needs_slabs.max(1);
    }

    /// The unit failed.
    pub(crate) fn failed(&mut self, unit: Unit) -> Next {
        let entry = self.entry(unit);
        entry.has_failed = true;
        if entry.stage == Stage::LayingOut {
            entry.stage = Stage::Loading;
        }
        entry.next_step()
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::expect_used)]
mod tests;
