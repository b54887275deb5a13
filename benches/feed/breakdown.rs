//! `breakdown`: where a batch's time goes, by the library's own statistics: loading, transfer, processing; with
//! page-locked memory and without, on each device that is named.
//!
//! The step is a fixed one (`--step-ms`). The data set is a class folder (`--data`), or images in memory.

use std::time::{Duration, Instant};

use pinfeed::loader::Stats;
use pinfeed::{Batch, DataLoader, Dataset, TensorDataset};

use crate::args::{Args, cores};
use crate::drive::Arrived;
use crate::report::{Record, Report};
use crate::step::Stepper;
use crate::target::Target;
use crate::window::Window;
use crate::{Outcome, data, jpeg};

pub fn run(args: &Args, report: &mut Report) -> Outcome {
    for &name in &args.devices {
        let target = Target::open(name)?;
        for &workers in &args.workers(&[cores()]) {
            for &batch_size in &args.batch_sizes(256) {
                for pinned in [true, false] {
                    let breakdown = Breakdown {
                        args,
                        target: &target,
                        workers,
                        batch_size,
                        pinned,
                    };
                    let record = match &args.data {
                        Some(folder) => jpeg::breakdown(&breakdown, folder)?,
                        None => breakdown.tensor()?,
                    };
                    report.print(&record);
                }
            }
        }
    }
    Ok(())
}

/// One loader on one device.
pub struct Breakdown<'a> {
    args: &'a Args,
    target: &'a Target,
    workers: usize,
    batch_size: usize,
    pinned: bool,
}

impl Breakdown<'_> {
    fn tensor(&self) -> Outcome<Record> {
        let samples = self.args.samples.unwrap_or(20_000);
        let tensor = data::random::<u8>(&[samples, 3, 224, 224], self.args.seed)?;
        Ok(self
            .measure(TensorDataset::new(tensor)?)?
            .with("data", "tensor"))
    }

    pub fn measure<D, B>(&self, dataset: D) -> Outcome<Record>
    where
        D: Dataset,
        pinfeed::collate::Stack: pinfeed::collate::Collate<D::Sample, Batch = B>,
        B: Batch,
        B::OnDevice: Arrived,
    {
        let device = self.target.device()?;
        let mut builder = DataLoader::builder(dataset)
            .batch_size(self.batch_size)
            .shuffle(true)
            .seed(self.args.seed)
            .drop_last(true)
            .num_workers(self.workers);
        if self.pinned {
            builder = builder.pin_memory(&device);
        }
        let loader = builder.build()?;
        if loader.is_empty() {
            return Err("the data set does not fill one batch".into());
        }
        let stream = device.stream()?;
        let mut stepper = Stepper::new(self.target, &stream, self.args.step(2.0))?;
        let mut epoch = |number| -> Outcome<Stats> {
            for batch in loader.epoch(number) {
                // Without page-locked memory there is nothing that a copy could overlap with: as one would write it.
                let there = batch?.to_device(&device, self.pinned)?;
                there.with(&stream, &mut || stepper.step())?;
            }
            stepper.drain()?;
            // Without page-locked memory the loader knows no device, and copies and steps that ended since are counted
            // when the device is asked for something.
            device.memory();
            Ok(loader.stats())
        };
        epoch(0)?;

        let (window, mut all) = (Window::begin(), Vec::new());
        let end = window.begun() + self.args.seconds(5.0);
        while all.is_empty() || Instant::now() < end {
            all.push(epoch(all.len() as u64 + 1)?);
        }
        let measured = window.end();

        let sum = |of: fn(&Stats) -> u64| all.iter().map(of).sum::<u64>() as f64;
        let batches = sum(|stats| stats.batches);
        let bytes = sum(|stats| stats.transfers.bytes);
        let time_ms =
            |of: fn(&Stats) -> Duration| 1e3 * all.iter().map(of).sum::<Duration>().as_secs_f64();
        let per_batch = |of: fn(&Stats) -> Duration| time_ms(of) / batches;
        let transfers = sum(|stats| stats.transfers.count);
        let processed = sum(|stats| stats.processing.count);
        let limit = all.last().map(|stats| format!("{:?}", stats.limit()));
        let mut record = Record::new("breakdown", self.target.name).measured(&measured);
        record.workers = Some(self.workers);
        record.batch_size = Some(self.batch_size);
        record.dtype = Some("u8");
        record.batches_s = Some(batches / measured.window_s);
        record.samples_s = Some(sum(|stats| stats.samples) / measured.window_s);
        record.gb_s = Some(bytes / measured.window_s / 1e9);
        record.pinned_mb = Some(device.memory().pinned_bytes as f64 / 1e6);
        Ok(record
            .with("pinned", self.pinned)
            .with_number("loading_ms", per_batch(|stats| stats.loading.total))
            .with_number("decoding_ms", per_batch(|stats| stats.decoding.total))
            .with_number("collating_ms", per_batch(|stats| stats.collating.total))
            .with_number("pinning_ms", per_batch(|stats| stats.pinning))
            .with_number("slab_wait_ms", per_batch(|stats| stats.slab_wait.total))
            .with_number(
                "transfer_ms",
                time_ms(|stats| stats.transfers.total) / transfers,
            )
            .with_number(
                "processing_ms",
                time_ms(|stats| stats.processing.total) / processed,
            )
            .with_number("host_ms", per_batch(|stats| stats.step))
            .with_number(
                "consumer_wait_ms",
                per_batch(|stats| stats.consumer_wait.total),
            )
            .with_number(
                "transfer_gb_s",
                bytes / 1e6 / time_ms(|stats| stats.transfers.total),
            )
            .with_number("processed_share", processed / batches)
            .with("limit", limit))
    }
}
