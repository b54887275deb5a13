//! The loop of a training program, without the training: what the feeding workloads have in common.

use std::time::{Duration, Instant};

use pinfeed::tensor::Element;
use pinfeed::{Batch, DataLoader, Device, DeviceTensor, Stream};

use crate::Outcome;
use crate::report::Record;
use crate::window::{Measured, Waits, Window};

/// How batches get to the device.
#[derive(Debug, Clone, Copy)]
pub enum Way {
    /// By `to_device` in the loop.
    Loop,
    /// By the epoch, so many batches ahead.
    Ahead(usize),
}

/// What arrived.
#[derive(Debug, Default, Clone, Copy)]
pub struct Load {
    pub batches: u64,
    pub samples: u64,
    pub bytes: u64,
}

/// A batch on the device.
pub trait Arrived {
    /// Lends it to the stream, which waits for the copy, and launches work meanwhile.
    fn with(&self, stream: &Stream, launch: &mut dyn FnMut() -> Outcome) -> Outcome<Load>;

    /// Lends it to the stream; nothing is launched.
    fn touch(&self, stream: &Stream) -> Outcome<Load> {
        self.with(stream, &mut || Ok(()))
    }
}

impl<T: Element> Arrived for DeviceTensor<T> {
    fn with(&self, stream: &Stream, launch: &mut dyn FnMut() -> Outcome) -> Outcome<Load> {
        let loan = self.on(stream)?;
        launch()?;
        drop(loan);
        Ok(Load {
            batches: 1,
            samples: self.shape().first().copied().unwrap_or(1) as u64,
            bytes: self.size_bytes() as u64,
        })
    }
}

impl<A: Arrived, B: Arrived> Arrived for (A, B) {
    fn with(&self, stream: &Stream, launch: &mut dyn FnMut() -> Outcome) -> Outcome<Load> {
        let mut second = Load::default();
        let first = self.0.with(stream, &mut || {
            second = self.1.with(stream, launch)?;
            Ok(())
        })?;
        Ok(Load {
            bytes: first.bytes + second.bytes,
            ..first
        })
    }
}

/// What a loop saw.
#[derive(Debug, Default)]
pub struct Seen {
    pub load: Load,
    /// The consumer's time in `next`.
    pub waits: Waits,
    /// Its time in `to_device` and `on`.
    pub submitting: Duration,
}

impl Seen {
    fn batch(&mut self, load: Load, wait: Duration, submitting: Duration) {
        self.load.batches += load.batches;
        self.load.samples += load.samples;
        self.load.bytes += load.bytes;
        self.waits.push(wait);
        self.submitting += submitting;
    }
}

/// What is done with a batch that arrived.
pub type With<'a, B> = &'a mut dyn FnMut(<B as Batch>::OnDevice, &Stream) -> Outcome<Load>;

/// Nothing, but that it is lent to the stream.
pub fn touch<A: Arrived>(batch: A, stream: &Stream) -> Outcome<Load> {
    batch.touch(stream)
}

/// Feeds one epoch, or what of it comes until the time given; returns the time from its begin to the first batch.
pub fn epoch<B: Batch>(
    loader: &DataLoader<B>,
    number: u64,
    way: Way,
    (device, stream): (&Device, &Stream),
    mut go_on: impl FnMut() -> bool,
    with: With<'_, B>,
    seen: &mut Seen,
) -> Outcome<Option<Duration>> {
    let (begun, mut first) = (Instant::now(), None);
    let mut came = |asked: Instant| {
        let now = Instant::now();
        first.get_or_insert(now - begun);
        (now, now - asked)
    };
    match way {
        Way::Loop => {
            let mut epoch = loader.epoch(number);
            while go_on() {
                let asked = Instant::now();
                let Some(batch) = epoch.next() else { break };
                let (now, wait) = came(asked);
                let load = with(batch?.to_device(device, true)?, stream)?;
                seen.batch(load, wait, now.elapsed());
            }
        }
        Way::Ahead(depth) => {
            let mut epoch = loader.epoch(number).prefetch_to_device(device, depth);
            while go_on() {
                let asked = Instant::now();
                let Some(batch) = epoch.next() else { break };
                let (now, wait) = came(asked);
                let load = with(batch?, stream)?;
                seen.batch(load, wait, now.elapsed());
            }
        }
    }
    Ok(first)
}

/// What a window of feeding gave.
pub struct Fed {
    pub seen: Seen,
    pub measured: Measured,
    /// Of the first epoch: it page-locks.
    pub first_batch: Option<Duration>,
    /// Of the epoch after it.
    pub first_batch_warm: Option<Duration>,
    pub slabs_made: u64,
    pub pinned_bytes: usize,
}

/// Feeds one epoch to warm up, and then epoch after epoch for so long. The window ends when all copies have.
pub fn measure<B: Batch>(
    loader: &DataLoader<B>,
    way: Way,
    device: &Device,
    duration: Duration,
    with: With<'_, B>,
) -> Outcome<Fed> {
    fills_a_batch(loader)?;
    let stream = device.stream()?;
    let on = (device, &stream);
    let first_batch = epoch(loader, 0, way, on, || true, with, &mut Seen::default())?;
    stream.synchronize()?;
    let warm = device.memory().slabs_made;

    let (mut seen, mut first_batch_warm) = (Seen::default(), None);
    let window = Window::begin();
    let end = window.begun() + duration;
    for number in 1.. {
        let go_on = || Instant::now() < end;
        let first = epoch(loader, number, way, on, go_on, with, &mut seen)?;
        first_batch_warm = first_batch_warm.or(first);
        if Instant::now() >= end {
            break;
        }
    }
    stream.synchronize()?;
    Ok(Fed {
        first_batch,
        first_batch_warm,
        ..Fed::end(window, seen, device, warm)
    })
}

fn fills_a_batch<B: Batch>(loader: &DataLoader<B>) -> Outcome {
    match loader.is_empty() {
        true => Err("the data set does not fill one batch: raise --samples".into()),
        false => Ok(()),
    }
}

impl Fed {
    /// Ends the window. So many slabs had been made before it.
    fn end(window: Window, seen: Seen, device: &Device, slabs_before: u64) -> Fed {
        let measured = window.end();
        let memory = device.memory();
        Fed {
            seen,
            measured,
            first_batch: None,
            first_batch_warm: None,
            slabs_made: memory.slabs_made - slabs_before,
            pinned_bytes: memory.pinned_bytes,
        }
    }
}

/// How many epochs warm up before [`measure_epochs`] counts: a share of the device's is found in them, too.
#[cfg(feature = "image")]
const WARM_UP: u64 = 2;

/// Feeds epochs that follow each other, as a training program does: they are loaded across the boundary. The first ones warm up, and what
/// comes behind them is measured for so long. The window ends when all copies have.
#[cfg(feature = "image")]
pub fn measure_epochs<B: Batch>(
    loader: &DataLoader<B>,
    depth: usize,
    device: &Device,
    duration: Duration,
    with: With<'_, B>,
) -> Outcome<Fed> {
    fills_a_batch(loader)?;
    let stream = device.stream()?;
    let (mut first_batch, mut warm, begun) = (None, 0, Instant::now());
    let (mut seen, mut window) = (Seen::default(), None);
    let mut asked = begun;
    'epochs: for (number, epoch) in (0..).zip(loader.epochs(0..).prefetch_to_device(device, depth))
    {
        if number == WARM_UP {
            stream.synchronize()?;
            (warm, seen) = (device.memory().slabs_made, Seen::default());
            asked = window.insert(Window::begin()).begun();
        }
        for batch in epoch {
            let (batch, now) = (batch?, Instant::now());
            first_batch.get_or_insert(now - begun);
            let load = with(batch, &stream)?;
            seen.batch(load, now - asked, now.elapsed());
            asked = Instant::now();
            if window
                .as_ref()
                .is_some_and(|window| asked >= window.begun() + duration)
            {
                break 'epochs;
            }
        }
    }
    stream.synchronize()?;
    let window = window.ok_or("there are epochs without end")?;
    Ok(Fed {
        first_batch,
        ..Fed::end(window, seen, device, warm)
    })
}

/// The average of what was measured before and after, if both were.
pub fn mean(before: f64, after: f64) -> f64 {
    (before + after) / 2.0
}

impl Record {
    /// Takes over what a window of feeding gave.
    pub fn fed(mut self, fed: &mut Fed) -> Record {
        let seconds = fed.measured.window_s;
        let Load {
            batches,
            samples,
            bytes,
        } = fed.seen.load;
        self.samples_s = Some(samples as f64 / seconds);
        self.batches_s = Some(batches as f64 / seconds);
        self.gb_s = Some(bytes as f64 / seconds / 1e9);
        self.first_batch_ms = fed.first_batch.map(ms);
        self.pinned_mb = Some(fed.pinned_bytes as f64 / 1e6);
        let submitting_us = fed.seen.submitting.as_secs_f64() * 1e6 / batches.max(1) as f64;
        self.measured(&fed.measured)
            .waited(&mut fed.seen.waits)
            .with_number(
                "first_batch_warm_ms",
                fed.first_batch_warm.map_or(f64::NAN, ms),
            )
            .with_number("submit_us", submitting_us)
            .with("slabs_made_after_warmup", fed.slabs_made)
    }
}

/// A duration in milliseconds.
pub fn ms(duration: Duration) -> f64 {
    duration.as_secs_f64() * 1e3
}
