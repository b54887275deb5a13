//! What a program implements: how its blocks are fetched, and how samples are taken out of them.

#[cfg(doc)]
use super::Blocked;
use std::ops::Range;

#[cfg(doc)]
use crate::dataset::Dataset;
use crate::dataset::Table;
use crate::error::BoxError;
use crate::fingerprint::{Fingerprint, spread};
use crate::rng::SampleRng;
use crate::sampler::Blocks;
use crate::sync::Arc;

/// A source whose samples lie in *blocks*, each of which is read at once: extents of shards, row groups, ranges of an array. [`Blocked`]
/// makes a data set of it that reads each block once in an epoch.
///
/// # Examples
///
/// A file of numbers, read a thousand at a time:
///
/// ```
/// use std::io::{Read, Seek, SeekFrom};
/// use std::ops::Range;
/// use std::sync::Arc;
///
/// use pinfeed::dataset::{BlockSource, Blocked};
/// use pinfeed::sampler::Blocks;
/// use pinfeed::{BoxError, DataLoader, SampleRng};
///
/// struct Numbers {
///     path: std::path::PathBuf,
///     blocks: Arc<Blocks>,
/// }
///
/// impl BlockSource for Numbers {
///     /// The numbers of a block from this one on, little-endian.
///     type Block = (u64, Vec<u8>);
///     type Sample = u32;
///
///     fn blocks(&self) -> Arc<Blocks> {
///         Arc::clone(&self.blocks)
///     }
///
///     fn block_bytes(&self, _: u64, samples: Range<u64>) -> usize {
///         4 * (samples.end - samples.start) as usize
///     }
///
///     fn fetch(&self, block: u64, samples: Range<u64>) -> Result<(u64, Vec<u8>), BoxError> {
///         let mut bytes = vec![0; self.block_bytes(block, samples.clone())];
///         let mut file = std::fs::File::open(&self.path)?;
///         file.seek(SeekFrom::Start(4 * samples.start))?;
///         file.read_exact(&mut bytes)?;
///         Ok((samples.start, bytes))
///     }
///
///     fn decode(&self, (first, bytes): &(u64, Vec<u8>), index: u64, _: &mut SampleRng) -> Result<u32, BoxError> {
///         let at = 4 * (index - first) as usize;
///         Ok(u32::from_le_bytes(bytes[at..at + 4].try_into()?))
///     }
/// }
///
/// let path = std::env::temp_dir().join(format!("pinfeed-numbers-{}", std::process::id()));
/// let numbers: Vec<u8> = (0..10_000u32).flat_map(u32::to_le_bytes).collect();
/// std::fs::write(&path, numbers)?;
///
/// let blocks = Arc::new(Blocks::even(10_000, 1_000)?);
/// let data = Blocked::new(Numbers { path: path.clone(), blocks });
/// let loader = DataLoader::builder(data).batch_size(100).shuffle(true).num_workers(2).build()?;
/// let mut seen: Vec<u32> = Vec::new();
/// for batch in loader.epoch(0) {
///     seen.extend(batch?.as_slice());
/// }
/// seen.sort();
/// assert!(seen.into_iter().eq(0..10_000));
/// # std::fs::remove_file(path)?;
/// # Ok::<(), pinfeed::BoxError>(())
/// ```
pub trait BlockSource: Send + Sync + 'static {
    /// What is read at once: samples of one block, as they are stored. Threads share it while they decode.
    type Block: Send + Sync + 'static;
    /// What is made of one of its samples.
    type Sample: Send + 'static;

    /// Which samples lie in which block. It must not change.
    fn blocks(&self) -> Arc<Blocks>;

    /// How much memory these samples of a block have as they are fetched, in bytes. It is asked before they are, and must be the same each
    /// time: it counts in [`with_max_bytes`](Blocked::with_max_bytes) from then until their last sample is decoded.
    fn block_bytes(&self, block: u64, samples: Range<u64>) -> usize;

    /// Fetches these samples of a block, given by their indices in the data set: all of them, or a part. It runs on a thread of
    /// [`Blocked`]'s, and may wait.
    ///
    /// A part is a piece of the block that a track begins or ends with ([`BlockSampler`](crate::sampler::BlockSampler)) or, where a sample is
    /// needed out of its turn, one sample. A source that can only read whole blocks reads the whole, and keeps what was asked for.
    ///
    /// Give it a time limit of its own, as clients of servers have: it cannot be interrupted.
    ///
    /// # Errors
    ///
    /// Any error: each of the samples fails with it. One that is [`Temporary`](crate::error::Temporary) is tried again with
    /// [`retry`](crate::loader::Builder::retry), for all of them together. A panic is caught, and reported as that of each sample.
    fn fetch(&self, block: u64, samples: Range<u64>) -> Result<Self::Block, BoxError>;

    /// Makes a sample, on a worker, of what was fetched with it. Draw random augmentation from `rng`, as in [`Dataset::get`].
    ///
    /// # Errors
    ///
    /// As [`Dataset::get`].
    fn decode(
        &self,
        block: &Self::Block,
        index: u64,
        rng: &mut SampleRng,
    ) -> Result<Self::Sample, BoxError>;

    /// Whether blocks are [tables](BlockSource::table). Default: `false`.
    fn has_tables(&self) -> bool {
        false
    }

    /// The table that a block is, where its first row is the first sample that was fetched with it, and so on, and a sample is its row as it is.
    /// Batches then copy rows out of it, several at a time, instead of calling [`decode`](BlockSource::decode) for each: for a few numbers, that
    /// is some four times as fast in order, and twice where the order is shuffled (docs/performance.md). `None`: samples of this block are decoded, because some of them are errors, say. Default: `None`.
    ///
    /// It is asked only if the source [has tables](BlockSource::has_tables). `decode` must give the same samples: it does where batches are
    /// collated by a function, samples are mapped, or one takes the place of a bad one.
    ///
    /// # Examples
    ///
    /// ```
    /// use std::ops::Range;
    /// use std::sync::Arc;
    ///
    /// use pinfeed::dataset::{BlockSource, Blocked, Table};
    /// use pinfeed::sampler::Blocks;
    /// use pinfeed::{BoxError, DataLoader, Dataset, SampleRng, Tensor, TensorDataset};
    ///
    /// struct Measurements(Arc<Blocks>);
    ///
    /// impl BlockSource for Measurements {
    ///     /// The index of the first row, and the rows: four numbers each.
    ///     type Block = (u64, TensorDataset<Tensor<f32>>);
    ///     type Sample = Tensor<f32>;
    ///
    ///     fn blocks(&self) -> Arc<Blocks> {
    ///         Arc::clone(&self.0)
    ///     }
    ///
    ///     fn block_bytes(&self, _: u64, samples: Range<u64>) -> usize {
    ///         16 * (samples.end - samples.start) as usize
    ///     }
    ///
    ///     fn fetch(&self, _: u64, samples: Range<u64>) -> Result<Self::Block, BoxError> {
    ///         let rows = (samples.end - samples.start) as usize;
    ///         let read = vec![0f32; 4 * rows]; // from a file, in truth
    ///         Ok((samples.start, TensorDataset::new(Tensor::from_vec(read, &[rows, 4])?)?))
    ///     }
    ///
    ///     fn decode(&self, (first, rows): &Self::Block, index: u64, rng: &mut SampleRng) -> Result<Tensor<f32>, BoxError> {
    ///         rows.get(index - first, rng)
    ///     }
    ///
    ///     fn has_tables(&self) -> bool {
    ///         true
    ///     }
    ///
    ///     fn table<'a>(&self, (_, rows): &'a Self::Block) -> Option<Table<'a>> {
    ///         Some(rows.table())
    ///     }
    /// }
    ///
    /// let data = Blocked::new(Measurements(Arc::new(Blocks::even(10_000, 500)?)));
    /// let loader = DataLoader::builder(data).batch_size(100).shuffle(true).num_workers(2).build()?;
    /// for batch in loader.epoch(0) {
    ///     assert_eq!(batch?.shape()[..], [100, 4]);
    /// }
    /// # Ok::<(), pinfeed::BoxError>(())
    /// ```
    fn table<'a>(&self, block: &'a Self::Block) -> Option<Table<'a>> {
        let _ = block;
        None
    }

    /// How many requests run at a time if the program does not say ([`Blocked::with_in_flight`]). Default: 32. A source of small blocks that
    /// takes long to begin an answer wants more.
    fn in_flight(&self) -> usize {
        32
    }

    /// As [`Dataset::describe`].
    fn describe(&self, index: u64) -> Option<String> {
        let _ = index;
        None
    }

    /// As [`Dataset::sample_bytes`].
    fn sample_bytes(&self) -> Option<usize> {
        None
    }

    /// As [`Dataset::fingerprint`]. Default: of the number of samples, of the blocks' number and where sixteen of them begin, and of what
    /// [`describe`](BlockSource::describe) says about sixteen samples.
    fn fingerprint(&self) -> u32 {
        let blocks = self.blocks();
        let mut print = Fingerprint::new();
        print.add_number(blocks.samples());
        print.add_number(blocks.len());
        spread(blocks.len(), 16).for_each(|block| print.add_number(blocks.range(block).start));
        for index in spread(blocks.samples(), 16) {
            print.add(self.describe(index).unwrap_or_default().as_bytes());
        }
        print.finish()
    }
}
