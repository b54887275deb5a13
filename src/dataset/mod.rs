//! Sources of samples: [`Dataset`], and ready-made ones.
//!
//! A data set knows how many samples it has and how to get one by its index. It knows nothing about batches, orders,
//! workers or devices.

mod adapters;
mod before_waiting;
mod blocked;
mod cacheable;
mod cached;
mod concat;
mod packed;
mod packing;
mod pass;
mod split;
mod staged;
mod subset;
mod tensors;
mod vec;
mod zip;

pub use adapters::{Described, FromFn, Map, from_fn};
pub(crate) use before_waiting::{Progress, with_progress};
pub use blocked::{BlockSource, Blocked, BlockedStats};
pub use cacheable::Cacheable;
pub use cached::{CacheStats, Cached};
pub use concat::ConcatDataset;
pub use packed::{Document, PackedDataset, document_lengths};
pub use packing::PackingStrategy;
pub(crate) use packing::{Piece, Rows};
pub use pass::Pass;
pub use split::{SplitSize, SplitSizes, random_split};
#[cfg(feature = "tokio")]
pub use staged::{AsyncStagedDataset, OnRuntime};
pub use staged::{Staged, StagedDataset, StagedStats};
pub use subset::Subset;
pub(crate) use tensors::{HostRows, StoredRows, sealed};
pub use tensors::{Table, TensorDataset, TensorRows};
pub use vec::{IntoDataset, VecDataset};
pub use zip::Zip;

use std::num::NonZeroU64;
use std::path::Path;

pub use crate::fingerprint::Fingerprint;
pub use crate::length::Length;

use crate::error::{BoxError, Error};
use crate::fingerprint::spread;
use crate::rng::SampleRng;
use crate::sampler::{Blocks, Openings};
use crate::sync::Arc;
use crate::system;
use crate::tensor::Column;
use crate::tuning::INDICES_AT_ONCE;

/// A source of samples. Several threads get samples at once, by index.
///
/// [`from_fn`] makes one from a function; [`Dataset::map`] changes the samples of another. A `Vec` of cloneable samples
/// becomes one where a data set is taken ([`IntoDataset`]); for its methods, make it a [`VecDataset`]. A `Box` or an `Arc` of a data set is a
/// data set: use `Box<dyn Dataset<Sample = S>>` to choose one at run time.
///
/// # Examples
///
/// ```
/// use pinfeed::{BoxError, Dataset, SampleRng};
///
/// struct Squares;
///
/// impl Dataset for Squares {
///     type Sample = (i64, f32);
///
///     fn len(&self) -> u64 {
///         1_000
///     }
///
///     fn get(&self, index: u64, _rng: &mut SampleRng) -> Result<(i64, f32), BoxError> {
///         Ok((index as i64, (index * index) as f32))
///     }
/// }
///
/// let noisy = Squares.map(|(x, square), rng| Ok((x, square + rng.f32())));
/// # assert_eq!(noisy.len(), 1_000);
/// ```
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a data set",
    label = "pinfeed::Dataset is not implemented for this",
    note = "implement pinfeed::Dataset for it, or make one of a function, by pinfeed::from_fn",
    note = "a Vec of samples is one inside pinfeed::dataset::VecDataset::new(..)"
)]
pub trait Dataset: Send + Sync + 'static {
    /// The type of a sample. Stacking it into batches needs [`Sample`](crate::Sample); a `collate_fn` takes anything.
    type Sample: Send + 'static;

    /// The number of samples.
    fn len(&self) -> u64;

    /// Whether there are no samples.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Gets the sample at `index`, which is below [`len`](Dataset::len). Draw random augmentation from `rng`: it is
    /// keyed by seed, epoch and the sample's position in the epoch, so its numbers do not depend on the number of
    /// workers.
    ///
    /// # Errors
    ///
    /// Any error. The loader reports it in place of the sample's batch, with the index and
    /// [`describe`](Dataset::describe). A panic is caught and reported the same way.
    fn get(&self, index: u64, rng: &mut SampleRng) -> Result<Self::Sample, BoxError>;

    /// Gets several samples in one call, for a source where that is cheaper than one call each: one query to a database, one request
    /// to a server. Returns a result for each index, in order; each sample draws from the generator beside its index.
    ///
    /// Called instead of [`get`](Dataset::get) if [`at_once`](Dataset::at_once) is above 1. Default: calls `get` for each.
    ///
    /// A call may take as long as all of its samples together ([`timeout`](crate::loader::Builder::timeout)). If it hangs, the loader
    /// cannot see at which of them, so the error names them all.
    ///
    /// If a call panics, its samples are got again, one by one and by [`get`](Dataset::get), with new generators: those that fail or panic
    /// alone are the bad ones ([`OnError`](crate::loader::OnError)), so which samples shared a call makes no difference. What the call had
    /// done before it panicked is done twice. If each of them loads alone, the panic is the batch's error with
    /// [`OnError::Fail`](crate::loader::OnError::Fail); otherwise they are used, and the log warns once in an epoch.
    ///
    /// # Examples
    ///
    /// ```
    /// use pinfeed::{BoxError, DataLoader, Dataset, SampleRng};
    ///
    /// /// Stands for a table on a server.
    /// struct Table;
    ///
    /// impl Table {
    ///     fn query(&self, ids: &[u64]) -> Vec<f32> {
    ///         ids.iter().map(|id| *id as f32 / 2.0).collect()
    ///     }
    /// }
    ///
    /// impl Dataset for Table {
    ///     type Sample = f32;
    ///
    ///     fn len(&self) -> u64 {
    ///         1_000
    ///     }
    ///
    ///     fn get(&self, index: u64, _: &mut SampleRng) -> Result<f32, BoxError> {
    ///         Ok(self.query(&[index])[0])
    ///     }
    ///
    ///     fn get_many(&self, indices: &[u64], _: &mut [SampleRng]) -> Vec<Result<f32, BoxError>> {
    ///         self.query(indices).into_iter().map(Ok).collect()
    ///     }
    ///
    ///     fn at_once(&self) -> usize {
    ///         100
    ///     }
    /// }
    ///
    /// let loader = DataLoader::builder(Table).batch_size(250).num_workers(2).build()?; // three queries for a batch
    /// let batch = loader.epoch(0).next().unwrap()?;
    /// assert_eq!(batch.as_slice()[..3], [0.0, 0.5, 1.0]);
    /// # Ok::<(), pinfeed::Error>(())
    /// ```
    fn get_many(
        &self,
        indices: &[u64],
        rngs: &mut [SampleRng],
    ) -> Vec<Result<Self::Sample, BoxError>> {
        let each = indices.iter().zip(rngs);
        each.map(|(index, rng)| self.get(*index, rng)).collect()
    }

    /// How many samples [`get_many`](Dataset::get_many) should get in one call, at most. Default: 1, and `get` is called.
    ///
    /// A worker then claims as many samples of a batch at once, also where they take long. So a batch should have several times as
    /// many, or there is nothing left for the other workers. One call may take as long as its samples together: their number times the
    /// loader's [`timeout`](crate::loader::Builder::timeout).
    fn at_once(&self) -> usize {
        1
    }

    /// How errors should describe the sample: by its path, for example. (It may be called while a `get` hangs, and should not wait for
    /// what that holds. If it does, the error is without a description.)
    fn describe(&self, index: u64) -> Option<String> {
        let _ = index;
        None
    }

    /// How many samples ahead [`will_need`](Dataset::will_need) is told what comes next. Default: 0, never. Asked once, when the loader
    /// is built.
    fn lookahead(&self) -> usize {
        0
    }

    /// Told that the samples at `indices` will be needed soon, so that a data set on a slow disk can start reading
    /// them. (For one behind a network, [`Staged`] keeps requests in flight.)
    ///
    /// Each sample of a pass is announced once, in the pass's order, before `get` is called for it: before a worker gets the first, those
    /// up to [`lookahead`](Dataset::lookahead) positions behind it, and then as many as are got, in one call for several (up to an eighth of
    /// `lookahead`, or what the worker has claimed). After an epoch's end come the first of the
    /// epoch that follows it in [`epochs`](crate::DataLoader::epochs) (with workers), as soon as the loop has come to the epoch. Each
    /// rank is told of its own samples. It is a hint, and so cannot fail: `get` may be called for a sample that was not announced (in
    /// place of a bad one, or once more), and may never be called for one that was. A sampler that panics leaves samples unannounced,
    /// too.
    ///
    /// The worker loads nothing until it returns, so start work that continues without the worker. Several workers may call it at
    /// once. (A data set with [`blocks`](Dataset::blocks) is told of no samples, in general: see [`pass_began`](Dataset::pass_began).) A panic is an error of the batch that the worker loads next, whatever [`OnError`](crate::loader::OnError) says.
    fn will_need(&self, indices: &[u64], pass: Pass) {
        let _ = (indices, pass);
    }

    /// Told that a pass is over, of which [`will_need`](Dataset::will_need) was told: its epoch was dropped, at its end or before, or will
    /// never be iterated. Samples that were announced for it, and not got, are not needed; nothing more is announced. (A worker that was
    /// busy when the epoch was dropped may still call `get`.)
    ///
    /// It is called once, by the thread that drops the epoch, or by the worker that was announcing at that moment. A panic is only logged.
    fn pass_ended(&self, pass: Pass) {
        let _ = pass;
    }

    /// Which samples are read together, if the data set reads *blocks* of them: shards, extents, row groups. A loader then takes its order
    /// from a [`BlockSampler`](crate::sampler::BlockSampler) of these blocks by default, also with
    /// [`shuffle`](crate::loader::Builder::shuffle), so that each block is read once in an epoch. Default: `None`. Asked when the loader is
    /// built.
    ///
    /// [`Blocked`] is such a data set, made of a source that reads blocks.
    fn blocks(&self) -> Option<Arc<Blocks>> {
        None
    }

    /// Told that a pass begins, and which blocks it needs in which order, if its sampler knows
    /// ([`Sampler::openings`](crate::sampler::Sampler::openings)): those of this rank or, where several devices
    /// [share](crate::loader::Epoch::split) a rank's batches, of one device, from the position on where the epoch begins. A data set that
    /// reads blocks takes the next from `openings` whenever it has room to read on.
    ///
    /// It is called once for each pass, before [`will_need`](Dataset::will_need) is told of the pass's samples, and for the pass that follows in
    /// [`epochs`](crate::DataLoader::epochs) as soon as the loop has come to the one before it. Only data sets with
    /// [`blocks`](Dataset::blocks) and a [`lookahead`](Dataset::lookahead) above 0 are told. Their calls of
    /// [`will_need`](Dataset::will_need) then have no samples but filler (rows that repeat samples at an epoch's end): they say that the pass has gone
    /// on, or that workers have loaded more of it, so that what was read for that is done with.
    ///
    /// A panic is an error of the batch that is loaded next, as in `will_need`.
    fn pass_began(&self, openings: Openings, pass: Pass) {
        let _ = (openings, pass);
    }

    /// Whether the data set has room for blocks that are open at the same time, each as [`pass_began`](Dataset::pass_began) would be told of
    /// it. Asked when a loader is built. `share`: the part of the data set's room that is for them, as 1 of so many. An error says what to
    /// set.
    #[doc(hidden)]
    fn check_room(
        &self,
        openings: Openings,
        tracks: NonZeroU64,
        share: usize,
    ) -> Result<(), Error> {
        let _ = (openings, tracks, share);
        Ok(())
    }

    /// Whether samples lie in registered memory, as far as the data set knows. If so, the epoch's destination decides
    /// whether the host or the device copies them, and loading waits until it is known.
    #[doc(hidden)]
    fn is_registered(&self) -> bool {
        false
    }

    /// Whether some samples have pictures that a device is to decode, as far as the data set knows. If so, loading waits until it is known
    /// where an epoch goes, and the devices open their decoders when the loader is built.
    #[doc(hidden)]
    fn has_encoded_pictures(&self) -> bool {
        false
    }

    /// Where the samples are rows of a table in memory, and nothing else: the table's columns. It turns the indices into those of the
    /// table's rows.
    #[doc(hidden)]
    fn columns(&self, indices: &mut [u64]) -> Option<&[Column]> {
        let _ = indices;
        None
    }

    /// Where samples are rows of tables, of which there are several that come and go (blocks of numbers): gives the rows of the first of these
    /// samples, as far as their tables are there, in runs: the columns of a table, and which of its rows come next. `give` says whether it took
    /// them. Returns how many it took; the sample behind them is to be got. `pass`: as samples' generators have it. `None`: samples are no such
    /// rows.
    #[doc(hidden)]
    fn give_rows(
        &self,
        indices: &[u64],
        pass: u32,
        give: &mut dyn FnMut(&[Column], &[u64]) -> bool,
    ) -> Option<usize> {
        let _ = (indices, pass, give);
        None
    }

    /// The size of one sample in its batch, in bytes, if the data set knows it and all samples have the same. Default:
    /// `None`.
    ///
    /// With this hint, even the first epoch that goes to a device is sent in parts, as later ones are. Without it, the
    /// first epoch discovers the size.
    fn sample_bytes(&self) -> Option<usize> {
        None
    }

    /// A fingerprint of the data set, by which [`DataLoader::resume`](crate::DataLoader::resume) tells another one. Default: of the
    /// number of samples, and of what [`describe`](Dataset::describe) says about sixteen of them.
    ///
    /// It must be the same in the next run. [`Fingerprint`] makes one.
    fn fingerprint(&self) -> u32 {
        let mut print = Fingerprint::new();
        print.add_number(self.len());
        for index in spread(self.len(), 16) {
            print.add(self.describe(index).unwrap_or_default().as_bytes());
        }
        print.finish()
    }

    /// Changes each sample with `f`, on the worker that loads it.
    fn map<S, F>(self, f: F) -> Map<Self, F>
    where
        Self: Sized,
        S: Send + 'static,
        F: Fn(Self::Sample, &mut SampleRng) -> Result<S, BoxError> + Send + Sync + 'static,
    {
        Map::new(self, f)
    }

    /// Pairs each sample with the one at the same index of another data set: pictures with labels from elsewhere, for
    /// example. (PyTorch's `StackDataset` of two.)
    ///
    /// Both draw from the sample's one generator, this data set first: augmentation of both that must agree belongs
    /// into a [`map`](Dataset::map) of the pair.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidOption`] if one is longer: nothing is left out unasked. A
    /// [`Subset`] makes it shorter.
    ///
    /// # Examples
    ///
    /// ```
    /// use pinfeed::dataset::VecDataset;
    /// use pinfeed::{DataLoader, Dataset, from_fn};
    ///
    /// let squares = from_fn(4, |index, _| Ok((index * index) as f32));
    /// let labelled = squares.zip(vec![0i64, 1, 0, 1])?;
    /// let (squares, labels) = DataLoader::builder(labelled).batch_size(4).build()?.epoch(0).next().unwrap()?;
    /// assert_eq!(squares.as_slice(), [0.0, 1.0, 4.0, 9.0]);
    /// assert_eq!(labels.as_slice(), [0, 1, 0, 1]);
    ///
    /// let error = VecDataset::new(vec![0u8; 4]).zip(vec![0u8; 5]).unwrap_err();
    /// assert!(error.to_string().contains("4 and 5 samples"));
    /// # Ok::<(), pinfeed::Error>(())
    /// ```
    fn zip<B>(self, other: impl IntoDataset<Dataset = B>) -> Result<Zip<Self, B>, Error>
    where
        Self: Sized,
        B: Dataset,
    {
        Zip::new(self, other.into_dataset())
    }

    /// Keeps samples in memory once they were loaded, up to `budget_bytes` in all.
    ///
    /// What does not fit any more is loaded each time. Nothing is evicted: where each epoch asks for all samples once,
    /// whichever are kept serve as well. A sample counts with all the memory that it owns ([`Cacheable`]) and 64 bytes
    /// for its entry. Kept tensors and `Arc`s are shared and not copied, so they are read-only: a
    /// [`map`](Dataset::map) that changes a sample makes a new one.
    ///
    /// *Put random augmentation after it*, in a `map`. A sample that draws from its generator before it is an error: the cache would
    /// repeat its first draws in each epoch. The data set must give the same sample for an index each time.
    ///
    /// Workers share the cache. Of two that ask for the same sample at the same time, both load it, and neither waits. A
    /// sample that fails is not kept, and is loaded again. To read [`Cached::stats`] beside the loader, put the cache
    /// into an `Arc`.
    ///
    /// # Examples
    ///
    /// Files are read in the first epoch; all epochs augment them:
    ///
    /// ```
    /// use std::sync::Arc;
    ///
    /// use pinfeed::{DataLoader, Dataset, from_fn};
    /// # fn read(index: u64) -> Result<Vec<u8>, pinfeed::BoxError> { Ok(vec![index as u8; 500]) }
    ///
    /// let files = from_fn(100, |index, _| Ok((read(index)?, index as i64)));
    /// let cached = Arc::new(files.cached(10 << 20)); // 10 MiB
    /// let augmented = Arc::clone(&cached).map(|(mut bytes, label), rng| {
    ///     if rng.bool(0.5) {
    ///         bytes.reverse();
    ///     }
    ///     Ok((bytes, label))
    /// });
    /// let loader = DataLoader::builder(augmented).batch_size(10).shuffle(true).num_workers(2).build()?;
    /// for epoch in loader.epochs(0..3) {
    ///     for batch in epoch {
    ///         let (bytes, labels) = batch?;
    ///         assert_eq!((&bytes.shape()[..], labels.len()), (&[10, 500][..], 10));
    ///     }
    /// }
    /// let stats = cached.stats();
    /// assert_eq!((stats.samples, stats.hits + stats.misses), (100, 300));
    /// assert!(stats.hits >= 190 && stats.bytes >= 100 * 500);
    /// # Ok::<(), pinfeed::Error>(())
    /// ```
    ///
    /// A sample that is random before it is cached:
    ///
    /// ```
    /// use pinfeed::{DataLoader, Dataset, from_fn};
    ///
    /// let noise = from_fn(100, |_, rng| Ok(rng.f32())).cached(1 << 20);
    /// let error = DataLoader::builder(noise).build()?.epoch(0).next().unwrap().unwrap_err();
    /// assert!(error.to_string().contains("draw them in a `map` after `cached`"));
    /// # Ok::<(), pinfeed::Error>(())
    /// ```
    fn cached(self, budget_bytes: usize) -> Cached<Self>
    where
        Self: Sized,
        Self::Sample: Cacheable,
    {
        Cached::new(self, budget_bytes)
    }
}

/// Gets those of several samples that a data set inside has: where it has them, if it does. The others' results stay `None`.
fn get_some<D: Dataset>(
    dataset: &D,
    inside: &[Option<u64>],
    rngs: &mut [SampleRng],
    results: &mut [Option<Result<D::Sample, BoxError>>],
) {
    let own = inside.iter().enumerate();
    let own = own.filter_map(|(at, inside)| Some((at, (*inside)?)));
    let (places, indices): (Vec<usize>, Vec<u64>) = own.unzip();
    let mut own_rngs: Vec<SampleRng> = places.iter().map(|at| rngs[*at].clone()).collect();
    let got = dataset.get_many(&indices, &mut own_rngs);
    for ((at, rng), result) in places.into_iter().zip(own_rngs).zip(got) {
        rngs[at] = rng; // later draws go on from there
        results[at] = Some(result);
    }
}

/// Tells a data set within another one what comes, if it wants to know: the indices that `inside` gives, if any.
fn pass_on<D: Dataset>(
    dataset: &D,
    indices: &[u64],
    pass: Pass,
    inside: impl Fn(u64) -> Option<u64>,
) {
    if dataset.lookahead() == 0 {
        return;
    }
    if indices.is_empty() {
        return dataset.will_need(&[], pass);
    }
    for chunk in indices.chunks(INDICES_AT_ONCE) {
        let (mut own, mut count) = ([0; INDICES_AT_ONCE], 0);
        for index in chunk.iter().filter_map(|index| inside(*index)) {
            own[count] = index;
            count += 1;
        }
        if count > 0 {
            dataset.will_need(&own[..count], pass);
        }
    }
}

/// A data set within another one became shorter.
#[cold]
fn sample_is_gone(len: u64) -> BoxError {
    format!("the data set that it is from has only {len} samples now").into()
}

/// Asks the system to read a file into its cache, without waiting for it. A data set of files calls it in
/// [`Dataset::will_need`].
///
/// It is a hint, so it reports no errors: `get` will. Linux only; elsewhere it does nothing.
///
/// # Examples
///
/// ```
/// use std::path::PathBuf;
///
/// use pinfeed::dataset::{Pass, read_ahead};
/// use pinfeed::{BoxError, Dataset, SampleRng};
///
/// struct Files(Vec<PathBuf>);
///
/// impl Dataset for Files {
///     type Sample = Vec<u8>;
///
///     fn len(&self) -> u64 {
///         self.0.len() as u64
///     }
///
///     fn get(&self, index: u64, _rng: &mut SampleRng) -> Result<Vec<u8>, BoxError> {
///         Ok(std::fs::read(&self.0[index as usize])?)
///     }
///
///     fn lookahead(&self) -> usize {
///         64
///     }
///
///     fn will_need(&self, indices: &[u64], _: Pass) {
///         indices.iter().for_each(|&index| read_ahead(&self.0[index as usize]));
///     }
/// }
/// # Files(vec!["nowhere".into()]).will_need(&[0], Pass::new(1, 0));
/// ```
pub fn read_ahead(path: impl AsRef<Path>) {
    system::read_ahead(path.as_ref());
}

/// Forwards all methods to the data set inside.
macro_rules! forwarded {
    ($($holder:ident),*) => {$(
        impl<D: Dataset + ?Sized> Dataset for $holder<D> {
            type Sample = D::Sample;

            fn len(&self) -> u64 {
                (**self).len()
            }

            fn is_empty(&self) -> bool {
                (**self).is_empty()
            }

            fn get(&self, index: u64, rng: &mut SampleRng) -> Result<D::Sample, BoxError> {
                (**self).get(index, rng)
            }

            fn get_many(
                &self,
                indices: &[u64],
                rngs: &mut [SampleRng],
            ) -> Vec<Result<D::Sample, BoxError>> {
                (**self).get_many(indices, rngs)
            }

            fn at_once(&self) -> usize {
                (**self).at_once()
            }

            fn describe(&self, index: u64) -> Option<String> {
                (**self).describe(index)
            }

            fn lookahead(&self) -> usize {
                (**self).lookahead()
            }

            fn will_need(&self, indices: &[u64], pass: Pass) {
                (**self).will_need(indices, pass);
            }

            fn pass_ended(&self, pass: Pass) {
                (**self).pass_ended(pass);
            }

            fn blocks(&self) -> Option<Arc<Blocks>> {
                (**self).blocks()
            }

            fn pass_began(&self, openings: Openings, pass: Pass) {
                (**self).pass_began(openings, pass);
            }

            fn check_room(
                &self,
                openings: Openings,
                tracks: NonZeroU64,
                share: usize,
            ) -> Result<(), Error> {
                (**self).check_room(openings, tracks, share)
            }

            fn is_registered(&self) -> bool {
                (**self).is_registered()
            }

            fn has_encoded_pictures(&self) -> bool {
                (**self).has_encoded_pictures()
            }

            fn give_rows(
                &self,
                indices: &[u64],
                pass: u32,
                give: &mut dyn FnMut(&[Column], &[u64]) -> bool,
            ) -> Option<usize> {
                (**self).give_rows(indices, pass, give)
            }

            fn columns(&self, indices: &mut [u64]) -> Option<&[Column]> {
                (**self).columns(indices)
            }

            fn sample_bytes(&self) -> Option<usize> {
                (**self).sample_bytes()
            }

            fn fingerprint(&self) -> u32 {
                (**self).fingerprint()
            }
        }
    )*};
}

forwarded!(Box, Arc);
