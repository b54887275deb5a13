//! Epochs whose batches are sent to a device ahead of the consumer.

use std::fmt;
use std::task::{Poll, ready};
use std::time::Duration;

use super::epoch::{Epoch, until, waited};
use super::info::WithInfo;
use super::state::LoaderState;
use super::stats::Stats;
use crate::batch::Batch;
use crate::error::{Error, Result};
use crate::pipeline::{Made, Outbox, Patience, Seat, Taken, drop_each};
use crate::sync::{Arc, Instant, Weak};

/// One pass over the data set, on a device: [`Epoch::to_device`] makes it.
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
/// for batch in loader.epoch(0).to_device(&device, 2) { // two batches ahead of this one
///     let batch = batch?;
///     let x = batch.on(&stream)?; // launch kernels on `stream` here
///     assert_eq!(x.shape()[..], [10, 8]);
/// }
/// # Ok::<(), pinfeed::Error>(())
/// ```
#[must_use = "an epoch gives its batches to whoever iterates it"]
pub struct DeviceEpoch<'a, B: Batch> {
    epoch: Epoch<'a, B>,
    outbox: Arc<Outbox<B>>,
    depth: usize,
    /// The next epoch, if it goes to the same device: its batches are sent ahead like this one's.
    following: Option<Following<B>>,
    /// Why the next batch fails, some of whose units have come.
    failed: Option<Error>,
}

/// The epoch after another, on the same device.
pub(super) struct Following<B: Batch> {
    pub(super) seat: Seat,
    /// Held by the epoch itself, or by what will become it.
    pub(super) outbox: Weak<Outbox<B>>,
}

impl<'a, B: Batch> DeviceEpoch<'a, B> {
    pub(super) fn new(
        epoch: Epoch<'a, B>,
        outbox: Arc<Outbox<B>>,
        depth: usize,
        following: Option<Following<B>>,
    ) -> DeviceEpoch<'a, B> {
        let epoch = DeviceEpoch {
            epoch,
            outbox,
            depth,
            following,
            failed: None,
        };
        epoch.allow(false);
        epoch
    }

    /// Returns the number of this epoch.
    pub fn number(&self) -> u64 {
        self.epoch.number()
    }

    /// Returns where the run stands in this epoch: after the batches that were given out, not those that were sent ahead.
    pub fn state(&self) -> LoaderState {
        self.epoch.state()
    }

    /// Says where the time of this epoch went so far, as [`Epoch::stats`].
    pub fn stats(&self) -> Stats {
        self.epoch.stats()
    }

    /// Gives with each batch what it is: its samples' indices, its place in the epoch, and which of its rows are real.
    pub fn with_info(self) -> WithInfo<DeviceEpoch<'a, B>> {
        WithInfo::new(self)
    }

    /// Gives the next batch if it is there: `Pending` if it is not, and `Ready(None)` at the end of the epoch. As
    /// [`Epoch::try_next`].
    ///
    /// # Synchronization
    ///
    /// Does not wait for workers, but does what [`next`](Iterator::next) does with a batch that is loaded and was not sent ahead:
    /// it sends it, for which it may wait for device memory that the program gave back and whose kernels have not run. With
    /// `num_workers(0)`, it loads the batch.
    pub fn try_next(&mut self) -> Poll<Option<Result<B::OnDevice>>> {
        self.poll(Patience::None)
    }

    /// Waits for the next batch, but no longer than that: `Pending` if it has not come, and `Ready(None)` at the end of the epoch.
    /// As [`Epoch::next_timeout`].
    ///
    /// # Synchronization
    ///
    /// Blocks for as long; the rest is as with [`try_next`](DeviceEpoch::try_next).
    pub fn next_timeout(&mut self, timeout: Duration) -> Poll<Option<Result<B::OnDevice>>> {
        self.poll(until(timeout))
    }

    /// The epoch, on the host.
    pub(super) fn inner(&self) -> &Epoch<'a, B> {
        &self.epoch
    }

    /// Allows `depth` batches beyond those given out to be sent, across the epoch's end if the next epoch goes there too. `is_asked`: at
    /// least the next batch.
    fn allow(&self, is_asked: bool) {
        let depth = self.depth as u64;
        // (In any order, the consumer sends one itself if nothing was sent.)
        let is_awaited = is_asked && !self.epoch.is_any_order();
        self.outbox.allow(depth.max(u64::from(is_awaited)));
        if let Some(following) = self.following_outbox() {
            // (Of a stream, what is left is known when it has ended.)
            let end = self.outbox.end().map(|end| end - self.epoch.given());
            let left = end.unwrap_or_else(|| self.epoch.left());
            following.allow(depth.saturating_sub(left));
        }
    }

    fn following_outbox(&self) -> Option<Arc<Outbox<B>>> {
        self.following.as_ref()?.outbox.upgrade()
    }

    /// Returns the next batch, and sends what is ready after it. Does not wake workers unless it waits.
    fn advance(&mut self, patience: Patience) -> Poll<Option<Result<B::OnDevice>>> {
        let mut asked = self.epoch.returned();
        self.allow(true);
        self.send_ahead();
        let batch = loop {
            let Some(next) = ready!(self.epoch.wait(asked, patience, true)) else {
                return Poll::Ready(None);
            };
            let (pass, unit) = (next.pass, next.unit);
            let place = pass.place(unit);
            self.epoch.add_changes(place.first_row, next.changes);
            self.epoch.reaches(next.own);
            let outcome = match next.outcome {
                Ok(Made::Here(made)) if self.failed.is_none() => {
                    let pipeline = self.epoch.pipeline();
                    // It may wait for device memory or a copy, and workers should not wait with it.
                    pipeline.wake_workers();
                    pipeline.send(&*self.outbox, &pass, unit, made, true)
                }
                outcome => outcome,
            };
            match outcome {
                Err(error) if self.failed.is_none() => self.failed = Some(error),
                // It may be the user's to drop, and the epoch must come to its next batch.
                outcome => drop_each([outcome]),
            }
            next.charges.end();
            if place.ends_batch() {
                break place.batch;
            }
            asked = Instant::now();
        };
        let sent = self.outbox.take(batch);
        self.epoch.gives(batch);
        self.allow(false);
        self.send_ahead();
        Poll::Ready(match self.failed.take() {
            Some(error) => Some(Err(error)),
            None => sent.map(Ok),
        })
    }

    fn poll(&mut self, patience: Patience) -> Poll<Option<Result<B::OnDevice>>> {
        let next = self.advance(patience);
        // Last, with the batch in hand and everything ready sent.
        self.epoch.pipeline().wake_workers();
        if !matches!(next, Poll::Ready(None)) {
            self.epoch.resumes();
        }
        next
    }

    fn send_ahead(&mut self) {
        let (pipeline, seat, taken) = self.epoch.fields();
        pipeline.send_ahead(seat, taken, &self.outbox);
        if let Some(following) = &self.following
            && let Some(outbox) = following.outbox.upgrade()
        {
            pipeline.send_ahead(&following.seat, &mut Taken::new(), &outbox);
        }
    }
}

impl<B: Batch> Iterator for DeviceEpoch<'_, B> {
    type Item = Result<B::OnDevice>;

    fn next(&mut self) -> Option<Result<B::OnDevice>> {
        waited(self.poll(Patience::Forever))
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        self.epoch.size_hint()
    }
}

impl<B: Batch> Drop for DeviceEpoch<'_, B> {
    fn drop(&mut self) {
        self.epoch.pipeline().leave(self.epoch.seat());
        self.outbox.close();
        drop_each(self.failed.take()); // its cause may be the user's to drop
    }
}

impl<B: Batch> ExactSizeIterator for DeviceEpoch<'_, B> {}
impl<B: Batch> std::iter::FusedIterator for DeviceEpoch<'_, B> {}

impl<B: Batch> fmt::Debug for DeviceEpoch<'_, B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DeviceEpoch")
            .field("number", &self.epoch.number())
            .field("remaining", &self.len())
            .finish()
    }
}
