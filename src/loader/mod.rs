//! The loader: what users build and iterate.

mod builder;
mod epoch;
mod stats;

use std::fmt;

pub use builder::Builder;
pub use epoch::{DeviceEpoch, Epoch};
pub use stats::{Limit, Stats};

use crate::batch::{Batch, Stack};
use crate::dataset::Dataset;
use crate::error::Result;
use crate::pipeline::{Live, Threads};
use crate::sync::{Arc, AtomicU64, Mutex, Ordering};

/// Loads batches of type `B`: the data set and the way of collating are erased, so it fits a struct's field.
///
/// It is `Send + Sync`; several epochs may be alive at once, and several loaders on one device. Its workers are its
/// own named threads, which end when it is dropped.
///
/// # Examples
///
/// ```
/// use pinfeed::{Batch, DataLoader, Device, from_fn};
///
/// let device = Device::cpu(); // or Device::cuda(0)?
/// let stream = device.stream()?;
/// let samples = from_fn(1_000, |index, _rng| Ok(([index as f32; 16], index as i64)));
///
/// let loader = DataLoader::builder(samples)
///     .batch_size(64)
///     .shuffle(true)
///     .seed(17)
///     .num_workers(2)
///     .pin_memory(&device)
///     .build()?;
///
/// let mut seen = 0;
/// for epoch in 0..2 {
///     for batch in loader.epoch(epoch) {
///         let (x, y) = batch?.to_device(&device, true)?;
///         let (x, y) = (x.on(&stream)?, y.on(&stream)?); // launch kernels on `stream` here
///         seen += y.len();
///         # drop(x);
///     }
/// }
/// assert_eq!(seen, 2_000);
/// # Ok::<(), pinfeed::Error>(())
/// ```
pub struct DataLoader<B: Batch> {
    threads: Threads<B>,
    /// The epoch that `for batch in &loader` takes next.
    next_epoch: AtomicU64,
    /// The epoch that was begun last, for `stats`.
    last: Mutex<Option<Live>>,
}

impl DataLoader<()> {
    /// Begins to describe a loader of the data set's samples, which are stacked ([`Stack`]) if nothing else is said.
    ///
    /// `builder` is a function of `DataLoader<()>`, so that it can be called without naming the batch's type.
    pub fn builder<D: Dataset>(dataset: D) -> Builder<D, Stack> {
        Builder::new(dataset)
    }
}

impl<B: Batch> DataLoader<B> {
    fn start(threads: Threads<B>) -> DataLoader<B> {
        DataLoader {
            threads,
            next_epoch: AtomicU64::new(0),
            last: Mutex::new(None),
        }
    }

    /// The number of batches in an epoch: floor(samples / batch_size) with `drop_last`, else ceil.
    pub fn len(&self) -> usize {
        let batches = self.threads.pipeline().options.cut().batches();
        usize::try_from(batches).unwrap_or(usize::MAX)
    }

    /// Whether an epoch has no batches.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The number of samples per batch (the last one of an epoch may have fewer).
    pub fn batch_size(&self) -> usize {
        self.threads.pipeline().options.batch_size
    }

    /// Begins epoch `epoch`: its order and its random numbers follow from the seed and this number alone.
    ///
    /// # Synchronization
    ///
    /// Returns at once; workers begin to load, `prefetch` batches ahead (where samples lie in registered memory, or
    /// batches are so large that they would travel to the device in parts, with the first `next` or `to_device`: how they are
    /// loaded depends on it). Dropping the epoch does not wait for them.
    pub fn epoch(&self, epoch: u64) -> Epoch<'_, B> {
        Epoch::begin(epoch::Loader::Borrowed(self), epoch)
    }

    /// Begins an epoch that holds its loader, for threads and structs that outlive the caller.
    pub fn owned_epoch(self: &Arc<Self>, epoch: u64) -> Epoch<'static, B> {
        Epoch::begin(epoch::Loader::Owned(Arc::clone(self)), epoch)
    }

    /// Where the time of the epoch went that was begun last; all zeros before the first.
    ///
    /// Copies and kernels that have not ended are not counted yet.
    pub fn stats(&self) -> Stats {
        let live = self.last.lock().clone();
        let options = &self.threads.pipeline().options;
        Stats::of(live.as_ref(), options)
    }

    fn next_epoch(&self) -> u64 {
        self.next_epoch.fetch_add(1, Ordering::Relaxed)
    }
}

impl<'a, B: Batch> IntoIterator for &'a DataLoader<B> {
    type Item = Result<B>;
    type IntoIter = Epoch<'a, B>;

    /// Begins the next epoch: 0 the first time, then one further each time.
    fn into_iter(self) -> Epoch<'a, B> {
        self.epoch(self.next_epoch())
    }
}

impl<B: Batch> fmt::Debug for DataLoader<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DataLoader")
            .field("options", &self.threads.pipeline().options)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
const _: () = {
    const fn assert_send_sync<T: Send + Sync>() {}
    assert_send_sync::<DataLoader<crate::tensor::Tensor<f32>>>();
    assert_send_sync::<crate::device::DeviceTensor<f32>>();
    assert_send_sync::<crate::device::Device>();
    assert_send_sync::<crate::device::Stream>();
};
