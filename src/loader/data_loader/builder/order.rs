//! Which order the samples come in, and how ranks share it, unless the program says so.

use crate::error::{Error, Result};
use crate::pipeline::Sharding;
use crate::sampler::{BlockSampler, Blocks, RandomSampler, Sampler, SequentialSampler};
use crate::sync::Arc;
use crate::sync::log;

/// The order of a data set of `len` samples, which may be read by the block.
pub(super) fn usual_sampler(
    len: u64,
    blocks: Option<Arc<Blocks>>,
    shuffle: bool,
    seed: u64,
) -> Result<Arc<dyn Sampler>> {
    let Some(blocks) = blocks else {
        return Ok(match shuffle {
            true => Arc::new(RandomSampler::with_seed(len, seed)),
            false => Arc::new(SequentialSampler::new(len)),
        });
    };
    if blocks.samples() != len {
        return Err(Error::option(
            "dataset",
            format!(
                "has {len} samples, and its blocks (Dataset::blocks) have {}: each sample must be in one block",
                blocks.samples()
            ),
        ));
    }
    Ok(match shuffle {
        true => Arc::new(BlockSampler::new(blocks).with_seed(seed)),
        false => Arc::new(BlockSampler::in_order(blocks)),
    })
}

/// How ranks share an order.
pub(super) fn usual_sharding(sampler: &dyn Sampler) -> Sharding {
    match sampler.tracks() {
        Some(_) => Sharding::Interleaved,
        None => Sharding::Slices,
    }
}

/// Says so if ranks read the same blocks, or have too few of their own. `lanes`: how many ranks there are, of which each device counts.
pub(super) fn warn_of_tracks(sampler: &dyn Sampler, sharding: Sharding, lanes: u64) {
    let Some(tracks) = sampler.tracks().map(u64::from).filter(|_| lanes > 1) else {
        return;
    };
    if let Some(complaint) = complaint_of(tracks, sharding, lanes) {
        log::warn!("{complaint}");
    }
}

/// Below so many tracks for each lane, rows side by side in a batch are often of one block.
const TRACKS_OF_A_LANE: u64 = 4;

fn complaint_of(tracks: u64, sharding: Sharding, lanes: u64) -> Option<String> {
    let better = tracks
        .max(lanes.saturating_mul(TRACKS_OF_A_LANE))
        .checked_next_multiple_of(lanes)
        .unwrap_or(tracks);
    let who = "ranks (each device counts as one)";
    if sharding == Sharding::Slices {
        return Some(format!(
            "each of {lanes} {who} reads all blocks, because sharding is Slices: leave it out, or use Sharding::Interleaved"
        ));
    }
    if tracks == 1 {
        return Some(format!(
            "each of {lanes} {who} reads all blocks, because the order has one track, as the data set's own order has: use shuffle(true), \
             or give BlockSampler::with_tracks {better}"
        ));
    }
    if !tracks.is_multiple_of(lanes) {
        return Some(format!(
            "several ranks read each block, because the order has {tracks} tracks, of which {lanes} {who} cannot have equally many: give \
             BlockSampler::with_tracks a multiple of {lanes}, such as {better}"
        ));
    }
    (tracks < lanes.saturating_mul(TRACKS_OF_A_LANE)).then(|| {
        format!(
            "the order has {tracks} tracks for {lanes} {who}: a batch has samples of {} blocks only. Give BlockSampler::with_tracks \
             {better}, or cut the data into more blocks",
            tracks / lanes
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_better_number_of_tracks_is_named() {
        let said =
            |tracks, sharding, lanes| complaint_of(tracks, sharding, lanes).unwrap_or_default();
        let interleaved = Sharding::Interleaved;
        assert_eq!(said(384, interleaved, 8), "");
        assert_eq!(said(384, interleaved, 96), "");
        assert!(said(384, interleaved, 128).contains("with_tracks 512"));
        assert!(said(384, interleaved, 40).contains("such as 400"));
        assert!(said(24, interleaved, 40).contains("such as 160"));
        assert!(said(1, interleaved, 2).contains("reads all blocks"));
        assert!(said(384, Sharding::Slices, 8).contains("Sharding::Interleaved"));
    }
}
