//! Epochs of streams: as those of data sets, without a length.

use std::fmt;
use std::iter::FusedIterator;
use std::time::Duration;

use super::info::WithInfo;
use super::stream::state_of;
use super::{DeviceEpoch, DeviceEpochs, Epoch, Epochs, Stats, StreamState, TryNext};
use crate::batch::Batch;
use crate::device::Target;
use crate::error::Result;

/// One pass over a stream: gives its batches in order, until the stream ends. As [`Epoch`], without a length.
///
/// # Examples
///
/// ```
/// use pinfeed::{DataLoader, stream};
///
/// let numbers = stream::from_fn(|_, _| Ok((0..10i64).map(Ok)));
/// let loader = DataLoader::stream(numbers).batch_size(4).build()?;
/// let sizes: Vec<_> = loader.epoch(3).map(|batch| Ok(batch?.len())).collect::<pinfeed::Result<_>>()?;
/// assert_eq!(sizes, [4, 4, 2]);
/// # Ok::<(), pinfeed::Error>(())
/// ```
#[must_use = "an epoch does nothing unless it is iterated"]
pub struct StreamEpoch<'a, B: Batch> {
    pub(super) epoch: Epoch<'a, B>,
}

impl<'a, B: Batch> StreamEpoch<'a, B> {
    /// Returns the number of this epoch.
    pub fn number(&self) -> u64 {
        self.epoch.number()
    }

    /// Returns where the run stands in this epoch, on this rank: after the batches that were given out.
    pub fn state(&self) -> StreamState {
        state_of(self.epoch.loader(), self.epoch.handle())
    }

    /// Returns statistics of this epoch so far, as [`Epoch::stats`].
    pub fn stats(&self) -> Stats {
        self.epoch.stats()
    }

    /// Gives with each batch what it is. Its indices are the numbers of this rank's items, counted from 0 in each epoch.
    pub fn with_info(self) -> WithInfo<StreamEpoch<'a, B>> {
        WithInfo::new(self)
    }

    /// Sends batches to the device ahead of the consumer, as [`Epoch::prefetch_to_device`]. (They do not travel in parts.)
    pub fn prefetch_to_device(
        self,
        target: impl Into<Target>,
        depth: usize,
    ) -> StreamDeviceEpoch<'a, B> {
        StreamDeviceEpoch {
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

impl<B: Batch> Iterator for StreamEpoch<'_, B> {
    type Item = Result<B>;

    fn next(&mut self) -> Option<Result<B>> {
        self.epoch.next()
    }
}

impl<B: Batch> FusedIterator for StreamEpoch<'_, B> {}

impl<B: Batch> fmt::Debug for StreamEpoch<'_, B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StreamEpoch")
            .field("number", &self.number())
            .finish_non_exhaustive()
    }
}

/// One pass over a stream, on a device: [`StreamEpoch::prefetch_to_device`] makes it. As [`DeviceEpoch`], without a length.
///
/// # Examples
///
/// ```
/// use pinfeed::{DataLoader, Device, stream};
///
/// let device = Device::cpu();
/// let numbers = stream::from_fn(|_, _| Ok((0..10i64).map(Ok)));
/// let loader = DataLoader::stream(numbers).batch_size(4).num_workers(2).pin_memory(&device).build()?;
/// for batch in loader.epoch(0).prefetch_to_device(&device, 2) {
///     let numbers = batch?; // on the device
///     # assert!(numbers.len() <= 4);
/// }
/// # Ok::<(), pinfeed::Error>(())
/// ```
#[must_use = "an epoch does nothing unless it is iterated"]
pub struct StreamDeviceEpoch<'a, B: Batch> {
    epoch: DeviceEpoch<'a, B>,
}

impl<'a, B: Batch> StreamDeviceEpoch<'a, B> {
    /// Returns the number of this epoch.
    pub fn number(&self) -> u64 {
        self.epoch.number()
    }

    /// Returns where the run stands in this epoch, on this rank: after the batches that were given out, not those that were sent ahead.
    pub fn state(&self) -> StreamState {
        let epoch = self.epoch.inner();
        state_of(epoch.loader(), epoch.handle())
    }

    /// Returns statistics of this epoch so far, as [`Epoch::stats`].
    pub fn stats(&self) -> Stats {
        self.epoch.stats()
    }

    /// Gives with each batch what it is. Its indices are the numbers of this rank's items, counted from 0 in each epoch.
    pub fn with_info(self) -> WithInfo<StreamDeviceEpoch<'a, B>> {
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

impl<B: Batch> Iterator for StreamDeviceEpoch<'_, B> {
    type Item = Result<B::OnDevice>;

    fn next(&mut self) -> Option<Result<B::OnDevice>> {
        self.epoch.next()
    }
}

impl<B: Batch> FusedIterator for StreamDeviceEpoch<'_, B> {}

impl<B: Batch> fmt::Debug for StreamDeviceEpoch<'_, B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StreamDeviceEpoch")
            .field("number", &self.number())
            .finish_non_exhaustive()
    }
}

/// Several passes over a stream, one after the other: [`StreamLoader::epochs`](super::StreamLoader::epochs) makes it. As [`Epochs`].
///
/// # Examples
///
/// ```
/// use pinfeed::{DataLoader, stream};
///
/// let numbers = stream::from_fn(|epoch, _| Ok((0..4).map(move |number| Ok(100 * epoch as i64 + number))));
/// let loader = DataLoader::stream(numbers).batch_size(4).num_workers(2).build()?;
/// for epoch in loader.epochs(0..3) {
///     let number = epoch.number() as i64;
///     for batch in epoch {
///         assert_eq!(batch?.as_slice()[0], 100 * number);
///     }
/// }
/// # Ok::<(), pinfeed::Error>(())
/// ```
#[must_use = "epochs do nothing unless they are iterated"]
pub struct StreamEpochs<'a, B: Batch, I> {
    pub(super) epochs: Epochs<'a, B, I>,
}

impl<'a, B: Batch, I: Iterator<Item = u64>> StreamEpochs<'a, B, I> {
    /// Sends the batches of all epochs to the device ahead of the consumer, as [`Epochs::prefetch_to_device`].
    pub fn prefetch_to_device(
        self,
        target: impl Into<Target>,
        depth: usize,
    ) -> StreamDeviceEpochs<'a, B, I> {
        StreamDeviceEpochs {
            epochs: self.epochs.prefetch_to_device(target, depth),
        }
    }
}

impl<'a, B: Batch, I: Iterator<Item = u64>> Iterator for StreamEpochs<'a, B, I> {
    type Item = StreamEpoch<'a, B>;

    fn next(&mut self) -> Option<StreamEpoch<'a, B>> {
        let epoch = self.epochs.next()?;
        Some(StreamEpoch { epoch })
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        self.epochs.size_hint()
    }
}

impl<B: Batch, I: Iterator<Item = u64>> FusedIterator for StreamEpochs<'_, B, I> {}

impl<B: Batch, I> fmt::Debug for StreamEpochs<'_, B, I> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StreamEpochs").finish_non_exhaustive()
    }
}

/// Several passes over a stream, one after the other, on a device: [`StreamEpochs::prefetch_to_device`] makes it. As [`DeviceEpochs`].
///
/// # Examples
///
/// ```
/// use pinfeed::{DataLoader, Device, stream};
///
/// let device = Device::cpu();
/// let numbers = stream::from_fn(|_, _| Ok((0..10i64).map(Ok)));
/// let loader = DataLoader::stream(numbers).batch_size(4).num_workers(2).pin_memory(&device).build()?;
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
pub struct StreamDeviceEpochs<'a, B: Batch, I> {
    epochs: DeviceEpochs<'a, B, I>,
}

impl<'a, B: Batch, I: Iterator<Item = u64>> Iterator for StreamDeviceEpochs<'a, B, I> {
    type Item = StreamDeviceEpoch<'a, B>;

    fn next(&mut self) -> Option<StreamDeviceEpoch<'a, B>> {
        let epoch = self.epochs.next()?;
        Some(StreamDeviceEpoch { epoch })
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        self.epochs.size_hint()
    }
}

impl<B: Batch, I: Iterator<Item = u64>> FusedIterator for StreamDeviceEpochs<'_, B, I> {}

impl<B: Batch, I> fmt::Debug for StreamDeviceEpochs<'_, B, I> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StreamDeviceEpochs").finish_non_exhaustive()
    }
}
