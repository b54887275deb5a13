//! Runs of page-locked units that take microseconds: one worker makes them from end to end, in one slab.
//!
//! They are opened only while the ring has a slab for them; otherwise units are opened as ever, and as few as ever.

use std::ops::Range;

use super::entry::SlabState;
use super::{Claimant, EpochUnits, Schedule, Unit};
use crate::device::Pieces;
use crate::pipeline::plan::epoch_plan::{EpochPlan, Solo};
use crate::sync::planted;
use crate::tuning::{MOST_BATCHES_AHEAD, MOST_RUNS_AHEAD, RUN_NS, RUN_SLAB_BYTES, WHOLE_NS};

/// The slab that a run of units wants.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct RunSlab {
    pub(crate) bytes: usize,
    /// How many bytes it has if it is made for it: as many as the longest run wants.
    pub(crate) most_bytes: usize,
    /// How many slabs must be left for earlier units, of those that the account has not counted yet.
    pub(crate) uncounted: usize,
}

/// After a run for which there was no slab, as many units are made as ever; after each further one, twice as many.
const UNITS_WITHOUT: u64 = 16;

impl<E, U> Schedule<E, U> {
    /// Whether runs of page-locked units may share slabs.
    pub(crate) fn shares_slabs(&self) -> bool {
        self.shares_slabs
    }

    /// How many of such units may be ahead, if they take no time.
    pub(super) fn most_in_runs(&self, plan: &EpochPlan, solo: Solo) -> usize {
        // In any order, each has a slab of its own.
        let are_alone = plan.any_order || self.unit_bytes == 0 || self.end() < self.runs_from;
        match self.units_per_slab(plan, solo) {
            _ if are_alone => plan.window,
            units => units.saturating_mul(solo.runs()).min(MOST_BATCHES_AHEAD),
        }
    }

    /// How many units share a slab.
    fn units_per_slab(&self, plan: &EpochPlan, solo: Solo) -> usize {
        let most = match solo.grows {
            true => plan.window.max(MOST_BATCHES_AHEAD),
            false => plan.window,
        };
        let stride = Pieces::stride(self.unit_bytes).unwrap_or(usize::MAX);
        // Where many batches may be ahead, slabs are many, and all of them may be made as large: they are smaller then.
        let slabs = plan.window.max(MOST_RUNS_AHEAD);
        let fit = RUN_SLAB_BYTES * MOST_RUNS_AHEAD / slabs / stride.max(1);
        match plan.any_order || solo.workers == 0 {
            true => 1,
            false => (most / solo.runs()).min(fit).max(1),
        }
    }

    /// How many page-locked units the claimant makes from end to end; 0: it claims rows instead. `None`: it opens none now, for those that
    /// are open are more than would be without runs.
    pub(super) fn pinned_run(
        &self,
        units: &EpochUnits,
        solo: Solo,
        claimant: Claimant,
    ) -> Option<u64> {
        let plan = &units.plan;
        let left = usize::try_from(units.end.0 - self.end().0).unwrap_or(usize::MAX);
        let room = self.room(plan);
        let is_ordinary = self.ahead() < plan.window;
        let run = self.run_in_slab(plan, solo, claimant);
        match run.map(|run| run.min(left)) {
            // Short runs would leave slabs half empty, and soon there would be none.
            Some(run) if run <= room || is_ordinary => Some(run.min(room) as u64),
            _ if is_ordinary => Some(0),
            _ => None,
        }
    }

    /// Whether page-locked units that take so long are made by one worker each.
    ///
    /// Those that take less than waking another worker are in any case. Longer ones are if as many may be ahead as keep all workers busy:
    /// workers that share a batch of a thousand short rows wait for its slab, and for each other.
    pub(super) fn is_whole(&self, plan: &EpochPlan, solo: Solo, ns: u64) -> bool {
        let is_small = self.unit_bytes <= RUN_SLAB_BYTES;
        ns <= RUN_NS / 2
            || ns <= WHOLE_NS
                && solo.grows
                && is_small
                && self.most_in_runs(plan, solo) >= solo.runs()
    }

    /// How many units a run has, if there may be one now.
    fn run_in_slab(&self, plan: &EpochPlan, solo: Solo, claimant: Claimant) -> Option<usize> {
        let ns = self.unit_ns(plan)?;
        if !self.is_whole(plan, solo, ns) {
            return None;
        }
        if self.unit_bytes == 0 || self.end() < self.runs_from {
            return None;
        }
        // Who waits for a slab gets the next one.
        let waits = self
            .open
            .iter()
            .any(|entry| matches!(entry.slab, SlabState::Wanted { .. }) && !entry.has_failed);
        let (_, uncounted) = self.reserve_before(self.end());
        if waits || claimant.free_slabs <= uncounted {
            return None;
        }
        let share = (self.window(plan) / solo.runs()).max(1);
        let fast = usize::try_from(RUN_NS / ns.max(1)).unwrap_or(usize::MAX);
        Some(self.units_per_slab(plan, solo).min(share).min(fast).max(1))
    }

    /// How many slabs must be left for the units before this one; and how many of these their account has not counted.
    fn reserve_before(&self, unit: Unit) -> (usize, usize) {
        let before = self.open.iter().take((unit.0 - self.first.0) as usize);
        before.fold((0, 0), |(all, uncounted), entry| {
            let reserve = entry.reserve();
            match entry.slab {
                SlabState::SetAside { .. } => (all + reserve, uncounted),
                _ => (all + reserve, uncounted + reserve),
            }
        })
    }

    /// The slab for a run of these units. The caller sets it aside in the account, and its worker takes it.
    pub(crate) fn run_slab(&mut self, units: &Range<u64>) -> RunSlab {
        let first = Unit(units.start);
        let (_, uncounted) = self.reserve_before(first);
        let most = self.segment_of(first).and_then(|(_, units)| {
            let solo = units.plan.solo?;
            Some(self.units_per_slab(&units.plan, solo))
        });
        let stride = Pieces::stride(self.unit_bytes).unwrap_or(self.unit_bytes);
        let bytes = |units: usize| match units {
            1 => self.unit_bytes,
            units => stride.saturating_mul(units),
        };
        let count = (units.end - units.start) as usize;
        let slab = RunSlab {
            bytes: bytes(count),
            most_bytes: bytes(most.unwrap_or(count)),
            uncounted,
        };
        let entry = self.entry(first);
        (entry.slab, entry.needs_slabs) = (SlabState::SetAside { units: count }, 1);
        slab
    }

    /// How many slabs the budget must leave for the units before this run.
    pub(crate) fn reserve_before_run(&self, units: &Range<u64>) -> usize {
        self.reserve_before(Unit(units.start)).0
    }

    /// There was none for these units: each may need one of its own. More units are made before there is another run.
    pub(crate) fn no_run_slab(&mut self, units: Range<u64>) {
        for unit in units.map(Unit) {
            if self.holds(unit) && !planted("a run without a slab is left none") {
                let entry = self.entry(unit);
                (entry.slab, entry.needs_slabs) = (SlabState::Unknown, 1);
            }
        }
        let without = UNITS_WITHOUT << self.runs_without.min(10);
        self.runs_from = Unit(self.end().0.saturating_add(without));
        self.runs_without += 1;
    }

    /// A unit of a run turned out to have so many bytes.
    pub(crate) fn has_bytes(&mut self, bytes: usize) {
        self.unit_bytes = self.unit_bytes.max(bytes);
    }
}
