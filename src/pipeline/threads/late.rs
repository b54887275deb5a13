//! Workers whose sample takes longer than the loader's `timeout`.
//!
//! The consumer that waits finds them, at the instant at which the first of them is due: it sleeps until then, and looks at their
//! [desks](crate::pipeline::worker_status). A worker that is late is *given up*. A new thread takes its place at once, and reports for it: first it asks the
//! data set to describe the sample, which may hang as well; then the new thread is given up in turn, and the consumer reports what it
//! knows. So a unit is always reported on once, and no thread that is waited for runs the program's code.
//!
//! A thread that was given up keeps what it was lent: the unit's work with its slab, and the pipeline with the data set. When it comes
//! back it drops all of that, and ends.

use std::io;
use std::time::Duration;

use super::pipeline::Pipeline;
use crate::batch::Batch;
use crate::error::{Error, SampleId};
use crate::pipeline::epoch::Pass;
use crate::pipeline::schedule::{Claimant, Loaded, Unit};
use crate::pipeline::shared::session::Job;
use crate::pipeline::shared::state::{Board, Orphans};
use crate::pipeline::shared::workers::{Task, What};
use crate::pipeline::traits::{Failed, Seat};
use crate::pipeline::worker_status::{Desk, Doing, Seen};
use crate::sync::log;
use crate::sync::{Arc, Instant, Ordering, planted};

/// A worker's place that is to be filled.
struct Vacancy {
    /// That of the worker that was given up now.
    before: Option<Arc<Desk>>,
    desk: Arc<Desk>,
    /// Its task is that of a worker that was given up.
    has_errand: bool,
}

/// A unit that is to be reported on, for its worker does not.
struct Overdue {
    task: Task,
    seen: Seen,
    worker: String,
    pass: Arc<Pass>,
}

impl<B: Batch> Board<B> {
    /// When the consumer that waits looks again: when the first worker is due, or else could be.
    pub(crate) fn first_due(&self, timeout: Duration, now: Instant) -> Option<Instant> {
        let seen = self.stations.iter().filter_map(|one| one.desk.look(now));
        let left = seen.filter_map(|seen| seen.left(timeout));
        now.checked_add(left.min().unwrap_or(timeout))
    }

    /// Whether there are workers to give up, or (`retries`) places to fill.
    pub(crate) fn has_late(&self, timeout: Duration, now: Instant, retries: bool) -> bool {
        self.stations.iter().any(|one| {
            let seen = one.desk.look(now);
            retries && one.is_vacant || seen.is_some_and(|seen| seen.is_late(timeout))
        })
    }

    /// Gives up all workers that are late. Returns their places, and the units that nobody is to report on but the caller.
    fn give_up_late(&mut self, timeout: Duration, began: Instant) -> (Vec<Vacancy>, Vec<Overdue>) {
        let (mut vacancies, mut overdue) = (Vec::new(), Vec::new());
        let now = Instant::now();
        for number in 0..self.stations.len() {
            let desk = &self.stations[number].desk;
            let seen = desk.look(now).filter(|seen| seen.is_late(timeout));
            let Some(seen) = seen.filter(|_| desk.give_up()) else {
                continue;
            };
            let new = Desk::new(number, began, true);
            let before = Some(Arc::clone(desk));
            self.stations[number].desk = Arc::clone(&new);
            let task = self.stations[number].task.take();
            vacancies.push(Vacancy {
                before,
                has_errand: task.as_ref().is_some_and(|task| task.late.is_none()),
                desk: Arc::clone(&new),
            });
            let Some(mut task) = task else { continue };
            if let Some(seen) = task.late {
                // It was to describe the sample of another, and that hangs as well.
                if !planted("a description that hangs is waited for") {
                    overdue.extend(self.overdue(task, seen, new.name()));
                }
                continue;
            }
            if let What::Solo { units } = &mut task.what {
                // Others make the rest of its run.
                let rest = units.start + 1..units.end;
                units.end = rest.start;
                if !rest.is_empty() && !planted("a run is lost with its worker") {
                    self.orphans.push_back((task.line, Orphans::OfRun(rest)));
                }
            }
            new.enter(Doing::Describing, seen.row);
            new.since(now);
            task.late = Some(seen);
            self.stations[number].task = Some(task);
        }
        (vacancies, overdue)
    }

    /// `None`: the unit is gone, and nobody waits for a report.
    fn overdue(&mut self, task: Task, seen: Seen, worker: String) -> Option<Overdue> {
        let line = self.line(task.line)?;
        let is_open = line.schedule.holds(task.unit());
        let pass = is_open.then(|| line.pass(task.unit()))?;
        Some(Overdue {
            task,
            seen,
            worker,
            pass,
        })
    }
}

impl<B: Batch> Pipeline<B> {
    /// Gives up workers whose sample is late, and lets others take their places. Called by the consumer that waits, without the lock.
    /// Places that could not be filled before are tried again.
    /// The error: not all were filled.
    pub(crate) fn replace_late(&self, timeout: Duration) -> Result<(), io::Error> {
        let (vacancies, overdue) = {
            let mut board = self.lock();
            let (board, bin) = board.split();
            let (mut vacancies, overdue) = board.give_up_late(timeout, self.began);
            let empty = board.stations.iter_mut().filter(|one| one.is_vacant);
            vacancies.extend(empty.map(|one| {
                one.is_vacant = false; // or it will be again
                Vacancy {
                    before: None,
                    desk: Arc::clone(&one.desk),
                    has_errand: false,
                }
            }));
            bin.wake_workers = !board.orphans.is_empty();
            (vacancies, overdue)
        };
        let mut failed = Ok(());
        for vacancy in vacancies {
            if let Some(before) = &vacancy.before {
                self.roster.give_up(before);
            }
            if planted("a worker that hangs is not replaced") {
                continue;
            }
            let hired = match planted("the system starts no more threads") {
                true => Err(io::ErrorKind::WouldBlock.into()),
                false => self.hire(&vacancy.desk, vacancy.has_errand),
            };
            let Err(error) = hired else { continue };
            if !self.has_lacked.swap(true, Ordering::Relaxed) {
                let worker = vacancy.desk.name();
                log::error!(
                    "{worker} hangs, and the system starts no thread in its place: {error}"
                );
            }
            failed = Err(error);
            self.do_without(&vacancy.desk);
        }
        let nobody = Desk::of_caller(self.began);
        for late in overdue {
            self.report_overdue(&nobody, late, None);
        }
        failed
    }

    /// There is no thread for this place, so its errand is the caller's.
    fn do_without(&self, desk: &Desk) {
        let overdue = {
            let mut board = self.lock();
            if !desk.leave() {
                return; // another consumer found it late, and is about to fill the place
            }
            let station = &mut board.stations[desk.number()];
            station.is_vacant = true;
            let task = station.task.take();
            task.and_then(|task| {
                let seen = task.late?;
                board.overdue(task, seen, desk.name())
            })
        };
        if let Some(overdue) = overdue {
            self.report_overdue(&Desk::of_caller(self.began), overdue, None);
        }
    }

    /// The first thing that a new worker does: it reports for the one that was given up.
    pub(crate) fn run_errand(&self, desk: &Desk) {
        let overdue = {
            let mut board = self.lock();
            if desk.is_given_up() {
                return; // before it began
            }
            let task = board.stations[desk.number()].task.clone();
            let overdue = task.and_then(|task| {
                let seen = task.late?;
                board.overdue(task, seen, desk.name())
            });
            if overdue.is_none() {
                board.takes_on(desk, None);
            }
            overdue
        };
        let Some(overdue) = overdue else {
            let _ = desk.leave();
            return;
        };
        let (seen, place) = (overdue.seen, overdue.pass.place(overdue.task.unit()));
        let sample = seen.is_of_sample().then(|| {
            // What it calls of the program's may panic, and says so itself.
            let pass = &overdue.pass;
            let id = || {
                // (Several are got in one call only where no unit is made again.)
                let others = (seen.row + 1..seen.row + seen.count)
                    .map(|row| pass.order.index(place.epoch, place.position(row)));
                let others = others.collect();
                let sample = self.recipe.sample_id(pass, place, seen.row, seen.index);
                (sample, others)
            };
            std::panic::catch_unwind(std::panic::AssertUnwindSafe(id)).ok()
        });
        if desk.leave() && !planted("nobody reports for who was given up") {
            self.report_overdue(desk, overdue, sample.flatten());
        }
    }

    /// Reports the error of a unit in place of a worker that was given up. `known`: its sample, and the indices of others that it got
    /// in the same call; without, neither the data set nor the sampler was asked.
    fn report_overdue(&self, desk: &Desk, overdue: Overdue, known: Option<(SampleId, Vec<u64>)>) {
        let Overdue {
            task,
            seen,
            worker,
            pass,
        } = overdue;
        let place = pass.place(task.unit());
        let (sample, others) = known.unzip();
        let sample = sample.or_else(|| {
            Some(SampleId {
                index: seen.index.filter(|_| seen.is_of_sample())?,
                row: place.first_row + seen.row,
                batch: place.batch,
                epoch: place.epoch,
                description: None,
            })
        });
        let error = seen.error(place, worker, sample, others.unwrap_or_default());
        self.report_failed(desk, &pass, &task.what, seen.row, error);
    }

    /// Reports that what somebody has claimed has failed.
    fn report_failed(&self, desk: &Desk, pass: &Pass, what: &What, row: usize, error: Error) {
        match what {
            What::Load { unit, claimed } => {
                let none = Loaded {
                    claimed: *claimed,
                    filled: 0,
                    parked: 0,
                };
                let failure = Some(Failed {
                    row,
                    ..Failed::of_unit(error)
                });
                self.report(desk, pass, *unit, None, failure, |line, _| {
                    line.schedule.loaded(*unit, none, None)
                });
            }
            What::LayOut { unit } => {
                let failure = Some(Failed {
                    row,
                    ..Failed::of_unit(error)
                });
                self.report(desk, pass, *unit, None, failure, |line, bin| {
                    bin.wake_workers = true;
                    line.schedule.failed(*unit)
                });
            }
            What::Finish { unit } => self.publish(pass, *unit, Err(error)),
            What::Pull { unit } => self.fail_pull(pass, *unit, error),
            What::Solo { units } => {
                self.publish(pass, Unit(units.start), Err(error));
                self.lock().takes_on(desk, None);
            }
        }
    }

    /// All workers hang, and the system starts no other: what the consumer waits for next is an error. Returns whether there was something.
    pub(crate) fn fail_next(&self, seat: &Seat, why: &io::Error) -> bool {
        let job = {
            let mut board = self.lock();
            if board.stations.iter().any(|one| !one.is_vacant) {
                return false;
            }
            board.claim_orphans(Some(seat.line)).or_else(|| {
                let (line, _) = board.line(seat.line)?;
                line.claim(&*self.recipe, Claimant::CONSUMER)
            })
        };
        let Some(job) = job else { return false };
        let Some(task) = Task::of(&job) else {
            // (It grants a unit its memory. Planning, which runs the program's code, is beyond the consumer's epoch.)
            self.perform(job, &Desk::of_caller(self.began));
            return true;
        };
        let (Job::Load { pass, .. }
        | Job::Finish { pass, .. }
        | Job::Remake { pass, .. }
        | Job::Solo { pass, .. }
        | Job::Pull { pass, .. }) = &job
        else {
            return true;
        };
        let units = match &task.what {
            What::Solo { units } => units.clone(),
            _ => task.unit().0..task.unit().0 + 1,
        };
        for unit in units {
            let what = match &task.what {
                What::Solo { .. } => What::Solo {
                    units: unit..unit + 1,
                },
                what => what.clone(),
            };
            let error = Error::Thread {
                name: "pinfeed-worker".to_owned(),
                source: io::Error::new(
                    why.kind(),
                    format!(
                        "all workers hang in code of the program's, and there is none to take their places: {why}"
                    ),
                ),
            };
            self.report_failed(&Desk::of_caller(self.began), pass, &what, 0, error);
        }
        true
    }
}
