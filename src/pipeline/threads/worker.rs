//! Workers: they plan epochs, load samples and make batches.

use std::panic::{AssertUnwindSafe, catch_unwind};

use super::decoded::can_make_again;
use super::pipeline::Pipeline;
use crate::batch::{Batch, relocated_bytes};
use crate::device::Tensors;
use crate::error::drop_each;
use crate::error::{Result, panic_message};
use crate::meter::Activity;
use crate::pipeline::epoch::Pass;
use crate::pipeline::schedule::{Claimed, Next, Unit};
use crate::pipeline::shared::data::{Made, UnitSlot};
use crate::pipeline::shared::lock::{Bin, Guard};
use crate::pipeline::shared::session::{Job, Line};
use crate::pipeline::shared::workers::{Task, What};
use crate::pipeline::traits::{Changes, Failed, MadeAlone, Remade, Work};
use crate::pipeline::worker_status::{Desk, Doing};
use crate::sync::{Arc, Instant, planted};
use crate::trace::span;

impl<B: Batch> Pipeline<B> {
    /// Runs a worker until the loader is dropped, or the worker is given up.
    pub(crate) fn run_worker(&self, desk: &Desk) {
        let mut next = None;
        while let Some(job) = next.or_else(|| self.next_job(desk)) {
            next = self.perform(job, desk);
        }
    }

    /// Waits for something to do; `None` when the loader is dropped, or another thread has the worker's place.
    fn next_job(&self, desk: &Desk) -> Option<Job<B>> {
        let mut board = self.lock();
        let group = board.group(desk.number());
        let mut was_on = true;
        loop {
            if board.is_closed || desk.is_given_up() {
                return None;
            }
            if !board.duty.is_on(desk.number()) {
                // It may have been woken for something to do: somebody else is, before it sleeps.
                board.bin.wake_workers |= was_on && !planted("who goes off duty wakes nobody");
                was_on = false;
                board.idle_off_duty += 1;
                board.wait(&self.off_duty);
                board.idle_off_duty -= 1;
                continue;
            }
            was_on = true;
            if let Some(job) = self.claim(&mut board, desk) {
                return Some(job);
            }
            board.idle[group] += 1;
            board.wait(&self.worker_wakeups[group]);
            board.idle[group] -= 1;
        }
    }

    /// Claims something for a worker to do, if there is anything.
    fn claim(&self, board: &mut Guard<'_, B>, desk: &Desk) -> Option<Job<B>> {
        if !board.duty.is_on(desk.number()) {
            return None;
        }
        let group = board.group(desk.number());
        let job = board.claim(&*self.recipe, group)?;
        board.takes_on(desk, Task::of(&job));
        // Each worker that is woken wakes the next, as long as there is work: none wakes for nothing.
        board.bin.wake_workers = !planted("a claim wakes nobody");
        Some(job)
    }

    /// Does a job. A worker that has reported may have claimed its next one under the same lock, which is returned.
    pub(crate) fn perform(&self, job: Job<B>, desk: &Desk) -> Option<Job<B>> {
        match job {
            Job::Plan { line, segment } => self.plan_early(line, segment),
            Job::Load {
                pass,
                unit,
                claimed,
                work,
            } => {
                let load = || self.load(desk, &pass, unit, claimed, work);
                return self.attend(desk, &pass, unit, load).flatten();
            }
            Job::Finish { pass, unit } => {
                self.attend(desk, &pass, unit, || self.finish(desk, &pass, unit));
            }
            Job::Remake {
                pass,
                unit,
                changes,
                own,
            } => {
                self.attend(desk, &pass, unit, || {
                    self.remake(desk, &pass, unit, changes, own);
                });
            }
            Job::Solo { pass, units, run } => match run {
                None => self.make_all(desk, &pass, units),
                Some(run) => self.make_run(desk, &pass, units, run),
            },
            Job::Grant {
                pass,
                unit,
                bytes,
                work,
                charge,
            } => self.grant_held(&pass, unit, work, bytes, charge),
            Job::Pull {
                pass,
                unit,
                stream,
                offload,
            } => self.pull(desk, &pass, unit, stream, offload),
        }
        None
    }

    /// As [`catch_panics`](Pipeline::catch_panics), for a worker. Who was given up reports nothing.
    fn attend<R>(&self, desk: &Desk, pass: &Pass, unit: Unit, f: impl FnOnce() -> R) -> Option<R> {
        match catch_unwind(AssertUnwindSafe(f)) {
            Ok(result) => Some(result),
            Err(payload) => {
                let error = pass.collate_panicked(unit, panic_message(payload));
                if desk.leave() {
                    self.publish(pass, unit, Err(error));
                }
                None
            }
        }
    }

    /// Works on units. Panics of the user's code are caught where it is called. What is caught here (say, a panic in a sample's
    /// `drop`) must not end the thread either, or the unit and those after it would never come.
    pub(crate) fn catch_panics<R>(
        &self,
        pass: &Pass,
        units: &[Unit],
        f: impl FnOnce() -> R,
    ) -> Option<R> {
        match catch_unwind(AssertUnwindSafe(f)) {
            Ok(result) => Some(result),
            Err(payload) => {
                let message = panic_message(payload);
                for &unit in units {
                    let error = pass.collate_panicked(unit, message.clone());
                    self.publish(pass, unit, Err(error));
                }
                None
            }
        }
    }

    /// Loads what was claimed, reports that, and does what follows from it; or, if that is nothing, claims the next job.
    fn load(
        &self,
        desk: &Desk,
        pass: &Pass,
        unit: Unit,
        claimed: Claimed,
        work: Arc<dyn Work<B>>,
    ) -> Option<Job<B>> {
        span!("load", epoch = pass.epoch, unit = unit.0);
        let mut bar = pass.bar(Activity::Load, unit);
        desk.enter(Doing::Loading, 0);
        let ask = |bytes| self.ask(pass, unit, &*work, bytes);
        let report = work.load(claimed, &ask, desk);
        if let Some(bar) = &mut bar {
            bar.more = report.spent.more();
        }
        drop(bar);
        if !desk.leave() && !planted("who was given up reports") {
            drop_each([(work, report.failure)]);
            return None;
        }
        let (next, job) = {
            let mut board = self.lock();
            let next = board.report(desk, pass, unit, Some(work), report.failure, |line, _| {
                line.schedule.loaded(unit, report.rows, report.elapsed_ns)
            });
            let claims = next == Next::Wait && !board.is_closed && !desk.is_nobodys();
            let job = claims.then(|| self.claim(&mut board, desk)).flatten();
            (next, job)
        };
        self.follow(desk, pass, unit, next);
        job
    }

    /// Lets go of a unit's work, reports what came of it, and does what follows from that.
    pub(crate) fn report(
        &self,
        desk: &Desk,
        pass: &Pass,
        unit: Unit,
        work: Option<Arc<dyn Work<B>>>,
        failure: Option<Failed>,
        report: impl FnOnce(&mut Line<B>, &mut Bin<B>) -> Next,
    ) {
        let mut board = self.lock();
        let next = board.report(desk, pass, unit, work, failure, report);
        drop(board);
        self.follow(desk, pass, unit, next);
    }

    /// Does what follows from a report.
    fn follow(&self, desk: &Desk, pass: &Pass, unit: Unit, next: Next) {
        match next {
            Next::Wait => {}
            Next::LayOut => self.lay_out(desk, pass, unit),
            Next::Finish => self.finish(desk, pass, unit),
            Next::Fail => self.publish_failure(desk, pass, unit),
        }
    }

    /// Lays out a unit whose samples are all parked.
    fn lay_out(&self, desk: &Desk, pass: &Pass, unit: Unit) {
        let work = self.with_slot(pass, unit, |slot| slot.work.clone());
        let Some(Some(work)) = work else { return };
        desk.enter(Doing::Planning, 0);
        desk.since(Instant::now());
        let bar = pass.bar(Activity::LayOut, unit);
        let laid_out = work.lay_out();
        drop(bar);
        if !desk.leave() {
            return drop_each([(work, laid_out)]);
        }
        let failure = match laid_out {
            Ok(bytes) if self.ask(pass, unit, &*work, bytes) => None,
            Ok(bytes) => Some(Failed::too_large(bytes)),
            Err(failure) => Some(failure),
        };
        let has_failed = failure.is_some();
        self.report(desk, pass, unit, Some(work), failure, |line, bin| {
            bin.wake_workers = true; // there may be parked samples to fill
            match has_failed {
                true => line.schedule.failed(unit),
                false => line.schedule.laid_out(unit),
            }
        });
    }

    /// Makes a batch of the unit's rows. The schedule has given the unit to the caller alone.
    fn finish(&self, desk: &Desk, pass: &Pass, unit: Unit) {
        span!("collate", epoch = pass.epoch, unit = unit.0);
        let work = self.with_slot(pass, unit, |slot| {
            slot.work.take().map(|work| (work, slot.is_unpinned))
        });
        let Some(Some((mut work, is_unpinned))) = work else {
            return;
        };
        desk.enter(Doing::Collating, 0);
        desk.since(Instant::now());
        let bar = pass.bar(Activity::Collate, unit);
        let Some(made) = Arc::get_mut(&mut work).map(Work::finish) else {
            unreachable!("everybody drops a unit's work before reporting it");
        };
        drop(bar);
        let changes = work.changes();
        drop(work);
        if !desk.leave() {
            return drop_each([made]);
        }
        let made = match made {
            Ok(made) => made,
            Err(failure) => {
                let remade = failure.can_remake.then(|| {
                    let mut board = self.lock();
                    let (line, _) = board.line_of(pass, unit)?;
                    let own = line.slot(unit).own.as_deref();
                    if !can_make_again(pass, own) {
                        return None;
                    }
                    let own = own.map(|own| own.again());
                    line.schedule.remaking(unit);
                    Some(own)
                });
                return match remade.flatten() {
                    Some(own) => self.remake(desk, pass, unit, changes, own),
                    None => self.publish(pass, unit, Err(failure.error)),
                };
            }
        };
        if !changes.is_empty() {
            self.with_slot(pass, unit, |slot| slot.changes = Some(Box::new(changes)));
        }
        let is_cut = pass.plan().is_cut();
        // A batch in parts is made when the last of them is sent.
        pass.meter.batches.add(u64::from(!is_cut));
        if self.pinning(pass).is_none() || is_unpinned {
            return self.publish(pass, unit, Ok(Made::Here(made)));
        }
        if is_cut {
            return self.hand_over(pass, unit, made);
        }
        self.lock_pages(pass, unit, made);
    }

    /// Hands a unit over that is page-locked; the pin thread moves it if it is not.
    pub(crate) fn lock_pages(&self, pass: &Pass, unit: Unit, made: B) {
        match pageable_bytes(&made) {
            Ok(Some(0)) => self.hand_over(pass, unit, made),
            Ok(Some(bytes)) => self.ask_to_move(pass, unit, made, bytes),
            Ok(None) => self.publish(pass, unit, Err(Failed::too_large(usize::MAX).error)),
            Err(message) => {
                let error = pass.collate_panicked(unit, message);
                self.publish(pass, unit, Err(error));
            }
        }
    }

    /// Reports that a unit cannot have its slab. Whoever is last to work on the unit delivers the failure.
    pub(crate) fn refuse(&self, pass: &Pass, unit: Unit, failure: Failed) {
        let nobody = Desk::of_caller(self.began);
        self.report(&nobody, pass, unit, None, Some(failure), |line, bin| {
            let next = line.schedule.refused(unit);
            line.tell_if_waiting(bin); // as in `publish`
            next
        });
    }

    /// Delivers the error of a unit that nobody works on any more; or makes the unit again, if it can do without the sample that failed.
    fn publish_failure(&self, desk: &Desk, pass: &Pass, unit: Unit) {
        // The pin thread runs no samples: others wait for it.
        let can_make = !desk.is_nobodys() || self.options().workers == 0;
        let (failure, work, own) = {
            let mut board = self.lock();
            let Some((line, _)) = board.line_of(pass, unit) else {
                return;
            };
            let slot = line.slot(unit);
            let Some(mut failure) = slot.failure.take() else {
                return;
            };
            failure.can_remake &= can_make;
            let (mut work, mut own) = (None, None);
            if failure.can_remake {
                work = slot.work.take();
                let items = slot.own.as_ref();
                own = items.map(|items| items.again());
                line.schedule.remaking(unit);
                board.takes_on(desk, Some(Task::new(pass.line, What::Finish { unit })));
            }
            (failure, work, own)
        };
        if !failure.can_remake {
            return self.publish(pass, unit, Err(failure.error));
        }
        let changes = work.as_ref().map(|work| work.changes());
        drop_each([work]); // its samples are the user's
        self.remake(desk, pass, unit, changes.unwrap_or_default(), own);
    }

    /// Makes a unit again, alone.
    fn remake(
        &self,
        desk: &Desk,
        pass: &Pass,
        unit: Unit,
        changes: Changes,
        own: Option<Remade<B>>,
    ) {
        desk.enter(Doing::Loading, 0);
        let alone = self.make(pass, unit, own.as_ref(), changes, desk);
        drop_each([own]);
        if !desk.leave() {
            return drop_each([alone.made]);
        }
        self.remade(pass, unit, alone);
    }

    /// Hands over a unit that was made again: not in the slab that it had, whose layout was made for other samples.
    fn remade(&self, pass: &Pass, unit: Unit, alone: MadeAlone<B>) {
        let is_unpinned = self.with_slot(pass, unit, |slot| {
            slot.changes = Some(Box::new(alone.changes));
            slot.is_unpinned
        });
        match (alone.made, is_unpinned, self.pinning(pass)) {
            (Ok(made), Some(false), Some(_)) => self.lock_pages(pass, unit, made),
            (made, ..) => self.publish(pass, unit, made.map(Made::Here)),
        }
    }

    /// Makes the unit or its error ready, and wakes whoever waits for it.
    pub(crate) fn publish(&self, pass: &Pass, unit: Unit, outcome: Result<Made<B>>) {
        let is_failed = outcome.is_err();
        let outbox = {
            let mut board = self.lock();
            let Some((line, bin)) = board.line_of(pass, unit) else {
                return board.bin.drop_later(outcome);
            };
            line.publish(unit, outcome, bin);
            line.outbox(pass.segment).filter(|_| is_failed)
        };
        if let Some(outbox) = outbox.filter(|_| !planted("a batch that failed stays in the way")) {
            outbox.give_up(pass.batch(unit), unit);
            self.send_behind(pass, &*outbox);
        }
    }

    /// Looks at an open unit under the lock; `None` if the unit is gone.
    pub(crate) fn with_slot<R>(
        &self,
        pass: &Pass,
        unit: Unit,
        look: impl FnOnce(&mut UnitSlot<B>) -> R,
    ) -> Option<R> {
        let mut board = self.lock();
        let (line, _) = board.line_of(pass, unit)?;
        Some(look(line.slot(unit)))
    }
}

impl<B: Batch> Guard<'_, B> {
    /// Lets go of a unit's work, and reports what came of it.
    fn report(
        &mut self,
        desk: &Desk,
        pass: &Pass,
        unit: Unit,
        work: Option<Arc<dyn Work<B>>>,
        failure: Option<Failed>,
        report: impl FnOnce(&mut Line<B>, &mut Bin<B>) -> Next,
    ) -> Next {
        let Some((line, bin)) = self.line_of(pass, unit) else {
            self.bin.drop_later(work);
            self.bin.drop_later(failure);
            return Next::Wait;
        };
        // Before the report, because whoever finishes the unit must be its only holder. (If the board holds no reference, ours may be
        // the last, and its `drop` the user's.)
        match line.slot(unit).work {
            Some(_) if planted("work is held beyond its report") => _ = work.map(Arc::into_raw),
            Some(_) => drop(work),
            None => bin.drop_later(work),
        }
        if let Some(failure) = failure {
            line.note_failure(unit, failure, bin);
        }
        let next = report(line, bin);
        let what = match next {
            Next::Wait | Next::Fail => None,
            Next::LayOut => Some(What::LayOut { unit }),
            Next::Finish => Some(What::Finish { unit }),
        };
        self.takes_on(desk, what.map(|what| Task::new(pass.line, what)));
        next
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
