//! The indices of samples, taken from an epoch's order.

use std::cell::Cell;
use std::panic::AssertUnwindSafe;

use super::partition::{EpochOrder, Place};
use crate::meter::nanoseconds_between;
use crate::sync::Instant;
use crate::tuning::INDICES_AT_ONCE as CHUNK;

/// How long the sampler took to say which samples come, in nanoseconds.
#[derive(Debug, Default)]
pub(crate) struct Sampled {
    /// How long it takes is not asked, so it is not measured.
    is_unasked: bool,
    /// What was measured, and what that stands for: of positions that are asked for one by one, some are timed.
    measured_ns: Cell<u64>,
    ns: Cell<u64>,
}

impl Sampled {
    /// For a caller that does not ask how long it takes.
    pub(crate) fn unasked() -> Sampled {
        Sampled {
            is_unasked: true,
            ..Sampled::default()
        }
    }

    pub(crate) fn measured_ns(&self) -> u64 {
        self.measured_ns.get()
    }

    pub(crate) fn ns(&self) -> u64 {
        self.ns.get()
    }

    /// How long it took since this was asked last.
    pub(crate) fn take_ns(&self) -> u64 {
        self.ns.take()
    }

    /// It took so long, as the caller has measured.
    pub(crate) fn add(&self, ns: u64) {
        self.ns.set(self.ns.get() + ns);
    }
}

/// Of positions that are asked for one by one, so many are timed by one.
const POSITIONS_PER_TIMED_ONE: usize = 16;

/// The indices of a task's samples, taken from the order a few dozen at a time.
pub(crate) struct Indices<'a> {
    order: &'a EpochOrder,
    place: Place,
    sampled: &'a Sampled,
    /// How often the order was asked.
    asked: usize,
    /// The first row that is not needed.
    end: usize,
    /// The indices of the rows from `start` on.
    chunk: [u64; CHUNK],
    start: usize,
    count: usize,
}

impl<'a> Indices<'a> {
    /// For rows below `end`.
    pub(crate) fn new(
        order: &'a EpochOrder,
        place: Place,
        end: usize,
        sampled: &'a Sampled,
    ) -> Indices<'a> {
        Indices {
            order,
            place,
            sampled,
            asked: 0,
            end,
            chunk: [0; CHUNK],
            start: 0,
            count: 0,
        }
    }

    /// The index of the sample at a row.
    #[inline]
    pub(crate) fn of(&mut self, row: usize) -> u64 {
        match self.chunk[..self.count].get(row.wrapping_sub(self.start)) {
            Some(index) => *index,
            None => self.of_next(row),
        }
    }

    fn of_next(&mut self, row: usize) -> u64 {
        if let Some(index) = self.look_up(row).first() {
            return *index;
        }
        // The sampler panicked at one of several positions. Asked for the right one, it panics again or has the index.
        let position = self.place.position(row);
        self.order.index(self.place.epoch, position)
    }

    /// The indices from a row on, as many as are known, or are asked for at once; none if the sampler panicked.
    pub(crate) fn from(&mut self, row: usize) -> &[u64] {
        let at = row.wrapping_sub(self.start);
        match at < self.count {
            true => &self.chunk[at..self.count],
            false => self.look_up(row),
        }
    }

    /// The indices from a row on, as many as were asked for at once; none if the sampler panicked.
    pub(crate) fn look_up(&mut self, row: usize) -> &[u64] {
        self.start = row;
        self.count = 0;
        let side_by_side = usize::try_from(self.place.side_by_side(row)).unwrap_or(usize::MAX);
        let count = CHUNK.min(self.end - row).min(side_by_side);
        let (epoch, position) = (self.place.epoch, self.place.position(row));
        let chunk = &mut self.chunk[..count];
        // (Lists are looked up in memory.)
        let is_asked = matches!(self.order, EpochOrder::Sampled(_)) && !self.sampled.is_unasked;
        let is_timed =
            is_asked && (count > 1 || self.asked.is_multiple_of(POSITIONS_PER_TIMED_ONE));
        let start = is_timed.then(Instant::now);
        self.asked += 1;
        // Unwind safety: after a panic, the numbers are not read.
        let look = AssertUnwindSafe(|| self.order.indices(epoch, position, chunk));
        match std::panic::catch_unwind(look) {
            Ok(()) => self.count = count,
            Err(payload) => drop(crate::error::panic_message(payload)),
        }
        if let Some(start) = start {
            let ns = nanoseconds_between(start, Instant::now());
            let stands_for = match side_by_side {
                1 => POSITIONS_PER_TIMED_ONE.min(self.end - row),
                _ => 1,
            };
            let sampled = self.sampled;
            sampled.measured_ns.set(sampled.measured_ns.get() + ns);
            sampled.add(ns.saturating_mul(stands_for as u64));
        }
        &self.chunk[..self.count]
    }
}
