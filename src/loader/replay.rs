//! One batch again and again: how fast the loop would be if loading cost nothing.

use std::collections::VecDeque;
use std::fmt;
use std::iter::FusedIterator;
use std::marker::PhantomData;

use super::kind::{Indexed, Kind};
use crate::batch::{Batch, Share};
use crate::device::Device;
use crate::error::Result;

/// The first batch of an epoch, again and again: [`DataLoader::replay`](crate::DataLoader::replay) makes it. That of an
/// [`Iterable`](crate::loader::Iterable) has no end.
///
/// # Examples
///
/// ```
/// use std::time::Instant;
///
/// use pinfeed::{DataLoader, Device, from_fn};
///
/// let device = Device::cpu();
/// let loader = DataLoader::builder(from_fn(1_000, |index, _| Ok([index as f32; 8])))
///     .batch_size(10)
///     .pin_memory(&device)
///     .build()?;
///
/// let start = Instant::now();
/// for batch in loader.replay(0)?.prefetch_to_device(&device, 2) { // 100 batches, as many as epoch 0 has
///     let batch = batch?; // the training step
///     # assert_eq!(batch.shape()[..], [10, 8]);
/// }
/// println!("without loading, an epoch takes {:?}", start.elapsed());
/// # Ok::<(), pinfeed::Error>(())
/// ```
#[must_use = "a replay does nothing unless it is iterated"]
pub struct Replay<B, K: Kind = Indexed> {
    batch: Option<B>,
    left: u64,
    kind: PhantomData<K>,
}

impl<B: Share, K: Kind> Replay<B, K> {
    /// `batches`: how often.
    pub(super) fn new(first: Option<Result<B>>, batches: u64) -> Result<Replay<B, K>> {
        let batch = first.transpose()?;
        let left = if batch.is_some() { batches } else { 0 };
        Ok(Replay {
            batch,
            left,
            kind: PhantomData,
        })
    }

    /// Sends the batch to the device for each step anew, up to `depth` beyond the one that is given out, as
    /// [`Epoch::prefetch_to_device`](super::Epoch::prefetch_to_device). So what remains beside the step is the copy.
    ///
    /// # Synchronization
    ///
    /// Copies are enqueued by the call of `next`, which does not wait for them if the loader pins for this device. The device tensors are
    /// guarded by their copy's event.
    pub fn prefetch_to_device(self, device: &Device, depth: usize) -> DeviceReplay<B, K> {
        DeviceReplay {
            host: self,
            device: device.clone(),
            depth,
            sent: VecDeque::new(),
        }
    }
}

impl<B: Share, K: Kind> Iterator for Replay<B, K> {
    type Item = Result<B>;

    fn next(&mut self) -> Option<Result<B>> {
        self.left = self.left.checked_sub(1)?;
        self.batch.as_ref().map(|batch| Ok(batch.share()))
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        K::size_hint(self.left)
    }
}

impl<B: Share> ExactSizeIterator for Replay<B> {}
impl<B: Share, K: Kind> FusedIterator for Replay<B, K> {}

impl<B, K: Kind> fmt::Debug for Replay<B, K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut f = f.debug_struct("Replay");
        if let (_, Some(left)) = K::size_hint(self.left) {
            f.field("remaining", &left);
        }
        f.finish_non_exhaustive()
    }
}

/// The first batch of an epoch, again and again, on a device: [`Replay::prefetch_to_device`] makes it.
///
/// # Examples
///
/// ```
/// use pinfeed::{DataLoader, Device, iterable};
///
/// let device = Device::cpu();
/// let numbers = iterable::from_fn(|_, _| Ok((0..100i64).map(Ok)));
/// let loader = DataLoader::iterable(numbers).batch_size(4).pin_memory(&device).build()?;
/// for batch in loader.replay(0)?.prefetch_to_device(&device, 2).take(50) { // an iterable has no length
///     assert_eq!(batch?.to_host(true)?.wait()?.as_slice(), [0, 1, 2, 3]);
/// }
/// # Ok::<(), pinfeed::Error>(())
/// ```
#[must_use = "a replay does nothing unless it is iterated"]
pub struct DeviceReplay<B: Batch, K: Kind = Indexed> {
    host: Replay<B, K>,
    device: Device,
    depth: usize,
    /// The batches that were sent and not given out.
    sent: VecDeque<Result<B::OnDevice>>,
}

impl<B: Share, K: Kind> Iterator for DeviceReplay<B, K> {
    type Item = Result<B::OnDevice>;

    fn next(&mut self) -> Option<Result<B::OnDevice>> {
        while self.sent.len() <= self.depth
            && let Some(batch) = self.host.next()
        {
            let sent = batch.and_then(|batch| batch.to_device(&self.device, true));
            // If the device has no memory for more, those that were sent come first.
            let has_failed = sent.is_err();
            self.sent.push_back(sent);
            if has_failed {
                break;
            }
        }
        self.sent.pop_front()
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        let (least, most) = self.host.size_hint();
        let more = self.sent.len();
        let most = most.and_then(|most| most.checked_add(more));
        (least.saturating_add(more), most)
    }
}

impl<B: Share> ExactSizeIterator for DeviceReplay<B> {}
impl<B: Share, K: Kind> FusedIterator for DeviceReplay<B, K> {}

impl<B: Batch, K: Kind> fmt::Debug for DeviceReplay<B, K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DeviceReplay")
            .field("host", &self.host)
            .field("device", &self.device)
            .field("depth", &self.depth)
            .finish_non_exhaustive()
    }
}
