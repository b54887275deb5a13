//! What a rank has left of an epoch: [`Left`].

use super::Shard;
use crate::error::BoxError;

/// What one rank has left of an epoch, of which other ranks are to go on with it ([`IterableDataset::hand_over`]).
///
/// [`IterableDataset::hand_over`]: super::IterableDataset::hand_over
///
/// # Examples
///
/// ```
/// use pinfeed::iterable::{Left, Shard};
///
/// let rank = Left::new(Shard::new(1, 4, 17), Some(vec![3, 0]));
/// assert_eq!((rank.shard().ranks(), rank.state()), (4, Some(&[3, 0][..])));
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Left {
    shard: Shard,
    state: Option<Vec<u8>>,
}

impl Left {
    /// Makes it of the rank's shard, and of where its iterator stands ([`ItemIter::state`](super::ItemIter::state)).
    pub fn new(shard: Shard, state: Option<Vec<u8>>) -> Left {
        Left { shard, state }
    }

    /// Returns the shard that the rank's source was opened with.
    pub fn shard(&self) -> Shard {
        self.shard
    }

    /// Returns where its iterator stands. `None`: it has not begun, and all of its shard is left.
    pub fn state(&self) -> Option<&[u8]> {
        self.state.as_deref()
    }

    /// What it has left of a source within the source.
    pub(super) fn of_child(&self, number: u64, state: Option<Vec<u8>>) -> Left {
        Left {
            shard: self.shard.of_child(number),
            state,
        }
    }
}

/// The number of an item that no rank has had, if `most` is the highest that those have come to which are `left`. A rank that has ended the
/// epoch is not among these, and may have had more; but all begin the numbers of an epoch, or of its rest, at the same one.
pub(crate) fn behind(most: u64, left: &[Left]) -> u64 {
    /// More than one rank has of an epoch.
    const MANY: u64 = 1 << 40;

    let ranks = left.first().map_or(0, |rank| rank.shard.ranks());
    match left.len() as u64 == ranks {
        true => most,
        false => (most / MANY + 1).saturating_mul(MANY),
    }
}

/// Why a source is not handed over.
pub(super) fn bound() -> BoxError {
    "the source, or what is done to it, goes on with as many ranks as before only. What is handed over to another number of ranks is a stream of \
     shards (`webdataset`) with `shuffle`, `filter` and `map` behind it"
        .into()
}
