//! Page-locked slabs for tasks: granted at once if one is there, otherwise by the pin thread.

use super::Memory;
use super::early::Early;
use crate::batch::Batch;
use crate::device::{ByteBudget, BytePermit, Coming, Kind, Ring, Slab, SlabQuota, block_bytes};
use crate::error::{Error, Result};
use crate::meter::Activity;
use crate::pipeline::epoch::EpochContext;
use crate::pipeline::plan::options::Pinning;
use crate::pipeline::schedule::{TaskId, Want};
use crate::pipeline::shared::report::Then;
use crate::pipeline::traits::{Build, Failed};
use crate::sync::log;
use crate::sync::{Arc, Instant, Ordering, planted};
use crate::trace::span;

/// What happens to a task for which the ring has no slab now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Missing {
    /// An upload holds a slab, which comes home without the program doing anything.
    WaitForCopy,
    /// The consumer is busy, or has batches to drop: something will change.
    Sleep,
    /// Nothing comes home unless the consumer lets go, and it is blocked on this task: the task does without.
    Unpinned,
}

/// The rule when a slab is missing. `is_coming`: an upload that holds one is in flight. Nothing else counts: a download, a copy into an
/// existing tensor, and what the program holds may all wait for the program, which waits for this task.
fn missing(is_coming: bool, is_blocked: bool) -> Missing {
    match (is_coming, is_blocked) {
        (true, _) => Missing::WaitForCopy,
        (false, true) => Missing::Unpinned,
        (false, false) => Missing::Sleep,
    }
}

/// What became of a task that wants a slab.
pub(crate) enum Served<T> {
    /// The task has its slab, or does without; and what follows from that.
    Done(T),
    /// An upload brings a slab home.
    WaitForCopy(Coming),
    /// Something must change first.
    Sleep,
}

/// There is no memory of that size.
pub(crate) struct NoMemory;

/// Why a batch is not page-locked.
#[derive(Debug, Clone, Copy)]
pub(super) enum Unpinned {
    /// The program holds all slabs that its epoch may have.
    HeldByProgram,
    /// The budget has no room.
    OverBudget,
    /// The system refuses to lock more memory.
    Unlockable,
}

impl<B: Batch> Memory<B> {
    /// A task that is being loaded asks for a slab. Usually it is granted one here, from the ring or new. The error: there is no such
    /// memory.
    pub(crate) fn ask(
        &self,
        context: &EpochContext,
        task: TaskId,
        build: &dyn Build<B>,
        bytes: usize,
    ) -> Result<Then<B>, NoMemory> {
        let pinning = self.pinning(context);
        let pinning = pinning.filter(|pinning| !pinning.by_copy);
        let bytes = match pinning {
            Some(pinning) if !context.plan().is_in_parts() => pinning.at_least(bytes),
            _ => bytes,
        };
        let Some(pinning) = pinning.filter(|_| bytes > 0) else {
            return self.ask_pageable(context, task, build, bytes);
        };
        let want = {
            let mut state = self.shared.lock();
            let Some((session, _)) = state.session_of(context, task) else {
                return Ok(Then::Nothing);
            };
            session.schedule.want(task, bytes);
            let quota = context.quota.as_ref();
            let streams = quota.is_some_and(|quota| quota.outgrows_the_cache(bytes));
            session
                .schedule
                .streams(task, if streams { bytes } else { 0 });
            session.data(task).waiting_since = Some(Instant::now());
            session.schedule.granting(task)
        };
        // If an earlier task waits, it must wait its turn.
        if let Some(want) = want {
            if let Ok(slab) = self.take(pinning, context, want) {
                return Ok(self.grant_taken(pinning, context, want, slab));
            }
            self.not_granted(context, task);
        }
        if !planted("a slab is asked for in silence") {
            pinning.ring().news().notify();
        }
        Ok(Then::Nothing)
    }

    /// A share of the byte budget for so many bytes. If it has no room, a task gets one all the same for which the consumer is blocked, unless
    /// something `is_coming` home.
    fn permit(
        &self,
        byte_budget: &Arc<ByteBudget>,
        context: &EpochContext,
        bytes: usize,
        want: Want,
        is_coming: bool,
    ) -> Option<Arc<BytePermit>> {
        let reserved = bytes.saturating_mul(want.reserve);
        let try_permit = || byte_budget.try_permit(bytes, reserved, &context.meter);
        let permit = try_permit().or_else(|| {
            byte_budget.miss();
            self.settle_others(context.device);
            try_permit()
        });
        let goes_beyond = want.is_blocked && !is_coming;
        permit.or_else(|| goes_beyond.then(|| byte_budget.permit(bytes, &context.meter)))
    }

    /// Takes a slab from the device's ring, after bringing home those of finished copies. The error: there is none now, and what will
    /// bring one home.
    fn take(&self, pinning: &Pinning, context: &EpochContext, want: Want) -> Result<Slab, Coming> {
        let Some(quota) = &context.quota else {
            return Err(Coming::Nothing);
        };
        span!("slab", epoch = context.epoch, task = want.task.0);
        let bar = context.bar(Activity::Slab, want.task);
        let start = Instant::now();
        let device = &pinning.device.inner;
        let size = &self.shared.slab_sizes.of(quota.kind());
        let largest = size.for_batch(want.bytes, |bytes| {
            self.has_room_for_slabs(pinning, quota, bytes)
        });
        // Usually one is idle. Only if not, copies are asked whether they have ended.
        if self.byte_budget.is_none()
            && let Some(slab) = device
                .ring
                .reuse_for(quota, want.bytes, largest, want.reserve)
        {
            context.meter.pinning_ns.add_since(start);
            if size.saw(want.bytes) {
                device.ring.news().notify(); // others will be as large
            }
            return Ok(slab.for_epoch(context.meter.clone()));
        }
        device.settle();
        // Before the ring, so that copies that are no longer in flight have brought their slabs home. If the epoch's own share is
        // used up, only copies of its own slabs help.
        let own = is_full(quota, want).then(|| SlabQuota::name(quota));
        let coming = device.coming_home(own);
        // The ring may make more blocks than the quotas' shares only if no batch's slab will come home.
        let grow = !matches!(coming, Coming::Batch(_) | Coming::Decoding);
        let permit = match &self.byte_budget {
            None => None,
            Some(byte_budget) => {
                let bytes = block_bytes(largest).unwrap_or(usize::MAX);
                let is_coming = !matches!(coming, Coming::Nothing);
                match self.permit(byte_budget, context, bytes, want, is_coming) {
                    Some(permit) => Some(permit),
                    None if is_coming => return Err(coming),
                    None => return Err(self.coming_elsewhere(context.device)),
                }
            }
        };
        let reservation = match want.is_blocked {
            true => quota.reserve_last(),
            false => quota.reserve(want.reserve, 0),
        };
        let slab = reservation.and_then(|reservation| {
            let ring = &device.ring;
            ring.take_for(reservation, want.bytes, largest, want.reserve, grow)
        });
        context.meter.pinning_ns.add_since(start);
        drop(bar);
        match slab {
            Some(slab) => {
                // (Where the budget had no room for one that is larger than the batch, it is as large as that.)
                let bytes = largest.min(slab.capacity()).max(want.bytes);
                self.saw_slab(pinning, quota, bytes);
                Ok(slab.for_epoch(context.meter.clone()).charged(permit))
            }
            None => {
                if let Some(permit) = permit {
                    permit.give_back(device.ring.news());
                }
                match device.ring.is_beyond_budget(want.bytes) {
                    // No slab that comes home helps a batch that is larger than the whole budget.
                    true => Err(Coming::Nothing),
                    false => Err(coming),
                }
            }
        }
    }

    /// Whether the budget, and the bytes in flight, have room for all slabs that there may be, if they are so large.
    pub(super) fn has_room_for_slabs(
        &self,
        pinning: &Pinning,
        quota: &SlabQuota,
        bytes: usize,
    ) -> bool {
        let of_quota = quota.limit().saturating_mul(bytes);
        let byte_budget = self.byte_budget.as_ref();
        byte_budget.is_none_or(|byte_budget| of_quota <= byte_budget.limit())
            && pinning.ring().has_room_for_shares(bytes)
    }

    /// Notes how large a slab was wanted.
    fn saw_slab(&self, pinning: &Pinning, quota: &SlabQuota, bytes: usize) {
        if self.shared.slab_sizes.of(quota.kind()).saw(bytes) {
            if self.byte_budget.is_some() {
                quota.keep_within(self.shared.slab_sizes.within(quota.kind()));
            }
            pinning.ring().news().notify(); // others will be as large
        }
    }

    /// Makes one of the slabs that the open epochs will need, while there is nothing else to do. So the first batches do not wait for all
    /// of them to be made, and later ones for none. `early`: what is made without waiting for that size.
    pub(crate) fn make_ahead(&self, ring: &Ring, early: &mut Option<Early>) -> bool {
        if early.is_some_and(|early| early.make_one(ring)) {
            return true;
        }
        *early = None; // what the program gives back from now on stays given back
        [Kind::Whole, Kind::Part].into_iter().any(|kind| {
            let bytes = self.shared.slab_sizes.of(kind).bytes();
            bytes > 0 && ring.make_ahead(kind, bytes, None)
        })
    }

    /// Tries to grant a waiting task its slab.
    pub(crate) fn serve(
        &self,
        pinning: &Pinning,
        context: &EpochContext,
        task: TaskId,
    ) -> Served<Then<B>> {
        let want = {
            let mut state = self.shared.lock();
            let session = state.session_of(context, task);
            session.and_then(|(session, _)| session.schedule.granting(task))
        };
        // Another thread may have served the task meanwhile, or its epoch is gone.
        let Some(want) = want else {
            return Served::Done(Then::Nothing);
        };
        let news = pinning.ring().news();
        let _interest = news.interest();
        let ticket = news.ticket();
        let coming = match self.take(pinning, context, want) {
            Ok(slab) => return Served::Done(self.grant_taken(pinning, context, want, slab)),
            Err(coming) => coming,
        };
        let is_coming = !matches!(coming, Coming::Nothing);
        let served = match missing(is_coming, want.is_blocked) {
            // If a slab came home meanwhile, or a copy was enqueued, look again: going without cannot be undone.
            Missing::Unpinned if news.ticket() == ticket => {
                self.warn_once(pinning, context, want);
                pinning.ring().count_missed();
                return Served::Done(self.go_without(pinning, context, want, None));
            }
            Missing::Unpinned => Served::Done(Then::Nothing),
            Missing::WaitForCopy => Served::WaitForCopy(coming),
            Missing::Sleep => Served::Sleep,
        };
        self.not_granted(context, task);
        served
    }

    /// Grants a task the slab that the ring had for it.
    fn grant_taken(
        &self,
        pinning: &Pinning,
        context: &EpochContext,
        want: Want,
        slab: Slab,
    ) -> Then<B> {
        match slab.is_page_locked() {
            true => self.grant(context, want, Some(slab), None),
            false => self.go_without(pinning, context, want, Some(slab)),
        }
    }

    /// The task is not page-locked: either the system did not lock the slab's pages, or there is no slab, none will come home, and
    /// the consumer is blocked on the task.
    fn go_without(
        &self,
        pinning: &Pinning,
        context: &EpochContext,
        want: Want,
        slab: Option<Slab>,
    ) -> Then<B> {
        let why = match slab {
            Some(_) => Unpinned::Unlockable,
            None if holds_all(context, want) => Unpinned::HeldByProgram,
            None => Unpinned::OverBudget,
        };
        if !pinning.strict {
            return self.grant(context, want, slab, Some(why));
        }
        count_unpinned(context, want, why);
        let ring = pinning.ring();
        let error = match why {
            Unpinned::Unlockable => ring.unlockable(want.bytes),
            Unpinned::OverBudget => ring.refusal(want.bytes),
            Unpinned::HeldByProgram => Error::Pinned {
                bytes: want.bytes,
                reason: held_by_program(context),
            },
        };
        drop(slab);
        match want.moves {
            true => self.shared.publish(context, want.task, Err(error)),
            false => self
                .shared
                .refuse(context, want.task, Failed::of_task(error)),
        }
    }

    fn warn_once(&self, pinning: &Pinning, context: &EpochContext, want: Want) {
        if !self.has_warned.swap(true, Ordering::Relaxed) {
            let why = match holds_all(context, want) {
                true => held_by_program(context),
                false => pinning.ring().over_budget(want.bytes),
            };
            log::warn!("a batch of {} bytes goes unpinned: {why}", want.bytes);
        }
    }

    /// Grants a task its slab, or, where there is none, a pageable one.
    fn grant(
        &self,
        context: &EpochContext,
        want: Want,
        slab: Option<Slab>,
        unpinned: Option<Unpinned>,
    ) -> Then<B> {
        if want.moves {
            // (Without a page-locked slab, it stays where it is.)
            return self.relocate(context, want, slab, unpinned);
        }
        let slab = slab.or_else(|| {
            // (It cannot wait any longer.)
            let permit = self.byte_budget.as_ref();
            let permit = permit.map(|byte_budget| byte_budget.permit(want.bytes, &context.meter));
            let slab = self.pageable.take(want.bytes)?;
            Some(slab.for_epoch(context.meter.clone()).charged(permit))
        });
        let permit = slab.as_ref().and_then(Slab::permit);
        let build = self.shared.with_data(context, want.task, |data| {
            data.permits.add(permit);
            data.is_unpinned = unpinned.is_some();
            data.build.clone()
        });
        let Some(Some(build)) = build else {
            return Then::Nothing;
        };
        let Some(slab) = slab else {
            drop(build);
            let failure = Failed::too_large(want.bytes);
            return self.shared.refuse(context, want.task, failure);
        };
        if let Some(why) = unpinned {
            count_unpinned(context, want, why);
        }
        build.grant(slab);
        drop(build); // before the report: the thread that finishes the task must be its only holder
        let mut state = self.shared.lock();
        let Some((session, deferred)) = state.session_of(context, want.task) else {
            return Then::Nothing;
        };
        session.schedule.granted(want.task);
        count_wait(
            context,
            want.task,
            session.data(want.task).waiting_since.take(),
        );
        // Until now its slab counted both as out and as reserved, and another task may have been refused because of that.
        if !planted("a slab is granted in silence") {
            session.tell_if_waiting(deferred);
        }
        deferred.wake_workers = true;
        Then::Nothing
    }

    fn not_granted(&self, context: &EpochContext, task: TaskId) {
        if let Some((session, _)) = self.shared.lock().session_of(context, task) {
            session.schedule.not_granted(task);
        }
    }
}

/// Whether the epoch's own share is used up, whatever the budget.
fn holds_all(context: &EpochContext, want: Want) -> bool {
    let quota = context.quota.as_ref();
    quota.is_some_and(|quota| is_full(quota, want))
}

fn is_full(quota: &SlabQuota, want: Want) -> bool {
    match want.is_blocked {
        true => quota.is_full_for_last(),
        false => quota.is_full(want.reserve),
    }
}

fn held_by_program(context: &EpochContext) -> String {
    let slabs = context.quota.as_ref().map_or(0, |quota| quota.limit());
    format!(
        "the program holds all page-locked slabs of its epoch ({slabs}), and waits for one more. Drop batches or send them to \
         the device before taking the next, or (with workers) raise prefetch"
    )
}

pub(super) fn count_unpinned(context: &EpochContext, want: Want, why: Unpinned) {
    let meter = &context.meter;
    meter.unpinned.add(1);
    match why {
        Unpinned::HeldByProgram => {}
        Unpinned::OverBudget => {
            meter.over_budget.add(1);
            meter.over_budget_bytes.see(want.bytes as u64);
        }
        Unpinned::Unlockable => meter.unlockable.add(1),
    }
}

pub(super) fn count_wait(context: &EpochContext, task: TaskId, since: Option<Instant>) {
    if let Some(since) = since {
        let waited = context.meter.slab_wait_ns.add_since(since);
        context.meter.slab_wait_times.count(waited);
        if let Some(subject) = context.subject(task) {
            subject.waited_for_slab(since);
        }
    }
}
