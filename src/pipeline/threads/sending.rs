//! Sending what is made: the one way of it, for the threads that make tasks and for the consumer.
//!
//! A task that goes to a device is *Made* when it is on the host. The thread that sends it takes it (*Sending*), and it is *Ready* when it
//! was sent, and when its device has decoded what was left to it. If it cannot be sent now, it is Made again.

use super::pipeline::Pipeline;
use crate::batch::Batch;
use crate::pipeline::epoch::EpochKey;
use crate::pipeline::schedule::TaskId;
use crate::pipeline::shared::data::Made;
use crate::pipeline::shared::session::{Group, Sent};
use crate::pipeline::traits::{SendOutcome, TransferQueue};
use crate::pipeline::transfer::send::send;
use crate::sync::{Arc, planted};

/// An epoch's entry, and its queue.
type Following<B> = (u64, Arc<dyn TransferQueue<B>>);

impl<B: Batch> Pipeline<B> {
    /// Sends what is made of an epoch, as far as it may be sent; and then of the epoch after it, whose batches may have waited for the last
    /// of this one to begin. It waits for no memory. `pageable`: what is not page-locked as well, which takes as long as its copy.
    pub(crate) fn send_made(&self, of: EpochKey, queue: &dyn TransferQueue<B>, pageable: bool) {
        self.send_made_after(of, queue, pageable, None);
    }

    /// Leaves to a worker that sleeps what is made of an epoch and may be sent, if it is large: several of the driver's calls, for which the
    /// program would wait. `false`: the caller sends it. Otherwise it wakes workers ([`wake_workers`](Pipeline::wake_workers)).
    pub(crate) fn leave_made(&self, of: EpochKey, queue: &dyn TransferQueue<B>) -> bool {
        let window = queue.window();
        window.is_large && self.options().workers > 0 && self.lock().leave_made(of, window)
    }

    /// Sends a group that was taken, if its turn has come; and then what its sending gave a turn, as [`send_made`](Pipeline::send_made).
    pub(crate) fn send_first(&self, group: Group<B>, queue: &dyn TransferQueue<B>) {
        self.send_made_after(group.context.key(), queue, false, Some(group));
    }

    fn send_made_after(
        &self,
        of: EpochKey,
        queue: &dyn TransferQueue<B>,
        pageable: bool,
        first: Option<Group<B>>,
    ) {
        let following = self.send_made_of(of, queue, pageable, first);
        if let Some((epoch_entry, queue)) = following
            && queue.window().allowed > 0
            && !planted("a thread that sends does not look beyond the epoch")
        {
            self.send_made_of(EpochKey { epoch_entry, ..of }, &*queue, pageable, None);
        }
    }

    /// Returns the epoch after it, if that goes to a device.
    fn send_made_of(
        &self,
        of: EpochKey,
        queue: &dyn TransferQueue<B>,
        pageable: bool,
        first: Option<Group<B>>,
    ) -> Option<Following<B>> {
        let mut window = queue.window();
        let (mut group, mut is_stuck) = (first, false);
        loop {
            let mut sent = group
                .take()
                .map(|group| self.send_group(queue, group, false));
            let progress = window.progress;
            if let Some(is_here) = sent.take_if(|sent| sent.is_one_here()) {
                // First it is Made again. Another thread that has given it its turn meanwhile did not find it.
                self.lock().were_sent(is_here);
                window = queue.window();
                is_stuck = window.progress == progress;
            } else if sent.is_some() {
                window = queue.window();
            }
            // What was sent is reported under the lock under which the next is taken.
            let mut state = self.lock();
            if let Some(sent) = sent {
                state.were_sent(sent);
                is_stuck |= planted("a thread that sends does not look at later batches");
            }
            let (session, _) = state.session(of.session)?;
            if !is_stuck {
                group = session.take_made(of.epoch_entry, window, pageable);
            }
            if group.is_none() {
                return session.queue_after(of.epoch_entry);
            }
        }
    }

    /// Sends the task that the consumer waits for, and what goes with it; if need be, it waits for device memory.
    pub(crate) fn send_next(&self, queue: &dyn TransferQueue<B>, group: Group<B>) -> Sent<B> {
        self.send_group(queue, group, true)
    }

    /// Sends tasks, and says what became of each that no decoder has.
    fn send_group(&self, queue: &dyn TransferQueue<B>, group: Group<B>, waits: bool) -> Sent<B> {
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
        Sent {
            outcomes: outcomes.unwrap_or_default(), // their errors are ready
            context,
        }
    }
}
