//! Sending: tasks of an epoch that goes to a device, by the threads that made them or by the consumer.

use super::queue::DeviceQueue;
use crate::batch::Batch;
use crate::error::Result;
use crate::pipeline::epoch::EpochContext;
use crate::pipeline::schedule::TaskId;
use crate::pipeline::shared::data::Delivered;
use crate::pipeline::shared::data::{Made, Taken};
use crate::pipeline::threads::decoded::Sender;
use crate::pipeline::threads::pipeline::Pipeline;
use crate::pipeline::traits::{Each, EpochHandle, SendOutcome, TransferQueue};
use crate::sync::{Arc, planted};
use crate::trace::span;

/// Takes out of these what was taken in advance, and may be sent together with the first.
fn take_with<'a, B: Batch>(
    context: &EpochContext,
    first: TaskId,
    taken: impl Iterator<Item = &'a mut Delivered<B>>,
    queue: &DeviceQueue<B>,
) -> Each<B> {
    let mut tasks = Vec::new();
    if context.is_sent_alone(first) {
        return tasks;
    }
    let window = queue.window();
    let others = window.together.saturating_sub(1);
    for (next, number) in taken.zip(first.0 + 1..).take(others) {
        let task = next.task;
        let goes_too = task.0 == number
            && context.batch(task) < window.allowed
            && !context.is_sent_alone(task);
        match goes_too.then(|| next.take_here()).flatten() {
            Some(made) => tasks.push((task, made)),
            None => break,
        }
    }
    tasks
}

impl<B: Batch> Pipeline<B> {
    /// Sends a page-locked task to its device, if that is possible now, and makes it ready.
    pub(crate) fn hand_over(&self, context: &EpochContext, task: TaskId, made: B) {
        let queue = {
            let mut state = self.lock();
            let session = state.session_of(context, task);
            session.and_then(|(session, _)| session.queue(context.epoch_entry))
        };
        match queue {
            Some(queue) => {
                let progress = queue.window().progress;
                let outcome = self.send(&*queue, context, (task, made), Sender::Thread, false);
                if !matches!(outcome, Ok(Made::Decoding(_))) {
                    self.publish(context, task, outcome);
                }
                // Batches are sent in order: a later one may have been ready first, or its turn may have come since.
                let is_later = queue.window().progress != progress;
                if is_later && !planted("who sends does not look behind") {
                    self.send_behind(context, &*queue);
                }
            }
            None => self.keep(context, task, made),
        }
    }

    /// Sends what is ready and may have its turn now, in this epoch and in the one after it.
    pub(crate) fn send_behind(&self, context: &EpochContext, queue: &dyn TransferQueue<B>) {
        self.send_ready(context.session, context.epoch_entry, queue, false);
        self.send_following(context);
    }

    /// Makes a task ready that goes to no device, as far as is known.
    fn keep(&self, context: &EpochContext, task: TaskId, made: B) {
        let queue = {
            let mut state = self.lock();
            let Some((session, deferred)) = state.session_of(context, task) else {
                return state.deferred.drop_later(made);
            };
            session.publish(task, Ok(Made::Here(made)), deferred);
            session.queue(context.epoch_entry)
        };
        // The program may have said so meanwhile, and found that the task was not ready.
        if let Some(queue) = queue.filter(|_| !planted("who keeps does not look again")) {
            self.send_behind(context, &*queue);
        }
    }

    /// Sends what the epoch after this one has ready: it may have waited for this one's last batch to begin.
    pub(crate) fn send_following(&self, context: &EpochContext) {
        let following = {
            let mut state = self.lock();
            state.session(context.session).and_then(|(session, _)| {
                let epoch_entry = session.schedule.id_after(context.epoch_entry)?;
                Some((epoch_entry, session.queue(epoch_entry)?))
            })
        };
        if let Some((epoch_entry, queue)) = following
            && queue.window().allowed > 0
            && !planted("who sends does not look beyond the epoch")
        {
            self.send_ready(context.session, epoch_entry, &*queue, false);
        }
    }

    /// Sends the tasks of an epoch that are ready and may be sent. `pageable`: those that are not page-locked as well, which takes as long
    /// as their copy.
    pub(crate) fn send_ready(
        &self,
        session: u64,
        epoch_entry: u64,
        queue: &dyn TransferQueue<B>,
        pageable: bool,
    ) {
        loop {
            let window = queue.window();
            let next = {
                let mut state = self.lock();
                let session = state.session(session);
                session.and_then(|(session, _)| session.take_to_send(epoch_entry, window, pageable))
            };
            let Some((context, tasks)) = next else {
                return;
            };
            let numbers: Vec<TaskId> = tasks.iter().map(|(task, _)| *task).collect();
            let send = || self.send_together(queue, &context, tasks, Sender::Thread);
            let Some(outcomes) = self.catch_panics(&context, &numbers, send) else {
                continue; // their errors are ready
            };
            let is_here =
                |(_, outcome): &(TaskId, Result<Made<B>>)| matches!(outcome, Ok(Made::Here(_)));
            let is_one_here = outcomes.iter().any(is_here);
            let mut state = self.lock();
            for (task, outcome) in outcomes {
                if let Ok(Made::Decoding(_)) = outcome {
                    continue; // the decoder's thread publishes it
                }
                match state.session_of(&context, task) {
                    Some((session, deferred)) => session.publish(task, outcome, deferred),
                    None => state.deferred.drop_later(outcome),
                }
            }
            drop(state);
            if is_one_here && queue.window().progress == window.progress {
                return;
            }
        }
    }

    /// Sends what may be sent of the handle's epoch: first the tasks that the consumer took in advance, then those that are ready. It stops
    /// if the device has no memory without waiting: sending ahead must not fail for lack of memory that will be free by the time the
    /// batch is asked for.
    pub(crate) fn send_ahead(
        &self,
        handle: &EpochHandle,
        taken: &mut Taken<B>,
        queue: &DeviceQueue<B>,
    ) {
        let window = queue.window();
        let mut index = 0;
        loop {
            let behind = taken.iter().skip(index).take(window.together);
            let here = behind.take_while(|next| next.is_here()).count();
            let Some(next) = taken.get_mut(index) else {
                break;
            };
            let (task, batch) = (next.task, next.context.batch(next.task));
            if here > 0 && (batch >= window.allowed || !window.lets(batch, here)) {
                return;
            }
            let Some(made) = next.take_here() else {
                next.permits.end();
                index += 1;
                continue;
            };
            let context = Arc::clone(&next.context);
            let mut tasks = vec![(task, made)];
            let behind = taken.iter_mut().skip(index + 1);
            tasks.extend(take_with(&context, task, behind, queue));
            let mut are_gone = true;
            for (_, outcome) in self.send_together(queue, &context, tasks, Sender::Consumer) {
                are_gone &= taken[index].comes_back(outcome);
                index += 1;
            }
            if !are_gone {
                return;
            }
        }
        self.send_ready(handle.session, handle.epoch_entry, queue, true);
    }

    /// Sends a task that the consumer has come to and that was not sent ahead, as [`send_next`](Pipeline::send_next).
    pub(crate) fn send_taken(
        &self,
        next: &mut Delivered<B>,
        taken: &mut Taken<B>,
        queue: &DeviceQueue<B>,
    ) {
        if let Some(made) = next.take_here() {
            let context = Arc::clone(&next.context);
            let outcome = self.send_next(&context, (next.task, made), taken, queue);
            next.comes_back(outcome);
        }
    }

    /// Sends the task that the consumer has come to, for which it waits for device memory if need be; and with it those that it took in
    /// advance and that may be sent together with it.
    pub(crate) fn send_next(
        &self,
        context: &Arc<EpochContext>,
        (task, made): (TaskId, B),
        taken: &mut Taken<B>,
        queue: &DeviceQueue<B>,
    ) -> Result<Made<B>> {
        let others = take_with(context, task, taken.iter_mut(), queue);
        if others.is_empty() {
            return self.send(queue, context, (task, made), Sender::Consumer, true);
        }
        let mut tasks = vec![(task, made)];
        tasks.extend(others);
        let outcomes = self.send_together(queue, context, tasks, Sender::Consumer);
        let mut outcomes = outcomes.into_iter();
        let Some((_, first)) = outcomes.next() else {
            unreachable!("each task that is sent has an outcome");
        };
        for (next, (_, outcome)) in taken.iter_mut().zip(outcomes) {
            next.comes_back(outcome);
        }
        match first {
            Ok(Made::Here(made)) => self.send(queue, context, (task, made), Sender::Consumer, true),
            outcome => outcome,
        }
    }

    /// Sends tasks that follow each other, as [`send`](Pipeline::send), which does not wait.
    fn send_together(
        &self,
        queue: &dyn TransferQueue<B>,
        context: &EpochContext,
        mut tasks: Each<B>,
        sender: Sender,
    ) -> Each<Result<Made<B>>> {
        if tasks.len() == 1 {
            let send =
                |(task, made)| (task, self.send(queue, context, (task, made), sender, false));
            return tasks.pop().map(send).into_iter().collect();
        }
        span!(
            "send",
            epoch = context.epoch,
            task = tasks[0].0.0,
            count = tasks.len()
        );
        let outcomes = queue.send_together(context, tasks).into_iter();
        let sent = |(task, outcome)| (task, self.sent(queue, context, task, outcome, sender));
        outcomes.map(sent).collect()
    }

    /// Sends a task; `Made::Here` if that is not possible now. `waits`: the consumer has come to it, and waits for device memory.
    fn send(
        &self,
        queue: &dyn TransferQueue<B>,
        context: &EpochContext,
        (task, made): (TaskId, B),
        sender: Sender,
        waits: bool,
    ) -> Result<Made<B>> {
        span!("send", epoch = context.epoch, task = task.0);
        let send = || queue.send(context, task, made, waits);
        let outcome = match context.subject(task) {
            None => send(),
            Some(subject) => subject.sends(send),
        };
        self.sent(queue, context, task, outcome, sender)
    }

    fn sent(
        &self,
        queue: &dyn TransferQueue<B>,
        context: &EpochContext,
        task: TaskId,
        outcome: SendOutcome<B>,
        sender: Sender,
    ) -> Result<Made<B>> {
        match outcome {
            SendOutcome::Sent => {
                self.memory.makes_room();
                Ok(Made::Sent)
            }
            SendOutcome::Decodes(undecoded) => {
                self.memory.makes_room();
                Ok(self.decode(queue, (context, task), undecoded, sender))
            }
            SendOutcome::NotNow(made) => Ok(Made::Here(made)),
            SendOutcome::Failed(error) => Err(error),
            SendOutcome::Unlike(like, error) => {
                let [part, like] = [task, like].map(|task| context.place(task));
                Err(self.factory.unlike(context, part, like, error))
            }
        }
    }
}
