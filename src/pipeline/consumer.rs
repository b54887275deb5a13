//! The consumer's side: an epoch begins, gives its batches in order, and ends.

use super::arrivals::Arrivals;
use super::board::{Board, Destination, Entering, Live, Made, Slot, Taken};
use super::schedule::Cut;
use super::source::BatchId;
use super::{DEFAULT_DEPTH, Parts, Pipeline};
use crate::batch::Batch;
use crate::device::{Account, Device};
use crate::error::{CollateError, Error, Result};
use crate::sync::Arc;

/// What the consumer finds when it asks for the next batch.
#[allow(clippy::large_enum_variant)] // it lives for a few instructions, and is never stored
enum Next<B> {
    /// Its slot. What it holds is the user's, and leaves it without the lock.
    Ready(Slot<B>),
    NotYet,
    Over,
}

impl<B: Batch> Pipeline<B> {
    /// Enters an epoch, and lets workers begin. `goes_on`: another will follow it.
    pub(crate) fn begin(&self, epoch: u64, goes_on: bool) -> Live {
        // Until it is known what slabs the epoch needs, it has a share of none.
        let matters = self.destination_matters();
        let destination = (!matters).then_some(Destination::Host);
        let limit = match matters {
            true => 0,
            false => self.share(goes_on, DEFAULT_DEPTH),
        };
        let pinning = self.options.pinning.as_ref();
        let account = pinning.map(|pinning| Account::open(&pinning.device.inner.ring, limit));
        let entering = Entering {
            epoch,
            account,
            destination,
            after: None,
            goes_on,
        };
        let mut board = self.board.lock();
        let live = board.enter(entering, &self.options);
        self.wake(&mut board);
        live
    }

    /// Where a device could gather the samples itself, or batches would be cut into parts, loading waits until it is known
    /// whether that is wanted.
    pub(super) fn destination_matters(&self) -> bool {
        self.recipe.is_gatherable() || self.parts().is_some()
    }

    /// How many slabs of the device's ring an epoch may have. Few batches need few, unless those of other epochs follow.
    fn share(&self, goes_on: bool, depth: usize) -> usize {
        match goes_on {
            true => self.options.slabs(depth),
            false => self.options.share(depth),
        }
    }

    /// The program gets the batches on the host, as it turns out.
    fn keep_on_host(&self, live: &Live) {
        // First, so that whoever asks for a slab finds that there may be some.
        if let Some(account) = &live.account {
            account.set_limit(self.share(live.goes_on, DEFAULT_DEPTH));
        }
        let mut board = self.board.lock();
        if let Some(state) = board.epoch(live) {
            state.destination.get_or_insert(Destination::Host);
        }
        self.wake(&mut board);
    }

    /// The batches that are opened from now on go to a device without the program seeing them, `depth` ahead. Returns how
    /// they are cut, and where their parts arrive if they are.
    pub(crate) fn send_to(
        &self,
        live: &Live,
        device: &Device,
        depth: usize,
    ) -> (Cut, Option<Arc<Arrivals<B>>>) {
        let sent = self.send_in(live, device, depth, self.parts_to(device));
        self.wake_workers();
        sent
    }

    /// How batches that go to the device are cut, if they are.
    pub(super) fn parts_to(&self, device: &Device) -> Option<Parts> {
        let pinning = self.options.pinning.as_ref();
        // Parts come home by the list of copies of the device that pins.
        let is_pinning =
            pinning.is_some_and(|pinning| Arc::ptr_eq(&pinning.device.inner, &device.inner));
        self.parts().filter(|_| is_pinning && self.gathers(device))
    }

    /// Whether the device gathers the rows that it can reach.
    fn gathers(&self, device: &Device) -> bool {
        let pinning = self.options.pinning.as_ref();
        // Slabs that come home are what keeps copies from piling up, so there must be slabs, and of this device.
        pinning.is_some_and(|pinning| {
            !pinning.by_copy
                && pinning
                    .device
                    .inner
                    .driver
                    .same_device(&device.inner.driver)
        })
    }

    /// The same as [`send_to`](Pipeline::send_to), cut as the caller says, who wakes the workers.
    pub(super) fn send_in(
        &self,
        live: &Live,
        device: &Device,
        depth: usize,
        parts: Option<Parts>,
    ) -> (Cut, Option<Arc<Arrivals<B>>>) {
        let mut limit = self.share(live.goes_on, depth);
        let mut cut = self.options.cut();
        let mut arrivals = None;
        let mut board = self.board.lock();
        if let Some(state) = board.epoch(live)
            && let (None, Some(parts)) = (state.destination, &parts)
        {
            let wide = self.wide.get().copied();
            state.cut_into(parts, wide);
            cut = state.schedule.cut();
            let all = usize::try_from(cut.count()).unwrap_or(usize::MAX);
            let slabs = match wide {
                Some(true) => parts.most,
                _ => parts.resident,
            };
            limit = slabs.min(all);
            let arriving = Arrivals::new(device, cut, Arc::clone(&live.meter));
            state.sends = Some(Arc::clone(&arriving) as _);
            arrivals = Some(arriving);
        }
        drop(board);
        if let Some(account) = &live.account {
            if arrivals.is_some() {
                account.cut();
            }
            account.set_limit(limit);
        }
        // Now that there are as many slabs as it needs, it may begin.
        let mut board = self.board.lock();
        if let Some(state) = board.epoch(live) {
            state.destination = Some(match self.gathers(device) {
                true => Destination::Device(device.inner.driver.backend()),
                false => Destination::Host,
            });
        }
        (cut, arrivals)
    }

    /// The error of the first of two parts of a batch, whose rows are not like those of the other.
    pub(crate) fn unlike(
        &self,
        live: &Live,
        cut: &Cut,
        parts: [u64; 2],
        error: CollateError,
    ) -> Error {
        let [part, like] = parts.map(|part| BatchId::of(live.epoch, cut, part, None));
        self.recipe.unlike(part, like, error)
    }

    /// Forgets an epoch. Nobody waits: a worker that is at it finds out when it reports.
    pub(crate) fn end(&self, live: &Live) {
        let state = {
            let mut board = self.board.lock();
            let state = board.leave(live);
            // One behind it may have been waiting.
            self.wake(&mut board);
            state
        };
        if let Some(account) = &live.account {
            account.close();
        }
        self.tell_pin_thread();
        drop(state); // last, and without the lock: it holds what the user made
    }

    /// The next batch of the epoch, in order; blocks until it is there. `None`: the epoch is over.
    ///
    /// `taken`: batches that came together with one before. `quietly`: workers for whom there is room now are left asleep, unless
    /// the call blocks. The caller wakes them ([`wake_workers`](Pipeline::wake_workers)) when it has all that it came for.
    pub(crate) fn next(
        &self,
        live: &Live,
        taken: &mut Taken<B>,
        quietly: bool,
    ) -> Option<Result<Made<B>>> {
        if let Some(next) = taken.pop_front() {
            return Some(next);
        }
        if self.options.workers == 0 {
            self.load_next(live, taken)
        } else {
            self.wait_for_next(live, taken, quietly)
        }
    }

    /// The next batch of the epoch, if it is ready. Workers are left asleep.
    pub(crate) fn try_next(&self, live: &Live, taken: &mut Taken<B>) -> Option<Result<Made<B>>> {
        if let Some(next) = taken.pop_front() {
            return Some(next);
        }
        let next = self.poll(&mut self.board.lock(), live, taken);
        match next {
            Next::Ready(slot) => slot.outcome,
            Next::NotYet | Next::Over => None,
        }
    }

    /// Lets workers see to what the consumer made room for. A worker that is woken takes the lock that the consumer would need
    /// next, and may be given the consumer's processor: it is the last thing that the consumer does.
    pub(crate) fn wake_workers(&self) {
        if self.options.workers > 0 {
            self.wake(&mut self.board.lock());
        }
    }

    /// How many batches of the epoch are to come, beside those that were taken.
    pub(crate) fn remaining(&self, live: &Live) -> u64 {
        self.board
            .lock()
            .epoch(live)
            .map_or(0, |state| state.schedule.remaining())
    }

    fn poll(&self, board: &mut Board<B>, live: &Live, taken: &mut Taken<B>) -> Next<B> {
        let Some(state) = board.epoch(live) else {
            return Next::Over;
        };
        if state.schedule.remaining() == 0 {
            state.schedule.used_up();
            return Next::Over;
        }
        let delivered = state.deliver(taken);
        if state.widened.is_some() {
            let _ = self.wide.set(true);
            self.tell_pin_thread();
        } else if state.widens && state.schedule.remaining() == 0 {
            let _ = self.wide.set(false);
        }
        match delivered {
            Some(slot) => Next::Ready(slot),
            None => Next::NotYet,
        }
    }

    fn wait_for_next(
        &self,
        live: &Live,
        taken: &mut Taken<B>,
        quietly: bool,
    ) -> Option<Result<Made<B>>> {
        let mut board = self.board.lock();
        loop {
            match self.poll(&mut board, live, taken) {
                Next::Ready(slot) => {
                    if !quietly {
                        self.wake(&mut board);
                    }
                    drop(board);
                    return slot.outcome;
                }
                Next::Over => {
                    // What was taken last counts as ahead no more, which is room for an epoch behind.
                    self.wake(&mut board);
                    return None;
                }
                Next::NotYet => {}
            }
            let state = board.epoch(live)?;
            if state.destination.is_none() {
                drop(board);
                self.keep_on_host(live);
                board = self.board.lock();
                continue;
            }
            if !state.schedule.is_blocked() {
                state.schedule.block();
                // A batch without a slab may have to go without, now that somebody is blocked on it: also one that the pin
                // thread is at, which did not know of it when it looked.
                if state.schedule.waits_for_slab() {
                    self.tell_pin_thread();
                }
            }
            // The batches that were taken before are used up, and others can be opened.
            self.wake(&mut board);
            live.ready.wait(&mut board);
        }
    }

    /// Without workers the caller does everything, one job after the other.
    fn load_next(&self, live: &Live, taken: &mut Taken<B>) -> Option<Result<Made<B>>> {
        let mut held_off = None;
        loop {
            let (job, want) = {
                let mut board = self.board.lock();
                match self.poll(&mut board, live, taken) {
                    Next::Ready(slot) => {
                        drop(board);
                        return slot.outcome;
                    }
                    Next::Over => return None,
                    Next::NotYet => {}
                }
                let state = board.epoch(live)?;
                if state.destination.is_none() {
                    drop(board);
                    self.keep_on_host(live);
                    continue;
                }
                state.schedule.block();
                (
                    state.claim(&*self.recipe, false),
                    state.schedule.next_want(),
                )
            };
            match (job, want, &self.options.pinning) {
                (Some(job), ..) => self.perform(job),
                (None, Some(want), Some(pinning)) => {
                    self.serve_here(pinning, live, want, &mut held_off);
                }
                (None, ..) => unreachable!(
                    "a batch that is not ready has rows to load, or waits for its slab"
                ),
            }
        }
    }

    pub(super) fn tell_pin_thread(&self) {
        if let Some(pinning) = &self.options.pinning {
            pinning.device.inner.ring.news().notify();
        }
    }
}
