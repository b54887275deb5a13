//! The steps of a task: it is loaded, laid out, finished, stored and made ready; and what follows from each.
//!
//! A step reports under the shared lock, and is told what follows from that ([`Then`]): the last thread that works on a task takes its next
//! step.

use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind};

use super::decoded::can_make_again;
use super::pipeline::Pipeline;
use crate::batch::Batch;
use crate::error::drop_each;
use crate::error::{Result, panic_message};
use crate::meter::Activity;
use crate::pipeline::epoch::EpochContext;
use crate::pipeline::schedule::{Claimed, TaskId};
use crate::pipeline::shared::data::Made;
use crate::pipeline::shared::report::{Step, StepReport, Then};
use crate::pipeline::shared::session::Job;
use crate::pipeline::shared::workers::{Assignment, What};
use crate::pipeline::traits::{Build, Changes, Failed, MadeAlone, Rebuilder};
use crate::pipeline::worker_status::{Doing, WorkerStatus};
use crate::sync::{Arc, Instant, planted};
use crate::trace::span;

impl<B: Batch> Pipeline<B> {
    /// As [`catch_panics`](Pipeline::catch_panics), for a worker. A worker that was given up reports nothing.
    pub(crate) fn attend<R>(
        &self,
        status: &WorkerStatus,
        context: &EpochContext,
        task: TaskId,
        f: impl FnOnce() -> R,
    ) -> Option<R> {
        match catch_unwind(AssertUnwindSafe(f)) {
            Ok(result) => Some(result),
            Err(payload) => {
                let error = context.collate_panicked(task, panic_message(payload));
                if status.leave() {
                    self.publish(context, task, Err(error));
                }
                None
            }
        }
    }

    /// Works on tasks. Panics of the user's code are caught where it is called. What is caught here (say, a panic in a sample's
    /// `drop`) must not end the thread either, or the task and those after it would never come.
    pub(crate) fn catch_panics<R>(
        &self,
        context: &EpochContext,
        tasks: &[TaskId],
        f: impl FnOnce() -> R,
    ) -> Option<R> {
        match catch_unwind(AssertUnwindSafe(f)) {
            Ok(result) => Some(result),
            Err(payload) => {
                let message = panic_message(payload);
                for &task in tasks {
                    let error = context.collate_panicked(task, message.clone());
                    self.publish(context, task, Err(error));
                }
                None
            }
        }
    }

    /// Loads what was claimed, reports that, and does what follows from it; or, if that is nothing, claims the next job.
    pub(crate) fn load(
        &self,
        status: &WorkerStatus,
        context: &EpochContext,
        task: TaskId,
        claimed: Claimed,
        build: Arc<dyn Build<B>>,
    ) -> Option<Job<B>> {
        span!("load", epoch = context.epoch, task = task.0);
        let mut bar = context.bar(Activity::Load, task);
        status.enter(Doing::Loading, 0);
        let granted = Cell::new(Then::Nothing);
        let ask = |bytes| {
            let asked = self.memory.ask(context, task, &*build, bytes);
            asked.map(|then| granted.set(then)).is_ok()
        };
        let report = build.load(claimed, &ask, status);
        if let Some(bar) = &mut bar {
            bar.more = report.spent.more();
        }
        drop(bar);
        self.follow_alone(context, task, granted.into_inner());
        if !status.leave() && !planted("a worker that was given up reports") {
            drop_each([(build, report.failure)]);
            return None;
        }
        let report = StepReport {
            build: Some(build),
            failure: report.failure,
            step: Step::Loaded(report.rows, report.elapsed_ns),
        };
        let (then, job) = {
            let mut state = self.lock();
            let then = state.report(Some(status), context, task, report);
            let claims = then.is_nothing() && !state.is_closed && !status.is_nobodys();
            let job = claims.then(|| self.claim(&mut state, status)).flatten();
            (then, job)
        };
        self.follow(status, context, task, then);
        job
    }

    /// Reports what became of a step, and does what follows from that.
    pub(crate) fn report(
        &self,
        status: &WorkerStatus,
        context: &EpochContext,
        task: TaskId,
        report: StepReport<B>,
    ) {
        let then = self.lock().report(Some(status), context, task, report);
        self.follow(status, context, task, then);
    }

    /// Does what follows from a step. Each arm is a step of its own, so no lock is held.
    pub(crate) fn follow(
        &self,
        status: &WorkerStatus,
        context: &EpochContext,
        task: TaskId,
        then: Then<B>,
    ) {
        match then {
            Then::Nothing => {}
            Then::LayOut => self.lay_out(status, context, task),
            Then::Finish => self.finish(status, context, task),
            Then::Fail => self.publish_failure(status, context, task),
            Then::Send(queue, group) => self.send_first(group, &*queue),
            Then::MakeWay(queue) => {
                if !planted("a batch that failed stays in the way") {
                    queue.give_up(context.batch(task), task);
                    self.send_made(context.key(), &*queue, false);
                }
            }
        }
    }

    /// The same, for a thread that makes no batches meanwhile: the pin thread, or one that was granted memory.
    pub(crate) fn follow_alone(&self, context: &EpochContext, task: TaskId, then: Then<B>) {
        if !then.is_nothing() {
            self.follow(&WorkerStatus::of_caller(self.began), context, task, then);
        }
    }

    /// Makes the task or its error ready, and wakes the consumer if it waits for it.
    pub(crate) fn publish(&self, context: &EpochContext, task: TaskId, outcome: Result<Made<B>>) {
        let then = self.shared.publish(context, task, outcome);
        self.follow_alone(context, task, then);
    }

    /// Lays out a task whose samples are all parked.
    fn lay_out(&self, status: &WorkerStatus, context: &EpochContext, task: TaskId) {
        let build = self
            .shared
            .with_data(context, task, |data| data.build.clone());
        let Some(Some(build)) = build else { return };
        status.enter(Doing::Planning, 0);
        status.since(Instant::now());
        let bar = context.bar(Activity::LayOut, task);
        let laid_out = build.lay_out();
        drop(bar);
        if !status.leave() {
            return drop_each([(build, laid_out)]);
        }
        let asked = laid_out.and_then(|bytes| {
            let asked = self.memory.ask(context, task, &*build, bytes);
            asked.map_err(|_| Failed::too_large(bytes))
        });
        let (failure, step) = match asked {
            Ok(then) => {
                // A refusal is the task's error, and there may be no other thread to deliver it.
                self.follow_alone(context, task, then);
                (None, Step::LaidOut)
            }
            Err(failure) => (Some(failure), Step::NotLaidOut),
        };
        let report = StepReport {
            build: Some(build),
            failure,
            step,
        };
        self.report(status, context, task, report);
    }

    /// Makes a batch of the task's rows. The schedule has given the task to the caller alone.
    pub(crate) fn finish(&self, status: &WorkerStatus, context: &EpochContext, task: TaskId) {
        span!("collate", epoch = context.epoch, task = task.0);
        let build = self.shared.with_data(context, task, |data| {
            data.build.take().map(|build| (build, data.is_unpinned))
        });
        let Some(Some((mut build, is_unpinned))) = build else {
            return;
        };
        status.enter(Doing::Collating, 0);
        status.since(Instant::now());
        let bar = context.bar(Activity::Collate, task);
        let Some(made) = Arc::get_mut(&mut build).map(Build::finish) else {
            unreachable!("everybody drops a task's work before reporting it");
        };
        drop(bar);
        let changes = build.changes();
        drop(build);
        if !status.leave() {
            return drop_each([made]);
        }
        let made = match made {
            Ok(made) => made,
            Err(failure) => {
                let rebuilder = failure.can_rebuild.then(|| {
                    let mut state = self.lock();
                    let (session, _) = state.session_of(context, task)?;
                    let own = session.data(task).own.as_deref();
                    if !can_make_again(context, own) {
                        return None;
                    }
                    let own = own.map(|own| own.again());
                    session.schedule.remaking(task);
                    Some(own)
                });
                return match rebuilder.flatten() {
                    Some(own) => self.rebuild(status, context, task, changes, own),
                    None => self.publish(context, task, Err(failure.error)),
                };
            }
        };
        if !changes.is_empty() {
            self.shared
                .with_data(context, task, |data| data.changes = Some(Box::new(changes)));
        }
        let is_in_parts = context.plan().is_in_parts();
        // A batch in parts is made when the last of them is sent.
        context.meter.batches.add(u64::from(!is_in_parts));
        if self.memory.pinning(context).is_none() || is_unpinned {
            return self.publish(context, task, Ok(Made::Here(made)));
        }
        if is_in_parts {
            let then = self.shared.hand_over(context, task, made);
            return self.follow_alone(context, task, then);
        }
        self.store(context, task, made);
    }

    /// A task is made: it stays where it is, or moves, and is handed over when it is where it should be.
    pub(crate) fn store(&self, context: &EpochContext, task: TaskId, made: B) {
        let then = self.memory.store(context, task, made);
        self.follow_alone(context, task, then);
    }

    /// Delivers the error of a task that no thread works on any more; or makes the task again, if it can do without the sample that failed.
    fn publish_failure(&self, status: &WorkerStatus, context: &EpochContext, task: TaskId) {
        // The pin thread loads no samples, because other tasks wait for it.
        let can_make = !status.is_nobodys() || self.options().workers == 0;
        let (failure, build, own) = {
            let mut state = self.lock();
            let Some((session, _)) = state.session_of(context, task) else {
                return;
            };
            let data = session.data(task);
            let Some(mut failure) = data.failure.take() else {
                return;
            };
            failure.can_rebuild &= can_make;
            if let Some(build) = &data.build {
                failure.can_rebuild &= build.has_good_samples();
                let changes = build.changes();
                if !failure.can_rebuild && !changes.is_empty() {
                    data.changes = Some(Box::new(changes)); // they failed all the same
                }
            }
            let (mut build, mut own) = (None, None);
            if failure.can_rebuild {
                build = data.build.take();
                let items = data.own.as_ref();
                own = items.map(|items| items.again());
                session.schedule.remaking(task);
                state.takes_on(
                    status,
                    Some(Assignment::new(context.session, What::Finish { task })),
                );
            }
            (failure, build, own)
        };
        if !failure.can_rebuild {
            return self.publish(context, task, Err(failure.error));
        }
        let changes = build.as_ref().map(|build| build.changes());
        drop_each([build]); // its samples are the user's
        self.rebuild(status, context, task, changes.unwrap_or_default(), own);
    }

    /// Makes a task again, alone.
    pub(crate) fn rebuild(
        &self,
        status: &WorkerStatus,
        context: &EpochContext,
        task: TaskId,
        changes: Changes,
        own: Option<Rebuilder<B>>,
    ) {
        status.enter(Doing::Loading, 0);
        let slices = self.memory.pageable_slices(context);
        let alone = self.make(context, task, own.as_ref(), &slices, changes, status);
        drop_each([own]);
        if !status.leave() {
            return drop_each([alone.made]);
        }
        self.rebuilt(context, task, alone);
    }

    /// Hands over a task that was made again: not in the slab that it had, whose layout was made for other samples.
    fn rebuilt(&self, context: &EpochContext, task: TaskId, alone: MadeAlone<B>) {
        let is_unpinned = self.shared.with_data(context, task, |data| {
            data.changes = Some(Box::new(alone.changes));
            data.is_unpinned
        });
        match (alone.made, is_unpinned, self.memory.pinning(context)) {
            (Ok(made), Some(false), Some(_)) => self.store(context, task, made),
            (made, ..) => self.publish(context, task, made.map(Made::Here)),
        }
    }
}
