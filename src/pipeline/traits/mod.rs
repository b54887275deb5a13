//! What is asked of whoever makes units: the one way from samples to a batch, with data set and collate erased.
//!
//! Several workers share a unit ([`Recipe::open`]), or one makes it from end to end ([`Recipe::make`]).

mod changes;
mod failed;
mod learned;
mod pull;
mod queue;
mod seat;
#[cfg(feature = "nvjpeg")]
mod share;

pub(crate) use self::changes::{Changes, Replaced};
pub(crate) use self::failed::Failed;
pub(crate) use self::learned::Learned;
pub(crate) use self::pull::{OwnItems, Pull, Pulled, Reached, Remade, StreamStart};
pub(crate) use self::queue::{Each, Permits, SendOutcome, Sends};
pub(crate) use self::seat::{Beginning, Seat};
#[cfg(feature = "nvjpeg")]
pub(crate) use self::share::Watched;

use super::epoch::Pass;
use super::lookahead::Listener;
use super::plan::epoch_plan::Hints;
use super::plan::partition::Place;
use super::schedule::{Claimed, Loaded};
use super::worker_status::Desk;
use crate::device::{Piece, Slab};
use crate::error::{CollateError, Error, Result, SampleId};
use crate::sync::Arc;
use crate::tensor::Offload;

/// How batches of type `B` are made: of a data set, by a collate. Each epoch has its own order.
pub(crate) trait Recipe<B>: Send + Sync {
    /// Opens a unit for several workers. `offload`: what is left to the device.
    fn open(&self, pass: &Arc<Pass>, place: Place, offload: Offload) -> Arc<dyn Work<B>>;

    /// Makes a unit on this thread from end to end. `changes`: what became of samples that failed so far.
    fn make(
        &self,
        pass: &Pass,
        place: Place,
        memory: &Memory<'_>,
        changes: Changes,
        at: &Desk,
    ) -> MadeAlone<B>;

    /// What is known of the sample at a row. It calls the data set, and the sampler if the index is not known.
    fn sample_id(&self, pass: &Pass, place: Place, row: usize, index: Option<u64>) -> SampleId;

    /// What is known of the samples.
    fn hints(&self) -> Hints;

    /// Where that is noted.
    #[cfg(feature = "nvjpeg")]
    fn learned(&self) -> &Learned;

    /// Who may want to know which samples come; `None` where they have no index.
    fn listener(&self) -> Option<Arc<dyn Listener>> {
        None
    }

    /// The stream of an epoch, from where it begins or is resumed; `None` for samples that have an index.
    fn stream(&self, from: StreamStart) -> Option<Box<dyn Pull<B>>> {
        drop(from);
        None
    }

    /// The error of a part that does not match an earlier part of its batch.
    fn unlike(&self, pass: &Pass, part: Place, like: Place, error: CollateError) -> Error;

    /// The loader is being dropped: nobody waits to try a sample again.
    fn end(&self);
}

/// Where a unit lies that one thread makes from end to end.
pub(crate) struct Memory<'a> {
    /// Gives it so many bytes; `None`: there is no such memory. (A unit that is made again asks again.)
    pub(crate) slab: &'a dyn Fn(usize) -> Option<Piece>,
    /// What is left to the device.
    pub(crate) offload: Offload,
}

/// One open unit. Everybody who holds it may load and grant; the last holder finishes it.
pub(crate) trait Work<B>: Send + Sync {
    /// Loads rows, or fills parked samples into theirs. When the unit finds out how large a slab it needs, it calls `ask` with the
    /// bytes, which may grant the slab at once; `false`: there is no such memory.
    fn load(&self, claimed: Claimed, ask: &dyn Fn(usize) -> bool, at: &Desk) -> Report;

    /// Lays the unit out, all of whose samples are parked. Returns the size of its slab in bytes.
    fn lay_out(&self) -> Result<usize, Failed>;

    fn grant(&self, slab: Slab);

    /// Makes the batch.
    fn finish(&mut self) -> Result<B, Failed>;

    /// What became of samples that failed.
    fn changes(&self) -> Changes;
}

/// A unit that one thread made from end to end.
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

    /// A unit that was not made, for a reason that has nothing to do with its samples.
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
