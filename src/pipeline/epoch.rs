//! Epoch contexts: what all threads share that work on an epoch.

use super::lookahead::Announced;
use super::plan::epoch_plan::EpochPlan;
use super::plan::partition::{EpochOrder, Place};
use super::schedule::{EpochTasks, TaskId};
use crate::device::SlabQuota;
use crate::error::Error;
use crate::meter::{Activity, Bar, Meter, Subject};
use crate::sync::{Arc, AtomicBool, Ordering, planted};
use crate::tuning::ONE_ALONE_OF;

/// An epoch of a session.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct EpochKey {
    pub(crate) session: u64,
    pub(crate) epoch_entry: u64,
}

/// How the tasks of one epoch are made, shared by all threads that work on them. That never changes.
pub(crate) struct EpochContext {
    pub(crate) session: u64,
    pub(crate) epoch_entry: u64,
    pub(crate) device: usize,
    pub(crate) epoch: u64,
    pub(crate) tasks: EpochTasks,
    /// Which samples stand at its positions.
    pub(crate) order: EpochOrder,
    pub(crate) announced: Option<Arc<Announced>>,
    /// Its number, as the samples' generators have it; 0: the data set does not want to know what comes.
    pub(crate) short_id: u32,
    pub(crate) meter: Arc<Meter>,
    /// Its share of the device's ring, if the loader pins. Epochs whose plans join have one together.
    pub(crate) quota: Option<Arc<SlabQuota>>,
    /// The epoch has left the shared state, so its tasks are not waited for any more. Relaxed: the shared lock decides; this is for a
    /// thread that is busy without it.
    pub(crate) has_left: AtomicBool,
}

impl EpochContext {
    /// The epoch has left the shared state.
    pub(crate) fn leaves(&self) {
        self.has_left.store(true, Ordering::Relaxed);
    }

    /// Whether its tasks are not waited for any more.
    pub(crate) fn has_left(&self) -> bool {
        self.has_left.load(Ordering::Relaxed)
            && !planted("a stream that no consumer waits for is pulled")
    }

    pub(crate) fn key(&self) -> EpochKey {
        EpochKey {
            session: self.session,
            epoch_entry: self.epoch_entry,
        }
    }

    /// Where a task lies in its epoch.
    pub(crate) fn place(&self, task: TaskId) -> Place {
        let partition = &self.tasks.plan.partition;
        partition.place(self.epoch, self.tasks.number(task))
    }

    /// The batch that a task belongs to, within its epoch.
    pub(crate) fn batch(&self, task: TaskId) -> u64 {
        self.tasks.plan.partition.batch(self.tasks.number(task))
    }

    /// Whether the task is its epoch's last.
    pub(crate) fn is_last(&self, task: TaskId) -> bool {
        task.0 + 1 == self.tasks.end.0
    }

    pub(crate) fn plan(&self) -> &EpochPlan {
        &self.tasks.plan
    }

    /// Begins an event of a timeline, if the program wants one.
    #[inline]
    pub(crate) fn bar(&self, kind: Activity, task: TaskId) -> Option<Bar<'_>> {
        let subject = self.subject(task)?;
        Some(subject.begin(kind))
    }

    #[inline]
    /// Whether the task is sent by itself, whatever is ready beside it: parts are, what is recorded is, and now and then a batch, so that
    /// how long it is processed can be measured.
    pub(crate) fn is_sent_alone(&self, task: TaskId) -> bool {
        let is_measured = task.0.is_multiple_of(ONE_ALONE_OF);
        is_measured || self.plan().is_in_parts() || self.subject(task).is_some()
    }

    pub(crate) fn subject(&self, task: TaskId) -> Option<Subject<'_>> {
        self.meter.subject(|| Some(self.batch(task)))
    }

    pub(crate) fn collate_panicked(&self, task: TaskId, message: String) -> Error {
        Error::CollatePanicked {
            epoch: self.epoch,
            batch: self.batch(task),
            message,
        }
    }
}
