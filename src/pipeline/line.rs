//! A line as the board holds it: its schedule, and what belongs to its epochs and their open units.

use std::collections::VecDeque;

use super::cut::Place;
use super::guard::Bin;
use super::outbox::Sends;
use super::plan::{Destination, Plan};
use super::schedule::{Asker, Claim, Planned, Schedule, Unit, Want};
use super::source::Failed;
use super::work::{Claimed, Recipe, Work};
use crate::device::Account;
use crate::error::{Error, Result};
use crate::meter::Meter;
use crate::sync::{Arc, Condvar, Instant};

/// What one consumer iterates: an epoch, or several that follow each other.
pub(super) struct Line<B> {
    pub(super) key: u64,
    /// Its consumer sleeps here.
    pub(super) ready: Arc<Condvar>,
    pub(super) schedule: Schedule<Segment<B>, Slot<B>>,
    /// The turn at which one of its jobs was claimed last.
    pub(super) served: u64,
}

/// What the board holds of one epoch.
pub(super) struct Segment<B> {
    pub(super) epoch: u64,
    pub(super) meter: Arc<Meter>,
    /// What its batches are for. Until it is known, nothing is loaded.
    pub(super) destination: Option<Destination>,
    /// Who sends its units to a device as soon as they are made.
    pub(super) outbox: Option<Arc<dyn Sends<B>>>,
    pub(super) pass: Option<Arc<Pass>>,
}

/// How the units of one epoch are made, for everybody who works on them. It never changes.
pub(crate) struct Pass {
    pub(super) line: u64,
    pub(super) segment: u64,
    pub(super) epoch: u64,
    pub(super) planned: Planned,
    pub(crate) meter: Arc<Meter>,
    /// Its share of the device's ring, if the loader pins. Epochs that are loaded as if they were one share one.
    pub(super) account: Option<Arc<Account>>,
}

/// A unit that was made.
pub(crate) enum Made<B> {
    Here(B),
    /// It was sent to its device: the outbox has it.
    Sent,
}

/// What the board holds of one open unit.
pub(super) struct Slot<B> {
    pub(super) pass: Arc<Pass>,
    /// Until somebody finishes it.
    pub(super) work: Option<Arc<dyn Work<B>>>,
    /// The unit, made.
    pub(super) outcome: Option<Result<Made<B>>>,
    /// Why it failed: the first row's reason.
    pub(super) failure: Option<Failed>,
    /// When it began to wait for its slab.
    pub(super) wanted: Option<Instant>,
    /// It does without a page-locked slab.
    pub(super) is_unpinned: bool,
}

/// A unit that the consumer took.
pub(crate) struct Delivered<B> {
    pub(crate) pass: Arc<Pass>,
    pub(crate) unit: Unit,
    pub(crate) outcome: Result<Made<B>>,
}

/// Something to do, with what it takes.
pub(super) enum Job<B> {
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
    Solo {
        pass: Arc<Pass>,
        units: std::ops::Range<u64>,
    },
}

impl Pass {
    /// Where a unit lies in its epoch.
    pub(crate) fn place(&self, unit: Unit) -> Place {
        let cut = self.planned.plan.cut;
        cut.place(self.epoch, unit.0 - self.planned.first.0)
    }

    /// How many rows the unit's whole batch has.
    pub(crate) fn batch_rows(&self, unit: Unit) -> usize {
        let cut = self.planned.plan.cut;
        cut.batch_rows(cut.batch_of(unit.0 - self.planned.first.0))
    }

    /// Whether the unit is its epoch's last.
    pub(crate) fn is_last(&self, unit: Unit) -> bool {
        unit.0 + 1 == self.planned.end.0
    }

    /// Whether the unit is its batch's last.
    pub(crate) fn ends_batch(&self, unit: Unit) -> bool {
        let cut = self.planned.plan.cut;
        cut.ends_batch(unit.0 - self.planned.first.0)
    }

    pub(crate) fn plan(&self) -> &Plan {
        &self.planned.plan
    }

    pub(crate) fn collate_panicked(&self, unit: Unit, message: String) -> Error {
        Error::CollatePanicked {
            epoch: self.epoch,
            batch: self.place(unit).batch,
            message,
        }
    }
}

impl<B> Line<B> {
    pub(super) fn claim(&mut self, recipe: &dyn Recipe<B>, asker: Asker) -> Option<Job<B>> {
        let open = |segment: &Segment<B>, unit: Unit, is_solo: bool| {
            let Some(pass) = &segment.pass else {
                unreachable!("units are opened of epochs that are planned");
            };
            Slot {
                pass: Arc::clone(pass),
                work: (!is_solo).then(|| {
                    let gathered_by = segment.gathered_by();
                    recipe.open(pass.place(unit), gathered_by, Arc::clone(&pass.meter))
                }),
                outcome: None,
                failure: None,
                wanted: None,
                is_unpinned: false,
            }
        };
        match self.schedule.claim(asker, open)? {
            Claim::Plan { segment } => Some(Job::Plan {
                line: self.key,
                segment,
            }),
            Claim::Rows { unit, rows } => self.load(unit, Claimed::Rows(rows)),
            Claim::Parked { unit, count } => self.load(unit, Claimed::Parked(count)),
            Claim::Finish { unit } => Some(Job::Finish {
                pass: Arc::clone(&self.schedule.carried(unit).pass),
                unit,
            }),
            Claim::Solo { units } => Some(Job::Solo {
                pass: Arc::clone(&self.schedule.carried(Unit(units.start)).pass),
                units,
            }),
        }
    }

    /// The first slab that is waited for.
    pub(super) fn next_want(&mut self) -> Option<(Arc<Pass>, Want)> {
        let want = self.schedule.next_want()?;
        Some((Arc::clone(&self.schedule.carried(want.unit).pass), want))
    }

    fn load(&mut self, unit: Unit, claimed: Claimed) -> Option<Job<B>> {
        let slot = self.schedule.carried(unit);
        Some(Job::Load {
            pass: Arc::clone(&slot.pass),
            unit,
            claimed,
            work: slot.work.clone()?,
        })
    }

    /// Enters the plan of an epoch, if it is wanted: see [`Schedule::enter_plan`]. `account`: of the epoch before, or a new one.
    pub(super) fn enter_plan(
        &mut self,
        segment: u64,
        plan: Plan,
        account: Option<Arc<Account>>,
    ) -> Option<Arc<Pass>> {
        let planned = self.schedule.enter_plan(segment, plan)?;
        let (line, id) = (self.key, segment);
        let segment = self.schedule.segment(id)?;
        let pass = Arc::new(Pass {
            line,
            segment: id,
            epoch: segment.epoch,
            planned,
            meter: Arc::clone(&segment.meter),
            account,
        });
        segment.pass = Some(Arc::clone(&pass));
        Some(pass)
    }

    /// The next units, as many as are ready and the consumer may take: the first is returned, and the others go to `taken`.
    pub(super) fn deliver(
        &mut self,
        taken: &mut VecDeque<Delivered<B>>,
        bin: &mut Bin<B>,
    ) -> Option<Delivered<B>> {
        self.schedule.used_up();
        let count = self.schedule.ready();
        if count == 0 {
            return None;
        }
        let first = self.schedule.first();
        let slots = self.schedule.deliver(count).enumerate();
        let mut delivered = slots.filter_map(|(index, slot)| {
            Some(Delivered {
                pass: slot.pass,
                unit: Unit(first.0 + index as u64),
                outcome: slot.outcome?,
            })
        });
        let next = delivered.next();
        taken.extend(delivered);
        bin.found_wide = self.schedule.find_out();
        if bin.found_wide == Some(true)
            && let Some(pass) = next.as_ref().map(|next| &next.pass)
        {
            let slabs = pass.plan().slabs(true);
            let account = pass.account.clone();
            let limits = account.map(|account| (account, slabs));
            bin.left_over().limits.extend(limits);
            bin.tell_pin_thread = true;
        }
        next
    }

    /// The outbox that a unit's epoch has, if it goes to a device.
    pub(super) fn outbox(&mut self, pass: &Pass) -> Option<Arc<dyn Sends<B>>> {
        self.schedule.segment(pass.segment)?.outbox.clone()
    }

    /// Takes the segment's first unit that is here, and whose batch is before that one: to send it. `pageable`: also if it is not
    /// page-locked.
    pub(super) fn take_to_send(
        &mut self,
        segment: u64,
        before: u64,
        pageable: bool,
    ) -> Option<(Arc<Pass>, Unit, B)> {
        let is_here = |unit, slot: &Slot<B>| {
            slot.pass.segment == segment
                && (pageable || !slot.is_unpinned)
                && matches!(slot.outcome, Some(Ok(Made::Here(_))))
                && slot.pass.place(unit).batch < before
        };
        let unit = self.schedule.find_ready(is_here)?;
        let slot = self.schedule.carried(unit);
        match slot.outcome.take()? {
            Ok(Made::Here(made)) => {
                let pass = Arc::clone(&slot.pass);
                self.schedule.sending(unit);
                Some((pass, unit, made))
            }
            other => {
                slot.outcome = Some(other);
                None
            }
        }
    }

    /// Enters again what [`take_to_send`](Line::take_to_send) took: it was sent, or not.
    pub(super) fn put_back(&mut self, unit: Unit, outcome: Result<Made<B>>) {
        match outcome {
            Ok(Made::Sent) => self.schedule.sent(unit),
            _ => self.schedule.done(unit),
        }
        self.schedule.carried(unit).outcome = Some(outcome);
        self.tell_consumer(unit);
    }

    /// Enters a unit that was made from end to end, or its error.
    pub(super) fn made(&mut self, unit: Unit, outcome: Result<Made<B>>, elapsed_ns: u64) {
        self.schedule.made(unit, elapsed_ns);
        self.schedule.carried(unit).outcome = Some(outcome);
        self.tell_consumer(unit);
    }

    /// Enters a unit or its error, and wakes the consumer. What was entered first stays.
    pub(super) fn publish(&mut self, unit: Unit, outcome: Result<Made<B>>, bin: &mut Bin<B>) {
        if self.schedule.is_ready(unit) {
            bin.left_over().outcomes.push(outcome);
            return;
        }
        let is_sent = matches!(outcome, Ok(Made::Sent));
        let slot = self.schedule.carried(unit);
        if let Some(outcome) = slot.outcome.replace(outcome) {
            bin.left_over().outcomes.push(outcome);
        }
        if let Some(work) = slot.work.take() {
            bin.left_over().works.push(work);
        }
        if let Some(failure) = slot.failure.take() {
            bin.left_over().failures.push(failure);
        }
        let was_reserved = self.schedule.reserve_of(unit) > 0;
        match is_sent {
            true => self.schedule.sent(unit),
            false => self.schedule.done(unit),
        }
        // What was left to it in the ring is another's now.
        bin.tell_pin_thread |= was_reserved && self.schedule.waits_for_slab();
        self.tell_consumer(unit);
    }

    fn tell_consumer(&self, unit: Unit) {
        if unit == self.schedule.first() {
            self.ready.notify_one();
        }
    }
}

impl<B> Segment<B> {
    pub(super) fn new(
        epoch: u64,
        meter: &Arc<Meter>,
        destination: Option<Destination>,
        outbox: Option<Arc<dyn Sends<B>>>,
    ) -> Segment<B> {
        Segment {
            epoch,
            meter: Arc::clone(meter),
            destination,
            outbox,
            pass: None,
        }
    }

    pub(super) fn account(&self) -> Option<&Arc<Account>> {
        self.pass.as_ref()?.account.as_ref()
    }

    fn gathered_by(&self) -> Option<crate::tensor::Backend> {
        match self.destination {
            Some(Destination::Device {
                backend,
                gathers: true,
                ..
            }) => Some(backend),
            _ => None,
        }
    }
}

impl<B> Slot<B> {
    /// Of several failures, the first row's is reported.
    pub(super) fn keep_first(&mut self, failure: Failed, failures: &mut Vec<Failed>) {
        match &self.failure {
            Some(kept) if kept.row <= failure.row => failures.push(failure),
            _ => failures.extend(self.failure.replace(failure)),
        }
    }
}
