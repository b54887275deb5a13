//! Runs of page-locked tasks that take microseconds: one worker makes them from end to end, in one slab.
//!
//! They are opened only while the ring has a slab for them; otherwise tasks are opened as without runs, and no more of them.

use std::ops::Range;

use super::entry::{SlabState, TaskEntry};
use super::window::tasks_per_slab;
use super::{Claimant, Schedule, TaskId};
use crate::device::Pieces;
use crate::sync::planted;

/// The slab that a run of tasks wants.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct RunSlab {
    pub(crate) bytes: usize,
    /// How many bytes it has if it is made for it: as many as the longest run wants.
    pub(crate) most_bytes: usize,
    /// How many slabs must be left for earlier tasks, of those that the quota has not counted yet.
    pub(crate) uncounted: usize,
}

impl<E, U> Schedule<E, U> {
    /// Whether runs of page-locked tasks may share slabs.
    pub(crate) fn shares_slabs(&self) -> bool {
        self.mode.shares_slabs
    }

    /// Whether a slab is left for a run.
    pub(super) fn has_slab_for_run(&self, claimant: Claimant) -> bool {
        // A task that waits for a slab gets the next one.
        let waits = |entry: &TaskEntry<U>| {
            matches!(entry.slab, SlabState::Wanted { .. }) && !entry.has_failed
        };
        let (_, uncounted) = self.reserve_before(self.tasks.end());
        claimant.free_slabs > uncounted && !self.tasks.open.iter().any(waits)
    }

    /// How many slabs must be left for the tasks before this one; and how many of these their quota has not counted.
    fn reserve_before(&self, task: TaskId) -> (usize, usize) {
        let before = self.tasks.before(task);
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
            Some(tasks_per_slab(&tasks.plan, solo, &self.pace))
        });
        let stride = Pieces::stride(self.pace.task_bytes).unwrap_or(self.pace.task_bytes);
        let bytes = |tasks: usize| match tasks {
            1 => self.pace.task_bytes,
            tasks => stride.saturating_mul(tasks),
        };
        let count = (tasks.end - tasks.start) as usize;
        let slab = RunSlab {
            bytes: bytes(count),
            most_bytes: bytes(most.unwrap_or(count)),
            uncounted,
        };
        let entry = self.tasks.entry(first);
        (entry.slab, entry.needs_slabs) = (SlabState::Reservation { tasks: count }, 1);
        slab
    }

    /// How many slabs the budget must leave for the tasks before this run.
    pub(crate) fn reserve_before_run(&self, tasks: &Range<u64>) -> usize {
        self.reserve_before(TaskId(tasks.start)).0
    }

    /// There was no slab for this run: each of its tasks may need one of its own. More tasks are made before there is another run.
    pub(crate) fn no_run_slab(&mut self, tasks: Range<u64>) {
        let count = (tasks.end - tasks.start) as usize;
        for task in tasks.map(TaskId) {
            if self.holds(task) && !planted("a run without a slab is left none") {
                let entry = self.tasks.entry(task);
                (entry.slab, entry.needs_slabs) = (SlabState::Unknown, 1);
            }
        }
        self.pace.no_run_slab(count, self.tasks.end());
    }

    /// A task of a run turned out to have so many bytes.
    pub(crate) fn has_bytes(&mut self, bytes: usize) {
        self.pace.task_bytes = self.pace.task_bytes.max(bytes);
    }
}
