//! Stations: each worker has one on the board, its desk and what it has to report on.

use std::ops::Range;

use super::session::Job;
use crate::pipeline::schedule::Unit;
use crate::pipeline::worker_status::{Desk, Seen};
use crate::sync::Arc;

/// Where a worker works.
pub(crate) struct Station {
    pub(crate) desk: Arc<Desk>,
    /// What it has to report on. While it runs the program's code, this changes only if it is [given up](Desk::give_up).
    pub(crate) task: Option<Task>,
    /// The system did not start a thread in place of the last one.
    pub(crate) is_vacant: bool,
}

/// What a worker has to report on.
#[derive(Debug, Clone)]
pub(crate) struct Task {
    pub(crate) line: u64,
    pub(crate) what: What,
    /// What the worker was seen to do that had it before, and was given up.
    pub(crate) late: Option<Seen>,
}

#[derive(Debug, Clone)]
pub(crate) enum What {
    Load { unit: Unit, claimed: usize },
    LayOut { unit: Unit },
    Finish { unit: Unit },
    Solo { units: Range<u64> },
    Pull { unit: Unit },
}

impl Task {
    pub(crate) fn new(line: u64, what: What) -> Task {
        Task {
            line,
            what,
            late: None,
        }
    }

    /// `None`: no timeout holds for the job.
    pub(crate) fn of<B>(job: &Job<B>) -> Option<Task> {
        let (pass, what) = match job {
            Job::Plan { .. } | Job::Grant { .. } => return None,
            Job::Load {
                pass,
                unit,
                claimed,
                ..
            } => {
                let (unit, claimed) = (*unit, claimed.len());
                (pass, What::Load { unit, claimed })
            }
            Job::Finish { pass, unit } | Job::Remake { pass, unit, .. } => {
                (pass, What::Finish { unit: *unit })
            }
            Job::Solo { pass, units, .. } => {
                let units = units.clone();
                (pass, What::Solo { units })
            }
            Job::Pull { pass, unit, .. } => (pass, What::Pull { unit: *unit }),
        };
        Some(Task::new(pass.line, what))
    }

    /// The unit that the worker is at.
    pub(crate) fn unit(&self) -> Unit {
        match &self.what {
            What::Load { unit, .. }
            | What::LayOut { unit }
            | What::Finish { unit }
            | What::Pull { unit } => *unit,
            What::Solo { units } => Unit(units.start),
        }
    }
}
