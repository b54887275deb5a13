//! A line: the schedule of what one consumer iterates, with what its epochs and open units carry.

use std::collections::VecDeque;
use std::ops::Range;

use super::data::{Delivered, EpochSlot, Made, UnitSlot};
use super::lock::Bin;
use crate::device::{Account, Charge, InFlight, SetAside};
use crate::error::Result;
use crate::pipeline::epoch::Pass;
use crate::pipeline::plan::epoch_plan::EpochPlan;
use crate::pipeline::plan::options::Portion;
use crate::pipeline::plan::partition::EpochOrder;
use crate::pipeline::schedule::{Claim, Claimant, Claimed, RunSlab, Schedule, Unit};
use crate::pipeline::traits::{
    Changes, Each, Failed, MadeAlone, Permits, Pull, Recipe, Remade, Sends, Work,
};
use crate::sync::{Arc, AtomicBool, Condvar, planted};
use crate::tensor::Offload;

/// What one consumer iterates: an epoch, or several that follow each other.
pub(crate) struct Line<B> {
    pub(crate) key: u64,
    /// Which of this rank's batches it has, and for which device.
    pub(crate) share: Portion,
    /// Its consumer sleeps here.
    pub(crate) unit_ready: Arc<Condvar>,
    pub(crate) schedule: Schedule<EpochSlot<B>, UnitSlot<B>>,
    /// The bytes in flight, if they are limited.
    pub(crate) in_flight: Option<Arc<InFlight>>,
}

/// Something to do, with all that is needed to do it.
pub(crate) enum Job<B> {
    Plan {
        line: u64,
        segment: u64,
    },
    Load {
        pass: Arc<Pass>,
        unit: Unit,
        claimed: Claimed,
        work: Arc<dyn Work<B>>,
    },
    Finish {
        pass: Arc<Pass>,
        unit: Unit,
    },
    /// It was made, and is to be made again, without the device's help.
    Remake {
        pass: Arc<Pass>,
        unit: Unit,
        /// What had become of its samples.
        changes: Changes,
        own: Option<Remade<B>>,
    },
    Solo {
        pass: Arc<Pass>,
        units: Range<u64>,
        /// They are page-locked: the slab for all of them.
        run: Option<Run>,
    },
    Grant {
        pass: Arc<Pass>,
        unit: Unit,
        bytes: usize,
        work: Arc<dyn Work<B>>,
        charge: Option<Arc<Charge>>,
    },
    Pull {
        pass: Arc<Pass>,
        unit: Unit,
        stream: Box<dyn Pull<B>>,
        offload: Offload,
    },
}

/// A run of page-locked units.
pub(crate) struct Run {
    pub(crate) slab: RunSlab,
    /// `None`: the account has no room for it.
    pub(crate) set_aside: Option<SetAside>,
    pub(crate) offload: Offload,
}

impl<B: 'static> Line<B> {
    pub(crate) fn claim(&mut self, recipe: &dyn Recipe<B>, claimant: Claimant) -> Option<Job<B>> {
        let claimant = self.with_slabs(claimant);
        let open = |epoch: &EpochSlot<B>, unit: Unit, is_own: bool| {
            let Some(pass) = &epoch.pass else {
                unreachable!("units are opened of epochs that are planned");
            };
            let work = (!is_own).then(|| recipe.open(pass, pass.place(unit), epoch.offload()));
            UnitSlot::new(Arc::clone(pass), work)
        };
        match self.schedule.claim(claimant, open)? {
            Claim::Plan { segment } => {
                let line = self.key;
                Some(Job::Plan { line, segment })
            }
            Claim::Load { unit, claimed } => {
                let work = self.slot(unit).work.clone()?;
                Some(Job::Load {
                    pass: self.pass(unit),
                    unit,
                    claimed,
                    work,
                })
            }
            Claim::Finish { unit } => {
                let pass = self.pass(unit);
                Some(Job::Finish { pass, unit })
            }
            Claim::Solo { units } => Some(self.solo(units)),
            Claim::Grant { unit, bytes } => {
                let work = self.slot(unit).work.clone()?;
                // Here, under the lock: the next that looks finds it counted.
                let in_flight = self.in_flight.as_ref();
                let in_flight = in_flight.cloned();
                let pass = self.pass(unit);
                let charge = in_flight.map(|in_flight| in_flight.charge(bytes, &pass.meter));
                Some(Job::Grant {
                    pass,
                    unit,
                    bytes,
                    work,
                    charge,
                })
            }
            Claim::Pull { unit } => {
                let pass = self.pass(unit);
                let epoch = self.schedule.epoch(pass.segment)?;
                let offload = epoch.offload();
                let Some(stream) = epoch.stream.take() else {
                    unreachable!("a unit is opened for whoever pulls next, and the stream is back");
                };
                Some(Job::Pull {
                    pass,
                    unit,
                    stream,
                    offload,
                })
            }
        }
    }

    /// Whether [`claim`](Line::claim) would return something.
    pub(crate) fn has_claim(&mut self, claimant: Claimant) -> bool {
        let claimant = self.with_slabs(claimant);
        self.schedule.has_claim(claimant)
    }

    /// Whether this claimant found nothing to do because there is nothing: others would find nothing, either, until somebody has had the line in
    /// hand.
    pub(crate) fn has_nothing_for_any(&self, claimant: Claimant) -> bool {
        let is_for_others = claimant.is_spare && self.schedule.copies();
        !is_for_others && !self.schedule.holds_back()
    }

    /// How many slabs are left for runs, where units may share them.
    fn with_slabs(&mut self, claimant: Claimant) -> Claimant {
        if !self.schedule.shares_slabs() {
            return claimant;
        }
        let epoch = self.schedule.current();
        let epoch = epoch.and_then(|segment| self.schedule.epoch(segment)); // those that follow share its account
        let pass = epoch.and_then(|epoch| epoch.pass.as_ref());
        let room = pass.and_then(|pass| {
            let account = pass.account.as_ref()?;
            Some(account.room(pass.plan().more_slabs))
        });
        Claimant {
            free_slabs: room.unwrap_or(0),
            ..claimant
        }
    }

    /// Units that their worker makes from end to end: they were claimed so.
    pub(crate) fn solo(&mut self, units: Range<u64>) -> Job<B> {
        let first = Unit(units.start);
        let pass = self.pass(first);
        let run = pass.account.as_ref().map(|account| {
            let slab = self.schedule.run_slab(&units);
            let epoch = self.schedule.epoch(pass.segment);
            Run {
                slab,
                set_aside: account.set_aside(slab.uncounted, pass.plan().more_slabs),
                offload: epoch.map_or(Offload::default(), |epoch| epoch.offload()),
            }
        });
        Job::Solo { pass, units, run }
    }

    /// Gives a unit to whoever makes it again.
    pub(crate) fn remake(&mut self, unit: Unit) -> Job<B> {
        self.schedule.remaking(unit);
        let slot = self.slot(unit);
        Job::Remake {
            pass: Arc::clone(&slot.pass),
            unit,
            changes: slot
                .changes
                .take()
                .map(|changes| *changes)
                .unwrap_or_default(),
            own: slot.own.as_ref().map(|own| own.again()),
        }
    }

    pub(crate) fn slot(&mut self, unit: Unit) -> &mut UnitSlot<B> {
        self.schedule.payload(unit)
    }

    pub(crate) fn pass(&mut self, unit: Unit) -> Arc<Pass> {
        Arc::clone(&self.slot(unit).pass)
    }

    /// The first unit that waits for a slab.
    pub(crate) fn first_waiting(&mut self) -> Option<(Arc<Pass>, Unit)> {
        let unit = self.schedule.next_want()?.unit;
        Some((self.pass(unit), unit))
    }

    /// Sets the plan of an epoch, if [`Schedule::enter_plan`] takes it. `account`: a new one, or that of the epoch before.
    pub(crate) fn enter_plan(
        &mut self,
        segment: u64,
        plan: EpochPlan,
        order: EpochOrder,
        account: Option<Arc<Account>>,
    ) -> Option<Arc<Pass>> {
        let units = self.schedule.enter_plan(segment, plan)?;
        let slot = self.schedule.epoch(segment)?;
        let announced = slot.announced.as_ref().map(|ends| Arc::clone(&ends.0));
        let pass = Arc::new(Pass {
            line: self.key,
            segment,
            device: self.share.device,
            epoch: slot.epoch,
            units,
            order,
            short_id: announced
                .as_ref()
                .map_or(0, |announced| announced.short_id()),
            announced,
            meter: Arc::clone(&slot.meter),
            account,
            has_left: AtomicBool::new(false),
        });
        slot.pass = Some(Arc::clone(&pass));
        Some(pass)
    }

    /// Gives the consumer the next units that are ready: returns the first, and adds the others to `taken`.
    pub(crate) fn deliver(
        &mut self,
        taken: &mut VecDeque<Delivered<B>>,
        bin: &mut Bin<B>,
    ) -> Option<Delivered<B>> {
        self.schedule.used_up();
        // What the program gets on the host is not in flight any more.
        let ends = self.in_flight.is_some() && !self.is_sent_ahead();
        if self.schedule.is_any_order() {
            let next = self.deliver_any(taken, ends);
            if ends && next.is_some() {
                self.tell_if_waiting(bin);
            }
            return next;
        }
        let count = self.schedule.deliverable();
        if count == 0 {
            return None;
        }
        let first = self.schedule.first();
        let slots = self.schedule.deliver(count).enumerate();
        let mut delivered = slots.filter_map(|(index, slot)| {
            let unit = Unit(first.0 + index as u64);
            if let Some(announced) = &slot.pass.announced {
                announced.settle(&slot.pass.place(unit));
            }
            slot.deliver(unit, ends)
        });
        let next = delivered.next();
        taken.extend(delivered);
        if ends {
            self.tell_if_waiting(bin);
        }
        bin.found_wide = self.schedule.find_out_if_wide();
        if bin.found_wide == Some(true)
            && let Some(pass) = next.as_ref().map(|next| &next.pass)
            && let Some(account) = &pass.account
        {
            bin.set_slabs(Arc::clone(account), pass.plan().slabs(true));
            bin.tell_pin_thread(self.share.device);
        }
        next
    }

    /// As [`deliver`](Line::deliver), for units in any order. Of an epoch that goes to a device, what was sent, or failed, comes first.
    fn deliver_any(
        &mut self,
        taken: &mut VecDeque<Delivered<B>>,
        ends: bool,
    ) -> Option<Delivered<B>> {
        let is_sent_ahead = self.is_sent_ahead();
        let prefers =
            |slot: &UnitSlot<B>| !is_sent_ahead || !matches!(slot.outcome, Some(Ok(Made::Here(_))));
        let slots = self.schedule.deliver_any(prefers).into_iter();
        let mut delivered = slots.filter_map(|(unit, slot)| slot.deliver(unit, ends));
        let next = delivered.next();
        taken.extend(delivered);
        if let Some(pass) = next.as_ref().map(|next| Arc::clone(&next.pass))
            && let Some(announced) = &pass.announced
        {
            // The oldest that was not taken may be of the next epoch.
            let first = self.schedule.first();
            announced.settle_before(match first < pass.units.end {
                true => pass.batch(first),
                false => u64::MAX,
            });
        }
        next
    }

    /// Whether the consumer's epoch goes to a device.
    fn is_sent_ahead(&mut self) -> bool {
        let segment = self.schedule.current();
        segment.is_some_and(|segment| self.outbox(segment).is_some())
    }

    /// Takes the segment's first unit that is ready and not sent, and may be, to send it. `pageable`: even if it is not page-locked. And those
    /// that follow it, if they are page-locked, and may be sent together.
    pub(crate) fn take_to_send(
        &mut self,
        segment: u64,
        permits: Permits,
        pageable: bool,
    ) -> Option<(Arc<Pass>, Each<B>)> {
        let is_here = |&(unit, slot): &(Unit, &UnitSlot<B>)| {
            slot.pass.segment == segment
                && (pageable || !slot.is_unpinned)
                && matches!(slot.outcome, Some(Ok(Made::Here(_))))
                && slot.pass.batch(unit) < permits.allowed
        };
        let (pass, first, count) = {
            let mut ready = self.schedule.ready_units().filter(is_here);
            let (first, slot) = ready.next()?;
            let pass = Arc::clone(&slot.pass);
            let goes_too = |((unit, slot), next): &((Unit, &UnitSlot<B>), u64)| {
                unit.0 == *next && !slot.is_unpinned && !pass.is_sent_alone(*unit)
            };
            let others = match pass.is_sent_alone(first) {
                true => 0,
                false => permits.together.saturating_sub(1),
            };
            let others = ready.zip(first.0 + 1..).take(others);
            let count = 1 + others.take_while(goes_too).count();
            if !permits.lets(pass.batch(first), count) {
                return None;
            }
            (pass, first, count as u64)
        };
        let units = (first.0..first.0 + count).map(Unit).map(|unit| {
            let Some(Ok(Made::Here(made))) = self.slot(unit).outcome.take() else {
                unreachable!("it is here");
            };
            if !planted("a unit can be taken while it is sent") {
                self.schedule.sending(unit);
            }
            (unit, made)
        });
        Some((pass, units.collect()))
    }

    /// Sets the outbox of an epoch. Returns the units that failed already, with their batches.
    pub(crate) fn set_outbox(
        &mut self,
        segment: u64,
        outbox: Arc<dyn Sends<B>>,
    ) -> Vec<(u64, Unit)> {
        if let Some(slot) = self.schedule.epoch(segment) {
            slot.outbox = Some(outbox);
        }
        let has_failed = |&(_, slot): &(Unit, &UnitSlot<B>)| {
            slot.pass.segment == segment && matches!(slot.outcome, Some(Err(_)))
        };
        let failed = self.schedule.ready_units().filter(has_failed);
        let batches = failed.map(|(unit, slot)| (slot.pass.batch(unit), unit));
        batches.collect()
    }

    /// The outbox of an epoch, if it goes to a device.
    pub(crate) fn outbox(&mut self, segment: u64) -> Option<Arc<dyn Sends<B>>> {
        self.schedule.epoch(segment)?.outbox.clone()
    }

    /// Reports a unit that was made from end to end, or its error.
    pub(crate) fn made(&mut self, unit: Unit, alone: MadeAlone<B>) {
        self.schedule.made(unit, alone.elapsed_ns());
        let slot = self.slot(unit);
        slot.outcome = Some(alone.made.map(Made::Here));
        if !alone.changes.is_empty() {
            slot.changes = Some(Box::new(alone.changes));
        }
        self.tell_consumer(unit);
    }

    /// The same for a page-locked unit of a run, if it need not move.
    pub(crate) fn made_of_run(&mut self, unit: Unit, alone: MadeAlone<B>, bin: &mut Bin<B>) {
        // (The first has the run's reserve until now, although the run has its slab.)
        let was_reserved = self.schedule.reserve_of(unit) > 0;
        self.made(unit, alone);
        if was_reserved {
            self.tell_if_waiting(bin);
        }
    }

    /// Notes a failure. Of several, the first row's is delivered.
    pub(crate) fn note_failure(&mut self, unit: Unit, failure: Failed, bin: &mut Bin<B>) {
        let slot = self.slot(unit);
        match &mut slot.failure {
            Some(first) if first.row <= failure.row => bin.drop_later(failure),
            Some(first) => bin.drop_later(std::mem::replace(first, failure)),
            none => *none = Some(failure),
        }
    }

    /// Makes a unit or its error ready, and wakes whoever waits for that. The first outcome counts.
    pub(crate) fn publish(&mut self, unit: Unit, outcome: Result<Made<B>>, bin: &mut Bin<B>) {
        if self.schedule.is_ready(unit) {
            return bin.drop_later(outcome);
        }
        let (is_sent, is_failed) = (matches!(outcome, Ok(Made::Sent)), outcome.is_err());
        let slot = self.slot(unit);
        if let Some(outcome) = slot.outcome.replace(outcome) {
            bin.drop_later(outcome);
        }
        if let Some(work) = slot.work.take() {
            bin.drop_later(work);
        }
        if let Some(failure) = slot.failure.take() {
            bin.drop_later(failure);
        }
        if is_sent {
            slot.was_sent();
        }
        // (A unit that failed gave its reserve up when it did, in silence.)
        let was_reserved = self.schedule.reserve_of(unit) > 0 || is_failed;
        match is_sent {
            true => self.schedule.sent(unit),
            false => self.schedule.ready(unit),
        }
        // It is out of the window, so others can be opened.
        bin.wake_workers |= is_sent && !planted("a unit that was sent wakes no worker");
        // The slabs that were left for it are free for others.
        if was_reserved && !planted("a reserve is given up in silence") {
            self.tell_if_waiting(bin);
        }
        self.tell_consumer(unit);
    }

    /// Tells the pin thread to look again, if a unit waits for its slab.
    pub(crate) fn tell_if_waiting(&self, bin: &mut Bin<B>) {
        if self.schedule.waits_for_slab() {
            bin.tell_pin_thread(self.share.device);
        }
    }

    pub(crate) fn tell_consumer(&self, unit: Unit) {
        if self.schedule.is_next(unit) && !planted("the consumer is not told") {
            self.unit_ready.notify_one();
        }
    }
}
