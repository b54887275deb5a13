//! Data sets both ways: [`FromBurn`] and [`ToBurn`].

use std::fmt;
use std::marker::PhantomData;
use std::sync::atomic::{AtomicU64, Ordering};

use burn::data::dataset::{Dataset as BurnDataset, DatasetError};
use pinfeed::rng::RngKey;
use pinfeed::{BoxError, Dataset, SampleRng};

use crate::error::Error;

/// A data set of burn's as one of pinfeed's: its items are the samples.
///
/// Items are rarely stacked as they are: [`map`](Dataset::map) makes samples of them, on the workers, with a generator for augmentation.
/// `I` is the item, and `E` the data set's own error, if it has one.
///
/// # Examples
///
/// ```
/// use burn::data::dataset::InMemDataset;
/// use pinfeed::{DataLoader, Dataset};
/// use pinfeed_burn::FromBurn;
///
/// #[derive(Clone, Debug)]
/// struct Clip {
///     volume: f32,
///     speaker: i64,
/// }
///
/// let clips = (0..10).map(|number| Clip { volume: number as f32, speaker: number % 2 }).collect();
/// let clips = FromBurn::new(InMemDataset::<Clip>::new(clips));
/// let samples = clips.map(|clip, rng| Ok(([clip.volume, rng.f32()], clip.speaker)));
/// let loader = DataLoader::builder(samples).batch_size(5).shuffle(true).num_workers(2).build()?;
/// for batch in &loader {
///     let (features, speakers) = batch?;
///     assert_eq!((&features.shape()[..], speakers.len()), (&[5, 2][..], 5));
/// }
/// # Ok::<(), pinfeed::Error>(())
/// ```
pub struct FromBurn<D, I, E = DatasetError> {
    dataset: D,
    at_once: usize,
    items: PhantomData<fn() -> Result<I, E>>,
}

impl<D, I, E> FromBurn<D, I, E>
where
    D: BurnDataset<I, E> + 'static,
    I: Send + 'static,
    E: std::error::Error + Send + Sync + 'static,
{
    /// Makes a data set of one of burn's, whose items are got one by one.
    pub fn new(dataset: D) -> FromBurn<D, I, E> {
        FromBurn {
            dataset,
            at_once: 1,
            items: PhantomData,
        }
    }

    /// Gets up to so many items in one call of burn's `get_many`, for data sets where that is cheaper, such as a database
    /// ([`Dataset::at_once`]). If a call fails, its items are got one by one, so that an error names its own.
    pub fn with_at_once(self, at_once: usize) -> FromBurn<D, I, E> {
        FromBurn { at_once, ..self }
    }

    /// The data set inside.
    pub fn dataset(&self) -> &D {
        &self.dataset
    }

    fn item(&self, index: u64) -> Result<I, BoxError> {
        Ok(self.dataset.get(usize::try_from(index)?)?)
    }
}

impl<D, I, E> Dataset for FromBurn<D, I, E>
where
    D: BurnDataset<I, E> + 'static,
    I: Send + 'static,
    E: std::error::Error + Send + Sync + 'static,
{
    type Sample = I;

    fn len(&self) -> u64 {
        self.dataset.len() as u64
    }

    fn get(&self, index: u64, _: &mut SampleRng) -> Result<I, BoxError> {
        self.item(index)
    }

    fn get_many(&self, indices: &[u64], _: &mut [SampleRng]) -> Vec<Result<I, BoxError>> {
        let wanted: Result<Vec<usize>, _> =
            indices.iter().map(|index| (*index).try_into()).collect();
        let items = wanted
            .ok()
            .and_then(|wanted| self.dataset.get_many(wanted).ok());
        match items.filter(|items| items.len() == indices.len()) {
            Some(items) => items.into_iter().map(Ok).collect(),
            None => indices.iter().map(|index| self.item(*index)).collect(),
        }
    }

    fn at_once(&self) -> usize {
        self.at_once
    }
}

impl<D, I, E> fmt::Debug for FromBurn<D, I, E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FromBurn")
            .field("at_once", &self.at_once)
            .finish_non_exhaustive()
    }
}

/// A data set of pinfeed's as one of burn's, for code that takes such: its samples are the items.
///
/// Burn's data sets know no epochs, and no generators. So a sample's random numbers follow from the seed, its index and the epoch that
/// [`set_epoch`](ToBurn::set_epoch) was told, which is 0 until then. For training, take a [`Loader`](crate::Loader), which
/// needs neither, and whose batches lie in page-locked memory.
///
/// # Errors
///
/// A sample that fails is burn's `DatasetError`, which names it ([`Error::Sample`]).
///
/// # Panics
///
/// Where burn's data sets do: if an index is not below the length.
///
/// # Examples
///
/// ```
/// use burn::data::dataset::Dataset;
/// use pinfeed_burn::ToBurn;
///
/// let noisy = pinfeed::from_fn(100, |index, rng| Ok((index as f32 + rng.f32(), index as i64)));
/// let items = ToBurn::new(noisy).with_seed(17);
/// let (first, label) = items.get(41)?;
/// assert_eq!((first.floor(), label, items.len()), (41.0, 41, 100));
/// assert_eq!(items.get(41)?.0, first);
/// items.set_epoch(1);
/// assert_ne!(items.get(41)?.0, first);
/// # Ok::<(), burn::data::dataset::DatasetError>(())
/// ```
pub struct ToBurn<D> {
    dataset: D,
    seed: u64,
    epoch: AtomicU64,
}

impl<D: Dataset> ToBurn<D> {
    /// Makes a data set of burn's, with the seed 0.
    pub fn new(dataset: D) -> ToBurn<D> {
        ToBurn {
            dataset,
            seed: 0,
            epoch: AtomicU64::new(0),
        }
    }

    /// Sets the seed of samples' random numbers.
    pub fn with_seed(self, seed: u64) -> ToBurn<D> {
        ToBurn { seed, ..self }
    }

    /// Says which epoch it is from now on, so that augmentation draws other numbers than in the one before.
    pub fn set_epoch(&self, epoch: u64) {
        self.epoch.store(epoch, Ordering::Relaxed);
    }

    /// The data set inside.
    pub fn dataset(&self) -> &D {
        &self.dataset
    }

    fn rng(&self, index: usize) -> SampleRng {
        SampleRng::for_sample(RngKey {
            seed: self.seed,
            epoch: self.epoch.load(Ordering::Relaxed),
            position: index as u64,
        })
    }

    fn failed(&self, index: usize, source: BoxError) -> DatasetError {
        DatasetError::new(Error::Sample {
            index,
            description: self.dataset.describe(index as u64),
            source,
        })
    }

    fn check(&self, index: usize) {
        let len = self.dataset.len();
        assert!(
            (index as u64) < len,
            "the data set has {len} samples, and none at index {index}"
        );
    }
}

impl<D: Dataset> BurnDataset<D::Sample> for ToBurn<D> {
    fn get(&self, index: usize) -> Result<D::Sample, DatasetError> {
        self.check(index);
        let sample = self.dataset.get(index as u64, &mut self.rng(index));
        sample.map_err(|error| self.failed(index, error))
    }

    fn get_many(&self, indexes: Vec<usize>) -> Result<Vec<D::Sample>, DatasetError> {
        indexes.iter().for_each(|index| self.check(*index));
        let mut rngs: Vec<_> = indexes.iter().map(|index| self.rng(*index)).collect();
        let indices: Vec<_> = indexes.iter().map(|index| *index as u64).collect();
        let samples = self.dataset.get_many(&indices, &mut rngs);
        let each = samples.into_iter().zip(indexes);
        each.map(|(sample, index)| sample.map_err(|error| self.failed(index, error)))
            .collect()
    }

    fn len(&self) -> usize {
        usize::try_from(self.dataset.len()).unwrap_or(usize::MAX)
    }
}

impl<D> fmt::Debug for ToBurn<D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ToBurn")
            .field("seed", &self.seed)
            .field("epoch", &self.epoch)
            .finish_non_exhaustive()
    }
}
