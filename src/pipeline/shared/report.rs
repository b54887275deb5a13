//! Reports: a thread says what became of its step of a task, and hears what follows from that.

use super::data::{Made, TaskData};
use super::lock::{Locked, Shared};
use super::session::Group;
use super::workers::{Assignment, What};
use crate::error::Result;
use crate::pipeline::epoch::EpochContext;
use crate::pipeline::schedule::{Loaded, Next, TaskId};
use crate::pipeline::traits::{Build, Failed, TransferQueue};
use crate::pipeline::worker_status::WorkerStatus;
use crate::sync::{Arc, planted};

/// What follows from a step. Lower floors return it; `threads/steps.rs` performs it, without the lock.
#[must_use]
pub(crate) enum Then<B> {
    Nothing,
    /// All samples of the task are parked: it is laid out.
    LayOut,
    /// Its rows are filled: its batch is made of them.
    Finish,
    /// It failed, and no thread works on it any more: its error is delivered, or it is made again.
    Fail,
    /// It is made, and is sent through this queue.
    Send(Arc<dyn TransferQueue<B>>, Group<B>),
    /// Its error is ready: batches behind it do not wait for it in this queue.
    MakeWay(Arc<dyn TransferQueue<B>>),
}

impl<B> Then<B> {
    pub(crate) fn is_nothing(&self) -> bool {
        matches!(self, Then::Nothing)
    }
}

impl<B> From<Next> for Then<B> {
    fn from(next: Next) -> Then<B> {
        match next {
            Next::Wait => Then::Nothing,
            Next::LayOut => Then::LayOut,
            Next::Finish => Then::Finish,
            Next::Fail => Then::Fail,
        }
    }
}

/// What became of a step of a task.
pub(crate) struct StepReport<B> {
    /// The build that the reporting thread holds.
    pub(crate) build: Option<Arc<dyn Build<B>>>,
    pub(crate) failure: Option<Failed>,
    pub(crate) step: Step,
}

/// The step that ended.
pub(crate) enum Step {
    /// Rows were loaded, or not, in so many nanoseconds for all of them, if that is known.
    Loaded(Loaded, Option<u64>),
    LaidOut,
    /// The task could not be laid out.
    NotLaidOut,
    /// It cannot have its slab.
    Refused,
}

impl<B: 'static> Locked<'_, B> {
    /// Lets go of a task's build, and reports what became of a step. `by`: the worker that made it.
    pub(crate) fn report(
        &mut self,
        by: Option<&WorkerStatus>,
        context: &EpochContext,
        task: TaskId,
        report: StepReport<B>,
    ) -> Then<B> {
        let StepReport {
            build,
            failure,
            step,
        } = report;
        let Some((session, deferred)) = self.session_of(context, task) else {
            self.deferred.drop_later(build);
            self.deferred.drop_later(failure);
            return Then::Nothing;
        };
        // Before the report, because the thread that finishes the task must be its only holder. (If the shared state holds no reference,
        // ours may be the last, and its `drop` the user's.)
        match session.data(task).build {
            Some(_) if planted("work is held beyond its report") => _ = build.map(Arc::into_raw),
            Some(_) => drop(build),
            None => deferred.drop_later(build),
        }
        if let Some(failure) = failure {
            session.note_failure(task, failure, deferred);
        }
        let next = match step {
            Step::Loaded(rows, elapsed_ns) => session.schedule.loaded(task, rows, elapsed_ns),
            Step::LaidOut => {
                deferred.wake_workers = true; // there are parked samples to fill
                session.schedule.laid_out(task)
            }
            Step::NotLaidOut => {
                deferred.wake_workers = true;
                session.schedule.failed(task)
            }
            Step::Refused => {
                let next = session.schedule.refused(task);
                session.tell_if_waiting(deferred); // as in `publish`
                next
            }
        };
        let what = match next {
            Next::Wait | Next::Fail => None,
            Next::LayOut => Some(What::LayOut { task }),
            Next::Finish => Some(What::Finish { task }),
        };
        if let Some(status) = by {
            let assignment = what.map(|what| Assignment::new(context.session, what));
            self.takes_on(status, assignment);
        }
        next.into()
    }
}

impl<B: 'static> Shared<B> {
    /// Makes the task or its error ready, and wakes the consumer if it waits for it.
    pub(crate) fn publish(
        &self,
        context: &EpochContext,
        task: TaskId,
        outcome: Result<Made<B>>,
    ) -> Then<B> {
        let is_failed = outcome.is_err();
        let mut state = self.lock();
        let Some((session, deferred)) = state.session_of(context, task) else {
            state.deferred.drop_later(outcome);
            return Then::Nothing;
        };
        session.publish(task, outcome, deferred);
        match session.queue(context.epoch_entry).filter(|_| is_failed) {
            Some(queue) => Then::MakeWay(queue),
            None => Then::Nothing,
        }
    }

    /// A page-locked task is made: it is ready, or is to be sent.
    pub(crate) fn hand_over(&self, context: &EpochContext, task: TaskId, made: B) -> Then<B> {
        let mut state = self.lock();
        let Some((session, deferred)) = state.session_of(context, task) else {
            state.deferred.drop_later(made);
            return Then::Nothing;
        };
        let to_send = session.hand_over(task, made, deferred);
        to_send.map_or(Then::Nothing, |(queue, group)| Then::Send(queue, group))
    }

    /// The task cannot have its slab. The last thread that works on it delivers the failure.
    pub(crate) fn refuse(&self, context: &EpochContext, task: TaskId, failure: Failed) -> Then<B> {
        let report = StepReport {
            build: None,
            failure: Some(failure),
            step: Step::Refused,
        };
        self.lock().report(None, context, task, report)
    }

    /// Looks at an open task under the lock; `None` if the task is gone.
    pub(crate) fn with_data<R>(
        &self,
        context: &EpochContext,
        task: TaskId,
        look: impl FnOnce(&mut TaskData<B>) -> R,
    ) -> Option<R> {
        let mut state = self.lock();
        let (session, _) = state.session_of(context, task)?;
        Some(look(session.data(task)))
    }
}
