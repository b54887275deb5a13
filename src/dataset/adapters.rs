//! Data sets from functions, and data sets changed by functions.

use std::fmt;
use std::num::NonZeroU64;

use super::{Dataset, Pass};
use crate::error::{BoxError, Result};
use crate::length::Length;
use crate::rng::SampleRng;
use crate::sampler::{Blocks, Openings};
use crate::sync::Arc;

/// Makes a data set of `len` samples from a function of the index and the sample's generator. [`FromFn::describe`]
/// names its samples in errors. `len` may be a `usize`, such as `paths.len()` ([`Length`]).
///
/// # Panics
///
/// If `len` is a negative `i32`.
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
#[track_caller]
pub fn from_fn<S, F>(len: impl Length, f: F) -> FromFn<F>
where
    S: Send + 'static,
    F: Fn(u64, &mut SampleRng) -> Result<S, BoxError> + Send + Sync + 'static,
{
    FromFn {
        len: len.samples(),
        f,
    }
}

/// The data set that [`from_fn`] makes.
///
/// # Examples
///
/// For the type of a struct's field, use a function pointer (or hold any data set as an `Arc<dyn Dataset<Sample =
/// ..>>`):
///
/// ```
/// use pinfeed::dataset::FromFn;
/// use pinfeed::{BoxError, SampleRng, from_fn};
///
/// struct Data {
///     points: FromFn<fn(u64, &mut SampleRng) -> Result<[f32; 2], BoxError>>,
/// }
///
/// let data = Data { points: from_fn(100, |_, rng| Ok([rng.f32(), rng.f32()])) };
/// # let _ = data.points;
/// ```
#[derive(Clone)]
pub struct FromFn<F> {
    len: u64,
    f: F,
}

impl<F> FromFn<F> {
    /// Sets what errors call a sample, given its index: its path, for example. `name` is called only when a sample has
    /// failed.
    ///
    /// # Examples
    ///
    /// ```
    /// use pinfeed::{DataLoader, from_fn};
    ///
    /// let paths = ["cats/1.txt", "cats/2.txt", "dogs/1.txt"];
    /// let texts = from_fn(3, move |index, _| Ok(std::fs::read_to_string(paths[index as usize])?))
    ///     .describe(move |index| paths[index as usize].to_string());
    ///
    /// let loader = DataLoader::builder(texts).build()?;
    /// let error = loader.epoch(0).nth(1).and_then(Result::err).map(|error| error.to_string());
    /// assert!(error.is_some_and(|error| error.starts_with("sample 1 (cats/2.txt)")));
    /// # Ok::<(), pinfeed::Error>(())
    /// ```
    pub fn describe<N>(self, name: N) -> Described<Self, N>
    where
        N: Fn(u64) -> String + Send + Sync + 'static,
    {
        Described {
            dataset: self,
            name,
        }
    }
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

impl<D, F> Map<D, F> {
    /// Sets what errors call a sample, given its index, instead of what the underlying data set says: see
    /// [`FromFn::describe`].
    pub fn describe<N>(self, name: N) -> Described<Self, N>
    where
        N: Fn(u64) -> String + Send + Sync + 'static,
    {
        Described {
            dataset: self,
            name,
        }
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

    fn get_many(&self, indices: &[u64], rngs: &mut [SampleRng]) -> Vec<Result<S, BoxError>> {
        let samples = self.dataset.get_many(indices, rngs).into_iter();
        let each = samples.zip(rngs);
        each.map(|(sample, rng)| (self.f)(sample?, rng)).collect()
    }

    fn at_once(&self) -> usize {
        self.dataset.at_once()
    }

    fn describe(&self, index: u64) -> Option<String> {
        self.dataset.describe(index)
    }

    fn lookahead(&self) -> usize {
        self.dataset.lookahead()
    }

    fn will_need(&self, indices: &[u64], pass: Pass) {
        self.dataset.will_need(indices, pass);
    }

    fn pass_ended(&self, pass: Pass) {
        self.dataset.pass_ended(pass);
    }

    fn blocks(&self) -> Option<Arc<Blocks>> {
        self.dataset.blocks()
    }

    fn pass_began(&self, openings: Openings, pass: Pass) {
        self.dataset.pass_began(openings, pass);
    }

    fn check_room(&self, openings: Openings, tracks: NonZeroU64, share: usize) -> Result<()> {
        self.dataset.check_room(openings, tracks, share)
    }

    fn is_registered(&self) -> bool {
        self.dataset.is_registered()
    }

    fn has_encoded_pictures(&self) -> bool {
        self.dataset.has_encoded_pictures()
    }

    fn fingerprint(&self) -> u32 {
        self.dataset.fingerprint()
    }
}

impl<D: fmt::Debug, F> fmt::Debug for Map<D, F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Map")
            .field("dataset", &self.dataset)
            .finish_non_exhaustive()
    }
}

/// A data set with names for its samples: [`FromFn::describe`] makes it.
#[derive(Clone)]
pub struct Described<D, N> {
    dataset: D,
    name: N,
}

impl<D, N> Dataset for Described<D, N>
where
    D: Dataset,
    N: Fn(u64) -> String + Send + Sync + 'static,
{
    type Sample = D::Sample;

    fn len(&self) -> u64 {
        self.dataset.len()
    }

    fn get(&self, index: u64, rng: &mut SampleRng) -> Result<D::Sample, BoxError> {
        self.dataset.get(index, rng)
    }

    fn get_many(
        &self,
        indices: &[u64],
        rngs: &mut [SampleRng],
    ) -> Vec<Result<D::Sample, BoxError>> {
        self.dataset.get_many(indices, rngs)
    }

    fn at_once(&self) -> usize {
        self.dataset.at_once()
    }

    fn describe(&self, index: u64) -> Option<String> {
        Some((self.name)(index))
    }

    fn lookahead(&self) -> usize {
        self.dataset.lookahead()
    }

    fn will_need(&self, indices: &[u64], pass: Pass) {
        self.dataset.will_need(indices, pass);
    }

    fn pass_ended(&self, pass: Pass) {
        self.dataset.pass_ended(pass);
    }

    fn blocks(&self) -> Option<Arc<Blocks>> {
        self.dataset.blocks()
    }

    fn pass_began(&self, openings: Openings, pass: Pass) {
        self.dataset.pass_began(openings, pass);
    }

    fn check_room(&self, openings: Openings, tracks: NonZeroU64, share: usize) -> Result<()> {
        self.dataset.check_room(openings, tracks, share)
    }

    fn is_registered(&self) -> bool {
        self.dataset.is_registered()
    }

    fn has_encoded_pictures(&self) -> bool {
        self.dataset.has_encoded_pictures()
    }

    fn sample_bytes(&self) -> Option<usize> {
        self.dataset.sample_bytes()
    }
}

impl<D: fmt::Debug, N> fmt::Debug for Described<D, N> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Described")
            .field("dataset", &self.dataset)
            .finish_non_exhaustive()
    }
}
