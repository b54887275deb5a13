//! `tiny`: scalars in batches of 32, on the host: what a batch costs when its samples cost nothing.
//!
//! With `--flat`, epochs of 1 to 1,000,000 batches show whether a batch's cost, or memory, grows with the epoch.

use std::time::{Duration, Instant};

use pinfeed::dataset::VecDataset;
use pinfeed::sampler::{RandomSampler, Sampler};
use pinfeed::{DataLoader, Dataset, Device, Tensor, from_fn};

use crate::Outcome;
use crate::args::Args;
use crate::drive::ms;
use crate::report::{Record, Report};
use crate::target::Target;
use crate::window::{Waits, Window, rss_mb};

/// Looking at the clock takes a part of what a batch does, so it is looked at once for so many batches.
const STRIDE: usize = 64;

pub fn run(args: &Args, report: &mut Report) -> Outcome {
    for &name in &args.devices {
        let target = Target::open(name)?;
        for &workers in &args.workers(&[0, 4]) {
            for &batch_size in &args.batch_sizes(32) {
                let run = Run {
                    args,
                    target: &target,
                    workers,
                    batch_size,
                };
                if args.flat {
                    for batches in [1, 100, 10_000, 1_000_000] {
                        report.print(&run.flat(batches)?);
                    }
                } else {
                    report.print(&run.measure()?);
                }
            }
        }
    }
    Ok(())
}

struct Run<'a> {
    args: &'a Args,
    target: &'a Target,
    workers: usize,
    batch_size: usize,
}

impl Run<'_> {
    fn loader(
        &self,
        samples: impl Dataset<Sample = f32>,
        device: &Device,
    ) -> Outcome<DataLoader<Tensor<f32>>> {
        let mut builder = DataLoader::builder(samples)
            .batch_size(self.batch_size)
            .shuffle(true)
            .seed(self.args.seed)
            .num_workers(self.workers);
        if self.args.pin == Some(true) {
            builder = builder.pin_memory(device);
        }
        if let Some(prefetch) = self.args.prefetch(self.workers) {
            builder = builder.prefetch(prefetch);
        }
        Ok(builder.build()?)
    }

    fn record(&self) -> Record {
        let mut record = Record::new("tiny", self.target.name);
        record.workers = Some(self.workers);
        record.batch_size = Some(self.batch_size);
        record.dtype = Some("f32");
        record
            .with("pinned", self.args.pin == Some(true))
            .with("prefetch", self.args.prefetch(self.workers))
    }

    fn measure(&self) -> Outcome<Record> {
        let samples = self.args.samples.unwrap_or(1_000_000);
        let device = self.target.device()?;
        let loader = self.loader(VecDataset::new((0..samples).map(value).collect()), &device)?;

        // The first epoch warms up, and its batches are waited for one by one.
        let (begun, mut first, mut waits) = (Instant::now(), None, Waits::default());
        let mut epoch = loader.epoch(0);
        loop {
            let asked = Instant::now();
            let Some(batch) = epoch.next() else { break };
            batch?;
            first.get_or_insert(begun.elapsed());
            waits.push(asked.elapsed());
        }

        let window = Window::begin();
        let end = window.begun() + self.args.seconds(5.0);
        let mut batches = 0u64;
        'window: for number in 1.. {
            for batch in loader.epoch(number) {
                batch?;
                batches += 1;
                if batches.is_multiple_of(STRIDE as u64) && Instant::now() >= end {
                    break 'window;
                }
            }
            if Instant::now() >= end {
                break;
            }
        }
        let measured = window.end();
        let checked = check(&loader, samples as u64, self.args.seed)?;

        let rate = batches as f64 / measured.window_s;
        let mut record = self.record().measured(&measured).waited(&mut waits);
        record.batches_s = Some(rate);
        record.samples_s = Some(rate * self.batch_size as f64);
        record.first_batch_ms = first.map(ms);
        record.pinned_mb = Some(device.memory().pinned_bytes as f64 / 1e6);
        Ok(record
            .with_number("ns_per_batch", 1e9 / rate)
            .with("samples", samples)
            .with("checked_batches", checked))
    }

    /// Epochs of so many batches: one to warm up, and then enough for a figure.
    fn flat(&self, batches: u64) -> Outcome<Record> {
        let samples = batches * self.batch_size as u64;
        let device = self.target.device()?;
        let scalars = from_fn(samples, |index, _| Ok(value(index as usize)));
        let loader = self.loader(scalars, &device)?;
        loader
            .epoch(0)
            .take(10_000)
            .try_for_each(|batch| batch.map(drop))?;

        let window = Window::begin();
        let begun = window.begun();
        let (mut epochs, mut rss) = (0, None);
        while epochs == 0 || begun.elapsed() < Duration::from_secs(1) {
            epochs += 1;
            let mut epoch = loader.epoch(epochs);
            // What an epoch holds is seen in its last batch.
            for batch in epoch.by_ref().take(batches as usize - 1) {
                batch?;
            }
            if epochs == 1 {
                rss = rss_mb();
            }
            epoch.try_for_each(|batch| batch.map(drop))?;
        }
        let measured = window.end();

        let all = (epochs * batches) as f64;
        let mut record = self.record().measured(&measured);
        record.batches_s = Some(all / measured.window_s);
        record.samples_s = Some(all * self.batch_size as f64 / measured.window_s);
        Ok(record
            .with("variant", "flat")
            .with("batches_per_epoch", batches)
            .with("epochs", epochs)
            .with_number("ns_per_batch", measured.window_s * 1e9 / all)
            .with_number("rss_mb", rss.unwrap_or(f64::NAN)))
    }
}

/// The sample at an index: exact in `f32`.
fn value(index: usize) -> f32 {
    (index % (1 << 24)) as f32
}

/// Compares an epoch with the samples that its order names; returns how many batches.
fn check(loader: &DataLoader<Tensor<f32>>, samples: u64, seed: u64) -> Outcome<u64> {
    const EPOCH: u64 = 1 << 40; // one that was not measured
    let order = RandomSampler::with_seed(samples, seed);
    let (mut position, mut checked) = (0, 0);
    for batch in loader.epoch(EPOCH) {
        for &element in batch?.as_slice() {
            let index = order.index(EPOCH, position);
            if element != value(index as usize) {
                return Err(format!(
                    "corrupted: position {position} is {element}, not sample {index}"
                )
                .into());
            }
            position += 1;
        }
        checked += 1;
    }
    match position == samples {
        true => Ok(checked),
        false => Err(format!("{position} samples came of {samples}").into()),
    }
}
