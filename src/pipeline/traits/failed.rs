//! Why a task failed.

use crate::error::{Error, NoAnswer, Stage, TimedOut};

/// Why a task failed, and at which row. If several rows fail, the first is reported.
pub(crate) struct Failed {
    pub(crate) row: usize,
    pub(crate) error: Error,
    /// The sample itself is bad: it failed to load, or panicked.
    pub(crate) is_samples_own: bool,
    /// Made again from the start, the task could do without the sample.
    pub(crate) can_rebuild: bool,
}

impl Failed {
    /// The task fails, whatever its samples are.
    pub(crate) fn of_task(error: Error) -> Failed {
        Failed {
            row: 0,
            error,
            is_samples_own: false,
            can_rebuild: false,
        }
    }

    /// The sample at a row is bad.
    pub(crate) fn of_sample(row: usize, error: Error) -> Failed {
        Failed {
            row,
            is_samples_own: true,
            ..Failed::of_task(error)
        }
    }

    /// A data set has waited for the sample for as long as it may: no other takes its place, as if this worker had been given up.
    pub(crate) fn if_late(self, worker: impl FnOnce() -> String) -> Failed {
        let Error::Sample(sample, cause) = &self.error else {
            return self;
        };
        let Some(NoAnswer { elapsed }) = NoAnswer::in_error(cause) else {
            return self;
        };
        let late = TimedOut {
            epoch: sample.epoch,
            batch: sample.batch,
            stage: Stage::Loading,
            elapsed: *elapsed,
            worker: worker(),
            sample: Some(sample.clone()),
            count: 1,
            others: Vec::new(),
        };
        let error = Error::TimedOut(Box::new(late));
        Failed {
            row: self.row,
            ..Failed::of_task(error)
        }
    }

    /// A task needs more memory than the process may use.
    pub(crate) fn too_large(bytes: usize) -> Failed {
        Failed::of_task(Error::HostMemory { bytes })
    }
}
