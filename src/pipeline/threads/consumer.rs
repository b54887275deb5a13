//! The consumer's side: it gets the units of its epoch in order.

use std::collections::VecDeque;
use std::task::Poll;

use super::pipeline::Pipeline;
use crate::batch::Batch;
use crate::pipeline::schedule::{Claimant, Unit};
use crate::pipeline::shared::data::Delivered;
use crate::pipeline::shared::lock::Bin;
use crate::pipeline::shared::session::Job;
use crate::pipeline::shared::state::Board;
use crate::pipeline::traits::{Changes, Seat};
use crate::pipeline::worker_status::Desk;
use crate::sync::{Instant, planted};

/// What the consumer finds when it asks for the next unit.
enum Polled<B> {
    Ready(Delivered<B>),
    NotYet,
    /// It is not known yet what the epoch's batches are for.
    Unplanned,
    Over,
}

/// Units that the consumer took in advance.
pub(crate) type Taken<B> = VecDeque<Delivered<B>>;

/// How long the consumer waits for a unit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Patience {
    Forever,
    Until(Instant),
    /// It takes what is there.
    None,
}

impl Patience {
    /// Until when it may wait now: `Some(None)` is for ever. `None`: it waits no longer.
    pub(crate) fn end(self, now: Instant) -> Option<Option<Instant>> {
        match self {
            Patience::Forever => Some(None),
            Patience::Until(end) => (end > now).then_some(Some(end)),
            Patience::None => None,
        }
    }
}

/// How the consumer asks for a unit.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Asking {
    pub(crate) at: Instant,
    pub(crate) patience: Patience,
    /// Workers that could make use of the room are not woken, unless the call blocks. The caller does that
    /// ([`wake_workers`](Pipeline::wake_workers)) when it has all that it came for.
    pub(crate) quietly: bool,
}

/// For how long the consumer has waited for a unit, by one call or by several.
#[derive(Debug, Default)]
pub(crate) struct Waiting {
    pub(crate) since: Option<Instant>,
    /// How many lines the log has of that.
    pub(crate) lines: u32,
    /// How many batches were ready when the consumer first asked for this one. `None`: nothing is loaded ahead.
    pub(crate) ready: Option<u64>,
}

impl<B: Batch> Pipeline<B> {
    /// Returns the next unit of the epoch, and blocks until it is ready, or patience ends. `None`: the epoch is over.
    pub(crate) fn next(
        &self,
        seat: &Seat,
        taken: &mut Taken<B>,
        asking: Asking,
        waiting: &mut Waiting,
    ) -> Poll<Option<Delivered<B>>> {
        if let Some(next) = taken.pop_front() {
            // (At least: others may be ready behind those that were taken in advance.)
            waiting.ready.get_or_insert(1 + taken.len() as u64);
            if taken.is_empty() && (next.pass.plan().any_order || next.pass.is_last(next.unit)) {
                self.come_to_last(seat, asking.quietly);
            }
            return Poll::Ready(Some(next));
        }
        let next = match self.options().workers {
            0 => self.load_next(seat, taken, asking.patience),
            _ => self.wait_for_next(seat, taken, asking, waiting),
        };
        if next.is_ready() && waiting.since.is_some() {
            (waiting.since, waiting.lines) = (None, 0);
        }
        next
    }

    /// If the consumer has come to the last unit of its epoch, what it took is no longer ahead, and there is room for the next epoch. (It
    /// may keep the batch for long before it asks again.)
    fn come_to_last(&self, seat: &Seat, quietly: bool) {
        let mut board = self.lock();
        if let Some((line, bin)) = board.line(seat.line)
            && line.schedule.is_at(seat.segment)
            && line.schedule.remaining() == Some(0)
        {
            line.schedule.used_up();
            bin.wake_workers = !quietly;
        }
    }

    /// Wakes workers to use the room that the consumer made. The consumer does this last, because a worker that is woken takes the lock
    /// that the consumer would need next, and may be scheduled on the consumer's core.
    pub(crate) fn wake_workers(&self) {
        if self.options().workers > 0 && !self.has_lost_threads() {
            self.lock().bin.wake_workers = true;
        }
    }

    fn poll(
        board: &mut Board<B>,
        bin: &mut Bin<B>,
        seat: &Seat,
        taken: &mut Taken<B>,
    ) -> Polled<B> {
        let line = board.line(seat.line);
        let Some(line) = line.filter(|line| line.schedule.is_at(seat.segment)) else {
            return Polled::Over;
        };
        match line.schedule.remaining() {
            None => return Polled::Unplanned,
            Some(0) => {
                line.schedule.used_up();
                return Polled::Over;
            }
            Some(_) => {}
        }
        match line.deliver(taken, bin) {
            Some(delivered) => Polled::Ready(delivered),
            None => Polled::NotYet,
        }
    }

    fn wait_for_next(
        &self,
        seat: &Seat,
        taken: &mut Taken<B>,
        asking: Asking,
        waiting: &mut Waiting,
    ) -> Poll<Option<Delivered<B>>> {
        let options = self.options();
        let mut board = self.lock();
        let (mut has_told, mut retries) = (false, true);
        loop {
            board.check();
            let (lines, bin) = board.split();
            if waiting.ready.is_none() {
                let line = lines.line(seat.line);
                waiting.ready = line.map(|line| line.schedule.ready_batches());
            }
            match Self::poll(lines, bin, seat, taken) {
                Polled::Ready(delivered) => {
                    if options.is_auto {
                        lines.watch(seat);
                    }
                    bin.wake_workers = !asking.quietly && !planted("room wakes nobody");
                    return Poll::Ready(Some(delivered));
                }
                Polled::Over => {
                    // What was taken last is no longer ahead, so there is room for the next epoch.
                    bin.wake_workers = true;
                    return Poll::Ready(None);
                }
                Polled::Unplanned => {
                    drop(board);
                    self.keep_on_host(seat);
                    board = self.lock();
                    continue;
                }
                Polled::NotYet => {}
            }
            let Some(line) = lines.line(seat.line) else {
                return Poll::Ready(None);
            };
            if !line.schedule.is_blocked() {
                line.schedule.block();
                // Now that the consumer is blocked on it, a unit may have to do without a slab: even one that the pin thread is
                // serving, which did not know when it looked.
                if !planted("the consumer blocks in silence") {
                    line.tell_if_waiting(bin);
                }
            }
            if !has_told {
                // The units that were taken are used up, so others can be opened.
                bin.wake_workers = true;
                has_told = true;
            }
            let now = Instant::now();
            let since = *waiting.since.get_or_insert(asking.at);
            if let Some(timeout) = options.timeout
                && board.has_late(timeout, now, retries)
            {
                drop(board);
                let replaced = self.replace_late(timeout);
                retries = replaced.is_err_and(|why| self.fail_next(seat, &why));
                board = self.lock();
                continue;
            }
            let line = board.line(seat.line).map(|(line, _)| line);
            let awaited = line.and_then(|line| line.awaits_decoder(options.timeout));
            let decoded_by = awaited.as_ref().map(|awaited| awaited.due);
            if let Some(awaited) = awaited.filter(|awaited| awaited.due <= now) {
                drop(board);
                self.give_up_decoding(awaited);
                board = self.lock();
                continue;
            }
            let lines = waiting.lines.saturating_add(1);
            let pause = options.patience.map(|pause| pause.saturating_mul(lines));
            let line_due = pause.and_then(|pause| since.checked_add(pause));
            let Some(end) = asking.patience.end(now) else {
                return Poll::Pending;
            };
            if line_due.is_some_and(|due| due <= now) {
                waiting.lines = lines;
                let stall = board.stall(seat, now, since);
                drop(board);
                self.say(stall);
                board = self.lock();
                continue;
            }
            let timeout = options.timeout;
            let late = timeout.and_then(|timeout| board.first_due(timeout, now));
            let ends = [end, line_due, late, decoded_by];
            let end = ends.into_iter().flatten().min();
            board.wait_until(&seat.unit_ready, end);
            retries = true;
        }
    }

    /// Without workers, the caller does everything, one job after the other. But for a decoder it only waits.
    fn load_next(
        &self,
        seat: &Seat,
        taken: &mut Taken<B>,
        patience: Patience,
    ) -> Poll<Option<Delivered<B>>> {
        let mut held_off = None;
        let desk = Desk::of_caller(self.began);
        let mut board = self.lock();
        loop {
            let (lines, bin) = board.split();
            match Self::poll(lines, bin, seat, taken) {
                Polled::Ready(delivered) => return Poll::Ready(Some(delivered)),
                Polled::Over => return Poll::Ready(None),
                Polled::Unplanned => {
                    drop(board);
                    self.keep_on_host(seat);
                    board = self.lock();
                    continue;
                }
                Polled::NotYet => {}
            }
            let Some(line) = lines.line(seat.line) else {
                return Poll::Ready(None);
            };
            line.schedule.block();
            let job = lines.claim_orphans(Some(seat.line));
            let Some(line) = lines.line(seat.line) else {
                return Poll::Ready(None);
            };
            // (What is loaded while a decoder works is for later: there is time for it, or not.)
            let has_time = || patience.end(Instant::now()).is_some();
            if job.is_none() && line.schedule.is_next_being_sent() && !has_time() {
                return Poll::Pending;
            }
            let job = job.or_else(|| line.claim(&*self.recipe, Claimant::CONSUMER));
            let waiting = match job {
                Some(_) => None,
                None => line.first_waiting(),
            };
            if job.is_none() && waiting.is_none() && line.schedule.is_one_being_sent() {
                let Some(end) = patience.end(Instant::now()) else {
                    return Poll::Pending;
                };
                board.wait_until(&seat.unit_ready, end); // its decoder makes it ready
                board.check();
                continue;
            }
            drop(board);
            match (job, waiting, &self.options[seat.share.device].pinning) {
                (
                    Some(Job::Solo {
                        pass,
                        units,
                        run: None,
                    }),
                    ..,
                ) => {
                    // One unit, which is reported and taken under one lock.
                    let unit = Unit(units.start);
                    let made = self.make(&pass, unit, None, Changes::default(), &desk);
                    board = self.lock();
                    board.made(&pass, unit, made);
                    continue;
                }
                (Some(job), ..) => _ = self.perform(job, &desk), // it claims nothing by itself
                (None, Some((pass, unit)), Some(pinning)) => {
                    self.serve_here(pinning, &pass, unit, &mut held_off);
                }
                (None, ..) => {
                    unreachable!("a unit that is not ready has rows to load, or waits for its slab")
                }
            }
            board = self.lock();
        }
    }
}
