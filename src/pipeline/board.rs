//! The board: the state of all lines of a loader, under one lock.
//!
//! Whoever holds the lock holds a [`Guard`]. It is held for a few instructions at a time, and never across the user's code, the ring
//! or a device. What must happen without it goes into the guard's [`Bin`], which is emptied when the lock is released: slots of
//! units with what the user made, limits of accounts, wake-ups.

use std::collections::VecDeque;
use std::ops::{Deref, DerefMut};
use std::panic::{AssertUnwindSafe, catch_unwind};

use super::Pipeline;
use super::cut::Place;
use super::outbox::Sends;
use super::plan::{Destination, Plan};
use super::schedule::{Asker, Claim, Planned, Schedule, Unit, Want};
use super::source::Failed;
use super::work::{Claimed, Recipe, Work};
use crate::device::Account;
use crate::error::{Error, Result, panic_message};
use crate::meter::Meter;
use crate::sync::{Arc, Condvar, Instant, MutexGuard};

pub(super) struct Board<B> {
    lines: Vec<Line<B>>,
    entered: u64,
    /// Counts claims, so that lines take turns.
    turn: u64,
    /// Workers that sleep: the first few, and the spare ones.
    pub(super) idle: [usize; 2],
    /// The loader is being dropped: threads end.
    pub(super) is_closed: bool,
}

/// What one consumer iterates: an epoch, or several that follow each other.
pub(super) struct Line<B> {
    key: u64,
    /// Its consumer sleeps here.
    pub(super) ready: Arc<Condvar>,
    pub(super) schedule: Schedule<Segment<B>, Slot<B>>,
    /// The turn at which one of its jobs was claimed last.
    served: u64,
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

impl<B> Board<B> {
    pub(super) fn new() -> Board<B> {
        Board {
            lines: Vec::new(),
            entered: 0,
            turn: 0,
            idle: [0; 2],
            is_closed: false,
        }
    }

    /// Enters a line without epochs; returns its key.
    pub(super) fn enter(&mut self, ready: Arc<Condvar>, is_wide: Option<bool>) -> u64 {
        self.entered += 1;
        self.lines.push(Line {
            key: self.entered,
            ready,
            schedule: Schedule::new(is_wide),
            served: 0,
        });
        self.entered
    }

    /// Takes a line out that has no epochs left.
    pub(super) fn remove_if_over(&mut self, key: u64) {
        let is_over = |line: &Line<B>| line.key == key && line.schedule.is_over();
        self.lines.retain(|line| !is_over(line));
    }

    /// Takes everything out.
    pub(super) fn close(&mut self, bin: &mut Bin<B>) {
        self.is_closed = true;
        for line in &mut self.lines {
            // (Their epochs were forgotten, or they would hold the loader.)
            let left_over = bin.left_over();
            line.schedule
                .empty(&mut left_over.segments, &mut left_over.slots);
        }
        self.lines.clear();
    }

    pub(super) fn line(&mut self, key: u64) -> Option<&mut Line<B>> {
        self.lines.iter_mut().find(|line| line.key == key)
    }

    /// The line of an open unit; `None` if nobody wants the unit any more.
    pub(super) fn line_of(&mut self, pass: &Pass, unit: Unit) -> Option<&mut Line<B>> {
        let line = self.line(pass.line)?;
        line.schedule.holds(unit).then_some(line)
    }

    pub(super) fn slot(&mut self, pass: &Pass, unit: Unit) -> Option<&mut Slot<B>> {
        let line = self.line_of(pass, unit)?;
        Some(line.schedule.carried(unit))
    }

    /// Something to do: for a line whose consumer is blocked, if there is one, else for any. What lies beyond the epoch that a
    /// consumer is at comes last.
    pub(super) fn claim(&mut self, recipe: &dyn Recipe<B>, is_spare: bool) -> Option<Job<B>> {
        self.turn += 1;
        let turn = self.turn;
        self.urgent_first();
        [false, true].into_iter().find_map(|beyond| {
            let asker = Asker { is_spare, beyond };
            self.lines.iter_mut().find_map(|line| {
                let job = line.claim(recipe, asker)?;
                line.served = turn;
                Some(job)
            })
        })
    }

    pub(super) fn has_claim(&mut self, is_spare: bool) -> bool {
        let asker = Asker {
            is_spare,
            beyond: true,
        };
        let mut lines = self.lines.iter_mut();
        lines.any(|line| line.schedule.has_claim(asker))
    }

    /// The slabs that are waited for: of each line the first, in the lines' turn.
    pub(super) fn wants(&mut self) -> Vec<(Arc<Pass>, Want)> {
        self.urgent_first();
        self.lines.iter_mut().filter_map(Line::next_want).collect()
    }

    /// Lines whose consumer is blocked come first, and of several the one that had to wait for longest: a line that always has work
    /// would otherwise keep the workers, and the slabs that come home, from another for good.
    fn urgent_first(&mut self) {
        if self.lines.len() > 1 {
            self.lines
                .sort_unstable_by_key(|line| (!line.schedule.is_blocked(), line.served));
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
    pub(super) fn made(&mut self, unit: Unit, outcome: Result<Made<B>>, elapsed_ns: Option<u64>) {
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

    fn account(&self) -> Option<&Arc<Account>> {
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

/// What must happen when the board's lock is released.
pub(super) struct Bin<B> {
    /// There may be something to do for a sleeping worker.
    pub(super) wake_workers: bool,
    pub(super) tell_pin_thread: bool,
    /// Whether loading turned out to be far from copying.
    pub(super) found_wide: Option<bool>,
    /// Most often there is nothing in it.
    left_over: Option<Box<LeftOver<B>>>,
}

/// What the board has no more use for. Much of it is the user's.
pub(super) struct LeftOver<B> {
    pub(super) slots: Vec<Slot<B>>,
    pub(super) segments: Vec<Segment<B>>,
    pub(super) outcomes: Vec<Result<Made<B>>>,
    pub(super) works: Vec<Arc<dyn Work<B>>>,
    pub(super) failures: Vec<Failed>,
    /// Accounts that may have so many slabs from now on.
    pub(super) limits: Vec<(Arc<Account>, usize)>,
    /// Accounts that were opened or shared in vain.
    pub(super) accounts: Vec<Arc<Account>>,
}

impl<B> Default for Bin<B> {
    fn default() -> Bin<B> {
        Bin {
            wake_workers: false,
            tell_pin_thread: false,
            found_wide: None,
            left_over: None,
        }
    }
}

impl<B> Bin<B> {
    fn is_empty(&self) -> bool {
        !self.wake_workers
            && !self.tell_pin_thread
            && self.found_wide.is_none()
            && self.left_over.is_none()
    }

    /// What is dropped without the lock.
    pub(super) fn left_over(&mut self) -> &mut LeftOver<B> {
        self.left_over.get_or_insert_with(|| {
            Box::new(LeftOver {
                slots: Vec::new(),
                segments: Vec::new(),
                outcomes: Vec::new(),
                works: Vec::new(),
                failures: Vec::new(),
                limits: Vec::new(),
                accounts: Vec::new(),
            })
        })
    }

    /// Without the board's lock. Threads are told first, for a `drop` of the user's may take its time, or wait for one of them.
    fn empty(self, pipeline: &Pipeline<B>, worker: Option<usize>) {
        if let Some(is_wide) = self.found_wide {
            let _ = pipeline.is_wide.set(is_wide);
        }
        if let Some(left_over) = &self.left_over {
            left_over.settle_accounts();
        }
        if self.tell_pin_thread {
            pipeline.tell_pin_thread();
        }
        if let Some(worker) = worker {
            pipeline.work[worker].notify_one();
        }
        if let Some(left_over) = self.left_over {
            left_over.drop_each();
        }
    }
}

impl<B> LeftOver<B> {
    fn settle_accounts(&self) {
        for (account, limit) in &self.limits {
            account.set_limit(*limit);
        }
        let ended = self.segments.iter().filter_map(Segment::account);
        ended
            .chain(&self.accounts)
            .for_each(|account| account.close());
    }

    fn drop_each(self) {
        drop_each(self.slots);
        drop_each(self.segments);
        drop_each(self.outcomes);
        drop_each(self.works);
        drop_each(self.failures);
    }
}

/// Drops what is the user's. A `drop` that panics ends neither the thread nor the others.
pub(super) fn drop_each<T>(things: impl IntoIterator<Item = T>) {
    for thing in things {
        if let Err(payload) = catch_unwind(AssertUnwindSafe(|| drop(thing))) {
            drop(panic_message(payload));
        }
    }
}

/// Holds the board's lock.
pub(super) struct Guard<'a, B> {
    pipeline: &'a Pipeline<B>,
    /// `None` only for an instant, while the lock is released.
    board: Option<MutexGuard<'a, Board<B>>>,
    pub(super) bin: Bin<B>,
}

impl<'a, B> Guard<'a, B> {
    pub(super) fn new(pipeline: &'a Pipeline<B>) -> Guard<'a, B> {
        Guard {
            pipeline,
            board: Some(pipeline.board.lock()),
            bin: Bin::default(),
        }
    }

    pub(super) fn parts(&mut self) -> (&mut Board<B>, &mut Bin<B>) {
        match &mut self.board {
            Some(board) => (board, &mut self.bin),
            None => unreachable!("it is `None` within `release` only"),
        }
    }

    /// Sleeps until somebody notifies, or wakes at once if something was to be done without the lock. So look again.
    pub(super) fn wait(&mut self, condvar: &Condvar) {
        match &mut self.board {
            Some(board) if self.bin.is_empty() => condvar.wait(board),
            _ => {
                self.release();
                self.board = Some(self.pipeline.board.lock());
            }
        }
    }

    fn release(&mut self) {
        let bin = std::mem::take(&mut self.bin);
        let worker = self
            .board
            .as_mut()
            .filter(|_| bin.wake_workers)
            .and_then(|board| board.worker_to_wake());
        drop(self.board.take());
        bin.empty(self.pipeline, worker);
    }
}

impl<B> Board<B> {
    /// A kind of sleeping worker for whom there is something to do. One is woken, who wakes the next when he found something.
    fn worker_to_wake(&mut self) -> Option<usize> {
        [0, 1]
            .into_iter()
            .find(|&kind| self.idle[kind] > 0 && self.has_claim(kind == 1))
    }
}

impl<B> Deref for Guard<'_, B> {
    type Target = Board<B>;

    fn deref(&self) -> &Board<B> {
        match &self.board {
            Some(board) => board,
            None => unreachable!("it is `None` within `release` only"),
        }
    }
}

impl<B> DerefMut for Guard<'_, B> {
    fn deref_mut(&mut self) -> &mut Board<B> {
        self.parts().0
    }
}

impl<B> Drop for Guard<'_, B> {
    fn drop(&mut self) {
        if self.board.is_some() {
            self.release();
        }
    }
}
