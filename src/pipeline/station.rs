//! Stations: each worker has one on the board, its desk and what it has to report on.

use std::ops::Range;

use super::desk::{Desk, Seen};
use super::line::Job;
use super::schedule::Unit;
use crate::sync::Arc;

/// Where a worker works.
pub(super) struct Station {
    pub(super) desk: Arc<Desk>,
    /// What it has to report on. While it runs the program's code, this changes only if it is [given up](Desk::give_up).
    pub(super) task: Option<Task>,
    /// The system did not start a thread in place of the last one.
    pub(super) is_vacant: bool,
}

/// What a worker has to report on.
#[derive(Debug, Clone)]
pub(super) struct Task {
    pub(super) line: u64,
    pub(super) what: What,
    /// What the worker was seen to do that had it before, and was given up.
    pub(super) late: Option<Seen>,
}

#[derive(Debug, Clone)]
pub(super) enum What {
    Load { unit: Unit, claimed: usize },
    LayOut { unit: Unit },
    Finish { unit: Unit },
    Solo { units: Range<u64> },
    Pull { unit: Unit },
}

impl Task {
    pub(super) fn new(line: u64, what: What) -> Task {
        Task {
            line,
            what,
            late: None,
        }
    }

    /// `None`: no timeout holds for the job.
    pub(super) fn of<B>(job: &Job<B>) -> Option<Task> {
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
    pub(super) fn unit(&self) -> Unit {
        match &self.what {
            What::Load { unit, .. }
            | What::LayOut { unit }
            | What::Finish { unit }
            | What::Pull { unit } => *unit,
            What::Solo { units } => Unit(units.start),
        }
    }
}
