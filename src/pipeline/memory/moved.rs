//! Batches that are made, and not page-locked: they are copied into a slab.

use std::panic::{AssertUnwindSafe, catch_unwind};

use super::Memory;
use super::pinned::{Unpinned, count_unpinned, count_wait};
use crate::batch::{Batch, Relocation, relocated_bytes};
use crate::device::{Slab, Tensors};
use crate::error::panic_message;
use crate::meter::Activity;
use crate::pipeline::epoch::EpochContext;
use crate::pipeline::schedule::{TaskId, Want};
use crate::pipeline::shared::data::Made;
use crate::pipeline::shared::report::Then;
use crate::pipeline::traits::Failed;
use crate::sync::{Instant, planted};
use crate::trace::span;

impl<B: Batch> Memory<B> {
    /// The batch of a task is made. It stays where it is if it is page-locked, or need not be; the pin thread moves it otherwise.
    pub(crate) fn store(&self, context: &EpochContext, task: TaskId, made: B) -> Then<B> {
        let Some(pinning) = self.pinning(context) else {
            return self.shared.publish(context, task, Ok(Made::Here(made)));
        };
        let bytes = match pageable_bytes(&made) {
            Ok(Some(0)) => return self.shared.hand_over(context, task, made),
            Ok(Some(bytes)) => pinning.at_least(bytes),
            Ok(None) => {
                let error = Failed::too_large(usize::MAX).error;
                return self.shared.publish(context, task, Err(error));
            }
            Err(message) => {
                let error = context.collate_panicked(task, message);
                return self.shared.publish(context, task, Err(error));
            }
        };
        let mut state = self.shared.lock();
        let Some((session, deferred)) = state.session_of(context, task) else {
            state.deferred.drop_later(made);
            return Then::Nothing;
        };
        session.schedule.want_to_move(task, bytes);
        let data = session.data(task);
        data.outcome = Some(Ok(Made::Here(made)));
        data.waiting_since = Some(Instant::now());
        if !planted("a move is asked for in silence") {
            deferred.tell_pin_thread(session.share.device);
        }
        Then::Nothing
    }

    /// Copies a finished task into its slab.
    pub(super) fn relocate(
        &self,
        context: &EpochContext,
        want: Want,
        slab: Option<Slab>,
        unpinned: Option<Unpinned>,
    ) -> Then<B> {
        let task = want.task;
        let permit = slab.as_ref().and_then(Slab::permit);
        let Some(Some(Ok(Made::Here(made)))) = self.shared.with_data(context, task, |data| {
            data.permits.add(permit);
            count_wait(context, task, data.waiting_since.take());
            data.outcome.take()
        }) else {
            return Then::Nothing;
        };
        let (Some(slab), None) = (slab, unpinned) else {
            let why = unpinned.unwrap_or(Unpinned::OverBudget);
            count_unpinned(context, want, why);
            self.shared
                .with_data(context, task, |data| data.is_unpinned = true);
            return self.shared.publish(context, task, Ok(Made::Here(made)));
        };
        span!("pin", epoch = context.epoch, task = task.0);
        let bar = context.bar(Activity::Pin, task);
        let start = Instant::now();
        let moved = catch_unwind(AssertUnwindSafe(|| {
            made.relocate(&mut Relocation::new(slab))
        }));
        context.meter.pinning_ns.add_since(start);
        drop(bar);
        match moved {
            Ok(made) => self.shared.hand_over(context, task, made),
            Err(payload) => {
                let error = context.collate_panicked(task, panic_message(payload));
                self.shared.publish(context, task, Err(error))
            }
        }
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
