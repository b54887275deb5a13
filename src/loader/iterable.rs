//! Loaders of iterable data sets: the indexed loader's options and epochs, without a length.

use std::fmt;
use std::time::Duration;

use super::builder::Builder;
use super::epoch::Loader;
use super::iterable_state::{IterableOwner, IterableState};
use super::state::Owner;
use super::{
    Affinity, DataLoader, Epoch, Epochs, IterableEpoch, IterableEpochs, Last, LastBatch, OnError,
    Order, Placement, Recording, Replay, Sharding, Stats, World,
};
use crate::batch::{Arena, Batch, Collate, CollateFn, Share, Stack};
use crate::device::Device;
use crate::error::{BoxError, Error, Result};
use crate::iterable::{IterableDataset, Shard};
use crate::pipeline::{
    Batching, Beginning, ENDLESS, EpochHandle, EvenBatching, ItemNumbers, Learned, Options,
    Pipeline, Retry, Start, StreamFactory, StreamParts, Threads, Workers,
};
use crate::sampler::Sampler;
use crate::sync::{Arc, OnceLock};

/// Describes a loader of an iterable. [`DataLoader::iterable`] makes one; [`build`](IterableBuilder::build) makes the loader.
///
/// The options are those of [`Builder`], where they make sense for samples that have no index. (To shuffle, change the source:
/// [`IterableDataset::shuffle`]. There is no [`in_order`](Builder::in_order): a run is resumed where its source stood behind a batch, and
/// that place cannot have gaps.)
///
/// # Examples
///
/// ```
/// use pinfeed::{DataLoader, Device, iterable};
///
/// let device = Device::cpu();
/// let numbers = iterable::from_fn(|_epoch, _shard| Ok((0..100u64).map(|number| Ok(number as f32))));
/// let loader = DataLoader::iterable(numbers)
///     .batch_size(8)
///     .drop_last(true)
///     .num_workers(2)
///     .pin_memory(&device)
///     .build()?;
/// assert_eq!(loader.epoch(0).prefetch_to_device(&device, 2).count(), 12); // the last 4 samples are left out
/// # Ok::<(), pinfeed::Error>(())
/// ```
#[must_use = "a builder does nothing until `build`"]
pub struct IterableBuilder<S, C> {
    builder: Builder<S, C>,
}

impl<S: IterableDataset> IterableBuilder<S, Stack> {
    pub(super) fn new(source: S) -> Self {
        IterableBuilder {
            builder: Builder::new(source),
        }
    }
}

macro_rules! forwarded {
    ($($(#[$doc:meta])* $option:ident($value:ident: $type:ty);)*) => {$(
        $(#[$doc])*
        pub fn $option(mut self, $value: $type) -> Self {
            self.builder = self.builder.$option($value);
            self
        }
    )*};
}

impl<S: IterableDataset, C> IterableBuilder<S, C> {
    forwarded! {
        /// Sets the number of samples per batch of this rank; 1 by default.
        batch_size(batch_size: usize);

        /// Seeds what is random: windows of a shuffled source, and the samples' generators; 0 by default.
        seed(seed: u64);

        /// Sets the number of worker threads; 0 by default: batches are then loaded on the caller's thread, on demand.
        ///
        /// One worker at a time pulls items, and all of them load. [`Workers::Auto`] leaves their number to the loader. Neither the order
        /// nor the content of batches depends on it.
        num_workers(num_workers: impl Into<Workers>);

        /// Sets where the loader's threads run, as [`Builder::affinity`].
        affinity(affinity: Affinity);

        /// Sets how many batches are pulled and loaded ahead of the consumer; only with workers. 2 by default.
        prefetch(prefetch: usize);

        /// Limits the host memory of batches that are loaded ahead, as [`Builder::max_bytes_in_flight`].
        max_bytes_in_flight(bytes: usize);

        /// Leaves out the last batch of an epoch if it has fewer samples than the others; off by default.
        drop_last(drop_last: bool);

        /// Tells the source which rank this is of how many ([`Shard`]): the source splits itself. By default, this process is the only
        /// one. The order of what comes, and what samples draw, depend on the rank and the number of ranks
        /// ([`iterable`](crate::iterable#ranks)).
        world(world: World);

        /// Sets what becomes of an item that the iterable gives as an error, or that fails to load: by default, its batch is an error. With
        /// [`OnError::Skip`] it is left out, and its batch has fewer rows. [`OnError::Replace`] is refused: an iterable has no other
        /// sample for its place.
        on_error(on_error: OnError);

        /// Collates batches in page-locked memory, as [`Builder::pin_memory`], but of one device: an iterable's epoch cannot be split. For
        /// several, let each have a loader, whose [`world`](IterableBuilder::world) counts devices as ranks.
        pin_memory(devices: &(impl AsRef<[Device]> + ?Sized));

        /// Makes a batch that cannot be page-locked an error, as [`Builder::strict_pinning`].
        strict_pinning(strict: bool);

        /// Builds batches in pageable memory and copies them, as [`Builder::pin_by_copy`].
        pin_by_copy(by_copy: bool);

        /// Sets the least size of a slab, as [`Builder::min_slab_bytes`].
        min_slab_bytes(bytes: usize);

        /// Makes a sample that takes longer than this an error, as [`Builder::timeout`]. It holds for pulling one item, too: an iterable
        /// that gives none for longer ends with this error. Filling a buffer, packing a row, or skipping items may take longer, if each
        /// item of the source comes in time ([`iterable::progress`](crate::iterable::progress), which an iterable of your own calls as
        /// well).
        ///
        /// Dropping the loader waits for the item that is being pulled, and for no other; for one that hangs, at most this long.
        timeout(timeout: Duration);
    }

    #[cfg(feature = "nvjpeg")]
    forwarded! {
        /// Sets the share of the pictures that the device decodes, as [`Builder::device_share`]. (The state of an iterable does not hold
        /// it: a share that is measured is measured again after a resume.)
        device_share(share: f64);
    }

    /// Tries to load an item again where its error says that it may go away, as [`Builder::retry`]. An iterable that gives an error is not
    /// asked again.
    pub fn retry(mut self, attempts: u32, first_wait: Duration) -> Self {
        self.builder = self.builder.retry(attempts, first_wait);
        self
    }

    /// Sets how often items are loaded again in an epoch, all together, as [`Builder::retry_at_most`].
    pub fn retry_at_most(mut self, in_an_epoch: u64) -> Self {
        self.builder = self.builder.retry_at_most(in_an_epoch);
        self
    }

    /// How many cores [`Workers::Auto`] finds.
    #[cfg(feature = "testing")]
    #[doc(hidden)]
    pub fn cores(mut self, cores: usize) -> Self {
        self.builder = self.builder.cores(cores);
        self
    }

    /// How long the program waits for a batch before the log says for what.
    #[cfg(feature = "testing")]
    #[doc(hidden)]
    pub fn watchdog(mut self, patience: Duration) -> Self {
        self.builder = self.builder.watchdog(patience);
        self
    }

    /// Collates by a function of your own, as [`Builder::collate_fn`].
    pub fn collate_fn<B, F>(self, f: F) -> IterableBuilder<S, CollateFn<F, B>>
    where
        B: Batch,
        F: Fn(Vec<S::Sample>, &mut Arena) -> Result<B, BoxError> + Send + Sync + 'static,
    {
        IterableBuilder {
            builder: self.builder.collated_by(CollateFn::new(f)),
        }
    }

    /// Builds the loader, and starts its threads. The iterable is opened later, by a worker.
    ///
    /// # Errors
    ///
    /// As [`Builder::build`]; and [`Error::InvalidOption`] for [`OnError::Replace`], and for several devices.
    pub fn build<B: Batch>(self) -> Result<IterableLoader<B>>
    where
        C: Collate<S::Sample, Batch = B>,
    {
        let builder = self.builder;
        let batch_size = builder.check()?;
        if matches!(builder.on_error, OnError::Replace { .. }) {
            return Err(Error::option(
                "on_error",
                "is Replace, and an iterable has no other sample for the place of a bad one: leave it out with OnError::Skip",
            ));
        }
        if builder.devices.len() > 1 {
            return Err(Error::option(
                "pin_memory",
                format!(
                    "names {} devices, and the epoch of an iterable goes to one: let each device have a loader of its own, whose `world` \
                     counts devices as ranks",
                    builder.devices.len()
                ),
            ));
        }
        let (rank, ranks) = (builder.world.data_rank(), builder.world.data_ranks());
        let numbers: Arc<dyn Sampler> = Arc::new(ItemNumbers {
            ranks: ranks as u64,
        });
        let batching = Batching::Even(EvenBatching {
            samples: ENDLESS,
            sampler: numbers,
            batch_size,
            // Positions of this rank's items, as if the ranks took turns: so no two samples have the same random numbers.
            sharding: Sharding::Strided { drop_last: false },
        });
        let placed = builder.placed()?;
        let options = builder.options(&batching, &placed).into_iter();
        let options = options.map(|options| Options {
            last_batch: LastBatch::Partial,
            is_stream: true,
            ..options
        });
        let options = options.collect();
        let learned = Learned::new(false, None);
        #[cfg(feature = "nvjpeg")]
        let learned = learned.device_share(builder.device_share_of_64()?);
        let parts = StreamParts {
            source: builder.dataset,
            collate: Arc::new(builder.collate),
            shard: Shard::new(rank as u64, ranks as u64, builder.seed),
            batch_size,
            drop_last: builder.last_batch == LastBatch::Drop,
            seed: builder.seed,
            on_error: builder.on_error,
            retry: Arc::new(Retry::new(builder.retry)),
            keeps: builder.retry.0 > 0 || builder.on_error != OnError::Fail,
            learned: Arc::new(learned),
        };
        let parts = Arc::new(parts);
        let source = Arc::clone(&parts);
        let order = Order {
            seed: parts.seed,
            data: Box::new(move || (0, source.source.fingerprint())),
            owner: OnceLock::new(),
        };
        let factory = StreamFactory(parts);
        let threads = Threads::start(Pipeline::new(Box::new(factory), options))?;
        Ok(IterableLoader {
            loader: Arc::new(DataLoader::start(threads, order, placed)),
        })
    }
}

impl<S, C> fmt::Debug for IterableBuilder<S, C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("IterableBuilder").finish_non_exhaustive()
    }
}

/// Loads batches of type `B` from an iterable: a [`DataLoader`] that knows no length.
///
/// # Examples
///
/// An iterable without end, left after 100 steps:
///
/// ```
/// use pinfeed::iterable::{self, IterableDataset};
/// use pinfeed::DataLoader;
///
/// let numbers = iterable::from_fn(|_, _| Ok((0..1_000i64).map(Ok))).repeat();
/// let loader = DataLoader::iterable(numbers.shuffle(64)).batch_size(32).num_workers(2).build()?;
/// for (step, batch) in (0..100).zip(loader.epoch(0)) {
///     let numbers = batch?;
///     # assert_eq!((numbers.len(), step < 100), (32, true));
/// }
/// # Ok::<(), pinfeed::Error>(())
/// ```
pub struct IterableLoader<B: Batch> {
    loader: Arc<DataLoader<B>>,
}

impl<B: Batch> IterableLoader<B> {
    /// Returns the number of samples per batch of this rank (the last one of an epoch may have fewer).
    pub fn batch_size(&self) -> usize {
        self.loader.batch_size()
    }

    /// Begins epoch `epoch`. A worker opens its iterable with this number.
    ///
    /// # Synchronization
    ///
    /// As [`DataLoader::epoch`].
    pub fn epoch(&self, epoch: u64) -> IterableEpoch<'_, B> {
        let start = Start::of(epoch);
        IterableEpoch {
            epoch: Epoch::begin(
                Loader::Borrowed(&self.loader),
                Beginning::whole(start, None, false),
                None,
            ),
        }
    }

    /// Begins an epoch that owns a reference to its loader, for threads and structs that outlive the caller.
    pub fn owned_epoch(&self, epoch: u64) -> IterableEpoch<'static, B> {
        let start = Start::of(epoch);
        IterableEpoch {
            epoch: Epoch::begin(self.owned(), Beginning::whole(start, None, false), None),
        }
    }

    fn owned(&self) -> Loader<'static, B> {
        Loader::Owned(Arc::clone(&self.loader))
    }

    /// Gives the epochs of these numbers one after the other, and loads across their boundaries, as [`DataLoader::epochs`] does: when the
    /// end of one iterable was found, the next is opened.
    pub fn epochs<I>(&self, numbers: I) -> IterableEpochs<'_, B, I::IntoIter>
    where
        I: IntoIterator<Item = u64>,
    {
        IterableEpochs {
            epochs: Epochs::new(Loader::Borrowed(&self.loader), numbers.into_iter()),
        }
    }

    /// The same, with epochs that own a reference to their loader.
    pub fn owned_epochs<I>(&self, numbers: I) -> IterableEpochs<'static, B, I::IntoIter>
    where
        I: IntoIterator<Item = u64>,
    {
        IterableEpochs {
            epochs: Epochs::new(self.owned(), numbers.into_iter()),
        }
    }

    /// Gives the epochs of these rising numbers from where a run stands on this rank: earlier ones are left out, and the one that was begun
    /// goes on behind the batches that were given out. What comes is what would have come, on any number of workers.
    ///
    /// If the source said where it stood, it goes there at once
    /// ([`ItemIter::seek`](crate::iterable::ItemIter::seek)). Otherwise, as many items as were given out are pulled again and dropped:
    /// none of them is loaded, but reading them takes as long as reading does.
    ///
    /// # Errors
    ///
    /// [`Error::State`], which says what differs, if the state was saved with another source, as far as its
    /// [fingerprint](IterableDataset::fingerprint) tells, with another seed, on another rank, or on another number of ranks.
    /// [`IterableState::default`] is where every run begins. (A source that cannot go to its state makes the epoch's first batch an error,
    /// for it is opened later.)
    pub fn resume<I>(
        &self,
        numbers: I,
        state: &IterableState,
    ) -> Result<IterableEpochs<'_, B, I::IntoIter>>
    where
        I: IntoIterator<Item = u64>,
    {
        let start = self.resumed(state)?;
        let epochs = Epochs::new(Loader::Borrowed(&self.loader), numbers.into_iter());
        Ok(IterableEpochs {
            epochs: epochs.resumed(start, state.source()),
        })
    }

    /// The same, with epochs that own a reference to their loader.
    ///
    /// # Errors
    ///
    /// As [`resume`](IterableLoader::resume).
    pub fn owned_resume<I>(
        &self,
        numbers: I,
        state: &IterableState,
    ) -> Result<IterableEpochs<'static, B, I::IntoIter>>
    where
        I: IntoIterator<Item = u64>,
    {
        let start = self.resumed(state)?;
        let epochs = Epochs::new(self.owned(), numbers.into_iter());
        Ok(IterableEpochs {
            epochs: epochs.resumed(start, state.source()),
        })
    }

    fn resumed(&self, state: &IterableState) -> Result<Start> {
        self.loader.threads.pipeline().check_process()?;
        let owner = owner(&self.loader);
        state.check(owner)?;
        let start = state.start(owner.ranks);
        *self.loader.last() = Last::at(start, state.source());
        Ok(start)
    }

    /// Returns where the run stands on this rank, in the epoch that was begun last: after the batches that were given out, whatever was
    /// pulled ahead. When the epoch has ended (its iterator returned `None`), that is the beginning of the next.
    ///
    /// The first call asks the source for its [fingerprint](IterableDataset::fingerprint).
    ///
    /// # Panics
    ///
    /// As [`DataLoader::state`].
    pub fn state(&self) -> IterableState {
        let owner = owner(&self.loader); // first: it calls the program's code
        let last = self.loader.last();
        match last.handles().next() {
            Some(handle) => state_of(&self.loader, handle),
            None => {
                let (start, source) = (
                    last.start(self.loader.threads.pipeline().options()),
                    last.iterable(),
                );
                let items = start.position / owner.ranks;
                IterableState::new(start.epoch, items, source, owner)
            }
        }
    }

    /// Returns where the loader's threads run, and where its slabs lie ([`Builder::affinity`]).
    pub fn placement(&self) -> Placement {
        self.loader.placement()
    }

    /// Loads the first batch of epoch `epoch`, and gives it again and again, without end ([`take`](Iterator::take) some): as
    /// [`DataLoader::replay`].
    ///
    /// # Synchronization
    ///
    /// Blocks until the batch is loaded.
    ///
    /// # Errors
    ///
    /// The batch's own error.
    pub fn replay(&self, epoch: u64) -> Result<Replay<B>>
    where
        B: Share,
    {
        self.loader.replay(epoch)
    }

    /// Returns statistics of the epoch that was begun last; all zeros before the first.
    pub fn stats(&self) -> Stats {
        self.loader.stats()
    }

    /// Begins to record what each thread does when, as [`DataLoader::record`].
    pub fn record(&self) -> Recording {
        self.loader.record()
    }

    /// Returns statistics of all epochs of this loader so far, as [`DataLoader::total_stats`].
    pub fn total_stats(&self) -> Stats {
        self.loader.total_stats()
    }
}

fn owner<B: Batch>(loader: &DataLoader<B>) -> IterableOwner {
    let Owner {
        data, seed, ranks, ..
    } = loader.owner(1);
    IterableOwner {
        data: Some(data),
        seed,
        rank: loader.threads.pipeline().options().shard,
        ranks,
    }
}

pub(super) fn state_of<B: Batch>(loader: &DataLoader<B>, handle: &EpochHandle) -> IterableState {
    let reached = handle
        .reached
        .as_ref()
        .map(|reached| reached.lock().clone());
    let reached = reached.unwrap_or_default();
    let (epoch, owner) = (handle.start.epoch, owner(loader));
    match reached.is_over {
        true => IterableState::new(epoch.saturating_add(1), 0, None, owner),
        false => IterableState::new(epoch, reached.items, reached.state, owner),
    }
}

impl<'a, B: Batch> IntoIterator for &'a IterableLoader<B> {
    type Item = Result<B>;
    type IntoIter = IterableEpoch<'a, B>;

    /// Begins the next epoch: 0 the first time, then 1, and so on.
    fn into_iter(self) -> IterableEpoch<'a, B> {
        self.epoch(self.loader.next_epoch())
    }
}

impl<B: Batch> fmt::Debug for IterableLoader<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("IterableLoader")
            .field("options", self.loader.threads.pipeline().options())
            .finish_non_exhaustive()
    }
}
