//! Units that one thread makes from end to end: each in pageable memory of its own, or a run of them in one page-locked slab.

use std::cell::RefCell;
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};

use super::pipeline::Pipeline;
use crate::batch::Batch;
use crate::device::{Coming, Piece, Pieces, Slab};
use crate::error::drop_each;
use crate::error::panic_message;
use crate::meter::Activity;
use crate::pipeline::epoch::Pass;
use crate::pipeline::schedule::Unit;
use crate::pipeline::shared::session::Run;
use crate::pipeline::shared::workers::{Task, What};
use crate::pipeline::traits::{Changes, MadeAlone, Memory, Remade, Sends};
use crate::pipeline::worker_status::{Desk, Doing};
use crate::sync::{Arc, Instant};
use crate::tensor::Offload;
use crate::trace::span;
use crate::tuning::RUN_SLAB_BYTES;

/// What the units of a run are made in.
struct RunMemory {
    /// `None`: there was no slab.
    pieces: Option<Pieces>,
    /// The unit that is being made has memory that is not page-locked, and must move.
    is_elsewhere: bool,
    /// How many bytes a unit took at most.
    most_bytes: usize,
}

/// What is left to do with a unit of a run.
enum Reported<B> {
    /// Its epoch goes to no device, as far as is known.
    Here,
    /// It, or what is ready before it, may be sent through this outbox.
    ToSend(Arc<dyn Sends<B>>),
    Gone,
}

impl<B: Batch> Pipeline<B> {
    /// Makes units that need not be page-locked. Each is reported at once, so that it does not wait for a slow one after it.
    pub(crate) fn make_all(&self, desk: &Desk, pass: &Pass, units: Range<u64>) {
        for unit in units.clone() {
            desk.enter(Doing::Loading, 0);
            let made = self.make(pass, Unit(unit), None, Changes::default(), desk);
            if !desk.leave() {
                return drop_each([made.made]);
            }
            let mut board = self.lock();
            let rest = unit + 1..units.end;
            board.takes_on(desk, Some(Task::new(pass.line, What::Solo { units: rest })));
            if !board.made(pass, Unit(unit), made) {
                return; // nobody wants the others either
            }
        }
    }

    /// Makes one unit from end to end. `own`: again, of items that were pulled for it.
    pub(crate) fn make(
        &self,
        pass: &Pass,
        unit: Unit,
        own: Option<&Remade<B>>,
        changes: Changes,
        desk: &Desk,
    ) -> MadeAlone<B> {
        let slab = |bytes| self.pageable_piece(pass, bytes);
        let memory = Memory {
            slab: &slab,
            offload: Offload::default(),
        };
        self.make_in(pass, unit, own, &memory, changes, desk)
    }

    fn pageable_piece(&self, pass: &Pass, bytes: usize) -> Option<Piece> {
        let slab = self.pageable.take(bytes)?;
        Some(slab.for_epoch(pass.meter.clone()).into())
    }

    fn make_in(
        &self,
        pass: &Pass,
        unit: Unit,
        own: Option<&Remade<B>>,
        memory: &Memory<'_>,
        changes: Changes,
        desk: &Desk,
    ) -> MadeAlone<B> {
        span!("make", epoch = pass.epoch, unit = unit.0);
        let mut bar = pass.bar(Activity::Load, unit);
        // What is caught here (say, a panic in a sample's `drop`) must not end the thread.
        let (recipe, place) = match own {
            None => (&*self.recipe, pass.place(unit)),
            Some(own) => (&*own.recipe, own.place),
        };
        let make = || recipe.make(pass, place, memory, changes, desk);
        match catch_unwind(AssertUnwindSafe(make)) {
            Ok(made) => {
                if let Some(bar) = &mut bar {
                    bar.more = made.spent.unwrap_or_default().more();
                }
                made
            }
            Err(payload) => MadeAlone::failed(pass.collate_panicked(unit, panic_message(payload))),
        }
    }

    /// Makes page-locked units one after the other in one slab. Each is reported at once, as above.
    pub(crate) fn make_run(&self, desk: &Desk, pass: &Pass, units: Range<u64>, run: Run) {
        let offload = run.offload;
        let memory = RefCell::new(RunMemory {
            pieces: self.take_for_run(pass, &units, run),
            is_elsewhere: false,
            most_bytes: 0,
        });
        let slab = |bytes| self.piece_of_run(pass, &mut memory.borrow_mut(), bytes);
        let (mut unsent, mut together) = (0, None);
        for unit in units.clone() {
            memory.borrow_mut().is_elsewhere = false;
            desk.enter(Doing::Loading, 0);
            let memory_of_unit = Memory {
                slab: &slab,
                offload,
            };
            let changes = Changes::default();
            let made = self.make_in(pass, Unit(unit), None, &memory_of_unit, changes, desk);
            if !desk.leave() {
                return drop_each([made.made]);
            }
            let rest = unit + 1..units.end;
            if rest.is_empty() {
                memory.borrow_mut().pieces = None; // what is left of the slab is the batches'
            }
            let is_last = rest.is_empty();
            match self.report_of_run(desk, pass, (Unit(unit), rest), made, &memory.borrow()) {
                Reported::Gone => return, // nobody wants the others either
                Reported::Here => {}
                Reported::ToSend(outbox) => {
                    unsent += 1;
                    let most = *together.get_or_insert_with(|| outbox.permits().together);
                    if is_last || unsent >= most {
                        (unsent, together) = (0, None);
                        if pass.plan().solo.is_some_and(|solo| solo.grows) {
                            outbox.note_runs();
                        }
                        self.send_behind(pass, &*outbox);
                    }
                }
            }
        }
    }

    /// Takes the slab for a run. If there is none now, its units are made all the same, and move when there are slabs, as those that are
    /// made elsewhere do.
    fn take_for_run(&self, pass: &Pass, units: &Range<u64>, run: Run) -> Option<Pieces> {
        let taken = self.try_take_for_run(pass, units, run);
        if taken.is_none()
            && let Some((line, bin)) = self.lock().line_of(pass, Unit(units.start))
        {
            line.schedule.no_run_slab(units.clone());
            line.tell_if_waiting(bin); // it was counted in the account
        }
        taken
    }

    fn try_take_for_run(&self, pass: &Pass, units: &Range<u64>, run: Run) -> Option<Pieces> {
        let (pinning, account) = (self.pinning(pass)?, pass.account.as_ref()?);
        let (slab, set_aside) = (run.slab, run.set_aside?);
        span!("slab", epoch = pass.epoch, unit = units.start);
        let bar = pass.bar(Activity::Slab, Unit(units.start));
        let start = Instant::now();
        account.add_slabs(pass.plan().more_slabs);
        let device = &pinning.device.inner;
        device.settle();
        let coming = device.coming_home(None);
        let grow = !matches!(coming, Coming::Batch(_) | Coming::Decoding);
        let ring = &device.ring;
        // (Earlier units may have theirs since the run was claimed.)
        let reserve = {
            let mut board = self.lock();
            let (line, _) = board.line_of(pass, Unit(units.start))?;
            line.schedule.reserve_before_run(units)
        };
        let grown = self.run_size.for_batch(slab.most_bytes, |bytes| {
            bytes <= RUN_SLAB_BYTES && self.has_room_for_slabs(pinning, account, bytes)
        });
        // A slab that is larger than its run takes room that later batches may need, if the budget is small.
        let all_bytes = account.limit().saturating_mul(slab.most_bytes);
        let largest = match ring.is_beyond_budget(all_bytes) {
            true => slab.bytes,
            false => grown,
        };
        let of_epoch = self.slab_sizes[account.kind() as usize].bytes();
        let largest = largest.max(of_epoch);
        let taken = ring.take_for(set_aside, slab.bytes, largest, reserve, grow);
        let meter = &pass.meter;
        let waited_ns = meter.pinning_ns.add_since(start);
        drop(bar);
        let taken = taken.filter(Slab::is_page_locked)?;
        if taken.capacity() >= slab.most_bytes {
            self.run_size.saw(grown.min(taken.capacity()));
            if self.slab_sizes[account.kind() as usize].saw_run(slab.most_bytes) {
                ring.news().notify(); // others will be as large
            }
        }
        // Only the first of them may have waited.
        meter.slab_wait_ns.add(waited_ns);
        meter.slab_wait_times.count(waited_ns);
        let others = units.end - units.start - 1;
        meter.slab_wait_times.count_times(0, others);
        Some(Pieces::of(taken.for_epoch(pass.meter.clone())))
    }

    fn piece_of_run(&self, pass: &Pass, memory: &mut RunMemory, bytes: usize) -> Option<Piece> {
        memory.most_bytes = memory.most_bytes.max(bytes);
        let pieces = memory.pieces.as_mut();
        pieces.and_then(|pieces| pieces.next(bytes)).or_else(|| {
            memory.is_elsewhere = true;
            Some(self.pageable_piece(pass, bytes)?.that_moves())
        })
    }

    /// Reports a unit of a run.
    fn report_of_run(
        &self,
        desk: &Desk,
        pass: &Pass,
        (unit, rest): (Unit, Range<u64>),
        alone: MadeAlone<B>,
        memory: &RunMemory,
    ) -> Reported<B> {
        let reported = {
            let mut board = self.lock();
            board.takes_on(desk, Some(Task::new(pass.line, What::Solo { units: rest })));
            let Some((line, bin)) = board.line_of(pass, unit) else {
                board.bin.drop_later(alone.made);
                return Reported::Gone;
            };
            line.schedule.has_bytes(memory.most_bytes);
            let outbox = line.outbox(pass.segment);
            let reported = outbox.map_or(Reported::Here, Reported::ToSend);
            if alone.made.is_ok() && !memory.is_elsewhere {
                line.made_of_run(unit, alone, bin);
                return reported;
            }
            line.schedule.took(unit, alone.elapsed_ns());
            if !alone.changes.is_empty() {
                line.slot(unit).changes = Some(Box::new(alone.changes));
            }
            reported
        };
        match alone.made {
            Err(error) => self.publish(pass, unit, Err(error)),
            Ok(made) => self.lock_pages(pass, unit, made),
        }
        reported
    }
}
