//! Tasks that one thread makes from end to end: each in pageable memory of its own, or a run of them in one page-locked slab.

use std::cell::RefCell;
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};

use super::pipeline::Pipeline;
use crate::batch::Batch;
use crate::device::{Coming, Piece, Pieces, Slab};
use crate::error::drop_each;
use crate::error::panic_message;
use crate::meter::Activity;
use crate::pipeline::epoch::EpochContext;
use crate::pipeline::schedule::TaskId;
use crate::pipeline::shared::session::Run;
use crate::pipeline::shared::workers::{Assignment, What};
use crate::pipeline::traits::{Changes, MadeAlone, Memory, Rebuilder, TransferQueue};
use crate::pipeline::worker_status::{Doing, WorkerStatus};
use crate::sync::{Arc, Instant};
use crate::tensor::Offload;
use crate::trace::span;
use crate::tuning::RUN_SLAB_BYTES;

/// What the tasks of a run are made in.
struct RunMemory {
    /// `None`: there was no slab.
    pieces: Option<Pieces>,
    /// The task that is being made has memory that is not page-locked, and must move.
    is_elsewhere: bool,
    /// How many bytes a task took at most.
    most_bytes: usize,
}

/// What is left to do with a task of a run.
enum Reported<B> {
    /// Its epoch goes to no device, as far as is known.
    Here,
    /// It, or what is ready before it, may be sent through this queue.
    ToSend(Arc<dyn TransferQueue<B>>),
    Gone,
}

impl<B: Batch> Pipeline<B> {
    /// Makes tasks that need not be page-locked. Each is reported at once, so that it does not wait for a slow one after it.
    pub(crate) fn make_all(
        &self,
        status: &WorkerStatus,
        context: &EpochContext,
        tasks: Range<u64>,
    ) {
        for task in tasks.clone() {
            status.enter(Doing::Loading, 0);
            let made = self.make(context, TaskId(task), None, Changes::default(), status);
            if !status.leave() {
                return drop_each([made.made]);
            }
            let mut state = self.lock();
            let rest = task + 1..tasks.end;
            state.takes_on(
                status,
                Some(Assignment::new(context.session, What::Solo { tasks: rest })),
            );
            if !state.made(context, TaskId(task), made) {
                return; // the others are not wanted either
            }
        }
    }

    /// Makes one task from end to end. `own`: again, of items that were pulled for it.
    pub(crate) fn make(
        &self,
        context: &EpochContext,
        task: TaskId,
        own: Option<&Rebuilder<B>>,
        changes: Changes,
        status: &WorkerStatus,
    ) -> MadeAlone<B> {
        let slab = |bytes| self.pageable_piece(context, bytes);
        let memory = Memory {
            slab: &slab,
            offload: Offload::default(),
        };
        self.make_in(context, task, own, &memory, changes, status)
    }

    fn pageable_piece(&self, context: &EpochContext, bytes: usize) -> Option<Piece> {
        let slab = self.pageable.take(bytes)?;
        Some(slab.for_epoch(context.meter.clone()).into())
    }

    fn make_in(
        &self,
        context: &EpochContext,
        task: TaskId,
        own: Option<&Rebuilder<B>>,
        memory: &Memory<'_>,
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
        let make = || factory.make(context, place, memory, changes, status);
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

    /// Makes page-locked tasks one after the other in one slab. Each is reported at once, as above.
    pub(crate) fn make_run(
        &self,
        status: &WorkerStatus,
        context: &EpochContext,
        tasks: Range<u64>,
        run: Run,
    ) {
        let offload = run.offload;
        let memory = RefCell::new(RunMemory {
            pieces: self.take_for_run(context, &tasks, run),
            is_elsewhere: false,
            most_bytes: 0,
        });
        let slab = |bytes| self.piece_of_run(context, &mut memory.borrow_mut(), bytes);
        let (mut unsent, mut together) = (0, None);
        for task in tasks.clone() {
            memory.borrow_mut().is_elsewhere = false;
            status.enter(Doing::Loading, 0);
            let memory_of_task = Memory {
                slab: &slab,
                offload,
            };
            let changes = Changes::default();
            let made = self.make_in(
                context,
                TaskId(task),
                None,
                &memory_of_task,
                changes,
                status,
            );
            if !status.leave() {
                return drop_each([made.made]);
            }
            let rest = task + 1..tasks.end;
            if rest.is_empty() {
                memory.borrow_mut().pieces = None; // what is left of the slab is the batches'
            }
            let is_last = rest.is_empty();
            match self.report_of_run(
                status,
                context,
                (TaskId(task), rest),
                made,
                &memory.borrow(),
            ) {
                Reported::Gone => return, // the others are not wanted either
                Reported::Here => {}
                Reported::ToSend(queue) => {
                    unsent += 1;
                    let most = *together.get_or_insert_with(|| queue.window().together);
                    if is_last || unsent >= most {
                        (unsent, together) = (0, None);
                        if context.plan().solo.is_some_and(|solo| solo.grows) {
                            queue.note_runs();
                        }
                        self.send_behind(context, &*queue);
                    }
                }
            }
        }
    }

    /// Takes the slab for a run. If there is none now, its tasks are made all the same, and move when there are slabs, as those that are
    /// made elsewhere do.
    fn take_for_run(&self, context: &EpochContext, tasks: &Range<u64>, run: Run) -> Option<Pieces> {
        let taken = self.try_take_for_run(context, tasks, run);
        if taken.is_none()
            && let Some((session, deferred)) = self.lock().session_of(context, TaskId(tasks.start))
        {
            session.schedule.no_run_slab(tasks.clone());
            session.tell_if_waiting(deferred); // it was counted in the quota
        }
        taken
    }

    fn try_take_for_run(
        &self,
        context: &EpochContext,
        tasks: &Range<u64>,
        run: Run,
    ) -> Option<Pieces> {
        let (pinning, quota) = (self.pinning(context)?, context.quota.as_ref()?);
        let (slab, reservation) = (run.slab, run.reservation?);
        span!("slab", epoch = context.epoch, task = tasks.start);
        let bar = context.bar(Activity::Slab, TaskId(tasks.start));
        let start = Instant::now();
        quota.add_slabs(context.plan().more_slabs);
        let device = &pinning.device.inner;
        device.settle();
        let coming = device.coming_home(None);
        let grow = !matches!(coming, Coming::Batch(_) | Coming::Decoding);
        let ring = &device.ring;
        // (Earlier tasks may have theirs since the run was claimed.)
        let reserve = {
            let mut state = self.lock();
            let (session, _) = state.session_of(context, TaskId(tasks.start))?;
            session.schedule.reserve_before_run(tasks)
        };
        let grown = self
            .shared
            .slab_sizes
            .run
            .for_batch(slab.most_bytes, |bytes| {
                bytes <= RUN_SLAB_BYTES && self.has_room_for_slabs(pinning, quota, bytes)
            });
        // A slab that is larger than its run takes room that later batches may need, if the budget is small.
        let all_bytes = quota.limit().saturating_mul(slab.most_bytes);
        let largest = match ring.is_beyond_budget(all_bytes) {
            true => slab.bytes,
            false => grown,
        };
        let of_epoch = self.shared.slab_sizes.of(quota.kind()).bytes();
        let largest = largest.max(of_epoch);
        let taken = ring.take_for(reservation, slab.bytes, largest, reserve, grow);
        let meter = &context.meter;
        let waited_ns = meter.pinning_ns.add_since(start);
        drop(bar);
        let taken = taken.filter(Slab::is_page_locked)?;
        if taken.capacity() >= slab.most_bytes {
            self.shared.slab_sizes.run.saw(grown.min(taken.capacity()));
            if self
                .shared
                .slab_sizes
                .of(quota.kind())
                .saw_run(slab.most_bytes)
            {
                ring.news().notify(); // others will be as large
            }
        }
        // Only the first of them may have waited.
        meter.slab_wait_ns.add(waited_ns);
        meter.slab_wait_times.count(waited_ns);
        let others = tasks.end - tasks.start - 1;
        meter.slab_wait_times.count_times(0, others);
        Some(Pieces::of(taken.for_epoch(context.meter.clone())))
    }

    fn piece_of_run(
        &self,
        context: &EpochContext,
        memory: &mut RunMemory,
        bytes: usize,
    ) -> Option<Piece> {
        memory.most_bytes = memory.most_bytes.max(bytes);
        let pieces = memory.pieces.as_mut();
        pieces.and_then(|pieces| pieces.next(bytes)).or_else(|| {
            memory.is_elsewhere = true;
            Some(self.pageable_piece(context, bytes)?.that_moves())
        })
    }

    /// Reports a task of a run.
    fn report_of_run(
        &self,
        status: &WorkerStatus,
        context: &EpochContext,
        (task, rest): (TaskId, Range<u64>),
        alone: MadeAlone<B>,
        memory: &RunMemory,
    ) -> Reported<B> {
        let reported = {
            let mut state = self.lock();
            state.takes_on(
                status,
                Some(Assignment::new(context.session, What::Solo { tasks: rest })),
            );
            let Some((session, deferred)) = state.session_of(context, task) else {
                state.deferred.drop_later(alone.made);
                return Reported::Gone;
            };
            session.schedule.has_bytes(memory.most_bytes);
            let queue = session.queue(context.epoch_entry);
            let reported = queue.map_or(Reported::Here, Reported::ToSend);
            if alone.made.is_ok() && !memory.is_elsewhere {
                session.made_of_run(task, alone, deferred);
                return reported;
            }
            session.schedule.took(task, alone.elapsed_ns());
            if !alone.changes.is_empty() {
                session.data(task).changes = Some(Box::new(alone.changes));
            }
            reported
        };
        match alone.made {
            Err(error) => self.publish(context, task, Err(error)),
            Ok(made) => self.lock_pages(context, task, made),
        }
        reported
    }
}
