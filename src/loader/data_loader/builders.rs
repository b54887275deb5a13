//! How a loader begins: with the builder of its kind.

use super::DataLoader;
use super::builder::Builder;
use super::iterable::IterableBuilder;
use crate::batch::Stack;
use crate::dataset::{Dataset, IntoDataset};
use crate::iterable::IterableDataset;

impl DataLoader<()> {
    /// Begins to describe a loader of the data set's samples, which are stacked ([`Stack`]) unless you say otherwise. A `Vec` of
    /// cloneable samples becomes a data set here ([`IntoDataset`]).
    ///
    /// `builder` is a function of `DataLoader<()>`, so that it can be called without naming the batch's type.
    pub fn builder<D: Dataset>(dataset: impl IntoDataset<Dataset = D>) -> Builder<D, Stack> {
        Builder::new(dataset.into_dataset())
    }

    /// Begins to describe a loader of a source without a length or an index ([`iterable`](crate::iterable)), whose samples are stacked
    /// unless you say otherwise.
    pub fn iterable<S: IterableDataset>(source: S) -> IterableBuilder<S, Stack> {
        IterableBuilder::new(source)
    }
}
