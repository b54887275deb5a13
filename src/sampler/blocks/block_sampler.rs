//! The order.

use std::num::NonZeroU64;

use super::{Blocks, Opening, Openings};
use crate::sampler::Sampler;
use crate::sync::Arc;

/// All samples once, in an order that reads blocks in sequence.
#[derive(Debug, Clone)]
pub struct BlockSampler {
    blocks: Arc<Blocks>,
    tracks: NonZeroU64,
    seed: u64,
    has_own_seed: bool,
    in_order: bool,
}

impl BlockSampler {
    /// Makes random orders of all samples.
    pub fn new(blocks: Arc<Blocks>) -> BlockSampler {
        BlockSampler {
            blocks,
            tracks: NonZeroU64::MIN,
            seed: 0,
            has_own_seed: false,
            in_order: false,
        }
    }

    /// The samples in the data set's order, block after block.
    pub fn in_order(blocks: Arc<Blocks>) -> BlockSampler {
        BlockSampler {
            in_order: true,
            ..BlockSampler::new(blocks)
        }
    }

    /// Sets how many blocks are open at a time, over all ranks together.
    pub fn with_tracks(self, tracks: NonZeroU64) -> BlockSampler {
        BlockSampler { tracks, ..self }
    }

    /// With orders that follow from this seed, whatever the loader's is.
    pub fn with_seed(self, seed: u64) -> BlockSampler {
        BlockSampler {
            seed,
            has_own_seed: true,
            ..self
        }
    }
}

impl Sampler for BlockSampler {
    fn len(&self) -> u64 {
        self.blocks.samples()
    }

    // A stub: the order comes with the next commits.
    fn index(&self, _epoch: u64, position: u64) -> u64 {
        position
    }

    fn set_seed(&mut self, seed: u64) {
        if !self.has_own_seed {
            self.seed = seed;
        }
    }

    fn tracks(&self) -> Option<NonZeroU64> {
        Some(self.tracks)
    }

    fn openings(&self, _epoch: u64, from: u64, lane: u64, lanes: u64) -> Option<Openings> {
        let blocks = Arc::clone(&self.blocks);
        let lanes = lanes.max(1);
        let openings = (0..blocks.len()).filter_map(move |block| {
            let samples = blocks.range(block);
            let start = samples.start.max(from);
            let first = start + (lane + lanes - start % lanes) % lanes;
            let uses = samples.end.checked_sub(first)?.div_ceil(lanes);
            (uses > 0).then(|| Opening {
                block,
                samples,
                first,
                until: first + (uses - 1) * lanes + 1,
                uses,
            })
        });
        Some(Openings::new(openings))
    }
}
