//! Slabs: which task is granted one next, and how many must be left for those before it.

use super::entry::{SlabState, Stage, TaskEntry};
use super::{Claimant, EpochTasks, Next, Schedule, TaskId};
use crate::device::block_bytes;
use crate::sync::planted;

/// A slab to be granted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Want {
    pub(crate) task: TaskId,
    pub(crate) bytes: usize,
    /// How many slabs must be left for earlier tasks.
    pub(crate) reserve: usize,
    /// The consumer is blocked on this very task.
    pub(crate) is_blocked: bool,
    /// The task is made, and will be copied into the slab.
    pub(crate) moves: bool,
}

impl<E, U> Schedule<E, U> {
    /// Notes the bytes of a task if its slabs outgrow the last-level cache, else 0.
    pub(crate) fn streams(&mut self, task: TaskId, bytes: usize) {
        let is_in_parts = |(_, tasks): (usize, &EpochTasks)| tasks.plan.is_in_parts();
        if self.epoch_entry_of(task).is_some_and(is_in_parts) {
            return; // known since the epoch was planned
        }
        self.pace.streamed_bytes = bytes as u64 / self.tasks.entry(task).rows.max(1) as u64;
    }

    /// The task needs a slab of `bytes`.
    pub(crate) fn want(&mut self, task: TaskId, bytes: usize) {
        let entry = self.tasks.entry(task);
        debug_assert_eq!(entry.slab, SlabState::Unknown);
        entry.slab = SlabState::Wanted { bytes };
        entry.bytes = self.pace.saw_task(bytes);
    }

    /// The task needs a slab of pageable memory. `true`: it can have one now.
    pub(crate) fn want_pageable(&mut self, task: TaskId, bytes: usize, free_bytes: usize) -> bool {
        self.want(task, bytes);
        let is_free = self.is_free(task, bytes, free_bytes);
        self.tasks.entry(task).slab = match is_free {
            true => SlabState::Granting { bytes },
            false => SlabState::Held { bytes },
        };
        is_free
    }

    /// The first task that was held, and can have its slab now. The task on which the consumer is blocked can in any case: it is not known
    /// whether there will be room otherwise.
    pub(super) fn next_held(&self, claimant: Claimant) -> Option<(TaskId, usize)> {
        let tasks = self.tasks.numbered();
        let mut held = tasks.filter_map(|(task, entry)| Some((task, entry.held_bytes()?)));
        held.find(|(task, bytes)| self.is_free(*task, *bytes, claimant.free_bytes))
    }

    /// Whether a task waits until fewer bytes are in flight, of whatever session.
    pub(crate) fn holds_back(&self) -> bool {
        self.mode.is_bounded
            && self
                .tasks
                .open
                .iter()
                .any(|entry| entry.held_bytes().is_some())
    }

    /// Whether a task can have its slab: there is room for it beside the earlier ones that have none, or it is the last resort.
    fn is_free(&self, task: TaskId, bytes: usize, free_bytes: usize) -> bool {
        let before = self.tasks.before(task).filter(|entry| entry.is_to_come());
        let mut before = before.map(|entry| entry.bytes).peekable();
        let bound = self
            .epoch_entry_of(task)
            .and_then(|(_, tasks)| tasks.plan.bound);
        let room = match (before.peek(), bound) {
            (Some(_), Some(bound)) => free_bytes.min(bound.bytes),
            _ => free_bytes, // it may be larger than the limit, if it is alone
        };
        before.fold(bytes, usize::saturating_add) <= room || self.is_last_resort(task)
    }

    fn is_last_resort(&self, task: TaskId) -> bool {
        self.tasks.is_blocked
            && task == self.tasks.first
            && !planted("a blocked consumer waits for room that does not come")
    }

    /// How many bytes a task of this epoch will have, as far as that is known.
    pub(super) fn expected_bytes(&self, tasks: &EpochTasks, task: TaskId) -> Option<usize> {
        let bound = tasks.plan.bound?;
        match bound.row_bytes {
            Some(bytes) => {
                let rows = tasks.plan.partition.rows(tasks.number(task));
                block_bytes(bytes.saturating_mul(rows))
            }
            None => Some(self.pace.largest_task).filter(|bytes| *bytes > 0),
        }
    }

    /// Whether another task can be opened, if bytes are limited: there is room for it beside those that are open and were not sent, or
    /// there are none. (What was sent counts when the task needs its slab.)
    pub(super) fn has_room_for(&self, tasks: &EpochTasks, task: TaskId) -> bool {
        let Some(bound) = tasks.plan.bound else {
            return true;
        };
        let ahead = self.tasks.open.iter().filter(|entry| !entry.is_away);
        let mut ahead = ahead.map(|entry| entry.bytes).peekable();
        if ahead.peek().is_none() {
            return true;
        }
        let expected = self.expected_bytes(tasks, task);
        let bytes = ahead.fold(0, usize::saturating_add);
        expected.is_some_and(|expected| bytes.saturating_add(expected) <= bound.bytes)
    }

    /// The task is made, and needs a slab of `bytes` to be copied into.
    pub(crate) fn want_to_move(&mut self, task: TaskId, bytes: usize) {
        let entry = self.tasks.entry(task);
        entry.stage = Stage::Moving;
        entry.needs_slabs = 1;
        entry.slab = SlabState::Wanted { bytes };
    }

    /// The first slab that is wanted, in the order of the tasks.
    pub(crate) fn next_want(&self) -> Option<Want> {
        let mut reserve = 0;
        for (index, entry) in self.tasks.open.iter().enumerate() {
            if let (SlabState::Wanted { bytes }, false) = (entry.slab, entry.has_failed) {
                return Some(Want {
                    task: TaskId(self.tasks.first.0 + index as u64),
                    bytes,
                    reserve,
                    is_blocked: index == 0 && self.tasks.is_blocked,
                    moves: entry.stage == Stage::Moving,
                });
            }
            reserve += entry.reserve();
        }
        None
    }

    /// Whether any task waits for its slab, even if the ring is being asked for it right now.
    pub(crate) fn waits_for_slab(&self) -> bool {
        self.tasks.open.iter().any(TaskEntry::waits_for_slab)
    }

    /// The caller will ask the ring for the task's slab; `None` if the task is not the first that wants one.
    pub(crate) fn granting(&mut self, task: TaskId) -> Option<Want> {
        let want = self.next_want().filter(|want| want.task == task)?;
        self.tasks.entry(task).slab = SlabState::Granting { bytes: want.bytes };
        Some(want)
    }

    /// The ring had none: the task goes on waiting.
    pub(crate) fn not_granted(&mut self, task: TaskId) {
        let entry = self.tasks.entry(task);
        if let SlabState::Granting { bytes } = entry.slab {
            entry.slab = SlabState::Wanted { bytes };
        }
    }

    /// The task cannot have its slab, and fails.
    pub(crate) fn refused(&mut self, task: TaskId) -> Next {
        match self.wants_still(task) {
            true => self.failed(task),
            false => Next::Wait,
        }
    }

    /// The task has its slab, or does without.
    pub(crate) fn granted(&mut self, task: TaskId) {
        if self.wants_still(task) {
            let entry = self.tasks.entry(task);
            entry.slab = SlabState::Granted;
            entry.needs_slabs = entry.needs_slabs.saturating_sub(1);
        }
    }

    /// The task has pageable memory; it may need a slab of the ring when it is made.
    pub(crate) fn granted_pageable(&mut self, task: TaskId) {
        if self.wants_still(task) {
            self.tasks.entry(task).slab = SlabState::Granted;
        }
    }

    /// Whether a task still wants the slab that the ring was asked for. A task that failed meanwhile and is made again has given that slab
    /// up, and may want another to move to.
    fn wants_still(&mut self, task: TaskId) -> bool {
        matches!(
            self.tasks.entry(task).stage,
            Stage::Loading | Stage::LayingOut
        ) || planted("a task that is made again has a slab that it gave up")
    }

    /// How many slabs must be left for the task.
    pub(crate) fn reserve_of(&mut self, task: TaskId) -> usize {
        self.tasks.entry(task).reserve()
    }
}
