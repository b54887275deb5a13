//! Epochs of iterables: as those of data sets, without a length.

use std::fmt;
use std::iter::FusedIterator;
use std::time::Duration;

use super::info::WithInfo;
use super::iterable::state_of;
use super::{DeviceEpoch, DeviceEpochs, Epoch, Epochs, IterableState, Stats, TryNext};
use crate::batch::Batch;
use crate::device::Target;
use crate::error::Result;

/// One pass over an iterable: gives its batches in order, until the iterable ends. As [`Epoch`], without a length.
///
/// # Examples
///
/// ```
/// use pinfeed::{DataLoader, iterable};
///
/// let numbers = iterable::from_fn(|_, _| Ok((0..10i64).map(Ok)));
/// let loader = DataLoader::iterable(numbers).batch_size(4).build()?;
/// let sizes: Vec<_> = loader.epoch(3).map(|batch| Ok(batch?.len())).collect::<pinfeed::Result<_>>()?;
/// assert_eq!(sizes, [4, 4, 2]);
/// # Ok::<(), pinfeed::Error>(())
/// ```
#[must_use = "an epoch does nothing unless it is iterated"]
pub struct IterableEpoch<'a, B: Batch> {
    pub(super) epoch: Epoch<'a, B>,
}

impl<'a, B: Batch> IterableEpoch<'a, B> {
    /// Returns the number of this epoch.
    pub fn number(&self) -> u64 {
        self.epoch.number()
    }

    /// Returns where the run stands in this epoch, on this rank: after the batches that were given out.
    pub fn state(&self) -> IterableState {
        state_of(self.epoch.loader(), self.epoch.handle())
    }

    /// Returns statistics of this epoch so far, as [`Epoch::stats`].
    pub fn stats(&self) -> Stats {
        self.epoch.stats()
    }

    /// Gives with each batch what it is. Its indices are the numbers of this rank's items, counted from 0 in each epoch.
    pub fn with_info(self) -> WithInfo<IterableEpoch<'a, B>> {
        WithInfo::new(self)
    }

    /// Sends batches to the device ahead of the consumer, as [`Epoch::prefetch_to_device`]. (They do not travel in parts.)
    pub fn prefetch_to_device(
        self,
        target: impl Into<Target>,
        depth: usize,
    ) -> IterableDeviceEpoch<'a, B> {
        IterableDeviceEpoch {
            epoch: self.epoch.prefetch_to_device(target, depth),
        }
    }

    /// Gives the next batch if it is there, as [`Epoch::try_next`].
    pub fn try_next(&mut self) -> TryNext<Result<B>> {
        self.epoch.try_next()
    }

    /// Waits for the next batch for at most `timeout`, as [`Epoch::next_timeout`].
    pub fn next_timeout(&mut self, timeout: Duration) -> TryNext<Result<B>> {
        self.epoch.next_timeout(timeout)
    }

    pub(super) fn inner(&self) -> &Epoch<'a, B> {
        &self.epoch
    }
}

impl<B: Batch> Iterator for IterableEpoch<'_, B> {
    type Item = Result<B>;

    fn next(&mut self) -> Option<Result<B>> {
        self.epoch.next()
    }
}

impl<B: Batch> FusedIterator for IterableEpoch<'_, B> {}

impl<B: Batch> fmt::Debug for IterableEpoch<'_, B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("IterableEpoch")
            .field("number", &self.number())
            .finish_non_exhaustive()
    }
}

/// One pass over an iterable, on a device: [`IterableEpoch::prefetch_to_device`] makes it. As [`DeviceEpoch`], without a length.
///
/// # Examples
///
/// ```
/// use pinfeed::{DataLoader, Device, iterable};
///
/// let device = Device::cpu();
/// let numbers = iterable::from_fn(|_, _| Ok((0..10i64).map(Ok)));
/// let loader = DataLoader::iterable(numbers).batch_size(4).num_workers(2).pin_memory(&device).build()?;
/// for batch in loader.epoch(0).prefetch_to_device(&device, 2) {
///     let numbers = batch?; // on the device
///     # assert!(numbers.len() <= 4);
/// }
/// # Ok::<(), pinfeed::Error>(())
/// ```
#[must_use = "an epoch does nothing unless it is iterated"]
pub struct IterableDeviceEpoch<'a, B: Batch> {
    epoch: DeviceEpoch<'a, B>,
}

impl<'a, B: Batch> IterableDeviceEpoch<'a, B> {
    /// Returns the number of this epoch.
    pub fn number(&self) -> u64 {
        self.epoch.number()
    }

    /// Returns where the run stands in this epoch, on this rank: after the batches that were given out, not those that were sent ahead.
    pub fn state(&self) -> IterableState {
        let epoch = self.epoch.inner();
        state_of(epoch.loader(), epoch.handle())
    }

    /// Returns statistics of this epoch so far, as [`Epoch::stats`].
    pub fn stats(&self) -> Stats {
        self.epoch.stats()
    }

    /// Gives with each batch what it is. Its indices are the numbers of this rank's items, counted from 0 in each epoch.
    pub fn with_info(self) -> WithInfo<IterableDeviceEpoch<'a, B>> {
        WithInfo::new(self)
    }

    /// Gives the next batch if it is there, as [`DeviceEpoch::try_next`].
    pub fn try_next(&mut self) -> TryNext<Result<B::OnDevice>> {
        self.epoch.try_next()
    }

    /// Waits for the next batch for at most `timeout`, as [`DeviceEpoch::next_timeout`].
    pub fn next_timeout(&mut self, timeout: Duration) -> TryNext<Result<B::OnDevice>> {
        self.epoch.next_timeout(timeout)
    }

    pub(super) fn inner(&self) -> &Epoch<'a, B> {
        self.epoch.inner()
    }
}

impl<B: Batch> Iterator for IterableDeviceEpoch<'_, B> {
    type Item = Result<B::OnDevice>;

    fn next(&mut self) -> Option<Result<B::OnDevice>> {
        self.epoch.next()
    }
}

impl<B: Batch> FusedIterator for IterableDeviceEpoch<'_, B> {}

impl<B: Batch> fmt::Debug for IterableDeviceEpoch<'_, B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("IterableDeviceEpoch")
            .field("number", &self.number())
            .finish_non_exhaustive()
    }
}

/// Several passes over an iterable, one after the other: [`IterableLoader::epochs`](super::IterableLoader::epochs) makes it. As [`Epochs`].
///
/// # Examples
///
/// ```
/// use pinfeed::{DataLoader, iterable};
///
/// let numbers = iterable::from_fn(|epoch, _| Ok((0..4).map(move |number| Ok(100 * epoch as i64 + number))));
/// let loader = DataLoader::iterable(numbers).batch_size(4).num_workers(2).build()?;
/// for epoch in loader.epochs(0..3) {
///     let number = epoch.number() as i64;
///     for batch in epoch {
///         assert_eq!(batch?.as_slice()[0], 100 * number);
///     }
/// }
/// # Ok::<(), pinfeed::Error>(())
/// ```
#[must_use = "epochs do nothing unless they are iterated"]
pub struct IterableEpochs<'a, B: Batch, I> {
    pub(super) epochs: Epochs<'a, B, I>,
}

impl<'a, B: Batch, I: Iterator<Item = u64>> IterableEpochs<'a, B, I> {
    /// Sends the batches of all epochs to the device ahead of the consumer, as [`Epochs::prefetch_to_device`].
    pub fn prefetch_to_device(
        self,
        target: impl Into<Target>,
        depth: usize,
    ) -> IterableDeviceEpochs<'a, B, I> {
        IterableDeviceEpochs {
            epochs: self.epochs.prefetch_to_device(target, depth),
        }
    }
}

impl<'a, B: Batch, I: Iterator<Item = u64>> Iterator for IterableEpochs<'a, B, I> {
    type Item = IterableEpoch<'a, B>;

    fn next(&mut self) -> Option<IterableEpoch<'a, B>> {
        let epoch = self.epochs.next()?;
        Some(IterableEpoch { epoch })
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        self.epochs.size_hint()
    }
}

impl<B: Batch, I: Iterator<Item = u64>> FusedIterator for IterableEpochs<'_, B, I> {}

impl<B: Batch, I> fmt::Debug for IterableEpochs<'_, B, I> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("IterableEpochs").finish_non_exhaustive()
    }
}

/// Several passes over an iterable, one after the other, on a device: [`IterableEpochs::prefetch_to_device`] makes it. As [`DeviceEpochs`].
///
/// # Examples
///
/// ```
/// use pinfeed::{DataLoader, Device, iterable};
///
/// let device = Device::cpu();
/// let numbers = iterable::from_fn(|_, _| Ok((0..10i64).map(Ok)));
/// let loader = DataLoader::iterable(numbers).batch_size(4).num_workers(2).pin_memory(&device).build()?;
/// let mut steps = 0;
/// for epoch in loader.epochs(0..3).prefetch_to_device(&device, 1) {
///     for batch in epoch {
///         let _numbers = batch?; // on the device
///         steps += 1;
///     }
/// }
/// assert_eq!(steps, 9);
/// # Ok::<(), pinfeed::Error>(())
/// ```
#[must_use = "epochs do nothing unless they are iterated"]
pub struct IterableDeviceEpochs<'a, B: Batch, I> {
    epochs: DeviceEpochs<'a, B, I>,
}

impl<'a, B: Batch, I: Iterator<Item = u64>> Iterator for IterableDeviceEpochs<'a, B, I> {
    type Item = IterableDeviceEpoch<'a, B>;

    fn next(&mut self) -> Option<IterableDeviceEpoch<'a, B>> {
        let epoch = self.epochs.next()?;
        Some(IterableDeviceEpoch { epoch })
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        self.epochs.size_hint()
    }
}

impl<B: Batch, I: Iterator<Item = u64>> FusedIterator for IterableDeviceEpochs<'_, B, I> {}

impl<B: Batch, I> fmt::Debug for IterableDeviceEpochs<'_, B, I> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("IterableDeviceEpochs")
            .finish_non_exhaustive()
    }
}
