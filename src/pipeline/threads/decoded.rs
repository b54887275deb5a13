//! Decoding: tasks that were sent, and some of whose rows the device's decoder makes.
//!
//! A task that was sent is not ready before its rows are made: the decoder's thread publishes it then.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Duration;

use super::pipeline::Pipeline;
use crate::batch::Batch;
use crate::device::{Device, NotDecoded, Undecoded};
use crate::error::{Error, Stage, TimedOut, panic_message};
use crate::pipeline::epoch::EpochContext;
use crate::pipeline::schedule::TaskId;
use crate::pipeline::shared::data::Made;
use crate::pipeline::shared::session::Session;
use crate::pipeline::shared::state::Requeued;
use crate::pipeline::traits::{Changes, OwnItems, TransferQueue};
use crate::sync::{Arc, Instant, Weak};

/// A task at a device's decoder, whose pictures are to be decoded by an instant.
pub(crate) struct Awaited<B> {
    context: Arc<EpochContext>,
    task: TaskId,
    queue: Arc<dyn TransferQueue<B>>,
    /// It was handed over, or the decoder was done with something before it.
    since: Instant,
    pub(crate) due: Instant,
}

impl<B: Batch> Awaited<B> {
    /// The task of the session that is at a device's decoder for longest, if that has a time limit.
    pub(crate) fn first(session: &mut Session<B>, timeout: Option<Duration>) -> Option<Awaited<B>> {
        let timeout = timeout?;
        let sent = session.schedule.tasks_being_sent();
        let decoded = sent.filter_map(|(task, data)| Some((task, data, data.decoding_since?)));
        let first = decoded.min_by_key(|(.., handed_over)| *handed_over);
        let (task, context, handed_over) = first
            .map(|(task, data, handed_over)| (task, Arc::clone(&data.context), handed_over))?;
        let queue = session.queue(context.epoch_entry)?;
        let since = begun(queue.device(), handed_over);
        Some(Awaited {
            due: since.checked_add(timeout)?,
            context,
            task,
            queue,
            since,
        })
    }
}

/// Since when a device has been at what was handed to its decoder at this instant. Time that it spent on earlier work does not count.
fn begun(device: &Device, handed_over: Instant) -> Instant {
    let moved = device.inner.decoder_moved();
    moved.map_or(handed_over, |moved| moved.max(handed_over))
}

/// The error of a task whose device takes too long to decode its pictures.
fn not_in_time(context: &EpochContext, task: TaskId, device: &Device, elapsed: Duration) -> Error {
    Error::TimedOut(Box::new(TimedOut {
        sample: None,
        count: 1,
        others: Vec::new(),
        epoch: context.epoch,
        batch: context.batch(task),
        stage: Stage::Decoding,
        elapsed,
        worker: format!("the decoder of {}", device.name()),
    }))
}

/// Whether a task can be made again.
pub(crate) fn can_make_again<B: 'static>(
    context: &EpochContext,
    own: Option<&OwnItems<B>>,
) -> bool {
    match context.plan().pulls {
        None => true,
        // Its items may be used up. (Then no policy asks for others, either: the picture's error is the batch's.)
        Some(_) => own.is_some_and(|own| own.keeps),
    }
}

/// Takes a task's samples out of the statistics: it is made again.
fn uncount<B>(
    context: &EpochContext,
    task: TaskId,
    own: Option<&OwnItems<B>>,
    changes: Option<&Changes>,
) {
    let rows = own.map_or_else(|| context.place(task).rows, |own| own.place.rows);
    let left_out = changes.map_or(0, |changes| changes.skipped.len());
    context.meter.samples.take_back((rows - left_out) as u64);
}

impl<B: Batch> Pipeline<B> {
    /// Has the rows decoded of a task that was sent. It is ready then.
    pub(crate) fn decode(
        &self,
        queue: &dyn TransferQueue<B>,
        context: &EpochContext,
        task: TaskId,
        undecoded: Undecoded,
    ) {
        let context = {
            let mut state = self.lock();
            state.session_of(context, task).map(|(session, deferred)| {
                session.schedule.decoding(task);
                session.data(task).decoding_since = Some(Instant::now());
                deferred.wake_workers = true; // it is out of the window
                session.context(task)
            })
        };
        // (If it is gone, it is not wanted.)
        if let Some(context) = context {
            let pipeline = Weak::clone(&self.me);
            let tell = move |outcome| {
                if let Some(pipeline) = pipeline.upgrade() {
                    pipeline.is_decoded(&context, task, outcome);
                }
            };
            queue.decode(undecoded, Box::new(tell));
        }
    }

    /// Makes a task ready whose rows are made, or gives it to be made again. (On the decoder's thread.)
    fn is_decoded(&self, context: &EpochContext, task: TaskId, outcome: Result<(), NotDecoded>) {
        let publish = || match outcome {
            Ok(()) => self.publish(context, task, Ok(Made::Sent)),
            Err(why) if why.is_of_picture() && self.makes_again(context, task) => {}
            Err(why) => {
                let error = self.not_decoded(context, task, why);
                self.publish(context, task, Err(error));
            }
        };
        if let Err(payload) = catch_unwind(AssertUnwindSafe(publish)) {
            self.lock().breaks(panic_message(payload));
        }
    }

    /// A task that the consumer waits for, or another of its session, is at a decoder that hangs: it fails. What the decoder has of it
    /// stays there.
    pub(crate) fn give_up_decoding(&self, late: Awaited<B>) {
        let Awaited {
            context,
            task,
            queue,
            since,
            ..
        } = late;
        let elapsed = Instant::now().saturating_duration_since(since);
        let device = queue.device();
        device.inner.decoder_is_late();
        let error = not_in_time(&context, task, device, elapsed);
        self.publish(&context, task, Err(error));
    }

    /// A task has a picture that cannot be decoded, and the policy for such samples is the workers' to carry out: one makes it again,
    /// without the device. `false`: it cannot be made again.
    fn makes_again(&self, context: &EpochContext, task: TaskId) -> bool {
        let queue = {
            let mut state = self.lock();
            let Some((session, _)) = state.session_of(context, task) else {
                return true; // it is not wanted
            };
            if !session.schedule.is_being_sent(task) {
                return true; // it has failed otherwise
            }
            let data = session.data(task);
            let own = data.own.as_deref();
            if !can_make_again(context, own) {
                return false;
            }
            uncount(context, task, own, data.changes.as_deref());
            data.decoding_since = None;
            session.queue(context.epoch_entry)
        };
        if let Some(queue) = queue {
            queue.take_back(context, task);
        }
        let mut state = self.lock();
        let (sessions, deferred) = state.split();
        let session = sessions.session(context.session);
        if let Some(session) = session.filter(|session| session.schedule.holds(task)) {
            // Without workers, the consumer does it.
            session.wake_consumer(deferred);
            deferred.wake_workers = true;
            let requeued = (context.session, Requeued::NotDecoded(task));
            sessions.requeued.push_back(requeued);
        } // if not, its epoch was left meanwhile
        true
    }

    fn not_decoded(&self, context: &EpochContext, task: TaskId, why: NotDecoded) -> Error {
        match why {
            NotDecoded::Failed(error) => error,
            NotDecoded::Picture { row, error } => {
                let place = self.place(context, task);
                Error::Sample(self.factory.sample_id(context, place, row, None), error)
            }
        }
    }
}
