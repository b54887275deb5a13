//! Sources that are functions.

use std::fmt;

use super::{Shard, StreamSource};
use crate::error::BoxError;
use crate::rng::SampleRng;

/// Makes a source from a function that opens an iterator over an epoch's items, for one rank. The items are the samples;
/// [`map`](StreamSource::map) changes them, on all workers.
///
/// An iterator cannot go back to where it was, so a run is resumed by pulling as many items again, and dropping them. Where that takes too
/// long, implement [`StreamSource`].
///
/// # Examples
///
/// The lines of several files; each rank reads its own:
///
/// ```
/// use std::fs::File;
/// use std::io::{BufRead, BufReader};
///
/// use pinfeed::stream::{self, StreamSource};
/// use pinfeed::{BoxError, DataLoader};
///
/// # let folder = tempfile::tempdir()?;
/// # let paths: Vec<_> = (0..3).map(|file| folder.path().join(file.to_string())).collect();
/// # paths.iter().for_each(|path| std::fs::write(path, "1 2\n3 4\n").unwrap());
/// let lines = stream::from_fn(move |_epoch, shard| {
///     let mut files = Vec::new();
///     for path in (0..).zip(&paths).filter(|(number, _)| shard.keeps(*number)).map(|(_, path)| path) {
///         files.push(BufReader::new(File::open(path)?));
///     }
///     Ok(files.into_iter().flat_map(|file| file.lines().map(|line| Ok(line?))))
/// });
/// let sums = lines.map(|line: String, _| {
///     let numbers: Result<Vec<f32>, _> = line.split(' ').map(str::parse).collect();
///     Ok(numbers?.iter().sum::<f32>())
/// });
/// let loader = DataLoader::stream(sums).batch_size(4).num_workers(2).build()?;
/// let mut batches = loader.epoch(0);
/// assert_eq!(batches.next().unwrap()?.as_slice(), [3.0, 7.0, 3.0, 7.0]);
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

impl<F, I, T> StreamSource for FromFn<F>
where
    F: Fn(u64, Shard) -> Result<I, BoxError> + Send + Sync + 'static,
    I: Iterator<Item = Result<T, BoxError>> + Send + 'static,
    T: Clone + Send + 'static,
{
    type Item = T;
    type Sample = T;
    type Stream = I;

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
