//! What loaders of indexed data sets have, and those of iterables do not: a length, and a state of any position.

use super::DataLoader;
use crate::batch::Batch;
use crate::loader::kind::state_from;
use crate::loader::state::LoaderState;
use crate::pipeline::{DeviceShard, Start};

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
        let batches = self.pipeline().options().first_epoch().batches;
        usize::try_from(batches).unwrap_or(usize::MAX)
    }

    /// Whether an epoch has no batches.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the number of samples in an epoch's batches on this rank: without those that `drop_last` leaves out, and with the filler of
    /// [`LastBatch::Fill`](crate::loader::LastBatch::Fill). It is what a progress bar counts to. (Samples that are left out because they
    /// failed, [`OnError::Skip`](crate::loader::OnError::Skip), are not known before.)
    ///
    /// With a [batch sampler](crate::sampler::BatchSampler), it is that of epoch 0, as with [`len`](DataLoader::len).
    ///
    /// # Examples
    ///
    /// ```
    /// use pinfeed::{DataLoader, from_fn};
    ///
    /// let samples = || from_fn(100, |index, _| Ok(index as i64));
    /// let loader = DataLoader::builder(samples()).batch_size(30).build()?;
    /// assert_eq!((loader.len(), loader.samples()), (4, 100));
    /// let loader = DataLoader::builder(samples()).batch_size(30).drop_last(true).build()?;
    /// assert_eq!((loader.len(), loader.samples()), (3, 90));
    /// # Ok::<(), pinfeed::Error>(())
    /// ```
    pub fn samples(&self) -> u64 {
        let options = self.pipeline().options();
        let partition = options.partition(Start::of(0), DeviceShard::WHOLE);
        partition.all_rows()
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
        let batching = &self.pipeline().options().batching;
        let start = match position < batching.samples(epoch) {
            true => Start::at(epoch, position),
            false => Start::of(epoch.saturating_add(1)),
        };
        state_from(&self.inner, start, 1)
    }
}
