//! `startup`: how long until the first batch. A device is opened, a data set opened, a loader built; then the time from
//! `epoch()` to the first batch in hand, and to its arrival on the device, in the first epoch and in the second.
//!
//! The device's time is the process's first use of it: `cuInit` and the context are in it.

use std::time::Instant;

use pinfeed::{Batch, DataLoader, Dataset, Device, TensorDataset};

use crate::args::{Args, cores};
use crate::drive::{Arrived, ms};
use crate::report::{Record, Report};
use crate::window::Window;
use crate::{Outcome, data, jpeg, target};

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
        pinfeed::Stack: pinfeed::Collate<D::Sample, Batch = B>,
        B: Batch,
        B::OnDevice: Arrived,
    {
        // What an earlier loader left page-locked would hide what a start costs.
        self.device.release_pinned();
        self.device.release_device_memory()?;
        let stream = self.device.stream()?;
        let window = Window::begin();
        let begun = Instant::now();
        let dataset = open()?;
        let data_ms = ms(begun.elapsed());
        let samples = dataset.len();
        let begun = Instant::now();
        let loader = DataLoader::builder(dataset)
            .batch_size(self.batch_size)
            .shuffle(true)
            .seed(self.args.seed)
            .num_workers(self.workers)
            .pin_memory(self.device)
            .build()?;
        let build_ms = ms(begun.elapsed());

        let mut firsts = Vec::new();
        for number in 0..2 {
            let begun = Instant::now();
            let mut epoch = loader.epoch(number);
            let batch = epoch.next().ok_or("the data set is empty")??;
            let in_hand = ms(begun.elapsed());
            batch.to_device(self.device, true)?.touch(&stream)?;
            stream.synchronize()?;
            firsts.push((in_hand, ms(begun.elapsed())));
            // The rest of the first epoch, so that the second finds what a training program's would.
            if number == 0 {
                for batch in epoch {
                    batch?.to_device(self.device, true)?.touch(&stream)?;
                }
                stream.synchronize()?;
            }
        }
        let mut record = Record::new("startup", "").measured(&window.end());
        record.workers = Some(self.workers);
        record.batch_size = Some(self.batch_size);
        record.dtype = Some("u8");
        record.first_batch_ms = Some(firsts[0].0);
        record.pinned_mb = Some(self.device.memory().pinned_bytes as f64 / 1e6);
        Ok(record
            .with("samples", samples)
            .with_number("data_open_ms", data_ms)
            .with_number("build_ms", build_ms)
            .with_number("first_on_device_ms", firsts[0].1)
            .with_number("second_epoch_first_batch_ms", firsts[1].0)
            .with_number("second_epoch_first_on_device_ms", firsts[1].1))
    }
}
