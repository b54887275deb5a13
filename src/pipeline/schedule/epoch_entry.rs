//! Entries: the epochs of a session.

use std::ops::RangeBounds;

use super::Schedule;
use super::entry::TaskId;
use crate::pipeline::plan::epoch_plan::EpochPlan;

/// One epoch of a session.
#[derive(Debug)]
pub(super) struct EpochEntry<E> {
    pub(super) id: u64,
    /// `None` until it is planned.
    pub(super) tasks: Option<EpochTasks>,
    /// It is being planned.
    pub(super) is_planning: bool,
    /// It may be planned before the consumer reaches it.
    pub(super) may_plan_early: bool,
    /// The consumer has reached it.
    pub(super) is_reached: bool,
    pub(super) payload: E,
}

/// The tasks of one epoch: how they are made, and their numbers within the session.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct EpochTasks {
    pub(crate) plan: EpochPlan,
    /// The first task, and the one after the last: [`OPEN_END`] as long as it is not known.
    pub(crate) first: TaskId,
    pub(crate) end: TaskId,
}

/// The end of an epoch whose stream has not ended yet.
const OPEN_END: TaskId = TaskId(u64::MAX);

impl EpochTasks {
    /// The number of a task within its epoch. (Those of batches that were given out before have none.)
    pub(crate) fn number(&self, task: TaskId) -> u64 {
        self.plan.given.missing(task.0 - self.first.0)
    }
}

/// What left the schedule: payloads, to be dropped without the lock.
#[derive(Debug)]
pub(crate) struct Removed<E, U> {
    pub(crate) epochs: Vec<E>,
    pub(crate) tasks: Vec<U>,
}

impl<E, U> Default for Removed<E, U> {
    fn default() -> Removed<E, U> {
        Removed {
            epochs: Vec::new(),
            tasks: Vec::new(),
        }
    }
}

impl<E, U> Schedule<E, U> {
    /// Appends an epoch. Returns the id of its entry. `is_reached`: the consumer is there already.
    pub(crate) fn append(&mut self, payload: E, is_reached: bool) -> u64 {
        let id = self.appended;
        self.appended += 1;
        self.epochs.push_back(EpochEntry {
            id,
            tasks: None,
            is_planning: false,
            may_plan_early: !is_reached,
            is_reached,
            payload,
        });
        id
    }

    fn index_of(&self, id: u64) -> Option<usize> {
        self.epochs
            .iter()
            .position(|epoch_entry| epoch_entry.id == id)
    }

    /// The payload of an entry; `None` if the entry is gone.
    pub(crate) fn epoch(&mut self, id: u64) -> Option<&mut E> {
        let index = self.index_of(id)?;
        Some(&mut self.epochs[index].payload)
    }

    /// The payload of the entry before this one.
    pub(crate) fn epoch_before(&self, id: u64) -> Option<&E> {
        let index = self.index_of(id)?.checked_sub(1)?;
        Some(&self.epochs[index].payload)
    }

    /// The id of the entry after this one.
    pub(crate) fn id_after(&self, id: u64) -> Option<u64> {
        let after = self.epochs.get(self.index_of(id)? + 1)?;
        Some(after.id)
    }

    pub(crate) fn is_planned(&self, id: u64) -> bool {
        let index = self.index_of(id);
        index.is_some_and(|index| self.epochs[index].tasks.is_some())
    }

    /// The entry that a task lies in.
    pub(super) fn epoch_entry_of(&self, task: TaskId) -> Option<(usize, &EpochTasks)> {
        let mut epoch_entries = self.epochs.iter().enumerate();
        epoch_entries.find_map(|(index, epoch_entry)| {
            let tasks = epoch_entry.tasks.as_ref()?;
            let range = tasks.first..tasks.end;
            range.contains(&task).then_some((index, tasks))
        })
    }

    /// The end of the epoch that the consumer is at.
    pub(super) fn consumers_end(&self) -> TaskId {
        let first = self
            .epochs
            .front()
            .filter(|epoch_entry| epoch_entry.is_reached);
        let tasks = first.and_then(|epoch_entry| epoch_entry.tasks.as_ref());
        tasks.map_or(self.tasks.first, |tasks| tasks.end)
    }

    /// The entry to plan next, if workers will soon have nothing else to do.
    pub(super) fn epoch_entry_to_plan(&mut self) -> Option<&mut EpochEntry<E>> {
        let before = self.epochs.front()?.tasks.as_ref()?;
        let next = self.epochs.get(1)?;
        let is_due = before.end != OPEN_END && next.may_plan_early;
        if next.tasks.is_some() || next.is_planning || !is_due {
            return None;
        }
        // Whether all tasks can be opened once the consumer has taken what it can take next.
        let unopened = before.end.0 - self.tasks.end().0.min(before.end.0);
        let window = self.window(&before.plan);
        let room = window
            .room(self.tasks.ahead())
            .saturating_add(self.together());
        (unopened <= room as u64).then(|| &mut self.epochs[1])
    }

    /// Sets the plan of an entry. `None`: the entry is gone, or planned already; or its plan does not join that of the entry before
    /// it, which is not used up, so the consumer must reach it first.
    pub(crate) fn enter_plan(&mut self, id: u64, plan: EpochPlan) -> Option<EpochTasks> {
        let index = self.index_of(id)?;
        self.epochs[index].is_planning = false;
        if self.epochs[index].tasks.is_some() {
            return None;
        }
        let first = match index.checked_sub(1) {
            None => self.tasks.first,
            Some(before) => {
                let before = self.epochs[before].tasks.as_ref();
                if before.is_some_and(|before| before.end == OPEN_END) {
                    return None; // for now
                }
                let end = before.filter(|before| plan.joins(&before.plan));
                let Some(end) = end.map(|before| before.end) else {
                    self.epochs[index].may_plan_early = false;
                    return None;
                };
                end
            }
        };
        if plan.is_in_parts() {
            self.pace.streamed_bytes = plan.streamed_bytes;
        }
        self.pace.copying = plan.copying;
        self.mode.pulls_first |= plan.pulls.is_some_and(|pulls| pulls.before_loading);
        self.mode.any_order |= plan.any_order;
        self.mode.is_bounded |= plan.bound.is_some();
        self.mode.shares_slabs |= plan.solo.is_some_and(|solo| solo.is_pinned);
        let tasks = EpochTasks {
            first,
            end: match plan.pulls {
                Some(_) => OPEN_END,
                None => TaskId(first.0.saturating_add(plan.tasks())),
            },
            plan,
        };
        Some(self.epochs[index].tasks.insert(tasks).clone())
    }

    /// The stream of an entry ended, or is given up: all of its tasks are open, or were. Returns how many it has; `None`: that was known
    /// before, or the entry is gone.
    pub(crate) fn close_end(&mut self, id: u64) -> Option<u64> {
        let end = self.tasks.end();
        let index = self.index_of(id)?;
        let tasks = self.epochs[index].tasks.as_mut();
        let tasks = tasks.filter(|tasks| tasks.end == OPEN_END)?;
        tasks.end = end;
        Some(end.0 - tasks.first.0)
    }

    /// How many tasks an entry has, if that is known.
    pub(crate) fn tasks_of(&self, id: u64) -> Option<u64> {
        let tasks = self.epochs[self.index_of(id)?].tasks.as_ref()?;
        (tasks.end != OPEN_END).then(|| tasks.end.0 - tasks.first.0)
    }

    /// Nothing was left to pull for the last open task, whose stream is at its end. Returns how many tasks the entry has: the task is
    /// none of them. `None`: its end was known.
    pub(crate) fn close_end_before(
        &mut self,
        task: TaskId,
        id: u64,
        removed: &mut Removed<E, U>,
    ) -> Option<u64> {
        let index = self.index_of(id)?;
        let tasks = self.epochs[index].tasks.as_ref();
        tasks.filter(|tasks| tasks.end == OPEN_END)?;
        debug_assert_eq!(task.0 + 1, self.tasks.end().0);
        let count = self.tasks.open.len() - 1;
        self.remove_tasks(count.., removed);
        self.tasks.is_blocked &= count > 0;
        self.close_end(id)
    }

    /// The entry cannot be planned before the consumer reaches it.
    pub(crate) fn plan_when_reached(&mut self, id: u64) {
        if let Some(index) = self.index_of(id) {
            let epoch_entry = &mut self.epochs[index];
            (epoch_entry.is_planning, epoch_entry.may_plan_early) = (false, false);
        }
    }

    /// The entry that the consumer is at.
    pub(crate) fn current(&self) -> Option<u64> {
        Some(self.epochs.front()?.id)
    }

    /// Whether the consumer is at this entry.
    pub(crate) fn is_at(&self, id: u64) -> bool {
        let front = self.epochs.front();
        front.is_some_and(|front| front.id == id && front.is_reached)
    }

    /// How many tasks of the consumer's entry are not behind it; `None` before it is planned. 0: all were delivered.
    pub(crate) fn remaining(&self) -> Option<u64> {
        let tasks = self.epochs.front()?.tasks.as_ref()?;
        Some(tasks.end.0 - self.tasks.first.0)
    }

    /// The consumer comes to an entry. `false`: an entry before it still has tasks to come.
    pub(crate) fn come_to(&mut self, id: u64, removed: &mut Removed<E, U>) -> bool {
        while let Some(front) = self.epochs.front_mut() {
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

    /// The consumer leaves the entry that it is at. Its open tasks are removed; those of later entries stay.
    pub(crate) fn leave(&mut self, id: u64, removed: &mut Removed<E, U>) {
        let Some(front) = self.epochs.front().filter(|front| front.id == id) else {
            return;
        };
        let end = front
            .tasks
            .as_ref()
            .map_or(self.tasks.first, |tasks| match tasks.end {
                OPEN_END => self.tasks.end(),
                end => end,
            });
        let count = (end.0 - self.tasks.first.0).min(self.tasks.open.len() as u64) as usize;
        self.remove_tasks(..count, removed);
        self.tasks.first = end;
        self.remove_first(removed);
    }

    /// Removes the entries that the consumer has not reached: it never will.
    pub(crate) fn truncate(&mut self, removed: &mut Removed<E, U>) {
        let kept = self
            .epochs
            .iter()
            .take_while(|epoch_entry| epoch_entry.is_reached);
        let kept = kept.count();
        let tasks =
            |epoch_entry: &EpochEntry<E>| epoch_entry.tasks.as_ref().map(|tasks| tasks.first);
        if let Some(first) = self.epochs.get(kept).and_then(tasks) {
            let count = first.0.saturating_sub(self.tasks.first.0);
            let count = count.min(self.tasks.open.len() as u64) as usize;
            self.remove_tasks(count.., removed);
        }
        let epoch_entries = self.epochs.drain(kept..);
        removed
            .epochs
            .extend(epoch_entries.map(|epoch_entry| epoch_entry.payload));
    }

    /// Removes everything.
    pub(crate) fn clear(&mut self, removed: &mut Removed<E, U>) {
        self.remove_tasks(.., removed);
        let epoch_entries = self.epochs.drain(..);
        removed
            .epochs
            .extend(epoch_entries.map(|epoch_entry| epoch_entry.payload));
    }

    fn remove_first(&mut self, removed: &mut Removed<E, U>) {
        let epoch_entry = self.epochs.pop_front();
        removed
            .epochs
            .extend(epoch_entry.map(|epoch_entry| epoch_entry.payload));
        self.tasks.taken = 0;
        self.tasks.is_blocked = false;
    }

    fn remove_tasks(&mut self, range: impl RangeBounds<usize>, removed: &mut Removed<E, U>) {
        self.tasks.remove(range, &mut removed.tasks);
    }

    /// Whether no entry is left.
    pub(crate) fn is_over(&self) -> bool {
        self.epochs.is_empty()
    }
}
