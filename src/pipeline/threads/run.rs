//! Tasks that one thread makes from end to end: each in pageable memory of its own, or a run of them in one page-locked slab.

use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};

use super::pipeline::Pipeline;
use crate::batch::Batch;
use crate::error::drop_each;
use crate::error::panic_message;
use crate::meter::Activity;
use crate::pipeline::epoch::EpochContext;
use crate::pipeline::memory::slices::Slices;
use crate::pipeline::schedule::TaskId;
use crate::pipeline::shared::session::Run;
use crate::pipeline::shared::workers::{Assignment, What};
use crate::pipeline::traits::{Changes, MadeAlone, Rebuilder, TaskMemory, TransferQueue};
use crate::pipeline::worker_status::{Doing, WorkerStatus};
use crate::sync::Arc;
use crate::trace::span;

/// What is left to do with a task of a run.
enum Reported<B> {
    /// Its epoch goes to no device, as far as is known.
    Here,
    /// It goes to a device.
    ToSend {
        queue: Arc<dyn TransferQueue<B>>,
        /// The consumer does not.
        may_send: bool,
    },
    Gone,
}

impl<B: Batch> Pipeline<B> {
    /// Makes tasks one after the other: in one page-locked slab, if there is a `run`. Each is reported at once, so that it does not wait for
    /// a slow one after it.
    pub(crate) fn make_run(
        &self,
        status: &WorkerStatus,
        context: &EpochContext,
        tasks: Range<u64>,
        run: Option<Run>,
    ) {
        let is_pinned = run.is_some();
        let slices = match run {
            None => self.memory.pageable_slices(context),
            Some(run) => self.memory.slices(context, &tasks, run),
        };
        let (mut unsent, mut together) = (0, None);
        for task in tasks.clone() {
            slices.begin_task();
            status.enter(Doing::Loading, 0);
            let changes = Changes::default();
            let made = self.make(context, TaskId(task), None, &slices, changes, status);
            if !status.leave() {
                return drop_each([made.made]);
            }
            let rest = task + 1..tasks.end;
            let is_last = rest.is_empty();
            if is_last {
                slices.end();
            }
            let task = (TaskId(task), rest);
            let reported = match is_pinned {
                true => self.report_of_run(status, context, task, made, &slices),
                false => self.report_pageable(status, context, task, made),
            };
            match reported {
                Reported::Gone => return, // the others are not wanted either
                Reported::Here => {}
                Reported::ToSend { queue, may_send } => {
                    unsent += 1;
                    let most = *together.get_or_insert_with(|| queue.window().together);
                    if is_last || unsent >= most {
                        (unsent, together) = (0, None);
                        if context.plan().solo.is_some_and(|solo| solo.grows) {
                            queue.note_runs();
                        }
                        if may_send {
                            self.send_made(context.key(), &*queue, false);
                        }
                    }
                }
            }
        }
    }

    /// Makes one task from end to end. `own`: again, of items that were pulled for it.
    pub(crate) fn make(
        &self,
        context: &EpochContext,
        task: TaskId,
        own: Option<&Rebuilder<B>>,
        slices: &Slices<'_, B>,
        changes: Changes,
        status: &WorkerStatus,
    ) -> MadeAlone<B> {
        span!("make", epoch = context.epoch, task = task.0);
        let mut bar = context.bar(Activity::Load, task);
        // What is caught here (say, a panic in a sample's `drop`) must not end the thread.
        let (factory, place) = match own {
            None => (&*self.factory, context.place(task)),
            Some(own) => (&*own.factory, own.place),
        };
        let memory = TaskMemory {
            slab: &|bytes| slices.next(bytes),
            offload: slices.offload,
        };
        let make = || factory.make(context, place, &memory, changes, status);
        match catch_unwind(AssertUnwindSafe(make)) {
            Ok(made) => {
                if let Some(bar) = &mut bar {
                    bar.more = made.spent.unwrap_or_default().more();
                }
                made
            }
            Err(payload) => {
                MadeAlone::failed(context.collate_panicked(task, panic_message(payload)))
            }
        }
    }

    /// Reports a task that need not be page-locked. (The consumer sends what is pageable.)
    fn report_pageable(
        &self,
        status: &WorkerStatus,
        context: &EpochContext,
        (task, rest): (TaskId, Range<u64>),
        made: MadeAlone<B>,
    ) -> Reported<B> {
        let mut state = self.lock();
        let rest = Assignment::new(context.session, What::Solo { tasks: rest });
        state.takes_on(status, Some(rest));
        match state.made(context, task, made) {
            true => Reported::Here,
            false => Reported::Gone,
        }
    }

    /// Reports a page-locked task, or one that will be moved.
    fn report_of_run(
        &self,
        status: &WorkerStatus,
        context: &EpochContext,
        (task, rest): (TaskId, Range<u64>),
        alone: MadeAlone<B>,
        slices: &Slices<'_, B>,
    ) -> Reported<B> {
        let reported = {
            let mut state = self.lock();
            let rest = Assignment::new(context.session, What::Solo { tasks: rest });
            state.takes_on(status, Some(rest));
            let Some((session, deferred)) = state.session_of(context, task) else {
                state.deferred.drop_later(alone.made);
                return Reported::Gone;
            };
            session.schedule.has_bytes(slices.most_bytes());
            let queue = session.queue(context.epoch_entry);
            let to_send = |may_send| match queue {
                Some(queue) => Reported::ToSend { queue, may_send },
                None => Reported::Here,
            };
            if alone.made.is_ok() && !slices.is_elsewhere() {
                return to_send(session.made_of_run(task, alone, deferred));
            }
            session.schedule.took(task, alone.elapsed_ns());
            if !alone.changes.is_empty() {
                session.data(task).changes = Some(Box::new(alone.changes));
            }
            to_send(true)
        };
        match alone.made {
            Err(error) => self.publish(context, task, Err(error)),
            Ok(made) => self.store(context, task, made),
        }
        reported
    }
}
