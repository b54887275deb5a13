//! Which batches an epoch has: the sampler's order in even batches, or the lists of a batch sampler.

use std::collections::VecDeque;
use std::fmt;

use super::partition::{Listed, Lists, OnEmpty, Sharding, Start};
use crate::error::{Error, Result};
use crate::fingerprint::Fingerprint;
use crate::meter::nanoseconds_between;
use crate::sampler::{BatchSampler, Sampler};
use crate::sync::log;
use crate::sync::{Arc, Instant, Mutex, OnceLock, Ordering, Within, is_within_code_of, plain};
use crate::system::Process;

/// How samples are put together to batches.
#[derive(Debug, Clone)]
pub(crate) enum Batching {
    /// Batches of one size, out of a sampler's order.
    Even(EvenBatching),
    /// The lists of a batch sampler.
    Listed(Arc<Lister>),
}

#[derive(Debug, Clone)]
pub(crate) struct EvenBatching {
    pub(crate) sampler: Arc<dyn Sampler>,
    /// How many positions the sampler has.
    pub(crate) samples: u64,
    pub(crate) batch_size: usize,
    pub(crate) sharding: Sharding,
}

impl Batching {
    /// A fingerprint of the order, by which another one is told. It asks the program's sampler.
    pub(crate) fn fingerprint(&self) -> u32 {
        match self {
            Batching::Even(even) => even.sampler.fingerprint(),
            Batching::Listed(lister) => lister.on_empty.mark(lister.sampler.fingerprint()),
        }
    }

    /// The fingerprint of an order of which several ranks or devices have batches of their own, and some were given out before their turn:
    /// which samples these have is told by how they are dealt, too.
    pub(crate) fn mark_dealing(&self, order: u32) -> u32 {
        let name = match self {
            Batching::Listed(_) => return order,
            Batching::Even(even) => match even.sharding {
                Sharding::Slices => return order,
                Sharding::Strided { .. } => "strided",
                Sharding::Interleaved => "interleaved",
            },
        };
        let mut print = Fingerprint::new();
        print.add_number(u64::from(order));
        print.add(name.as_bytes());
        print.finish()
    }

    /// How many samples an epoch has. It may ask the program's batch sampler.
    pub(crate) fn samples(&self, epoch: u64) -> u64 {
        match self {
            Batching::Even(even) => even.samples,
            Batching::Listed(lister) => lister.lists(epoch).samples(),
        }
    }

    /// How many samples each batch has, if all have equally many.
    pub(crate) fn batch_size(&self) -> Option<usize> {
        match self {
            Batching::Even(even) => Some(even.batch_size),
            Batching::Listed(_) => None,
        }
    }

    /// How long the program's batch sampler took to list batches since this was asked last, in nanoseconds.
    pub(crate) fn take_listing_ns(&self) -> u64 {
        match self {
            Batching::Even(_) => 0,
            Batching::Listed(lister) => lister.listing_ns.swap(0, Ordering::Relaxed),
        }
    }

    /// As [`Lister::refuse_itself`].
    pub(crate) fn refuse_itself(&self) {
        if let Batching::Listed(lister) = self {
            lister.refuse_itself();
        }
    }

    /// Refuses to begin an epoch where none of its batches begins.
    pub(crate) fn check(&self, start: Start) -> Result<()> {
        match self {
            Batching::Listed(lister) if start.position > 0 => lister.check(start),
            _ => Ok(()),
        }
    }
}

/// A batch sampler, and the lists that it gave last. An epoch's lists are made once, by the first thread that needs them; others wait.
/// (That runs the program's code, so lists are never asked for under the shared lock.)
pub(crate) struct Lister {
    sampler: Arc<dyn BatchSampler>,
    on_empty: OnEmpty,
    /// Of the epochs that were asked for last. A thread that uses lists holds them as well.
    latest: Mutex<VecDeque<Kept>>,
    /// What epoch 0 is like.
    first: OnceLock<FirstEpoch>,
    /// How long it took to make lists, for the statistics of the epoch that is begun next.
    listing_ns: plain::AtomicU64,
}

/// The lists of an epoch, once they are made.
struct Kept {
    epoch: u64,
    /// The process in which they are made.
    process: Process,
    lists: Arc<OnceLock<Arc<Lists>>>,
}

impl Kept {
    fn of(epoch: u64) -> Kept {
        Kept {
            epoch,
            process: Process::this(),
            lists: Arc::default(),
        }
    }

    /// Whether a thread that asks for the lists of this epoch finds them here, or can wait for the thread that makes them. (If the process
    /// was forked while a thread made them, that thread is not in the child.)
    fn has(&self, epoch: u64) -> bool {
        self.epoch == epoch && (self.process.is_this() || self.lists.get().is_some())
    }
}

/// How many batches a rank has in epoch 0, and how many samples the largest of them has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct FirstEpoch {
    pub(crate) batches: u64,
    pub(crate) most_rows: usize,
}

/// How many epochs' lists are kept: those of the epoch that the consumer is at, and of the next.
const KEPT: usize = 2;

impl Lister {
    pub(crate) fn new(sampler: Arc<dyn BatchSampler>, on_empty: OnEmpty) -> Lister {
        Lister {
            sampler,
            on_empty,
            latest: Mutex::default(),
            first: OnceLock::new(),
            listing_ns: plain::AtomicU64::new(0),
        }
    }

    /// Refuses a call from within the batch sampler that would wait for it.
    ///
    /// # Panics
    ///
    /// Within the batch sampler's own code, where it becomes the error of its epoch.
    pub(crate) fn refuse_itself(&self) {
        assert!(
            !is_within_code_of(self),
            "a batch sampler asks the loader whose batches it lists, and so waits for itself: what it needs (a length, a state, the epoch's \
             number) must come from elsewhere, such as its own fields"
        );
    }

    /// The lists of an epoch.
    pub(crate) fn lists(&self, epoch: u64) -> Arc<Lists> {
        self.refuse_itself();
        let lists = {
            let mut latest = self.latest.lock();
            let at = latest.iter().position(|kept| kept.has(epoch));
            let kept = at.and_then(|at| latest.remove(at));
            let kept = kept.unwrap_or_else(|| Kept::of(epoch));
            let lists = Arc::clone(&kept.lists);
            latest.push_front(kept);
            latest.truncate(KEPT);
            lists
        };
        let mut is_news = false;
        let lists = lists.get_or_ask(|| {
            let _within = Within::code_of(self);
            let start = Instant::now();
            let lists = Lists::of(&*self.sampler, epoch, self.on_empty);
            let ns = nanoseconds_between(start, Instant::now());
            self.listing_ns.fetch_add(ns, Ordering::Relaxed);
            is_news = lists.is_empty();
            Arc::new(lists)
        });
        if is_news {
            log::warn!("epoch {epoch} is empty: the batch sampler gave no lists with samples");
        }
        Arc::clone(lists)
    }

    /// What epoch 0 is like; `partition` says which of its lists this rank gets.
    pub(crate) fn first(&self, partition: impl FnOnce(Arc<Lists>) -> Listed) -> FirstEpoch {
        self.refuse_itself();
        if let Some(first) = self.first.get() {
            return *first;
        }
        // (The program's code has made the lists before `get_or_init`, so no thread waits there for that code.)
        let partition = partition(self.lists(0));
        *self.first.get_or_init(|| FirstEpoch {
            batches: partition.batches(),
            most_rows: partition.most_rows(),
        })
    }

    fn check(
        &self,
        Start {
            epoch, position, ..
        }: Start,
    ) -> Result<()> {
        let lists = self.lists(epoch);
        lists.check(epoch)?;
        match lists.begins_at(position) {
            true => Ok(()),
            false => Err(Error::State {
                reason: format!(
                    "it stands at position {position} of epoch {epoch}, where none of the batch sampler's lists begins: the batch \
                     sampler gives other lists than it did"
                ),
            }),
        }
    }
}

impl fmt::Debug for Lister {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Lister")
            .field("sampler", &self.sampler)
            .finish_non_exhaustive()
    }
}
