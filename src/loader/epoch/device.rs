//! Epochs whose batches are sent to a device ahead of the consumer.

use std::fmt;
use std::mem::ManuallyDrop;
use std::task::{Poll, ready};
use std::time::Duration;

use super::Epoch;
use super::with_info::WithInfo;
use crate::batch::Batch;
use crate::error::drop_each;
use crate::error::{Error, Result, panic_message};
use crate::loader::kind::{Indexed, Kind};
use crate::loader::stats::Stats;
use crate::loader::try_next::{TryNext, until, waited};
use crate::pipeline::{DeviceQueue, NextTask, Patience, Place, SendWindow, TransferQueue, Watched};
use crate::sync::{Arc, Instant, Weak, planted};

/// One pass over the data set, on a device: [`Epoch::prefetch_to_device`] makes it.
///
/// # Examples
///
/// ```
/// use pinfeed::{DataLoader, Device, from_fn};
///
/// let device = Device::cpu();
/// let stream = device.stream()?;
/// let loader = DataLoader::builder(from_fn(100, |index, _| Ok([index as f32; 8])))
///     .batch_size(10)
///     .num_workers(2)
///     .pin_memory(&device)
///     .build()?;
/// for batch in loader.epoch(0).prefetch_to_device(&device, 2) { // two batches ahead of this one
///     let batch = batch?;
///     let x = batch.on(&stream)?; // launch kernels on `stream` here
///     assert_eq!(x.shape()[..], [10, 8]);
/// }
/// # Ok::<(), pinfeed::Error>(())
/// ```
#[must_use = "an epoch does nothing unless it is iterated"]
pub struct DeviceEpoch<'a, B: Batch, K: Kind = Indexed> {
    epoch: Epoch<'a, B, K>,
    queue: Arc<DeviceQueue<B>>,
    depth: usize,
    /// The device decodes pictures.
    decodes: bool,
    /// The next epoch, if it goes to the same device: its batches are sent ahead like this one's.
    following: Option<Weak<DeviceQueue<B>>>,
    /// What may be sent, as the program last allowed it.
    window: SendWindow,
    /// Enough batches were on their way when the last one was given out.
    has_enough: bool,
    /// Why the next batch fails, some of whose tasks have come.
    failed: Option<Error>,
}

impl<'a, B: Batch, K: Kind> DeviceEpoch<'a, B, K> {
    pub(in crate::loader) fn new(
        epoch: Epoch<'a, B, K>,
        queue: Arc<DeviceQueue<B>>,
        depth: usize,
        following: Option<Weak<DeviceQueue<B>>>,
    ) -> DeviceEpoch<'a, B, K> {
        let epoch = DeviceEpoch {
            epoch,
            window: queue.window(),
            decodes: queue.decodes(),
            queue,
            depth,
            following,
            has_enough: false,
            failed: None,
        };
        if !epoch.epoch.pipeline().has_lost_threads() {
            epoch.queue.allow(depth as u64);
            // Workers may have filled the window before they knew where to. They make no more until something of it is sent.
            if !planted("what was ready before it may be sent stays") {
                epoch.send_made(false);
            }
        }
        epoch
    }

    /// Returns the number of this epoch.
    pub fn number(&self) -> u64 {
        self.epoch.number()
    }

    /// Returns where the run stands in this epoch, as [`Epoch::state`]: after the batches that were given out, not those that were sent
    /// ahead.
    pub fn state(&self) -> K::State {
        self.epoch.state()
    }

    /// Returns statistics of this epoch so far, as [`Epoch::stats`].
    pub fn stats(&self) -> Stats {
        self.epoch.stats()
    }

    /// Gives with each batch what it is, as [`Epoch::with_info`].
    pub fn with_info(self) -> WithInfo<DeviceEpoch<'a, B, K>> {
        WithInfo::new(self)
    }

    /// Gives the next batch if it is there, and says whether the epoch is over if there is none. As [`Epoch::try_next`].
    ///
    /// # Synchronization
    ///
    /// Does not wait for workers, nor for a device's decoder. But as [`next`](Iterator::next) does, it sends a batch that is loaded and was
    /// not sent ahead, for which it may wait for device memory that the program gave back and whose kernels have not run. With
    /// `num_workers(0)`, it loads the batch.
    pub fn try_next(&mut self) -> TryNext<Result<B::OnDevice>> {
        TryNext::of(self.poll(Patience::None, true))
    }

    /// Waits for the next batch for at most `timeout`, and says whether the epoch is over if none has come. As
    /// [`Epoch::next_timeout`].
    ///
    /// # Synchronization
    ///
    /// Blocks for at most `timeout`; the rest is as with [`try_next`](DeviceEpoch::try_next).
    pub fn next_timeout(&mut self, timeout: Duration) -> TryNext<Result<B::OnDevice>> {
        TryNext::of(self.poll(until(timeout), true))
    }

    /// Waits for the next batch as [`next_timeout`](DeviceEpoch::next_timeout), and leaves it to the caller to wake workers
    /// ([`wake_workers`](DeviceEpoch::wake_workers)).
    ///
    /// For a loop that copies each batch into memory of its own at once. A worker that is woken may send, and the driver serves one thread
    /// at a time, so the copy would wait for that worker.
    ///
    /// # Synchronization
    ///
    /// As [`next_timeout`](DeviceEpoch::next_timeout). If it has to wait, it wakes workers first.
    pub fn next_without_waking(&mut self, timeout: Duration) -> TryNext<Result<B::OnDevice>> {
        TryNext::of(self.poll(until(timeout), false))
    }

    /// Wakes workers to load and send what there is room for, as [`next`](Iterator::next) does with the batch in hand.
    ///
    /// It belongs behind [`next_without_waking`](DeviceEpoch::next_without_waking), also where that gave an error; the other calls wake workers
    /// themselves. A loop that leaves it out loses no batch, but workers may sleep until the loop asks for the next one.
    ///
    /// # Synchronization
    ///
    /// Does not wait for workers or the device.
    pub fn wake_workers(&self) {
        // (While enough is on its way, they are not woken: what they would make in the room that there is would not be waited for.)
        if !self.has_enough {
            self.epoch.pipeline().wake_workers();
        }
    }

    /// The epoch, on the host.
    pub(super) fn inner(&self) -> &Epoch<'a, B, K> {
        &self.epoch
    }

    /// If `depth` reaches beyond this epoch's end, and the next epoch goes to the device, too: allows so many of its batches to be sent.
    fn allow_following(&self) {
        // (Of an iterable, what is left is known when it has ended.)
        let end = self.queue.end().map(|end| end - self.epoch.given());
        let left = end.unwrap_or_else(|| self.epoch.left());
        let beyond = (self.depth as u64).saturating_sub(left);
        if beyond > 0
            && let Some(queue) = self.following.as_ref().and_then(Weak::upgrade)
        {
            queue.allow(beyond);
        }
    }

    /// Returns the next batch, and sends what is ready after it. Does not wake workers unless it waits.
    fn advance(&mut self, patience: Patience) -> Poll<Option<Result<B::OnDevice>>> {
        let mut asked = self.epoch.returned();
        if !self.has_enough {
            // At least the batch that is asked for. (In any order, the consumer sends one itself if nothing was sent.)
            let is_awaited = !self.epoch.is_any_order();
            let depth = self.depth.max(usize::from(is_awaited));
            self.queue.allow(depth as u64);
            self.window = self.queue.window();
            self.send_made(true);
        }
        let mut sent = None;
        let (context, task, own) = loop {
            let window = Some(self.window);
            let next = self.epoch.wait(asked, sent.take(), patience, window);
            let next = match ready!(next) {
                None => return Poll::Ready(self.epoch.had_too_many_bad().map(Err)),
                Some(NextTask::Delivered(next)) => next,
                Some(NextTask::ToSend(group)) => {
                    sent = Some(self.epoch.pipeline().send_next(&*self.queue, group));
                    asked = Instant::now();
                    continue;
                }
            };
            let (context, task) = (Arc::clone(&next.context), next.task);
            let place = context.place(task);
            self.epoch.add_changes(place.first_row, next.changes);
            match next.outcome {
                Err(error) if self.failed.is_none() => self.failed = Some(error),
                // It may be the user's to drop, and the epoch must come to its next batch.
                outcome => drop_each([outcome]),
            }
            if place.ends_batch() {
                break (context, task, next.own);
            }
            asked = Instant::now();
        };
        let batch = context.batch(task);
        let (whole, has_enough) = self.queue.take(batch, self.depth as u64);
        self.has_enough = has_enough;
        let rows = own.as_ref().map(|own| own.rows());
        if let Some(too_many) = self.epoch.has_too_many_bad(batch, rows) {
            drop_each([own]);
            drop_each([whole]);
            drop_each([self.failed.take()]);
            return Poll::Ready(Some(Err(too_many)));
        }
        self.epoch.reaches(own);
        let given = match self.failed.take() {
            Some(error) => {
                drop_each(whole);
                Some(Err(error))
            }
            None => whole.map(|whole| {
                // Unwind safety: the batch is gone.
                let upload = std::panic::AssertUnwindSafe(|| whole.upload());
                let uploaded = std::panic::catch_unwind(upload);
                uploaded.map_err(|payload| context.collate_panicked(task, panic_message(payload)))
            }),
        };
        if self.decodes {
            self.watch_share(context.place(task));
        }
        self.epoch.gives(batch, matches!(given, Some(Ok(_))));
        if !has_enough && !self.leaves_made() {
            self.send_made(true);
        }
        Poll::Ready(given)
    }

    /// Sees how far device and CPU come, which share the pictures, with the batch that ends here: until the share is fixed.
    fn watch_share(&self, end: Place) {
        let (pipeline, handle) = (self.epoch.pipeline(), self.epoch.handle());
        let learned = pipeline.learned();
        // (Of several devices that share the batches, one stands for all.)
        if !learned.has_pictures() || handle.share.index != 0 || learned.share.fixed().is_some() {
            return;
        }
        let watched = Watched {
            epoch: end.epoch,
            position: end.start,
            rows: end.batch_rows,
            given: self.epoch.given(),
            workers: pipeline.sizing().0,
            is_decoder_ready: self.queue.is_decoder_ready(),
        };
        learned.share.watch(watched, &handle.meter);
    }

    /// `wakes`: workers are woken, last, with the batch in hand and everything ready sent. (Otherwise only if the call waits.)
    fn poll(&mut self, patience: Patience, wakes: bool) -> Poll<Option<Result<B::OnDevice>>> {
        if let Some(refused) = self.epoch.refuses(true, patience) {
            return refused;
        }
        self.queue.target().device().inner.sweep_with_batch();
        let next = self.advance(patience);
        if wakes {
            self.wake_workers();
        }
        if !matches!(next, Poll::Ready(None)) {
            self.epoch.resumes();
        }
        next
    }

    /// Leaves what may be sent now to a worker, which [`wake_workers`](DeviceEpoch::wake_workers) wakes.
    fn leaves_made(&self) -> bool {
        self.allow_following();
        let (pipeline, handle) = (self.epoch.pipeline(), self.epoch.handle());
        pipeline.leave_made(handle.key(), &*self.queue)
    }

    /// Sends what is made and may be sent, across the epoch's end. `pageable`: also what is not page-locked.
    fn send_made(&self, pageable: bool) {
        self.allow_following();
        let (pipeline, handle) = (self.epoch.pipeline(), self.epoch.handle());
        pipeline.send_made(handle.key(), &*self.queue, pageable);
    }
}

impl<B: Batch, K: Kind> Iterator for DeviceEpoch<'_, B, K> {
    type Item = Result<B::OnDevice>;

    fn next(&mut self) -> Option<Result<B::OnDevice>> {
        waited(self.poll(Patience::Forever, true))
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        self.epoch.size_hint()
    }
}

impl<B: Batch, K: Kind> Drop for DeviceEpoch<'_, B, K> {
    fn drop(&mut self) {
        if self.epoch.pipeline().has_lost_threads() {
            _ = ManuallyDrop::new(Arc::clone(&self.queue)); // what it holds goes back under locks
            return;
        }
        self.epoch.pipeline().leave(self.epoch.handle());
        self.queue.close();
        drop_each(self.failed.take()); // its cause may be the user's to drop
    }
}

impl<B: Batch> ExactSizeIterator for DeviceEpoch<'_, B> {}
impl<B: Batch, K: Kind> std::iter::FusedIterator for DeviceEpoch<'_, B, K> {}

impl<B: Batch, K: Kind> fmt::Debug for DeviceEpoch<'_, B, K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut f = f.debug_struct("DeviceEpoch");
        f.field("number", &self.number());
        match self.size_hint() {
            (_, Some(left)) => f.field("remaining", &left).finish(),
            (_, None) => f.finish_non_exhaustive(),
        }
    }
}
