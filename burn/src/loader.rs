//! The loader that burn's `Learner` takes: [`Loader`].

use std::fmt;
use std::marker::PhantomData;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use burn::data::dataloader::{DataLoader as BurnLoader, DataLoaderIterator, Progress};
use burn::data::dataset::DatasetError;
use burn::tensor::Device;
use pinfeed::collate::Tensors;
use pinfeed::dataset::{IntoDataset, Subset};
use pinfeed::loader::{Epoch, WithInfo};
use pinfeed::{Batch, BoxError, DataLoader, Dataset};

use crate::error::Error;

/// Above this size, burn's CUDA backend takes account of finished copies itself, with each tensor (cubecl 0.11: `FLUSH_MIN`).
const LARGE_BYTES: usize = 10 << 20;

/// A data set, of which no more than its samples' type is known: the whole, or some of its samples.
pub type AnyDataset<S> = Arc<dyn Dataset<Sample = S>>;

/// What builds the loader of a data set, or of a part of it.
type Build<S, B> = dyn Fn(AnyDataset<S>) -> pinfeed::Result<DataLoader<B>> + Send + Sync;

/// What makes burn's batch of one.
type Convert<B, O> = dyn Fn(B, &Device) -> Result<O, BoxError> + Send + Sync;

/// A loader for burn's `Learner`, and for loops that take burn's `DataLoader`: batches of pinfeed's, each made a batch of burn's on the
/// thread that trains.
///
/// It takes the data set, a function that builds the loader of it, with all options of [`DataLoader::builder`], and one that makes burn's
/// batch `O` of a batch. Each [`iter`](BurnLoader::iter) is the next epoch: 0, then 1, and so on, whatever became of the one before. So a
/// shuffled order differs from epoch to epoch, as with burn's own loader; and unlike there, it does not depend on the number of workers.
///
/// # A part of it, and other devices
///
/// [`slice`](BurnLoader::slice), by which burn's `Learner` gives each of several devices its share, builds a loader of those samples: it
/// has as many workers of its own, and page-locked memory of its own. [`to_device`](BurnLoader::to_device) shares the loader, and counts
/// the same epochs. A slice of a data set that reads blocks gets each sample by itself ([`Subset`]).
///
/// [`num_items`](BurnLoader::num_items) is the number of samples that an epoch's batches have: without those that `drop_last` leaves out.
///
/// # Page-locked memory
///
/// With [`pin_memory`](pinfeed::loader::Builder::pin_memory) batches lie in page-locked memory, and burn copies them from there to a GPU
/// without copying them on the host. Name the device of pinfeed's on the same GPU. Burn holds the memory of two batches at most, and an
/// epoch has room for three beside those that are loaded ahead: [how long burn holds a batch](crate#how-long-burn-holds-a-batch).
///
/// # Errors
///
/// A batch that fails is an `Err` in its place: burn's `DatasetError`, whose [`source`](std::error::Error::source) is [`pinfeed::Error`]
/// (which names the sample) or this crate's [`Error`]. Burn's `Learner` ends the training with it. To go on without bad samples, set
/// [`on_error`](pinfeed::loader::Builder::on_error).
///
/// # Synchronization
///
/// Batches are loaded ahead by pinfeed's workers. Dropping the iterator in mid-epoch waits for nothing.
///
/// # Examples
///
/// ```
/// use burn::data::dataloader::DataLoader as _;
/// use burn::tensor::{Device, Int, Tensor};
/// use pinfeed::{DataLoader, from_fn};
/// use pinfeed_burn::{IntoBurn, Loader};
///
/// struct Points {
///     features: Tensor<2>,
///     classes: Tensor<1, Int>,
/// }
///
/// let points = from_fn(100, |index, rng| Ok(([index as f32, rng.f32()], index as i64 % 2)));
/// let train = Loader::new(
///     points,
///     |points| {
///         DataLoader::builder(points)
///             .batch_size(32)
///             .shuffle(true)
///             .num_workers(2)
///             .pin_memory(&pinfeed::Device::cpu()) // or Device::cuda(0)?
///             .build()
///     },
///     |(features, classes), device| {
///         Ok(Points { features: features.into_burn(device)?, classes: classes.into_burn(device)? })
///     },
/// )?
/// .with_device(Device::flex()); // the Learner sets its own
///
/// let mut seen = 0;
/// for batch in train.iter() {
///     let batch = batch?;
///     assert_eq!(batch.features.dims()[1], 2);
///     seen += batch.classes.dims()[0];
/// }
/// assert_eq!((seen, train.num_items()), (100, 100));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Loader<B: Batch, O> {
    part: Arc<dyn Part<B>>,
    loader: Result<Arc<DataLoader<B>>, Slice>,
    convert: Arc<Convert<B, O>>,
    device: Option<Device>,
    next_epoch: Arc<AtomicU64>,
}

impl<B: Batch, O: 'static> Loader<B, O> {
    /// Makes a loader of a data set. `build` gets the data set, and builds the loader; it is called again for each slice. `convert` makes
    /// burn's batch, on the thread that iterates, with the device of the loader.
    ///
    /// # Errors
    ///
    /// Those of `build`.
    pub fn new<D: Dataset>(
        dataset: impl IntoDataset<Dataset = D>,
        build: impl Fn(AnyDataset<D::Sample>) -> pinfeed::Result<DataLoader<B>> + Send + Sync + 'static,
        convert: impl Fn(B, &Device) -> Result<O, BoxError> + Send + Sync + 'static,
    ) -> pinfeed::Result<Loader<B, O>> {
        let whole = Whole {
            dataset: Arc::new(dataset.into_dataset()),
            build: Arc::new(build),
        };
        let loader = whole.loader()?;
        Ok(Loader {
            part: Arc::new(whole),
            loader: Ok(Arc::new(loader)),
            convert: Arc::new(convert),
            device: None,
            next_epoch: Arc::new(AtomicU64::new(0)),
        })
    }

    /// Sets the device that batches are made for, as burn's builder does; by default, that of `Device::default()`. A `Learner` sets its
    /// own by [`to_device`](BurnLoader::to_device).
    pub fn with_device(self, device: Device) -> Loader<B, O> {
        Loader {
            device: Some(device),
            ..self
        }
    }

    /// Sets which epoch comes next, for a training that goes on: burn's `Learner` counts from 1, so after its checkpoint of epoch 5
    /// (counted so), the next is 5 here.
    ///
    /// To go on in the middle of an epoch, write the loop yourself ([`DataLoader::resume`], [`IntoBurn`](crate::IntoBurn)): a `Learner`
    /// begins epochs from their first batch.
    pub fn starting_at(self, epoch: u64) -> Loader<B, O> {
        Loader {
            next_epoch: Arc::new(AtomicU64::new(epoch)),
            ..self
        }
    }

    /// The loader inside, for its statistics and its state. `None` for a slice whose loader could not be built, which its iterator's error
    /// says.
    pub fn loader(&self) -> Option<&Arc<DataLoader<B>>> {
        self.loader.as_ref().ok()
    }

    /// The same for another device.
    fn for_device(&self, device: &Device) -> Loader<B, O> {
        Loader {
            part: Arc::clone(&self.part),
            loader: self.loader.clone(),
            convert: Arc::clone(&self.convert),
            device: Some(device.clone()),
            next_epoch: Arc::clone(&self.next_epoch),
        }
    }

    /// A loader of some samples.
    fn of(&self, start: usize, end: usize) -> Loader<B, O> {
        let epoch = self.next_epoch.load(Ordering::Relaxed);
        let (part, loader) = match self.part.slice(start, end) {
            Ok((part, loader)) => (part, Ok(Arc::new(loader))),
            Err(error) => {
                let error = Arc::new(error);
                (Arc::clone(&self.part), Err(Slice { start, end, error }))
            }
        };
        Loader {
            part,
            loader,
            convert: Arc::clone(&self.convert),
            device: self.device.clone(),
            next_epoch: Arc::new(AtomicU64::new(epoch)),
        }
    }
}

impl<B: Batch, O: 'static> BurnLoader<O> for Loader<B, O> {
    fn iter<'a>(&'a self) -> Box<dyn DataLoaderIterator<O> + 'a> {
        let loader = match &self.loader {
            Ok(loader) => loader,
            Err(slice) => return Box::new(Failed(Some(slice.clone()), PhantomData)),
        };
        let epoch = self.next_epoch.fetch_add(1, Ordering::Relaxed);
        Box::new(Batches {
            epoch: loader.epoch(epoch).with_info(),
            convert: &*self.convert,
            device: self.device.clone().unwrap_or_default(),
            processed: 0,
            total: self.num_items(),
            is_over: false,
        })
    }

    fn num_items(&self) -> usize {
        match &self.loader {
            Ok(loader) => usize::try_from(loader.samples()).unwrap_or(usize::MAX),
            Err(slice) => slice.end.saturating_sub(slice.start),
        }
    }

    fn to_device(&self, device: &Device) -> Arc<dyn BurnLoader<O>> {
        Arc::new(self.for_device(device))
    }

    fn slice(&self, start: usize, end: usize) -> Arc<dyn BurnLoader<O>> {
        Arc::new(self.of(start, end))
    }
}

impl<B: Batch, O> fmt::Debug for Loader<B, O> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Loader")
            .field("loader", &self.loader)
            .field("device", &self.device)
            .field("next_epoch", &self.next_epoch)
            .finish_non_exhaustive()
    }
}

/// A data set, or a part of one, of which loaders are built.
trait Part<B: Batch>: Send + Sync {
    /// Some of its samples, and a loader of them.
    fn slice(&self, start: usize, end: usize)
    -> pinfeed::Result<(Arc<dyn Part<B>>, DataLoader<B>)>;
}

/// With the type of its samples, which the loader's type does not name.
struct Whole<S, B: Batch> {
    dataset: AnyDataset<S>,
    build: Arc<Build<S, B>>,
}

impl<S: Send + 'static, B: Batch> Whole<S, B> {
    fn loader(&self) -> pinfeed::Result<DataLoader<B>> {
        (self.build)(Arc::clone(&self.dataset))
    }
}

impl<S: Send + 'static, B: Batch> Part<B> for Whole<S, B> {
    fn slice(
        &self,
        start: usize,
        end: usize,
    ) -> pinfeed::Result<(Arc<dyn Part<B>>, DataLoader<B>)> {
        let samples = Subset::new(Arc::clone(&self.dataset), start as u64..end as u64)?;
        let part = Whole {
            dataset: Arc::new(samples),
            build: Arc::clone(&self.build),
        };
        let loader = part.loader()?;
        Ok((Arc::new(part), loader))
    }
}

/// A slice whose loader could not be built. Burn's `slice` returns no error, so the iterator does.
#[derive(Debug, Clone)]
struct Slice {
    start: usize,
    end: usize,
    error: Arc<pinfeed::Error>,
}

/// The batches of such a slice: one error.
struct Failed<O>(Option<Slice>, PhantomData<fn() -> O>);

/// One epoch's batches.
struct Batches<'a, B: Batch, O> {
    epoch: WithInfo<Epoch<'a, B>>,
    convert: &'a Convert<B, O>,
    device: Device,
    /// How many samples came.
    processed: usize,
    total: usize,
    is_over: bool,
}

impl<B: Batch, O> Batches<'_, B, O> {
    fn made(&self, batch: B) -> Result<O, Error> {
        let is_small = {
            let mut tensors = Tensors::default();
            batch.tensors(&mut tensors);
            tensors.sizes().all(|bytes| bytes <= LARGE_BYTES)
        };
        let made = (self.convert)(batch, &self.device).map_err(Error::Convert)?;
        // Without this, burn would hold the memory of up to 128 tensors, or of 148 MiB, and the ring would have none for the next batches.
        // Behind a large tensor, it would wait for that tensor's own copy.
        if is_small {
            self.device
                .flush()
                .map_err(|error| Error::Device(error.into()))?;
        }
        Ok(made)
    }
}

impl<B: Batch, O> Iterator for Batches<'_, B, O> {
    type Item = Result<O, DatasetError>;

    fn next(&mut self) -> Option<Result<O, DatasetError>> {
        let Some(batch) = self.epoch.next() else {
            // (So that the last batches' memory is free for another epoch, if this is the last of this one.)
            if !self.is_over
                && let Err(error) = self.device.flush()
            {
                log::warn!("burn's device could not take account of finished copies: {error}");
            }
            self.is_over = true;
            return None;
        };
        Some(match batch {
            Ok((batch, info)) => {
                self.processed += info.rows();
                self.made(batch).map_err(DatasetError::new)
            }
            Err(error) => Err(DatasetError::new(error)),
        })
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        self.epoch.size_hint()
    }
}

impl<B: Batch, O> DataLoaderIterator<O> for Batches<'_, B, O> {
    /// With the last batch it is complete, also if samples were left out: burn applies the gradients that it has accumulated then.
    fn progress(&self) -> Progress {
        let total = match self.epoch.len() {
            0 => self.processed,
            _ => self.total.max(self.processed + 1),
        };
        Progress::new(self.processed, total, Some("items".to_owned()))
    }
}

impl<O> Iterator for Failed<O> {
    type Item = Result<O, DatasetError>;

    fn next(&mut self) -> Option<Result<O, DatasetError>> {
        let Slice { start, end, error } = self.0.take()?;
        Some(Err(DatasetError::new(Error::Slice {
            start,
            end,
            source: error,
        })))
    }
}

impl<O> DataLoaderIterator<O> for Failed<O> {
    fn progress(&self) -> Progress {
        Progress::new(0, 0, Some("items".to_owned()))
    }
}
