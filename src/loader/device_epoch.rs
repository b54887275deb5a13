//! Epochs whose batches are sent to a device ahead of the consumer.

use std::collections::VecDeque;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};

use super::epoch::{Epoch, Pass};
use crate::batch::{Batch, send};
use crate::device::Device;
use crate::error::{Error, Result, panic_message};
use crate::pipeline::{Arrivals, Cut, Fate, Goes, Live, Made, Pipeline};
use crate::sync::{Arc, Instant};

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
#[must_use = "an epoch gives its batches to who iterates it"]
pub struct DeviceEpoch<'a, B: Batch> {
    epoch: Epoch<'a, B>,
    sending: Sending<B>,
    /// The epoch that follows goes to the device as well: its batches are sent ahead like this one's.
    goes_on: bool,
}

/// How the batches of a pass go to a device.
pub(super) struct Sending<B: Batch> {
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

/// What became of a batch, or of a part of one.
enum Reply<B: Batch> {
    /// It is on its way: the batch, unless it was a part.
    Sent(Option<B::OnDevice>),
    /// The device has no memory for it ahead of time.
    NotNow(B),
    Failed(Error),
}

impl<B: Batch> Sending<B> {
    pub(super) fn begin(
        pipeline: &Pipeline<B>,
        pass: &Pass<B>,
        device: &Device,
        depth: usize,
    ) -> Sending<B> {
        let (cut, arrivals) = pipeline.send_to(&pass.live, device, depth);
        let part = cut.count() - pass.remaining(pipeline);
        Sending {
            device: device.clone(),
            depth,
            ahead: VecDeque::new(),
            held: None,
            given: cut.batch_of(part),
            cut,
            part,
            arrivals,
            failed: None,
        }
    }

    /// Of a pass that nobody has taken a batch of.
    pub(super) fn of(
        device: &Device,
        depth: usize,
        (cut, arrivals): (Cut, Option<Arc<Arrivals<B>>>),
    ) -> Sending<B> {
        Sending {
            device: device.clone(),
            depth,
            ahead: VecDeque::new(),
            held: None,
            given: 0,
            cut,
            part: 0,
            arrivals,
            failed: None,
        }
    }

    /// How many batches are to be given out.
    fn left(&self) -> u64 {
        self.cut.batches() - self.given
    }

    /// Lets workers send parts of so many batches that were not given out.
    fn allow(&self, batches: usize) {
        if let Some(arrivals) = &self.arrivals {
            arrivals.allow(self.given.saturating_add(batches as u64));
        }
    }

    /// Sends what is ready, so that up to `most` batches are ahead. Where the program holds all device memory, it stops: what
    /// is sent ahead must not fail for memory that is there when the batch is asked for.
    fn send_ahead(&mut self, pipeline: &Pipeline<B>, pass: &mut Pass<B>, most: usize) {
        self.allow(most);
        while self.ahead.len() < most && self.held.is_none() {
            let Some(part) = pass.try_next(pipeline) else {
                return;
            };
            if let Some(batch) = self.arrive(pipeline, &pass.live, part, true) {
                self.ahead.push_back(batch);
            }
        }
    }

    /// Sends the part that came, if nobody did; the last one of a batch gives the batch, or its error. `ahead`: it is held
    /// back where there is no memory for it.
    fn arrive(
        &mut self,
        pipeline: &Pipeline<B>,
        live: &Live,
        part: Result<Made<B>>,
        ahead: bool,
    ) -> Option<Result<B::OnDevice>> {
        let mut batch = None;
        match part {
            Err(error) => self.fail(error),
            Ok(Made::Here(part)) if self.failed.is_none() => {
                match self.send(pipeline, live, part, ahead) {
                    Reply::Sent(sent) => batch = sent,
                    Reply::NotNow(part) => {
                        self.held = Some(part);
                        return None;
                    }
                    Reply::Failed(error) => self.fail(error),
                }
            }
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
    fn send(&self, pipeline: &Pipeline<B>, live: &Live, part: B, ahead: bool) -> Reply<B> {
        if !ahead || self.arrivals.is_none() {
            // It may wait, for device memory or a copy, and workers are not to wait with it.
            pipeline.wake_workers();
        }
        let Some(arrivals) = &self.arrivals else {
            // The batch may be of the program's own type. If its functions panic, that is its own error: a batch that was sent
            // before, and is about to be given out, must not be lost with it. Unwind safety: the batch is gone.
            let sent = catch_unwind(AssertUnwindSafe(|| send(part, &self.device, true)));
            return match sent {
                Ok(Ok(batch)) => Reply::Sent(Some(batch)),
                Ok(Err((Some(part), Error::DeviceBudget { .. }))) if ahead => Reply::NotNow(part),
                Ok(Err((_, error))) => Reply::Failed(error),
                Err(payload) => {
                    Reply::Failed(live.collate_panicked(self.part, panic_message(payload)))
                }
            };
        };
        match arrivals.send_part(self.part, part, !ahead) {
            Fate::Sent => Reply::Sent(None),
            Fate::NotNow(part) => Reply::NotNow(part),
            Fate::Failed(error) => Reply::Failed(error),
            Fate::Unlike(like, error) => {
                Reply::Failed(pipeline.unlike(live, &self.cut, [self.part, like], error))
            }
        }
    }
}

impl<'a, B: Batch> DeviceEpoch<'a, B> {
    pub(super) fn new(epoch: Epoch<'a, B>, sending: Sending<B>) -> DeviceEpoch<'a, B> {
        sending.allow(sending.depth);
        DeviceEpoch {
            epoch,
            sending,
            goes_on: false,
        }
    }

    /// What follows goes to the same device.
    pub(super) fn go_on(&mut self) {
        self.goes_on = true;
    }

    /// The next batch, and what is ready sent behind it. Where nothing is waited for, workers are left asleep.
    fn advance(&mut self) -> Option<Result<B::OnDevice>> {
        let mut asked = self.epoch.returned();
        self.look_ahead();
        let depth = self.sending.depth;
        self.sending.allow(depth.max(1));
        let next = match self.sending.ahead.pop_front() {
            Some(next) => next,
            None => loop {
                let part = match self.sending.held.take() {
                    Some(part) => Ok(Made::Here(part)),
                    None => self.epoch.wait(asked, true)?,
                };
                let (pipeline, pass) = self.epoch.pass();
                if let Some(next) = self.sending.arrive(pipeline, &pass.live, part, false) {
                    break next;
                }
                asked = Instant::now();
            },
        };
        self.sending.given += 1;
        let (pipeline, pass) = self.epoch.pass();
        self.sending.send_ahead(pipeline, pass, depth);
        self.look_ahead();
        Some(next)
    }

    /// Sees to the epoch that follows: begins it, and sends of it what is ready, behind all batches of this one.
    fn look_ahead(&self) {
        let goes = match self.goes_on {
            true => Goes::ToDevice(&self.sending.device, self.sending.depth),
            false => Goes::Unknown,
        };
        let Some(mut waiting) = self.epoch.look_ahead(goes) else {
            return;
        };
        if let Some((pass, Some(sending))) = waiting.get() {
            let left = usize::try_from(self.sending.left()).unwrap_or(usize::MAX);
            let most = self.sending.depth.saturating_sub(left);
            sending.send_ahead(self.epoch.pipeline(), pass, most);
        }
    }
}

impl<B: Batch> Iterator for DeviceEpoch<'_, B> {
    type Item = Result<B::OnDevice>;

    fn next(&mut self) -> Option<Result<B::OnDevice>> {
        let next = self.advance();
        // Last, when the batch is in hand and what is ready is sent.
        self.epoch.pipeline().wake_workers();
        if next.is_some() {
            self.epoch.gives();
        }
        next
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        let remaining = usize::try_from(self.sending.left());
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
            .field("ahead", &self.sending.ahead.len())
            .finish()
    }
}
