//! The consumer's side: it gets the tasks of its epoch in order.

use std::task::Poll;

use super::pipeline::Pipeline;
use crate::batch::Batch;
use crate::pipeline::schedule::{Claimant, TaskId};
use crate::pipeline::shared::data::{Delivered, Taken};
use crate::pipeline::shared::deferred::Deferred;
use crate::pipeline::shared::session::Job;
use crate::pipeline::shared::state::State;
use crate::pipeline::traits::{Changes, EpochHandle, Patience};
use crate::pipeline::worker_status::WorkerStatus;
use crate::sync::{Instant, planted};

/// What the consumer finds when it asks for the next task.
enum Polled<B> {
    Ready(Delivered<B>),
    NotYet,
    /// It is not known yet what the epoch's batches are for.
    Unplanned,
    Over,
}

/// How the consumer asks for a task.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Asking {
    pub(crate) at: Instant,
    pub(crate) patience: Patience,
    /// Workers that could make use of the room are not woken, unless the call blocks. The caller does that
    /// ([`wake_workers`](Pipeline::wake_workers)) when it has all that it came for.
    pub(crate) quietly: bool,
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
    /// Returns the next task of the epoch, and blocks until it is ready, or patience ends. `None`: the epoch is over.
    pub(crate) fn next(
        &self,
        handle: &EpochHandle,
        taken: &mut Taken<B>,
        asking: Asking,
        waiting: &mut Waiting,
    ) -> Poll<Option<Delivered<B>>> {
        if let Some(next) = taken.pop_front() {
            // (At least: others may be ready behind those that were taken in advance.)
            waiting.ready.get_or_insert(1 + taken.len() as u64);
            if taken.is_empty()
                && (next.context.plan().any_order || next.context.is_last(next.task))
            {
                self.come_to_last(handle, asking.quietly);
            }
            return Poll::Ready(Some(next));
        }
        let next = match self.options().workers {
            0 => self.load_next(handle, taken, asking.patience),
            _ => self.wait_for_next(handle, taken, asking, waiting),
        };
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
    ) -> Polled<B> {
        let session = state.session(handle.session);
        let Some(session) = session.filter(|session| session.schedule.is_at(handle.epoch_entry))
        else {
            return Polled::Over;
        };
        match session.schedule.remaining() {
            None => return Polled::Unplanned,
            Some(0) => {
                session.schedule.used_up();
                return Polled::Over;
            }
            Some(_) => {}
        }
        match session.deliver(taken, deferred) {
            Some(delivered) => Polled::Ready(delivered),
            None => Polled::NotYet,
        }
    }

    fn wait_for_next(
        &self,
        handle: &EpochHandle,
        taken: &mut Taken<B>,
        asking: Asking,
        waiting: &mut Waiting,
    ) -> Poll<Option<Delivered<B>>> {
        let options = self.options();
        let mut state = self.lock();
        let (mut has_told, mut retries) = (false, true);
        loop {
            state.check();
            let (sessions, deferred) = state.split();
            if waiting.ready.is_none() {
                let session = sessions.session(handle.session);
                waiting.ready = session.map(|session| session.schedule.ready_batches());
            }
            match Self::poll(sessions, deferred, handle, taken) {
                Polled::Ready(delivered) => {
                    if options.is_auto {
                        sessions.watch(handle);
                    }
                    deferred.wake_workers = !asking.quietly && !planted("room wakes nobody");
                    return Poll::Ready(Some(delivered));
                }
                Polled::Over => {
                    // What was taken last is no longer ahead, so there is room for the next epoch.
                    deferred.wake_workers = true;
                    return Poll::Ready(None);
                }
                Polled::Unplanned => {
                    drop(state);
                    self.keep_on_host(handle);
                    state = self.lock();
                    continue;
                }
                Polled::NotYet => {}
            }
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
                deferred.wake_workers = true;
                has_told = true;
            }
            let now = Instant::now();
            let since = *waiting.since.get_or_insert(asking.at);
            if let Some(timeout) = options.timeout
                && state.has_late(timeout, now, retries)
            {
                drop(state);
                let replaced = self.replace_late(timeout);
                retries = replaced.is_err_and(|why| self.fail_next(handle, &why));
                state = self.lock();
                continue;
            }
            let session = state.session(handle.session).map(|(session, _)| session);
            let awaited = session.and_then(|session| session.awaits_decoder(options.timeout));
            let decoded_by = awaited.as_ref().map(|awaited| awaited.due);
            if let Some(awaited) = awaited.filter(|awaited| awaited.due <= now) {
                drop(state);
                self.give_up_decoding(awaited);
                state = self.lock();
                continue;
            }
            let log_lines = waiting.log_lines.saturating_add(1);
            let pause = options
                .patience
                .map(|pause| pause.saturating_mul(log_lines));
            let session_due = pause.and_then(|pause| since.checked_add(pause));
            let Some(end) = asking.patience.end(now) else {
                return Poll::Pending;
            };
            if session_due.is_some_and(|due| due <= now) {
                waiting.log_lines = log_lines;
                let stall = state.stall(handle, now, since);
                drop(state);
                self.say(stall);
                state = self.lock();
                continue;
            }
            let timeout = options.timeout;
            let late = timeout.and_then(|timeout| state.first_due(timeout, now));
            let ends = [end, session_due, late, decoded_by];
            let end = ends.into_iter().flatten().min();
            state.wait_until(&handle.task_ready, end);
            retries = true;
        }
    }

    /// Without workers, the caller does everything, one job after the other. But for a decoder it only waits.
    fn load_next(
        &self,
        handle: &EpochHandle,
        taken: &mut Taken<B>,
        patience: Patience,
    ) -> Poll<Option<Delivered<B>>> {
        let mut held_off = None;
        let status = WorkerStatus::of_caller(self.began);
        let mut state = self.lock();
        loop {
            let (sessions, deferred) = state.split();
            match Self::poll(sessions, deferred, handle, taken) {
                Polled::Ready(delivered) => return Poll::Ready(Some(delivered)),
                Polled::Over => return Poll::Ready(None),
                Polled::Unplanned => {
                    drop(state);
                    self.keep_on_host(handle);
                    state = self.lock();
                    continue;
                }
                Polled::NotYet => {}
            }
            let job = sessions.claim_requeued(Some(handle.session));
            let Some(session) = sessions.session(handle.session) else {
                return Poll::Ready(None);
            };
            session.schedule.block();
            // (What is loaded while a decoder works is for later: there is time for it, or not.)
            let has_time = || patience.end(Instant::now()).is_some();
            if job.is_none() && session.schedule.is_next_being_sent() && !has_time() {
                return Poll::Pending;
            }
            let job = job.or_else(|| session.claim(&*self.factory, Claimant::CONSUMER));
            let waiting = match job {
                Some(_) => None,
                None => session.first_waiting(),
            };
            if job.is_none() && waiting.is_none() && session.schedule.is_one_being_sent() {
                let Some(end) = patience.end(Instant::now()) else {
                    return Poll::Pending;
                };
                state.wait_until(&handle.task_ready, end); // its decoder makes it ready
                state.check();
                continue;
            }
            drop(state);
            match (job, waiting, &self.options[handle.share.device].pinning) {
                (
                    Some(Job::Solo {
                        context,
                        tasks,
                        run: None,
                    }),
                    ..,
                ) => {
                    // One task, which is reported and taken under one lock.
                    let task = TaskId(tasks.start);
                    let slices = self.memory.pageable_slices(&context);
                    let made =
                        self.make(&context, task, None, &slices, Changes::default(), &status);
                    state = self.lock();
                    state.made(&context, task, made);
                    continue;
                }
                (Some(job), ..) => _ = self.perform(job, &status), // it claims nothing by itself
                (None, Some((context, task)), Some(pinning)) => {
                    self.serve_here(pinning, &context, task, &mut held_off);
                }
                (None, ..) => {
                    unreachable!("a task that is not ready has rows to load, or waits for its slab")
                }
            }
            state = self.lock();
        }
    }
}
