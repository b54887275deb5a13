//! What loaders of indexed data sets have, and those of iterables do not: a length, and a state that all ranks share.

use super::kind::{Begun, GoesOn, Indexed, Stands};
use super::{DataLoader, LoaderState, last};
use crate::batch::Batch;
use crate::error::Result;
use crate::pipeline::{EpochHandle, Start};

impl<B: Batch> DataLoader<B> {
    /// Returns the number of batches in an epoch, which is the same on every rank: `floor(n / b)` with `drop_last`, otherwise
    /// `ceil(n / b)`, where `n` is the number of samples in the order of all ranks, and `b` the number of samples in a global batch.
    ///
    /// With [`Sharding::Strided`](crate::loader::Sharding::Strided), `n` is the number of samples that each rank gets, and `b` its own
    /// batch size.
    ///
    /// It is 0 if there are no samples or, with `drop_last`, fewer than a global batch has; [`build`](crate::loader::Builder::build) logs a
    /// warning then.
    ///
    /// With a [batch sampler](crate::sampler::BatchSampler), it is that of epoch 0, whose lists it makes unless they are known:
    /// [`Epoch::len`](ExactSizeIterator::len) is exact for each epoch.
    pub fn len(&self) -> usize {
        let batches = self.threads.pipeline().options().first_epoch().batches;
        usize::try_from(batches).unwrap_or(usize::MAX)
    }

    /// Whether an epoch has no batches.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the state of a run that has had `position` samples of an epoch's order, on all ranks together: to resume at a step whose
    /// state was not saved. A position at or beyond the order's end is the beginning of the next epoch.
    ///
    /// # Examples
    ///
    /// ```
    /// use pinfeed::{DataLoader, from_fn};
    ///
    /// let loader = DataLoader::builder(from_fn(1_000, |index, _| Ok(index as i64))).batch_size(10).build()?;
    /// let step = 40; // of epoch 2
    /// let mut epochs = loader.resume(0..9, &loader.state_at(2, step * 10))?;
    /// let batch = epochs.next().unwrap().next().unwrap()?;
    /// assert_eq!(batch.as_slice()[0], 400);
    /// # Ok::<(), pinfeed::Error>(())
    /// ```
    pub fn state_at(&self, epoch: u64, position: u64) -> LoaderState {
        let batching = &self.threads.pipeline().options().batching;
        let start = match position < batching.samples(epoch) {
            true => Start::at(epoch, position),
            false => Start::of(epoch.saturating_add(1)),
        };
        self.state_from(start, 1)
    }

    /// The state of a run that so many devices share.
    fn state_from(&self, start: Start, devices: u64) -> LoaderState {
        let shard = self.threads.pipeline().options().shard;
        let devices = start.bound_to.unwrap_or(devices);
        let state = LoaderState::new(start, shard, self.owner(devices));
        let pipeline = self.threads.pipeline();
        if pipeline.has_lost_threads() {
            return state;
        }
        let share = &pipeline.learned().share;
        state.of_share(share.from(start.epoch, start.position))
    }

    /// Where a rank stands whose batches several devices are given in any order, if one of them has this handle.
    fn start_of_rank(&self, handle: &EpochHandle) -> Start {
        let last = self.last();
        match last.is_of(handle.share) {
            true => last.start(self.threads.pipeline().options()),
            // Where the others stand is not known any more.
            false => handle.start,
        }
    }
}

impl Stands<Indexed> for LoaderState {
    fn of_run<B: Batch>(loader: &DataLoader<B>) -> LoaderState {
        loader.owner(1); // first: it calls the program's code
        let last = loader.last();
        let start = last.start(loader.threads.pipeline().options());
        loader.state_from(start, last.devices())
    }

    fn of_epoch<B: Batch>(loader: &DataLoader<B>, epoch: Begun<'_>) -> LoaderState {
        let Begun { handle, partition } = epoch;
        if partition.is_refused() {
            return loader.state();
        }
        let (options, devices) = (&loader.threads.pipeline().options, handle.share.of);
        let is_any_order = handle.progress.next().is_none();
        let start = match is_any_order && devices > 1 {
            true => loader.start_of_rank(handle),
            false => last::reached(handle, partition, &options[handle.share.device]),
        };
        loader.state_from(start, devices)
    }

    fn go_on<B: Batch>(&self, loader: &DataLoader<B>) -> Result<GoesOn> {
        let pipeline = loader.threads.pipeline();
        let (options, devices) = (pipeline.options(), pipeline.options.len() as u64);
        self.check(loader.owner(1), options.shard, devices)?;
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
