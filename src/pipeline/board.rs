//! The board: all lines of a loader, under one lock.

use std::collections::VecDeque;

use super::crew::Duty;
use super::desk::Desk;
use super::guard::Bin;
use super::late::{Station, Task};
use super::line::{EpochSlot, Job, Line, Pass};
use super::schedule::{Claimant, Schedule, Unit};
use super::seat::Seat;
use super::work::Recipe;
use crate::sync::{Arc, Condvar, Ordering, planted};

/// The kind of workers that are off duty.
pub(super) const OFF_DUTY: usize = 2;

/// All lines of a loader.
pub(super) struct Board<B> {
    lines: Vec<Line<B>>,
    lines_added: u64,
    /// Counts claims, so that lines take turns.
    turn: u64,
    /// How many workers sleep: of the first few, of the spare ones, and of those that are off duty.
    pub(super) idle: [usize; 3],
    pub(super) duty: Duty,
    /// One for each worker.
    pub(super) stations: Vec<Station>,
    /// Units, with their line, that a worker had claimed to make from end to end when it was given up.
    pub(super) orphans: VecDeque<(u64, std::ops::Range<u64>)>,
    /// The loader is being dropped, and threads end.
    pub(super) is_closed: bool,
}

impl<B: 'static> Board<B> {
    pub(super) fn new(duty: Duty) -> Board<B> {
        Board {
            lines: Vec::new(),
            lines_added: 0,
            turn: 0,
            idle: [0; 3],
            duty,
            stations: Vec::new(),
            orphans: VecDeque::new(),
            is_closed: false,
        }
    }

    /// Adds a line without epochs; returns its key.
    pub(super) fn add_line(
        &mut self,
        device: usize,
        unit_ready: Arc<Condvar>,
        is_wide: Option<bool>,
        least_run: usize,
    ) -> u64 {
        self.lines_added += 1;
        self.lines.push(Line {
            key: self.lines_added,
            device,
            unit_ready,
            schedule: Schedule::new(is_wide, least_run),
            last_turn: 0,
        });
        self.lines_added
    }

    /// Removes a line that has no epochs left.
    pub(super) fn remove_if_over(&mut self, key: u64) {
        let is_over = |line: &Line<B>| line.key == key && line.schedule.is_over();
        self.lines.retain(|line| !is_over(line));
    }

    /// Removes all lines.
    pub(super) fn clear(&mut self, bin: &mut Bin<B>) {
        for line in &mut self.lines {
            // (Only epochs that were leaked by `mem::forget` are left: others hold the loader.)
            line.schedule.clear(bin.removed());
        }
        self.lines.clear();
    }

    pub(super) fn line(&mut self, key: u64) -> Option<&mut Line<B>> {
        self.lines.iter_mut().find(|line| line.key == key)
    }

    /// Appends an epoch to a line; returns the id of its segment. `is_reached`: the consumer is there already.
    pub(super) fn append(&mut self, line: u64, epoch: EpochSlot<B>, is_reached: bool) -> u64 {
        match self.line(line) {
            Some(line) => line.schedule.append(epoch, is_reached),
            None => unreachable!("a line is there as long as somebody holds one of its seats"),
        }
    }

    /// Notes what the worker of this desk has to report on, in case that somebody must do so in its place.
    pub(super) fn takes_on(&mut self, desk: &Desk, task: Option<Task>) {
        // (The consumer's own desk has no number that is one.)
        if let Some(station) = self.stations.get_mut(desk.number()) {
            station.task = task;
        }
    }

    /// Units that nobody makes any more, although they were claimed.
    pub(super) fn claim_orphans(&mut self) -> Option<Job<B>> {
        loop {
            let (line, units) = self.orphans.pop_front()?;
            let line = self.line(line);
            // Their epoch may have been left.
            if let Some(line) = line.filter(|line| line.schedule.holds(Unit(units.start))) {
                let pass = line.pass(Unit(units.start));
                return Some(Job::Solo { pass, units });
            }
        }
    }

    /// Finds something to do, first for lines whose consumer is blocked. Work beyond the epoch that a consumer is at comes last.
    pub(super) fn claim(&mut self, recipe: &dyn Recipe<B>, is_spare: bool) -> Option<Job<B>> {
        if !self.orphans.is_empty()
            && let Some(job) = self.claim_orphans()
        {
            return Some(job);
        }
        self.turn += 1;
        let turn = self.turn;
        self.urgent_first();
        [false, true].into_iter().find_map(|beyond| {
            let claimant = Claimant { is_spare, beyond };
            self.lines.iter_mut().find_map(|line| {
                let job = line.claim(recipe, claimant)?;
                line.last_turn = turn;
                Some(job)
            })
        })
    }

    pub(super) fn has_claim(&mut self, is_spare: bool) -> bool {
        let claimant = Claimant {
            is_spare,
            beyond: true,
        };
        let mut lines = self.lines.iter_mut();
        !self.orphans.is_empty() || lines.any(|line| line.schedule.has_claim(claimant))
    }

    /// The first unit of each of the device's lines that waits for a slab, in the lines' turn.
    pub(super) fn waiting(&mut self, device: usize) -> Vec<(Arc<Pass>, Unit)> {
        self.urgent_first();
        let lines = self.lines.iter_mut();
        let lines = lines.filter(|line| line.device == device);
        lines.filter_map(Line::first_waiting).collect()
    }

    /// Sorts lines whose consumer is blocked to the front, and among equals the one that was served longest ago. Otherwise a line that
    /// always has work could starve another of workers and slabs.
    fn urgent_first(&mut self) {
        if self.lines.len() > 1 {
            self.lines
                .sort_unstable_by_key(|line| (!line.schedule.is_blocked(), line.last_turn));
        }
    }

    /// The consumer gets a batch of its epoch, which may show how many workers are needed.
    pub(super) fn watch(&mut self, seat: &Seat) {
        if let [line] = &*self.lines {
            let given = seat.given.load(Ordering::Relaxed);
            let epoch = (seat.line, seat.segment);
            let copies = || line.schedule.copies();
            self.duty.watch(epoch, given, &seat.meter, copies);
        } // several consumers together need more than each of them shows
    }

    /// The kind of sleeping worker that has something to do. One is woken, and wakes the next when it has found work.
    pub(super) fn worker_to_wake(&mut self) -> Option<usize> {
        let mut kinds = [0, 1].into_iter();
        let kind = kinds.find(|&kind| self.idle[kind] > 0 && self.has_claim(kind == 1));
        kind.or_else(|| self.needs_more().then_some(OFF_DUTY))
    }

    /// Whether workers that were off duty are on duty from now on: a consumer waits, and nobody is left to do what there is to do.
    fn needs_more(&mut self) -> bool {
        let off_duty = self.duty.off();
        // (Those that were called, and have not come yet, will do it.)
        (1..=off_duty).contains(&self.idle[OFF_DUTY])
            && self.lines.iter().any(|line| line.schedule.is_blocked())
            && self.has_claim(self.duty.next_are_spare())
            && !planted("nobody goes on duty again")
            && self.duty.grow()
    }
}
