//! Slabs for units: granted at once if one is there, otherwise by the pin thread.

use std::panic::AssertUnwindSafe;

use crate::batch::{Batch, Relocation};
use crate::device::{Account, Coming, HeldOff, Kind, Ring, Slab, block_bytes};
use crate::driver::RawEvent;
use crate::error::{Error, Result, panic_message};
use crate::meter::Activity;
use crate::pipeline::epoch::Pass;
use crate::pipeline::plan::options::Pinning;
use crate::pipeline::schedule::{Unit, Want};
use crate::pipeline::shared::data::Made;
use crate::pipeline::threads::early::Early;
use crate::pipeline::threads::pipeline::Pipeline;
use crate::pipeline::traits::{Failed, Work};
use crate::sync::log;
use crate::sync::{Instant, Ordering, planted};
use crate::trace::span;

/// What happens to a unit for which the ring has no slab now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Missing {
    /// An upload holds a slab, which comes home without the program doing anything.
    WaitForCopy,
    /// The consumer is busy, or has batches to drop: something will change.
    Sleep,
    /// Nothing comes home unless the consumer lets go, and it is blocked on this unit: the unit does without.
    Unpinned,
}

/// The rule when a slab is missing. `is_coming`: an upload that holds one is in flight. Nothing else counts: a download, a copy into an
/// existing tensor, and what the program holds may all wait for the program, which waits for this unit.
fn missing(is_coming: bool, is_blocked: bool) -> Missing {
    match (is_coming, is_blocked) {
        (true, _) => Missing::WaitForCopy,
        (false, true) => Missing::Unpinned,
        (false, false) => Missing::Sleep,
    }
}

/// What became of a unit that wants a slab.
pub(crate) enum Served {
    /// The unit has its slab, or does without.
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
    /// The system refuses to lock more memory.
    Unlockable,
}

impl<B: Batch> Pipeline<B> {
    /// How the epoch's batches get into page-locked memory, if they do.
    pub(crate) fn pinning(&self, pass: &Pass) -> Option<&Pinning> {
        self.options[pass.device].pinning.as_ref()
    }

    /// A unit that is being loaded asks for a slab. Usually it is granted one here, from the ring or new. `false`: there is no such
    /// memory.
    pub(crate) fn ask(&self, pass: &Pass, unit: Unit, work: &dyn Work<B>, bytes: usize) -> bool {
        let pinning = self.pinning(pass);
        let pinning = pinning.filter(|pinning| !pinning.by_copy);
        let bytes = match pinning {
            Some(pinning) if !pass.plan().is_cut() => pinning.at_least(bytes),
            _ => bytes,
        };
        let Some(pinning) = pinning.filter(|_| bytes > 0) else {
            return self.ask_pageable(pass, unit, work, bytes);
        };
        let want = {
            let mut board = self.lock();
            let Some((line, _)) = board.line_of(pass, unit) else {
                return true;
            };
            line.schedule.want(unit, bytes);
            let account = pass.account.as_ref();
            let streams = account.is_some_and(|account| account.outgrows_the_cache(bytes));
            line.schedule.streams(unit, if streams { bytes } else { 0 });
            line.slot(unit).waiting_since = Some(Instant::now());
            line.schedule.granting(unit)
        };
        // If an earlier unit waits, it must wait its turn.
        if let Some(want) = want {
            if let Ok(slab) = self.take(pinning, pass, want) {
                self.grant_taken(pinning, pass, want, slab);
                return true;
            }
            self.not_granted(pass, unit);
        }
        if !planted("a slab is asked for in silence") {
            pinning.ring().news().notify();
        }
        true
    }

    /// A finished unit has tensors that are not page-locked: the pin thread copies them.
    pub(crate) fn ask_to_move(&self, pass: &Pass, unit: Unit, made: B, bytes: usize) {
        let Some(pinning) = self.pinning(pass) else {
            return self.publish(pass, unit, Ok(Made::Here(made)));
        };
        let bytes = pinning.at_least(bytes);
        let mut board = self.lock();
        let Some((line, bin)) = board.line_of(pass, unit) else {
            return board.bin.drop_later(made);
        };
        line.schedule.want_to_move(unit, bytes);
        let slot = line.slot(unit);
        slot.outcome = Some(Ok(Made::Here(made)));
        slot.waiting_since = Some(Instant::now());
        if !planted("a move is asked for in silence") {
            bin.tell_pin_thread(line.share.device);
        }
    }

    /// Takes a slab from the device's ring, after bringing home those of finished copies. The error: there is none now, and what will
    /// bring one home.
    fn take(&self, pinning: &Pinning, pass: &Pass, want: Want) -> Result<Slab, Coming> {
        let Some(account) = &pass.account else {
            return Err(Coming::Nothing);
        };
        span!("slab", epoch = pass.epoch, unit = want.unit.0);
        let bar = pass.bar(Activity::Slab, want.unit);
        let start = Instant::now();
        let device = &pinning.device.inner;
        let size = &self.slab_sizes[account.kind() as usize];
        let largest = size.for_batch(want.bytes, |bytes| {
            self.has_room_for_slabs(pinning, account, bytes)
        });
        // Usually one is idle. Only if not, copies are asked whether they have ended.
        if self.in_flight.is_none()
            && let Some(slab) = device
                .ring
                .reuse_for(account, want.bytes, largest, want.reserve)
        {
            pass.meter.pinning_ns.add_since(start);
            if size.saw(want.bytes) {
                device.ring.news().notify(); // others will be as large
            }
            return Ok(slab.for_epoch(pass.meter.clone()));
        }
        device.settle();
        // Before the ring, so that copies that are no longer in flight have brought their slabs home. If the epoch's own share is
        // used up, only copies of its own slabs help.
        let own = is_full(account, want).then(|| Account::name(account));
        let coming = device.coming_home(own);
        // The ring may make more blocks than the accounts' shares only if no batch's slab will come home.
        let grow = !matches!(coming, Coming::Batch(_) | Coming::Decoding);
        let charge = match &self.in_flight {
            None => None,
            Some(in_flight) => {
                let bytes = block_bytes(largest).unwrap_or(usize::MAX);
                let reserved = bytes.saturating_mul(want.reserve);
                let try_charge = || in_flight.try_charge(bytes, reserved, &pass.meter);
                let charge = try_charge().or_else(|| {
                    in_flight.miss();
                    self.settle_others(pass.device);
                    try_charge()
                });
                match (charge, &coming) {
                    (None, Coming::Nothing) if want.is_blocked => {
                        Some(in_flight.charge(bytes, &pass.meter))
                    }
                    (None, Coming::Nothing) => return Err(self.coming_elsewhere(pass.device)),
                    (None, _) => return Err(coming),
                    (charge, _) => charge,
                }
            }
        };
        let set_aside = match want.is_blocked {
            true => account.set_aside_last(),
            false => account.set_aside(want.reserve, 0),
        };
        let slab = set_aside.and_then(|set_aside| {
            let ring = &device.ring;
            ring.take_for(set_aside, want.bytes, largest, want.reserve, grow)
        });
        pass.meter.pinning_ns.add_since(start);
        drop(bar);
        match slab {
            Some(slab) => {
                // (Where the budget had no room for one that is larger than the batch, it is as large as that.)
                let bytes = largest.min(slab.capacity()).max(want.bytes);
                self.saw_slab(pinning, account, bytes);
                Ok(slab.for_epoch(pass.meter.clone()).charged(charge))
            }
            None => {
                if let Some(charge) = charge {
                    charge.give_back(&device.ring);
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
    pub(crate) fn has_room_for_slabs(
        &self,
        pinning: &Pinning,
        account: &Account,
        bytes: usize,
    ) -> bool {
        let of_account = account.limit().saturating_mul(bytes);
        let in_flight = self.in_flight.as_ref();
        in_flight.is_none_or(|in_flight| of_account <= in_flight.limit())
            && pinning.ring().has_room_for_shares(bytes)
    }

    /// Notes how large a slab was wanted.
    pub(crate) fn saw_slab(&self, pinning: &Pinning, account: &Account, bytes: usize) {
        if self.slab_sizes[account.kind() as usize].saw(bytes) {
            if self.in_flight.is_some() {
                account.keep_within(self.slabs_within(account.kind()));
            }
            pinning.ring().news().notify(); // others will be as large
        }
    }

    /// Runs a device's pin thread, if there is one, until the loader is dropped. `early`: slabs to make before an epoch asks.
    pub(crate) fn run_pin_thread(&self, device: usize, mut early: Option<Early>) {
        let Some(pinning) = &self.options[device].pinning else {
            return;
        };
        let news = pinning.ring().news();
        let mut held_off: Option<HeldOff> = None;
        loop {
            // The ticket first, so as not to sleep through what happens while we look.
            let ticket = news.ticket();
            let waiting = {
                let mut board = self.lock();
                if board.is_closed {
                    return;
                }
                board.lines.waiting(device)
            };
            // With nothing to serve, it does not matter which slabs come and go.
            let _interest = (!waiting.is_empty()).then(|| news.interest());
            let mut awaited = None;
            let mut staged = None;
            let mut progress = false;
            for (pass, unit) in waiting {
                let serve = || self.serve(pinning, &pass, unit);
                match self.catch_panics(&pass, &[unit], serve) {
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
                // A failed copy counts as finished: it leaves the list with its memory leaked, and the rule applies again.
                Some(event) => drop(event.sleep()),
                None if held_off.is_none() && self.make_ahead(pinning.ring(), &mut early) => {}
                None => news.wait(ticket),
            }
        }
    }

    /// Without workers, the consumer tries to get its unit a slab, and waits if that helps. `held_off` lasts until the next try and no
    /// longer: loading the unit may take long, and may copy to the device itself.
    pub(crate) fn serve_here(
        &self,
        pinning: &Pinning,
        pass: &Pass,
        unit: Unit,
        held_off: &mut Option<HeldOff>,
    ) {
        let news = pinning.ring().news();
        // Until the wait is over, so as not to miss news between the look and the wait.
        let _interest = news.interest();
        let ticket = news.ticket();
        let serve = || self.serve(pinning, pass, unit);
        let coming = match self.catch_panics(pass, &[unit], serve) {
            Some(Served::WaitForCopy(coming)) => coming,
            _ => return *held_off = None,
        };
        *held_off = hold_off(pinning, &coming);
        match event_of(coming) {
            // A failed copy counts as finished: the next round finds nothing in flight.
            Some(event) => drop(event.synchronize()),
            None => news.wait(ticket),
        }
    }

    /// Makes one of the slabs that the open epochs will need, while there is nothing else to do. So the first batches do not wait for all
    /// of them to be made, and later ones for none. `early`: what is made without waiting for that size.
    fn make_ahead(&self, ring: &Ring, early: &mut Option<Early>) -> bool {
        if early.is_some_and(|early| early.make_one(ring)) {
            return true;
        }
        *early = None; // what the program gives back from now on stays given back
        [Kind::Whole, Kind::Part].into_iter().any(|kind| {
            let bytes = self.slab_sizes[kind as usize].bytes();
            bytes > 0 && ring.make_ahead(kind, bytes, None)
        })
    }

    /// Tries to grant a waiting unit its slab.
    fn serve(&self, pinning: &Pinning, pass: &Pass, unit: Unit) -> Served {
        let want = {
            let mut board = self.lock();
            let line = board.line_of(pass, unit);
            line.and_then(|(line, _)| line.schedule.granting(unit))
        };
        // Somebody else may have served the unit meanwhile, or its epoch is gone.
        let Some(want) = want else {
            return Served::Done;
        };
        let news = pinning.ring().news();
        let _interest = news.interest();
        let ticket = news.ticket();
        let coming = match self.take(pinning, pass, want) {
            Ok(slab) => {
                self.grant_taken(pinning, pass, want, slab);
                return Served::Done;
            }
            Err(coming) => coming,
        };
        let is_coming = !matches!(coming, Coming::Nothing);
        let served = match missing(is_coming, want.is_blocked) {
            // If a slab came home meanwhile, or a copy was enqueued, look again: going without cannot be undone.
            Missing::Unpinned if news.ticket() == ticket => {
                self.warn_once(pinning, pass, want);
                pinning.ring().count_missed();
                self.go_without(pinning, pass, want, None);
                return Served::Done;
            }
            Missing::Unpinned => Served::Done,
            Missing::WaitForCopy => Served::WaitForCopy(coming),
            Missing::Sleep => Served::Sleep,
        };
        self.not_granted(pass, unit);
        served
    }

    /// Grants a unit the slab that the ring had for it.
    fn grant_taken(&self, pinning: &Pinning, pass: &Pass, want: Want, slab: Slab) {
        match slab.is_page_locked() {
            true => self.grant(pass, want, Some(slab), None),
            false => self.go_without(pinning, pass, want, Some(slab)),
        }
    }

    /// The unit is not page-locked: either the system did not lock the slab's pages, or there is no slab, none will come home, and
    /// the consumer is blocked on the unit.
    fn go_without(&self, pinning: &Pinning, pass: &Pass, want: Want, slab: Option<Slab>) {
        let why = match slab {
            Some(_) => Unpinned::Unlockable,
            None if holds_all(pass, want) => Unpinned::HeldByProgram,
            None => Unpinned::OverBudget,
        };
        if !pinning.strict {
            return self.grant(pass, want, slab, Some(why));
        }
        count_unpinned(pass, want, why);
        let ring = pinning.ring();
        let error = match why {
            Unpinned::Unlockable => ring.unlockable(want.bytes),
            Unpinned::OverBudget => ring.refusal(want.bytes),
            Unpinned::HeldByProgram => Error::Pinned {
                bytes: want.bytes,
                reason: held_by_program(pass),
            },
        };
        drop(slab);
        match want.moves {
            true => self.publish(pass, want.unit, Err(error)),
            false => self.refuse(pass, want.unit, Failed::of_unit(error)),
        }
    }

    fn warn_once(&self, pinning: &Pinning, pass: &Pass, want: Want) {
        if !self.has_warned.swap(true, Ordering::Relaxed) {
            let why = match holds_all(pass, want) {
                true => held_by_program(pass),
                false => pinning.ring().over_budget(want.bytes),
            };
            log::warn!("a batch of {} bytes goes unpinned: {why}", want.bytes);
        }
    }

    /// Grants a unit its slab, or, where there is none, a pageable one.
    fn grant(&self, pass: &Pass, want: Want, slab: Option<Slab>, unpinned: Option<Unpinned>) {
        if want.moves {
            // (Without a page-locked slab, it stays where it is.)
            return self.relocate(pass, want, slab, unpinned);
        }
        let slab = slab.or_else(|| {
            // (It cannot wait any longer.)
            let charge = self.in_flight.as_ref();
            let charge = charge.map(|in_flight| in_flight.charge(want.bytes, &pass.meter));
            let slab = self.pageable.take(want.bytes)?;
            Some(slab.for_epoch(pass.meter.clone()).charged(charge))
        });
        let charge = slab.as_ref().and_then(Slab::charge);
        let work = self.with_slot(pass, want.unit, |slot| {
            slot.charges.add(charge);
            slot.is_unpinned = unpinned.is_some();
            slot.work.clone()
        });
        let Some(Some(work)) = work else { return };
        let Some(slab) = slab else {
            drop(work);
            return self.refuse(pass, want.unit, Failed::too_large(want.bytes));
        };
        if let Some(why) = unpinned {
            count_unpinned(pass, want, why);
        }
        work.grant(slab);
        drop(work); // before the report: whoever finishes the unit must be its only holder
        let mut board = self.lock();
        let Some((line, bin)) = board.line_of(pass, want.unit) else {
            return;
        };
        line.schedule.granted(want.unit);
        count_wait(pass, want.unit, line.slot(want.unit).waiting_since.take());
        // Until now its slab counted both as out and as reserved, and another unit may have been refused because of that.
        if !planted("a slab is granted in silence") {
            line.tell_if_waiting(bin);
        }
        bin.wake_workers = true;
    }

    /// Copies a finished unit into its slab.
    fn relocate(&self, pass: &Pass, want: Want, slab: Option<Slab>, unpinned: Option<Unpinned>) {
        let unit = want.unit;
        let charge = slab.as_ref().and_then(Slab::charge);
        let Some(Some(Ok(Made::Here(made)))) = self.with_slot(pass, unit, |slot| {
            slot.charges.add(charge);
            count_wait(pass, unit, slot.waiting_since.take());
            slot.outcome.take()
        }) else {
            return;
        };
        let (Some(slab), None) = (slab, unpinned) else {
            let why = unpinned.unwrap_or(Unpinned::OverBudget);
            count_unpinned(pass, want, why);
            self.with_slot(pass, unit, |slot| slot.is_unpinned = true);
            return self.publish(pass, unit, Ok(Made::Here(made)));
        };
        span!("pin", epoch = pass.epoch, unit = unit.0);
        let bar = pass.bar(Activity::Pin, unit);
        let start = Instant::now();
        let moved = std::panic::catch_unwind(AssertUnwindSafe(|| {
            made.relocate(&mut Relocation::new(slab))
        }));
        pass.meter.pinning_ns.add_since(start);
        drop(bar);
        match moved {
            Ok(made) => self.hand_over(pass, unit, made),
            Err(payload) => {
                let error = pass.collate_panicked(unit, panic_message(payload));
                self.publish(pass, unit, Err(error));
            }
        }
    }

    fn not_granted(&self, pass: &Pass, unit: Unit) {
        if let Some((line, _)) = self.lock().line_of(pass, unit) {
            line.schedule.not_granted(unit);
        }
    }
}

/// The event to wait for. `None`: there is none, and the ring notifies when it is over.
fn event_of(coming: Coming) -> Option<RawEvent> {
    match coming {
        Coming::Batch(event) | Coming::Other(event) => Some(event),
        Coming::Staged | Coming::Decoding | Coming::Nothing => None,
    }
}

/// While a unit waits for slabs of staged uploads, no other upload is staged, so that the wait ends.
fn hold_off(pinning: &Pinning, coming: &Coming) -> Option<HeldOff> {
    let staged = &pinning.device.inner.staged;
    matches!(coming, Coming::Other(_) | Coming::Staged).then(|| staged.hold_off())
}

/// Whether the epoch's own share is used up, whatever the budget.
fn holds_all(pass: &Pass, want: Want) -> bool {
    let account = pass.account.as_ref();
    account.is_some_and(|account| is_full(account, want))
}

fn is_full(account: &Account, want: Want) -> bool {
    match want.is_blocked {
        true => account.is_full_for_last(),
        false => account.is_full(want.reserve),
    }
}

fn held_by_program(pass: &Pass) -> String {
    let slabs = pass.account.as_ref().map_or(0, |account| account.limit());
    format!(
        "the program holds all page-locked slabs of its epoch ({slabs}), and waits for one more. Drop batches or send them to \
         the device before taking the next, or (with workers) raise prefetch"
    )
}

fn count_unpinned(pass: &Pass, want: Want, why: Unpinned) {
    let meter = &pass.meter;
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

fn count_wait(pass: &Pass, unit: Unit, since: Option<Instant>) {
    if let Some(since) = since {
        let waited = pass.meter.slab_wait_ns.add_since(since);
        pass.meter.slab_wait_times.count(waited);
        if let Some(subject) = pass.subject(unit) {
            subject.waited_for_slab(since);
        }
    }
}
