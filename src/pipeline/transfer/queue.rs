//! The queue of an epoch: tasks on their way to a device, sent by the threads that made them.
//!
//! Workers and the pin thread send what is page-locked, so batches travel while the program is busy elsewhere. A task that cannot be sent
//! yet (the consumer is not that far, an earlier batch has no device memory, or none is left) stays ready. It is sent later, by the thread
//! that sends the batch before it, or by the consumer. Pageable tasks are left to the consumer. A batch is one task or several parts. Parts
//! share one block of device memory, and the last to be sent makes the batch.

use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};

use super::turns::{Outgoing, Turn, Turns};
use crate::batch::{Batch, Part, SentPart, Whole, begin_part, send, send_all, send_part};
use crate::device::{Assembly, Device, Passing, Rows, Target, Undecoded, Unsent, WhenDecoded};
use crate::error::drop_each;
use crate::error::{Error, Result, panic_message};
use crate::pipeline::epoch::EpochContext;
use crate::pipeline::plan::delivered::Given;
use crate::pipeline::schedule::TaskId;
use crate::pipeline::traits::{Each, SendOutcome, SendWindow, TransferQueue};
use crate::sync::{Arc, Mutex, Weak, planted};
use crate::tuning::{LEFT_TO_WORKERS_BYTES, MOST_SENT_TOGETHER, SENT_TOGETHER_BYTES};

/// The batches of an epoch that are on their way to its device.
pub(crate) struct DeviceQueue<B: Batch> {
    target: Target,
    /// Every tensor of a batch has a row for each of its samples, and nothing else.
    is_dense: bool,
    /// The queue of the epoch before, while it exists, and how many batches that epoch has: they get device memory first.
    before: Option<(Weak<DeviceQueue<B>>, u64)>,
    state: Mutex<Turns<B>>,
}

impl<B: Batch> TransferQueue<B> for DeviceQueue<B> {
    fn send(&self, context: &EpochContext, task: TaskId, made: B, waits: bool) -> SendOutcome<B> {
        // Without the lock: what finished copies held may be the program's to drop.
        self.target.device().inner.settle();
        // Until what is not wanted any more is dropped.
        let _passing = self.passing(waits);
        if !context.plan().is_in_parts() {
            return self.send_whole(context, task, made, waits);
        }
        match self.send_part(context, task, made, waits, None) {
            SendOutcome::NotNow(made) if waits => {
                let memory = begin_part(&made, &self.target, self.rows(context, task));
                self.send_part(context, task, made, waits, Some(memory))
            }
            outcome => outcome,
        }
    }

    fn send_together(&self, context: &EpochContext, tasks: Each<B>) -> Each<SendOutcome<B>> {
        let numbers: Vec<TaskId> = tasks.iter().map(|(task, _)| *task).collect();
        let is_turn = self.is_behind_none() && self.state.lock().is_turn_of(context, &numbers);
        let tasks = match is_turn {
            true => self.try_together(context, tasks),
            false => Err(tasks),
        };
        let one_by_one = |(task, made)| (task, self.send(context, task, made, false));
        tasks.unwrap_or_else(|tasks| tasks.into_iter().map(one_by_one).collect())
    }

    fn decode(&self, undecoded: Undecoded, when_decoded: WhenDecoded) {
        let device = &self.target.device().inner;
        device.decode(undecoded, when_decoded);
    }

    fn device(&self) -> &Device {
        self.target.device()
    }

    fn take_back(&self, context: &EpochContext, task: TaskId) {
        let _passing = self.passing(false);
        let place = context.place(task);
        let whole = {
            let mut state = self.state.lock();
            let Some(outgoing) = state.get(place.batch) else {
                return;
            };
            match outgoing.assembly {
                // Its rows go where they were.
                Some(_) => outgoing.rows -= place.rows,
                // It has no memory again, and later batches must not take what it had.
                None => outgoing.has_begun = false,
            }
            outgoing.whole.take()
        };
        let was_whole = whole.is_some();
        context.meter.batches.take_back(u64::from(was_whole));
        drop_each([whole]);
        // Then: a thread that sends another batch in its place finds its memory free.
        let mut state = self.state.lock();
        state.in_flight -= u64::from(was_whole && state.capacity.is_some());
    }

    fn note_runs(&self) {
        let mut state = self.state.lock();
        state.progress += u64::from(!state.are_in_runs);
        state.are_in_runs = true;
    }

    fn give_up(&self, batch: u64, task: TaskId) {
        let mut state = self.state.lock();
        if let Some(index) = batch.checked_sub(state.first) {
            state.outgoing(index as usize, task).has_failed = true;
            state.progress += 1;
        }
    }

    fn ends(&self, batches: u64) -> u64 {
        let mut state = self.state.lock();
        state.end = Some(batches);
        state.progress += 1;
        state.allowed.saturating_sub(batches) // (streams come in order)
    }

    fn allow_first(&self, batches: u64) {
        self.allow(batches);
    }

    fn window(&self) -> SendWindow {
        let before = self
            .before
            .as_ref()
            .and_then(|(before, _)| before.upgrade());
        let before = before.map_or(u64::MAX, |before| before.state.lock().progress);
        let state = self.state.lock();
        SendWindow {
            allowed: state.allowed(),
            asked: state.asked(),
            together: state.together,
            is_large: state.is_large,
            progress: [state.progress, before],
        }
    }
}

impl<B: Batch> DeviceQueue<B> {
    /// Whether its device decodes pictures.
    pub(crate) fn decodes(&self) -> bool {
        self.target.device().inner.offload().decodes.is_some()
    }

    /// Whether its device's decoder need not be waited for: it is open, or cannot be opened.
    pub(crate) fn is_decoder_ready(&self) -> bool {
        self.target.device().inner.is_decoder_ready()
    }

    /// `given`: the batches that were given out. `before`: the queue of the epoch before, and how many batches that one has.
    pub(crate) fn new(
        target: &Target,
        given: Given,
        any_order: bool,
        is_dense: bool,
        before: Option<(&Arc<DeviceQueue<B>>, u64)>,
    ) -> Arc<DeviceQueue<B>> {
        let mut state = Turns {
            end: None,
            batches: VecDeque::new(),
            first: given.first(),
            allowed: given.first(),
            together: 1,
            is_large: false,
            are_in_runs: false,
            capacity: any_order.then_some(0),
            in_flight: 0,
            progress: 0,
        };
        for batch in given.batches_behind() {
            let index = (batch - given.first()) as usize;
            state.outgoing(index, TaskId(0)).is_taken = true;
        }
        Arc::new(DeviceQueue {
            target: match any_order {
                true => target.in_any_order(),
                false => target.clone(),
            },
            is_dense,
            before: before.map(|(before, batches)| (Arc::downgrade(before), batches)),
            state: Mutex::new(state),
        })
    }

    /// See [`Target::passing`]. A caller that `waits` waits for others: it is the consumer, and cannot leave the epoch meanwhile.
    fn passing(&self, waits: bool) -> Option<Passing> {
        let passes = !waits && !planted("a batch that passes is taken for the program's");
        passes.then(|| self.target.passing()).flatten()
    }

    pub(crate) fn target(&self) -> &Target {
        &self.target
    }

    /// How many batches the epoch has, if its stream has ended.
    pub(crate) fn end(&self) -> Option<u64> {
        self.state.lock().end
    }

    /// Whether every batch of so many has begun or failed.
    fn has_begun_all(&self, batches: u64) -> bool {
        let state = self.state.lock();
        let batches = state.end.unwrap_or(batches);
        let came = state.first.saturating_add(state.batches.len() as u64);
        came >= batches && state.batches.iter().all(Outgoing::makes_way)
    }

    /// Whether all batches of the epoch before have begun.
    fn is_behind_none(&self) -> bool {
        let has_begun = |(before, batches): &(Weak<DeviceQueue<B>>, u64)| {
            let before = before.upgrade();
            before.is_none_or(|before| before.has_begun_all(*batches))
        };
        self.before.as_ref().is_none_or(has_begun)
            || planted("an epoch does not wait for the one before")
    }

    /// Allows the next `batches` batches to be sent, counted from the one that the consumer gets next; in any order, so many that it has
    /// not got yet.
    pub(crate) fn allow(&self, batches: u64) {
        self.state.lock().allow(batches);
    }

    /// Sends a whole batch. It may be of the program's own type, so its functions run without the lock, and if they panic, the batch is an
    /// error.
    fn send_whole(
        &self,
        context: &EpochContext,
        task: TaskId,
        made: B,
        waits: bool,
    ) -> SendOutcome<B> {
        let batch = context.batch(task);
        if !waits && !self.is_behind_none() {
            return SendOutcome::NotNow(made);
        }
        match self.state.lock().turn(batch, task, waits) {
            Turn::Gone => {
                drop_each([made]);
                return SendOutcome::Sent;
            }
            Turn::NotYet => return SendOutcome::NotNow(made),
            Turn::Now(_) => {} // this is the batch's only task
        }
        let rows = self.rows(context, task);
        // Unwind safety: the batch is gone.
        let sent = catch_unwind(AssertUnwindSafe(|| send(made, &self.target, rows, waits)));
        let outcome = match sent {
            Ok(Ok(whole)) => Ok(whole),
            Ok(Err((Some(made), error))) if !waits && is_for_now(&error) => {
                Err(SendOutcome::NotNow(made))
            }
            Ok(Err((given_up, error))) => {
                drop_each(given_up);
                Err(SendOutcome::Failed(error))
            }
            Err(payload) => {
                let error = context.collate_panicked(task, panic_message(payload));
                Err(SendOutcome::Failed(error))
            }
        };
        let mut state = self.state.lock();
        // (What was sent is on its way until the consumer takes it.)
        state.in_flight -= u64::from(outcome.is_err() && state.capacity.is_some());
        state.progress += u64::from(!matches!(outcome, Err(SendOutcome::NotNow(_))));
        if let Ok(sent) = &outcome {
            state.is_large = sent.bytes >= LEFT_TO_WORKERS_BYTES;
        }
        if let Ok(sent) = &outcome
            && state.capacity.is_none()
            && !self.target.has_places()
        {
            let fit = SENT_TOGETHER_BYTES / sent.bytes.max(1);
            state.together = fit.clamp(1, MOST_SENT_TOGETHER);
        }
        match (outcome, state.get(batch)) {
            (Ok(sent), Some(outgoing)) => {
                outgoing.has_begun = true;
                outgoing.whole = Some(sent.whole);
                SendOutcome::sent(sent.undecoded)
            }
            (Ok(sent), None) => {
                drop(state);
                drop_each([sent.whole]); // it is not wanted
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

    /// Sends batches together, whose turn has come. Returns them if that is not possible.
    fn try_together(
        &self,
        context: &EpochContext,
        tasks: Each<B>,
    ) -> Result<Each<SendOutcome<B>>, Each<B>> {
        let (tasks, batches): (Vec<TaskId>, Vec<B>) = tasks.into_iter().unzip();
        let all = match send_all(batches, &self.target) {
            Ok(all) => all,
            Err(batches) => return Err(tasks.into_iter().zip(batches).collect()),
        };
        let mut unwanted = Vec::new();
        let mut state = self.state.lock();
        let outcomes = tasks.into_iter().zip(all).map(|(task, sent)| {
            let outgoing = state.get(context.batch(task));
            let outcome = match (sent, outgoing) {
                (Ok(whole), Some(outgoing)) => {
                    (outgoing.has_begun, outgoing.whole) = (true, Some(Whole::There(whole)));
                    SendOutcome::Sent
                }
                (Ok(whole), None) => {
                    unwanted.push(whole);
                    SendOutcome::Sent
                }
                (Err(payload), outgoing) => {
                    if let Some(outgoing) = outgoing {
                        outgoing.has_failed = true;
                    }
                    SendOutcome::Failed(context.collate_panicked(task, panic_message(payload)))
                }
            };
            state.progress += 1;
            (task, outcome)
        });
        let outcomes = outcomes.collect();
        drop(state);
        drop_each(unwanted);
        Ok(outcomes)
    }

    /// Sends a part. `memory`: what was waited for, or why there is none.
    ///
    /// The lock is held meanwhile, so that the parts of one batch are enqueued one after the other, and the event after the last covers
    /// all of them. What runs under it: taking the batch's device memory, enqueueing, `Batch::tensors` and `Batch::upload` (a sample that
    /// is `DENSE` promises that its batch is nothing but its rows; if these functions panic, the batch is an error), and, if a part had to
    /// do without page-locked memory, the staging of its copy, which the consumer does.
    fn send_part(
        &self,
        context: &EpochContext,
        task: TaskId,
        made: B,
        waits: bool,
        memory: Option<Result<Assembly>>,
    ) -> SendOutcome<B> {
        if !waits && !self.is_behind_none() {
            return SendOutcome::NotNow(made);
        }
        let mut state = self.state.lock();
        let batch = context.batch(task);
        let is_at = |outgoing: &mut Outgoing<B>| (outgoing.has_begun, outgoing.has_failed);
        let was_at = state.get(batch).map(is_at).unwrap_or_default();
        let (outcome, unsent) = self.send_part_in(&mut state, context, task, made, waits, memory);
        if let Some(outgoing) = state.get(batch) {
            let failed = matches!(outcome, SendOutcome::Failed(_) | SendOutcome::Unlike(..));
            outgoing.has_failed |= failed;
            // (Only if something changed: otherwise a thread whose part has no turn would try for ever.)
            state.progress += u64::from(is_at(outgoing) != was_at);
        }
        drop(state);
        drop_each(unsent);
        outcome
    }

    /// Returns the part as well, if it is to be dropped: that happens without the lock.
    fn send_part_in(
        &self,
        state: &mut Turns<B>,
        context: &EpochContext,
        task: TaskId,
        made: B,
        waits: bool,
        memory: Option<Result<Assembly>>,
    ) -> (SendOutcome<B>, Option<B>) {
        let rows = self.rows(context, task);
        state.is_large = true; // (smaller ones are not cut)
        let outgoing = match state.turn(context.batch(task), task, waits) {
            Turn::Gone => return (SendOutcome::Sent, Some(made)),
            Turn::NotYet => return (SendOutcome::NotNow(made), None),
            Turn::Now(outgoing) => outgoing,
        };
        if outgoing.assembly.is_none() {
            match memory {
                Some(Ok(memory)) => outgoing.assembly = Some(memory),
                Some(Err(error)) => return (SendOutcome::Failed(error), Some(made)),
                None if outgoing.is_awaited => return (SendOutcome::NotNow(made), None),
                None => {}
            }
            outgoing.like = task;
        }
        let part = Part {
            rows,
            is_last: outgoing.rows + rows.count == rows.of,
            decodes: outgoing.decodes,
        };
        // Unwind safety: the batch has failed, and what is left of it is only dropped.
        let assembly = &mut outgoing.assembly;
        let send = AssertUnwindSafe(|| send_part(made, &self.target, part, assembly));
        let sent = catch_unwind(send);
        outgoing.has_begun = outgoing.assembly.is_some();
        let sent = match sent {
            Ok(sent) => sent,
            Err(payload) => {
                let error = context.collate_panicked(task, panic_message(payload));
                return (SendOutcome::Failed(error), None);
            }
        };
        match sent {
            Ok(SentPart::Part(part, undecoded)) => {
                outgoing.rows += rows.count;
                outgoing.decodes |= !undecoded.is_empty();
                (SendOutcome::sent(undecoded), Some(part))
            }
            Ok(SentPart::Whole(whole, undecoded)) => {
                context.meter.batches.add(1);
                outgoing.rows += rows.count;
                outgoing.whole = Some(whole);
                (SendOutcome::sent(undecoded), None)
            }
            Err((made, Unsent::Failed(error))) if !outgoing.has_begun && is_for_now(&error) => {
                outgoing.is_awaited = waits;
                (SendOutcome::NotNow(made), None)
            }
            Err((part, Unsent::Failed(error))) => (SendOutcome::Failed(error), Some(part)),
            Err((part, Unsent::Unlike(error))) => {
                (SendOutcome::Unlike(outgoing.like, error), Some(part))
            }
        }
    }

    /// Which rows of its batch a task has.
    fn rows(&self, context: &EpochContext, task: TaskId) -> Rows {
        let place = context.place(task);
        Rows {
            first: place.first_row,
            count: place.rows,
            of: place.batch_rows,
            most: context.plan().partition.most_rows(),
            is_dense: self.is_dense,
        }
    }

    /// Takes out the next batch, all of whose tasks came or failed, and [allows](DeviceQueue::allow) `batches` more. And says whether
    /// [enough](Turns::has_enough) are on their way then.
    pub(crate) fn take(&self, batch: u64, batches: u64) -> (Option<Whole<B>>, bool) {
        let mut state = self.state.lock();
        let whole = state.take(batch);
        state.allow(batches);
        (whole, state.has_enough())
    }

    /// The consumer left the epoch: what was sent of it is not wanted. (A worker that is about to send may still hold the queue.)
    pub(crate) fn close(&self) {
        let gone = {
            let mut state = self.state.lock();
            state.first = u64::MAX;
            std::mem::take(&mut state.batches)
        };
        drop_each(gone); // without the lock
    }
}

/// Whether there is no memory now, and may be when the consumer comes to the batch.
fn is_for_now(error: &Error) -> bool {
    matches!(error, Error::DeviceBudget { .. } | Error::Buffers { .. })
}
