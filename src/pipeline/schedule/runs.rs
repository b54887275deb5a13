//! Runs of page-locked tasks that take microseconds: one worker makes them from end to end, in one slab.
//!
//! They are opened only while the ring has a slab for them; otherwise tasks are opened as without runs, and no more of them.

use std::ops::Range;

use super::entry::SlabState;
use super::{Claimant, EpochTasks, Schedule, TaskId};
use crate::device::Pieces;
use crate::pipeline::plan::epoch_plan::{EpochPlan, Solo};
use crate::sync::planted;
use crate::tuning::{MOST_BATCHES_AHEAD, MOST_RUNS_AHEAD, RUN_NS, RUN_SLAB_BYTES, WHOLE_NS};

/// The slab that a run of tasks wants.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct RunSlab {
    pub(crate) bytes: usize,
    /// How many bytes it has if it is made for it: as many as the longest run wants.
    pub(crate) most_bytes: usize,
    /// How many slabs must be left for earlier tasks, of those that the quota has not counted yet.
    pub(crate) uncounted: usize,
}

/// How many tasks are made without runs after a run for which there was no slab. After each further such run, twice as many.
const TASKS_WITHOUT: u64 = 16;

impl<E, U> Schedule<E, U> {
    /// Whether runs of page-locked tasks may share slabs.
    pub(crate) fn shares_slabs(&self) -> bool {
        self.shares_slabs
    }

    /// How many of such tasks may be ahead, if they take no time.
    pub(super) fn most_in_runs(&self, plan: &EpochPlan, solo: Solo) -> usize {
        // In any order, each has a slab of its own.
        let are_alone = plan.any_order || self.task_bytes == 0 || self.end() < self.runs_from;
        match self.tasks_per_slab(plan, solo) {
            _ if are_alone => plan.window,
            tasks => tasks.saturating_mul(solo.runs()).min(MOST_BATCHES_AHEAD),
        }
    }

    /// How many tasks share a slab.
    fn tasks_per_slab(&self, plan: &EpochPlan, solo: Solo) -> usize {
        let most = match solo.grows {
            true => plan.window.max(MOST_BATCHES_AHEAD),
            false => plan.window,
        };
        let stride = Pieces::stride(self.task_bytes).unwrap_or(usize::MAX);
        // Where many batches may be ahead, slabs are many, and all of them may be made as large: they are smaller then.
        let slabs = plan.window.max(MOST_RUNS_AHEAD);
        let fit = RUN_SLAB_BYTES * MOST_RUNS_AHEAD / slabs / stride.max(1);
        match plan.any_order || solo.workers == 0 {
            true => 1,
            false => (most / solo.runs()).min(fit).max(1),
        }
    }

    /// How many page-locked tasks the claimant makes from end to end; 0: it claims rows instead. `None`: it opens none now, because more
    /// tasks are open than there would be without runs.
    pub(super) fn pinned_run(
        &self,
        tasks: &EpochTasks,
        solo: Solo,
        claimant: Claimant,
    ) -> Option<u64> {
        let plan = &tasks.plan;
        let left = usize::try_from(tasks.end.0 - self.end().0).unwrap_or(usize::MAX);
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

    /// Whether page-locked tasks that take so long are made by one worker each.
    ///
    /// Tasks that take less time than waking another worker always are. Longer ones are if as many may be ahead as keep all workers busy:
    /// workers that share a batch of a thousand short rows wait for its slab, and for each other.
    pub(super) fn is_whole(&self, plan: &EpochPlan, solo: Solo, ns: u64) -> bool {
        let is_small = self.task_bytes <= RUN_SLAB_BYTES;
        ns <= RUN_NS / 2
            || ns <= WHOLE_NS
                && solo.grows
                && is_small
                && self.most_in_runs(plan, solo) >= solo.runs()
    }

    /// How many tasks a run has, if there may be one now.
    fn run_in_slab(&self, plan: &EpochPlan, solo: Solo, claimant: Claimant) -> Option<usize> {
        let ns = self.task_ns(plan)?;
        if !self.is_whole(plan, solo, ns) {
            return None;
        }
        if self.task_bytes == 0 || self.end() < self.runs_from {
            return None;
        }
        // A task that waits for a slab gets the next one.
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
        Some(self.tasks_per_slab(plan, solo).min(share).min(fast).max(1))
    }

    /// How many slabs must be left for the tasks before this one; and how many of these their quota has not counted.
    fn reserve_before(&self, task: TaskId) -> (usize, usize) {
        let before = self.open.iter().take((task.0 - self.first.0) as usize);
        before.fold((0, 0), |(all, uncounted), entry| {
            let reserve = entry.reserve();
            match entry.slab {
                SlabState::Reservation { .. } => (all + reserve, uncounted),
                _ => (all + reserve, uncounted + reserve),
            }
        })
    }

    /// The slab for a run of these tasks. The caller reserves it in the quota, and its worker takes it.
    pub(crate) fn run_slab(&mut self, tasks: &Range<u64>) -> RunSlab {
        let first = TaskId(tasks.start);
        let (_, uncounted) = self.reserve_before(first);
        let most = self.epoch_entry_of(first).and_then(|(_, tasks)| {
            let solo = tasks.plan.solo?;
            Some(self.tasks_per_slab(&tasks.plan, solo))
        });
        let stride = Pieces::stride(self.task_bytes).unwrap_or(self.task_bytes);
        let bytes = |tasks: usize| match tasks {
            1 => self.task_bytes,
            tasks => stride.saturating_mul(tasks),
        };
        let count = (tasks.end - tasks.start) as usize;
        let slab = RunSlab {
            bytes: bytes(count),
            most_bytes: bytes(most.unwrap_or(count)),
            uncounted,
        };
        let entry = self.entry(first);
        (entry.slab, entry.needs_slabs) = (SlabState::Reservation { tasks: count }, 1);
        slab
    }

    /// How many slabs the budget must leave for the tasks before this run.
    pub(crate) fn reserve_before_run(&self, tasks: &Range<u64>) -> usize {
        self.reserve_before(TaskId(tasks.start)).0
    }

    /// There was no slab for this run: each of its tasks may need one of its own. More tasks are made before there is another run.
    pub(crate) fn no_run_slab(&mut self, tasks: Range<u64>) {
        for task in tasks.map(TaskId) {
            if self.holds(task) && !planted("a run without a slab is left none") {
                let entry = self.entry(task);
                (entry.slab, entry.needs_slabs) = (SlabState::Unknown, 1);
            }
        }
        let without = TASKS_WITHOUT << self.runs_without.min(10);
        self.runs_from = TaskId(self.end().0.saturating_add(without));
        self.runs_without += 1;
    }

    /// A task of a run turned out to have so many bytes.
    pub(crate) fn has_bytes(&mut self, bytes: usize) {
        self.task_bytes = self.task_bytes.max(bytes);
    }
}
