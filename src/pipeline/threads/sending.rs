//! Sending what is made: the one way of it, for the threads that make tasks and for the consumer.
//!
//! A task that goes to a device is *Made* when it is on the host. The thread that sends it takes it (*Sending*), and it is *Ready* when it
//! was sent, and when its device has decoded what was left to it. If it cannot be sent now, it is Made again.

use super::pipeline::Pipeline;
use crate::batch::Batch;
use crate::error::Result;
use crate::pipeline::epoch::{EpochContext, EpochKey};
use crate::pipeline::schedule::TaskId;
use crate::pipeline::shared::data::Made;
use crate::pipeline::shared::session::Group;
use crate::pipeline::traits::{Each, SendOutcome, TransferQueue};
use crate::pipeline::transfer::send::send;
use crate::sync::{Arc, planted};

/// An epoch's entry, and its queue.
type Following<B> = (u64, Arc<dyn TransferQueue<B>>);

impl<B: Batch> Pipeline<B> {
    /// Sends what is made of an epoch, as far as it may be sent; and then of the epoch after it, whose batches may have waited for the last
    /// of this one to begin. It waits for no memory. `pageable`: what is not page-locked as well, which takes as long as its copy.
    pub(crate) fn send_made(&self, of: EpochKey, queue: &dyn TransferQueue<B>, pageable: bool) {
        let following = self.send_made_of(of, queue, pageable);
        if let Some((epoch_entry, queue)) = following
            && queue.window().allowed > 0
            && !planted("who sends does not look beyond the epoch")
        {
            self.send_made_of(EpochKey { epoch_entry, ..of }, &*queue, pageable);
        }
    }

    /// Returns the epoch after it, if that goes to a device.
    fn send_made_of(
        &self,
        of: EpochKey,
        queue: &dyn TransferQueue<B>,
        pageable: bool,
    ) -> Option<Following<B>> {
        let mut window = queue.window();
        let (mut sent, mut is_stuck) = (None::<(Arc<EpochContext>, Each<Result<Made<B>>>)>, false);
        loop {
            // What was sent is reported under the lock under which the next is taken.
            let group = {
                let mut state = self.lock();
                if let Some((context, outcomes)) = sent.take() {
                    state.were_sent(&context, outcomes);
                    is_stuck |= planted("who sends does not look behind");
                }
                let (session, _) = state.session(of.session)?;
                let group = match is_stuck {
                    true => None,
                    false => session.take_made(of.epoch_entry, window, pageable),
                };
                let Some(group) = group else {
                    session.tell_if_to_send();
                    return session.queue_after(of.epoch_entry);
                };
                group
            };
            let context = Arc::clone(&group.context);
            let outcomes = self.send_group(queue, group, false);
            let is_one_here =
                |(_, outcome): &(TaskId, Result<Made<B>>)| matches!(outcome, Ok(Made::Here(_)));
            let before = window.progress;
            if outcomes.iter().any(is_one_here) {
                // First it is Made again. Another thread that has given it its turn meanwhile did not find it.
                self.lock().were_sent(&context, outcomes);
                window = queue.window();
                is_stuck = window.progress == before;
            } else {
                window = queue.window();
                sent = Some((context, outcomes));
            }
        }
    }

    /// Sends the task that the consumer waits for, and what may go with it; if need be, it waits for device memory. Another thread may be
    /// sending it.
    pub(crate) fn send_next(&self, of: EpochKey, queue: &dyn TransferQueue<B>) {
        let window = queue.window();
        let group = {
            let mut state = self.lock();
            let session = state.session(of.session);
            session.and_then(|(session, _)| session.take_next_made(window))
        };
        if let Some(group) = group {
            let context = Arc::clone(&group.context);
            let outcomes = self.send_group(queue, group, true);
            self.lock().were_sent(&context, outcomes);
        }
    }

    /// Sends tasks, and says what became of each that no decoder has.
    fn send_group(
        &self,
        queue: &dyn TransferQueue<B>,
        group: Group<B>,
        waits: bool,
    ) -> Each<Result<Made<B>>> {
        let Group { context, tasks } = group;
        let numbers: Vec<TaskId> = tasks.iter().map(|(task, _)| *task).collect();
        let send = || {
            let outcomes = send(queue, &context, tasks, waits).into_iter();
            let told = outcomes.filter_map(|(task, outcome)| {
                let is_sent = matches!(outcome, SendOutcome::Sent | SendOutcome::Decodes(_));
                if is_sent {
                    self.memory.makes_room();
                }
                let outcome = match outcome {
                    SendOutcome::Sent => Ok(Made::Sent),
                    SendOutcome::Decodes(undecoded) => {
                        self.decode(queue, &context, task, undecoded);
                        return None; // the decoder's thread makes it ready
                    }
                    SendOutcome::NotNow(made) => Ok(Made::Here(made)),
                    SendOutcome::Failed(error) => Err(error),
                    SendOutcome::Unlike(like, error) => {
                        let [part, like] = [task, like].map(|task| context.place(task));
                        Err(self.factory.unlike(&context, part, like, error))
                    }
                };
                Some((task, outcome))
            });
            told.collect()
        };
        let outcomes = self.catch_panics(&context, &numbers, send);
        outcomes.unwrap_or_default() // their errors are ready
    }
}
