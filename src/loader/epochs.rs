//! Several epochs, one after the other: the next is loaded while the last batches of one are used.

use std::fmt;
use std::iter::{Fuse, FusedIterator};

use super::device_epoch::{DeviceEpoch, Sending};
use super::epoch::{Epoch, Loader};
use super::line::{Begun, Line};
use crate::batch::Batch;
use crate::device::Device;
use crate::sync::Arc;

/// Several passes over the data set, one after the other: [`DataLoader::epochs`](crate::DataLoader::epochs) makes it.
///
/// An epoch that is dropped before its end is given up, and the iteration goes on with the next. Dropping the iterator
/// stops what was loaded ahead of its epoch, without waiting; that epoch itself goes on.
///
/// # Examples
///
/// ```
/// use pinfeed::{DataLoader, from_fn};
///
/// let loader = DataLoader::builder(from_fn(100, |index, _| Ok(index as i64)))
///     .batch_size(10)
///     .num_workers(2)
///     .build()?;
/// for epoch in loader.epochs(3..5) { // goes on where an earlier run stopped
///     let number = epoch.number();
///     for batch in epoch {
///         let numbers = batch?;
///         # assert_eq!(numbers.len(), 10);
///     }
///     println!("epoch {number} is done");
/// }
/// # Ok::<(), pinfeed::Error>(())
/// ```
#[must_use = "it gives its epochs to who iterates it"]
pub struct Epochs<'a, B: Batch, I> {
    loader: Loader<'a, B>,
    numbers: Fuse<I>,
    /// What follows the epoch that was given out last.
    line: Option<Arc<Line<B>>>,
}

impl<'a, B: Batch, I: Iterator<Item = u64>> Epochs<'a, B, I> {
    pub(super) fn new(loader: Loader<'a, B>, numbers: I) -> Epochs<'a, B, I> {
        Epochs {
            loader,
            numbers: numbers.fuse(),
            line: None,
        }
    }

    /// Sends the batches of all epochs to the device ahead of the consumer, as [`Epoch::to_device`] does, across the
    /// boundaries too: behind the last batches of one epoch, the first of the next are sent.
    ///
    /// # Synchronization
    ///
    /// The device tensors are guarded by their copy's event, as with [`Batch::to_device`] and `non_blocking`.
    pub fn to_device(self, device: &Device, depth: usize) -> DeviceEpochs<'a, B, I> {
        DeviceEpochs {
            epochs: self,
            device: device.clone(),
            depth,
        }
    }

    /// The next epoch, and how it is sent if that was begun.
    fn advance(&mut self) -> Option<(Epoch<'a, B>, Option<Sending<B>>)> {
        let (mut epoch, sending) = match self.line.take().and_then(|line| line.take()) {
            Some((number, begun)) => self.come_to(number, begun),
            None => {
                let number = self.numbers.next()?;
                (self.begin(number), None)
            }
        };
        // Without workers nothing can be loaded ahead, and nobody needs to know what follows.
        if self.loader.pipeline().options.workers > 0 {
            self.line = self.numbers.next().map(Line::new);
            epoch.set_line(self.line.clone());
        }
        Some((epoch, sending))
    }

    fn begin(&self, number: u64) -> Epoch<'a, B> {
        Epoch::begin(self.loader.clone(), number, true)
    }

    fn come_to(&self, number: u64, begun: Option<Begun<B>>) -> (Epoch<'a, B>, Option<Sending<B>>) {
        let Some((pass, sending)) = begun else {
            return (self.begin(number), None);
        };
        match Epoch::come_to(self.loader.clone(), pass) {
            Ok(epoch) => (epoch, sending),
            Err(given_up) => {
                drop((given_up, sending));
                (self.begin(number), None)
            }
        }
    }

    /// How many epochs are to come that the numbers do not know of any more.
    fn waiting(&self) -> usize {
        usize::from(self.line.is_some())
    }
}

impl<'a, B: Batch, I: Iterator<Item = u64>> Iterator for Epochs<'a, B, I> {
    type Item = Epoch<'a, B>;

    fn next(&mut self) -> Option<Epoch<'a, B>> {
        self.advance().map(|(epoch, _)| epoch)
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        let (least, most) = self.numbers.size_hint();
        let more = self.waiting();
        (
            least.saturating_add(more),
            most.and_then(|most| most.checked_add(more)),
        )
    }
}

impl<B: Batch, I: ExactSizeIterator<Item = u64>> ExactSizeIterator for Epochs<'_, B, I> {}
impl<B: Batch, I: Iterator<Item = u64>> FusedIterator for Epochs<'_, B, I> {}

impl<B: Batch, I> Drop for Epochs<'_, B, I> {
    fn drop(&mut self) {
        let next = self.line.take().and_then(|line| line.take());
        if let Some((_, Some((pass, sending)))) = next {
            self.loader.pipeline().end(&pass.live);
            drop((pass, sending));
        }
    }
}

impl<B: Batch, I> fmt::Debug for Epochs<'_, B, I> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Epochs")
            .field("loader", self.loader.get())
            .finish_non_exhaustive()
    }
}

/// Several passes over the data set, one after the other, on a device: [`Epochs::to_device`] makes it.
///
/// # Examples
///
/// ```
/// use pinfeed::{DataLoader, Device, from_fn};
///
/// let device = Device::cpu();
/// let loader = DataLoader::builder(from_fn(100, |index, _| Ok(index as i64)))
///     .batch_size(10)
///     .num_workers(2)
///     .pin_memory(&device)
///     .build()?;
/// let mut steps = 0;
/// for epoch in loader.epochs(0..3).to_device(&device, 1) {
///     for batch in epoch {
///         let _numbers = batch?; // on the device
///         steps += 1;
///     }
/// }
/// assert_eq!(steps, 30);
/// # Ok::<(), pinfeed::Error>(())
/// ```
#[must_use = "it gives its epochs to who iterates it"]
pub struct DeviceEpochs<'a, B: Batch, I> {
    epochs: Epochs<'a, B, I>,
    device: Device,
    depth: usize,
}

impl<'a, B: Batch, I: Iterator<Item = u64>> Iterator for DeviceEpochs<'a, B, I> {
    type Item = DeviceEpoch<'a, B>;

    fn next(&mut self) -> Option<DeviceEpoch<'a, B>> {
        let (epoch, sending) = self.epochs.advance()?;
        let mut epoch = match sending {
            Some(sending) => DeviceEpoch::new(epoch, sending),
            None => epoch.to_device(&self.device, self.depth),
        };
        epoch.go_on();
        Some(epoch)
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        self.epochs.size_hint()
    }
}

impl<B: Batch, I: ExactSizeIterator<Item = u64>> ExactSizeIterator for DeviceEpochs<'_, B, I> {}
impl<B: Batch, I: Iterator<Item = u64>> FusedIterator for DeviceEpochs<'_, B, I> {}

impl<B: Batch, I> fmt::Debug for DeviceEpochs<'_, B, I> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DeviceEpochs")
            .field("epochs", &self.epochs)
            .field("device", &self.device)
            .field("depth", &self.depth)
            .finish()
    }
}
