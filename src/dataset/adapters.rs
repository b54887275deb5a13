//! Data sets from functions, and data sets changed by functions.

use std::fmt;

use super::Dataset;
use crate::error::BoxError;
use crate::rng::SampleRng;

/// Makes a data set of `len` samples from a function of index and generator.
///
/// # Examples
///
/// ```
/// use pinfeed::{DataLoader, from_fn};
///
/// let parabola = from_fn(100, |index, rng| {
///     let x = rng.range(-1.0..1.0) as f32;
///     Ok((x, x * x, index as i64))
/// });
/// let loader = DataLoader::builder(parabola).batch_size(10).build()?;
/// for batch in &loader {
///     let (x, y, index) = batch?;
///     assert_eq!((x.shape()[0], y.shape()[0], index.shape()[0]), (10, 10, 10));
/// }
/// # Ok::<(), pinfeed::Error>(())
/// ```
pub fn from_fn<S, F>(len: u64, f: F) -> FromFn<F>
where
    S: Send + 'static,
    F: Fn(u64, &mut SampleRng) -> Result<S, BoxError> + Send + Sync + 'static,
{
    FromFn { len, f }
}

/// The data set that [`from_fn`] makes.
#[derive(Clone)]
pub struct FromFn<F> {
    len: u64,
    f: F,
}

impl<S, F> Dataset for FromFn<F>
where
    S: Send + 'static,
    F: Fn(u64, &mut SampleRng) -> Result<S, BoxError> + Send + Sync + 'static,
{
    type Sample = S;

    fn len(&self) -> u64 {
        self.len
    }

    fn get(&self, index: u64, rng: &mut SampleRng) -> Result<S, BoxError> {
        (self.f)(index, rng)
    }
}

impl<F> fmt::Debug for FromFn<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FromFn")
            .field("len", &self.len)
            .finish_non_exhaustive()
    }
}

/// The data set that [`Dataset::map`] makes.
#[derive(Clone)]
pub struct Map<D, F> {
    dataset: D,
    f: F,
}

impl<D, F> Map<D, F> {
    pub(super) fn new(dataset: D, f: F) -> Map<D, F> {
        Map { dataset, f }
    }
}

impl<D, S, F> Dataset for Map<D, F>
where
    D: Dataset,
    S: Send + 'static,
    F: Fn(D::Sample, &mut SampleRng) -> Result<S, BoxError> + Send + Sync + 'static,
{
    type Sample = S;

    fn len(&self) -> u64 {
        self.dataset.len()
    }

    fn get(&self, index: u64, rng: &mut SampleRng) -> Result<S, BoxError> {
        (self.f)(self.dataset.get(index, rng)?, rng)
    }

    fn describe(&self, index: u64) -> Option<String> {
        self.dataset.describe(index)
    }

    fn lookahead(&self) -> usize {
        self.dataset.lookahead()
    }

    fn will_need(&self, indices: &[u64]) {
        self.dataset.will_need(indices);
    }

    fn is_registered(&self) -> bool {
        self.dataset.is_registered()
    }
}

impl<D: fmt::Debug, F> fmt::Debug for Map<D, F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Map")
            .field("dataset", &self.dataset)
            .finish_non_exhaustive()
    }
}
