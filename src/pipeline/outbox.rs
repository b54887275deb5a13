//! The outbox of an epoch: units on their way to a device, sent by whoever made them.
//!
//! Workers and the pin thread send what is page-locked, so that batches travel while the program is busy elsewhere. What cannot be sent
//! yet (the consumer is not that far, an earlier batch has no device memory, or there is none left) stays ready: whoever sends the
//! batch before it sends it next, or the consumer does. What is pageable is left to the consumer. A batch is one unit, or several
//! parts: these share one block of device memory, and the last to be sent makes the batch.

use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};

use super::guard::drop_each;
use super::line::Pass;
use super::schedule::Unit;
use crate::batch::{Batch, begin_part, send, send_part};
use crate::device::{Assembly, Device, Rows, Unsent};
use crate::error::{CollateError, Error, Result, panic_message};
use crate::sync::{Arc, Mutex, Weak};

/// The batches of an epoch that are on their way to its device.
pub(crate) struct Outbox<B: Batch> {
    device: Device,
    /// How many batches the epoch has.
    count: u64,
    /// That of the epoch before, as long as anybody has it: its batches have the device's memory first.
    before: Option<Weak<Outbox<B>>>,
    state: Mutex<State<B>>,
}

struct State<B: Batch> {
    /// Those from number `first` on, as far as something of them came.
    batches: VecDeque<Outgoing<B>>,
    first: u64,
    /// Batches before this one may be sent.
    allowed: u64,
    /// Counts batches that have begun, or failed.
    progress: u64,
}

/// A batch on its way.
struct Outgoing<B: Batch> {
    /// Where its parts are put together.
    assembly: Option<Assembly>,
    /// It has device memory.
    has_begun: bool,
    /// The part that came first: the others must be like it.
    like: Unit,
    /// The consumer waits for its memory, and the others leave that to it.
    is_awaited: bool,
    rows: usize,
    /// Something of it was not sent: it never will be whole.
    has_failed: bool,
    whole: Option<B::OnDevice>,
}

impl<B: Batch> Outgoing<B> {
    /// Whether the next batch may begin.
    fn makes_way(&self) -> bool {
        self.has_begun || self.has_failed
    }
}

/// What became of a unit that was to be sent.
pub(crate) enum SendOutcome<B> {
    /// It is on its way, or nobody wants it any more.
    Sent,
    /// The consumer is not as far, or the device has no memory for it now.
    NotNow(B),
    Failed(Error),
    /// Its rows are not like those of this part of its batch.
    Unlike(Unit, CollateError),
}

/// Who sends units, with the type of batches on the device erased.
pub(crate) trait Sends<B>: Send + Sync {
    /// Sends a unit. `waits`: for device memory that the program gave back, and whose kernels have not run. The consumer does so, for
    /// the batch that it comes to. Nobody holds the lock meanwhile, nor while the user's code runs.
    fn send(&self, pass: &Pass, unit: Unit, made: B, waits: bool) -> SendOutcome<B>;

    /// The first batch whose units may not be sent yet.
    fn allowed(&self) -> u64;

    /// Changes whenever a batch begins, or fails: then the next may begin.
    fn progress(&self) -> u64;
}

impl<B: Batch> Sends<B> for Outbox<B> {
    fn send(&self, pass: &Pass, unit: Unit, made: B, waits: bool) -> SendOutcome<B> {
        // Without the lock: what finished copies held may be the program's.
        self.device.inner.settle();
        if !pass.plan().is_cut() {
            return self.send_whole(pass, unit, made, waits);
        }
        match self.send_part(pass, unit, made, waits, None) {
            SendOutcome::NotNow(made) if waits => {
                let memory = begin_part(&made, &self.device, rows(pass, unit));
                self.send_part(pass, unit, made, waits, Some(memory))
            }
            outcome => outcome,
        }
    }

    fn allowed(&self) -> u64 {
        self.state.lock().allowed
    }

    fn progress(&self) -> u64 {
        self.state.lock().progress
    }
}

impl<B: Batch> Outbox<B> {
    /// For an epoch of so many batches. `first`: the batch that the consumer gets next. `before`: the outbox of the epoch before.
    pub(crate) fn new(
        device: &Device,
        count: u64,
        first: u64,
        before: Option<&Arc<Outbox<B>>>,
    ) -> Arc<Outbox<B>> {
        Arc::new(Outbox {
            device: device.clone(),
            count,
            before: before.map(Arc::downgrade),
            state: Mutex::new(State {
                batches: VecDeque::new(),
                first,
                allowed: first,
                progress: 0,
            }),
        })
    }

    pub(super) fn device(&self) -> &Device {
        &self.device
    }

    /// Whether all batches have begun, or never will.
    fn has_begun_all(&self) -> bool {
        let state = self.state.lock();
        let came = state.first.saturating_add(state.batches.len() as u64);
        came >= self.count && state.batches.back().is_none_or(Outgoing::makes_way)
    }

    /// Whether a batch may begin, as far as the epoch before is concerned.
    fn is_behind_none(&self) -> bool {
        let before = self.before.as_ref().and_then(Weak::upgrade);
        before.is_none_or(|before| before.has_begun_all())
    }

    /// Lets units be sent of so many batches from the one on that the consumer gets next.
    pub(crate) fn allow(&self, batches: u64) {
        let mut state = self.state.lock();
        state.allowed = state.allowed.max(state.first.saturating_add(batches));
    }

    /// Sends a whole batch, which may be of the program's own type: its functions run without the lock, and if they panic, that is
    /// its own error.
    fn send_whole(&self, pass: &Pass, unit: Unit, made: B, waits: bool) -> SendOutcome<B> {
        let batch = pass.place(unit).batch;
        if !waits && !self.is_behind_none() {
            return SendOutcome::NotNow(made);
        }
        match self.state.lock().turn(batch, unit) {
            Turn::Gone => return SendOutcome::Sent,
            Turn::NotYet => return SendOutcome::NotNow(made),
            Turn::Now(_) => {} // nobody else has a unit of this batch
        }
        // Unwind safety: the batch is gone.
        let sent = catch_unwind(AssertUnwindSafe(|| send(made, &self.device, waits)));
        let outcome = match sent {
            Ok(Ok(whole)) => Ok(whole),
            Ok(Err((Some(made), Error::DeviceBudget { .. }))) if !waits => {
                Err(SendOutcome::NotNow(made))
            }
            Ok(Err((_, error))) => Err(SendOutcome::Failed(error)),
            Err(payload) => {
                let error = pass.collate_panicked(unit, panic_message(payload));
                Err(SendOutcome::Failed(error))
            }
        };
        let mut state = self.state.lock();
        state.progress += u64::from(!matches!(outcome, Err(SendOutcome::NotNow(_))));
        match (outcome, state.get(batch)) {
            (Ok(whole), Some(outgoing)) => {
                outgoing.has_begun = true;
                outgoing.whole = Some(whole);
                SendOutcome::Sent
            }
            (Ok(whole), None) => {
                drop(state);
                drop(whole); // nobody wants it any more
                SendOutcome::Sent
            }
            (Err(outcome), outgoing) => {
                if let Some(outgoing) = outgoing {
                    outgoing.has_failed = matches!(outcome, SendOutcome::Failed(_));
                }
                outcome
            }
        }
    }

    /// Sends a part, with the memory that was waited for, or why there is none.
    ///
    /// The lock is held meanwhile, so that parts of one batch are copied in the order in which they are entered, and the
    /// event behind the last is behind them all. What runs under it is enqueueing. (A sample that is `DENSE` promises that its batch is
    /// nothing but its rows; if the functions of such a batch panic, that is the batch's error.)
    fn send_part(
        &self,
        pass: &Pass,
        unit: Unit,
        made: B,
        waits: bool,
        memory: Option<Result<Assembly>>,
    ) -> SendOutcome<B> {
        if !waits && !self.is_behind_none() {
            return SendOutcome::NotNow(made);
        }
        let mut state = self.state.lock();
        let state = &mut *state;
        let outcome = self.send_part_in(state, pass, unit, made, waits, memory);
        if let Some(outgoing) = state.get(pass.place(unit).batch) {
            let failed = matches!(outcome, SendOutcome::Failed(_) | SendOutcome::Unlike(..));
            outgoing.has_failed |= failed;
            state.progress += u64::from(outgoing.makes_way()); // or it had: whoever looks for nothing finds that out
        }
        outcome
    }

    fn send_part_in(
        &self,
        state: &mut State<B>,
        pass: &Pass,
        unit: Unit,
        made: B,
        waits: bool,
        memory: Option<Result<Assembly>>,
    ) -> SendOutcome<B> {
        let rows = rows(pass, unit);
        let outgoing = match state.turn(pass.place(unit).batch, unit) {
            Turn::Gone => return SendOutcome::Sent,
            Turn::NotYet => return SendOutcome::NotNow(made),
            Turn::Now(outgoing) => outgoing,
        };
        if outgoing.assembly.is_none() {
            match memory {
                Some(Ok(memory)) => outgoing.assembly = Some(memory),
                Some(Err(error)) => return SendOutcome::Failed(error),
                None if outgoing.is_awaited => return SendOutcome::NotNow(made),
                None => {}
            }
            outgoing.like = unit;
        }
        let last = outgoing.rows + rows.count == rows.of;
        // Unwind safety: the batch has failed, and what is left of it is only ever dropped.
        let assembly = &mut outgoing.assembly;
        let send = AssertUnwindSafe(|| send_part(made, &self.device, rows, last, assembly));
        let sent = catch_unwind(send);
        outgoing.has_begun = outgoing.assembly.is_some();
        let sent = match sent {
            Ok(sent) => sent,
            Err(payload) => {
                let error = pass.collate_panicked(unit, panic_message(payload));
                return SendOutcome::Failed(error);
            }
        };
        match sent {
            Ok(whole) => {
                outgoing.rows += rows.count;
                pass.meter.batches.add(u64::from(whole.is_some()));
                outgoing.whole = whole;
                SendOutcome::Sent
            }
            Err((Some(made), Unsent::Failed(Error::DeviceBudget { .. }))) => {
                outgoing.is_awaited = waits;
                SendOutcome::NotNow(made)
            }
            Err((_, Unsent::Failed(error))) => SendOutcome::Failed(error),
            Err((_, Unsent::Unlike(error))) => SendOutcome::Unlike(outgoing.like, error),
        }
    }

    /// Takes a batch out, all of whose units came, or failed. Those before it are gone.
    pub(crate) fn take(&self, batch: u64) -> Option<B::OnDevice> {
        let outgoing = {
            let mut state = self.state.lock();
            debug_assert_eq!(state.first, batch);
            state.first = batch + 1;
            state.batches.pop_front()
        };
        outgoing?.whole
    }

    /// The consumer left the epoch: nobody wants what was sent of it. (A worker that is about to send may hold the outbox for longer.)
    pub(crate) fn close(&self) {
        let gone = {
            let mut state = self.state.lock();
            state.first = u64::MAX;
            std::mem::take(&mut state.batches)
        };
        drop_each(gone); // without the lock
    }
}

/// Whether a unit of a batch may be sent.
enum Turn<'a, B: Batch> {
    Now(&'a mut Outgoing<B>),
    NotYet,
    /// Nobody wants the batch any more.
    Gone,
}

impl<B: Batch> State<B> {
    fn get(&mut self, batch: u64) -> Option<&mut Outgoing<B>> {
        let index = batch.checked_sub(self.first)?;
        self.batches.get_mut(index as usize)
    }

    /// Batches begin in their order: what one takes ahead of time must not be missing to another that is asked for before it.
    fn turn(&mut self, batch: u64, unit: Unit) -> Turn<'_, B> {
        let Some(index) = batch.checked_sub(self.first) else {
            return Turn::Gone;
        };
        if batch >= self.allowed {
            return Turn::NotYet;
        }
        let index = index as usize;
        while self.batches.len() <= index {
            self.batches.push_back(Outgoing {
                assembly: None,
                has_begun: false,
                like: unit,
                is_awaited: false,
                rows: 0,
                has_failed: false,
                whole: None,
            });
        }
        if index > 0 && !self.batches[index - 1].makes_way() {
            return Turn::NotYet;
        }
        match &mut self.batches[index] {
            outgoing if outgoing.has_failed => Turn::Gone,
            outgoing => Turn::Now(outgoing),
        }
    }
}

/// Which of its batch's rows a unit has.
fn rows(pass: &Pass, unit: Unit) -> Rows {
    let place = pass.place(unit);
    Rows {
        first: place.first_row,
        count: place.rows,
        of: place.batch_rows,
    }
}
