//! Slabs for batches: granted at once where one is there, and by the pin thread where not.

use std::panic::AssertUnwindSafe;

use super::board::{Live, Made};
use super::schedule::{Missing, Want, missing};
use super::source::Failed;
use super::work::Work;
use super::{Pinning, Pipeline};
use crate::batch::{Batch, Relocation};
use crate::device::{Account, Coming, HeldOff, Kind, Slab};
use crate::driver::RawEvent;
use crate::error::{Error, panic_message};
use crate::sync::{Instant, Ordering};
use crate::trace::span;

/// What the ring gives.
enum Taken {
    Slab(Slab),
    /// Nothing now, and what was on its way to bring a slab home.
    Nothing(Coming),
}

/// What became of a want.
pub(super) enum Served {
    /// The batch has its slab, or goes without.
    Done,
    /// An upload brings a slab home.
    WaitForCopy(Coming),
    /// Something must change first.
    Sleep,
}

/// Why a batch is not page-locked.
#[derive(Debug, Clone, Copy)]
enum Unpinned {
    /// The program holds all slabs that its epoch may have.
    HeldByProgram,
    /// The budget has no room.
    OverBudget,
    /// The system locks no more.
    Unlockable,
}

impl<B: Batch> Pipeline<B> {
    /// A batch that is being loaded says how large a slab it needs. Most often it gets one here, from the ring or new.
    pub(super) fn ask(&self, live: &Live, batch: u64, work: &dyn Work<B>, bytes: usize) {
        let pinning = self
            .options
            .pinning
            .as_ref()
            .filter(|pinning| !pinning.by_copy);
        let bytes = match pinning {
            Some(pinning) if !live.is_cut() => pinning.at_least(bytes),
            _ => bytes,
        };
        let pinning = pinning.filter(|_| bytes > 0);
        let Some(pinning) = pinning else {
            match self.pageable.take(bytes) {
                Some(slab) => work.grant(slab.for_epoch(live.meter.clone())),
                None => return self.fail(live, batch, Failed::too_large(bytes)),
            }
            let mut board = self.board.lock();
            if let Some(state) = board.epoch(live).filter(|state| state.holds(batch)) {
                state.schedule.want(batch, bytes);
                state.schedule.granted(batch);
                self.wake(&mut board);
            }
            return;
        };
        let want = {
            let mut board = self.board.lock();
            let Some(state) = board.epoch(live).filter(|state| state.holds(batch)) else {
                return;
            };
            state.schedule.want(batch, bytes);
            let account = live.account.as_ref();
            let streams = account.is_some_and(|account| account.outgrows_the_cache(bytes));
            state
                .schedule
                .streams(batch, if streams { bytes } else { 0 });
            state.slot(batch).wanted = Some(Instant::now());
            let want = state.schedule.want_of(batch);
            if want.is_some() {
                state.schedule.granting(batch);
            }
            want
        };
        // Behind an earlier batch that waits, it waits its turn.
        if let Some(want) = want {
            if let Taken::Slab(slab) = self.take(pinning, live, want) {
                return self.give(pinning, live, want, slab);
            }
            self.not_granted(live, batch);
        }
        pinning.device.inner.ring.news().notify();
    }

    /// A finished batch has tensors that are not page-locked: the pin thread copies them.
    pub(super) fn ask_relocation(&self, live: &Live, batch: u64, made: B, bytes: usize) {
        let Some(pinning) = &self.options.pinning else {
            return self.publish(live, batch, Ok(Made::Here(made)));
        };
        let bytes = pinning.at_least(bytes);
        let mut board = self.board.lock();
        let Some(state) = board.epoch(live).filter(|state| state.holds(batch)) else {
            drop(board);
            return drop(made);
        };
        state.schedule.want_relocation(batch, bytes);
        let slot = state.slot(batch);
        slot.outcome = Some(Ok(Made::Here(made)));
        slot.wanted = Some(Instant::now());
        drop(board);
        pinning.device.inner.ring.news().notify();
    }

    /// Takes a slab from the device's ring, once finished copies have brought theirs home.
    fn take(&self, pinning: &Pinning, live: &Live, want: Want) -> Taken {
        let Some(account) = &live.account else {
            return Taken::Nothing(Coming::Nothing);
        };
        let start = Instant::now();
        let device = &pinning.device.inner;
        device.settle();
        // Before the ring: what copies held that are not in flight any more is then at home. Where the epoch's own share
        // is used up, only copies of its own slabs help.
        let own = account
            .is_full(want.reserve)
            .then(|| Account::name(account));
        let coming = device.coming_home(own);
        // More blocks than there are shares for are made only where no batch's is going to come home.
        let grow = !matches!(coming, Coming::Batch(_));
        let largest_bytes = &self.largest_bytes[account.kind() as usize];
        let largest = largest_bytes.load(Ordering::Relaxed);
        let slab = device
            .ring
            .take_for(account, want.bytes, largest, want.reserve, grow);
        live.meter.pinning_ns.add_since(start);
        match slab {
            Some(slab) => {
                if largest_bytes.fetch_max(want.bytes, Ordering::Relaxed) < want.bytes {
                    device.ring.news().notify(); // others are going to be as large
                }
                Taken::Slab(slab.for_epoch(live.meter.clone()))
            }
            // What comes home is of no use to a batch that the whole budget does not hold.
            None if device.ring.is_beyond_budget(want.bytes) => Taken::Nothing(Coming::Nothing),
            None => Taken::Nothing(coming),
        }
    }

    /// The pin thread's life.
    pub(super) fn pin(&self, pinning: &Pinning) {
        let news = pinning.device.inner.ring.news();
        let mut held_off: Option<HeldOff> = None;
        loop {
            // The ticket first: what happens while we look is not slept through.
            let ticket = news.ticket();
            let (wants, widened) = {
                let mut board = self.board.lock();
                if board.closed {
                    return;
                }
                (board.wants(), board.widened())
            };
            for (account, limit) in widened {
                account.set_limit(limit);
            }
            // With nothing to serve, slabs that come and go do not matter.
            let _interest = (!wants.is_empty()).then(|| news.interest());
            let mut awaited = None;
            let mut staged = None;
            let mut progress = false;
            for (live, want) in wants {
                let serve = || self.serve(pinning, &live, want);
                match self.guarded(&live, want.batch, serve) {
                    Some(Served::Done) | None => progress = true,
                    Some(Served::WaitForCopy(coming)) => {
                        staged = staged.or_else(|| hold_off(pinning, &coming));
                        awaited = awaited.or(event_of(coming));
                    }
                    Some(Served::Sleep) => {}
                }
            }
            if progress {
                continue;
            }
            drop(std::mem::replace(&mut held_off, staged));
            match awaited {
                // A failed copy counts as ended: it leaves the list with its memory leaked, and the rule goes on.
                Some(event) => drop(event.sleep()),
                None if held_off.is_none() && self.make_ahead(pinning) => {}
                None => news.wait(ticket),
            }
        }
    }

    /// Without workers, the consumer sees to its batch's slab: tries to get it, and waits if that is of use. `held_off` is for
    /// the next try, and no longer: loading the batch may take its time, and may copy to the device itself.
    pub(super) fn serve_here(
        &self,
        pinning: &Pinning,
        live: &Live,
        want: Want,
        held_off: &mut Option<HeldOff>,
    ) {
        let news = pinning.device.inner.ring.news();
        // Until the wait is over, so that no news is missed between the look and the wait.
        let _interest = news.interest();
        let ticket = news.ticket();
        let serve = || self.serve(pinning, live, want);
        let coming = match self.guarded(live, want.batch, serve) {
            Some(Served::WaitForCopy(coming)) => coming,
            _ => return *held_off = None,
        };
        *held_off = hold_off(pinning, &coming);
        match event_of(coming) {
            // A failed copy counts as ended: the next round finds nothing in flight.
            Some(event) => drop(event.synchronize()),
            None => news.wait(ticket),
        }
    }

    /// Makes one of the slabs that the open epochs are going to need, while there is nothing else to do: the first batches
    /// do not wait for them all, and later ones for none.
    fn make_ahead(&self, pinning: &Pinning) -> bool {
        [Kind::Whole, Kind::Part].into_iter().any(|kind| {
            let bytes = self.largest_bytes[kind as usize].load(Ordering::Relaxed);
            bytes > 0 && pinning.device.inner.ring.make_ahead(kind, bytes)
        })
    }

    /// Tries to give a waiting batch its slab.
    pub(super) fn serve(&self, pinning: &Pinning, live: &Live, want: Want) -> Served {
        let current = {
            let mut board = self.board.lock();
            let state = board.epoch(live);
            // Somebody else may have served it meanwhile, or the epoch is gone.
            state.is_some_and(|state| {
                let current = state.schedule.want_of(want.batch) == Some(want);
                if current {
                    state.schedule.granting(want.batch);
                }
                current
            })
        };
        if !current {
            return Served::Done;
        }
        let news = pinning.device.inner.ring.news();
        let _interest = news.interest();
        let ticket = news.ticket();
        let coming = match self.take(pinning, live, want) {
            Taken::Slab(slab) => {
                self.give(pinning, live, want, slab);
                return Served::Done;
            }
            Taken::Nothing(coming) => coming,
        };
        let is_coming = !matches!(coming, Coming::Nothing);
        match missing(is_coming, want.blocked) {
            Missing::WaitForCopy => {
                self.not_granted(live, want.batch);
                Served::WaitForCopy(coming)
            }
            // If a slab came home meanwhile, or a copy was sent on its way, look again: going without is for good.
            Missing::Unpinned if news.ticket() == ticket => {
                self.warn_once(pinning, live, want);
                pinning.device.inner.ring.count_missed();
                self.go_without(pinning, live, want, None);
                Served::Done
            }
            Missing::Unpinned => {
                self.not_granted(live, want.batch);
                Served::Done
            }
            Missing::Sleep => {
                self.not_granted(live, want.batch);
                Served::Sleep
            }
        }
    }

    /// Gives a batch the slab that the ring had for it.
    fn give(&self, pinning: &Pinning, live: &Live, want: Want, slab: Slab) {
        match slab.is_page_locked() {
            true => self.place(live, want, Some(slab), None),
            false => self.go_without(pinning, live, want, Some(slab)),
        }
    }

    /// The batch is not page-locked: the system did not lock the slab's pages; or there is none, the consumer is
    /// blocked on the batch, and nothing will bring one home.
    fn go_without(&self, pinning: &Pinning, live: &Live, want: Want, slab: Option<Slab>) {
        let why = match slab {
            Some(_) => Unpinned::Unlockable,
            None if holds_all(live, want) => Unpinned::HeldByProgram,
            None => Unpinned::OverBudget,
        };
        if !pinning.strict {
            return self.place(live, want, slab, Some(why));
        }
        count_unpinned(live, want, why);
        let ring = &pinning.device.inner.ring;
        let error = match why {
            Unpinned::Unlockable => ring.unlockable(want.bytes),
            Unpinned::OverBudget => ring.refusal(want.bytes),
            Unpinned::HeldByProgram => Error::Pinned {
                bytes: want.bytes,
                reason: held_by_program(live),
            },
        };
        drop(slab);
        match want.relocation {
            true => self.publish(live, want.batch, Err(error)),
            false => self.fail(live, want.batch, Failed { row: 0, error }),
        }
    }

    fn warn_once(&self, pinning: &Pinning, live: &Live, want: Want) {
        if !self.warned.swap(true, Ordering::Relaxed) {
            let why = match holds_all(live, want) {
                true => held_by_program(live),
                false => pinning.device.inner.ring.over_budget(want.bytes),
            };
            log::warn!("a batch of {} bytes goes unpinned: {why}", want.bytes);
        }
    }

    /// Puts a batch into its slab, or, where it has none, into a pageable one.
    fn place(&self, live: &Live, want: Want, slab: Option<Slab>, unpinned: Option<Unpinned>) {
        if want.relocation {
            // From one pageable place to another, nothing is gained.
            return self.relocate(live, want, slab, unpinned);
        }
        let slab = slab.or_else(|| {
            self.pageable
                .take(want.bytes)
                .map(|slab| slab.for_epoch(live.meter.clone()))
        });
        let work = self.with_slot(live, want.batch, |slot| {
            slot.unpinned = unpinned.is_some();
            slot.work.clone()
        });
        let Some(Some(work)) = work else { return };
        let Some(slab) = slab else {
            drop(work);
            return self.fail(live, want.batch, Failed::too_large(want.bytes));
        };
        if let Some(why) = unpinned {
            count_unpinned(live, want, why);
        }
        work.grant(slab);
        drop(work); // before it is reported: who finishes the batch must be its only holder
        self.granted(live, want.batch);
    }

    /// Copies a finished batch into its slab.
    fn relocate(&self, live: &Live, want: Want, slab: Option<Slab>, unpinned: Option<Unpinned>) {
        let batch = want.batch;
        let Some(Some(Ok(Made::Here(made)))) = self.with_slot(live, batch, |slot| {
            count_wait(live, slot.wanted.take());
            slot.outcome.take()
        }) else {
            return;
        };
        let (Some(slab), None) = (slab, unpinned) else {
            let why = unpinned.unwrap_or(Unpinned::OverBudget);
            count_unpinned(live, want, why);
            return self.publish(live, batch, Ok(Made::Here(made)));
        };
        span!("pin", epoch = live.epoch, batch = batch);
        let start = Instant::now();
        let moved = std::panic::catch_unwind(AssertUnwindSafe(|| {
            made.relocate(&mut Relocation::new(slab))
        }));
        live.meter.pinning_ns.add_since(start);
        let outcome = moved.map_err(|payload| live.collate_panicked(batch, panic_message(payload)));
        self.publish(live, batch, outcome.map(Made::Here));
    }

    fn granted(&self, live: &Live, batch: u64) {
        let mut board = self.board.lock();
        let Some(state) = board.epoch(live).filter(|state| state.holds(batch)) else {
            return;
        };
        state.schedule.granted(batch);
        count_wait(live, state.slot(batch).wanted.take());
        let is_another_waiting = state.schedule.next_want().is_some();
        self.wake(&mut board);
        drop(board);
        if is_another_waiting {
            // Until now this one's slab was reserved beside being out, and the other may have been refused for that.
            self.tell_pin_thread();
        }
    }

    fn not_granted(&self, live: &Live, batch: u64) {
        let mut board = self.board.lock();
        if let Some(state) = board.epoch(live).filter(|state| state.holds(batch)) {
            state.schedule.not_granted(batch);
        }
    }
}

/// The event to wait for; `None` for what has none, and is news of the ring's when it is over.
fn event_of(coming: Coming) -> Option<RawEvent> {
    match coming {
        Coming::Batch(event) | Coming::Other(event) => Some(event),
        Coming::Staged | Coming::Nothing => None,
    }
}

/// While a batch waits for what staged uploads have, no other begins: there is an end to the wait.
fn hold_off(pinning: &Pinning, coming: &Coming) -> Option<HeldOff> {
    let staged = &pinning.device.inner.staged;
    matches!(coming, Coming::Other(_) | Coming::Staged).then(|| staged.hold_off())
}

/// Whether the epoch's own share is used up, whatever the budget is.
fn holds_all(live: &Live, want: Want) -> bool {
    let account = live.account.as_ref();
    account.is_some_and(|account| account.is_full(want.reserve))
}

fn held_by_program(live: &Live) -> String {
    let slabs = live.account.as_ref().map_or(0, |account| account.limit());
    format!(
        "the program holds all page-locked slabs of its epoch ({slabs}), and waits for one more. Drop batches or send them to \
         the device before taking the next, or (with workers) raise prefetch"
    )
}

fn count_unpinned(live: &Live, want: Want, why: Unpinned) {
    let meter = &live.meter;
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

fn count_wait(live: &Live, since: Option<Instant>) {
    if let Some(since) = since {
        live.meter.slab_wait_ns.add_since(since);
    }
}
