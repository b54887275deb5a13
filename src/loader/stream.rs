//! Loaders of streams: the indexed loader's options and epochs, without a length.

use std::fmt;
use std::iter::FusedIterator;
use std::task::Poll;
use std::time::Duration;

use super::builder::Builder;
use super::epoch::Loader;
use super::info::WithInfo;
use super::stream_state::{StreamOwner, StreamState};
use super::{
    Affinity, DataLoader, DeviceEpoch, DeviceEpochs, Epoch, Epochs, Last, LastBatch, OnError,
    Order, Placement, Sharding, Stats, World,
};
use crate::batch::{Arena, Batch, Collate, CollateFn, Stack};
use crate::device::Device;
use crate::error::{BoxError, Error, Result};
use crate::pipeline::{
    Batching, ENDLESS, EvenBatching, ItemNumbers, Learned, Options, Pipeline, Retry, Seat, Start,
    StreamParts, StreamRecipe, Threads, Workers,
};
use crate::sampler::Sampler;
use crate::stream::{Shard, StreamSource};
use crate::sync::{Arc, Mutex, OnceLock};

/// Describes a loader of a stream. [`DataLoader::stream`] makes one; [`build`](StreamBuilder::build) makes the loader.
///
/// The options are those of [`Builder`], where they make sense for samples that have no index. (To shuffle, change the source:
/// [`StreamSource::shuffle`].)
///
/// # Examples
///
/// ```
/// use pinfeed::{DataLoader, Device, stream};
///
/// let device = Device::cpu();
/// let numbers = stream::from_fn(|_epoch, _shard| Ok((0..100u64).map(|number| Ok(number as f32))));
/// let loader = DataLoader::stream(numbers)
///     .batch_size(8)
///     .drop_last(true)
///     .num_workers(2)
///     .pin_memory(&device)
///     .build()?;
/// assert_eq!(loader.epoch(0).to_device(&device, 2).count(), 12); // the last 4 samples are left out
/// # Ok::<(), pinfeed::Error>(())
/// ```
#[must_use = "a builder does nothing until `build`"]
pub struct StreamBuilder<S, C> {
    builder: Builder<S, C>,
}

impl<S: StreamSource> StreamBuilder<S, Stack> {
    pub(super) fn new(source: S) -> Self {
        StreamBuilder {
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

impl<S: StreamSource, C> StreamBuilder<S, C> {
    forwarded! {
        /// Sets the number of samples per batch of this rank; 1 by default.
        batch_size(batch_size: usize);

        /// Seeds what is random: windows of a shuffled source, and the samples' generators; 0 by default.
        seed(seed: u64);

        /// Sets the number of worker threads; 0 by default: batches are then loaded on the caller's thread, on demand.
        ///
        /// One at a time pulls items, and all of them load. [`Workers::Auto`] leaves their number to the loader. Neither the order nor the content of batches depends on their number.
        num_workers(num_workers: impl Into<Workers>);

        /// Sets where workers and the pin thread run, as [`Builder::affinity`].
        affinity(affinity: Affinity);

        /// Sets how many batches are pulled and loaded ahead of the consumer; only with workers. 2 by default.
        prefetch(prefetch: usize);

        /// Leaves out the last batch of an epoch if it has fewer samples than the others; off by default.
        drop_last(drop_last: bool);

        /// Tells the source which rank this is of how many ([`Shard`]): the source splits itself. By default, this process is the only
        /// one.
        world(world: World);

        /// Sets what becomes of an item that the stream gives as an error, or that fails to load: by default, its batch is an error. With
        /// [`OnError::Skip`] it is left out, and its batch has fewer rows. [`OnError::Replace`] is refused: a stream has no other
        /// sample for its place.
        on_error(on_error: OnError);

        /// Collates batches in page-locked memory, as [`Builder::pin_memory`].
        pin_memory(device: &Device);

        /// Makes a batch that cannot be page-locked an error, as [`Builder::strict_pinning`].
        strict_pinning(strict: bool);

        /// Lets the pin thread copy batches, as [`Builder::pin_by_copy`].
        pin_by_copy(by_copy: bool);

        /// Makes every slab at least this large, as [`Builder::max_batch_bytes`].
        max_batch_bytes(bytes: usize);

        /// Makes a sample an error that takes longer than this, as [`Builder::timeout`]. It holds for pulling one item, too: a stream that
        /// gives none for longer ends with this error.
        timeout(timeout: Duration);
    }

    /// Tries to load an item again where its error says that it may go away, as [`Builder::retry`]. A stream that gives an error is not
    /// asked again.
    pub fn retry(mut self, attempts: u32, first_wait: Duration) -> Self {
        self.builder = self.builder.retry(attempts, first_wait);
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
    pub fn collate_fn<B, F>(self, f: F) -> StreamBuilder<S, CollateFn<F, B>>
    where
        B: Batch,
        F: Fn(Vec<S::Sample>, &mut Arena) -> Result<B, BoxError> + Send + Sync + 'static,
    {
        StreamBuilder {
            builder: self.builder.collated_by(CollateFn::new(f)),
        }
    }

    /// Builds the loader, and starts its threads. The stream is opened later, by a worker.
    ///
    /// # Errors
    ///
    /// As [`Builder::build`]; and [`Error::Option`] for [`OnError::Replace`].
    pub fn build<B: Batch>(self) -> Result<StreamLoader<B>>
    where
        C: Collate<S::Sample, Batch = B>,
    {
        let builder = self.builder;
        let batch_size = builder.check()?;
        if matches!(builder.on_error, OnError::Replace { .. }) {
            return Err(Error::option(
                "on_error",
                "is Replace, and a stream has no other sample for the place of a bad one: leave it out with OnError::Skip",
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
        let options = Options {
            last_batch: LastBatch::Partial,
            is_stream: true,
            ..builder.options(batching, &placed)
        };
        let order = Order {
            seed: builder.seed,
            data: Box::new(|| (0, 0)),
            owner: OnceLock::new(),
        };
        let parts = StreamParts {
            source: builder.dataset,
            collate: Arc::new(builder.collate),
            shard: Shard::new(rank as u64, ranks as u64, builder.seed),
            batch_size,
            drop_last: builder.last_batch == LastBatch::Drop,
            seed: builder.seed,
            on_error: builder.on_error,
            retry: Arc::new(Retry::new(builder.retry.0, builder.retry.1)),
            keeps: builder.retry.0 > 0 || builder.on_error != OnError::Fail,
            learned: Arc::new(Learned::new(false, None)),
        };
        let recipe = StreamRecipe(Arc::new(parts));
        let threads = Threads::start(Pipeline::new(Box::new(recipe), options))?;
        Ok(StreamLoader {
            loader: Arc::new(DataLoader::start(threads, order, placed)),
            resumed: Mutex::default(),
        })
    }
}

impl<S, C> fmt::Debug for StreamBuilder<S, C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StreamBuilder").finish_non_exhaustive()
    }
}

/// Loads batches of type `B` from a stream: a [`DataLoader`] that knows no length.
///
/// # Examples
///
/// A stream without end, left after 100 steps:
///
/// ```
/// use pinfeed::stream::{self, StreamSource};
/// use pinfeed::DataLoader;
///
/// let numbers = stream::from_fn(|_, _| Ok((0..1_000i64).map(Ok))).repeat();
/// let loader = DataLoader::stream(numbers.shuffle(64)).batch_size(32).num_workers(2).build()?;
/// for (step, batch) in (0..100).zip(loader.epoch(0)) {
///     let numbers = batch?;
///     # assert_eq!((numbers.len(), step < 100), (32, true));
/// }
/// # Ok::<(), pinfeed::Error>(())
/// ```
pub struct StreamLoader<B: Batch> {
    loader: Arc<DataLoader<B>>,
    /// Where the program asked to go on.
    resumed: Mutex<StreamState>,
}

impl<B: Batch> StreamLoader<B> {
    /// Returns the number of samples per batch of this rank (the last one of an epoch may have fewer).
    pub fn batch_size(&self) -> usize {
        self.loader.batch_size()
    }

    /// Begins epoch `epoch`. A worker opens its stream with this number.
    ///
    /// # Synchronization
    ///
    /// As [`DataLoader::epoch`].
    pub fn epoch(&self, epoch: u64) -> StreamEpoch<'_, B> {
        let start = Start::of(epoch);
        StreamEpoch {
            epoch: Epoch::begin(Loader::Borrowed(&self.loader), start, None, false),
        }
    }

    /// Begins an epoch that owns a reference to its loader, for threads and structs that outlive the caller.
    pub fn owned_epoch(&self, epoch: u64) -> StreamEpoch<'static, B> {
        let start = Start::of(epoch);
        StreamEpoch {
            epoch: Epoch::begin(self.owned(), start, None, false),
        }
    }

    fn owned(&self) -> Loader<'static, B> {
        Loader::Owned(Arc::clone(&self.loader))
    }

    /// Gives the epochs of these numbers one after the other, and loads across their boundaries, as [`DataLoader::epochs`] does: when the
    /// end of one stream was found, the next is opened.
    pub fn epochs<I>(&self, numbers: I) -> StreamEpochs<'_, B, I::IntoIter>
    where
        I: IntoIterator<Item = u64>,
    {
        StreamEpochs {
            epochs: Epochs::new(Loader::Borrowed(&self.loader), numbers.into_iter()),
        }
    }

    /// The same, with epochs that own a reference to their loader.
    pub fn owned_epochs<I>(&self, numbers: I) -> StreamEpochs<'static, B, I::IntoIter>
    where
        I: IntoIterator<Item = u64>,
    {
        StreamEpochs {
            epochs: Epochs::new(self.owned(), numbers.into_iter()),
        }
    }

    /// Gives the epochs of these rising numbers from where a run stands on this rank: earlier ones are left out, and the one that was begun
    /// goes on behind the batches that were given out. What comes is what would have come, on any number of workers.
    ///
    /// If the source said where it stood, it goes there at once
    /// ([`ItemStream::seek`](crate::stream::ItemStream::seek)). Otherwise, as many items as were given out are pulled again and dropped:
    /// none of them is loaded, but reading them takes as long as reading does.
    ///
    /// # Errors
    ///
    /// [`Error::State`], which says what differs, if the state was saved with another seed, on another rank, or on another number of
    /// ranks. [`StreamState::default`] is where every run begins. (A source that cannot go to its state makes the epoch's first batch an
    /// error, for it is opened later.)
    pub fn resume<I>(
        &self,
        numbers: I,
        state: &StreamState,
    ) -> Result<StreamEpochs<'_, B, I::IntoIter>>
    where
        I: IntoIterator<Item = u64>,
    {
        let start = self.resumed(state)?;
        let epochs = Epochs::new(Loader::Borrowed(&self.loader), numbers.into_iter());
        Ok(StreamEpochs {
            epochs: epochs.resumed(start, state.source()),
        })
    }

    /// The same, with epochs that own a reference to their loader.
    ///
    /// # Errors
    ///
    /// As [`resume`](StreamLoader::resume).
    pub fn owned_resume<I>(
        &self,
        numbers: I,
        state: &StreamState,
    ) -> Result<StreamEpochs<'static, B, I::IntoIter>>
    where
        I: IntoIterator<Item = u64>,
    {
        let start = self.resumed(state)?;
        let epochs = Epochs::new(self.owned(), numbers.into_iter());
        Ok(StreamEpochs {
            epochs: epochs.resumed(start, state.source()),
        })
    }

    fn resumed(&self, state: &StreamState) -> Result<Start> {
        let owner = owner(&self.loader);
        state.check(owner)?;
        let start = state.start(owner.ranks);
        *self.loader.last.lock() = Last::At(start);
        *self.resumed.lock() =
            StreamState::new(state.epoch(), state.items(), state.source(), owner);
        Ok(start)
    }

    /// Returns where the run stands on this rank, in the epoch that was begun last: after the batches that were given out, whatever was
    /// pulled ahead. When the epoch has ended (its iterator returned `None`), that is the beginning of the next.
    pub fn state(&self) -> StreamState {
        match &*self.loader.last.lock() {
            Last::Begun(seat, _) => state_of(&self.loader, seat),
            Last::At(_) => {
                let resumed = self.resumed.lock().clone();
                StreamState::new(
                    resumed.epoch(),
                    resumed.items(),
                    resumed.source(),
                    owner(&self.loader),
                )
            }
        }
    }

    /// Where the loader's threads run, and where its slabs lie ([`Builder::affinity`]).
    pub fn placement(&self) -> Placement {
        self.loader.placement()
    }

    /// Says where the time went in the epoch that was given out last; all zeros before the first.
    pub fn stats(&self) -> Stats {
        self.loader.stats()
    }
}

fn owner<B: Batch>(loader: &DataLoader<B>) -> StreamOwner {
    let options = loader.threads.pipeline().options();
    StreamOwner {
        seed: loader.order.seed,
        rank: options.lane,
        ranks: options.lanes,
    }
}

fn state_of<B: Batch>(loader: &DataLoader<B>, seat: &Seat) -> StreamState {
    let reached = seat.reached.as_ref().map(|reached| reached.lock().clone());
    let reached = reached.unwrap_or_default();
    let (epoch, owner) = (seat.start.epoch, owner(loader));
    match reached.is_over {
        true => StreamState::new(epoch.saturating_add(1), 0, None, owner),
        false => StreamState::new(epoch, reached.items, reached.state, owner),
    }
}

impl<'a, B: Batch> IntoIterator for &'a StreamLoader<B> {
    type Item = Result<B>;
    type IntoIter = StreamEpoch<'a, B>;

    /// Begins the next epoch: 0 the first time, then 1, and so on.
    fn into_iter(self) -> StreamEpoch<'a, B> {
        self.epoch(self.loader.next_epoch())
    }
}

impl<B: Batch> fmt::Debug for StreamLoader<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StreamLoader")
            .field("options", self.loader.threads.pipeline().options())
            .finish_non_exhaustive()
    }
}

/// One pass over a stream: gives its batches in order, until the stream ends. As [`Epoch`], without a length.
///
/// # Examples
///
/// ```
/// use pinfeed::{DataLoader, stream};
///
/// let numbers = stream::from_fn(|_, _| Ok((0..10i64).map(Ok)));
/// let loader = DataLoader::stream(numbers).batch_size(4).build()?;
/// let sizes: Vec<_> = loader.epoch(3).map(|batch| Ok(batch?.len())).collect::<pinfeed::Result<_>>()?;
/// assert_eq!(sizes, [4, 4, 2]);
/// # Ok::<(), pinfeed::Error>(())
/// ```
#[must_use = "an epoch gives its batches to whoever iterates it"]
pub struct StreamEpoch<'a, B: Batch> {
    epoch: Epoch<'a, B>,
}

impl<'a, B: Batch> StreamEpoch<'a, B> {
    /// Returns the number of this epoch.
    pub fn number(&self) -> u64 {
        self.epoch.number()
    }

    /// Returns where the run stands in this epoch, on this rank: after the batches that were given out.
    pub fn state(&self) -> StreamState {
        state_of(self.epoch.loader(), self.epoch.seat())
    }

    /// Gives with each batch what it is. Its indices are the numbers of this rank's items, counted from 0 in each epoch.
    pub fn with_info(self) -> WithInfo<StreamEpoch<'a, B>> {
        WithInfo::new(self)
    }

    /// Sends batches to the device ahead of the consumer, as [`Epoch::to_device`]. (They do not travel in parts.)
    pub fn to_device(self, device: &Device, depth: usize) -> StreamDeviceEpoch<'a, B> {
        StreamDeviceEpoch {
            epoch: self.epoch.to_device(device, depth),
        }
    }

    /// Gives the next batch if it is there, as [`Epoch::try_next`].
    pub fn try_next(&mut self) -> Poll<Option<Result<B>>> {
        self.epoch.try_next()
    }

    /// Waits for the next batch, but no longer than that, as [`Epoch::next_timeout`].
    pub fn next_timeout(&mut self, timeout: Duration) -> Poll<Option<Result<B>>> {
        self.epoch.next_timeout(timeout)
    }

    pub(super) fn inner(&self) -> &Epoch<'a, B> {
        &self.epoch
    }
}

impl<B: Batch> Iterator for StreamEpoch<'_, B> {
    type Item = Result<B>;

    fn next(&mut self) -> Option<Result<B>> {
        self.epoch.next()
    }
}

impl<B: Batch> FusedIterator for StreamEpoch<'_, B> {}

impl<B: Batch> fmt::Debug for StreamEpoch<'_, B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StreamEpoch")
            .field("number", &self.number())
            .finish_non_exhaustive()
    }
}

/// One pass over a stream, on a device: [`StreamEpoch::to_device`] makes it. As [`DeviceEpoch`], without a length.
///
/// # Examples
///
/// ```
/// use pinfeed::{DataLoader, Device, stream};
///
/// let device = Device::cpu();
/// let numbers = stream::from_fn(|_, _| Ok((0..10i64).map(Ok)));
/// let loader = DataLoader::stream(numbers).batch_size(4).num_workers(2).pin_memory(&device).build()?;
/// for batch in loader.epoch(0).to_device(&device, 2) {
///     let numbers = batch?; // on the device
///     # assert!(numbers.len() <= 4);
/// }
/// # Ok::<(), pinfeed::Error>(())
/// ```
#[must_use = "an epoch gives its batches to whoever iterates it"]
pub struct StreamDeviceEpoch<'a, B: Batch> {
    epoch: DeviceEpoch<'a, B>,
}

impl<'a, B: Batch> StreamDeviceEpoch<'a, B> {
    /// Returns the number of this epoch.
    pub fn number(&self) -> u64 {
        self.epoch.number()
    }

    /// Returns where the run stands in this epoch, on this rank: after the batches that were given out, not those that were sent ahead.
    pub fn state(&self) -> StreamState {
        let epoch = self.epoch.inner();
        state_of(epoch.loader(), epoch.seat())
    }

    /// Gives with each batch what it is. Its indices are the numbers of this rank's items, counted from 0 in each epoch.
    pub fn with_info(self) -> WithInfo<StreamDeviceEpoch<'a, B>> {
        WithInfo::new(self)
    }

    /// Gives the next batch if it is there, as [`DeviceEpoch::try_next`].
    pub fn try_next(&mut self) -> Poll<Option<Result<B::OnDevice>>> {
        self.epoch.try_next()
    }

    /// Waits for the next batch, but no longer than that, as [`DeviceEpoch::next_timeout`].
    pub fn next_timeout(&mut self, timeout: Duration) -> Poll<Option<Result<B::OnDevice>>> {
        self.epoch.next_timeout(timeout)
    }

    pub(super) fn inner(&self) -> &Epoch<'a, B> {
        self.epoch.inner()
    }
}

impl<B: Batch> Iterator for StreamDeviceEpoch<'_, B> {
    type Item = Result<B::OnDevice>;

    fn next(&mut self) -> Option<Result<B::OnDevice>> {
        self.epoch.next()
    }
}

impl<B: Batch> FusedIterator for StreamDeviceEpoch<'_, B> {}

impl<B: Batch> fmt::Debug for StreamDeviceEpoch<'_, B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StreamDeviceEpoch")
            .field("number", &self.number())
            .finish_non_exhaustive()
    }
}

/// Several passes over a stream, one after the other: [`StreamLoader::epochs`] makes it. As [`Epochs`].
///
/// # Examples
///
/// ```
/// use pinfeed::{DataLoader, stream};
///
/// let numbers = stream::from_fn(|epoch, _| Ok((0..4).map(move |number| Ok(100 * epoch as i64 + number))));
/// let loader = DataLoader::stream(numbers).batch_size(4).num_workers(2).build()?;
/// for epoch in loader.epochs(0..3) {
///     let number = epoch.number() as i64;
///     for batch in epoch {
///         assert_eq!(batch?.as_slice()[0], 100 * number);
///     }
/// }
/// # Ok::<(), pinfeed::Error>(())
/// ```
#[must_use = "it gives its epochs to whoever iterates it"]
pub struct StreamEpochs<'a, B: Batch, I> {
    epochs: Epochs<'a, B, I>,
}

impl<'a, B: Batch, I: Iterator<Item = u64>> StreamEpochs<'a, B, I> {
    /// Sends the batches of all epochs to the device ahead of the consumer, as [`Epochs::to_device`].
    pub fn to_device(self, device: &Device, depth: usize) -> StreamDeviceEpochs<'a, B, I> {
        StreamDeviceEpochs {
            epochs: self.epochs.to_device(device, depth),
        }
    }
}

impl<'a, B: Batch, I: Iterator<Item = u64>> Iterator for StreamEpochs<'a, B, I> {
    type Item = StreamEpoch<'a, B>;

    fn next(&mut self) -> Option<StreamEpoch<'a, B>> {
        let epoch = self.epochs.next()?;
        Some(StreamEpoch { epoch })
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        self.epochs.size_hint()
    }
}

impl<B: Batch, I: Iterator<Item = u64>> FusedIterator for StreamEpochs<'_, B, I> {}

impl<B: Batch, I> fmt::Debug for StreamEpochs<'_, B, I> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StreamEpochs").finish_non_exhaustive()
    }
}

/// Several passes over a stream, one after the other, on a device: [`StreamEpochs::to_device`] makes it. As [`DeviceEpochs`].
///
/// # Examples
///
/// ```
/// use pinfeed::{DataLoader, Device, stream};
///
/// let device = Device::cpu();
/// let numbers = stream::from_fn(|_, _| Ok((0..10i64).map(Ok)));
/// let loader = DataLoader::stream(numbers).batch_size(4).num_workers(2).pin_memory(&device).build()?;
/// let mut steps = 0;
/// for epoch in loader.epochs(0..3).to_device(&device, 1) {
///     for batch in epoch {
///         let _numbers = batch?; // on the device
///         steps += 1;
///     }
/// }
/// assert_eq!(steps, 9);
/// # Ok::<(), pinfeed::Error>(())
/// ```
#[must_use = "it gives its epochs to whoever iterates it"]
pub struct StreamDeviceEpochs<'a, B: Batch, I> {
    epochs: DeviceEpochs<'a, B, I>,
}

impl<'a, B: Batch, I: Iterator<Item = u64>> Iterator for StreamDeviceEpochs<'a, B, I> {
    type Item = StreamDeviceEpoch<'a, B>;

    fn next(&mut self) -> Option<StreamDeviceEpoch<'a, B>> {
        let epoch = self.epochs.next()?;
        Some(StreamDeviceEpoch { epoch })
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        self.epochs.size_hint()
    }
}

impl<B: Batch, I: Iterator<Item = u64>> FusedIterator for StreamDeviceEpochs<'_, B, I> {}

impl<B: Batch, I> fmt::Debug for StreamDeviceEpochs<'_, B, I> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StreamDeviceEpochs").finish_non_exhaustive()
    }
}
