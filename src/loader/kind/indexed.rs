//! Where a run of an indexed data set stands: in a state that all ranks share.

use super::{Begun, GoesOn, Indexed, Stands};
use crate::batch::Batch;
use crate::error::Result;
use crate::loader::inner::LoaderInner;
use crate::loader::last;
use crate::loader::state::{LoaderState, Owner};
use crate::pipeline::{EpochHandle, Options, Start};

impl Stands<Indexed> for LoaderState {
    fn of_run<B: Batch>(loader: &LoaderInner<B>) -> LoaderState {
        loader.owner(1); // first: it calls the program's code
        let last = loader.last();
        let start = last.start(loader.pipeline().options());
        state_from(loader, start, last.devices())
    }

    fn of_epoch<B: Batch>(loader: &LoaderInner<B>, epoch: Begun<'_>) -> LoaderState {
        let Begun { handle, partition } = epoch;
        if partition.is_refused() {
            return LoaderState::of_run(loader);
        }
        let (options, devices) = (&loader.pipeline().options, handle.share.of);
        let is_any_order = handle.progress.next().is_none();
        let start = match is_any_order && devices > 1 {
            true => start_of_rank(loader, handle),
            false => last::reached(handle, partition, &options[handle.share.device]),
        };
        state_from(loader, start, devices)
    }

    fn go_on<B: Batch>(&self, loader: &LoaderInner<B>) -> Result<GoesOn> {
        let pipeline = loader.pipeline();
        let (options, devices) = (pipeline.options(), pipeline.options.len() as u64);
        let owner = loader.owner(1);
        let owner = match self.names_batches_of_one_of_several() {
            true => dealt(owner, options),
            false => owner,
        };
        self.check(owner, options.shard, devices)?;
        let start = self.start();
        options.batching.check(start)?;
        if let Some(share) = self.share() {
            pipeline.learned().share.resume(share);
        }
        Ok(GoesOn {
            start,
            iterable: None,
        })
    }
}

/// The state of a run that so many devices share.
pub(in crate::loader) fn state_from<B: Batch>(
    loader: &LoaderInner<B>,
    start: Start,
    devices: u64,
) -> LoaderState {
    let shard = loader.pipeline().options().shard;
    let devices = start.bound_to.unwrap_or(devices);
    let owner = loader.owner(devices);
    let state = LoaderState::new(start, shard, owner);
    let state = match state.names_batches_of_one_of_several() {
        true => LoaderState::new(start, shard, dealt(owner, loader.pipeline().options())),
        false => state,
    };
    let pipeline = loader.pipeline();
    if pipeline.has_lost_threads() {
        return state;
    }
    let share = &pipeline.learned().share;
    state.of_share(share.from(start.epoch, start.position))
}

/// What a state belongs to that names batches: it matters how these are dealt out.
fn dealt(owner: Owner, options: &Options) -> Owner {
    Owner {
        order: options.batching.mark_dealing(owner.order),
        ..owner
    }
}

/// Where a rank stands whose batches several devices are given in any order, if one of them has this handle.
fn start_of_rank<B: Batch>(loader: &LoaderInner<B>, handle: &EpochHandle) -> Start {
    let last = loader.last();
    match last.is_of(handle.share) {
        true => last.start(loader.pipeline().options()),
        // Where the others stand is not known any more.
        false => handle.start,
    }
}
