//! Shards as a data set: [`WebDataset`].

use std::ops::Range;

use super::builder::WebDatasetBuilder;
use super::extent::{Extent, InExtent, Shard};
use super::sample::WebSample;
use crate::dataset::{BlockSource, Blocked, Fingerprint, IntoDataset};
use crate::error::{BoxError, Error, Result};
use crate::rng::SampleRng;
use crate::sampler::Blocks;
use crate::store::{self, Store};
use crate::sync::Arc;

pub(super) type Decode<T> =
    dyn Fn(WebSample<'_>, &mut SampleRng) -> Result<T, BoxError> + Send + Sync;

/// The samples of tar shards, as WebDataset has them: files of one name but for what follows its first dot are a sample.
///
/// Shards are read in extents of 8 MiB or less, and shuffled by them: it is a [`BlockSource`].
/// [`DataLoader::builder`](crate::DataLoader::builder) takes it as it is; for the number of requests in flight and their memory, put it
/// into a [`Blocked`]. It knows its length, has one order over all shards, and is resumed exactly, on other numbers of ranks, too. Clones
/// share the index.
///
/// In memory, the index takes 18 bytes for each field that is read and, for each sample, the length of its key and 8 bytes.
///
/// # Examples
///
/// ```
/// use pinfeed::webdataset::WebDataset;
/// use pinfeed::{DataLoader, Padded};
///
/// # let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fixtures/shards");
/// let shards = WebDataset::open(&format!("{folder}/train-{{000000..000002}}.tar"))?; // or "s3://bucket/train-{000000..000002}.tar"
/// let data = shards.field("png").field("cls").build(|sample, _rng| {
///     let picture = Padded::from(sample.field("png")?.to_vec()); // or decoded here
///     Ok((picture, sample.number::<i64>("cls")?))
/// })?;
/// let loader = DataLoader::builder(data).batch_size(4).shuffle(true).num_workers(2).build()?;
/// for batch in loader.epoch(0) {
///     let (_pictures, classes) = batch?;
///     assert_eq!(classes.shape()[..], [4]);
/// }
/// # Ok::<(), pinfeed::BoxError>(())
/// ```
pub struct WebDataset<T> {
    inner: Arc<Inner>,
    decode: Arc<Decode<T>>,
}

pub(super) struct Inner {
    pub(super) store: Arc<dyn Store>,
    pub(super) shards: Vec<Shard>,
    /// The index of each shard's first sample, and the number of samples.
    pub(super) starts: Vec<u64>,
    pub(super) blocks: Arc<Blocks>,
    pub(super) extent_bytes: u64,
}

impl Inner {
    /// The shard that has the sample at `index`, and its index in there.
    fn locate(&self, index: u64) -> Option<(&Shard, usize)> {
        let behind = self.starts.partition_point(|start| *start <= index);
        let shard = behind.checked_sub(1)?;
        Some((
            self.shards.get(shard)?,
            (index - self.starts[shard]) as usize,
        ))
    }

    fn within(&self, samples: &Range<u64>) -> Option<(&Shard, Range<usize>)> {
        let (shard, first) = self.locate(samples.start)?;
        let count = samples.end.checked_sub(samples.start)? as usize;
        Some((shard, first..first + count))
    }
}

impl WebDataset<()> {
    /// Begins a data set of the shards that a path or URL names: `"train/imagenet-{000000..000146}.tar"`, `"s3://bucket/train/"`
    /// ([`store::open`] says which there are). It is what stands before the last slash that precedes all braces, and a pattern as
    /// [`builder`](WebDataset::builder) takes it.
    ///
    /// # Errors
    ///
    /// If the folder or store cannot be opened.
    pub fn open(url: &str) -> Result<WebDatasetBuilder> {
        let open = |place| store::open(place).map_err(|error| Error::of_source(error.into()));
        let plain = url.split(['{', '\\']).next().unwrap_or_default();
        // (Behind `s3://`, there is the bucket.)
        let root = plain.find("://").map_or(0, |scheme| scheme + 3);
        match plain[root..].rfind('/') {
            Some(slash) => {
                let (folder, pattern) = url.split_at(root + slash + 1);
                let folder = match folder {
                    "/" => folder,
                    folder => folder.strip_suffix('/').unwrap_or(folder),
                };
                Ok(WebDatasetBuilder::of_pattern(open(folder)?, pattern))
            }
            None if root > 0 => Ok(WebDatasetBuilder::of_pattern(open(url)?, "")),
            None => Ok(WebDatasetBuilder::of_pattern(open(".")?, url)),
        }
    }

    /// Begins a data set of shards in a store. The pattern is one or several names: braces expand as those of bash and of Python's
    /// webdataset (`{000000..000099}`, `{train,extra}`, steps, nested ones; a backslash before a brace or comma makes it a plain
    /// one). A pattern that is empty or ends with a slash is a folder, with all `.tar` in it and below, in the order of their names.
    pub fn builder(store: impl Store, pattern: &str) -> WebDatasetBuilder {
        WebDatasetBuilder::of_pattern(Arc::new(store), pattern)
    }

    /// Begins a data set of the shards that an index of wids names: the JSON file that `wids-index` makes. Names are relative to it.
    ///
    /// It says how many samples each shard has, and [`build`](WebDatasetBuilder::build) refuses a shard that has another number. Where the
    /// samples are, it does not say: that is read from the shards, or from another index.
    ///
    /// # Errors
    ///
    /// If the index is not there, is none, or names shards that are not in the store.
    pub fn from_wids(store: impl Store, index: &str) -> Result<WebDatasetBuilder> {
        WebDatasetBuilder::of_wids(Arc::new(store), index).map_err(Error::of_source)
    }
}

impl<T> WebDataset<T> {
    pub(super) fn new<F>(inner: Inner, decode: F) -> WebDataset<T>
    where
        F: Fn(WebSample<'_>, &mut SampleRng) -> Result<T, BoxError> + Send + Sync + 'static,
    {
        WebDataset {
            inner: Arc::new(inner),
            decode: Arc::new(decode),
        }
    }

    /// The number of samples.
    pub fn len(&self) -> u64 {
        self.inner.blocks.samples()
    }

    /// Whether there are none: never, as [`build`](WebDatasetBuilder::build) refuses that.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The shards' keys in their store, and how many samples each has.
    pub fn shards(&self) -> impl Iterator<Item = (&str, u64)> {
        let shards = self.inner.shards.iter();
        shards.map(|shard| (shard.object.key.as_str(), shard.index.len() as u64))
    }

    /// The key of the sample at `index`, and its shard's.
    ///
    /// # Panics
    ///
    /// If there is no sample at `index`.
    pub fn key(&self, index: u64) -> (&str, &str) {
        let Some((shard, sample)) = self.inner.locate(index) else {
            panic!("there is no sample {index}, of {}", self.len());
        };
        (shard.index.key(sample), &shard.object.key)
    }

    fn no_sample(&self, index: u64) -> BoxError {
        format!("there is no sample {index}: the shards have {}", self.len()).into()
    }
}

impl<T> Clone for WebDataset<T> {
    fn clone(&self) -> WebDataset<T> {
        WebDataset {
            inner: Arc::clone(&self.inner),
            decode: Arc::clone(&self.decode),
        }
    }
}

impl<T> std::fmt::Debug for WebDataset<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("WebDataset")
            .field("store", &self.inner.store)
            .field("shards", &self.inner.shards.len())
            .field("samples", &self.len())
            .field("extents", &self.inner.blocks.len())
            .finish_non_exhaustive()
    }
}

impl<T: Send + 'static> BlockSource for WebDataset<T> {
    type Block = Extent;
    type Sample = T;

    fn blocks(&self) -> Arc<Blocks> {
        Arc::clone(&self.inner.blocks)
    }

    fn block_bytes(&self, _: u64, samples: Range<u64>) -> usize {
        let Some((shard, samples)) = self.inner.within(&samples) else {
            return 0;
        };
        let ranges = shard.ranges(samples);
        let bytes: u64 = ranges.iter().map(|range| range.end - range.start).sum();
        bytes as usize
    }

    fn fetch(&self, _: u64, samples: Range<u64>) -> Result<Extent, BoxError> {
        match self.inner.within(&samples) {
            Some((shard, samples)) => shard.fetch(&*self.inner.store, samples),
            None => Err(self.no_sample(samples.start)),
        }
    }

    fn decode(&self, extent: &Extent, index: u64, rng: &mut SampleRng) -> Result<T, BoxError> {
        let Some((shard, sample)) = self.inner.locate(index) else {
            return Err(self.no_sample(index));
        };
        shard.check(sample, extent)?;
        let found = InExtent {
            shard,
            sample,
            extent,
        };
        (self.decode)(WebSample(&found), rng)
    }

    /// As many as the store wants of extents of this size ([`Store::in_flight`]).
    fn in_flight(&self) -> usize {
        let blocks = &self.inner.blocks;
        let bytes: u64 = self
            .inner
            .shards
            .iter()
            .map(|shard| shard.object.bytes)
            .sum();
        self.inner.store.in_flight(bytes / blocks.len().max(1))
    }

    fn describe(&self, index: u64) -> Option<String> {
        let (shard, sample) = self.inner.locate(index)?;
        Some(format!("{}: {}", shard.object.key, shard.index.key(sample)))
    }

    /// Of the shards' names, lengths and numbers of samples, and of the extents' size.
    fn fingerprint(&self) -> u32 {
        let mut print = Fingerprint::new();
        print.add_number(self.inner.extent_bytes);
        for shard in &self.inner.shards {
            print.add(shard.object.key.as_bytes());
            print.add_number(shard.object.bytes);
            print.add_number(shard.index.len() as u64);
        }
        print.finish()
    }
}

impl<T: Send + 'static> IntoDataset for WebDataset<T> {
    type Dataset = Blocked<WebDataset<T>>;

    fn into_dataset(self) -> Blocked<WebDataset<T>> {
        Blocked::new(self)
    }
}
