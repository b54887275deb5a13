//! How a data set is cut into blocks: where each begins.

use std::fmt;
use std::ops::Range;

use crate::error::{Error, Result};
use crate::fingerprint::Fingerprint;
use crate::length::Length;
use crate::system::room;

/// The blocks of a data set: which samples are read together, in the order in which they lie in its files.
///
/// A *block* is what is read at once: an extent of a tar shard, a row group, a range of an array. Block `k` has the samples from where block
/// `k - 1` ends, as many as its size says; a size may be 0. [`BlockSampler`](super::BlockSampler) makes an order of them in which a
/// fixed number of blocks is open at a time.
///
/// Sizes take 8 bytes a block, and none if all are the same but for a smaller last one, as [`even`](Blocks::even) blocks are.
///
/// # Examples
///
/// ```
/// use pinfeed::sampler::Blocks;
///
/// let shards = Blocks::from_sizes([3, 0, 2])?;
/// assert_eq!((shards.len(), shards.samples()), (3, 5));
/// assert_eq!((shards.range(0), shards.range(2)), (0..3, 3..5));
/// assert_eq!((shards.block_of(2), shards.block_of(3)), (Some(0), Some(2)));
///
/// let extents = Blocks::even(1_000_000, 256)?;
/// assert_eq!((extents.len(), extents.range(3_906)), (3_907, 999_936..1_000_000));
/// # Ok::<(), pinfeed::Error>(())
/// ```
#[derive(Clone, PartialEq, Eq)]
pub struct Blocks(Cuts);

#[derive(Clone, PartialEq, Eq)]
enum Cuts {
    /// Each block has `block` samples, the last what is left.
    Even { samples: u64, block: u64 },
    /// Where each block begins, and the end: one more than there are blocks.
    Listed(Vec<u64>),
}

impl Blocks {
    /// Makes blocks of these sizes, in samples, in the order in which they lie.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidOption`] if they have more than 2⁶⁴ - 1 samples together, as a damaged index may say, or if the list exceeds the
    /// memory that the process may use.
    pub fn from_sizes(sizes: impl IntoIterator<Item = u64>) -> Result<Blocks> {
        let refused = |reason: String| Error::option("Blocks::from_sizes", reason);
        let no_room = |no_room| {
            refused(format!(
                "the list takes {no_room}: make larger blocks, or even ones (`Blocks::even`), which take none"
            ))
        };
        let sizes = sizes.into_iter();
        let mut cuts = room::room_for(sizes.size_hint().0 as u64 + 1).map_err(no_room)?;
        let mut end = 0u64;
        cuts.push(end);
        for (block, size) in sizes.enumerate() {
            end = end.checked_add(size).ok_or_else(|| {
                refused(format!(
                    "blocks 0 to {block} have more than 2^64 - 1 samples together: look at the sizes"
                ))
            })?;
            room::push(&mut cuts, end).map_err(no_room)?;
        }
        // Blocks are what their sizes are, however they were made: so is their order.
        let block = cuts.get(1).copied().unwrap_or(1);
        let even = Blocks(Cuts::Even {
            samples: end,
            block,
        });
        let is_even = block > 0
            && even.len() == cuts.len() as u64 - 1
            && cuts.iter().zip(0..).all(|(cut, at)| even.start(at) == *cut);
        Ok(if is_even {
            even
        } else {
            Blocks(Cuts::Listed(cuts))
        })
    }

    /// Makes blocks of `block` samples each, the last of what is left of `samples`. Both may be a `usize` ([`Length`]).
    ///
    /// # Errors
    ///
    /// [`Error::InvalidOption`] if `block` is 0.
    ///
    /// # Panics
    ///
    /// If one of them is a negative `i32`.
    #[track_caller]
    pub fn even(samples: impl Length, block: impl Length) -> Result<Blocks> {
        match (samples.samples(), block.samples()) {
            (_, 0) => Err(Error::option(
                "Blocks::even",
                "is given blocks of 0 samples: a block has at least one",
            )),
            (samples, block) => Ok(Blocks(Cuts::Even { samples, block })),
        }
    }

    /// Returns the number of blocks.
    pub fn len(&self) -> u64 {
        match &self.0 {
            Cuts::Even { samples, block } => samples.div_ceil(*block),
            Cuts::Listed(cuts) => cuts.len() as u64 - 1,
        }
    }

    /// Whether there are no blocks.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the number of samples in all blocks together.
    pub fn samples(&self) -> u64 {
        match &self.0 {
            Cuts::Even { samples, .. } => *samples,
            Cuts::Listed(cuts) => cuts.last().copied().unwrap_or(0),
        }
    }

    /// Returns the indices of a block's samples. Those of a block that there is not are empty: they begin and end where the data set does.
    pub fn range(&self, block: u64) -> Range<u64> {
        self.start(block)..self.start(block.saturating_add(1))
    }

    /// Where a block begins; behind the last: where that ends.
    pub(super) fn start(&self, block: u64) -> u64 {
        match &self.0 {
            Cuts::Even {
                samples,
                block: size,
            } => block.saturating_mul(*size).min(*samples),
            Cuts::Listed(cuts) => {
                let start = usize::try_from(block).ok().and_then(|at| cuts.get(at));
                start.copied().unwrap_or_else(|| self.samples())
            }
        }
    }

    /// Returns the block that a sample lies in; `None` if there is no such sample. Among listed sizes, it is found by bisection.
    pub fn block_of(&self, index: u64) -> Option<u64> {
        if index >= self.samples() {
            return None;
        }
        Some(match &self.0 {
            Cuts::Even { block, .. } => index / block,
            // (Of blocks that begin at one place, all but the last are empty.)
            Cuts::Listed(cuts) => cuts.partition_point(|start| *start <= index) as u64 - 1,
        })
    }

    /// The size of all blocks but the last, if they have one.
    pub(super) fn even_size(&self) -> Option<u64> {
        match &self.0 {
            Cuts::Even { block, .. } => Some(*block),
            Cuts::Listed(_) => None,
        }
    }

    /// A fingerprint of all sizes.
    pub(super) fn fingerprint(&self) -> u32 {
        let mut print = Fingerprint::new();
        print.add_number(self.samples());
        print.add_number(self.len());
        match &self.0 {
            Cuts::Even { block, .. } => print.add_number(*block),
            Cuts::Listed(cuts) => cuts.iter().for_each(|start| print.add_number(*start)),
        }
        print.finish()
    }
}

impl fmt::Debug for Blocks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Blocks")
            .field("len", &self.len())
            .field("samples", &self.samples())
            .finish_non_exhaustive()
    }
}
