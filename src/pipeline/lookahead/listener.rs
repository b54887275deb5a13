//! What is told which samples come, whatever these are: [`Listener`].

use std::num::NonZeroU64;

use crate::dataset::{Dataset, Pass};
use crate::error::Result;
use crate::pipeline::plan::lister::Batching;
use crate::pipeline::plan::options::Options;
use crate::pipeline::plan::partition::Start;
use crate::pipeline::plan::shard::DeviceShard;
use crate::sampler::Openings;

/// What is told: a data set, with its samples' type erased.
pub(crate) trait Listener: Send + Sync {
    fn samples(&self) -> u64;
    fn lookahead(&self) -> usize;
    fn has_blocks(&self) -> bool;
    fn check_room(&self, openings: Openings, tracks: NonZeroU64, share: usize) -> Result<()>;
    fn pass_began(&self, openings: Openings, pass: Pass);
    fn will_need(&self, indices: &[u64], pass: Pass);
    fn pass_ended(&self, pass: Pass);
}

impl<D: Dataset> Listener for D {
    fn samples(&self) -> u64 {
        self.len()
    }

    fn lookahead(&self) -> usize {
        Dataset::lookahead(self)
    }

    fn has_blocks(&self) -> bool {
        Dataset::blocks(self).is_some()
    }

    fn check_room(&self, openings: Openings, tracks: NonZeroU64, share: usize) -> Result<()> {
        Dataset::check_room(self, openings, tracks, share)
    }

    fn pass_began(&self, openings: Openings, pass: Pass) {
        Dataset::pass_began(self, openings, pass);
    }

    fn will_need(&self, indices: &[u64], pass: Pass) {
        Dataset::will_need(self, indices, pass);
    }

    fn pass_ended(&self, pass: Pass) {
        Dataset::pass_ended(self, pass);
    }
}

/// Refuses a data set that has no room for the blocks that are open at the same time.
pub(crate) fn check_room(listener: &dyn Listener, options: &Options, devices: u64) -> Result<()> {
    if !listener.has_blocks() {
        return Ok(());
    }
    let Batching::Even(even) = &options.batching else {
        return Ok(());
    };
    let Some(tracks) = even.sampler.tracks() else {
        return Ok(());
    };
    // A rank may have its batches for itself, or share them among its devices, which then share the room.
    let of_devices = (0..devices).filter(|_| devices > 1);
    let shares = of_devices.map(|index| DeviceShard {
        index,
        of: devices,
        ..DeviceShard::WHOLE
    });
    for share in std::iter::once(DeviceShard::WHOLE).chain(shares) {
        if let Some(openings) = options.openings(Start::of(0), share) {
            listener.check_room(openings, tracks, share.of as usize)?;
        }
    }
    Ok(())
}
