//! The consumer's side: it gets the tasks of its epoch in order.

use std::task::Poll;
use std::time::Duration;

use super::decoded::Awaited;
use super::late::{first_due, has_late};
use super::pipeline::Pipeline;
use super::watchdog::Stall;
use crate::batch::Batch;
use crate::device::HeldOff;
use crate::pipeline::epoch::EpochContext;
use crate::pipeline::schedule::{Claimant, TaskId};
use crate::pipeline::shared::data::{Delivered, Taken};
use crate::pipeline::shared::deferred::Deferred;
use crate::pipeline::shared::lock::Locked;
use crate::pipeline::shared::session::{Consumer, Group, Job, Sent};
use crate::pipeline::shared::state::State;
use crate::pipeline::traits::{Changes, EpochHandle, Patience, SendWindow};
use crate::pipeline::worker_status::WorkerStatus;
use crate::sync::{Arc, Instant, planted};

/// What the consumer finds when it asks for the next task.
enum Polled<B> {
    Ready(Delivered<B>),
    /// It is made, and goes to a device.
    ToSend(Group<B>),
    NotYet,
    /// It is not known yet what the epoch's batches are for.
    Unplanned,
    Over,
}

/// What the consumer gets when it asks for the next task.
pub(crate) enum NextTask<B> {
    Delivered(Delivered<B>),
    /// It is made, and was not sent ahead. The consumer sends it, says what became of it, and asks again.
    ToSend(Group<B>),
}

/// How the consumer asks for a task.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Asking {
    pub(crate) at: Instant,
    pub(crate) patience: Patience,
    /// Of an epoch that goes to a device: what may be sent. Then workers that could make use of the room are not woken, unless the call
    /// blocks, or the consumer sends. The caller does that ([`wake_workers`](Pipeline::wake_workers)) when it has all that it came for.
    pub(crate) window: Option<SendWindow>,
}

impl Asking {
    fn is_for_device(&self) -> bool {
        self.window.is_some()
    }
}

/// A consumer without workers, which does all work itself.
struct Alone {
    status: WorkerStatus,
    /// While it waits for a slab that a staged upload has.
    held_off: Option<HeldOff>,
}

impl Alone {
    fn new(began: Instant) -> Alone {
        Alone {
            status: WorkerStatus::of_caller(began),
            held_off: None,
        }
    }
}

/// What it may do.
enum Work<B> {
    Job(Job<B>),
    /// The first task that waits for a slab gets one.
    Slab(Arc<EpochContext>, TaskId),
}

/// What it finds to do.
enum Found<B> {
    Job(Work<B>),
    /// There is work, and no time for it.
    NoTime,
    /// A decoder works on what comes next, and all else that may be open is made.
    Nothing,
}

/// What the consumer that waits does next.
enum Due<B> {
    /// Workers are late that have had this long for a sample.
    Workers(Duration),
    /// A device's decoder is late with a task.
    Decoder(Awaited<B>),
    /// The log is to say what is waited for.
    Line(Stall),
    /// Nothing until then; `None`: nothing at any time.
    Later(Option<Instant>),
    /// Its patience has ended.
    Leave,
}

/// For how long the consumer has waited for a task, by one call or by several.
#[derive(Debug, Default)]
pub(crate) struct Waiting {
    pub(crate) since: Option<Instant>,
    /// How many lines the log has of that.
    pub(crate) log_lines: u32,
    /// How many batches were ready when the consumer first asked for this one. `None`: nothing is loaded ahead.
    pub(crate) ready: Option<u64>,
}

impl<B: Batch> Pipeline<B> {
    /// Returns the next task of the epoch, and blocks until it is ready, or patience ends. `None`: the epoch is over. `sent`: what the
    /// consumer was to send.
    pub(crate) fn next(
        &self,
        handle: &EpochHandle,
        taken: &mut Taken<B>,
        sent: Option<Sent<B>>,
        asking: Asking,
        waiting: &mut Waiting,
    ) -> Poll<Option<NextTask<B>>> {
        if let Some(next) = taken.pop_front() {
            // (At least: others may be ready behind those that were taken in advance.)
            waiting.ready.get_or_insert(1 + taken.len() as u64);
            if taken.is_empty()
                && (next.context.plan().any_order || next.context.is_last(next.task))
            {
                self.come_to_last(handle, asking.is_for_device());
            }
            return Poll::Ready(Some(NextTask::Delivered(next)));
        }
        let next = self.wait_for_next(handle, taken, sent, asking, waiting);
        if next.is_ready() && waiting.since.is_some() {
            (waiting.since, waiting.log_lines) = (None, 0);
        }
        next
    }

    /// If the consumer has come to the last task of its epoch, what it took is no longer ahead, and there is room for the next epoch. (It
    /// may keep the batch for long before it asks again.)
    fn come_to_last(&self, handle: &EpochHandle, quietly: bool) {
        let mut state = self.lock();
        if let Some((session, deferred)) = state.session(handle.session)
            && session.schedule.is_at(handle.epoch_entry)
            && session.schedule.remaining() == Some(0)
        {
            session.schedule.used_up();
            deferred.wake_workers = !quietly;
        }
    }

    /// Wakes workers to use the room that the consumer made. The consumer does this last, because a worker that is woken takes the lock
    /// that the consumer would need next, and may be scheduled on the consumer's core.
    pub(crate) fn wake_workers(&self) {
        if self.options().workers > 0 && !self.has_lost_threads() {
            self.lock().deferred.wake_workers = true;
        }
    }

    fn poll(
        state: &mut State<B>,
        deferred: &mut Deferred<B>,
        handle: &EpochHandle,
        taken: &mut Taken<B>,
        window: Option<SendWindow>,
    ) -> Polled<B> {
        let session = state.session(handle.session);
        let Some(session) = session.filter(|session| session.schedule.is_at(handle.epoch_entry))
        else {
            return Polled::Over;
        };
        session.consumer = Consumer::Asks;
        match session.schedule.remaining() {
            None => return Polled::Unplanned,
            Some(0) => {
                session.consumer = Consumer::Away;
                session.schedule.used_up();
                return Polled::Over;
            }
            Some(_) => {}
        }
        if let Some(delivered) = session.deliver(taken, deferred) {
            session.consumer = Consumer::Away;
            return Polled::Ready(delivered);
        }
        let to_send = window.and_then(|window| session.take_next_made(window));
        to_send.map_or(Polled::NotYet, Polled::ToSend)
    }

    fn wait_for_next(
        &self,
        handle: &EpochHandle,
        taken: &mut Taken<B>,
        sent: Option<Sent<B>>,
        asking: Asking,
        waiting: &mut Waiting,
    ) -> Poll<Option<NextTask<B>>> {
        let options = self.options();
        let mut alone = (options.workers == 0).then(|| Alone::new(self.began));
        let has_workers = alone.is_none();
        let mut state = self.lock();
        if let Some(sent) = sent {
            state.were_sent(sent);
        }
        let (mut has_told, mut retries) = (false, true);
        loop {
            state.check();
            let (sessions, deferred) = state.split();
            if has_workers && waiting.ready.is_none() {
                let session = sessions.session(handle.session);
                waiting.ready = session.map(|session| session.schedule.ready_batches());
            }
            let polled = Self::poll(sessions, deferred, handle, taken, asking.window);
            self.leave_room(&polled, sessions, deferred, handle, asking);
            match polled {
                Polled::Ready(delivered) => {
                    return Poll::Ready(Some(NextTask::Delivered(delivered)));
                }
                Polled::ToSend(group) => return Poll::Ready(Some(NextTask::ToSend(group))),
                Polled::Over => return Poll::Ready(None),
                Polled::Unplanned => {
                    drop(state);
                    self.keep_on_host(handle);
                    state = self.lock();
                    continue;
                }
                Polled::NotYet => {}
            }
            if let Some(alone) = &mut alone {
                match self.find_job(&mut state, handle, asking.patience) {
                    Found::Job(work) => {
                        drop(state);
                        state = self.work_alone(alone, handle, work);
                        continue;
                    }
                    Found::NoTime => {
                        Self::enters(&mut state, handle, Consumer::Away);
                        return Poll::Pending;
                    }
                    Found::Nothing => {}
                }
            }
            let (sessions, deferred) = state.split();
            let Some(session) = sessions.session(handle.session) else {
                return Poll::Ready(None);
            };
            if !session.schedule.is_blocked() {
                session.schedule.block();
                // Now that the consumer is blocked on it, a task may have to do without a slab: even one that the pin thread is
                // serving, which did not know when it looked.
                if !planted("the consumer blocks in silence") {
                    session.tell_if_waiting(deferred);
                }
            }
            if !has_told {
                // The tasks that were taken are used up, so other tasks can be opened.
                deferred.wake_workers = has_workers;
                has_told = true;
            }
            match self.due(&mut state, handle, asking, waiting, retries) {
                Due::Leave => {
                    Self::enters(&mut state, handle, Consumer::Away);
                    return Poll::Pending;
                }
                Due::Later(end) => {
                    Self::enters(&mut state, handle, Consumer::Sleeps);
                    state.wait_until(&handle.task_ready, end);
                    retries = true;
                    continue;
                }
                // What is late is dealt with without the lock.
                Due::Workers(timeout) => {
                    drop(state);
                    let replaced = self.replace_late(timeout);
                    retries = replaced.is_err_and(|why| self.fail_next(handle, &why));
                }
                Due::Decoder(awaited) => {
                    drop(state);
                    self.give_up_decoding(awaited);
                }
                Due::Line(stall) => {
                    drop(state);
                    self.say(stall);
                }
            }
            state = self.lock();
        }
    }

    /// Notes where the consumer is.
    fn enters(state: &mut State<B>, handle: &EpochHandle, consumer: Consumer) {
        if let Some(session) = state.session(handle.session) {
            session.consumer = consumer;
        }
    }

    /// The consumer comes back with what it found: workers are woken that can use the room.
    fn leave_room(
        &self,
        polled: &Polled<B>,
        state: &mut State<B>,
        deferred: &mut Deferred<B>,
        handle: &EpochHandle,
        asking: Asking,
    ) {
        let options = self.options();
        let has_workers = options.workers > 0;
        deferred.wake_workers = match polled {
            Polled::Ready(_) => {
                if options.is_auto {
                    state.watch(handle);
                }
                has_workers && !asking.is_for_device() && !planted("room wakes no worker")
            }
            // To send may be to wait for device memory or a copy, and workers should not wait with the consumer.
            Polled::ToSend(_) => has_workers,
            // What was taken last is no longer ahead, so there is room for the next epoch.
            Polled::Over => has_workers,
            Polled::NotYet | Polled::Unplanned => return,
        };
    }

    /// What is late where the consumer waits, or until when nothing is. `retries`: slots of workers that could not be filled are tried again.
    fn due(
        &self,
        state: &mut State<B>,
        handle: &EpochHandle,
        asking: Asking,
        waiting: &mut Waiting,
        retries: bool,
    ) -> Due<B> {
        let options = self.options();
        let now = Instant::now();
        let since = *waiting.since.get_or_insert(asking.at);
        if let Some(timeout) = options.timeout
            && has_late(&state.slots, timeout, now, retries)
        {
            return Due::Workers(timeout);
        }
        let session = state.session(handle.session);
        let awaited = session.and_then(|session| Awaited::first(session, options.timeout));
        let decoded_by = awaited.as_ref().map(|awaited| awaited.due);
        if let Some(awaited) = awaited.filter(|awaited| awaited.due <= now) {
            return Due::Decoder(awaited);
        }
        let Some(end) = asking.patience.end(now) else {
            return Due::Leave;
        };
        let log_lines = waiting.log_lines.saturating_add(1);
        let pause = options.patience;
        let pause = pause.map(|pause| pause.saturating_mul(log_lines));
        let line_due = pause.and_then(|pause| since.checked_add(pause));
        if line_due.is_some_and(|due| due <= now) {
            waiting.log_lines = log_lines;
            return Due::Line(Stall::of(state, handle, now, since));
        }
        let timeout = options.timeout;
        let late = timeout.and_then(|timeout| first_due(&state.slots, timeout, now));
        let ends = [end, line_due, late, decoded_by];
        Due::Later(ends.into_iter().flatten().min())
    }

    /// What a consumer without workers does next: a job, or getting a task its slab. While a decoder works on the next task, it loads what is
    /// for later, if there is time for that.
    fn find_job(&self, state: &mut State<B>, handle: &EpochHandle, patience: Patience) -> Found<B> {
        let job = state.claim_requeued(Some(handle.session));
        let Some(session) = state.session(handle.session) else {
            return Found::Nothing;
        };
        session.schedule.block();
        let has_time = || patience.end(Instant::now()).is_some();
        if job.is_none() && session.schedule.is_next_being_sent() && !has_time() {
            return Found::NoTime;
        }
        if let Some(job) = job.or_else(|| session.claim(&*self.factory, Claimant::CONSUMER)) {
            return Found::Job(Work::Job(job));
        }
        match session.first_waiting() {
            Some((context, task)) => Found::Job(Work::Slab(context, task)),
            None if session.schedule.is_one_being_sent() => Found::Nothing,
            None => {
                unreachable!("a task that is not ready has rows to load, or waits for its slab")
            }
        }
    }

    /// Does what a consumer without workers found. Returns the lock, under which the outcome of a task that it made is reported.
    fn work_alone(&self, alone: &mut Alone, handle: &EpochHandle, work: Work<B>) -> Locked<'_, B> {
        match (work, &self.options[handle.share.device].pinning) {
            (
                Work::Job(Job::Solo {
                    context,
                    tasks,
                    run: None,
                }),
                _,
            ) => {
                // One task, which is reported and taken under one lock.
                let (task, changes) = (TaskId(tasks.start), Changes::default());
                let slices = self.memory.pageable_slices(&context);
                let made = self.make(&context, task, None, &slices, changes, &alone.status);
                let mut state = self.lock();
                state.made(&context, task, made);
                return state;
            }
            (Work::Job(job), _) => _ = self.perform(job, &alone.status), // it claims nothing by itself
            (Work::Slab(context, task), Some(pinning)) => {
                self.serve_here(pinning, &context, task, &mut alone.held_off);
            }
            (Work::Slab(..), None) => {
                unreachable!("only tasks of a loader that pins wait for slabs")
            }
        }
        self.lock()
    }
}
