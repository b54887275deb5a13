//! Batches of similar lengths, by windows.

use std::fmt;

use super::ask::{Asked, told};
use super::loaded::Loaded;
use super::state::{Reader, Tag, Writer, fingerprint, wrong};
use super::windows::{Stand, Windows, shuffle};
use super::{ItemIter, IterableDataset, Shard};
use crate::error::{BoxError, Error, ItemError, Result};
use crate::rng::{RngKey, SampleRng};
use crate::sync::Arc;

/// How many batches are arranged together, if the program does not say: as with torchdata's `bucketbatch`.
const USUAL_BATCHES: usize = 100;

/// A source whose items are arranged in batches of similar lengths: [`IterableDataset::bucket_by_length`] makes it, and says how.
///
/// # Examples
///
/// Of each 6 items, the two longest come together, and so do the two shortest; which pair comes first is random:
///
/// ```
/// use pinfeed::DataLoader;
/// use pinfeed::iterable::{self, IterableDataset};
///
/// let lengths = iterable::from_fn(|_, _| Ok([5i64, 90, 7, 93, 40, 41, 8, 6, 7, 8, 6, 30].map(Ok).into_iter()));
/// let buckets = lengths.bucket_by_length(2, |length| *length as usize)?.with_buffer(3);
/// let loader = DataLoader::iterable(buckets).batch_size(2).build()?;
/// for batch in loader.epoch(0).take(3) {
///     let mut pair = batch?.to_vec();
///     pair.sort();
///     assert!([[5, 7], [40, 41], [90, 93]].contains(&[pair[0], pair[1]]));
/// }
/// # Ok::<(), pinfeed::Error>(())
/// ```
pub struct BucketByLength<S, F> {
    source: Arc<S>,
    length: Arc<F>,
    batch_size: usize,
    /// How many batches are arranged together.
    batches: usize,
}

impl<S, F> BucketByLength<S, F> {
    pub(super) fn new(source: S, batch_size: usize, length: F) -> Result<BucketByLength<S, F>> {
        if batch_size == 0 {
            return Err(Error::option(
                "bucket_by_length",
                "a batch has one item at least: give it the loader's batch size",
            ));
        }
        Ok(BucketByLength {
            source: Arc::new(source),
            length: Arc::new(length),
            batch_size,
            batches: USUAL_BATCHES,
        })
    }

    /// Sets how many batches' items are arranged together. Default: 100. (With 0 and 1, items stay where they are, but for their order
    /// within a batch.)
    ///
    /// So many batches of items are held in memory, and the first batch of an epoch waits for them. The more there are, the more alike are
    /// the lengths in a batch: it has, of all lengths, one of so many slices.
    pub fn with_buffer(self, batches: usize) -> BucketByLength<S, F> {
        BucketByLength {
            batches: batches.max(1),
            ..self
        }
    }

    fn window(&self) -> usize {
        self.batch_size.saturating_mul(self.batches)
    }
}

impl<S, F> IterableDataset for BucketByLength<S, F>
where
    S: IterableDataset<Sample: Clone>,
    F: Fn(&S::Sample) -> usize + Send + Sync + 'static,
{
    type Item = S::Sample;
    type Sample = S::Sample;
    type Iter = BucketByLengthIter<S, F>;

    fn open(&self, epoch: u64, shard: Shard) -> Result<Self::Iter, BoxError> {
        let items = Loaded::open(&self.source, epoch, shard)?;
        // (Samples draw by the same seed, and windows have streams of their own.)
        let seed = items.seed();
        let items = Measured {
            items,
            length: Arc::clone(&self.length),
        };
        Ok(BucketByLengthIter {
            windows: Windows::new(items, self.window()),
            batch_size: self.batch_size,
            seed,
            epoch,
        })
    }

    fn load(&self, item: S::Sample, _: &mut SampleRng) -> Result<S::Sample, BoxError> {
        Ok(item)
    }

    fn fingerprint(&self) -> u32 {
        let numbers = [self.batch_size, self.window()].map(|number| number as u64);
        let inner = u64::from(self.source.fingerprint());
        fingerprint(Tag::Buckets, [numbers[0], numbers[1], inner])
    }
}

impl<S, F> Clone for BucketByLength<S, F> {
    fn clone(&self) -> BucketByLength<S, F> {
        BucketByLength {
            source: Arc::clone(&self.source),
            length: Arc::clone(&self.length),
            ..*self
        }
    }
}

impl<S: fmt::Debug, F> fmt::Debug for BucketByLength<S, F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BucketByLength")
            .field("source", &self.source)
            .field("batch_size", &self.batch_size)
            .field("batches", &self.batches)
            .finish_non_exhaustive()
    }
}

/// The open iterator of [`BucketByLength`].
pub struct BucketByLengthIter<S: IterableDataset<Sample: Clone>, F>
where
    F: Fn(&S::Sample) -> usize + Send + Sync + 'static,
{
    windows: Windows<Measured<S, F>, S::Sample>,
    batch_size: usize,
    seed: u64,
    epoch: u64,
}

impl<S, F> ItemIter for BucketByLengthIter<S, F>
where
    S: IterableDataset<Sample: Clone>,
    F: Fn(&S::Sample) -> usize + Send + Sync + 'static,
{
    type Item = S::Sample;

    fn next(&mut self) -> Option<Result<S::Sample, BoxError>> {
        let arrange = arranged(self.batch_size, self.seed, self.epoch);
        told(self.windows.next(arrange))
    }

    fn state(&self) -> Option<Vec<u8>> {
        let state = Writer::new(Tag::Buckets).number(self.batch_size as u64);
        self.windows.state(state)
    }

    fn seek(&mut self, state: &[u8]) -> Result<(), BoxError> {
        let mut state = Reader::new(Tag::Buckets, state)?;
        if state.number()? != self.batch_size as u64 {
            return Err(wrong());
        }
        self.windows.seek(
            Stand::read(state)?,
            arranged(self.batch_size, self.seed, self.epoch),
        )
    }
}

impl<S: IterableDataset<Sample: Clone>, F> fmt::Debug for BucketByLengthIter<S, F>
where
    F: Fn(&S::Sample) -> usize + Send + Sync + 'static,
{
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BucketByLengthIter")
            .field("batch_size", &self.batch_size)
            .finish_non_exhaustive()
    }
}

/// Items with their lengths.
struct Measured<S: IterableDataset, F> {
    items: Loaded<S>,
    length: Arc<F>,
}

impl<S, F> Measured<S, F>
where
    S: IterableDataset,
    F: Fn(&S::Sample) -> usize,
{
    fn step(&mut self) -> Asked<(usize, S::Sample)> {
        let length = &self.length;
        let measured = |sample, _: &mut SampleRng| Ok((length(&sample), sample));
        let next = self.items.next(measured)?;
        Ok(next.map(|(number, item)| item.map_err(|cause| ItemError::of(number, None, cause))))
    }
}

impl<S, F> ItemIter for Measured<S, F>
where
    S: IterableDataset,
    F: Fn(&S::Sample) -> usize + Send + Sync + 'static,
{
    type Item = (usize, S::Sample);

    fn next(&mut self) -> Option<Result<Self::Item, BoxError>> {
        told(self.step())
    }

    fn state(&self) -> Option<Vec<u8>> {
        self.items.state(Tag::Loaded)
    }

    fn seek(&mut self, state: &[u8]) -> Result<(), BoxError> {
        self.items.seek(Tag::Loaded, state)
    }
}

type Found<T> = Result<(usize, T), BoxError>;

/// The batches of a window, one behind the other, the last item first. Those of full size come in a random order, and the one that has
/// less, which only the last window of an epoch has, comes last: so all batches begin where the loader's do.
fn arranged<T>(
    batch_size: usize,
    seed: u64,
    epoch: u64,
) -> impl Fn(u64, Vec<Found<T>>) -> Vec<Result<T, BoxError>> {
    move |window, mut items| {
        let mut rng = SampleRng::for_sampler(RngKey {
            seed,
            epoch,
            position: window,
        });
        // Those of one length are not always beside the same others. What failed has no length, and is beside the shortest.
        shuffle(&mut items, &mut rng);
        items.sort_by_key(|item| item.as_ref().map_or(0, |(length, _)| *length));
        let (full, rest) = (items.len() / batch_size, items.len() % batch_size);
        // The short batch is no particular one: `drop_last` would always leave out the longest otherwise.
        let at = match rest {
            0 => 0,
            _ => batch_size * rng.below(full as u64 + 1) as usize,
        };
        let short: Vec<_> = items.drain(at..at + rest).collect();
        let mut batches = Vec::with_capacity(full);
        let mut items = items.into_iter();
        while items.len() > 0 {
            let mut batch: Vec<_> = items.by_ref().take(batch_size).collect();
            shuffle(&mut batch, &mut rng);
            batches.push(batch);
        }
        shuffle(&mut batches, &mut rng);
        batches.push(short);
        let items = batches.into_iter().flatten().rev();
        items.map(|item| item.map(|(_, sample)| sample)).collect()
    }
}
