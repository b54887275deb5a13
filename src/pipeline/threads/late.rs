//! Workers whose sample takes longer than the loader's `timeout`.
//!
//! The consumer that waits finds them, at the instant at which the first of them is due: it sleeps until then, and looks at their
//! [statuses](crate::pipeline::worker_status). A worker that is late is *given up*. A new thread takes its place at once, and reports for
//! it: first it asks the data set to describe the sample, which may hang as well; then the new thread is given up in turn, and the consumer
//! reports what it knows. So a task is always reported on once, and no thread that is waited for runs the program's code.
//!
//! A thread that was given up keeps what it was lent: the task's work with its slab, and the pipeline with the data set. When it comes
//! back it drops all of that, and ends.

use std::io;
use std::time::Duration;

use super::pipeline::Pipeline;
use crate::batch::Batch;
use crate::error::{Error, SampleId};
use crate::pipeline::epoch::EpochContext;
use crate::pipeline::schedule::{Claimant, Loaded, TaskId};
use crate::pipeline::shared::report::{Step, StepReport};
use crate::pipeline::shared::session::Job;
use crate::pipeline::shared::state::{Requeued, State};
use crate::pipeline::shared::workers::{Assignment, What, WorkerSlot};
use crate::pipeline::traits::{EpochHandle, Failed};
use crate::pipeline::worker_status::{Doing, Seen, WorkerStatus};
use crate::sync::log;
use crate::sync::{Arc, Instant, Ordering, planted};

/// A worker slot that is to be filled.
struct Vacancy {
    /// The status of the worker that was given up now.
    before: Option<Arc<WorkerStatus>>,
    status: Arc<WorkerStatus>,
    /// Its assignment is that of a worker that was given up.
    has_first_job: bool,
}

/// A task that another thread is to report on, because its worker does not.
struct Overdue {
    assignment: Assignment,
    seen: Seen,
    worker: String,
    context: Arc<EpochContext>,
}

impl Overdue {
    /// `None`: the task is gone, and no report is waited for.
    fn of<B: Batch>(
        state: &mut State<B>,
        assignment: Assignment,
        seen: Seen,
        worker: String,
    ) -> Option<Overdue> {
        let context = state.context_of(assignment.session, assignment.task())?;
        Some(Overdue {
            assignment,
            seen,
            worker,
            context,
        })
    }
}

/// When the consumer that waits looks again: when the first worker will be late, or the earliest time at which one could be.
pub(crate) fn first_due(slots: &[WorkerSlot], timeout: Duration, now: Instant) -> Option<Instant> {
    let seen = slots.iter().filter_map(|one| one.status.look(now));
    let left = seen.filter_map(|seen| seen.left(timeout));
    now.checked_add(left.min().unwrap_or(timeout))
}

/// Whether there are workers to give up, or (`retries`) slots to fill.
pub(crate) fn has_late(
    slots: &[WorkerSlot],
    timeout: Duration,
    now: Instant,
    retries: bool,
) -> bool {
    slots.iter().any(|one| {
        let seen = one.status.look(now);
        retries && one.is_vacant || seen.is_some_and(|seen| seen.is_late(timeout))
    })
}

/// Gives up all workers that are late. Returns their slots, and the tasks that only the caller is left to report on.
fn give_up_late<B: Batch>(
    state: &mut State<B>,
    timeout: Duration,
    began: Instant,
) -> (Vec<Vacancy>, Vec<Overdue>) {
    let (mut vacancies, mut overdue) = (Vec::new(), Vec::new());
    let now = Instant::now();
    for number in 0..state.slots.len() {
        let status = &state.slots[number].status;
        let seen = status.look(now).filter(|seen| seen.is_late(timeout));
        let Some(seen) = seen.filter(|_| status.give_up()) else {
            continue;
        };
        let new = WorkerStatus::new(number, began, true);
        let before = Some(Arc::clone(status));
        state.slots[number].status = Arc::clone(&new);
        let assignment = state.slots[number].assignment.take();
        vacancies.push(Vacancy {
            before,
            has_first_job: assignment
                .as_ref()
                .is_some_and(|assignment| assignment.late.is_none()),
            status: Arc::clone(&new),
        });
        let Some(mut assignment) = assignment else {
            continue;
        };
        if let Some(seen) = assignment.late {
            // It was to describe the sample of another worker, and that hangs as well.
            if !planted("a description that hangs is waited for") {
                overdue.extend(Overdue::of(state, assignment, seen, new.name()));
            }
            continue;
        }
        if let What::Solo { tasks } = &mut assignment.what {
            // Other workers make the rest of its run.
            let rest = tasks.start + 1..tasks.end;
            tasks.end = rest.start;
            if !rest.is_empty() && !planted("a run is lost with its worker") {
                state
                    .requeued
                    .push_back((assignment.session, Requeued::OfRun(rest)));
            }
        }
        new.enter(Doing::Describing, seen.row);
        new.since(now);
        assignment.late = Some(seen);
        state.slots[number].assignment = Some(assignment);
    }
    (vacancies, overdue)
}

impl<B: Batch> Pipeline<B> {
    /// Gives up workers whose sample is late, and starts others in their slots. Called by the consumer that waits, without the lock. Slots
    /// that could not be filled before are tried again.
    /// The error: not all were filled.
    pub(crate) fn replace_late(&self, timeout: Duration) -> Result<(), io::Error> {
        let (vacancies, overdue) = {
            let mut state = self.lock();
            let (state, deferred) = state.split();
            let (mut vacancies, overdue) = give_up_late(state, timeout, self.began);
            let empty = state.slots.iter_mut().filter(|one| one.is_vacant);
            vacancies.extend(empty.map(|one| {
                one.is_vacant = false; // or it will be again
                Vacancy {
                    before: None,
                    status: Arc::clone(&one.status),
                    has_first_job: false,
                }
            }));
            deferred.wake_workers = !state.requeued.is_empty();
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
                false => self.hire(&vacancy.status, vacancy.has_first_job),
            };
            let Err(error) = hired else { continue };
            if !self.has_lacked.swap(true, Ordering::Relaxed) {
                let worker = vacancy.status.name();
                log::error!(
                    "{worker} hangs, and the system starts no thread in its place: {error}"
                );
            }
            failed = Err(error);
            self.do_without(&vacancy.status);
        }
        let nobody = WorkerStatus::of_caller(self.began);
        for late in overdue {
            self.report_overdue(&nobody, late, None);
        }
        failed
    }

    /// No thread could be started for this slot, so the caller does its first job.
    fn do_without(&self, status: &WorkerStatus) {
        let overdue = {
            let mut state = self.lock();
            if !status.leave() {
                return; // another consumer found it late, and is about to fill the place
            }
            let slot = &mut state.slots[status.number()];
            slot.is_vacant = true;
            let assignment = slot.assignment.take();
            assignment.and_then(|assignment| {
                let seen = assignment.late?;
                Overdue::of(&mut state, assignment, seen, status.name())
            })
        };
        if let Some(overdue) = overdue {
            self.report_overdue(&WorkerStatus::of_caller(self.began), overdue, None);
        }
    }

    /// The first thing that a new worker does: it reports for the one that was given up.
    pub(crate) fn run_first_job(&self, status: &WorkerStatus) {
        let overdue = {
            let mut state = self.lock();
            if status.is_given_up() {
                return; // before it began
            }
            let assignment = state.slots[status.number()].assignment.clone();
            let overdue = assignment.and_then(|assignment| {
                let seen = assignment.late?;
                Overdue::of(&mut state, assignment, seen, status.name())
            });
            if overdue.is_none() {
                state.takes_on(status, None);
            }
            overdue
        };
        let Some(overdue) = overdue else {
            let _ = status.leave();
            return;
        };
        let (seen, place) = (
            overdue.seen,
            self.place(&overdue.context, overdue.assignment.task()),
        );
        let sample = seen.is_of_sample().then(|| {
            // What it calls of the program's may panic, and says so itself.
            let context = &overdue.context;
            let id = || {
                // (Several are got in one call only where no task is made again.)
                let others = (seen.row + 1..seen.row + seen.count)
                    .map(|row| context.order.index(place.epoch, place.position(row)));
                let others = others.collect();
                let sample = self.factory.sample_id(context, place, seen.row, seen.index);
                (sample, others)
            };
            std::panic::catch_unwind(std::panic::AssertUnwindSafe(id)).ok()
        });
        if status.leave() && !planted("no thread reports for a worker that was given up") {
            self.report_overdue(status, overdue, sample.flatten());
        }
    }

    /// Reports the error of a task in place of a worker that was given up. `known`: its sample, and the indices of others that it got
    /// in the same call; without, neither the data set nor the sampler was asked.
    fn report_overdue(
        &self,
        status: &WorkerStatus,
        overdue: Overdue,
        known: Option<(SampleId, Vec<u64>)>,
    ) {
        let Overdue {
            assignment,
            seen,
            worker,
            context,
        } = overdue;
        let place = context.place(assignment.task());
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
        self.report_failed(status, &context, &assignment.what, seen.row, error);
    }

    /// Reports that what was claimed has failed.
    fn report_failed(
        &self,
        status: &WorkerStatus,
        context: &EpochContext,
        what: &What,
        row: usize,
        error: Error,
    ) {
        let failed = |task: &TaskId, error, step| {
            let report = StepReport {
                build: None,
                failure: Some(Failed {
                    row,
                    ..Failed::of_task(error)
                }),
                step,
            };
            self.report(status, context, *task, report);
        };
        match what {
            What::Load { task, claimed } => {
                let none = Loaded {
                    claimed: *claimed,
                    filled: 0,
                    parked: 0,
                };
                failed(task, error, Step::Loaded(none, None));
            }
            What::LayOut { task } => {
                failed(task, error, Step::NotLaidOut);
            }
            What::Finish { task } => self.publish(context, *task, Err(error)),
            What::Pull { task } => self.fail_pull(context, *task, error),
            What::Solo { tasks } => {
                self.publish(context, TaskId(tasks.start), Err(error));
                self.lock().takes_on(status, None);
            }
        }
    }

    /// All workers hang, and the system starts no other: what the consumer waits for next is an error. Returns whether there was something.
    pub(crate) fn fail_next(&self, handle: &EpochHandle, why: &io::Error) -> bool {
        let job = {
            let mut state = self.lock();
            if state.slots.iter().any(|one| !one.is_vacant) {
                return false;
            }
            state.claim_requeued(Some(handle.session)).or_else(|| {
                let (session, _) = state.session(handle.session)?;
                session.claim(&*self.factory, Claimant::CONSUMER)
            })
        };
        let Some(job) = job else { return false };
        let Some(assignment) = Assignment::of(&job) else {
            // (It grants a task its memory. Planning, which runs the program's code, is beyond the consumer's epoch.)
            self.perform(job, &WorkerStatus::of_caller(self.began));
            return true;
        };
        let (Job::Load { context, .. }
        | Job::Finish { context, .. }
        | Job::Rebuild { context, .. }
        | Job::Solo { context, .. }
        | Job::Pull { context, .. }) = &job
        else {
            return true;
        };
        let tasks = match &assignment.what {
            What::Solo { tasks } => tasks.clone(),
            _ => assignment.task().0..assignment.task().0 + 1,
        };
        for task in tasks {
            let what = match &assignment.what {
                What::Solo { .. } => What::Solo {
                    tasks: task..task + 1,
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
            self.report_failed(
                &WorkerStatus::of_caller(self.began),
                context,
                &what,
                0,
                error,
            );
        }
        true
    }
}
