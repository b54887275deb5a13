//! Worker slots: each worker has one in the shared state, with its status and what it has to report on.

use std::ops::Range;

use super::session::Job;
use crate::pipeline::schedule::TaskId;
use crate::pipeline::worker_status::{Seen, WorkerStatus};
use crate::sync::Arc;

/// A worker's place in the shared state.
pub(crate) struct WorkerSlot {
    pub(crate) status: Arc<WorkerStatus>,
    /// What it has to report on. While it runs the program's code, this changes only if it is [given up](WorkerStatus::give_up).
    pub(crate) assignment: Option<Assignment>,
    /// The system did not start a thread in place of the last one.
    pub(crate) is_vacant: bool,
}

/// What a worker has to report on.
#[derive(Debug, Clone)]
pub(crate) struct Assignment {
    pub(crate) session: u64,
    pub(crate) what: What,
    /// What the worker that had it before, and was given up, was seen to do.
    pub(crate) late: Option<Seen>,
}

#[derive(Debug, Clone)]
pub(crate) enum What {
    Load { task: TaskId, claimed: usize },
    LayOut { task: TaskId },
    Finish { task: TaskId },
    Solo { tasks: Range<u64> },
    Pull { task: TaskId },
}

impl Assignment {
    pub(crate) fn new(session: u64, what: What) -> Assignment {
        Assignment {
            session,
            what,
            late: None,
        }
    }

    /// `None`: no timeout holds for the job.
    pub(crate) fn of<B>(job: &Job<B>) -> Option<Assignment> {
        let (context, what) = match job {
            Job::Plan { .. } | Job::Grant { .. } | Job::Send { .. } => return None,
            Job::Load {
                context,
                task,
                claimed,
                ..
            } => {
                let (task, claimed) = (*task, claimed.len());
                (context, What::Load { task, claimed })
            }
            Job::Finish { context, task } | Job::Rebuild { context, task, .. } => {
                (context, What::Finish { task: *task })
            }
            Job::Solo { context, tasks, .. } => {
                let tasks = tasks.clone();
                (context, What::Solo { tasks })
            }
            Job::Pull { context, task, .. } => (context, What::Pull { task: *task }),
        };
        Some(Assignment::new(context.session, what))
    }

    /// The task that the worker is at.
    pub(crate) fn task(&self) -> TaskId {
        match &self.what {
            What::Load { task, .. }
            | What::LayOut { task }
            | What::Finish { task }
            | What::Pull { task } => *task,
            What::Solo { tasks } => TaskId(tasks.start),
        }
    }
}
