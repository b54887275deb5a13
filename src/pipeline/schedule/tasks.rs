//! The open tasks of a session, in the order of their numbers.

use std::collections::VecDeque;
use std::ops::RangeBounds;

use super::entry::{Stage, TaskEntry, TaskId};

/// A session's tasks, from the first that was not delivered to the last that was opened.
#[derive(Debug)]
pub(super) struct Tasks<T> {
    pub(super) open: VecDeque<TaskEntry<T>>,
    /// The first open task, which the consumer gets next.
    pub(super) first: TaskId,
    /// The consumer is blocked on the first open task.
    pub(super) is_blocked: bool,
    /// How many tasks the consumer took in advance, and has not come to yet.
    pub(super) taken: usize,
    /// How many of the open tasks were sent, or given out. They do not count in the window.
    pub(super) away: usize,
}

impl<T> Tasks<T> {
    pub(super) fn new() -> Tasks<T> {
        Tasks {
            open: VecDeque::new(),
            first: TaskId(0),
            is_blocked: false,
            taken: 0,
            away: 0,
        }
    }

    /// The task that is opened next.
    pub(super) fn end(&self) -> TaskId {
        TaskId(self.first.0 + self.open.len() as u64)
    }

    /// How many tasks are ahead of the consumer.
    pub(super) fn ahead(&self) -> usize {
        self.open.len() - self.away + self.taken
    }

    /// The open tasks, in order. (Of numbers up to the largest that there is.)
    pub(super) fn numbered(&self) -> impl Iterator<Item = (TaskId, &TaskEntry<T>)> {
        let tasks = self.open.iter().enumerate();
        tasks.map(|(index, entry)| (TaskId(self.first.0 + index as u64), entry))
    }

    /// The open tasks before this one.
    pub(super) fn before(&self, task: TaskId) -> impl Iterator<Item = &TaskEntry<T>> {
        self.open.iter().take((task.0 - self.first.0) as usize)
    }

    /// Whether the task is open, and was not given out.
    pub(super) fn holds(&self, task: TaskId) -> bool {
        let index = task.0.checked_sub(self.first.0);
        let entry = index.and_then(|index| self.open.get(index as usize));
        entry.is_some_and(|entry| entry.stage != Stage::Given)
    }

    pub(super) fn entry(&mut self, task: TaskId) -> &mut TaskEntry<T> {
        &mut self.open[(task.0 - self.first.0) as usize]
    }

    /// Notes whether the task is out of the window.
    pub(super) fn set_away(&mut self, task: TaskId, is_away: bool) {
        let was_away = std::mem::replace(&mut self.entry(task).is_away, is_away);
        self.away = self.away + usize::from(is_away) - usize::from(was_away);
    }

    /// Removes some of them, and gives their payloads.
    pub(super) fn remove(&mut self, range: impl RangeBounds<usize>, removed: &mut Vec<T>) {
        let tasks = self.open.drain(range);
        removed.extend(tasks.filter_map(|entry| entry.payload));
        self.away = self.open.iter().filter(|entry| entry.is_away).count();
    }
}
