//! Samples in a `Vec`, and what can be made a data set.

use super::Dataset;
use crate::error::BoxError;
use crate::rng::SampleRng;

/// Samples in memory, each of which is cloned when it is got. What takes a data set takes a `Vec` of cloneable samples, too, and makes this
/// of it ([`IntoDataset`]).
///
/// Samples that are expensive to clone can be `Arc`s, or rows of tensors ([`TensorDataset`](crate::TensorDataset)).
///
/// # Examples
///
/// ```
/// use pinfeed::dataset::VecDataset;
/// use pinfeed::{DataLoader, Dataset};
///
/// let words = vec!["pin".to_owned(), "feed".to_owned()];
/// let lengths = VecDataset::new(words).map(|word, _| Ok(word.len()));
/// let batch = DataLoader::builder(lengths).batch_size(2).build()?.epoch(0).next().unwrap()?;
/// assert_eq!(batch.as_slice(), [3, 4]);
/// # Ok::<(), pinfeed::Error>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct VecDataset<S> {
    samples: Vec<S>,
}

impl<S> VecDataset<S> {
    /// Makes a data set of these samples, in this order.
    pub fn new(samples: Vec<S>) -> VecDataset<S> {
        VecDataset { samples }
    }

    /// The samples.
    pub fn samples(&self) -> &[S] {
        &self.samples
    }
}

impl<S> From<Vec<S>> for VecDataset<S> {
    fn from(samples: Vec<S>) -> VecDataset<S> {
        VecDataset::new(samples)
    }
}

impl<S: Clone + Send + Sync + 'static> Dataset for VecDataset<S> {
    type Sample = S;

    fn len(&self) -> u64 {
        self.samples.len() as u64
    }

    fn get(&self, index: u64, _: &mut SampleRng) -> Result<S, BoxError> {
        Ok(self.samples[index as usize].clone())
    }
}

/// A data set, or what becomes one: a `Vec` of cloneable samples becomes a [`VecDataset`].
///
/// A `Vec` is no [`Dataset`] itself. If it were, `items.get(0)` and `shared.len()` of a `Vec` in an `Arc` would be the data set's methods
/// wherever that trait is imported.
///
/// # Examples
///
/// A function of your own that takes what [`DataLoader::builder`](crate::DataLoader::builder) takes:
///
/// ```
/// use pinfeed::dataset::IntoDataset;
/// use pinfeed::{DataLoader, Dataset, Tensor};
///
/// fn loader<D>(data: D) -> pinfeed::Result<DataLoader<Tensor<f32>>>
/// where
///     D: IntoDataset<Dataset: Dataset<Sample = f32>>,
/// {
///     DataLoader::builder(data.into_dataset()).batch_size(10).build()
/// }
///
/// assert_eq!(loader(vec![0.5; 30])?.len(), 3);
/// assert_eq!(loader(pinfeed::from_fn(30, |_, rng| Ok(rng.f32())))?.len(), 3);
/// # Ok::<(), pinfeed::Error>(())
/// ```
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a data set",
    label = "neither a data set nor a Vec of samples",
    note = "implement pinfeed::Dataset for it, or make one of a function, by pinfeed::from_fn",
    note = "a Vec of samples becomes one if these are Clone, Send, Sync and 'static"
)]
pub trait IntoDataset {
    /// What it becomes.
    type Dataset: Dataset;

    /// Makes the data set.
    fn into_dataset(self) -> Self::Dataset;
}

impl<D: Dataset> IntoDataset for D {
    type Dataset = D;

    fn into_dataset(self) -> D {
        self
    }
}

impl<S: Clone + Send + Sync + 'static> IntoDataset for Vec<S> {
    type Dataset = VecDataset<S>;

    fn into_dataset(self) -> VecDataset<S> {
        VecDataset::new(self)
    }
}
