//! What epochs and states need of their loader: its threads, what its samples are, and where its run stands.

use std::fmt;

use super::last::Last;
use super::state::Owner;
use super::stats::Stats;
use crate::batch::Batch;
use crate::error::BoxError;
use crate::iterable::{Left, Shard};
use crate::pipeline::{EpochHandle, Pipeline, Start, Threads};
use crate::sync::{Arc, AtomicU64, Mutex, MutexGuard, OnceLock, Within, is_within_code_of};

/// A loader of either kind, as those see it that it gives out.
pub struct LoaderInner<B: Batch> {
    threads: Threads<B>,
    order: Order,
    /// Counts epochs that were shared by several devices.
    pub(super) splits: AtomicU64,
    /// The epoch that was given out last, for `stats` and `state`.
    last: Mutex<Last>,
}

/// What tells the loader's samples, and their random numbers, from those of another.
pub(super) struct Order {
    pub(super) seed: u64,
    /// How many samples the data set has, and its fingerprint.
    pub(super) data: Box<dyn Fn() -> (u64, u32) + Send + Sync>,
    /// Deals what is left of an epoch of an iterable to other ranks. `None`: the data set has an index.
    pub(super) hand_over: Option<Box<HandOver>>,
    /// What the states of this loader belong to. It is found out when it is first needed.
    pub(super) owner: OnceLock<Owner>,
}

/// [`IterableDataset::hand_over`](crate::iterable::IterableDataset::hand_over) of the loader's source.
pub(super) type HandOver =
    dyn Fn(u64, &[Left], &[Shard]) -> std::result::Result<Vec<Vec<u8>>, BoxError> + Send + Sync;

impl<B: Batch> LoaderInner<B> {
    pub(super) fn new(threads: Threads<B>, order: Order) -> LoaderInner<B> {
        LoaderInner {
            threads,
            order,
            splits: AtomicU64::new(0),
            last: Mutex::new(Last::at(Start::of(0), None)),
        }
    }

    pub(super) fn pipeline(&self) -> &Pipeline<B> {
        self.threads.pipeline()
    }

    pub(super) fn seed(&self) -> u64 {
        self.order.seed
    }

    /// Deals what is left of an iterable's epoch to other ranks.
    pub(super) fn hand_over(
        &self,
        epoch: u64,
        left: &[Left],
        to: &[Shard],
    ) -> std::result::Result<Vec<Vec<u8>>, BoxError> {
        let _within = Within::code_of(&self.order);
        match &self.order.hand_over {
            Some(hand_over) => hand_over(epoch, left, to),
            None => Err("the data set has an index".into()),
        }
    }

    /// What states belong to, if so many devices share each epoch.
    pub(super) fn owner(&self, devices: u64) -> Owner {
        assert!(
            !is_within_code_of(&self.order),
            "a data set, sampler or batch sampler asks for its loader's state while the loader asks it for its fingerprint, and so waits for itself: a \
             fingerprint, a description and a sampler's order must not need the state"
        );
        // (No thread waits for another here, where the program's code runs: two that ask at the same time find out the same.)
        let known = self.order.owner.get().copied();
        let owner = known.unwrap_or_else(|| {
            let owner = self.find_owner();
            *self.order.owner.get_or_init(|| owner)
        });
        Owner {
            ranks: owner.ranks.saturating_mul(devices),
            ..owner
        }
    }

    fn find_owner(&self) -> Owner {
        let _within = Within::code_of(&self.order);
        let options = self.pipeline().options();
        let (samples, data) = (self.order.data)();
        Owner {
            samples,
            data,
            order: options.batching.fingerprint(),
            seed: self.order.seed,
            batch_size: options.batching.batch_size().unwrap_or(0) as u64,
            ranks: options.shards,
        }
    }

    /// Where the run stands. Its lock must not be waited for where there may be no thread left to release it.
    ///
    /// # Panics
    ///
    /// As [`state`](crate::DataLoader::state).
    pub(super) fn last(&self) -> MutexGuard<'_, Last> {
        if !self.pipeline().has_lost_threads() {
            return self.last.lock();
        }
        let last = self.last.try_lock();
        assert!(
            last.is_some(),
            "this process was forked while another thread of its parent began an epoch or asked for the state, so nobody knows here where \
             the run stands: ask for the state before the fork"
        );
        last.unwrap_or_else(|| unreachable!("it is there"))
    }

    /// Statistics of this epoch, of one device.
    pub(super) fn stats_of(&self, handle: &EpochHandle) -> Stats {
        let pipeline = self.pipeline();
        if pipeline.has_lost_threads() {
            return Stats::default();
        }
        let stats = Stats::of(
            &handle.meter,
            &pipeline.options[handle.share.device],
            pipeline.sizing(),
            pipeline.device_share(),
        );
        stats.of_one_device()
    }
}

impl<B: Batch> fmt::Debug for LoaderInner<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DataLoader")
            .field("options", self.pipeline().options())
            .finish_non_exhaustive()
    }
}

/// A reference to the loader.
pub(super) enum Loader<'a, B: Batch> {
    Borrowed(&'a LoaderInner<B>),
    Owned(Arc<dyn Holds<B>>),
}

/// A loader of some kind, which an epoch owns a reference to.
pub(super) trait Holds<B: Batch>: Send + Sync {
    fn inner(&self) -> &LoaderInner<B>;
}

impl<B: Batch> Loader<'_, B> {
    pub(super) fn get(&self) -> &LoaderInner<B> {
        match self {
            Loader::Borrowed(loader) => loader,
            Loader::Owned(loader) => loader.inner(),
        }
    }

    pub(super) fn pipeline(&self) -> &Pipeline<B> {
        self.get().pipeline()
    }
}

impl<B: Batch> Clone for Loader<'_, B> {
    fn clone(&self) -> Self {
        match self {
            Loader::Borrowed(loader) => Loader::Borrowed(loader),
            Loader::Owned(loader) => Loader::Owned(Arc::clone(loader)),
        }
    }
}
