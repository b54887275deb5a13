//! How one worker at a time pulls the items of a stream's tasks.
//!
//! A task is opened for the worker that pulls its items. When they are there, it has its rows, and is loaded as any task is. If there are
//! none left, the task is gone again, and the epoch's end is known. If there are none for now, the task is that error, and the next one asks again. So pulling is serial, and the order is the stream's; a task that is
//! loaded never turns out to be shorter.
//!
//! The stream lies in its epoch's data while no thread pulls. The worker that pulls has taken it out, so no lock is held meanwhile. Between
//! two items, streams ask whether to go on ([`progress`](crate::iterable::progress)): not if the epoch has left the shared state, or the
//! worker was given up. What comes of the pull then is dropped, as anything is that is made for a task that is gone.

use std::panic::{AssertUnwindSafe, catch_unwind};

use super::pipeline::Pipeline;
use crate::batch::Batch;
use crate::error::drop_each;
use crate::error::{Error, Result, panic_message};
use crate::iterable::{Watcher, watched};
use crate::meter::Activity;
use crate::pipeline::epoch::{EpochContext, EpochKey};
use crate::pipeline::plan::partition::Place;
use crate::pipeline::schedule::TaskId;
use crate::pipeline::shared::data::TaskData;
use crate::pipeline::shared::report::Then;
use crate::pipeline::traits::{Pull, Pulled, TransferQueue};
use crate::pipeline::worker_status::{Doing, WorkerStatus};
use crate::sync::{Arc, Instant, planted};
use crate::tensor::Offload;
use crate::trace::span;

/// What a worker is told between two items: the next one has a timeout of its own, if it is still waited for. `None`: the caller pulls, on
/// its own thread, and cannot leave the epoch meanwhile.
fn watcher(status: &WorkerStatus, context: &Arc<EpochContext>) -> Option<Watcher> {
    let (status, context) = (status.shared()?, Arc::clone(context));
    Some(Arc::new(move || {
        status.begins(Doing::Pulling);
        !context.has_left()
            && (!status.is_given_up() || planted("a worker that was given up goes on pulling"))
    }))
}

/// Runs the program's code that gives the items. What it panics with is an error.
fn pull_items<B>(
    stream: &mut dyn Pull<B>,
    status: &WorkerStatus,
    context: &Arc<EpochContext>,
    task: TaskId,
    offload: Offload,
) -> Result<Pulled<B>> {
    let place = context.place(task);
    // Unwind safety: a stream that panicked is not asked again.
    let pull = AssertUnwindSafe(|| stream.pull(context, place, offload));
    let _bar = context.bar(Activity::Pull, task);
    let pulled = watched(watcher(status, context), || catch_unwind(pull));
    pulled.unwrap_or_else(|payload| {
        Err(Error::IterablePanicked {
            epoch: context.epoch,
            batch: place.batch,
            message: panic_message(payload),
        })
    })
}

impl<B: Batch> Pipeline<B> {
    /// Pulls the items of a task, and lets all workers load them.
    pub(crate) fn pull(
        &self,
        status: &WorkerStatus,
        context: &Arc<EpochContext>,
        task: TaskId,
        mut stream: Box<dyn Pull<B>>,
        offload: Offload,
    ) {
        span!("pull", epoch = context.epoch, task = task.0);
        status.enter(Doing::Pulling, 0);
        let start = Instant::now();
        status.since(start);
        let pulled = pull_items(&mut *stream, status, context, task, offload);
        let has_left = status.leave();
        if has_left {
            context.meter.pulling_ns.add_since(start);
        }
        match pulled {
            Ok(Pulled::NotNow(error)) if has_left => {
                self.pull_later(context, task, error, stream);
            }
            Ok(pulled) if has_left => self.note_pulled(context, task, pulled, stream),
            Err(error) if has_left => {
                drop_each([stream]);
                self.fail_pull(context, task, error);
            }
            pulled => {
                drop_each([stream]);
                drop_each([pulled]);
            }
        }
    }

    /// Gives a task the items that were pulled for it, and the stream back to its epoch. If there are none left, the task goes.
    fn note_pulled(
        &self,
        context: &EpochContext,
        task: TaskId,
        pulled: Pulled<B>,
        stream: Box<dyn Pull<B>>,
    ) {
        let mut stream = Some(stream);
        let mut state = self.lock();
        let Some((session, deferred)) = state.session_of(context, task) else {
            state.deferred.drop_later((pulled, stream));
            return;
        };
        // (If the consumer is just leaving the epoch, its end is known, and its tasks are about to go.)
        let count = match pulled {
            Pulled::Items {
                build,
                own,
                is_last,
            } => {
                session.schedule.pulled(task, own.place.rows);
                let data = session.data(task);
                data.build = Some(build);
                data.own = Some(own);
                if is_last {
                    session.schedule.close_end(context.epoch_entry)
                } else {
                    if let Some(epoch) = session.schedule.epoch(context.epoch_entry) {
                        epoch.stream = stream.take();
                    }
                    None
                }
            }
            Pulled::Nothing | Pulled::NotNow(_) => {
                let schedule = &mut session.schedule;
                let count =
                    schedule.close_end_before(task, context.epoch_entry, deferred.removed());
                if !planted("the end of a stream is found in silence") {
                    session.tell_consumer(task, deferred);
                }
                count
            }
        };
        deferred.wake_workers = true;
        deferred.drop_later(stream);
        let queue = session.queue(context.epoch_entry);
        drop(state);
        if let Some(batches) = count {
            self.tell_end(context, queue.as_deref(), batches);
        }
    }

    /// A stream has no items of a task for now: the task is an error, and the next one asks again.
    fn pull_later(
        &self,
        context: &EpochContext,
        task: TaskId,
        error: Error,
        stream: Box<dyn Pull<B>>,
    ) {
        let queue = {
            let mut state = self.lock();
            let Some((session, deferred)) = state.session_of(context, task) else {
                return state.deferred.drop_later((error, stream));
            };
            // (In one lock: the consumer may take the task at once, and a worker open the next.)
            session.publish(task, Err(error), deferred);
            match session.schedule.epoch(context.epoch_entry) {
                Some(epoch) => epoch.stream = Some(stream),
                None => deferred.drop_later(stream),
            }
            deferred.wake_workers = true;
            session.queue(context.epoch_entry)
        };
        if let Some(queue) = queue {
            self.follow_alone(context, task, Then::MakeWay(queue));
        }
    }

    /// A stream did not give the items of a task: the task is an error, and the epoch's last.
    pub(crate) fn fail_pull(&self, context: &EpochContext, task: TaskId, error: Error) {
        let (count, queue) = {
            let mut state = self.lock();
            let Some((session, _)) = state.session_of(context, task) else {
                return state.deferred.drop_later(error);
            };
            let count = session.schedule.close_end(context.epoch_entry);
            (count, session.queue(context.epoch_entry))
        };
        self.publish(context, task, Err(error));
        if let Some(batches) = count {
            self.tell_end(context, queue.as_deref(), batches);
        }
        self.wake_workers(); // for the epoch after it
    }

    /// Where a task lies, which the plan does not know of one whose items were pulled.
    pub(crate) fn place(&self, context: &EpochContext, task: TaskId) -> Place {
        let own = |data: &mut TaskData<B>| Some(data.own.as_ref()?.place);
        let own = self.shared.with_data(context, task, own);
        own.flatten().unwrap_or_else(|| context.place(task))
    }

    /// It is known how many batches an epoch has. What may be sent beyond them is of the epoch after it.
    fn tell_end(&self, context: &EpochContext, queue: Option<&dyn TransferQueue<B>>, batches: u64) {
        let Some(queue) = queue.filter(|_| !planted("a transfer queue is not told of the end"))
        else {
            return;
        };
        let beyond = queue.ends(batches);
        let following = {
            let mut state = self.lock();
            let session = state.session(context.session);
            session.and_then(|(session, _)| session.queue_after(context.epoch_entry))
        };
        if let Some((epoch_entry, queue)) = following {
            queue.allow_first(beyond);
            let following = EpochKey {
                epoch_entry,
                ..context.key()
            };
            self.send_made(following, &*queue, false);
        }
    }
}
