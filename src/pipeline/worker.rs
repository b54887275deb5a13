//! Workers: they load samples and make batches.

use std::cell::Cell;
use std::ops::Range;
use std::panic::AssertUnwindSafe;
use std::time::Duration;

use super::Pipeline;
use super::arrivals::Fate;
use super::board::{Job, Live, Made};
use super::schedule::Loaded;
use super::source::{BatchId, Failed};
use super::work::Work;
use crate::batch::{Batch, relocated_bytes};
use crate::device::Tensors;
use crate::error::{Result, panic_message};
use crate::sync::{Arc, Instant};
use crate::trace::span;
use crate::tuning::COPYING_WORKERS as MOST_COPYING;

impl<B: Batch> Pipeline<B> {
    /// A worker's life.
    pub(super) fn work(&self, number: usize) {
        let spare = number >= MOST_COPYING;
        while let Some(job) = self.next_job(spare) {
            self.perform(job);
        }
    }

    /// Waits for something to do; `None` when the loader goes.
    fn next_job(&self, spare: bool) -> Option<Job<B>> {
        let mut board = self.board.lock();
        loop {
            if board.closed {
                return None;
            }
            if let Some(job) = board.claim(&*self.recipe, spare) {
                // Each woken worker wakes the next, as long as there is work: nobody wakes for nothing.
                self.wake(&mut board);
                return Some(job);
            }
            board.idle[usize::from(spare)] += 1;
            self.work[usize::from(spare)].wait(&mut board);
            board.idle[usize::from(spare)] -= 1;
        }
    }

    /// Does a job.
    pub(super) fn perform(&self, job: Job<B>) {
        let (live, batch) = match &job {
            Job::Rows { live, batch, .. } | Job::Finish { live, batch } => (live.clone(), *batch),
            Job::Whole { .. } => return self.make_all(job),
        };
        self.guarded(&live, batch, || match job {
            Job::Rows {
                live,
                batch,
                rows,
                work,
            } => self.load(&live, batch, rows, work),
            Job::Finish { live, batch } => self.finish(&live, batch),
            Job::Whole { .. } => {}
        });
    }

    /// Makes batches from end to end. Each is reported at once, so that none that is ready waits for a slow one.
    fn make_all(&self, job: Job<B>) {
        let Job::Whole { live, batches, id } = job else {
            return;
        };
        let cut = self.options.cut();
        for batch in batches {
            let id = BatchId::of(live.epoch, &cut, batch, id.gathered_by);
            let started = Instant::now();
            let made = self.make(&live, id);
            let elapsed_ns = started.elapsed().as_nanos() as u64;
            let mut board = self.board.lock();
            let (left_over, wanted) = match board.epoch(&live) {
                Some(state) => (state.made(batch, made, elapsed_ns), true),
                None => ((Some(made.map(Made::Here)), None, None), false),
            };
            drop(board);
            // It is the user's, and if its `drop` panics, the thread goes on.
            let gone = std::panic::catch_unwind(AssertUnwindSafe(|| drop(left_over)));
            if let Err(payload) = gone {
                drop(panic_message(payload));
            }
            if !wanted {
                return; // nor the others
            }
        }
    }

    /// Makes one batch from end to end.
    pub(super) fn make(&self, live: &Live, id: BatchId) -> Result<B> {
        span!("make", epoch = live.epoch, batch = id.batch);
        let slab = |bytes| {
            let slab = self.pageable.take(bytes)?;
            Some(slab.for_epoch(live.meter.clone()))
        };
        // What is caught here (a sample whose `drop` panics, say) must not end the thread.
        let make = AssertUnwindSafe(|| self.recipe.make(id, &live.meter, &slab));
        std::panic::catch_unwind(make)
            .unwrap_or_else(|payload| Err(live.collate_panicked(id.batch, panic_message(payload))))
    }

    /// Works on a batch. Panics of the user's code are caught where it is called; what is caught here (a sample whose
    /// `drop` panics, say) must not end the thread either, or the batch, and those after it, would never come.
    pub(super) fn guarded<R>(&self, live: &Live, batch: u64, f: impl FnOnce() -> R) -> Option<R> {
        match std::panic::catch_unwind(AssertUnwindSafe(f)) {
            Ok(result) => Some(result),
            Err(payload) => {
                let error = live.collate_panicked(batch, panic_message(payload));
                // What this drops may panic in its turn.
                let publish = AssertUnwindSafe(|| self.publish(live, batch, Err(error)));
                if let Err(payload) = std::panic::catch_unwind(publish) {
                    drop(panic_message(payload));
                }
                None
            }
        }
    }

    fn load(&self, live: &Live, batch: u64, rows: Range<usize>, work: Arc<dyn Work<B>>) {
        span!("load", epoch = live.epoch, batch = batch, rows = rows.len());
        let (count, start) = (rows.len(), Instant::now());
        let asking = Cell::new(Duration::ZERO);
        let ask = |bytes| {
            let start = Instant::now();
            self.ask(live, batch, &*work, bytes);
            asking.set(asking.get() + start.elapsed());
        };
        let failure = work.load(rows, &ask).err();
        // A slab that had to be made says nothing about how long samples take.
        let elapsed = start.elapsed().saturating_sub(asking.get());
        let elapsed_ns = elapsed.as_nanos() as u64;
        let failed = failure.is_some();
        let (next, left_over) = {
            let mut board = self.board.lock();
            let Some(state) = board.epoch(live).filter(|state| state.holds(batch)) else {
                drop(board); // `work` may be the last hold on the user's samples
                return;
            };
            let slot = state.slot(batch);
            // Before it is reported: who finishes the batch must be its only holder.
            let left_over = (
                slot.let_go(work),
                failure.and_then(|failure| slot.keep_first(failure)),
            );
            let next = state.schedule.loaded(batch, count, elapsed_ns, failed);
            (next, left_over)
        };
        drop(left_over);
        match next {
            Loaded::Wait => {}
            Loaded::Plan => self.plan(live, batch),
            Loaded::Finish => self.finish(live, batch),
            Loaded::Failed => self.give_up(live, batch),
        }
    }

    /// Asks a batch whose samples are all loaded what it needs.
    fn plan(&self, live: &Live, batch: u64) {
        let work = self
            .with_slot(live, batch, |slot| slot.work.clone())
            .flatten();
        let Some(work) = work else { return };
        match work.plan() {
            Ok(bytes) => {
                self.ask(live, batch, &*work, bytes);
                let (finish, left_over) = {
                    let mut board = self.board.lock();
                    let Some(state) = board.epoch(live).filter(|state| state.holds(batch)) else {
                        drop(board);
                        return;
                    };
                    let left_over = state.slot(batch).let_go(work);
                    (state.schedule.planned(batch), left_over)
                };
                drop(left_over);
                if finish {
                    self.finish(live, batch);
                }
            }
            Err(failure) => {
                drop(work);
                self.fail(live, batch, failure);
            }
        }
    }

    /// Makes the batch. The schedule has given it to the caller alone.
    fn finish(&self, live: &Live, batch: u64) {
        span!("collate", epoch = live.epoch, batch = batch);
        let work = self.with_slot(live, batch, |slot| {
            slot.work.take().map(|work| (work, slot.unpinned))
        });
        let Some(Some((mut work, unpinned))) = work else {
            return;
        };
        let Some(made) = Arc::get_mut(&mut work).map(Work::finish) else {
            unreachable!("everybody drops a batch's work before reporting it");
        };
        drop(work);
        let made = match made {
            Ok(made) => made,
            Err(failure) => return self.publish(live, batch, Err(failure.error)),
        };
        // A batch of several parts is made when the last is sent.
        live.meter.batches.add(u64::from(!live.is_cut()));
        if self.options.pinning.is_none() || unpinned {
            return self.publish(live, batch, Ok(Made::Here(made)));
        }
        if live.is_cut() {
            return self.send(live, batch, made);
        }
        match relocation_of(&made) {
            Ok(Some(0)) => self.publish(live, batch, Ok(Made::Here(made))),
            Ok(Some(bytes)) => self.ask_relocation(live, batch, made, bytes),
            Ok(None) => self.publish(live, batch, Err(Failed::too_large(usize::MAX).error)),
            Err(message) => self.publish(live, batch, Err(live.collate_panicked(batch, message))),
        }
    }

    /// Sends a part of a batch to its device, if it may go there now.
    fn send(&self, live: &Live, part: u64, made: B) {
        let sends = {
            let mut board = self.board.lock();
            let state = board.epoch(live).filter(|state| state.holds(part));
            state.and_then(|state| Some((state.sends.clone()?, state.schedule.cut())))
        };
        let Some((sends, cut)) = sends else { return };
        let outcome = match sends.send(part, made) {
            Fate::Sent => Ok(Made::Sent),
            Fate::NotNow(made) => Ok(Made::Here(made)),
            Fate::Failed(error) => Err(error),
            Fate::Unlike(like, error) => Err(self.unlike(live, &cut, [part, like], error)),
        };
        self.publish(live, part, outcome);
    }

    /// Enters a failure; the last who works on the batch delivers it.
    pub(super) fn fail(&self, live: &Live, batch: u64, failure: Failed) {
        let (last, left_over) = {
            let mut board = self.board.lock();
            let Some(state) = board.epoch(live).filter(|state| state.holds(batch)) else {
                drop(board);
                return;
            };
            let left_over = state.slot(batch).keep_first(failure);
            (state.schedule.failed(batch), left_over)
        };
        drop(left_over);
        if last {
            self.give_up(live, batch);
        }
    }

    /// Delivers the error of a batch that nobody works on any more.
    fn give_up(&self, live: &Live, batch: u64) {
        let failure = self.with_slot(live, batch, |slot| slot.failure.take());
        if let Some(Some(failure)) = failure {
            self.publish(live, batch, Err(failure.error));
        }
    }

    /// Enters the batch or its error, and wakes who waits for it.
    pub(super) fn publish(&self, live: &Live, batch: u64, outcome: Result<Made<B>>) {
        let mut board = self.board.lock();
        match board.epoch(live).filter(|state| state.holds(batch)) {
            Some(state) => {
                let left_over = state.publish(batch, outcome);
                self.wake(&mut board);
                drop(board);
                drop(left_over);
            }
            None => {
                drop(board);
                drop(outcome); // without the lock: it is the user's
            }
        }
    }

    /// Looks at an open batch under the lock; `None` if its epoch is gone.
    pub(super) fn with_slot<R>(
        &self,
        live: &Live,
        batch: u64,
        look: impl FnOnce(&mut super::board::Slot<B>) -> R,
    ) -> Option<R> {
        let mut board = self.board.lock();
        let state = board.epoch(live).filter(|state| state.holds(batch))?;
        Some(look(state.slot(batch)))
    }
}

/// How many bytes of a batch are not page-locked; the message of a panic in the user's `Batch`.
fn relocation_of<B: Batch>(batch: &B) -> Result<Option<usize>, String> {
    let count = || {
        let mut tensors = Tensors::default();
        batch.tensors(&mut tensors);
        relocated_bytes(&tensors)
    };
    std::panic::catch_unwind(AssertUnwindSafe(count)).map_err(panic_message)
}
