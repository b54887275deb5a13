//! The watchdog: where the program has waited for long, a line in the log says for what.

use std::fmt::Write;
use std::time::Duration;

use super::pipeline::Pipeline;
use crate::batch::Batch;
use crate::pipeline::epoch::Pass;
use crate::pipeline::plan::partition::Place;
use crate::pipeline::schedule::Unit;
use crate::pipeline::shared::state::Board;
use crate::pipeline::traits::Seat;
use crate::pipeline::worker_status::{Doing, Seen};
use crate::sync::log;
use crate::sync::{Arc, Instant};
use crate::tuning::WORKERS_IN_A_LINE;

/// What the consumer waits for.
pub(crate) struct Stall {
    waited: Duration,
    epoch: u64,
    /// The unit's batch, if the unit is open.
    batch: Option<u64>,
    state: &'static str,
    busy: Vec<Busy>,
    idle: usize,
}

/// A worker that runs the program's code.
struct Busy {
    worker: String,
    seen: Seen,
    /// `None` if nobody waits for the unit any more.
    unit: Option<(Place, Arc<Pass>)>,
}

impl<B: Batch> Board<B> {
    /// What the consumer of this seat waits for, since then.
    pub(crate) fn stall(&mut self, seat: &Seat, now: Instant, since: Instant) -> Stall {
        let (mut busy, mut idle) = (Vec::new(), 0);
        for number in 0..self.stations.len() {
            let station = &self.stations[number];
            let (worker, task) = (station.desk.name(), station.task.clone());
            match station.desk.look(now) {
                Some(seen) => busy.push(Busy {
                    worker,
                    seen,
                    unit: task.and_then(|task| self.place(task.line, task.unit())),
                }),
                None => idle += 1,
            }
        }
        let line = self.line(seat.line);
        let first = line.map(|line| (line.schedule.first(), line.schedule.state_of_first()));
        let (unit, state) = first.unwrap_or((Unit(0), "is gone"));
        Stall {
            waited: now.saturating_duration_since(since),
            epoch: seat.start.epoch,
            batch: self.place(seat.line, unit).map(|(place, _)| place.batch),
            state,
            busy,
            idle,
        }
    }

    fn place(&mut self, line: u64, unit: Unit) -> Option<(Place, Arc<Pass>)> {
        let line = self.line(line)?;
        let pass = line.schedule.holds(unit).then(|| line.pass(unit))?;
        Some((pass.place(unit), pass))
    }
}

impl<B: Batch> Pipeline<B> {
    /// Writes the line. A thread of its own does, for the data set is asked to describe samples, and that may hang as they do.
    pub(crate) fn say(&self, stall: Stall) {
        let brief = stall.line(|_, _, _| None);
        let said = self.start("pinfeed-watchdog".to_owned(), move |pipeline| {
            let describe = |place: Place, pass: &Pass, seen: Seen| {
                let recipe = &pipeline.recipe;
                let id = || recipe.sample_id(pass, place, seen.row, seen.index);
                let id = std::panic::catch_unwind(std::panic::AssertUnwindSafe(id));
                id.ok().map(|id| id.to_string())
            };
            log::warn!("{}", stall.line(describe));
        });
        if said.is_err() {
            log::warn!("{brief}");
        }
    }
}

impl Stall {
    fn line(&self, describe: impl Fn(Place, &Pass, Seen) -> Option<String>) -> String {
        let mut line = match self.batch {
            Some(batch) => format!("batch {batch} of epoch {}", self.epoch),
            None => format!("the next batch of epoch {}", self.epoch),
        };
        // (Writing to a string does not fail.)
        let _ = write!(
            line,
            " {}; the program has waited for it for {:.1?}.",
            self.state, self.waited
        );
        for busy in self.busy.iter().take(WORKERS_IN_A_LINE) {
            let _ = write!(line, " {}: {};", busy.worker, busy.said(&describe));
        }
        let others = self.busy.len().saturating_sub(WORKERS_IN_A_LINE);
        if others > 0 {
            let _ = write!(line, " {others} more workers are busy;");
        }
        let _ = write!(line, " {} workers have nothing to do", self.idle);
        if !self.busy.is_empty() {
            line.push_str(". (`timeout` makes a sample that hangs an error.)");
        }
        line
    }
}

impl Busy {
    fn said(&self, describe: impl Fn(Place, &Pass, Seen) -> Option<String>) -> String {
        let seen = self.seen;
        let is_of_sample = seen.is_of_sample();
        let mut said = match &self.unit {
            None => "a batch that was given up, or whose epoch the program has left,".to_owned(),
            Some((place, pass)) => {
                match is_of_sample.then(|| describe(*place, pass, seen)).flatten() {
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
            Doing::Pulling => " waits for an item of the stream",
            Doing::Describing => " has a sample that the data set describes",
        });
        if let Some(elapsed) = seen.elapsed {
            let _ = write!(said, ", for {elapsed:.1?}");
        }
        said
    }
}
