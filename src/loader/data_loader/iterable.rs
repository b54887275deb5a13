//! The builder of loaders of iterables: it has the options that need no index.

use std::fmt;
use std::time::Duration;

use super::DataLoader;
use super::builder::Builder;
use crate::batch::{Arena, Batch, Collate, CollateFn, Stack};
use crate::device::Device;
use crate::error::{BoxError, Error, Result};
use crate::iterable::{IterableDataset, Shard};
use crate::loader::affinity::Affinity;
use crate::loader::inner::Order;
use crate::loader::kind::Iterable;
use crate::loader::world::World;
use crate::pipeline::{
    Batching, ENDLESS, EvenBatching, ItemNumbers, LastBatch, Learned, OnError, Options, Pipeline,
    Retry, Sharding, StreamFactory, StreamParts, Threads, Workers,
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

    /// Limits the share of an epoch's items that may be left out, as [`Builder::bad_share_at_most`]. If the end is found with too many of
    /// them, and less than `after` items came, the error comes behind the last batch.
    pub fn bad_share_at_most(mut self, share: f64, after: u64) -> Self {
        self.builder = self.builder.bad_share_at_most(share, after);
        self
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
    pub fn build<B: Batch>(self) -> Result<DataLoader<B, Iterable>>
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
        let (source, deals) = (Arc::clone(&parts), Arc::clone(&parts));
        let order = Order {
            seed: parts.seed,
            data: Box::new(move || (0, source.source.fingerprint())),
            hand_over: Some(Box::new(move |epoch, left, to| {
                deals.source.hand_over(epoch, left, to)
            })),
            owner: OnceLock::new(),
        };
        let factory = StreamFactory(parts);
        let threads = Threads::start(Pipeline::new(Box::new(factory), options))?;
        Ok(DataLoader::start(threads, order, placed))
    }
}

impl<S, C> fmt::Debug for IterableBuilder<S, C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("IterableBuilder").finish_non_exhaustive()
    }
}
