//! Memory for tasks that one worker makes from end to end: pageable memory for each, or one page-locked slab that all of a run share.

use std::cell::{Cell, RefCell};
use std::ops::Range;

use super::Memory;
use crate::batch::Batch;
use crate::device::{Coming, Piece, Pieces, Slab};
use crate::meter::Activity;
use crate::pipeline::epoch::EpochContext;
use crate::pipeline::schedule::TaskId;
use crate::pipeline::shared::session::Run;
use crate::sync::Instant;
use crate::tensor::Offload;
use crate::trace::span;
use crate::tuning::RUN_SLAB_BYTES;

/// What the tasks of a run are made in, one after the other. It is on the stack of the worker that makes them.
pub(crate) struct Slices<'a, B: 'static> {
    memory: &'a Memory<B>,
    context: &'a EpochContext,
    /// What is left to the device.
    pub(crate) offload: Offload,
    /// `None`: there was no slab, or the tasks need not be page-locked.
    pieces: RefCell<Option<Pieces>>,
    are_pinned: bool,
    /// The task that is being made has memory that is not page-locked, and must move.
    is_elsewhere: Cell<bool>,
    /// How many bytes a task took at most.
    most_bytes: Cell<usize>,
}

impl<B: Batch> Slices<'_, B> {
    /// Memory for the next tensor of the task that is being made; `None`: there is none.
    pub(crate) fn next(&self, bytes: usize) -> Option<Piece> {
        self.most_bytes.set(self.most_bytes.get().max(bytes));
        if let Some(pieces) = &mut *self.pieces.borrow_mut()
            && let Some(piece) = pieces.next(bytes)
        {
            return Some(piece);
        }
        let piece = self.memory.pageable_piece(self.context, bytes)?;
        if !self.are_pinned {
            return Some(piece);
        }
        self.is_elsewhere.set(true);
        Some(piece.that_moves())
    }

    /// The next task begins.
    pub(crate) fn begin_task(&self) {
        self.is_elsewhere.set(false);
    }

    /// The last task is made: what is left of the slab is the batches'.
    pub(crate) fn end(&self) {
        *self.pieces.borrow_mut() = None;
    }

    /// The task that was made has memory that is not page-locked, and must move.
    pub(crate) fn is_elsewhere(&self) -> bool {
        self.is_elsewhere.get()
    }

    /// How many bytes a task took so far at most.
    pub(crate) fn most_bytes(&self) -> usize {
        self.most_bytes.get()
    }
}

impl<B: Batch> Memory<B> {
    /// Pageable memory for each of the tasks that the caller makes from end to end.
    pub(crate) fn pageable_slices<'a>(&'a self, context: &'a EpochContext) -> Slices<'a, B> {
        Slices {
            memory: self,
            context,
            offload: Offload::default(),
            pieces: RefCell::new(None),
            are_pinned: false,
            is_elsewhere: Cell::new(false),
            most_bytes: Cell::new(0),
        }
    }

    /// The slab for a run. If there is none now, its tasks are made all the same, and move when there are slabs, as those that are made
    /// elsewhere do.
    pub(crate) fn slices<'a>(
        &'a self,
        context: &'a EpochContext,
        tasks: &Range<u64>,
        run: Run,
    ) -> Slices<'a, B> {
        let offload = run.offload;
        let pieces = self.take_for_run(context, tasks, run);
        if pieces.is_none()
            && let Some((session, deferred)) =
                (self.shared.lock()).session_of(context, TaskId(tasks.start))
        {
            session.schedule.no_run_slab(tasks.clone());
            session.tell_if_waiting(deferred); // it was counted in the quota
        }
        Slices {
            offload,
            pieces: RefCell::new(pieces),
            are_pinned: true,
            ..self.pageable_slices(context)
        }
    }

    fn take_for_run(&self, context: &EpochContext, tasks: &Range<u64>, run: Run) -> Option<Pieces> {
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
            let mut state = self.shared.lock();
            let (session, _) = state.session_of(context, TaskId(tasks.start))?;
            session.schedule.reserve_before_run(tasks)
        };
        let grown = self
            .shared
            .slab_sizes
            .run
            .for_batch(slab.most_bytes, |bytes| {
                bytes <= 2 * RUN_SLAB_BYTES && self.has_room_for_slabs(pinning, quota, bytes)
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
}
