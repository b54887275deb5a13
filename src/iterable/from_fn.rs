//! Sources that are functions.

use std::fmt;

use super::{IterableDataset, Shard};
use crate::error::BoxError;
use crate::rng::SampleRng;

/// Makes a source from a function that opens an iterator over an epoch's items, for one rank. The items are the samples;
/// [`map`](IterableDataset::map) changes them, on all workers.
///
/// An iterator cannot go back to where it was, so a run is resumed by pulling as many items again, and dropping them. Where that takes too
/// long, implement [`IterableDataset`]. An iterator that leaves out most of what it reads says that it goes on:
/// [`progress`](super::progress()) shows how.
///
/// # Examples
///
/// The numbers of several files, of four bytes each; each rank reads its own files. (Lines of text are [`lines`](super::lines()).)
///
/// ```
/// use pinfeed::iterable::{self, IterableDataset};
/// use pinfeed::{BoxError, DataLoader};
///
/// # let folder = tempfile::tempdir()?;
/// # let paths: Vec<_> = (0..3).map(|file| folder.path().join(file.to_string())).collect();
/// # for path in &paths { std::fs::write(path, [1.5f32, 2.5].map(f32::to_le_bytes).concat())?; }
/// let numbers = iterable::from_fn(move |_epoch, shard| {
///     let own = (0..).zip(paths.clone()).filter(move |(number, _)| shard.keeps(*number));
///     Ok(own.flat_map(|(_, path)| match std::fs::read(path) {
///         Ok(bytes) => bytes.chunks(4).map(|number| Ok(number.to_vec())).collect(),
///         Err(error) => vec![Err(error.into())],
///     }))
/// });
/// let numbers = numbers.map(|number, _| Ok(f32::from_le_bytes(number[..].try_into()?)));
/// let loader = DataLoader::iterable(numbers).batch_size(4).num_workers(2).build()?;
/// let mut batches = loader.epoch(0);
/// assert_eq!(batches.next().unwrap()?.as_slice(), [1.5, 2.5, 1.5, 2.5]);
/// # Ok::<(), BoxError>(())
/// ```
pub fn from_fn<T, I, F>(open: F) -> FromFn<F>
where
    F: Fn(u64, Shard) -> Result<I, BoxError> + Send + Sync + 'static,
    I: Iterator<Item = Result<T, BoxError>> + Send + 'static,
    T: Clone + Send + 'static,
{
    FromFn { open }
}

/// The source that [`from_fn()`] makes.
#[derive(Clone)]
pub struct FromFn<F> {
    open: F,
}

impl<F, I, T> IterableDataset for FromFn<F>
where
    F: Fn(u64, Shard) -> Result<I, BoxError> + Send + Sync + 'static,
    I: Iterator<Item = Result<T, BoxError>> + Send + 'static,
    T: Clone + Send + 'static,
{
    type Item = T;
    type Sample = T;
    type Iter = I;

    fn open(&self, epoch: u64, shard: Shard) -> Result<I, BoxError> {
        (self.open)(epoch, shard)
    }

    fn load(&self, item: T, _: &mut SampleRng) -> Result<T, BoxError> {
        Ok(item)
    }
}

impl<F> fmt::Debug for FromFn<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FromFn").finish_non_exhaustive()
    }
}
