//! How much room the blocks take that are open at the same time.

use std::collections::BTreeMap;
use std::num::NonZeroU64;
use std::ops::Range;

use super::BlockSource;
use super::requests::Requests;
use crate::error::{Error, Result};
use crate::sampler::Openings;

/// A track, as far as a lane needs it.
struct Track {
    /// The largest of its pieces.
    most_bytes: u128,
    /// Its first piece of the epoch. The last may be the rest of the same: in other epochs, they are one.
    first: (u64, Range<u64>),
}

impl<S: BlockSource> Requests<S> {
    /// Refuses a bound that has no room for the pieces that are open at a time, in any epoch, and one more. Those of an epoch are enough to
    /// tell, for a track has the same ones in each.
    pub(super) fn check_room(
        &self,
        openings: Openings,
        tracks: NonZeroU64,
        share: usize,
    ) -> Result<()> {
        let share = share.max(1);
        let room = (self.max_bytes / share) as u128;
        let bytes_of = |block, samples| self.source.block_bytes(block, samples) as u128;
        let all = (0..self.blocks.len()).map(|block| bytes_of(block, self.blocks.range(block)));
        if self.max_bytes == usize::MAX || all.sum::<u128>() <= room {
            return Ok(());
        }
        let mut found: BTreeMap<u64, Track> = BTreeMap::new();
        for opening in openings {
            let (block, samples) = (opening.block, opening.samples);
            let track = found
                .entry(opening.first % tracks)
                .or_insert_with(|| Track {
                    most_bytes: 0,
                    first: (block, samples.clone()),
                });
            let (first, other) = &track.first;
            let whole = match *first == block {
                true => samples.start.min(other.start)..samples.end.max(other.end),
                false => samples,
            };
            track.most_bytes = track.most_bytes.max(bytes_of(block, whole));
        }
        let sum: u128 = found.values().map(|track| track.most_bytes).sum();
        let largest = found.values().map(|track| track.most_bytes).max();
        let needed = sum + largest.unwrap_or(0);
        if needed <= room {
            return Ok(());
        }
        let (open, bound) = (found.len(), self.max_bytes);
        let (of_one, all) = match share {
            1 => (String::new(), needed),
            _ => (
                format!(" on each of the rank's {share} devices"),
                needed * share as u128,
            ),
        };
        Err(Error::option(
            "Blocked::with_max_bytes",
            format!(
                "is {bound} bytes, and the {open} blocks that are open at a time{of_one} take up to {sum} bytes, with one that comes next \
                 {needed}: set at least {all}, or read smaller blocks, or fewer at a time (`BlockSampler::with_tracks`; {tracks} over all \
                 ranks now)"
            ),
        ))
    }
}
