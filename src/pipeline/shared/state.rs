//! The board: all lines of a loader, under one lock.

use std::collections::VecDeque;

use super::data::EpochSlot;
use super::lock::Bin;
use super::session::{Job, Line};
use super::sessions::Lines;
use super::sizing::{Crew, Duty};
use super::workers::{Station, Task};
use crate::device::InFlight;
use crate::pipeline::plan::options::Portion;
use crate::pipeline::schedule::{Claimant, Schedule, Unit};
use crate::pipeline::traits::{Recipe, Seat};
use crate::pipeline::worker_status::Desk;
use crate::sync::{Arc, Condvar, planted};
use crate::tuning::{COPYING_WORKERS, TINY_WORKERS};

/// Which sleeping workers are woken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Wake {
    /// One of a group.
    One(usize),
    /// Those that were off duty: which of them are on duty now, they find out themselves.
    OffDuty,
}

/// All lines of a loader.
pub(crate) struct Board<B> {
    pub(crate) lines: Lines<B>,
    /// How many workers sleep, in each group of [`COPYING_WORKERS`].
    pub(crate) idle: Vec<usize>,
    /// How many workers sleep that are off duty.
    pub(crate) idle_off_duty: usize,
    pub(crate) duty: Duty,
    /// One for each worker.
    pub(crate) stations: Vec<Station>,
    /// Units, with their line, that nobody is at, although they were opened. They are claimed before all else.
    pub(crate) orphans: VecDeque<(u64, Orphans)>,
    /// The bytes in flight, if they are limited.
    in_flight: Option<Arc<InFlight>>,
    /// The loader is being dropped, and threads end.
    pub(crate) is_closed: bool,
    /// How a thread of the library panicked outside of the program's code. What it was to do will never be done.
    broken: Option<String>,
}

/// Units that nobody is at.
pub(crate) enum Orphans {
    /// Their worker had claimed them to make them from end to end, and was given up.
    OfRun(std::ops::Range<u64>),
    /// It was sent, and the device could not decode all of it: it is made again, without the device.
    NotDecoded(Unit),
}

impl<B: 'static> Board<B> {
    pub(crate) fn new(groups: usize, in_flight: Option<Arc<InFlight>>, duty: Duty) -> Board<B> {
        Board {
            lines: Lines::new(),
            idle: vec![0; groups],
            idle_off_duty: 0,
            duty,
            stations: Vec::new(),
            orphans: VecDeque::new(),
            in_flight,
            is_closed: false,
            broken: None,
        }
    }

    /// A thread panicked: consumers hear of it.
    pub(crate) fn breaks(&mut self, how: String) {
        self.broken.get_or_insert(how);
        for line in self.lines.iter() {
            line.unit_ready.notify_all();
        }
    }

    /// # Panics
    ///
    /// If a thread of the library did, whose work consumers would wait for.
    pub(crate) fn check(&self) {
        if let Some(how) = &self.broken {
            panic!(
                "a thread of the loader panicked, which is a defect of pinfeed, and not of the program: {how}"
            );
        }
    }

    /// Adds a line without epochs; returns its key.
    pub(crate) fn add_line(
        &mut self,
        share: Portion,
        unit_ready: Arc<Condvar>,
        is_wide: Option<bool>,
        least_run: usize,
    ) -> u64 {
        let in_flight = self.in_flight.clone();
        self.lines.add(|key| Line {
            key,
            share,
            unit_ready,
            schedule: Schedule::new(is_wide, least_run),
            in_flight,
        })
    }

    /// Removes a line that has no epochs left.
    pub(crate) fn remove_if_over(&mut self, key: u64) {
        if self.line(key).is_some_and(|line| line.schedule.is_over()) {
            self.lines.remove(key);
            self.orphans.retain(|(line, _)| *line != key);
        }
    }

    /// Removes all lines.
    pub(crate) fn clear(&mut self, bin: &mut Bin<B>) {
        for line in self.lines.iter_mut() {
            // (Only epochs that were leaked by `mem::forget` are left: others hold the loader.)
            line.schedule.clear(bin.removed());
        }
        self.lines.clear();
    }

    pub(crate) fn line(&mut self, key: u64) -> Option<&mut Line<B>> {
        self.lines.get(key)
    }

    /// Appends an epoch to a line; returns the id of its segment. `is_reached`: the consumer is there already.
    pub(crate) fn append(&mut self, line: u64, epoch: EpochSlot<B>, is_reached: bool) -> u64 {
        match self.line(line) {
            Some(line) => line.schedule.append(epoch, is_reached),
            None => unreachable!("a line is there as long as somebody holds one of its seats"),
        }
    }

    /// Notes what the worker of this desk has to report on, in case that somebody must do so in its place.
    pub(crate) fn takes_on(&mut self, desk: &Desk, task: Option<Task>) {
        // (The consumer's own desk has no number that is one.)
        if let Some(station) = self.stations.get_mut(desk.number()) {
            station.task = task;
        }
    }

    /// Units that nobody makes any more, although they were claimed. `of`: for the consumer of this line, who does not do what the consumer
    /// of another one waits for.
    pub(crate) fn claim_orphans(&mut self, of: Option<u64>) -> Option<Job<B>> {
        loop {
            let is_own = |(line, _): &(u64, Orphans)| of.is_none_or(|of| of == *line);
            let own = self.orphans.iter().position(is_own)?;
            let (line, orphans) = self.orphans.remove(own)?;
            // Their epoch may have been left, and what was sent may have failed otherwise.
            let Some(line) = self.line(line) else {
                continue;
            };
            let schedule = &mut line.schedule;
            match orphans {
                Orphans::OfRun(units) if schedule.holds(Unit(units.start)) => {
                    return Some(line.solo(units));
                }
                Orphans::NotDecoded(unit)
                    if schedule.holds(unit) && schedule.is_being_sent(unit) =>
                {
                    return Some(line.remake(unit));
                }
                _ => {}
            }
        }
    }

    /// The group of workers that this one belongs to. The last group has all that are left.
    pub(crate) fn group(&self, worker: usize) -> usize {
        (worker / COPYING_WORKERS).min(self.idle.len() - 1)
    }

    /// For how many devices there are lines.
    fn devices(&self) -> usize {
        match self.idle.len() {
            ..=2 => 1, // the loader knows of no other
            _ => self.lines.devices().max(1),
        }
    }

    /// A worker of a group. One group copies as fast as the link of one device; the others work only where loading is more than copying.
    fn claimant(&self, group: usize, beyond: bool) -> Claimant {
        let devices = self.devices();
        Claimant {
            is_spare: group >= devices,
            beyond,
            devices,
            free_bytes: self.free_bytes(),
            free_slabs: 0, // each line knows its own
        }
    }

    /// Finds something to do for a worker of a group, first for lines whose consumer is blocked. Work beyond the epoch that a consumer is
    /// at comes last.
    pub(crate) fn claim(&mut self, recipe: &dyn Recipe<B>, group: usize) -> Option<Job<B>> {
        if !self.orphans.is_empty()
            && let Some(job) = self.claim_orphans(None)
        {
            return Some(job);
        }
        let claimant = self.claimant(group, false);
        self.lines.claim(recipe, claimant)
    }

    /// How many more bytes may be in flight.
    fn free_bytes(&self) -> usize {
        let limited = self.in_flight.as_ref();
        limited.map_or(usize::MAX, |in_flight| in_flight.free())
    }

    pub(crate) fn has_claim(&mut self, group: usize) -> bool {
        let claimant = self.claimant(group, true);
        !self.orphans.is_empty() || self.lines.has_claim(claimant)
    }

    /// The consumer gets a batch of its epoch, which may show how many workers are needed.
    pub(crate) fn watch(&mut self, seat: &Seat) {
        let only = self.lines.only();
        self.duty.serves(only.is_some());
        if let Some(line) = only {
            let given = seat.progress.count();
            let epoch = (seat.line, seat.segment);
            let most = || match &line.schedule {
                schedule if schedule.copies() => Some((COPYING_WORKERS, Crew::Copying)),
                schedule if schedule.is_tiny() => Some((TINY_WORKERS, Crew::Tiny)),
                _ => None,
            };
            self.duty.watch(epoch, given, &seat.meter, most);
        } // several consumers together need more than each of them shows
    }

    /// Which sleeping workers have something to do. One is woken, and wakes the next when it has found work.
    pub(crate) fn worker_to_wake(&mut self) -> Option<Wake> {
        let mut groups = 0..self.idle.len();
        let group = groups.find(|&group| self.idle[group] > 0 && self.has_claim(group));
        let off_duty = || self.needs_more().then_some(Wake::OffDuty);
        group.map(Wake::One).or_else(off_duty)
    }

    /// Whether workers that were off duty are on duty from now on: a consumer waits, and nobody is left to do what there is to do.
    fn needs_more(&mut self) -> bool {
        let (on_duty, _) = self.duty.now();
        let is_enough = |line: &Line<B>| on_duty >= TINY_WORKERS && line.schedule.is_tiny();
        // (Those that were called, and have not come yet, will do it.)
        (1..=self.duty.off()).contains(&self.idle_off_duty)
            && self.lines.blocked().any(|line| !is_enough(line))
            && self.has_claim(self.group(on_duty))
            && !planted("nobody goes on duty again")
            && self.duty.grow()
    }
}
