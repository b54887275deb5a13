//! What is asked of a factory, which makes tasks: the one way from samples to a batch, with data set and collate erased.
//!
//! Several workers share a task ([`Factory::open`]), or one makes it from end to end ([`Factory::make`]).

mod changes;
mod failed;
mod handle;
mod learned;
mod patience;
mod pull;
mod queue;
mod share;

pub(crate) use self::changes::{Changes, Replaced};
pub(crate) use self::failed::Failed;
pub(crate) use self::handle::{Beginning, EpochHandle};
pub(crate) use self::learned::Learned;
pub(crate) use self::patience::Patience;
pub(crate) use self::pull::{OwnItems, Pull, Pulled, Reached, Rebuilder, StreamStart};
pub(crate) use self::queue::{Each, SendOutcome, SendWindow, TransferQueue};
pub(crate) use self::share::Watched;

use super::epoch::EpochContext;
use super::lookahead::Listener;
use super::plan::epoch_plan::Hints;
use super::plan::partition::Place;
use super::schedule::{Claimed, Loaded};
use super::worker_status::WorkerStatus;
use crate::device::{Piece, Slab};
use crate::error::{CollateError, Error, Result, SampleId};
use crate::meter::More;
use crate::sync::Arc;
use crate::tensor::Offload;

/// How batches of type `B` are made: of a data set, by a collate. Each epoch has its own order.
pub(crate) trait Factory<B>: Send + Sync {
    /// Opens a task for several workers. `offload`: what is left to the device.
    fn open(
        &self,
        context: &Arc<EpochContext>,
        place: Place,
        offload: Offload,
    ) -> Arc<dyn Build<B>>;

    /// Makes a task on this thread from end to end. `changes`: what became of samples that failed so far.
    fn make(
        &self,
        context: &EpochContext,
        place: Place,
        memory: &TaskMemory<'_>,
        changes: Changes,
        at: &WorkerStatus,
    ) -> MadeAlone<B>;

    /// What is known of the sample at a row. It calls the data set, and the sampler if the index is not known.
    fn sample_id(
        &self,
        context: &EpochContext,
        place: Place,
        row: usize,
        index: Option<u64>,
    ) -> SampleId;

    /// What is known of the samples.
    fn hints(&self) -> Hints;

    /// Where that is noted.
    fn learned(&self) -> &Learned;

    /// The data set, which may want to know which samples come; `None` where they have no index.
    fn listener(&self) -> Option<Arc<dyn Listener>> {
        None
    }

    /// The stream of an epoch, from where it begins or is resumed; `None` for samples that have an index.
    fn stream(&self, from: StreamStart) -> Option<Box<dyn Pull<B>>> {
        drop(from);
        None
    }

    /// The error of a part that does not match an earlier part of its batch.
    fn unlike(
        &self,
        context: &EpochContext,
        part: Place,
        like: Place,
        error: CollateError,
    ) -> Error;

    /// The loader is being dropped: no thread waits any longer to try a sample again.
    fn end(&self);
}

/// Where a task lies that one thread makes from end to end.
pub(crate) struct TaskMemory<'a> {
    /// Gives it so many bytes; `None`: there is no such memory. (A task that is made again asks again.)
    pub(crate) slab: &'a dyn Fn(usize) -> Option<Piece>,
    /// What is left to the device.
    pub(crate) offload: Offload,
}

/// One open task. Every thread that holds it may load and grant; the last holder finishes it.
pub(crate) trait Build<B>: Send + Sync {
    /// Loads rows, or fills parked samples into theirs. When the task finds out how large a slab it needs, it calls `ask` with the
    /// bytes, which may grant the slab at once; `false`: there is no such memory.
    fn load(&self, claimed: Claimed, ask: &dyn Fn(usize) -> bool, at: &WorkerStatus) -> Report;

    /// Lays the task out, all of whose samples are parked. Returns the size of its slab in bytes.
    fn lay_out(&self) -> Result<usize, Failed>;

    fn grant(&self, slab: Slab);

    /// Makes the batch.
    fn finish(&mut self) -> Result<B, Failed>;

    /// What became of samples that failed.
    fn changes(&self) -> Changes;

    /// Whether samples are left that did not fail.
    fn has_good_samples(&self) -> bool;
}

/// A task that one thread made from end to end.
pub(crate) struct MadeAlone<B> {
    pub(crate) made: Result<B>,
    pub(crate) changes: Changes,
    /// How long it took; `None` if it panicked, or its worker was given up.
    pub(crate) spent: Option<Spent>,
}

/// What came of claimed rows.
pub(crate) struct Report {
    pub(crate) rows: Loaded,
    /// How long rows took to load, without the time in `ask`, because making a slab says nothing about the samples.
    pub(crate) elapsed_ns: Option<u64>,
    pub(crate) spent: Spent,
    /// Why rows are missing.
    pub(crate) failure: Option<Failed>,
}

impl<B> MadeAlone<B> {
    /// How long it took, in nanoseconds, if that is known.
    pub(crate) fn elapsed_ns(&self) -> Option<u64> {
        self.spent.map(|spent| spent.elapsed_ns)
    }

    /// A task that was not made, for a reason that has nothing to do with its samples.
    pub(crate) fn failed(error: Error) -> MadeAlone<B> {
        MadeAlone {
            made: Err(error),
            changes: Changes::default(),
            spent: None,
        }
    }
}

/// How long a run took, and what of it went where. (The time in which a slab or the sampler was asked is in none of the parts.)
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Spent {
    pub(crate) elapsed_ns: u64,
    pub(crate) loading_ns: u64,
    pub(crate) decoding_ns: u64,
    pub(crate) collating_ns: u64,
}

impl Spent {
    /// For the timeline.
    pub(crate) fn more(self) -> More {
        More::Spent([self.loading_ns, self.decoding_ns, self.collating_ns])
    }
}
