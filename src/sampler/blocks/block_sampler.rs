//! The order as a sampler.

use std::fmt;
use std::num::NonZeroU64;

use super::again::Again;
use super::known::Known;
use super::merge::{Merge, Pieces};
use super::row::Row;
use super::track::{Key, Piece};
use super::{Blocks, Openings};
use crate::error::{Error, Result};
use crate::fingerprint::Fingerprint;
use crate::sampler::permutation::mix;
use crate::sampler::{Sampler, positions};
use crate::sync::Arc;

/// All samples once, in a random order that differs in each epoch and reads [`Blocks`] in sequence.
///
/// Where samples are read one by one, [`RandomSampler`](crate::sampler::RandomSampler) is the better order. This one is for data that is
/// read by the block: tar shards, row groups, ranges of a file in a bucket. As many blocks as it has *tracks* are open at a time, over
/// all ranks together. Each track goes through blocks of its own, one after the other, in another order in each epoch, and through the
/// samples of a block in random order; position `p` of an epoch is one of track `p mod tracks`. So a batch has samples of as many
/// blocks as there are tracks, or of all its samples' own if those are fewer.
///
/// A loader with [`shuffle`](crate::loader::Builder::shuffle) takes this sampler by itself if its data set has blocks. It deals positions
/// out by [`Sharding::Interleaved`](crate::loader::Sharding::Interleaved), so that each track belongs to one rank if the number of ranks
/// (of devices, if several share a rank's batches) divides that of tracks.
///
/// # How many tracks
///
/// The order depends on their number, and not on ranks. Default: 384, which is 2⁷ · 3, halved as long as there are fewer than 8 blocks
/// for each and more than 24 tracks, and then as long as there are more tracks than blocks. More tracks mix better, and hold more
/// blocks in memory: one each, spread over the ranks. With 384 tracks, 0.09 % of the pairs in a batch of 256 are of the same 100,000th
/// of a million samples, as in a full shuffle: `docs/decisions/25-blocks.md` has the simulation.
///
/// # Cost
///
/// 16 bytes a block if their sizes differ, and 16 more for each that this rank's tracks read, in each of three epochs at most. Of each track, 256
/// indices are kept, because 64 are computed together: a lookup takes about 0.1 µs where they come in order, and a few µs anywhere.
///
/// # Examples
///
/// ```
/// use std::sync::Arc;
///
/// use pinfeed::sampler::{BlockSampler, Blocks};
/// use pinfeed::{DataLoader, from_fn};
///
/// let shards = Arc::new(Blocks::from_sizes([40, 25, 35])?);
/// let samples = from_fn(shards.samples(), |index, _| Ok(index as i64));
/// let loader = DataLoader::builder(samples)
///     .batch_size(10)
///     .seed(17)
///     .sampler(BlockSampler::new(Arc::clone(&shards)).with_tracks(2)?)
///     .build()?;
/// let mut seen = Vec::new();
/// for batch in &loader {
///     let batch = batch?.to_vec();
///     let mut blocks: Vec<_> = batch.iter().filter_map(|index| shards.block_of(*index as u64)).collect();
///     blocks.sort();
///     blocks.dedup();
///     assert!(blocks.len() <= 4); // two at a time, and where one ends, the next
///     seen.extend(batch);
/// }
/// seen.sort();
/// assert!(seen.into_iter().eq(0..100));
/// # Ok::<(), pinfeed::Error>(())
/// ```
#[derive(Clone)]
pub struct BlockSampler {
    seed: u64,
    /// The seed is the sampler's own, whatever the loader's is.
    has_own_seed: bool,
    order: Order,
}

#[derive(Clone)]
enum Order {
    InOrder(Arc<Blocks>),
    /// Clones share what is known of it.
    Shuffled(Arc<Known>),
}

/// How many tracks there are, if there are blocks enough.
const TRACKS: u64 = 384;
/// So many blocks should a track have.
const BLOCKS_OF_A_TRACK: u64 = 8;
/// Unless there are fewer tracks than this: then a batch would see too few blocks.
const FEW_TRACKS: u64 = 24;
const MOST_TRACKS: u64 = 1 << 20;

/// How many attempts to replace a sample stay within its piece, before they look elsewhere: the whole block may be gone.
const WITHIN_A_PIECE: u32 = 2;

impl BlockSampler {
    /// Makes random orders of all samples, which follow from the loader's seed ([`Builder::seed`](crate::loader::Builder::seed)); without a
    /// loader, from the seed 0. A sampler in an `Arc` that something else holds, too, does not learn the loader's seed: give it its
    /// own ([`with_seed`](BlockSampler::with_seed)).
    pub fn new(blocks: Arc<Blocks>) -> BlockSampler {
        let tracks = usual_tracks(blocks.len());
        BlockSampler {
            seed: 0,
            has_own_seed: false,
            order: Order::shuffled(blocks, tracks, 0),
        }
    }

    /// Makes the data set's own order, block after block: what a loader without [`shuffle`](crate::loader::Builder::shuffle) takes if its
    /// data set has blocks. It has one track, so of several ranks each reads all blocks.
    ///
    /// # Examples
    ///
    /// ```
    /// use std::sync::Arc;
    ///
    /// use pinfeed::sampler::{BlockSampler, Blocks, Sampler};
    ///
    /// let sampler = BlockSampler::in_order(Arc::new(Blocks::even(10, 4)?));
    /// assert!((0..10).all(|position| sampler.index(3, position) == position));
    /// # Ok::<(), pinfeed::Error>(())
    /// ```
    pub fn in_order(blocks: Arc<Blocks>) -> BlockSampler {
        BlockSampler {
            seed: 0,
            has_own_seed: false,
            order: Order::InOrder(blocks),
        }
    }

    /// Sets how many blocks are open at a time, over all ranks together: a multiple of the number of ranks (of devices, if several
    /// share a rank's batches), and four times that at least. Above the number of samples, it is that number. It has no meaning
    /// [`in_order`](BlockSampler::in_order).
    ///
    /// # Errors
    ///
    /// [`Error::InvalidOption`] if it is 0, or above 2²⁰.
    ///
    /// # Examples
    ///
    /// ```
    /// use std::sync::Arc;
    ///
    /// use pinfeed::sampler::{BlockSampler, Blocks, Sampler};
    ///
    /// let blocks = Arc::new(Blocks::even(1_000_000, 100)?);
    /// let sampler = BlockSampler::new(blocks);
    /// assert_eq!(sampler.tracks().map(u64::from), Some(384));
    /// let sampler = sampler.with_tracks(320)?; // for 40 ranks
    /// assert_eq!(sampler.tracks().map(u64::from), Some(320));
    /// assert!(sampler.with_tracks(0).is_err());
    /// # Ok::<(), pinfeed::Error>(())
    /// ```
    pub fn with_tracks(self, tracks: u64) -> Result<BlockSampler> {
        let refused = match tracks {
            0 => Some("is 0: at least one block is open at a time"),
            1..=MOST_TRACKS => None,
            _ => Some(
                "is above 1,048,576, and each track has a block open: use smaller blocks, or `RandomSampler`, which has none open",
            ),
        };
        if let Some(reason) = refused {
            return Err(Error::option("BlockSampler::with_tracks", reason));
        }
        let order = match self.order {
            Order::InOrder(blocks) => Order::InOrder(blocks),
            Order::Shuffled(known) => {
                Order::shuffled(Arc::clone(known.row.blocks()), tracks, self.seed)
            }
        };
        Ok(BlockSampler { order, ..self })
    }

    /// Makes random orders that follow from this seed, whatever the loader's is.
    ///
    /// # Examples
    ///
    /// ```
    /// use std::sync::Arc;
    ///
    /// use pinfeed::sampler::{BlockSampler, Blocks, Sampler};
    ///
    /// let blocks = Arc::new(Blocks::even(100, 5)?);
    /// let mut sampler = BlockSampler::new(Arc::clone(&blocks));
    /// sampler.set_seed(17); // as a loader with this seed does
    /// let same = BlockSampler::new(blocks).with_seed(17);
    /// assert!((0..100).all(|position| sampler.index(0, position) == same.index(0, position)));
    /// # Ok::<(), pinfeed::Error>(())
    /// ```
    pub fn with_seed(self, seed: u64) -> BlockSampler {
        BlockSampler {
            has_own_seed: true,
            ..self.seeded(seed)
        }
    }

    fn seeded(self, seed: u64) -> BlockSampler {
        let order = match self.order {
            Order::Shuffled(known) if known.row.seed() != seed => {
                let (blocks, tracks) = (Arc::clone(known.row.blocks()), known.row.tracks());
                Order::shuffled(blocks, tracks, seed)
            }
            order => order,
        };
        BlockSampler {
            seed,
            order,
            ..self
        }
    }

    fn blocks(&self) -> &Arc<Blocks> {
        match &self.order {
            Order::InOrder(blocks) => blocks,
            Order::Shuffled(known) => known.row.blocks(),
        }
    }
}

impl Order {
    fn shuffled(blocks: Arc<Blocks>, tracks: u64, seed: u64) -> Order {
        Order::Shuffled(Arc::new(Known::new(Row::new(blocks, tracks, seed))))
    }
}

/// How many tracks so many blocks have, unless the program says so.
fn usual_tracks(blocks: u64) -> u64 {
    let mut tracks = TRACKS;
    while tracks > FEW_TRACKS && blocks < BLOCKS_OF_A_TRACK * tracks {
        tracks /= 2;
    }
    while tracks > blocks.max(1) {
        tracks /= 2;
    }
    tracks
}

impl Sampler for BlockSampler {
    fn len(&self) -> u64 {
        self.blocks().samples()
    }

    fn index(&self, epoch: u64, position: u64) -> u64 {
        positions(position, &[0], self.len());
        match &self.order {
            Order::InOrder(_) => position,
            Order::Shuffled(known) => known.index(epoch, position),
        }
    }

    fn indices(&self, epoch: u64, start: u64, indices: &mut [u64]) {
        let positions = positions(start, indices, self.len());
        match &self.order {
            Order::InOrder(_) => {
                let places = indices.iter_mut().zip(positions);
                places.for_each(|(index, position)| *index = position);
            }
            Order::Shuffled(known) => known.indices(epoch, start, indices),
        }
    }

    fn set_seed(&mut self, seed: u64) {
        if !self.has_own_seed {
            *self = self.clone().seeded(seed);
        }
    }

    /// Of all blocks' sizes, the number of tracks and the seed.
    fn fingerprint(&self) -> u32 {
        let mut print = Fingerprint::new();
        print.add(b"blocks");
        print.add_number(u64::from(self.blocks().fingerprint()));
        if let Order::Shuffled(known) = &self.order {
            print.add_number(known.row.tracks());
            print.add_number(known.row.seed());
        }
        print.finish()
    }

    fn tracks(&self) -> Option<NonZeroU64> {
        NonZeroU64::new(match &self.order {
            Order::InOrder(_) => 1,
            Order::Shuffled(known) => known.row.tracks(),
        })
    }

    fn openings(&self, epoch: u64, from: u64, lane: u64, lanes: u64) -> Option<Openings> {
        let (pieces, shuffled) = match &self.order {
            Order::InOrder(blocks) => (Pieces::InOrder(Arc::clone(blocks)), None),
            Order::Shuffled(order) => (
                Pieces::Shuffled {
                    epoch: order.epoch(epoch),
                    order: Arc::clone(order),
                },
                Some(Arc::clone(order)),
            ),
        };
        let again = Again::new(self.fingerprint(), self.len(), epoch, shuffled);
        let openings = Openings::new(Merge::new(pieces, from, lane, lanes));
        Some(openings.with_again(again))
    }

    /// The first two attempts stay within the piece, which is open. The next ones are of pieces that are open in other tracks: first of
    /// those half and a quarter of all tracks away, which are likely this rank's own.
    fn instead(&self, epoch: u64, position: u64, attempt: u32) -> Option<u64> {
        let known = match &self.order {
            Order::InOrder(blocks) => {
                let samples = blocks.range(blocks.block_of(position)?);
                let others = samples.end - samples.start - 1;
                let draw = draw(self.seed, epoch, position, attempt);
                return (attempt <= WITHIN_A_PIECE && others > 0).then(|| {
                    let at = position - samples.start + 1 + draw % others;
                    samples.start + at % (others + 1)
                });
            }
            Order::Shuffled(known) => known,
        };
        let tracks = known.row.tracks();
        let (track, place) = (position % tracks, position / tracks);
        let epoch_known = known.epoch(epoch);
        let piece_at = |track: u64, place: u64| -> Option<Piece> {
            let track = epoch_known.track(&known.row, track);
            track.piece(track.number(place))
        };
        let index = |piece: &Piece, place: u64| {
            let mut index = [place];
            piece.order(self.seed, epoch).apply(&mut index);
            piece.samples.start + index[0]
        };
        let own = piece_at(track, place)?;
        let others = own.len() - 1;
        let draw = draw(self.seed, epoch, position, attempt);
        if attempt <= WITHIN_A_PIECE && others > 0 {
            let place = place - own.begins + 1 + draw % others;
            return Some(index(&own, place % (others + 1)));
        }
        if tracks == 1 {
            return None;
        }
        let away = match attempt.saturating_sub(WITHIN_A_PIECE) {
            0 | 1 => tracks / 2,
            2 => tracks / 4,
            3 => tracks - tracks / 4,
            more => u64::from(more - 3),
        };
        let other = (track + 1 + away.saturating_sub(1) % (tracks - 1)) % tracks;
        let last = known.row.len_of(other) - 1;
        let piece = piece_at(other, place.min(last))?;
        Some(index(&piece, draw % piece.len()))
    }
}

/// A number for an attempt. Those of one position follow each other, so that the first of them differ.
fn draw(seed: u64, epoch: u64, position: u64, attempt: u32) -> u64 {
    let first = mix(Key::Instead { epoch, position }.of(seed)) >> 1;
    first + u64::from(attempt)
}

impl fmt::Debug for BlockSampler {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BlockSampler")
            .field("blocks", self.blocks())
            .field("tracks", &self.tracks())
            .field("seed", &self.seed)
            .finish_non_exhaustive()
    }
}
