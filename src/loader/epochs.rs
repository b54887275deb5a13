//! Several epochs, one after the other: the next one is loaded while the last batches of the one before are used.

use std::fmt;
use std::iter::{Fuse, FusedIterator};
use std::marker::PhantomData;
use std::mem::ManuallyDrop;

use super::epoch::{DeviceEpoch, Epoch, shares};
use super::inner::Loader;
use super::kind::{Indexed, Kind};
use super::pace::{Lead, Pace};
use crate::batch::Batch;
use crate::device::Target;
use crate::pipeline::{Beginning, DeviceQueue, DeviceShard, EpochHandle, Start};
use crate::sync::{Arc, Instant};

/// Several passes over the data set, one after the other: [`DataLoader::epochs`](crate::DataLoader::epochs) makes it.
///
/// If an epoch is dropped before its end, the iteration goes on with the next. Dropping the iterator stops the loading of
/// later epochs, and does not wait; the epoch that was given out last goes on.
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
#[must_use = "epochs do nothing unless they are iterated"]
pub struct Epochs<'a, B: Batch, I, K: Kind = Indexed> {
    loader: Loader<'a, B>,
    /// Where the first epoch begins, if it was told already, and the state of its iterable.
    first: First,
    numbers: Fuse<I>,
    /// The epoch after the one that was given out last. It may be loading already.
    following: Option<EpochHandle>,
    /// Which of the rank's batches they have, and for which device.
    share: DeviceShard,
    /// How far its device has come, of several that share the epochs.
    pace: Option<Arc<Pace>>,
    kind: PhantomData<K>,
}

/// Where the first epoch begins, and the state of its iterable.
type First = Option<(Start, Option<Vec<u8>>)>;

impl<B: Batch, I, K: Kind> Epochs<'_, B, I, K> {
    fn has_lost_threads(&self) -> bool {
        self.loader.pipeline().has_lost_threads()
    }
}

impl<'a, B: Batch, I: Iterator<Item = u64>, K: Kind> Epochs<'a, B, I, K> {
    pub(super) fn new(loader: Loader<'a, B>, numbers: I) -> Epochs<'a, B, I, K> {
        Epochs::shared(loader, None, numbers.fuse(), DeviceShard::WHOLE, None)
    }

    fn shared(
        loader: Loader<'a, B>,
        first: First,
        numbers: Fuse<I>,
        share: DeviceShard,
        pace: Option<Arc<Pace>>,
    ) -> Epochs<'a, B, I, K> {
        Epochs {
            loader,
            first,
            numbers,
            following: None,
            share,
            pace,
            kind: PhantomData,
        }
    }

    /// What is to come: of which loader, from where on, and which epochs after that.
    fn into_rest(mut self) -> (Loader<'a, B>, First, Fuse<I>)
    where
        I: Clone,
    {
        let following = self.following.as_ref();
        let following = following.map(|following| (following.start, None));
        let first = following.or_else(|| self.first.take());
        (self.loader.clone(), first, self.numbers.clone())
    }

    /// The same, from where a run stands: earlier epochs are left out.
    pub(super) fn resumed(mut self, start: Start, state: Option<Vec<u8>>) -> Epochs<'a, B, I, K> {
        let first = self.numbers.find(|number| *number >= start.epoch);
        self.first = first.map(|number| match number == start.epoch {
            true => (start, state),
            false => (Start::of(number), None),
        });
        self
    }

    /// Sends the batches of all epochs to the device ahead of the consumer, as [`Epoch::prefetch_to_device`] does, and also across the
    /// boundaries: after the last batches of one epoch, the first of the next are sent.
    ///
    /// [`DeviceBuffers`](crate::device::DeviceBuffers) in place of the device keep the batches at fixed addresses.
    ///
    /// # Synchronization
    ///
    /// Returns at once. `next` enqueues what is ready of its epoch, as [`Epoch::prefetch_to_device`]. The device tensors are guarded by their
    /// copy's event, as with [`Batch::to_device`] and `non_blocking`.
    pub fn prefetch_to_device(
        self,
        target: impl Into<Target>,
        depth: usize,
    ) -> DeviceEpochs<'a, B, I, K> {
        let target = target.into();
        DeviceEpochs {
            epochs: self,
            depth: target.depth(depth),
            target,
            queue: None,
        }
    }

    /// The next epoch. `true`: it continues the line of the one before.
    fn advance(&mut self) -> Option<(Epoch<'a, B, K>, bool)> {
        if let Some(handle) = self.following.take() {
            let asked = Instant::now();
            let joins = self.loader.pipeline().come_to(&handle);
            let epoch = match joins {
                true => Epoch::at(self.loader.clone(), handle, self.pace.clone(), asked),
                false => self.begin(handle.start, None),
            };
            return Some((epoch, joins));
        }
        let first = self.first.take();
        let next = || Some((Start::of(self.numbers.next()?), None));
        let (start, state) = first.or_else(next)?;
        Some((self.begin(start, state), false))
    }

    fn begin(&self, start: Start, state: Option<Vec<u8>>) -> Epoch<'a, B, K> {
        let beginning = Beginning {
            start,
            state,
            is_followed: true,
            share: self.share,
            is_apart: false,
        };
        Epoch::begin(self.loader.clone(), beginning, self.pace.clone())
    }

    /// Lets the next epoch be loaded after this one. `to`: its batches go to the device of this transfer queue, that many ahead. Returns
    /// the transfer queue that they go through.
    fn append(
        &mut self,
        epoch: &Epoch<'a, B, K>,
        to: Option<(&Arc<DeviceQueue<B>>, usize)>,
    ) -> Option<Arc<DeviceQueue<B>>> {
        let pipeline = epoch.pipeline();
        // Without workers, nothing can be loaded ahead, and the next epoch need not be known.
        if pipeline.options().workers == 0 || pipeline.has_lost_threads() {
            return None;
        }
        let (handle, queue) =
            pipeline.append(epoch.handle(), epoch.batches(), self.numbers.next()?, to);
        self.following = Some(handle);
        queue
    }

    /// How many epochs are to come whose numbers were taken already.
    fn waiting(&self) -> usize {
        usize::from(self.following.is_some()) + usize::from(self.first.is_some())
    }
}

impl<'a, B: Batch, I: Iterator<Item = u64> + Clone> Epochs<'a, B, I> {
    /// Shares the batches of all epochs that are to come among devices: gives an iterator for each, to be iterated on a thread of its
    /// own. As [`Epoch::split`], and as [`prefetch_to_device`](Epochs::prefetch_to_device) at the boundaries.
    ///
    /// A device that is done with its share of an epoch goes on with the next one; where all must have finished an epoch first, the program
    /// waits (a [`Barrier`](std::sync::Barrier)).
    ///
    /// # Examples
    ///
    /// ```
    /// use pinfeed::{DataLoader, Device, from_fn};
    ///
    /// let devices = vec![Device::cpu(), Device::cpu()];
    /// let loader = DataLoader::builder(from_fn(1_000, |index, _| Ok(index as i64)))
    ///     .batch_size(50)
    ///     .shuffle(true)
    ///     .num_workers(2)
    ///     .pin_memory(&devices)
    ///     .build()?;
    ///
    /// std::thread::scope(|scope| {
    ///     for epochs in loader.epochs(0..3).split(&devices, 2) {
    ///         scope.spawn(move || {
    ///             for epoch in epochs {
    ///                 assert_eq!(epoch.count(), 10); // steps on this thread's device
    ///             }
    ///         });
    ///     }
    /// });
    /// assert_eq!(loader.state().epoch(), 3);
    /// # Ok::<(), pinfeed::Error>(())
    /// ```
    pub fn split<T>(self, targets: &[T], depth: usize) -> Vec<DeviceEpochs<'a, B, I>>
    where
        for<'t> &'t T: Into<Target>,
    {
        let (loader, first, numbers) = self.into_rest();
        let ranks = loader.pipeline().options().shards;
        let first = first.map(|(start, state)| (start.shared(targets.len(), ranks), state));
        let shares = shares(&loader, targets).into_iter();
        let lead = Lead::new(true);
        let epochs = shares.map(|(share, target)| {
            let (first, numbers) = (first.clone(), numbers.clone());
            let pace = Some(Pace::of(&lead));
            let epochs = Epochs::shared(loader.clone(), first, numbers, share, pace);
            epochs.prefetch_to_device(target, depth)
        });
        epochs.collect()
    }
}

impl<'a, B: Batch, I: Iterator<Item = u64>, K: Kind> Iterator for Epochs<'a, B, I, K> {
    type Item = Epoch<'a, B, K>;

    fn next(&mut self) -> Option<Epoch<'a, B, K>> {
        let (epoch, _) = self.advance()?;
        self.append(&epoch, None);
        Some(epoch)
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

impl<B: Batch, I: ExactSizeIterator<Item = u64>, K: Kind> ExactSizeIterator
    for Epochs<'_, B, I, K>
{
}
impl<B: Batch, I: Iterator<Item = u64>, K: Kind> FusedIterator for Epochs<'_, B, I, K> {}

impl<B: Batch, I, K: Kind> Drop for Epochs<'_, B, I, K> {
    fn drop(&mut self) {
        if let Some(handle) = self.following.take() {
            self.loader.pipeline().truncate(&handle);
        }
    }
}

impl<B: Batch, I, K: Kind> fmt::Debug for Epochs<'_, B, I, K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Epochs")
            .field("loader", self.loader.get())
            .finish_non_exhaustive()
    }
}

/// Several passes over the data set, one after the other, on a device: [`Epochs::prefetch_to_device`] makes it.
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
/// for epoch in loader.epochs(0..3).prefetch_to_device(&device, 1) {
///     for batch in epoch {
///         let _numbers = batch?; // on the device
///         steps += 1;
///     }
/// }
/// assert_eq!(steps, 30);
/// # Ok::<(), pinfeed::Error>(())
/// ```
#[must_use = "epochs do nothing unless they are iterated"]
pub struct DeviceEpochs<'a, B: Batch, I, K: Kind = Indexed> {
    epochs: Epochs<'a, B, I, K>,
    target: Target,
    depth: usize,
    /// The transfer queue of the next epoch.
    queue: Option<Arc<DeviceQueue<B>>>,
}

impl<'a, B: Batch, I: Iterator<Item = u64>, K: Kind> Iterator for DeviceEpochs<'a, B, I, K> {
    type Item = DeviceEpoch<'a, B, K>;

    fn next(&mut self) -> Option<DeviceEpoch<'a, B, K>> {
        let (mut epoch, joins) = self.epochs.advance()?;
        let queue = match self.queue.take() {
            Some(queue) if joins => queue,
            sent => {
                close(sent);
                let (pipeline, handle, taken) = epoch.fields();
                pipeline.send_to(handle, &self.target, self.depth, taken)
            }
        };
        self.queue = self.epochs.append(&epoch, Some((&queue, self.depth)));
        let following = self.queue.as_ref().map(Arc::downgrade);
        Some(DeviceEpoch::new(epoch, queue, self.depth, following))
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        self.epochs.size_hint()
    }
}

/// Lets go of batches that the consumer will not come to. (A worker that sends the next may hold the transfer queue for a while.)
fn close<B: Batch>(queue: Option<Arc<DeviceQueue<B>>>) {
    if let Some(queue) = queue {
        queue.close();
    }
}

impl<B: Batch, I, K: Kind> Drop for DeviceEpochs<'_, B, I, K> {
    fn drop(&mut self) {
        if self.epochs.has_lost_threads() {
            _ = ManuallyDrop::new(self.queue.take()); // what it holds goes back under locks
            return;
        }
        close(self.queue.take());
    }
}

impl<B: Batch, I: ExactSizeIterator<Item = u64>, K: Kind> ExactSizeIterator
    for DeviceEpochs<'_, B, I, K>
{
}
impl<B: Batch, I: Iterator<Item = u64>, K: Kind> FusedIterator for DeviceEpochs<'_, B, I, K> {}

impl<B: Batch, I, K: Kind> fmt::Debug for DeviceEpochs<'_, B, I, K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DeviceEpochs")
            .field("epochs", &self.epochs)
            .field("target", &self.target)
            .field("depth", &self.depth)
            .finish()
    }
}
