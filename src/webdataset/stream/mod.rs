//! Shards that are read from their front, one after the other: [`WebStream`].
//!
//! | file | what it is |
//! | --- | --- |
//! | `standing` | what a rank has left, as bytes, and how it is dealt to other ranks |
//! | `iter` | the open stream: shards in turn |
//! | `reader` | a shard, cut into samples by a thread of its own |
//! | `front`, `unpack`, `chunks` | its archive, decompressed, from ranges of its object |
//! | `ahead` | what a thread makes ahead of another |

mod ahead;
mod chunks;
mod front;
mod iter;
mod reader;
mod sample;
mod standing;
mod unpack;

pub use self::iter::WebStreamIter;
pub use self::sample::StreamedSample;

use std::fmt;

use self::standing::{Standing, wrong};
use super::dataset::Decode;
use super::error::ShardError;
use super::fields::Fields;
use super::sample::WebSample;
use crate::dataset::Fingerprint;
use crate::error::BoxError;
use crate::iterable::{IterableDataset, Left, Shard};
use crate::rng::{RngKey, SampleRng};
use crate::store::{Object, Store};
use crate::sync::Arc;

/// How many shards a rank reads at a time.
const OPEN_SHARDS: usize = 4;

/// The samples of tar shards, one shard after the other, without an index: an [`IterableDataset`]. Shards may be compressed, by gzip or
/// Zstandard, whatever their names are. [`WebDatasetBuilder::stream`] makes it.
///
/// Take it for shards that are compressed, or are read once only. Where an index can be had, a [`WebDataset`](super::WebDataset) mixes
/// better, and ranks have equally many batches.
///
/// *Ranks*: each epoch has the shards in another order, which follows from seed and epoch, and each rank of `n` has every `n`-th of it. A
/// rank reads [four](WebStream::with_open_shards) at a time, and takes samples from them in turn. So ranks have different numbers of
/// batches, because shards have different numbers of samples.
///
/// *Shuffling*: [`shuffle`](IterableDataset::shuffle), by windows, behind it. It comes first in the chain, so that a run can go on with
/// other ranks.
///
/// *Resuming* is exact, also on another number of ranks: [`DataLoader::hand_over`](crate::DataLoader::hand_over). A shard that is
/// compressed is decompressed from its front again, and one that is not is read from where its next sample begins.
///
/// *Memory*: for each open shard two ranges of 4 MiB ([`extent_bytes`](super::WebDatasetBuilder::extent_bytes)), 8 MiB of samples that
/// are ahead and one more sample of any size, the keys that were read of it, and what its decoder keeps: 32 KiB for gzip; for Zstandard
/// the window that its writer chose, up to 128 MiB (`zstd -3`: 2 MiB; `zstd -19`: 8 MiB; `zstd --ultra -22`: 128 MiB). Two threads of its own read and
/// decompress it, whatever the number of workers.
///
/// # Errors
///
/// The stream goes on behind each of these, and [`OnError::Skip`](crate::loader::OnError::Skip) leaves them out. They are
/// [`ShardError`]s, which name shard and key; but what a store says that names the object itself stays its own error.
///
/// - A sample that lacks a field, has one twice, or one of a sparse member (`tar --sparse`), or has the key of another before it in its shard, is an
///   error in its place.
/// - A shard that cannot be read any further (cut off, damaged, a wrong checksum, gone from its store) is one error, in place of all that
///   would follow in it. Samples before that have come.
/// - A store that does not answer for now (its error is [`Temporary`](crate::error::Temporary), or one of the system's that come and go)
///   costs no sample. There is an error in place of the next batch, and the batch behind that has the samples that it would have had: it asks
///   again, at the same place. Batches, random numbers and states are those of a run that met no error, and a run that stops at the error
///   resumes exactly. With [`OnError::Skip`](crate::loader::OnError::Skip) it is asked again at once, as often as the quota
///   says, and sixteen times in a row at most.
///
/// *A store that stays away* is asked again for each batch, without a limit of ours: each is an error, after as long as the store itself
/// tries. So a loop that logs errors and goes on does not end; let it stop at the first one, or count them.
///
/// [`ShardError::find`] finds a shard's error in a batch's.
///
/// If there are fewer shards than ranks, the stream does not open.
///
/// Keys are compared within what was read of a shard: a run that goes on in the middle of one does not know those before that.
///
/// # Examples
///
/// ```
/// use pinfeed::iterable::IterableDataset;
/// use pinfeed::webdataset::WebDataset;
/// use pinfeed::{DataLoader, Padded};
///
/// # let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fixtures/shards");
/// let shards = WebDataset::open(&format!("{folder}/train.tar.gz"))?; // or "s3://bucket/train-{000000..000146}.tar.gz"
/// let samples = shards.field("png").field("cls").stream(|sample, _rng| {
///     let picture = Padded::from(sample.field("png")?.to_vec()); // or decoded here
///     Ok((picture, sample.number::<i64>("cls")?))
/// })?;
/// let loader = DataLoader::iterable(samples.shuffle(1_000)).batch_size(3).num_workers(2).build()?;
/// for batch in loader.epoch(0) {
///     let (_pictures, classes) = batch?;
///     assert_eq!(classes.shape()[..], [3]);
/// }
/// # Ok::<(), pinfeed::BoxError>(())
/// ```
///
/// [`WebDatasetBuilder::stream`]: super::WebDatasetBuilder::stream
pub struct WebStream<T> {
    shards: Arc<Shards>,
    decode: Arc<Decode<T>>,
    open_shards: usize,
    in_random_order: bool,
}

/// What is read, and how.
pub(super) struct Shards {
    pub(super) store: Arc<dyn Store>,
    pub(super) list: Vec<StreamedShard>,
    pub(super) wanted: Fields,
    /// How much is read at once.
    pub(super) range_bytes: u64,
}

pub(super) struct StreamedShard {
    pub(super) object: Object,
    pub(super) key: Arc<str>,
    /// Where it is, for errors.
    pub(super) place: Arc<str>,
    /// How many samples an index says it has, and where that is.
    pub(super) expected: Option<(String, u64)>,
}

impl<T> WebStream<T> {
    pub(super) fn new<F>(shards: Shards, decode: F) -> WebStream<T>
    where
        F: Fn(WebSample<'_>, &mut SampleRng) -> Result<T, BoxError> + Send + Sync + 'static,
    {
        WebStream {
            shards: Arc::new(shards),
            decode: Arc::new(decode),
            open_shards: OPEN_SHARDS,
            in_random_order: true,
        }
    }

    /// Sets how many shards a rank reads at a time, 1 at least; 4 by default. Samples are taken from them in turn, so it decides the order.
    /// More of them mix better and are decompressed by more threads; each takes memory.
    ///
    /// # Panics
    ///
    /// If `count` is 0.
    #[track_caller]
    pub fn with_open_shards(self, count: usize) -> WebStream<T> {
        assert!(count > 0, "a rank reads one shard at a time at least");
        WebStream {
            open_shards: count,
            ..self
        }
    }

    /// Sets whether each epoch has the shards in an order of its own, drawn from the loader's seed; yes by default. Otherwise it is that of
    /// the pattern, and with one [open shard](WebStream::with_open_shards), samples come as they lie there.
    pub fn with_shuffled_shards(self, shuffled: bool) -> WebStream<T> {
        WebStream {
            in_random_order: shuffled,
            ..self
        }
    }

    /// The shards' keys in their store, in the order of the pattern.
    pub fn shards(&self) -> impl Iterator<Item = &str> {
        self.shards.list.iter().map(|shard| &*shard.key)
    }

    /// Which shard is at each place of an epoch's order. It is the same on all ranks.
    fn order(&self, epoch: u64, seed: u64) -> Vec<u32> {
        let mut order: Vec<u32> = (0..self.shards.list.len() as u32).collect();
        if self.in_random_order {
            let mut rng = SampleRng::for_sampler(RngKey {
                seed,
                epoch,
                position: 0,
            });
            for left in (2..=order.len()).rev() {
                let chosen = rng.below(left as u64) as usize;
                order.swap(left - 1, chosen);
            }
        }
        order
    }
}

impl<T: Send + 'static> IterableDataset for WebStream<T> {
    type Item = StreamedSample;
    type Sample = T;
    type Iter = WebStreamIter;

    fn open(&self, epoch: u64, shard: Shard) -> Result<WebStreamIter, BoxError> {
        let (shards, ranks) = (self.shards.list.len() as u64, shard.ranks());
        if shards < ranks {
            return Err(format!(
                "there are {shards} shards for {ranks} ranks, and each shard goes to one rank: repack the data into at least {ranks} shards"
            )
            .into());
        }
        let standing = Standing::fresh(shards, shard.rank(), ranks);
        let order = self.order(epoch, shard.seed());
        Ok(WebStreamIter::new(
            Arc::clone(&self.shards),
            order,
            self.open_shards,
            standing,
        ))
    }

    fn load(&self, item: StreamedSample, rng: &mut SampleRng) -> Result<T, BoxError> {
        (self.decode)(WebSample(&item), rng).map_err(|cause| InSample::of(&item, cause))
    }

    /// Of the shards' names and lengths, their order, how many are open at a time, and which samples are left out.
    fn fingerprint(&self) -> u32 {
        let mut print = Fingerprint::new();
        print.add(b"shards");
        print.add_number(self.open_shards as u64);
        print.add_number(u64::from(self.in_random_order));
        for shard in &self.shards.list {
            print.add(shard.key.as_bytes());
            print.add_number(shard.object.bytes);
        }
        let wanted = &self.shards.wanted;
        print.add_number(u64::from(wanted.skip_incomplete));
        for names in wanted.required().filter(|_| wanted.skip_incomplete) {
            print.add(names.as_bytes());
        }
        print.finish()
    }

    fn hand_over(&self, _: u64, left: &[Left], to: &[Shard]) -> Result<Vec<Vec<u8>>, BoxError> {
        let shards = self.shards.list.len() as u64;
        let standing = |left: &Left| match left.state() {
            Some(state) => Standing::read(state, shards, self.open_shards).ok_or_else(wrong),
            None => Ok(Standing::fresh(
                shards,
                left.shard().rank(),
                left.shard().ranks(),
            )),
        };
        let left: Result<Vec<Standing>, BoxError> = left.iter().map(standing).collect();
        let dealt = Standing::deal(&left?, to.len() as u64).ok_or(
            "two of them have the same shard left, so they are not of one step: take those that all ranks saved at the same one",
        )?;
        Ok(dealt.iter().map(Standing::write).collect())
    }
}

impl<T> Clone for WebStream<T> {
    fn clone(&self) -> WebStream<T> {
        WebStream {
            shards: Arc::clone(&self.shards),
            decode: Arc::clone(&self.decode),
            ..*self
        }
    }
}

impl<T> fmt::Debug for WebStream<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WebStream")
            .field("store", &self.shards.store)
            .field("shards", &self.shards.list.len())
            .field("open_shards", &self.open_shards)
            .finish_non_exhaustive()
    }
}

/// What the program's function made of a sample, where it does not name the sample itself.
#[derive(Debug)]
struct InSample {
    place: Arc<str>,
    key: String,
    cause: BoxError,
}

impl InSample {
    fn of(sample: &StreamedSample, cause: BoxError) -> BoxError {
        use super::sample::Lies;

        if cause.is::<ShardError>() {
            return cause;
        }
        InSample {
            place: sample.place().into(),
            key: sample.key().to_owned(),
            cause,
        }
        .into()
    }
}

impl fmt::Display for InSample {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let InSample { place, key, cause } = self;
        write!(f, "{place}: sample {key:?}: {cause}")
    }
}

impl std::error::Error for InSample {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        Some(&*self.cause) // (it says whether it may go away)
    }
}
