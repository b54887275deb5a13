//! The pipeline: workers load and collate batches ahead of the consumer, the pin thread sees to their slabs, and the
//! consumer gets them in order.
//!
//! One lock, the *board's*, holds the state of all live epochs of a loader: what a [`schedule`] says of each batch,
//! and the batches that are finished. It is held for a few instructions at a time, and never across a user's code, the
//! ring or a device. Three kinds of threads meet at it:
//!
//! - **workers** ([`worker`]) claim runs of samples, and make the batch when its last sample and its slab are there;
//! - the **pin thread** ([`pin`]) grants the slabs that were not there at once, in the order of the batches, waits for
//!   copies to bring some home, and copies batches that were built elsewhere;
//! - the **consumer** ([`consumer`]) takes batches in order. Without workers it does all of the above.
//!
//! Epochs that follow each other ([`mod@line`]) are loaded as if they were one: the next is behind the one that the consumer is
//! at.

mod arrivals;
mod board;
mod consumer;
mod line;
mod pin;
mod schedule;
mod source;
mod threads;
mod work;
mod worker;

pub(crate) use arrivals::{Arrivals, Fate};
pub(crate) use board::{Live, Made, Taken};
pub(crate) use line::Goes;
pub(crate) use schedule::Cut;
pub(crate) use threads::Threads;
pub(crate) use work::{DatasetRecipe, Recipe};

use self::board::Board;
use self::schedule::Whole;
use crate::device::{Device, Ring};
use crate::sync::{Arc, AtomicBool, AtomicUsize, Condvar, Mutex, OnceLock};
use crate::tuning::{
    DEFAULT_DEPTH_BATCHES as DEFAULT_DEPTH, FEWEST_SLABS_IN_TURN as FEWEST_IN_TURN, SLABS_IN_TURN,
};

/// What the threads of one loader share.
pub(crate) struct Pipeline<B> {
    board: Mutex<Board<B>>,
    /// Workers sleep here: the first few, and the spare ones, which are woken when no other is there.
    work: [Condvar; 2],
    recipe: Box<dyn Recipe<B>>,
    pub(crate) options: Options,
    /// Slabs of batches that are not to be page-locked, or cannot be.
    pageable: Arc<Ring>,
    /// The largest slab that was wanted, and had, of each [`Kind`](crate::device::Kind). Relaxed: it is a hint.
    largest_bytes: [AtomicUsize; 2],
    /// Whether the slabs of parts need not stay in the processor's cache, because loading is far from copying. The first epoch
    /// whose batches are cut finds out; it holds for those that follow, so that slabs stop being made.
    wide: OnceLock<bool>,
    /// The log has been told that batches go unpinned.
    warned: AtomicBool,
}

/// How a pipeline works: what the builder was told.
#[derive(Debug, Clone)]
pub(crate) struct Options {
    pub(crate) samples: u64,
    pub(crate) batch_size: usize,
    pub(crate) drop_last: bool,
    pub(crate) workers: usize,
    pub(crate) prefetch: usize,
    /// Nobody set `prefetch`: tiny batches may be loaded further ahead.
    pub(crate) prefetch_grows: bool,
    pub(crate) pinning: Option<Pinning>,
}

/// How batches come into page-locked memory.
#[derive(Debug, Clone)]
pub(crate) struct Pinning {
    pub(crate) device: Device,
    /// A batch that cannot be page-locked is an error.
    pub(crate) strict: bool,
    /// Batches are built in pageable memory, and copied by the pin thread.
    pub(crate) by_copy: bool,
    pub(crate) max_batch_bytes: Option<usize>,
}

/// How the batches of an epoch are cut into parts.
#[derive(Debug, Clone, Copy)]
struct Parts {
    /// How many a batch has.
    count: usize,
    /// How many of their slabs stay in the processor's cache together.
    resident: usize,
    /// How many slabs there may be otherwise: for the batches that are open, and one that is on its way; no more than there
    /// are parts.
    most: usize,
    sample_bytes: usize,
}

impl Options {
    pub(crate) fn cut(&self) -> Cut {
        Cut::whole(self.samples, self.batch_size, self.drop_last)
    }

    /// Where no slab must be waited for, one thread may make a batch from end to end.
    fn whole(&self) -> Option<Whole> {
        self.pinning.is_none().then_some(Whole {
            workers: self.workers,
            grows: self.prefetch_grows,
        })
    }

    /// How many slabs an epoch needs: for the open batches, the one that the consumer has, one that is being copied,
    /// and `depth` that are on their way to the device.
    pub(crate) fn slabs(&self, depth: usize) -> usize {
        self.prefetch.saturating_add(depth).saturating_add(2)
    }

    /// How many slabs of the device's ring an epoch may have: no more than its batches need, which may be built in one and
    /// moved into another.
    pub(crate) fn share(&self, depth: usize) -> usize {
        let batches = self.samples.div_ceil(self.batch_size as u64);
        let most = usize::try_from(batches.saturating_mul(2)).unwrap_or(usize::MAX);
        self.slabs(depth).min(most)
    }
}

impl Pinning {
    /// The size of a slab for so many bytes, as the builder was told.
    fn at_least(&self, bytes: usize) -> usize {
        bytes.max(self.max_batch_bytes.unwrap_or(0))
    }
}

impl<B> Pipeline<B> {
    pub(crate) fn new(recipe: Box<dyn Recipe<B>>, options: Options) -> Pipeline<B> {
        Pipeline {
            board: Mutex::new(Board::new()),
            work: Default::default(),
            recipe,
            pageable: Ring::pageable(options.slabs(0)),
            largest_bytes: Default::default(),
            wide: OnceLock::new(),
            warned: AtomicBool::new(false),
            options,
        }
    }

    /// How an epoch that goes to the pinning device is cut, so that the slabs that it fills in turn stay in the processor's
    /// cache until the device has read them. `None`: they do so anyway, or nobody knows how large samples are.
    ///
    /// It is the same for every depth: an epoch that begins before anybody says how far ahead it is sent, and one that is
    /// loaded behind another, must be cut alike.
    ///
    /// (Measured beside one H200: rows of 600 KB, copied by 8 threads into slabs of 735 MB together, went to the device at 37
    /// GB/s, around the cache at 46 to 49; into slabs of 45 MB at 54, of 147 MB at 55.)
    fn parts(&self) -> Option<Parts> {
        let pinning = self.options.pinning.as_ref()?;
        let (cache_bytes, least_bytes) = pinning.device.inner.resident_bytes()?;
        let sample_bytes = self.recipe.sample_bytes().filter(|_| !pinning.by_copy)?;
        let rows = u64::min(self.options.batch_size as u64, self.options.samples);
        let batch_bytes = sample_bytes.checked_mul(rows as usize)?;
        if batch_bytes.saturating_mul(self.options.share(DEFAULT_DEPTH)) <= cache_bytes {
            return None;
        }
        let part_bytes = (cache_bytes / SLABS_IN_TURN).max(least_bytes);
        let cut = self.options.cut();
        let cut = cut.into_parts(batch_bytes.div_ceil(part_bytes));
        let part_bytes = cut.rows(0) * sample_bytes;
        let all = usize::try_from(cut.count()).unwrap_or(usize::MAX);
        let open = self.options.prefetch.saturating_add(1);
        (cut.parts() > 1).then_some(Parts {
            count: cut.parts() as usize,
            resident: (cache_bytes / part_bytes).max(FEWEST_IN_TURN),
            most: (cut.parts() as usize).saturating_mul(open).min(all),
            sample_bytes,
        })
    }

    /// Lets one sleeping worker look for work, if there is any; it wakes the next.
    fn wake(&self, board: &mut Board<B>) {
        for spare in [false, true] {
            if board.idle[usize::from(spare)] > 0 && board.has_claim(spare) {
                self.work[usize::from(spare)].notify_one();
                return;
            }
        }
    }
}
