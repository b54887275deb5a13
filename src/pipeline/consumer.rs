//! The consumer's side: it gets the units of its epoch in order.

use std::collections::VecDeque;

use super::Pipeline;
use super::board::Board;
use super::guard::Bin;
use super::line::{Delivered, Job};
use super::recovery::Changes;
use super::schedule::{Claimant, Unit};
use super::seat::Seat;
use crate::batch::Batch;
use crate::sync::planted;

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

impl<B: Batch> Pipeline<B> {
    /// Returns the next unit of the epoch, and blocks until it is ready. `None`: the epoch is over.
    ///
    /// `quietly`: workers that could make use of the room are not woken, unless the call blocks. The caller does that
    /// ([`wake_workers`](Pipeline::wake_workers)) when it has all that it came for.
    pub(crate) fn next(
        &self,
        seat: &Seat,
        taken: &mut Taken<B>,
        quietly: bool,
    ) -> Option<Delivered<B>> {
        if let Some(next) = taken.pop_front() {
            if taken.is_empty() && next.pass.is_last(next.unit) {
                self.come_to_last(seat, quietly);
            }
            return Some(next);
        }
        match self.options().workers {
            0 => self.load_next(seat, taken),
            _ => self.wait_for_next(seat, taken, quietly),
        }
    }

    /// The consumer has come to the last unit of its epoch, so what it took is no longer ahead, and there is room for the next epoch. (It
    /// may keep the batch for long before it asks again.)
    fn come_to_last(&self, seat: &Seat, quietly: bool) {
        let mut board = self.lock();
        if let Some((line, bin)) = board.line(seat.line)
            && line.schedule.is_at(seat.segment)
        {
            line.schedule.used_up();
            bin.wake_workers = !quietly;
        }
    }

    /// Wakes workers to use the room that the consumer made. The consumer does this last, because a worker that is woken takes the lock
    /// that the consumer would need next, and may be scheduled on the consumer's core.
    pub(crate) fn wake_workers(&self) {
        if self.options().workers > 0 {
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
        quietly: bool,
    ) -> Option<Delivered<B>> {
        let mut board = self.lock();
        let mut has_told = false;
        loop {
            let (lines, bin) = board.split();
            match Self::poll(lines, bin, seat, taken) {
                Polled::Ready(delivered) => {
                    bin.wake_workers = !quietly && !planted("room wakes nobody");
                    return Some(delivered);
                }
                Polled::Over => {
                    // What was taken last is no longer ahead, so there is room for the next epoch.
                    bin.wake_workers = true;
                    return None;
                }
                Polled::Unplanned => {
                    drop(board);
                    self.keep_on_host(seat);
                    board = self.lock();
                    continue;
                }
                Polled::NotYet => {}
            }
            let line = lines.line(seat.line)?;
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
            board.wait(&seat.unit_ready);
        }
    }

    /// Without workers, the caller does everything, one job after the other.
    fn load_next(&self, seat: &Seat, taken: &mut Taken<B>) -> Option<Delivered<B>> {
        let mut held_off = None;
        let mut board = self.lock();
        loop {
            let (lines, bin) = board.split();
            match Self::poll(lines, bin, seat, taken) {
                Polled::Ready(delivered) => return Some(delivered),
                Polled::Over => return None,
                Polled::Unplanned => {
                    drop(board);
                    self.keep_on_host(seat);
                    board = self.lock();
                    continue;
                }
                Polled::NotYet => {}
            }
            let line = lines.line(seat.line)?;
            line.schedule.block();
            let claimant = Claimant {
                is_spare: false,
                beyond: false,
            };
            let job = line.claim(&*self.recipe, claimant);
            let waiting = match job {
                Some(_) => None,
                None => line.first_waiting(),
            };
            drop(board);
            match (job, waiting, &self.options[seat.device].pinning) {
                (Some(Job::Solo { pass, units }), ..) => {
                    // One unit, which is reported and taken under one lock.
                    let unit = Unit(units.start);
                    let made = self.make(&pass, unit, Changes::default());
                    board = self.lock();
                    board.made(&pass, unit, made);
                    continue;
                }
                (Some(job), ..) => self.perform(job),
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
