//! How pieces are fetched: each is a sample with a number to [`Staged`], which has the threads, the places in flight and the time limits.

use std::error::Error as StdError;
use std::fmt;
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::rc::Rc;

use super::BlockSource;
use super::pieces::{Gone, Pieces, Wanted};
#[cfg(doc)]
use crate::dataset::Staged;
use crate::dataset::StagedDataset;
use crate::error::{BoxError, drop_each, is_temporary, panic_message};
use crate::rng::SampleRng;
use crate::sampler::Blocks;
use crate::store::{AskNextUse, with_next_use};
use crate::sync::{Arc, Condvar, Instant, Mutex, RwLock, WriteGuard};

/// What was fetched of a piece: its samples share it.
pub(super) type Fetched<S> = Result<Arc<<S as BlockSource>::Block>, Arc<Failure>>;

/// Why a piece was not fetched.
pub(super) struct Failure {
    pub(super) block: u64,
    pub(super) samples: Range<u64>,
    pub(super) why: Why,
    /// Trying again may help.
    pub(super) is_temporary: bool,
}

pub(super) enum Why {
    Failed(BoxError),
    Panicked(String),
}

/// What is shared with the threads that fetch.
pub(super) struct Requests<S: BlockSource> {
    pub(super) source: S,
    pub(super) blocks: Arc<Blocks>,
    pub(super) max_bytes: usize,
    /// How many pieces are opened ahead, unless it is as many as are in flight.
    pub(super) ahead: Option<usize>,
    pub(super) in_flight: usize,
    /// Read where a sample is found that is there, by all workers at once; written for everything else.
    pub(super) pieces: RwLock<Pieces<Fetched<S>>>,
    /// There is room, or an opening: threads that wait for these sleep here.
    changes: Mutex<()>,
    changed: Condvar,
}

impl<S: BlockSource> Requests<S> {
    pub(super) fn new(source: S) -> Requests<S> {
        Requests {
            blocks: source.blocks(),
            source,
            max_bytes: 4 << 30,
            ahead: None,
            in_flight: 32,
            pieces: RwLock::new(Pieces::new(|fetched| fetched.is_ok())),
            changes: Mutex::new(()),
            changed: Condvar::new(),
        }
    }

    /// Fetches samples of a block, whatever comes of it.
    pub(super) fn fetch_piece(&self, block: u64, samples: Range<u64>) -> Fetched<S> {
        let fetch = AssertUnwindSafe(|| self.source.fetch(block, samples.clone()));
        let why = match catch_unwind(fetch) {
            Ok(Ok(block)) => return Ok(Arc::new(block)),
            Ok(Err(error)) => Why::Failed(error),
            Err(payload) => Why::Panicked(panic_message(payload)),
        };
        Err(Arc::new(Failure {
            block,
            samples,
            is_temporary: matches!(&why, Why::Failed(error) if is_temporary(error)),
            why,
        }))
    }

    /// Waits for a change of the pieces, or until `end`. A change that comes when the lock is let go is not missed: `changes` was taken before.
    pub(super) fn wait(&self, pieces: WriteGuard<'_, Pieces<Fetched<S>>>, end: Option<Instant>) {
        let mut changes = self.changes.lock();
        drop(pieces);
        match end {
            Some(end) => _ = self.changed.wait_until(&mut changes, end),
            None => self.changed.wait(&mut changes),
        }
    }

    /// Wakes the threads that wait for a change, which was made under the lock of the pieces, and is seen now.
    pub(super) fn notify(&self) {
        drop(self.changes.lock());
        self.changed.notify_all();
    }

    /// Drops what is not needed any more. Without the lock.
    pub(super) fn drop_all(gone: &mut Gone<Fetched<S>>) {
        let (fetched, openings) = (gone.fetched.drain(..), gone.openings.drain(..));
        drop_each(fetched);
        drop_each(openings);
    }
}

/// (Only `fetch` is called: what was fetched is among the pieces, which their samples are taken from.)
impl<S: BlockSource> StagedDataset for Requests<S> {
    type Raw = ();
    type Sample = ();

    fn len(&self) -> u64 {
        self.blocks.samples()
    }

    fn fetch(&self, piece: u64) -> Result<(), BoxError> {
        let wanted = self.pieces.read().wanted(piece);
        let Some(Wanted {
            block,
            samples,
            again,
        }) = wanted
        else {
            return Ok(());
        };
        let ask = again.map(|(again, opening)| -> AskNextUse {
            Rc::new(move || again.next_use(&opening)) // (without the lock)
        });
        let fetched = with_next_use(ask, || self.fetch_piece(block, samples));
        let unwanted = self.pieces.write().fetched(piece, fetched);
        drop(unwanted); // (`Staged` catches what panics.)
        Ok(())
    }

    fn decode(&self, _: u64, (): (), _: &mut SampleRng) -> Result<(), BoxError> {
        Ok(())
    }

    fn raw_bytes(&self, (): &()) -> usize {
        0
    }
}

impl Failure {
    /// What the program calls the samples of this error.
    fn what(&self) -> String {
        let Failure { block, samples, .. } = self;
        match samples.end - samples.start {
            1 => format!("sample {} of block {block}", samples.start),
            _ => format!(
                "block {block} (samples {} to {})",
                samples.start,
                samples.end - 1
            ),
        }
    }

    /// What each sample panics with, if its block did.
    pub(super) fn panicked(&self) -> Option<String> {
        match &self.why {
            Why::Failed(_) => None,
            Why::Panicked(message) => Some(format!("fetching {}: {message}", self.what())),
        }
    }
}

impl fmt::Debug for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Failure")
            .field("block", &self.block)
            .field("samples", &self.samples)
            .finish_non_exhaustive()
    }
}

/// A sample's block was not fetched: one error, which its samples share.
#[derive(Debug)]
pub(super) struct NotFetched(pub(super) Arc<Failure>);

impl fmt::Display for NotFetched {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} was not fetched", self.0.what())?;
        match &self.0.why {
            Why::Failed(error) => write!(f, ": {error}"),
            Why::Panicked(message) => write!(f, ": it panicked: {message}"),
        }
    }
}

impl StdError for NotFetched {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        match &self.0.why {
            Why::Failed(error) => Some(&**error),
            Why::Panicked(_) => None,
        }
    }
}
