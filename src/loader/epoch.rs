//! Epochs: iterators over the batches of one pass.

use std::collections::VecDeque;
use std::fmt;
use std::time::Instant;

use super::DataLoader;
use crate::batch::{Batch, send};
use crate::device::Device;
use crate::error::{Error, Result};
use crate::pipeline::{Arrivals, Cut, Fate, Live, Made, Pipeline, Taken};
use crate::sync::Arc;

/// How an epoch holds its loader.
pub(super) enum Loader<'a, B: Batch> {
    Borrowed(&'a DataLoader<B>),
    Owned(Arc<DataLoader<B>>),
}

impl<B: Batch> Loader<'_, B> {
    fn get(&self) -> &DataLoader<B> {
        match self {
            Loader::Borrowed(loader) => loader,
            Loader::Owned(loader) => loader,
        }
    }

    fn pipeline(&self) -> &Pipeline<B> {
        self.get().threads.pipeline()
    }
}

/// One pass over the data set: gives its batches in order.
///
/// A batch that failed gives its error in its place, and the iteration can go on. Dropping the epoch stops its
/// loading, without waiting.
#[must_use = "an epoch gives its batches to who iterates it"]
pub struct Epoch<'a, B: Batch> {
    loader: Loader<'a, B>,
    live: Live,
    /// Batches that came together with one before.
    taken: Taken<B>,
    /// When the last batch was given out: the host's own time runs from here.
    given: Option<Instant>,
}

impl<'a, B: Batch> Epoch<'a, B> {
    pub(super) fn begin(loader: Loader<'a, B>, epoch: u64) -> Epoch<'a, B> {
        let live = loader.pipeline().begin(epoch);
        *loader.get().last.lock() = Some(live.clone());
        Epoch {
            loader,
            live,
            taken: VecDeque::new(),
            given: None,
        }
    }

    /// The number of this epoch.
    pub fn number(&self) -> u64 {
        self.live.epoch
    }

    /// Sends batches to the device ahead of the consumer, up to `depth` beyond the one that is given out: small ones as soon
    /// as they are ready when the iterator is asked; large ones, where the loader pins for the same device, in parts, each by
    /// the worker that made it, also while the program is busy. So from this call on up to `depth` batches hold device memory.
    ///
    /// Parts are cut so that the page-locked memory that is filled in turn stays in the processor's cache: it is then less
    /// than `prefetch` batches have. A batch of which a part fails is an error. What arrives is the same.
    ///
    /// Rows of 16 KiB and more in registered memory ([`Tensor::register`](crate::Tensor::register)) are then not copied on
    /// the host, if the loader pins for the same device: the device gathers them from where they lie. The bytes that
    /// arrive are the same.
    ///
    /// # Synchronization
    ///
    /// The device tensors are guarded by their copy's event, as with [`Batch::to_device`] and `non_blocking`.
    pub fn to_device(self, device: &Device, depth: usize) -> DeviceEpoch<'a, B> {
        let pipeline = self.loader.pipeline();
        let (cut, arrivals) = pipeline.send_to(&self.live, device, depth);
        let part = cut.count() - self.remaining();
        let epoch = DeviceEpoch {
            epoch: self,
            device: device.clone(),
            depth,
            ahead: VecDeque::new(),
            held: None,
            given: cut.batch_of(part),
            cut,
            part,
            arrivals,
            failed: None,
        };
        epoch.allow(0);
        epoch
    }

    /// Counts the host's time since the last batch; returns the present.
    fn returned(&mut self) -> Instant {
        let now = Instant::now();
        if let Some(given) = self.given.take() {
            self.live.meter.host_ns.add_between(given, now);
        }
        now
    }

    /// Waits for the next batch, from `asked` on.
    fn wait(&mut self, asked: Instant) -> Option<Result<Made<B>>> {
        let next = self.loader.pipeline().next(&self.live, &mut self.taken);
        let came = Instant::now();
        self.live.meter.consumer_wait_ns.add_between(asked, came);
        self.given = next.is_some().then_some(came);
        next
    }

    /// How many batches, or parts of batches, are to come.
    fn remaining(&self) -> u64 {
        self.loader.pipeline().remaining(&self.live) + self.taken.len() as u64
    }

    fn try_next(&mut self) -> Option<Result<Made<B>>> {
        self.loader.pipeline().try_next(&self.live, &mut self.taken)
    }
}

impl<B: Batch> Iterator for Epoch<'_, B> {
    type Item = Result<B>;

    fn next(&mut self) -> Option<Result<B>> {
        let asked = self.returned();
        let next = self.wait(asked)?;
        Some(next.map(|made| match made {
            Made::Here(batch) => batch,
            Made::Sent => unreachable!("only a device epoch's batches are sent"),
        }))
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        let remaining = usize::try_from(self.remaining());
        (remaining.unwrap_or(usize::MAX), remaining.ok())
    }
}

impl<B: Batch> ExactSizeIterator for Epoch<'_, B> {}
impl<B: Batch> std::iter::FusedIterator for Epoch<'_, B> {}

impl<B: Batch> Drop for Epoch<'_, B> {
    fn drop(&mut self) {
        self.returned();
        self.loader.pipeline().end(&self.live);
    }
}

impl<B: Batch> fmt::Debug for Epoch<'_, B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Epoch")
            .field("number", &self.live.epoch)
            .field("remaining", &self.len())
            .finish()
    }
}

/// One pass over the data set, on a device: [`Epoch::to_device`] makes it.
#[must_use = "an epoch gives its batches to who iterates it"]
pub struct DeviceEpoch<'a, B: Batch> {
    epoch: Epoch<'a, B>,
    device: Device,
    depth: usize,
    ahead: VecDeque<Result<B::OnDevice>>,
    /// A batch that came, or a part of one, and for which the device had no memory ahead of time.
    held: Option<B>,
    /// How many batches were given out.
    given: u64,
    cut: Cut,
    /// The part that comes next. (Where batches are not cut, each is one part.)
    part: u64,
    /// Where the parts of batches arrive, if they are cut.
    arrivals: Option<Arc<Arrivals<B>>>,
    /// Why the batch whose parts are coming is an error.
    failed: Option<Error>,
}

impl<B: Batch> DeviceEpoch<'_, B> {
    /// Lets workers send parts of the batches that the consumer is about to get (`asked`), and of `depth` more.
    fn allow(&self, asked: u64) {
        if let Some(arrivals) = &self.arrivals {
            arrivals.allow(self.given.saturating_add(asked.max(self.depth as u64)));
        }
    }

    /// Sends what is ready. Where the program holds all device memory, it stops: what is sent ahead must not fail for
    /// memory that is there when the batch is asked for.
    fn send_ahead(&mut self) {
        while self.ahead.len() < self.depth && self.held.is_none() {
            let Some(part) = self.epoch.try_next() else {
                return;
            };
            if let Some(batch) = self.arrive(part, true) {
                self.ahead.push_back(batch);
            }
        }
    }

    /// Sends the part that came, if nobody did; the last one of a batch gives the batch, or its error. `ahead`: it is held
    /// back where there is no memory for it.
    fn arrive(&mut self, part: Result<Made<B>>, ahead: bool) -> Option<Result<B::OnDevice>> {
        let mut batch = None;
        match part {
            Err(error) => self.fail(error),
            Ok(Made::Here(part)) if self.failed.is_none() => match self.send(part, ahead) {
                Reply::Sent(sent) => batch = sent,
                Reply::NotNow(part) => {
                    self.held = Some(part);
                    return None;
                }
                Reply::Failed(error) => self.fail(error),
            },
            Ok(Made::Here(_) | Made::Sent) => {}
        }
        let number = self.part;
        self.part += 1;
        if !self.cut.ends_batch(number) {
            return None;
        }
        if let Some(arrivals) = &self.arrivals {
            batch = arrivals.take(self.cut.batch_of(number));
        }
        match self.failed.take() {
            Some(error) => Some(Err(error)),
            None => batch.map(Ok),
        }
    }

    fn fail(&mut self, error: Error) {
        self.failed.get_or_insert(error);
    }

    /// Sends a batch, or a part of one.
    fn send(&self, part: B, ahead: bool) -> Reply<B> {
        let Some(arrivals) = &self.arrivals else {
            return match send(part, &self.device, true) {
                Ok(batch) => Reply::Sent(Some(batch)),
                Err((Some(part), Error::DeviceBudget { .. })) if ahead => Reply::NotNow(part),
                Err((_, error)) => Reply::Failed(error),
            };
        };
        match arrivals.send_part(self.part, part, !ahead) {
            Fate::Sent => Reply::Sent(None),
            Fate::NotNow(part) => Reply::NotNow(part),
            Fate::Failed(error) => Reply::Failed(error),
            Fate::Unlike(like, error) => {
                let (pipeline, live) = (self.epoch.loader.pipeline(), &self.epoch.live);
                Reply::Failed(pipeline.unlike(live, &self.cut, [self.part, like], error))
            }
        }
    }
}

/// What became of a batch, or of a part of one.
enum Reply<B: Batch> {
    /// It is on its way: the batch, unless it was a part.
    Sent(Option<B::OnDevice>),
    /// The device has no memory for it ahead of time.
    NotNow(B),
    Failed(Error),
}

impl<B: Batch> Iterator for DeviceEpoch<'_, B> {
    type Item = Result<B::OnDevice>;

    fn next(&mut self) -> Option<Result<B::OnDevice>> {
        let mut asked = self.epoch.returned();
        self.allow(1);
        let next = match self.ahead.pop_front() {
            Some(next) => next,
            None => loop {
                let part = match self.held.take() {
                    Some(part) => Ok(Made::Here(part)),
                    None => self.epoch.wait(asked)?,
                };
                if let Some(next) = self.arrive(part, false) {
                    break next;
                }
                asked = Instant::now();
            },
        };
        self.given += 1;
        self.allow(0);
        self.send_ahead();
        self.epoch.given = Some(Instant::now());
        Some(next)
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        let remaining = usize::try_from(self.cut.batches() - self.given);
        (remaining.unwrap_or(usize::MAX), remaining.ok())
    }
}

impl<B: Batch> ExactSizeIterator for DeviceEpoch<'_, B> {}
impl<B: Batch> std::iter::FusedIterator for DeviceEpoch<'_, B> {}

impl<B: Batch> fmt::Debug for DeviceEpoch<'_, B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DeviceEpoch")
            .field("number", &self.epoch.number())
            .field("remaining", &self.len())
            .field("ahead", &self.ahead.len())
            .finish()
    }
}
