//! The board: all lines of a loader, under one lock.

use super::guard::Bin;
use super::line::{Job, Line, Pass, Slot};
use super::schedule::{Asker, Schedule, Unit, Want};
use super::work::Recipe;
use crate::sync::{Arc, Condvar};

/// All lines of a loader.
pub(super) struct Board<B> {
    lines: Vec<Line<B>>,
    entered: u64,
    /// Counts claims, so that lines take turns.
    turn: u64,
    /// Workers that sleep: the first few, and the spare ones.
    pub(super) idle: [usize; 2],
    /// The loader is being dropped: threads end.
    pub(super) is_closed: bool,
}

impl<B> Board<B> {
    pub(super) fn new() -> Board<B> {
        Board {
            lines: Vec::new(),
            entered: 0,
            turn: 0,
            idle: [0; 2],
            is_closed: false,
        }
    }

    /// Enters a line without epochs; returns its key.
    pub(super) fn enter(&mut self, ready: Arc<Condvar>, is_wide: Option<bool>) -> u64 {
        self.entered += 1;
        self.lines.push(Line {
            key: self.entered,
            ready,
            schedule: Schedule::new(is_wide),
            served: 0,
        });
        self.entered
    }

    /// Takes a line out that has no epochs left.
    pub(super) fn remove_if_over(&mut self, key: u64) {
        let is_over = |line: &Line<B>| line.key == key && line.schedule.is_over();
        self.lines.retain(|line| !is_over(line));
    }

    /// Takes everything out.
    pub(super) fn close(&mut self, bin: &mut Bin<B>) {
        self.is_closed = true;
        for line in &mut self.lines {
            // (Their epochs were forgotten, or they would hold the loader.)
            let left_over = bin.left_over();
            line.schedule
                .empty(&mut left_over.segments, &mut left_over.slots);
        }
        self.lines.clear();
    }

    pub(super) fn line(&mut self, key: u64) -> Option<&mut Line<B>> {
        self.lines.iter_mut().find(|line| line.key == key)
    }

    /// The line of an open unit; `None` if nobody wants the unit any more.
    pub(super) fn line_of(&mut self, pass: &Pass, unit: Unit) -> Option<&mut Line<B>> {
        let line = self.line(pass.line)?;
        line.schedule.holds(unit).then_some(line)
    }

    pub(super) fn slot(&mut self, pass: &Pass, unit: Unit) -> Option<&mut Slot<B>> {
        let line = self.line_of(pass, unit)?;
        Some(line.schedule.carried(unit))
    }

    /// Something to do: for a line whose consumer is blocked, if there is one, else for any. What lies beyond the epoch that a
    /// consumer is at comes last.
    pub(super) fn claim(&mut self, recipe: &dyn Recipe<B>, is_spare: bool) -> Option<Job<B>> {
        self.turn += 1;
        let turn = self.turn;
        self.urgent_first();
        [false, true].into_iter().find_map(|beyond| {
            let asker = Asker { is_spare, beyond };
            self.lines.iter_mut().find_map(|line| {
                let job = line.claim(recipe, asker)?;
                line.served = turn;
                Some(job)
            })
        })
    }

    pub(super) fn has_claim(&mut self, is_spare: bool) -> bool {
        let asker = Asker {
            is_spare,
            beyond: true,
        };
        let mut lines = self.lines.iter_mut();
        lines.any(|line| line.schedule.has_claim(asker))
    }

    /// The slabs that are waited for: of each line the first, in the lines' turn.
    pub(super) fn wants(&mut self) -> Vec<(Arc<Pass>, Want)> {
        self.urgent_first();
        self.lines.iter_mut().filter_map(Line::next_want).collect()
    }

    /// Lines whose consumer is blocked come first, and of several the one that had to wait for longest: a line that always has work
    /// would otherwise keep the workers, and the slabs that come home, from another for good.
    fn urgent_first(&mut self) {
        if self.lines.len() > 1 {
            self.lines
                .sort_unstable_by_key(|line| (!line.schedule.is_blocked(), line.served));
        }
    }

    /// A kind of sleeping worker for whom there is something to do. One is woken, who wakes the next when he found something.
    pub(super) fn worker_to_wake(&mut self) -> Option<usize> {
        [0, 1]
            .into_iter()
            .find(|&kind| self.idle[kind] > 0 && self.has_claim(kind == 1))
    }
}
