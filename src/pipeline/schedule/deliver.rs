//! How batches leave the schedule: the consumer takes those that are ready, in order.

use super::entry::{Entry, Stage};
use super::{RUN_NS, Schedule};

impl Schedule {
    /// How many batches the consumer may take at once: those that are ready, as far as [`at_once`](Schedule::at_once) lets it.
    /// What was sent is in nobody's way, and does not count.
    pub(crate) fn ready(&self) -> usize {
        let mut here = self.at_once();
        let ready = |entry: &&Entry| {
            let may_take = entry.sent || here > 0;
            here -= usize::from(!entry.sent && may_take);
            may_take && entry.stage == Stage::Done
        };
        self.open.iter().take_while(ready).count()
    }

    /// Batches that the consumer has taken count as ahead until it asks for more, so taking several leaves fewer ahead than
    /// `prefetch` promises. That pays only where making a batch takes less time than waking a worker; there it may take half
    /// of the window, so that workers go on meanwhile.
    pub(super) fn at_once(&self) -> usize {
        match self.batch_ns() {
            Some(ns) if ns <= RUN_NS / 2 => (self.window() / 2).max(1),
            _ => 1,
        }
    }

    /// The consumer takes so many batches, which are ready: it has come to the first of them.
    pub(crate) fn deliver(&mut self, count: usize) {
        debug_assert!((1..=self.ready()).contains(&count));
        let first_was_sent = self.open[0].sent;
        let sent = self.open.drain(..count).filter(|entry| entry.sent);
        let sent = sent.count();
        self.sent -= sent;
        self.first += count as u64;
        self.taken = count - 1 - (sent - usize::from(first_was_sent));
        self.blocked = false;
    }

    /// The consumer has come to all batches that it took.
    pub(crate) fn used_up(&mut self) {
        self.taken = 0;
    }
}
