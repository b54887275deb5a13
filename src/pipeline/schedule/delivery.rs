//! Delivery: tasks become ready or are sent ahead, and the consumer takes them in order.

use super::entry::{Stage, TaskEntry};
use super::{Schedule, TaskId};
use crate::sync::planted;

impl<E, U> Schedule<E, U> {
    /// The task, or its error, can be delivered.
    pub(crate) fn ready(&mut self, task: TaskId) {
        self.tasks.entry(task).stage = Stage::Ready;
    }

    /// The task was sent to its device. It can be delivered, and is no longer ahead of the consumer.
    pub(crate) fn sent(&mut self, task: TaskId) {
        self.tasks.set_away(task, true);
        self.tasks.entry(task).stage = Stage::Ready;
    }

    /// The task is made, and is to be sent to its device. It cannot be delivered before that.
    pub(crate) fn made_to_send(&mut self, task: TaskId) {
        self.tasks.entry(task).stage = Stage::Made;
    }

    /// The task, which was made, is being sent. It cannot be delivered until [`ready`](Schedule::ready) or [`sent`](Schedule::sent).
    pub(crate) fn sending(&mut self, task: TaskId) {
        self.tasks.entry(task).stage = Stage::Sending;
    }

    /// The task was sent, and its device decodes some of it. It is no longer ahead of the consumer, and cannot be delivered until
    /// [`ready`](Schedule::ready) or [`sent`](Schedule::sent).
    pub(crate) fn decoding(&mut self, task: TaskId) {
        self.tasks.set_away(task, true);
        self.sending(task);
    }

    /// Whether the task is made, and is to be sent.
    pub(crate) fn is_made(&mut self, task: TaskId) -> bool {
        self.tasks.entry(task).stage == Stage::Made
    }

    /// Whether the task is being sent, or its device decodes it.
    pub(crate) fn is_being_sent(&mut self, task: TaskId) -> bool {
        self.tasks.entry(task).stage == Stage::Sending
    }

    /// Whether what the consumer gets next is being sent, or decoded by its device, so that it cannot be taken yet.
    pub(crate) fn is_next_being_sent(&self) -> bool {
        let mut open = self.tasks.open.iter();
        match self.mode.any_order {
            false => open
                .next()
                .is_some_and(|first| first.stage == Stage::Sending),
            true => self.is_one_being_sent(),
        }
    }

    /// Whether the consumer waits for the device's decoder: it cannot take what is made behind that, and need not send it.
    pub(crate) fn is_next_decoded(&self) -> bool {
        let is_decoded = |entry: &TaskEntry<U>| entry.stage == Stage::Sending && entry.is_away;
        match self.mode.any_order {
            false => self.tasks.open.front().is_some_and(is_decoded),
            true => self.tasks.open.iter().any(is_decoded),
        }
    }

    /// Whether any task is being sent, or decoded by its device.
    pub(crate) fn is_one_being_sent(&self) -> bool {
        self.tasks
            .open
            .iter()
            .any(|entry| entry.stage == Stage::Sending)
    }

    /// The open tasks that are being sent, or that a device decodes, in order.
    pub(crate) fn tasks_being_sent(&self) -> impl Iterator<Item = (TaskId, &U)> {
        let sent = self
            .tasks
            .numbered()
            .filter(|(_, entry)| entry.stage == Stage::Sending);
        sent.filter_map(|(task, entry)| Some((task, entry.payload.as_ref()?)))
    }

    /// Whether it is known what became of the task: it is made, or has failed.
    pub(crate) fn is_settled(&self, task: TaskId) -> bool {
        let index = (task.0 - self.tasks.first.0) as usize;
        self.tasks.open[index].is_settled()
    }

    /// The open tasks that are ready, in order.
    pub(crate) fn ready_tasks(&self) -> impl Iterator<Item = (TaskId, &U)> {
        self.tasks_at(Stage::Ready)
    }

    /// The open tasks that are made, and are to be sent, in order.
    pub(crate) fn made_tasks(&self) -> impl Iterator<Item = (TaskId, &U)> {
        self.tasks_at(Stage::Made)
    }

    fn tasks_at(&self, stage: Stage) -> impl Iterator<Item = (TaskId, &U)> {
        let tasks = self.tasks.numbered();
        let tasks = tasks.filter(move |(_, entry)| entry.stage == stage);
        tasks.filter_map(|(task, entry)| Some((task, entry.payload.as_ref()?)))
    }

    /// The task that the consumer cannot take before it is sent: the next one; in any order, the first of its epoch, if none is ready and
    /// none at the decoder.
    pub(crate) fn next_to_send(&self) -> Option<TaskId> {
        let own = (self.consumers_end().0 - self.tasks.first.0) as usize;
        let mut open = self.tasks.open.iter().take(own);
        // (What another thread sends may take it long, and what is sent already only has to be decoded.)
        let comes = |entry: &TaskEntry<U>| match entry.stage {
            Stage::Sending => entry.is_away,
            stage => stage == Stage::Ready,
        };
        let index = match self.mode.any_order {
            false => (open.next()?.stage == Stage::Made).then_some(0)?,
            true if open.clone().any(comes) => return None,
            true => open.position(|entry| entry.stage == Stage::Made)?,
        };
        Some(TaskId(self.tasks.first.0 + index as u64))
    }

    /// Puts a task back, ready, that the consumer took in advance: the last that it took comes first.
    pub(crate) fn put_back(&mut self, task: TaskId, payload: U) {
        let mut entry = Some(TaskEntry::new(0, 0, Stage::Ready, payload));
        match task.0.checked_sub(self.tasks.first.0) {
            // Of those that were taken in any order, one before it is missing.
            Some(index) => {
                self.tasks.set_away(task, false);
                entry
                    .into_iter()
                    .for_each(|entry| self.tasks.open[index as usize] = entry);
            }
            None => {
                while task < self.tasks.first {
                    self.tasks.first.0 -= 1;
                    let own = (task == self.tasks.first).then(|| entry.take()).flatten();
                    let own = own.unwrap_or_else(TaskEntry::given);
                    self.tasks.away += usize::from(own.is_away);
                    self.tasks.open.push_front(own);
                }
            }
        }
        self.tasks.taken = 0;
    }

    /// How many whole batches the consumer could take without waiting for workers. Those of later epochs count, those that were sent, and
    /// those that it would send.
    pub(crate) fn ready_batches(&self) -> u64 {
        let is_ready = |entry: &&TaskEntry<U>| entry.is_settled();
        let open = self.tasks.open.iter();
        let tasks = match self.mode.any_order {
            true => open.filter(is_ready).count() as u64,
            false => open.take_while(is_ready).count() as u64,
        };
        let plan = self
            .epoch_entry_of(self.tasks.first)
            .map(|(_, tasks)| &tasks.plan);
        tasks
            / plan
                .map_or(1, |plan| plan.partition.parts_per_batch())
                .max(1)
    }

    /// How many tasks the consumer may take now: those of its epoch that are ready, [`together`](Schedule::together) at most. The first is
    /// one of them; others that were sent do not count, for they are not ahead.
    pub(crate) fn deliverable(&self) -> usize {
        let own = (self.consumers_end().0 - self.tasks.first.0) as usize;
        let mut counted = 0;
        let may_take = |(index, entry): &(usize, &TaskEntry<U>)| {
            let counts = *index == 0 || !entry.is_away;
            counted += usize::from(counts);
            entry.stage == Stage::Ready && (!counts || counted == 1 || counted <= self.together())
        };
        let open = self.tasks.open.iter().take(own).enumerate();
        open.take_while(may_take).count()
    }

    /// How many tasks the consumer may take together.
    pub(super) fn together(&self) -> usize {
        let tasks = self.epoch_entry_of(self.tasks.first);
        match tasks.filter(|_| !self.mode.is_bounded) {
            Some((_, tasks)) => self.window(&tasks.plan).together(),
            // (What it took would have to be counted among the bytes in flight.)
            None => 1,
        }
    }

    /// The consumer takes the next tasks, which are ready, and comes to the first of them.
    pub(crate) fn deliver(&mut self, count: usize) -> impl Iterator<Item = U> {
        debug_assert!((1..=self.deliverable()).contains(&count));
        let sent = self
            .tasks
            .open
            .iter()
            .take(count)
            .filter(|entry| entry.is_away);
        let sent = sent.count();
        let first_was_sent = self.tasks.open[0].is_away;
        self.tasks.away -= sent;
        self.tasks.first.0 += count as u64;
        self.tasks.taken = count - 1 - (sent - usize::from(first_was_sent));
        self.tasks.is_blocked = false;
        self.tasks
            .open
            .drain(..count)
            .filter_map(|entry| entry.payload)
    }

    /// Whether tasks are delivered in the order in which they are ready.
    pub(crate) fn is_any_order(&self) -> bool {
        self.mode.any_order
    }

    /// The consumer takes tasks of its epoch that are ready, in whatever order they became so, [`together`](Schedule::together) at most. A
    /// task that is taken before its turn leaves its entry in its place, which is not counted in the window.
    pub(crate) fn deliver_any(&mut self) -> Vec<(TaskId, U)> {
        let own = (self.consumers_end().0 - self.tasks.first.0).min(self.tasks.open.len() as u64)
            as usize;
        let most = self.together();
        let ready =
            |(index, entry): (usize, &TaskEntry<U>)| (entry.stage == Stage::Ready).then_some(index);
        let open = self.tasks.open.iter().take(own).enumerate();
        let picked: Vec<usize> = open.filter_map(ready).take(most).collect();
        let mut delivered = Vec::with_capacity(picked.len());
        let mut were_ahead = 0;
        for (at, index) in picked.into_iter().enumerate() {
            let entry = &mut self.tasks.open[index];
            entry.stage = Stage::Given;
            // The consumer comes to the first of them at once.
            were_ahead += usize::from(at > 0 && !entry.is_away);
            if !entry.is_away && !planted("a batch that was given out keeps its place") {
                entry.is_away = true;
                self.tasks.away += 1;
            }
            let task = TaskId(self.tasks.first.0 + index as u64);
            delivered.extend(entry.payload.take().map(|payload| (task, payload)));
        }
        if !delivered.is_empty() {
            self.tasks.taken = were_ahead;
            self.tasks.is_blocked = false;
        }
        while let Some(first) = self.tasks.open.front()
            && first.stage == Stage::Given
        {
            self.tasks.away -= usize::from(first.is_away);
            self.tasks.open.pop_front();
            self.tasks.first.0 += 1;
        }
        delivered
    }

    /// Whether the consumer can take the task when it is ready, or sleeps until an earlier one is.
    pub(crate) fn is_next(&self, task: TaskId) -> bool {
        match self.mode.any_order {
            false => task == self.tasks.first,
            true if planted("a batch that is ready before its turn is no news") => {
                task == self.tasks.first
            }
            true => task < self.consumers_end(),
        }
    }

    /// The consumer has come to all tasks that it took.
    pub(crate) fn used_up(&mut self) {
        self.tasks.taken = 0;
    }

    /// The consumer blocks on the first task.
    pub(crate) fn block(&mut self) {
        self.tasks.is_blocked = true;
    }

    pub(crate) fn is_blocked(&self) -> bool {
        self.tasks.is_blocked
    }

    /// Decides once whether more tasks may be open than the cache holds: yes, if a batch came and loading took much longer than
    /// copying (more than a nanosecond per byte); no, if that is not the case by the end of the first epoch.
    pub(crate) fn find_out_if_wide(&mut self) -> Option<bool> {
        let tasks = self.epochs.front()?.tasks.as_ref()?;
        if self.pace.is_wide.is_some() || tasks.plan.resident.is_none() {
            return None;
        }
        let came = self.tasks.first.0 >= tasks.first.0 + tasks.plan.partition.parts_per_batch();
        if came && tasks.plan.streamed_bytes < self.pace.sample_ns {
            self.pace.is_wide = Some(true);
        } else if self.remaining() == Some(0) {
            self.pace.is_wide = Some(false);
        }
        self.pace.is_wide
    }

    /// What is said of the task that the consumer gets next.
    pub(crate) fn state_of_first(&self) -> &'static str {
        let Some(entry) = self.tasks.open.front() else {
            return "was not begun";
        };
        match entry.stage {
            Stage::Loading if entry.waits_for_slab() => "waits for page-locked memory",
            Stage::Pulling => "waits for items of the iterable",
            Stage::Moving => "waits for page-locked memory to be moved to",
            Stage::Loading | Stage::Solo => "is being loaded",
            Stage::LayingOut => "is being laid out",
            Stage::Finishing => "is being collated",
            Stage::Made => "waits to be sent to the device",
            Stage::Sending => "is being sent to the device",
            Stage::Ready | Stage::Given => "is ready",
        }
    }

    /// The task that the consumer gets next.
    pub(crate) fn first(&self) -> TaskId {
        self.tasks.first
    }
}
