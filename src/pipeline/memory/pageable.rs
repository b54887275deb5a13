//! Memory for tasks that need not be page-locked: at once, or, if bytes in flight are limited, when there is room.

use super::Memory;
use super::pinned::NoMemory;
use crate::batch::Batch;
use crate::device::{BytePermit, Piece, block_bytes};
use crate::error::drop_each;
use crate::pipeline::epoch::EpochContext;
use crate::pipeline::schedule::TaskId;
use crate::pipeline::shared::report::Then;
use crate::pipeline::traits::{Build, Failed};
use crate::sync::Arc;

impl<B: Batch> Memory<B> {
    /// Pageable memory at once.
    pub(super) fn pageable_piece(&self, context: &EpochContext, bytes: usize) -> Option<Piece> {
        let slab = self.pageable.take(bytes)?;
        Some(slab.for_epoch(context.meter.clone()).into())
    }

    /// A task asks for a slab that need not be page-locked.
    pub(super) fn ask_pageable(
        &self,
        context: &EpochContext,
        task: TaskId,
        build: &dyn Build<B>,
        bytes: usize,
    ) -> Result<Then<B>, NoMemory> {
        // (The ring's blocks are whole pages.)
        let size = block_bytes(bytes).unwrap_or(bytes);
        let permit = match &self.byte_budget {
            None => None,
            Some(byte_budget) => {
                let mut state = self.shared.lock();
                let Some((session, _)) = state.session_of(context, task) else {
                    return Ok(Then::Nothing);
                };
                if !session
                    .schedule
                    .want_pageable(task, size, byte_budget.free())
                {
                    return Ok(Then::Nothing); // a worker grants it later
                }
                Some(byte_budget.permit(size, &context.meter))
            }
        };
        let Some(slab) = self.pageable.take(bytes) else {
            return Err(NoMemory);
        };
        let slab = slab.for_epoch(context.meter.clone()).charged(permit);
        let permit = slab.permit();
        build.grant(slab);
        let mut state = self.shared.lock();
        if let Some((session, deferred)) = state.session_of(context, task) {
            if permit.is_none() {
                session.schedule.want(task, bytes);
            }
            session.schedule.granted_pageable(task);
            session.data(task).permits.add(permit);
            deferred.wake_workers = true;
        }
        Ok(Then::Nothing)
    }

    /// Grants a task its slab that waited until fewer bytes were in flight.
    pub(crate) fn grant_held(
        &self,
        context: &EpochContext,
        task: TaskId,
        build: Arc<dyn Build<B>>,
        bytes: usize,
        permit: Option<Arc<BytePermit>>,
    ) -> Then<B> {
        let Some(slab) = self.pageable.take(bytes) else {
            drop_each([build]); // it may be the last holder
            return self.shared.refuse(context, task, Failed::too_large(bytes));
        };
        let slab = slab.for_epoch(context.meter.clone()).charged(permit);
        let permit = slab.permit();
        build.grant(slab);
        drop_each([build]);
        let mut state = self.shared.lock();
        if let Some((session, deferred)) = state.session_of(context, task) {
            session.schedule.granted_pageable(task);
            session.data(task).permits.add(permit);
            deferred.wake_workers = true;
        }
        Then::Nothing
    }
}
