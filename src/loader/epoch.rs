//! Epochs: iterators over the batches of one pass.

use std::collections::VecDeque;
use std::fmt;

use super::DataLoader;
use super::device_epoch::{DeviceEpoch, Sending};
use super::line::{Line, Waiting};
use crate::batch::Batch;
use crate::device::Device;
use crate::error::Result;
use crate::pipeline::{Goes, Live, Made, Pipeline, Taken};
use crate::sync::{Arc, Instant};

/// How an epoch holds its loader.
pub(super) enum Loader<'a, B: Batch> {
    Borrowed(&'a DataLoader<B>),
    Owned(Arc<DataLoader<B>>),
}

impl<B: Batch> Loader<'_, B> {
    pub(super) fn get(&self) -> &DataLoader<B> {
        match self {
            Loader::Borrowed(loader) => loader,
            Loader::Owned(loader) => loader,
        }
    }

    pub(super) fn pipeline(&self) -> &Pipeline<B> {
        self.get().threads.pipeline()
    }
}

impl<B: Batch> Clone for Loader<'_, B> {
    fn clone(&self) -> Self {
        match self {
            Loader::Borrowed(loader) => Loader::Borrowed(loader),
            Loader::Owned(loader) => Loader::Owned(Arc::clone(loader)),
        }
    }
}

/// What comes of an epoch, whoever holds it.
pub(super) struct Pass<B> {
    pub(super) live: Live,
    /// Batches that came together with one before.
    taken: Taken<B>,
}

impl<B: Batch> Pass<B> {
    pub(super) fn new(live: Live) -> Pass<B> {
        Pass {
            live,
            taken: VecDeque::new(),
        }
    }

    /// How many batches, or parts of batches, are to come.
    pub(super) fn remaining(&self, pipeline: &Pipeline<B>) -> u64 {
        pipeline.remaining(&self.live) + self.taken.len() as u64
    }

    /// The next batch, if it is ready.
    pub(super) fn try_next(&mut self, pipeline: &Pipeline<B>) -> Option<Result<Made<B>>> {
        pipeline.try_next(&self.live, &mut self.taken)
    }
}

/// One pass over the data set: gives its batches in order.
///
/// A batch that failed gives its error in its place, and the iteration can go on. Dropping the epoch stops its
/// loading, without waiting.
///
/// # Examples
///
/// ```
/// use pinfeed::{DataLoader, from_fn};
///
/// let loader = DataLoader::builder(from_fn(10, |index, _| Ok(index as i64)))
///     .batch_size(4)
///     .build()?;
/// let epoch = loader.epoch(3);
/// assert_eq!((epoch.number(), epoch.len()), (3, 3)); // three batches are to come
/// for (step, numbers) in epoch.enumerate() {
///     let numbers = numbers?;
///     println!("step {step}: {} samples", numbers.len());
/// }
/// # Ok::<(), pinfeed::Error>(())
/// ```
#[must_use = "an epoch gives its batches to who iterates it"]
pub struct Epoch<'a, B: Batch> {
    loader: Loader<'a, B>,
    pass: Pass<B>,
    /// What follows it, if it is one of several.
    line: Option<Arc<Line<B>>>,
    /// When the last batch was given out: the host's own time runs from here.
    given: Option<Instant>,
}

impl<'a, B: Batch> Epoch<'a, B> {
    /// `goes_on`: it is one of several.
    pub(super) fn begin(loader: Loader<'a, B>, epoch: u64, goes_on: bool) -> Epoch<'a, B> {
        let live = loader.pipeline().begin(epoch, goes_on);
        *loader.get().last.lock() = Some(live.clone());
        Epoch::of(loader, Pass::new(live))
    }

    fn of(loader: Loader<'a, B>, pass: Pass<B>) -> Epoch<'a, B> {
        Epoch {
            loader,
            pass,
            line: None,
            given: None,
        }
    }

    /// The consumer comes to an epoch that was begun before. An error: it is better begun afresh.
    pub(super) fn come_to(
        loader: Loader<'a, B>,
        pass: Pass<B>,
    ) -> std::result::Result<Epoch<'a, B>, Epoch<'a, B>> {
        let epoch = Epoch::of(loader, pass);
        if !epoch.pipeline().come_to(&epoch.pass.live) {
            return Err(epoch);
        }
        *epoch.loader.get().last.lock() = Some(epoch.pass.live.clone());
        Ok(epoch)
    }

    /// The number of this epoch.
    pub fn number(&self) -> u64 {
        self.pass.live.epoch
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
        let sending = Sending::begin(self.pipeline(), &self.pass, device, depth);
        DeviceEpoch::new(self, sending)
    }

    pub(super) fn pipeline(&self) -> &Pipeline<B> {
        self.loader.pipeline()
    }

    pub(super) fn pass(&mut self) -> (&Pipeline<B>, &mut Pass<B>) {
        (self.loader.pipeline(), &mut self.pass)
    }

    /// Says what follows it.
    pub(super) fn set_line(&mut self, line: Option<Arc<Line<B>>>) {
        self.line = line;
    }

    /// Begins the epoch that follows, once workers will soon have nothing else to do; and takes it, to send of it what
    /// is ready.
    pub(super) fn look_ahead(&self, goes: Goes<'_>) -> Option<Waiting<'_, B>> {
        let line = self.line.as_ref()?;
        line.look_ahead(self.pipeline(), &self.pass.live, goes)
    }

    /// Counts the host's time since the last batch; returns the present.
    pub(super) fn returned(&mut self) -> Instant {
        let now = Instant::now();
        if let Some(given) = self.given.take() {
            self.pass.live.meter.host_ns.add_between(given, now);
        }
        now
    }

    /// The host's own time runs from now on.
    pub(super) fn gives(&mut self) {
        self.given = Some(Instant::now());
    }

    /// Waits for the next batch, from `asked` on. `quietly`: the caller wakes the workers.
    pub(super) fn wait(&mut self, asked: Instant, quietly: bool) -> Option<Result<Made<B>>> {
        let (pipeline, pass) = self.pass();
        let next = pipeline.next(&pass.live, &mut pass.taken, quietly);
        let came = Instant::now();
        let meter = &self.pass.live.meter;
        meter.consumer_wait_ns.add_between(asked, came);
        self.given = next.is_some().then_some(came);
        next
    }
}

impl<B: Batch> Iterator for Epoch<'_, B> {
    type Item = Result<B>;

    fn next(&mut self) -> Option<Result<B>> {
        let asked = self.returned();
        drop(self.look_ahead(Goes::ToHost));
        let next = self.wait(asked, false)?;
        Some(next.map(|made| match made {
            Made::Here(batch) => batch,
            Made::Sent => unreachable!("only a device epoch's batches are sent"),
        }))
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        let remaining = usize::try_from(self.pass.remaining(self.pipeline()));
        (remaining.unwrap_or(usize::MAX), remaining.ok())
    }
}

impl<B: Batch> ExactSizeIterator for Epoch<'_, B> {}
impl<B: Batch> std::iter::FusedIterator for Epoch<'_, B> {}

impl<B: Batch> Drop for Epoch<'_, B> {
    fn drop(&mut self) {
        self.returned();
        self.pipeline().end(&self.pass.live);
    }
}

impl<B: Batch> fmt::Debug for Epoch<'_, B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Epoch")
            .field("number", &self.number())
            .field("remaining", &self.len())
            .finish()
    }
}
