//! Workers: they plan epochs, load samples and make batches.

use std::panic::{AssertUnwindSafe, catch_unwind};

use super::decoded::can_make_again;
use super::pipeline::Pipeline;
use crate::batch::{Batch, relocated_bytes};
use crate::device::Tensors;
use crate::error::drop_each;
use crate::error::{Result, panic_message};
use crate::meter::Activity;
use crate::pipeline::epoch::EpochContext;
use crate::pipeline::schedule::{Claimed, Next, TaskId};
use crate::pipeline::shared::data::{Made, TaskData};
use crate::pipeline::shared::deferred::Deferred;
use crate::pipeline::shared::lock::Locked;
use crate::pipeline::shared::session::{Job, Session};
use crate::pipeline::shared::workers::{Assignment, What};
use crate::pipeline::traits::{Build, Changes, Failed, MadeAlone, Rebuilder};
use crate::pipeline::worker_status::{Doing, WorkerStatus};
use crate::sync::{Arc, Instant, planted};
use crate::trace::span;

impl<B: Batch> Pipeline<B> {
    /// Runs a worker until the loader is dropped, or the worker is given up.
    pub(crate) fn run_worker(&self, status: &WorkerStatus) {
        let mut next = None;
        while let Some(job) = next.or_else(|| self.next_job(status)) {
            next = self.perform(job, status);
        }
    }

    /// Waits for something to do; `None` when the loader is dropped, or another thread has the worker's place.
    fn next_job(&self, status: &WorkerStatus) -> Option<Job<B>> {
        let mut state = self.lock();
        let group = state.group(status.number());
        let mut was_on = true;
        loop {
            if state.is_closed || status.is_given_up() {
                return None;
            }
            if !state.active_workers.is_on(status.number()) {
                // It may have been woken for something to do: before it sleeps, another worker is woken for that.
                state.deferred.wake_workers |= was_on && !planted("who goes off duty wakes nobody");
                was_on = false;
                state.idle_inactive += 1;
                state.wait(&self.shared.inactive);
                state.idle_inactive -= 1;
                continue;
            }
            was_on = true;
            if let Some(job) = self.claim(&mut state, status) {
                return Some(job);
            }
            state.idle[group] += 1;
            state.wait(&self.shared.workers[group]);
            state.idle[group] -= 1;
        }
    }

    /// Claims something for a worker to do, if there is anything.
    fn claim(&self, state: &mut Locked<'_, B>, status: &WorkerStatus) -> Option<Job<B>> {
        if !state.active_workers.is_on(status.number()) {
            return None;
        }
        let group = state.group(status.number());
        let job = state.claim(&*self.factory, group)?;
        state.takes_on(status, Assignment::of(&job));
        // Each worker that is woken wakes the next, as long as there is work: no worker is woken for nothing.
        state.deferred.wake_workers = !planted("a claim wakes nobody");
        Some(job)
    }

    /// Does a job. A worker that has reported may have claimed its next one under the same lock, which is returned.
    pub(crate) fn perform(&self, job: Job<B>, status: &WorkerStatus) -> Option<Job<B>> {
        match job {
            Job::Plan {
                session,
                epoch_entry,
            } => self.plan_early(session, epoch_entry),
            Job::Load {
                context,
                task,
                claimed,
                build,
            } => {
                let load = || self.load(status, &context, task, claimed, build);
                return self.attend(status, &context, task, load).flatten();
            }
            Job::Finish { context, task } => {
                self.attend(status, &context, task, || {
                    self.finish(status, &context, task)
                });
            }
            Job::Rebuild {
                context,
                task,
                changes,
                own,
            } => {
                self.attend(status, &context, task, || {
                    self.rebuild(status, &context, task, changes, own);
                });
            }
            Job::Solo {
                context,
                tasks,
                run,
            } => match run {
                None => self.make_all(status, &context, tasks),
                Some(run) => self.make_run(status, &context, tasks, run),
            },
            Job::Grant {
                context,
                task,
                bytes,
                build,
                permit,
            } => self.grant_held(&context, task, build, bytes, permit),
            Job::Pull {
                context,
                task,
                stream,
                offload,
            } => self.pull(status, &context, task, stream, offload),
        }
        None
    }

    /// As [`catch_panics`](Pipeline::catch_panics), for a worker. A worker that was given up reports nothing.
    fn attend<R>(
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
    fn load(
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
        let ask = |bytes| self.ask(context, task, &*build, bytes);
        let report = build.load(claimed, &ask, status);
        if let Some(bar) = &mut bar {
            bar.more = report.spent.more();
        }
        drop(bar);
        if !status.leave() && !planted("who was given up reports") {
            drop_each([(build, report.failure)]);
            return None;
        }
        let (next, job) = {
            let mut state = self.lock();
            let next = state.report(
                status,
                context,
                task,
                Some(build),
                report.failure,
                |session, _| {
                    session
                        .schedule
                        .loaded(task, report.rows, report.elapsed_ns)
                },
            );
            let claims = next == Next::Wait && !state.is_closed && !status.is_nobodys();
            let job = claims.then(|| self.claim(&mut state, status)).flatten();
            (next, job)
        };
        self.follow(status, context, task, next);
        job
    }

    /// Lets go of a task's work, reports what came of it, and does what follows from that.
    pub(crate) fn report(
        &self,
        status: &WorkerStatus,
        context: &EpochContext,
        task: TaskId,
        build: Option<Arc<dyn Build<B>>>,
        failure: Option<Failed>,
        report: impl FnOnce(&mut Session<B>, &mut Deferred<B>) -> Next,
    ) {
        let mut state = self.lock();
        let next = state.report(status, context, task, build, failure, report);
        drop(state);
        self.follow(status, context, task, next);
    }

    /// Does what follows from a report.
    fn follow(&self, status: &WorkerStatus, context: &EpochContext, task: TaskId, next: Next) {
        match next {
            Next::Wait => {}
            Next::LayOut => self.lay_out(status, context, task),
            Next::Finish => self.finish(status, context, task),
            Next::Fail => self.publish_failure(status, context, task),
        }
    }

    /// Lays out a task whose samples are all parked.
    fn lay_out(&self, status: &WorkerStatus, context: &EpochContext, task: TaskId) {
        let build = self.with_data(context, task, |data| data.build.clone());
        let Some(Some(build)) = build else { return };
        status.enter(Doing::Planning, 0);
        status.since(Instant::now());
        let bar = context.bar(Activity::LayOut, task);
        let laid_out = build.lay_out();
        drop(bar);
        if !status.leave() {
            return drop_each([(build, laid_out)]);
        }
        let failure = match laid_out {
            Ok(bytes) if self.ask(context, task, &*build, bytes) => None,
            Ok(bytes) => Some(Failed::too_large(bytes)),
            Err(failure) => Some(failure),
        };
        let has_failed = failure.is_some();
        self.report(
            status,
            context,
            task,
            Some(build),
            failure,
            |session, deferred| {
                deferred.wake_workers = true; // there may be parked samples to fill
                match has_failed {
                    true => session.schedule.failed(task),
                    false => session.schedule.laid_out(task),
                }
            },
        );
    }

    /// Makes a batch of the task's rows. The schedule has given the task to the caller alone.
    fn finish(&self, status: &WorkerStatus, context: &EpochContext, task: TaskId) {
        span!("collate", epoch = context.epoch, task = task.0);
        let build = self.with_data(context, task, |data| {
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
            self.with_data(context, task, |data| data.changes = Some(Box::new(changes)));
        }
        let is_in_parts = context.plan().is_in_parts();
        // A batch in parts is made when the last of them is sent.
        context.meter.batches.add(u64::from(!is_in_parts));
        if self.pinning(context).is_none() || is_unpinned {
            return self.publish(context, task, Ok(Made::Here(made)));
        }
        if is_in_parts {
            return self.hand_over(context, task, made);
        }
        self.lock_pages(context, task, made);
    }

    /// Hands a task over that is page-locked; the pin thread moves it if it is not.
    pub(crate) fn lock_pages(&self, context: &EpochContext, task: TaskId, made: B) {
        match pageable_bytes(&made) {
            Ok(Some(0)) => self.hand_over(context, task, made),
            Ok(Some(bytes)) => self.ask_to_move(context, task, made, bytes),
            Ok(None) => self.publish(context, task, Err(Failed::too_large(usize::MAX).error)),
            Err(message) => {
                let error = context.collate_panicked(task, message);
                self.publish(context, task, Err(error));
            }
        }
    }

    /// Reports that a task cannot have its slab. The last thread that works on the task delivers the failure.
    pub(crate) fn refuse(&self, context: &EpochContext, task: TaskId, failure: Failed) {
        let nobody = WorkerStatus::of_caller(self.began);
        self.report(
            &nobody,
            context,
            task,
            None,
            Some(failure),
            |session, deferred| {
                let next = session.schedule.refused(task);
                session.tell_if_waiting(deferred); // as in `publish`
                next
            },
        );
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
    fn rebuild(
        &self,
        status: &WorkerStatus,
        context: &EpochContext,
        task: TaskId,
        changes: Changes,
        own: Option<Rebuilder<B>>,
    ) {
        status.enter(Doing::Loading, 0);
        let alone = self.make(context, task, own.as_ref(), changes, status);
        drop_each([own]);
        if !status.leave() {
            return drop_each([alone.made]);
        }
        self.rebuilt(context, task, alone);
    }

    /// Hands over a task that was made again: not in the slab that it had, whose layout was made for other samples.
    fn rebuilt(&self, context: &EpochContext, task: TaskId, alone: MadeAlone<B>) {
        let is_unpinned = self.with_data(context, task, |data| {
            data.changes = Some(Box::new(alone.changes));
            data.is_unpinned
        });
        match (alone.made, is_unpinned, self.pinning(context)) {
            (Ok(made), Some(false), Some(_)) => self.lock_pages(context, task, made),
            (made, ..) => self.publish(context, task, made.map(Made::Here)),
        }
    }

    /// Makes the task or its error ready, and wakes the consumer if it waits for it.
    pub(crate) fn publish(&self, context: &EpochContext, task: TaskId, outcome: Result<Made<B>>) {
        let is_failed = outcome.is_err();
        let queue = {
            let mut state = self.lock();
            let Some((session, deferred)) = state.session_of(context, task) else {
                return state.deferred.drop_later(outcome);
            };
            session.publish(task, outcome, deferred);
            session.queue(context.epoch_entry).filter(|_| is_failed)
        };
        if let Some(queue) = queue.filter(|_| !planted("a batch that failed stays in the way")) {
            queue.give_up(context.batch(task), task);
            self.send_behind(context, &*queue);
        }
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

impl<B: Batch> Locked<'_, B> {
    /// Lets go of a task's work, and reports what came of it.
    fn report(
        &mut self,
        status: &WorkerStatus,
        context: &EpochContext,
        task: TaskId,
        build: Option<Arc<dyn Build<B>>>,
        failure: Option<Failed>,
        report: impl FnOnce(&mut Session<B>, &mut Deferred<B>) -> Next,
    ) -> Next {
        let Some((session, deferred)) = self.session_of(context, task) else {
            self.deferred.drop_later(build);
            self.deferred.drop_later(failure);
            return Next::Wait;
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
        let next = report(session, deferred);
        let what = match next {
            Next::Wait | Next::Fail => None,
            Next::LayOut => Some(What::LayOut { task }),
            Next::Finish => Some(What::Finish { task }),
        };
        self.takes_on(
            status,
            what.map(|what| Assignment::new(context.session, what)),
        );
        next
    }
}

/// How many bytes of a batch are not page-locked, `None` if they are too many to count. The error: the user's `Batch` panicked.
fn pageable_bytes<B: Batch>(batch: &B) -> Result<Option<usize>, String> {
    let count = || {
        let mut tensors = Tensors::default();
        batch.tensors(&mut tensors);
        relocated_bytes(&tensors)
    };
    catch_unwind(AssertUnwindSafe(count)).map_err(panic_message)
}
