//! Turns: which batches of an epoch are on their way, and whose turn it is to be sent.

use std::collections::VecDeque;

use crate::batch::{Batch, Whole};
use crate::device::Assembly;
use crate::pipeline::epoch::EpochContext;
use crate::pipeline::schedule::TaskId;
use crate::sync::planted;

/// The batches that are on their way, and what may follow them.
pub(super) struct Turns<B: Batch> {
    /// How many batches the epoch has, if its stream has ended.
    pub(super) end: Option<u64>,
    /// Batches from number `first` on, as far as any task of them came.
    pub(super) batches: VecDeque<Outgoing<B>>,
    pub(super) first: u64,
    /// Batches before this one may be sent, if they are sent in order.
    pub(super) allowed: u64,
    /// How many batches may be sent together, by the size of the last that was sent alone.
    pub(super) together: usize,
    /// The last that was sent alone is as large as [`LEFT_TO_WORKERS_BYTES`](crate::tuning::LEFT_TO_WORKERS_BYTES), or in parts.
    pub(super) is_large: bool,
    /// They are made in runs, so that as many more may be sent.
    pub(super) are_in_runs: bool,
    /// How many may be on their way, if they are sent in any order; and how many are.
    pub(super) capacity: Option<u64>,
    pub(super) in_flight: u64,
    /// Counts what may give a task its turn: parts and batches that were sent or failed, and permissions.
    pub(super) progress: u64,
}

/// A batch on its way.
pub(super) struct Outgoing<B: Batch> {
    /// Where its parts are put together.
    pub(super) assembly: Option<Assembly>,
    /// It has device memory.
    pub(super) has_begun: bool,
    /// The part that came first, which the others must match.
    pub(super) like: TaskId,
    /// The consumer waits for its memory, so workers leave that to it.
    pub(super) is_awaited: bool,
    pub(super) rows: usize,
    /// One of its tasks was not sent, so it will never be whole.
    pub(super) has_failed: bool,
    /// It was given out.
    pub(super) is_taken: bool,
    /// Pictures of its parts were left to the device's decoder.
    pub(super) decodes: bool,
    pub(super) whole: Option<Whole<B>>,
}

impl<B: Batch> Outgoing<B> {
    /// Whether the next batch may begin.
    pub(super) fn makes_way(&self) -> bool {
        self.has_begun || self.has_failed || self.is_taken
    }
}

/// Whether a task of a batch may be sent.
pub(super) enum Turn<'a, B: Batch> {
    Now(&'a mut Outgoing<B>),
    NotYet,
    /// It failed, or is not wanted any more.
    Gone,
}

impl<B: Batch> Turns<B> {
    pub(super) fn take(&mut self, batch: u64) -> Option<Whole<B>> {
        let index = batch.checked_sub(self.first)?;
        // (Of one that failed early, nothing came here.)
        let outgoing = self.outgoing(index as usize, TaskId(0));
        outgoing.is_taken = true;
        let whole = outgoing.whole.take();
        let was_sent = whole.is_some() && self.capacity.is_some();
        self.in_flight -= u64::from(was_sent);
        self.progress += u64::from(was_sent);
        let taken = self.batches.iter().take_while(|first| first.is_taken);
        let taken = taken.count();
        self.batches.drain(..taken); // where they are: they are large
        self.first += taken as u64;
        whole
    }

    pub(super) fn allow(&mut self, batches: u64) {
        if let Some(capacity) = self.capacity {
            self.capacity = Some(batches);
            self.progress += u64::from(batches > capacity);
            return;
        }
        let allowed = self.first.saturating_add(batches);
        if allowed > self.allowed {
            self.allowed = allowed;
            self.progress += 1;
        }
    }

    /// Whether all that the program allowed have begun, and one submission of small batches more. Then the consumer need not look for
    /// others: it does when one submission more may be sent, and not for each batch.
    pub(super) fn has_enough(&self) -> bool {
        let enough = self.allowed.saturating_add(self.together as u64);
        let index = enough.checked_sub(self.first.saturating_add(1));
        let last = index.and_then(|index| self.batches.get(index as usize));
        // (They begin in order, so those before it have begun.)
        self.are_in_runs && self.together > 1 && last.is_some_and(|last| last.has_begun)
    }

    pub(super) fn get(&mut self, batch: u64) -> Option<&mut Outgoing<B>> {
        let index = batch.checked_sub(self.first)?;
        let outgoing = self.batches.get_mut(index as usize);
        outgoing.filter(|outgoing| !outgoing.is_taken)
    }

    /// The batch at an index, of which this task came.
    pub(super) fn outgoing(&mut self, index: usize, task: TaskId) -> &mut Outgoing<B> {
        while self.batches.len() <= index {
            self.batches.push_back(Outgoing {
                assembly: None,
                has_begun: false,
                like: task,
                is_awaited: false,
                rows: 0,
                has_failed: false,
                is_taken: false,
                decodes: false,
                whole: None,
            });
        }
        &mut self.batches[index]
    }

    /// The first batch that may not be sent yet.
    pub(super) fn allowed(&self) -> u64 {
        match self.capacity {
            None if self.are_in_runs && self.together > 1 => {
                self.allowed.saturating_add(2 * self.together as u64)
            }
            None => self.allowed,
            Some(capacity)
                if self.in_flight < capacity
                    || planted("what was sent in any order is not counted") =>
            {
                u64::MAX
            }
            Some(_) => 0,
        }
    }

    /// The first batch beyond those that the program allowed.
    pub(super) fn asked(&self) -> u64 {
        match self.capacity {
            None => self.allowed,
            Some(_) => u64::MAX,
        }
    }

    /// Whether it is the turn of the first of these tasks, and the others, each a batch, may go with it.
    pub(super) fn is_turn_of(&mut self, context: &EpochContext, tasks: &[TaskId]) -> bool {
        let batches = tasks.iter().map(|task| context.batch(*task));
        let (Some(first), allowed) = (batches.clone().next(), self.allowed()) else {
            return false;
        };
        let follow_each_other = batches
            .clone()
            .zip(first..)
            .all(|(batch, next)| batch == next);
        let is_first = matches!(self.turn(first, tasks[0], false), Turn::Now(_));
        (is_first || planted("batches that go together do not wait for their turn"))
            && follow_each_other
            && tasks.iter().zip(batches).all(|(task, batch)| {
                let outgoing = self.outgoing((batch - self.first) as usize, *task);
                batch < allowed && !outgoing.makes_way()
            })
    }

    /// Batches begin in order, so that none takes memory that an earlier one will need. In any order, none that was sent waits for an
    /// earlier one, so that its memory comes back. `is_next`: the consumer has come to it.
    pub(super) fn turn(&mut self, batch: u64, task: TaskId, is_next: bool) -> Turn<'_, B> {
        let Some(index) = batch.checked_sub(self.first) else {
            return Turn::Gone;
        };
        let may_go = batch < self.allowed() || is_next && self.capacity.is_some();
        if !may_go && !planted("batches are sent beyond depth") {
            return Turn::NotYet;
        }
        let index = index as usize;
        self.outgoing(index, task);
        let mut before = self.batches.iter().take(index);
        if self.capacity.is_none()
            && !before.all(Outgoing::makes_way)
            && !planted("batches begin in any order")
        {
            return Turn::NotYet;
        }
        match &mut self.batches[index] {
            outgoing if outgoing.has_failed || outgoing.is_taken => Turn::Gone,
            outgoing => {
                self.in_flight += u64::from(self.capacity.is_some());
                Turn::Now(outgoing)
            }
        }
    }
}
