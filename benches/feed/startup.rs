//! `startup`: how long until the first batch. A device is opened, a data set opened, a loader built; then the time from
//! `epoch()` to the first batch in hand, and to its arrival on the device, in the first epoch and in the second. With `--decode device` and
//! `both`, the loader sends the batches itself, as the device decodes no others.
//!
//! Then the boundaries between short epochs, for a program that takes a quarter longer with a batch than loading does: from
//! asking for the first batch of an epoch, behind the last of another, to having it, with `epochs(..)` (`boundary_ms`) and
//! with `epoch(n)` each time (`boundary_alone_ms`).
//!
//! The device's time is the process's first use of it: `cuInit` and the context are in it.

use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use pinfeed::sampler::{RandomSampler, Sampler};
use pinfeed::{Batch, DataLoader, Dataset, Device, Stream, TensorDataset};

use crate::args::{Args, Decoder, cores};
use crate::drive::{Arrived, ms};
use crate::report::{Record, Report};
use crate::window::{Waits, Window};
use crate::{Outcome, data, jpeg, target};

/// How many batches the short epochs have, and how many boundaries are measured.
const SHORT: u64 = 6;
const BOUNDARIES: u64 = 8;

/// How many batches are sent ahead.
const DEPTH: usize = 2;

pub fn run(args: &Args, report: &mut Report) -> Outcome {
    let by_default = if args.data.is_some() { 1 } else { 0 };
    let all = ["tensor", "jpeg"];
    let variants = match args.variants(&all, 0) {
        none if none.is_empty() => vec![all[by_default]],
        asked => asked,
    };
    for &name in &args.devices {
        let begun = Instant::now();
        let device = target::open(name)?;
        let device_ms = ms(begun.elapsed());
        for &variant in &variants {
            for &workers in &args.workers(&[cores()]) {
                for &batch_size in &args.batch_sizes(256) {
                    let startup = Startup {
                        args,
                        device: &device,
                        workers,
                        batch_size,
                    };
                    let mut record = match variant {
                        "jpeg" => jpeg::startup(&startup)?,
                        _ => startup.tensor()?,
                    };
                    record.device = name.to_string();
                    let record = record
                        .with("variant", variant)
                        .with_number("device_open_ms", device_ms);
                    report.print(&record);
                }
            }
        }
    }
    Ok(())
}

/// One start, of a loader on a device.
pub struct Startup<'a> {
    pub args: &'a Args,
    device: &'a Device,
    workers: usize,
    batch_size: usize,
}

impl Startup<'_> {
    fn tensor(&self) -> Outcome<Record> {
        let samples = self.args.samples.unwrap_or(20_000);
        let tensor = data::random::<u8>(&[samples, 3, 224, 224], self.args.seed)?;
        self.measure(|| Ok(TensorDataset::new(tensor)?))
    }

    /// Opens the data set, builds the loader, and waits for the first batches of two epochs.
    pub fn measure<D, B>(&self, open: impl FnOnce() -> Outcome<D>) -> Outcome<Record>
    where
        D: Dataset,
        pinfeed::collate::Stack: pinfeed::collate::Collate<D::Sample, Batch = B>,
        B: Batch,
        B::OnDevice: Arrived,
    {
        // What an earlier loader left page-locked would hide what a start costs.
        self.device.release_pinned();
        self.device.release_device_memory()?;
        let stream = self.device.stream()?;
        let window = Window::begin();
        let begun = Instant::now();
        let dataset = Arc::new(open()?);
        let data_ms = ms(begun.elapsed());
        let samples = dataset.len();
        let begun = Instant::now();
        let loader = DataLoader::builder(Arc::clone(&dataset))
            .batch_size(self.batch_size)
            .shuffle(true)
            .seed(self.args.seed)
            .num_workers(self.workers)
            .pin_memory(self.device)
            .build()?;
        let build_ms = ms(begun.elapsed());
        // What a program does between its loader and its loop: it makes a model.
        thread::sleep(self.args.pause);

        let mut firsts = Vec::new();
        for number in 0..2 {
            let epoch = || loader.epoch(number);
            let is_whole = number == 0;
            firsts.push(match self.args.decode {
                Decoder::Cpu => {
                    let send = |batch: B| batch.to_device(self.device, true);
                    first(epoch, send, &stream, is_whole)?
                }
                // Only what is sent by the loader is decoded by the device.
                Decoder::Device | Decoder::Both => {
                    let sent = || epoch().prefetch_to_device(self.device, DEPTH);
                    first(sent, Ok, &stream, is_whole)?
                }
            });
        }
        let measured = window.end();
        let pinned_bytes = self.device.memory().pinned_bytes;
        drop(loader);
        let mut boundaries = self.boundaries(&dataset)?;
        let of = |waits: &mut Waits, share| waits.percentile_ms(share).unwrap_or(f64::NAN);
        let mut record = Record::new("startup", "").measured(&measured);
        record.workers = Some(self.workers);
        record.batch_size = Some(self.batch_size);
        record.dtype = Some("u8");
        record.first_batch_ms = Some(firsts[0].0);
        record.pinned_mb = Some(pinned_bytes as f64 / 1e6);
        Ok(record
            .with("samples", samples)
            .with_number("data_open_ms", data_ms)
            .with_number("build_ms", build_ms)
            .with_number("first_on_device_ms", firsts[0].1)
            .with_number("second_epoch_first_batch_ms", firsts[1].0)
            .with_number("second_epoch_first_on_device_ms", firsts[1].1)
            .with_number("boundary_ms", of(&mut boundaries.across, 0.5))
            .with_number("boundary_max_ms", of(&mut boundaries.across, 1.0))
            .with_number("boundary_end_ms", of(&mut boundaries.end, 0.5))
            .with_number("boundary_begin_ms", of(&mut boundaries.begin, 0.5))
            .with_number("boundary_first_ms", of(&mut boundaries.first, 0.5))
            .with_number("boundary_alone_ms", of(&mut boundaries.alone, 0.5))
            .with_number("boundary_alone_max_ms", of(&mut boundaries.alone, 1.0))
            .with_number("within_ms", of(&mut boundaries.within, 0.5))
            .with_number("within_max_ms", of(&mut boundaries.within, 1.0)))
    }

    /// How long boundaries between short epochs take: of `epochs(..)`, and of `epoch(n)`; and how long the other batches of the
    /// first of them.
    fn boundaries<D, B>(&self, dataset: &Arc<D>) -> Outcome<Boundaries>
    where
        D: Dataset,
        pinfeed::collate::Stack: pinfeed::collate::Collate<D::Sample, Batch = B>,
        B: Batch,
        B::OnDevice: Arrived,
    {
        let samples = SHORT.saturating_mul(self.batch_size as u64);
        let order = Short {
            len: samples.min(dataset.len()),
            order: RandomSampler::with_seed(dataset.len(), self.args.seed),
        };
        let loader = DataLoader::builder(Arc::clone(dataset))
            .batch_size(self.batch_size)
            .sampler(order)
            .num_workers(self.workers)
            .pin_memory(self.device)
            .build()?;
        let stream = self.device.stream()?;
        // Warm, and then how long loading takes.
        let mut pause = Duration::ZERO;
        for number in 0..3 {
            let begun = Instant::now();
            for batch in loader.epoch(number).prefetch_to_device(self.device, DEPTH) {
                batch?.touch(&stream)?;
            }
            stream.synchronize()?;
            pause = begun.elapsed().mul_f64(1.25 / loader.len().max(1) as f64);
        }
        let numbers = 3..4 + BOUNDARIES;
        let mut waits = Boundaries::default();
        let mut asked = Instant::now();
        let mut epochs = loader
            .epochs(numbers.clone())
            .prefetch_to_device(self.device, DEPTH);
        loop {
            // The epoch before said that it was over, and was dropped.
            let ended = Instant::now();
            let Some(epoch) = epochs.next() else { break };
            let begun = Instant::now();
            for (number, batch) in epoch.enumerate() {
                let came = Instant::now();
                match number {
                    0 => {
                        waits.across.push(came - asked);
                        waits.end.push(ended - asked);
                        waits.begin.push(begun - ended);
                        waits.first.push(came - begun);
                    }
                    _ => waits.within.push(came - asked),
                }
                batch?.touch(&stream)?;
                thread::sleep(pause);
                asked = Instant::now();
            }
        }
        for number in numbers {
            for (number, batch) in loader
                .epoch(number)
                .prefetch_to_device(self.device, DEPTH)
                .enumerate()
            {
                if number == 0 {
                    waits.alone.push(asked.elapsed());
                }
                batch?.touch(&stream)?;
                thread::sleep(pause);
                asked = Instant::now();
            }
        }
        // The first had nothing before it.
        let Boundaries {
            across,
            end,
            begin,
            first,
            alone,
            ..
        } = &mut waits;
        for waits in [across, end, begin, first, alone] {
            waits.skip(1);
        }
        Ok(waits)
    }
}

/// How long until the first batch of an epoch is in hand, and until it is on the device, in ms. If the epoch `is_whole`, it is then taken to
/// its end, so that the next one finds what a training program's would.
fn first<E, T, A>(
    epoch: impl FnOnce() -> E,
    send: impl Fn(T) -> pinfeed::Result<A>,
    stream: &Stream,
    is_whole: bool,
) -> Outcome<(f64, f64)>
where
    E: Iterator<Item = pinfeed::Result<T>>,
    A: Arrived,
{
    let begun = Instant::now();
    let mut batches = epoch();
    let batch = batches.next().ok_or("the data set is empty")??;
    let in_hand = ms(begun.elapsed());
    send(batch)?.touch(stream)?;
    stream.synchronize()?;
    let on_device = ms(begun.elapsed());
    if is_whole {
        for batch in batches {
            send(batch?)?.touch(stream)?;
        }
        stream.synchronize()?;
    }
    Ok((in_hand, on_device))
}

/// What was waited for, at the boundaries between epochs and within them.
#[derive(Default)]
struct Boundaries {
    /// With `epochs(..)`: from asking behind the last batch to having the next epoch's first.
    across: Waits,
    /// Of that, until the epoch was over and dropped; until the next was there; and until its first batch was.
    end: Waits,
    begin: Waits,
    first: Waits,
    /// The other batches of these epochs.
    within: Waits,
    /// With `epoch(n)` each time.
    alone: Waits,
}

/// The first samples of each epoch's random order.
struct Short {
    len: u64,
    order: RandomSampler,
}

impl Sampler for Short {
    fn len(&self) -> u64 {
        self.len
    }

    fn index(&self, epoch: u64, position: u64) -> u64 {
        self.order.index(epoch, position)
    }
}
