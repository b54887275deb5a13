//! Where a run of an iterable stands: in a state of each rank.

use super::{Begun, GoesOn, Iterable, Stands};
use crate::batch::Batch;
use crate::error::Result;
use crate::loader::inner::LoaderInner;
use crate::loader::iterable_state::{IterableOwner, IterableState};
use crate::loader::state::Owner;
use crate::pipeline::EpochHandle;

impl Stands<Iterable> for IterableState {
    fn of_run<B: Batch>(loader: &LoaderInner<B>) -> IterableState {
        let owner = owner(loader); // first: it calls the program's code
        let last = loader.last();
        if let Some(handle) = last.handles().next() {
            return reached(handle, owner);
        }
        let start = last.start(loader.pipeline().options());
        let items = start.position / owner.ranks;
        IterableState::new(start.epoch, items, last.iterable(), owner)
    }

    fn of_epoch<B: Batch>(loader: &LoaderInner<B>, epoch: Begun<'_>) -> IterableState {
        reached(epoch.handle, owner(loader))
    }

    fn go_on<B: Batch>(&self, loader: &LoaderInner<B>) -> Result<GoesOn> {
        let owner = owner(loader);
        self.check(owner)?;
        Ok(GoesOn {
            start: self.start(owner.ranks),
            iterable: self.source(),
        })
    }
}

/// What the loader's states belong to.
pub(in crate::loader) fn owner<B: Batch>(loader: &LoaderInner<B>) -> IterableOwner {
    let Owner {
        data, seed, ranks, ..
    } = loader.owner(1);
    IterableOwner {
        data: Some(data),
        seed,
        rank: loader.pipeline().options().shard,
        ranks,
    }
}

/// Where the run stands after the batches of an epoch handle that were given out.
fn reached(handle: &EpochHandle, owner: IterableOwner) -> IterableState {
    let reached = handle.reached.as_ref();
    let reached = reached.map(|reached| reached.lock().clone());
    let (reached, epoch) = (reached.unwrap_or_default(), handle.start.epoch);
    match reached.is_over {
        true => IterableState::new(epoch.saturating_add(1), 0, None, owner),
        false => IterableState::new(epoch, reached.items, reached.state, owner),
    }
}
