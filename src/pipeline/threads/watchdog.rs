//! The watchdog: where the program has waited for long, a line in the log says for what.

use std::fmt::Write;
use std::time::Duration;

use super::pipeline::Pipeline;
use crate::batch::Batch;
use crate::pipeline::epoch::EpochContext;
use crate::pipeline::plan::partition::Place;
use crate::pipeline::schedule::TaskId;
use crate::pipeline::shared::state::State;
use crate::pipeline::traits::EpochHandle;
use crate::pipeline::worker_status::{Doing, Seen};
use crate::sync::log;
use crate::sync::{Arc, Instant};
use crate::tuning::WORKERS_IN_A_LINE;

/// What the consumer waits for.
pub(crate) struct Stall {
    waited: Duration,
    epoch: u64,
    /// The task's batch, if the task is open.
    batch: Option<u64>,
    state: &'static str,
    busy: Vec<Busy>,
    idle: usize,
}

/// A worker that runs the program's code.
struct Busy {
    worker: String,
    seen: Seen,
    /// `None` if the task is not waited for any more.
    task: Option<(Place, Arc<EpochContext>)>,
}

impl<B: Batch> Pipeline<B> {
    /// Writes the line. A thread of its own does so, because the data set is asked to describe samples, and that may hang as they do.
    pub(crate) fn say(&self, stall: Stall) {
        let brief = stall.log_line(|_, _, _| None);
        let said = self.start("pinfeed-watchdog".to_owned(), move |pipeline| {
            let describe = |place: Place, context: &EpochContext, seen: Seen| {
                let factory = &pipeline.factory;
                let id = || factory.sample_id(context, place, seen.row, seen.index);
                let id = std::panic::catch_unwind(std::panic::AssertUnwindSafe(id));
                id.ok().map(|id| id.to_string())
            };
            log::warn!("{}", stall.log_line(describe));
        });
        if said.is_err() {
            log::warn!("{brief}");
        }
    }
}

impl Stall {
    /// What the consumer of this handle waits for, since then.
    pub(crate) fn of<B: Batch>(
        state: &mut State<B>,
        handle: &EpochHandle,
        now: Instant,
        since: Instant,
    ) -> Stall {
        let (mut busy, mut idle) = (Vec::new(), 0);
        for number in 0..state.slots.len() {
            let slot = &state.slots[number];
            let (worker, assignment) = (slot.status.name(), slot.assignment.clone());
            match slot.status.look(now) {
                Some(seen) => busy.push(Busy {
                    worker,
                    seen,
                    task: assignment.and_then(|assignment| {
                        let task = assignment.task();
                        let context = state.context_of(assignment.session, task)?;
                        Some((context.place(task), context))
                    }),
                }),
                None => idle += 1,
            }
        }
        let session = state.session(handle.session);
        let first =
            session.map(|session| (session.schedule.first(), session.schedule.state_of_first()));
        let (task, state_of_first) = first.unwrap_or((TaskId(0), "is gone"));
        let context = state.context_of(handle.session, task);
        Stall {
            waited: now.saturating_duration_since(since),
            epoch: handle.start.epoch,
            batch: context.map(|context| context.place(task).batch),
            state: state_of_first,
            busy,
            idle,
        }
    }

    fn log_line(&self, describe: impl Fn(Place, &EpochContext, Seen) -> Option<String>) -> String {
        let mut session = match self.batch {
            Some(batch) => format!("batch {batch} of epoch {}", self.epoch),
            None => format!("the next batch of epoch {}", self.epoch),
        };
        // (Writing to a string does not fail.)
        let _ = write!(
            session,
            " {}; the program has waited for it for {:.1?}.",
            self.state, self.waited
        );
        for busy in self.busy.iter().take(WORKERS_IN_A_LINE) {
            let _ = write!(session, " {}: {};", busy.worker, busy.said(&describe));
        }
        let others = self.busy.len().saturating_sub(WORKERS_IN_A_LINE);
        if others > 0 {
            let _ = write!(session, " {others} more workers are busy;");
        }
        let _ = write!(session, " {} workers have nothing to do", self.idle);
        if !self.busy.is_empty() {
            session.push_str(". (`timeout` makes a sample that hangs an error.)");
        }
        session
    }
}

impl Busy {
    fn said(&self, describe: impl Fn(Place, &EpochContext, Seen) -> Option<String>) -> String {
        let seen = self.seen;
        let is_of_sample = seen.is_of_sample();
        let mut said = match &self.task {
            None => "a batch that was given up, or whose epoch the program has left,".to_owned(),
            Some((place, context)) => {
                match is_of_sample
                    .then(|| describe(*place, context, seen))
                    .flatten()
                {
                    Some(sample) => sample,
                    None if is_of_sample => format!(
                        "row {} of batch {} in epoch {},",
                        place.first_row + seen.row,
                        place.batch,
                        place.epoch
                    ),
                    None => format!("batch {} of epoch {}", place.batch, place.epoch),
                }
            }
        };
        said.push_str(match seen.doing {
            Doing::Sampling => " asks the sampler for a position",
            Doing::Loading => " is being loaded",
            Doing::Filling => " is being filled into its row",
            Doing::Planning => " is being laid out",
            Doing::Collating => " is being collated",
            Doing::Memory => " is given memory",
            Doing::Pulling => " waits for an item of the iterable",
            Doing::Describing => " has a sample that the data set describes",
        });
        if let Some(elapsed) = seen.elapsed {
            let _ = write!(said, ", for {elapsed:.1?}");
        }
        said
    }
}
