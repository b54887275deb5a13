//! Sources without a length or an index: files that are read from their beginning, archives, queues, whatever comes next.
//!
//! [`lines()`] are those of text files; [`from_fn()`] makes a source from a function that opens an iterator; [`IterableDataset`] is the
//! trait. What changes a source is a method:
//! [`map`](IterableDataset::map), [`filter`](IterableDataset::filter), [`flat_map`](IterableDataset::flat_map),
//! [`shuffle`](IterableDataset::shuffle), [`chain`](IterableDataset::chain), [`take`](IterableDataset::take),
//! [`skip`](IterableDataset::skip), [`repeat`](IterableDataset::repeat),
//! [`bucket_by_length`](IterableDataset::bucket_by_length), [`pack`](IterableDataset::pack); and [`mix()`] gives items of several in
//! proportions.
//! [`DataLoader::iterable`](crate::DataLoader::iterable) loads one.
//!
//! ```
//! use pinfeed::DataLoader;
//! use pinfeed::iterable::{self, IterableDataset};
//!
//! let numbers = iterable::from_fn(|_epoch, shard| {
//!     let own = (0..1_000u64).filter(move |number| shard.keeps(*number));
//!     Ok(own.map(|number| Ok(number as f32)))
//! });
//! let loader = DataLoader::iterable(numbers.shuffle(100)).batch_size(64).num_workers(2).build()?;
//! for batch in loader.epoch(0) {
//!     let numbers = batch?;
//!     # assert!(numbers.len() <= 64);
//! }
//! # Ok::<(), pinfeed::Error>(())
//! ```
//!
//! # Items and samples
//!
//! An iterable gives *items*, one after the other: a line, a record's bytes, a path. They are pulled by one worker at a time, so keep
//! that cheap. An item is *loaded* into a sample ([`map`](IterableDataset::map), [`IterableDataset::load`]) by all workers at once: parse,
//! decode and augment there. So the order is that of the iterable, whatever the number of workers, and each sample has random numbers
//! that follow from seed, epoch, rank and position.
//!
//! Where what comes next depends on what an item *is* (`filter`, `flat_map`, `bucket_by_length`, `pack`), the item is loaded while it is
//! pulled, and what is done before is serial. So put these early in the chain, and what takes time into a `map` behind them.
//!
//! Dropping an epoch does not wait for its iterable; the worker that pulls is busy until the item that it pulls is there. Dropping the
//! loader waits for that item, and for no other. An iterable that pulls several items of another one to give one reports between two of
//! them: [`progress()`].
//!
//! # Ranks
//!
//! An iterable is opened once on each rank, with a [`Shard`], and gives that rank's items: every `ranks`-th file, or every `ranks`-th item
//! ([`Shard::keeps`]). *Only the source splits it*: a source that ignores its shard gives the same items on all ranks. The workers of a
//! rank share its one iterable, so nothing is split over them, or comes twice.
//!
//! So what comes depends on the number of ranks, unlike with data sets that have an index: each rank shuffles and packs what its shard
//! gives it, and random numbers are keyed by the rank and the item's number on it. A run can be repeated only on the same number of ranks.
//! It is resumed on as many, too, but for sources that can deal what is left of an epoch to others
//! ([`hand_over`](IterableDataset::hand_over)). Several *devices* of one process are ranks, too: an iterable's epoch goes to one device, so let each have a loader of
//! its own, whose [`World`](crate::loader::World) counts it.
//!
//! If ranks have different numbers of items, they have different numbers of batches. Where each step is a collective operation, end
//! them together: `repeat` and `take`.

mod adapters;
mod ask;
#[cfg(test)]
mod asked_again;
mod buckets;
mod fatal;
mod filter;
mod flat_map;
mod from_fn;
mod left;
mod lines;
mod loaded;
mod mix;
mod pack;
mod progress;
mod shard;
mod shuffle;
mod state;
mod windows;

pub use adapters::{
    Chain, ChainIter, Either, Map, Repeat, RepeatIter, Skip, SkipIter, Take, TakeIter,
};
pub(crate) use ask::ask;
pub use buckets::{BucketByLength, BucketByLengthIter};
pub use fatal::fatal;
pub use filter::{Filter, FilterIter};
pub use flat_map::{FlatMap, FlatMapIter};
pub use from_fn::{FromFn, from_fn};
pub use left::Left;
pub(crate) use left::behind;
pub use lines::{Line, Lines, LinesIter, lines};
pub use mix::{Mixture, MixtureIter, mix};
pub use pack::{Packed, PackedIter, Pieces};
pub use progress::progress;
pub(crate) use progress::{Watcher, watched};
pub use shard::Shard;
use shard::scramble;
pub use shuffle::{Shuffle, ShuffleIter};

use crate::dataset::Document;
use crate::error::{BoxError, Error};
use crate::length::Length;
use crate::rng::SampleRng;
use crate::sync::Arc;

/// A source of samples that has no length and no index: it is opened for an epoch, and gives one item after the other.
///
/// [`from_fn()`] makes one from a function. Implement the trait for an iterable that can [seek](ItemIter::seek), so that a run is resumed
/// without reading what came before, or for items that are loaded in a way of their own.
///
/// # Examples
///
/// Records of a file, one behind the other, each of 8 bytes. It resumes where it was:
///
/// ```
/// use std::fs::File;
/// use std::io::{BufReader, Read, Seek, SeekFrom};
/// use std::path::PathBuf;
///
/// use pinfeed::iterable::{ItemIter, Shard, IterableDataset};
/// use pinfeed::{BoxError, DataLoader, SampleRng};
///
/// struct Records(PathBuf);
///
/// struct Reading {
///     file: BufReader<File>,
///     offset: u64,
/// }
///
/// impl IterableDataset for Records {
///     type Item = [u8; 8];
///     type Sample = f64;
///     type Iter = Reading;
///
///     fn open(&self, _epoch: u64, _shard: Shard) -> Result<Reading, BoxError> {
///         Ok(Reading { file: BufReader::new(File::open(&self.0)?), offset: 0 })
///     }
///
///     fn load(&self, item: [u8; 8], _rng: &mut SampleRng) -> Result<f64, BoxError> {
///         Ok(f64::from_le_bytes(item))
///     }
/// }
///
/// impl ItemIter for Reading {
///     type Item = [u8; 8];
///
///     fn next(&mut self) -> Option<Result<[u8; 8], BoxError>> {
///         let mut record = [0; 8];
///         match self.file.read(&mut record[..1]) {
///             Ok(0) => return None,
///             Ok(_) => {}
///             Err(error) => return Some(Err(error.into())),
///         }
///         let read = self.file.read_exact(&mut record[1..]);
///         self.offset += 8;
///         Some(read.map(|()| record).map_err(BoxError::from))
///     }
///
///     fn state(&self) -> Option<Vec<u8>> {
///         Some(self.offset.to_le_bytes().to_vec())
///     }
///
///     fn seek(&mut self, state: &[u8]) -> Result<(), BoxError> {
///         self.offset = u64::from_le_bytes(state.try_into()?);
///         self.file.seek(SeekFrom::Start(self.offset))?;
///         Ok(())
///     }
/// }
///
/// # let folder = tempfile::tempdir()?;
/// # let path = folder.path().join("records");
/// # let bytes: Vec<u8> = (0..10).flat_map(|number| f64::from(number).to_le_bytes()).collect();
/// # std::fs::write(&path, bytes)?;
/// let loader = DataLoader::iterable(Records(path)).batch_size(4).build()?;
/// let batches: Vec<Vec<f64>> = loader.epoch(0).map(|batch| Ok(batch?.as_slice().to_vec())).collect::<pinfeed::Result<_>>()?;
/// assert_eq!(batches, [&[0.0, 1.0, 2.0, 3.0][..], &[4.0, 5.0, 6.0, 7.0], &[8.0, 9.0]]);
/// # Ok::<(), pinfeed::BoxError>(())
/// ```
pub trait IterableDataset: Send + Sync + 'static {
    /// What the iterable gives. It is `Clone` for when an item must be loaded again (`retry`, `OnError::Skip`); otherwise none is
    /// cloned.
    type Item: Clone + Send + 'static;

    /// What an item is loaded into.
    type Sample: Send + 'static;

    /// The iterator over the items of an epoch.
    type Iter: ItemIter<Item = Self::Item> + 'static;

    /// Opens the iterable of an epoch, at its beginning, for one rank. A worker calls it, before it pulls the epoch's first item.
    ///
    /// The items must follow from the epoch and the shard alone, if runs are to be repeated or resumed.
    ///
    /// # Errors
    ///
    /// Any error. The epoch then has one batch, which is this error.
    fn open(&self, epoch: u64, shard: Shard) -> Result<Self::Iter, BoxError>;

    /// Loads an item. Several workers do so at once. Draw random augmentation from `rng`: it is keyed by seed, epoch, and the item's
    /// position and rank.
    ///
    /// # Errors
    ///
    /// Any error. It is reported in place of the sample's batch, unless the loader leaves bad samples out
    /// ([`IterableBuilder::on_error`](crate::loader::IterableBuilder::on_error)).
    fn load(&self, item: Self::Item, rng: &mut SampleRng) -> Result<Self::Sample, BoxError>;

    /// A fingerprint of the source, by which [`DataLoader::resume`](crate::DataLoader::resume) tells another one. Default:
    /// 0, nothing is known of it.
    ///
    /// Make it of what the items are, such as the names and sizes of files. It must be the same in the next run and on the same rank.
    /// [`Fingerprint`](crate::dataset::Fingerprint) makes one. What is done to the source (shuffled, mixed, packed, ...) is added by
    /// itself, with its numbers.
    fn fingerprint(&self) -> u32 {
        0
    }

    /// Deals what ranks have left of an epoch to other ranks, as many as `to` has. Returns a state for each of these:
    /// [`seek`](ItemIter::seek) of an iterator that was opened with its shard goes on there. A rank that has nothing left is not among
    /// `left`. [`DataLoader::hand_over`](crate::DataLoader::hand_over) calls it, on each rank, which all must come to the same.
    ///
    /// A source that consists of parts (files, shards) implements it: a state says which parts are left, and how far the open ones
    /// were read, in terms that are no rank's own. `map`, `filter` and `shuffle` pass it on to their source. Default: an error, for the
    /// source is bound to its ranks.
    ///
    /// # Errors
    ///
    /// If the source is bound to its ranks, or a state is none of this source.
    fn hand_over(&self, epoch: u64, left: &[Left], to: &[Shard]) -> Result<Vec<Vec<u8>>, BoxError> {
        let _ = (epoch, left, to);
        Err(left::bound())
    }

    /// Changes each sample with `f`, on the worker that loads it.
    ///
    /// # Examples
    ///
    /// ```
    /// use pinfeed::iterable::{self, IterableDataset};
    /// use pinfeed::DataLoader;
    ///
    /// let words = iterable::from_fn(|_, _| Ok(["3", "5", "8"].map(|word| Ok(word)).into_iter()));
    /// let numbers = words.map(|word, rng| Ok(word.parse::<i64>()? + rng.range(0..1)));
    /// let batch = DataLoader::iterable(numbers).batch_size(3).build()?.epoch(0).next().unwrap()?;
    /// assert_eq!(batch.as_slice(), [3, 5, 8]);
    /// # Ok::<(), pinfeed::Error>(())
    /// ```
    fn map<T, F>(self, f: F) -> Map<Self, F>
    where
        Self: Sized,
        T: Send + 'static,
        F: Fn(Self::Sample, &mut SampleRng) -> Result<T, BoxError> + Send + Sync + 'static,
    {
        Map::new(self, f)
    }

    /// Gives only what `keeps` returns `true` for, as [`Iterator::filter`] does. What is left out is in no batch, and is counted nowhere.
    ///
    /// `keeps` sees what the source is so far: behind a `map`, what that made.
    ///
    /// *Loading*: an item is loaded while it is pulled, by one worker at a time, because batches are full whatever is left out. So let
    /// `keeps` decide early: on a line, before it is parsed, or by a field that is cheap to have. What takes time goes into a
    /// [`map`](IterableDataset::map) behind it, which all workers do. (What a `map` does to items that are left out anyway, one worker
    /// does alone.) A [`timeout`](crate::loader::IterableBuilder::timeout) holds for pulling each item, and for loading each, however
    /// many are left out one after the other.
    ///
    /// *Random numbers* that a `map` before it and `keeps` draw follow from seed, epoch, rank and the item's own number in the source;
    /// what a `map` behind it draws, from the number among those that are kept.
    ///
    /// *Errors*: an item that fails or panics while it is loaded, or `keeps` fails for, is neither kept nor left out: it is an error in its
    /// place, an [`ItemError`](crate::error::ItemError), which [`OnError::Skip`](crate::loader::OnError::Skip) leaves out.
    /// [`retry`](crate::loader::IterableBuilder::retry) does not load it again.
    ///
    /// *Resuming* is exact, and loads nothing again if the source can [`seek`](ItemIter::seek). Otherwise, all items of the epoch are
    /// loaded again up to there, for nothing else tells which were kept. So `keeps` must decide by the item and the random numbers
    /// alone. It is no part of the [fingerprint](IterableDataset::fingerprint): a run that is resumed with another one goes on with that.
    ///
    /// # Examples
    ///
    /// ```
    /// use pinfeed::iterable::{self, IterableDataset};
    /// use pinfeed::DataLoader;
    ///
    /// let lines = iterable::from_fn(|_, _| Ok(["3", "# five", "8", "13"].map(|line| Ok(line)).into_iter()));
    /// let numbers = lines
    ///     .filter(|line, _| Ok(!line.starts_with('#')))       // one worker at a time
    ///     .map(|line, _| Ok(line.parse::<i64>()?));           // all workers
    /// let batch = DataLoader::iterable(numbers).batch_size(3).build()?.epoch(0).next().unwrap()?;
    /// assert_eq!(batch.as_slice(), [3, 8, 13]);
    /// # Ok::<(), pinfeed::Error>(())
    /// ```
    ///
    /// A tenth of the items, others in each epoch: `.filter(|_, rng| Ok(rng.bool(0.1)))`.
    fn filter<F>(self, keeps: F) -> Filter<Self, F>
    where
        Self: Sized,
        Self::Sample: Clone,
        F: Fn(&Self::Sample, &mut SampleRng) -> Result<bool, BoxError> + Send + Sync + 'static,
    {
        Filter::new(self, keeps)
    }

    /// Makes any number of parts of each item, which are items to what follows, as [`Iterator::flat_map`] does: the records of a file, the
    /// sentences of a text, several views of a picture. An item of which nothing is made is left out.
    ///
    /// `f` returns an iterator, or anything that can be iterated, of results, as [`from_fn()`] does. It is asked for a part when the part's
    /// turn has come, so a large file need not be read at once. (An `Option` can be iterated: `Ok(wanted.then(|| Ok(part)))` keeps some
    /// items and changes them, as [`Iterator::filter_map`] does.)
    ///
    /// *Loading*: `f` and its iterators are called while items are pulled, by one worker at a time, because it is not known before how many
    /// parts an item has. Let them cut, and do what takes time in a [`map`](IterableDataset::map) of the parts.
    /// A [`timeout`](crate::loader::IterableBuilder::timeout) holds for each item, and for each part.
    ///
    /// *Random numbers*: what `f` draws follows from seed, epoch, rank and the item's own number in the source. (An iterator that draws
    /// takes a clone of the generator along.) What a `map` of the parts draws, follows from the number of the part among all of this rank.
    ///
    /// *Errors* are in their places, as [`ItemError`](crate::error::ItemError)s, which say which item and which part. If `f` fails or
    /// panics, the item has failed. If its iterator gives an error, that part has failed, and the iterator goes on; if it panics, the item
    /// ends there. [`OnError::Skip`](crate::loader::OnError::Skip) leaves out what failed; [`retry`](crate::loader::IterableBuilder::retry)
    /// does not try it again.
    ///
    /// *Resuming* is exact, in the middle of an item, too: if the source can [`seek`](ItemIter::seek), that one item is loaded again, and
    /// its parts up to there are dropped. Otherwise, all are. So parts must follow from the item and the random numbers alone.
    ///
    /// # Examples
    ///
    /// ```
    /// use pinfeed::iterable::{self, IterableDataset};
    /// use pinfeed::DataLoader;
    ///
    /// let texts = iterable::from_fn(|_, _| Ok(["to be or not", "", "to be"].map(|text| Ok(text)).into_iter()));
    /// let words = texts.flat_map(|text, _rng| Ok(text.split_whitespace().map(Ok)));
    /// let lengths = words.map(|word, _| Ok(word.len() as i64));
    /// let batch = DataLoader::iterable(lengths).batch_size(9).build()?.epoch(0).next().unwrap()?;
    /// assert_eq!(batch.as_slice(), [2, 2, 2, 3, 2, 2]);
    /// # Ok::<(), pinfeed::Error>(())
    /// ```
    fn flat_map<I, T, F>(self, f: F) -> FlatMap<Self, F>
    where
        Self: Sized,
        F: Fn(Self::Sample, &mut SampleRng) -> Result<I, BoxError> + Send + Sync + 'static,
        I: IntoIterator<Item = Result<T, BoxError>, IntoIter: Send + 'static> + 'static,
        T: Clone + Send + 'static,
    {
        FlatMap::new(self, f)
    }

    /// Gives items in a random order within windows of `buffer_size`: the first so many items of this rank in a random order, then the
    /// next so many, and so on. The order follows from the loader's seed, epoch and rank. (With 0 and 1, it is the iterable's.)
    ///
    /// While one window is given out, the next is filled, an item for each item given: so no more than `buffer_size` items are held,
    /// and after the first window no pull takes longer than another. (The first one can be interrupted, and does not count as one item for
    /// the [`timeout`](crate::loader::IterableBuilder::timeout): each of its items has its own.)
    ///
    /// It is *not* the buffer of `tf.data` or WebDataset, which give out a random item of the buffer and put the next of the iterable in
    /// its place: there, an item may stay in the buffer for long, and no state says what is in it. An item moves by less than two
    /// windows here, and a run resumes exactly: it reads at most two windows again, and loads none of them. To mix further than that,
    /// choose a larger buffer (items are not loaded yet, so they may be small), and change the order of files with the epoch.
    ///
    /// # Examples
    ///
    /// ```
    /// use pinfeed::iterable::{self, IterableDataset};
    /// use pinfeed::DataLoader;
    ///
    /// let numbers = iterable::from_fn(|_, _| Ok((0..100i64).map(Ok)));
    /// let loader = DataLoader::iterable(numbers.shuffle(10)).batch_size(10).seed(17).build()?;
    /// for (number, batch) in loader.epoch(0).enumerate() {
    ///     let mut window = batch?.as_slice().to_vec();
    ///     window.sort();
    ///     assert!(window.iter().copied().eq(number as i64 * 10..number as i64 * 10 + 10));
    /// }
    /// # Ok::<(), pinfeed::Error>(())
    /// ```
    fn shuffle(self, buffer_size: usize) -> Shuffle<Self>
    where
        Self: Sized,
    {
        Shuffle::new(self, buffer_size)
    }

    /// Arranges items so that batches have items of similar lengths, which are padded little: the bucketing of `torchtext` and `torchdata`.
    ///
    /// The items of 100 batches ([`with_buffer`](BucketByLength::with_buffer) sets another number) are sorted by length, cut into groups of
    /// `batch_size`, and given out group by group, in a random order; then the next so many. The order follows from the loader's seed,
    /// epoch and rank. Only the epoch's last group may be smaller, and it comes last.
    ///
    /// `batch_size` is that of the loader, and the groups are its batches if nothing behind this changes where they begin: `map` does not.
    /// A `shuffle`, `filter`, `flat_map`, `mix` or `skip` belongs before it. So does `repeat`: behind this, each pass would
    /// end with a smaller group. (With other batch sizes, nothing is lost but what it is for.)
    ///
    /// `length` says how long a sample is: any measure that its padded size grows with, such as the bytes of a text. So a tokeniser
    /// need not run first: `.bucket_by_length(32, |text| text.len())?.map(tokenise)` runs it on all workers.
    ///
    /// *Why groups of one size*: it is the loader that makes batches, so it also knows which of them a checkpoint has seen. `tf.data`'s
    /// `bucket_by_sequence_length` has buckets between fixed boundaries, each with a batch size of its own, so that long items do not need
    /// more memory than short ones; what a bucket of rare lengths has may have come long ago, and no small state says what. Where each
    /// batch is to have as many tokens as another, [`pack`](IterableDataset::pack) documents; data sets with an index have a
    /// [`TokenBatchSampler`](crate::sampler::TokenBatchSampler).
    ///
    /// *Ranks*: each arranges what its shard gives it, so at one step, ranks have batches of different lengths.
    ///
    /// *Loading*: items are loaded while they are pulled, by one worker at a time, as by [`filter`](IterableDataset::filter). An item that
    /// fails to load, or panics while it is loaded or measured, is an error in one of the batches, an
    /// [`ItemError`](crate::error::ItemError).
    ///
    /// *Memory*: `batch_size` times 100 samples. While the batches of one buffer are given out, the next is filled, an item for each item
    /// given.
    ///
    /// *Resuming* is exact, and reads two buffers again at most, if the source can [`seek`](ItemIter::seek). Otherwise, all items of the
    /// epoch are loaded again up to there.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidOption`] if `batch_size` is 0.
    ///
    /// # Examples
    ///
    /// ```
    /// use pinfeed::iterable::{self, IterableDataset};
    /// use pinfeed::{DataLoader, Padded};
    ///
    /// // Of 1 to 100 letters each.
    /// let texts = iterable::from_fn(|_, _| Ok((0..3_200usize).map(|number| Ok("a".repeat(1 + 37 * number % 100)))));
    /// let tokens = texts
    ///     .shuffle(1_000)
    ///     .bucket_by_length(32, |text| text.len())?
    ///     .map(|text, _| Ok(Padded::from(text.into_bytes())));
    /// let loader = DataLoader::iterable(tokens).batch_size(32).num_workers(2).build()?;
    /// for batch in loader.epoch(0) {
    ///     let batch = batch?;
    ///     let (shortest, longest) = (batch.lengths.as_slice().iter().min(), batch.lengths.as_slice().iter().max());
    ///     assert!(shortest.zip(longest).is_some_and(|(shortest, longest)| longest - shortest <= 1));
    /// }
    /// # Ok::<(), pinfeed::Error>(())
    /// ```
    fn bucket_by_length<F>(
        self,
        batch_size: usize,
        length: F,
    ) -> Result<BucketByLength<Self, F>, Error>
    where
        Self: Sized,
        Self::Sample: Clone,
        F: Fn(&Self::Sample) -> usize + Send + Sync + 'static,
    {
        BucketByLength::new(self, batch_size, length)
    }

    /// Packs documents into rows of `n` tokens: [`PackedRow`](crate::packed::PackedRow)s, which make a
    /// [`PackedBatch`](crate::packed::PackedBatch) with position ids, segment ids and `cu_seqlens`.
    ///
    /// One document behind the other is cut into rows, and what does not end in its row goes on in the next; or documents stay whole, by
    /// [`Packed::with_best_fit`]. Each token is in one row, once, and documents without tokens are in none. What separates documents (an
    /// end-of-text token) belongs to them. The last row of the iterable is filled with [padding](Packed::with_padding).
    ///
    /// *Order*: to what follows, a row is an item like any other. `.shuffle(..)` before `pack` shuffles documents, and after it rows;
    /// `.take(..)` after it counts rows; and `.repeat()` before it packs across passes, without padding at their ends.
    ///
    /// *Ranks*: each packs what its shard gives it, so ranks have different numbers of rows. `.repeat()` before and `.take(..)` after
    /// make them equal.
    ///
    /// *Loading*: documents are loaded while they are pulled, by one worker at a time, because a row begins where the one before it ends.
    /// So let the source give tokens that are there, or cheap to make, and do what takes time in a [`map`](IterableDataset::map) of the
    /// rows. A tokeniser that takes its time can have a loader of its own, whose batches are the source
    /// (`tests/programs/tokenised_ahead.rs`). A document draws random numbers by seed, epoch, rank and its own number. A
    /// [`timeout`](crate::loader::IterableBuilder::timeout) holds for pulling each item, and for loading each document.
    ///
    /// *Errors*: a document that fails, or panics while it is loaded, is an error of its own, a
    /// [`DocumentError`](crate::error::DocumentError) in place of a row. No other document is lost, and
    /// [`OnError::Skip`](crate::loader::OnError::Skip) leaves it out. [`retry`](crate::loader::IterableBuilder::retry) does not load it
    /// again.
    ///
    /// *Resuming* is exact. The state is that of the source before the first document that is still needed, and a few numbers. `n` and
    /// the buffer must be those of the run that was interrupted. Where the source cannot [`seek`](ItemIter::seek), all documents of the
    /// epoch are loaded again up to there, for nothing else tells how long they are.
    ///
    /// *Memory*: the documents of the rows that are loaded ahead, and one more; [`with_best_fit`](Packed::with_best_fit) holds a buffer of
    /// them.
    ///
    /// To pack something along with the tokens (such as which of them are learned), make it a part of them, for instance their sign, and
    /// separate it in a [`map`](IterableDataset::map) of the rows.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidOption`] if `n` is 0 or above 2³¹ - 1.
    ///
    /// # Examples
    ///
    /// ```
    /// use pinfeed::iterable::{self, IterableDataset};
    /// use pinfeed::DataLoader;
    ///
    /// const END: u16 = 0;
    /// let texts = iterable::from_fn(|_, shard| {
    ///     let own = (0..100u16).filter(move |number| shard.keeps(u64::from(*number)));
    ///     Ok(own.map(|number| Ok((1..number).chain([END]).collect::<Vec<_>>())))
    /// });
    /// let loader = DataLoader::iterable(texts.shuffle(50).pack(64)?).batch_size(8).drop_last(true).build()?;
    /// for batch in loader.epoch(0) {
    ///     let batch = batch?;
    ///     assert_eq!(batch.tokens.shape()[..], [8, 64]);
    ///     assert_eq!(batch.cu_seqlens.as_slice().last(), Some(&512));
    /// }
    /// # Ok::<(), pinfeed::Error>(())
    /// ```
    fn pack(self, n: usize) -> Result<Packed<Self>, Error>
    where
        Self: Sized,
        Self::Sample: Document,
    {
        Packed::new(self, n)
    }

    /// Gives the items of this source and then those of another, which is opened then.
    ///
    /// # Examples
    ///
    /// ```
    /// use pinfeed::iterable::{self, IterableDataset};
    /// use pinfeed::DataLoader;
    ///
    /// let numbers = |range: std::ops::Range<i64>| iterable::from_fn(move |_, _| Ok(range.clone().map(Ok)));
    /// let both = numbers(0..2).chain(numbers(10..12).map(|number, _| Ok(-number)));
    /// let batch = DataLoader::iterable(both).batch_size(9).build()?.epoch(0).next().unwrap()?;
    /// assert_eq!(batch.as_slice(), [0, 1, -10, -11]);
    /// # Ok::<(), pinfeed::Error>(())
    /// ```
    fn chain<O>(self, other: O) -> Chain<Self, O>
    where
        Self: Sized,
        O: IterableDataset<Sample = Self::Sample>,
    {
        Chain::new(self, other)
    }

    /// Gives the first `count` items of each rank. `count` may be a `usize` ([`Length`]).
    ///
    /// # Panics
    ///
    /// If `count` is a negative `i32`.
    #[track_caller]
    fn take(self, count: impl Length) -> Take<Self>
    where
        Self: Sized,
    {
        Take::new(self, count.samples())
    }

    /// Leaves out the first `count` items of each rank. They are pulled, and not loaded. `count` may be a `usize` ([`Length`]).
    ///
    /// # Panics
    ///
    /// If `count` is a negative `i32`.
    #[track_caller]
    fn skip(self, count: impl Length) -> Skip<Self>
    where
        Self: Sized,
    {
        Skip::new(self, count.samples())
    }

    /// Opens the source again at its end, without end. An epoch of it is infinite: leave it by `break`, or end it by
    /// [`take`](IterableDataset::take).
    ///
    /// Pass `p` of epoch `e` is opened as epoch `e + p`, so that a source which has another order in each epoch has another one in each
    /// pass. A pass without items ends the iterable.
    ///
    /// # Examples
    ///
    /// ```
    /// use pinfeed::iterable::{self, IterableDataset};
    /// use pinfeed::DataLoader;
    ///
    /// let numbers = iterable::from_fn(|epoch, _| Ok((0..3).map(move |number| Ok(10 * epoch as i64 + number))));
    /// let loader = DataLoader::iterable(numbers.repeat().take(8)).batch_size(8).build()?;
    /// let batch = loader.epoch(0).next().unwrap()?;
    /// assert_eq!(batch.as_slice(), [0, 1, 2, 10, 11, 12, 20, 21]);
    /// # Ok::<(), pinfeed::Error>(())
    /// ```
    fn repeat(self) -> Repeat<Self>
    where
        Self: Sized,
    {
        Repeat::new(self, None)
    }

    /// Gives the source `times` times. Pass `p` of epoch `e` is opened as epoch `e * times + p`.
    fn repeat_n(self, times: u64) -> Repeat<Self>
    where
        Self: Sized,
    {
        Repeat::new(self, Some(times))
    }
}

/// An iterator over the items of an iterable that was opened for an epoch. One worker at a time calls it.
///
/// Any iterator of `Result<T, BoxError>` that is `Send` is one. It cannot [`seek`](ItemIter::seek); [`IterableDataset`] shows one that
/// can.
///
/// # Examples
///
/// ```
/// use pinfeed::BoxError;
/// use pinfeed::iterable::ItemIter;
///
/// fn count(mut items: impl ItemIter<Item = String>) -> Result<usize, BoxError> {
///     let mut count = 0;
///     while let Some(item) = items.next() {
///         item?;
///         count += 1;
///     }
///     Ok(count)
/// }
/// assert_eq!(count(["a", "b"].map(|line| Ok(line.to_string())).into_iter())?, 2);
/// # Ok::<(), BoxError>(())
/// ```
pub trait ItemIter: Send {
    /// What it gives.
    type Item;

    /// Gives the next item; `None` at the end, after which it is not called again. An error is that of one item, and the iterator goes on.
    /// (If nothing can be behind the error, make it a [`fatal()`] one.) A panic ends it.
    ///
    /// Call [`progress()`] between two items of another iterator, if it takes several of them to give one.
    fn next(&mut self) -> Option<Result<Self::Item, BoxError>>;

    /// Where the iterator stands: by this, [`seek`](ItemIter::seek) goes to the item that comes next. It is asked for with each batch, and
    /// saved in the loader's state, so a few bytes are best. Default: `None`, it cannot seek.
    fn state(&self) -> Option<Vec<u8>> {
        None
    }

    /// Goes to the [`state`](ItemIter::state) of another iterator of the same epoch and shard. It is called before the first item. Without
    /// it, a run is resumed by pulling as many items as were given out, and dropping them; none is loaded.
    ///
    /// # Errors
    ///
    /// Any error, for instance if the state is none of this source. The epoch then has one batch, which is this error.
    fn seek(&mut self, state: &[u8]) -> Result<(), BoxError> {
        let _ = state;
        Err("this iterable has no state to go to".into())
    }
}

impl<T, I: Iterator<Item = Result<T, BoxError>> + Send> ItemIter for I {
    type Item = T;

    fn next(&mut self) -> Option<Result<T, BoxError>> {
        Iterator::next(self)
    }
}

impl<S: IterableDataset> IterableDataset for Arc<S> {
    type Item = S::Item;
    type Sample = S::Sample;
    type Iter = S::Iter;

    fn open(&self, epoch: u64, shard: Shard) -> Result<S::Iter, BoxError> {
        (**self).open(epoch, shard)
    }

    fn load(&self, item: S::Item, rng: &mut SampleRng) -> Result<S::Sample, BoxError> {
        (**self).load(item, rng)
    }

    fn fingerprint(&self) -> u32 {
        (**self).fingerprint()
    }

    fn hand_over(&self, epoch: u64, left: &[Left], to: &[Shard]) -> Result<Vec<Vec<u8>>, BoxError> {
        (**self).hand_over(epoch, left, to)
    }
}
