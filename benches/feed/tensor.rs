//! `tensor`: samples of 3x224x224 in memory, shuffled, to the device.
//!
//! The samples are rows of one host tensor, so loading is nothing but gathering rows into page-locked batches, and the
//! copies follow behind. Three ways: `loop` sends each batch by `to_device` in the consumer's loop, `ahead` lets the
//! epoch send, and `registered` does the same from a data set that is page-locked itself. The consumer lends each batch
//! to its stream and drops it: no kernel runs.
//!
//! It is held against bare pinned copies of the size of a batch (`limit_gb_s`), and against the bare loop of as many
//! threads (`bare_loop_gb_s`), which is the limit where the device is the CPU.

use pinfeed::sampler::{RandomSampler, Sampler};
use pinfeed::{Batch, DataLoader, Device, Tensor, TensorDataset};

use crate::Outcome;
use crate::args::{Args, cores};
use crate::data::{self, Number};
use crate::drive::{self, Way, mean};
use crate::gather::Rows;
use crate::report::{Record, Report};
use crate::target::Target;

const SHAPE: [usize; 3] = [3, 224, 224];

/// How many batches the check looks at, at most.
const CHECKED_BATCHES: usize = 200;

pub fn run(args: &Args, report: &mut Report) -> Outcome {
    for &name in &args.devices {
        let target = Target::open(name)?;
        for dtype in &args.dtypes {
            match dtype.as_str() {
                "f32" => with::<f32>(args, &target, report)?,
                _ => with::<u8>(args, &target, report)?,
            }
        }
    }
    Ok(())
}

fn with<T: Number>(args: &Args, target: &Target, report: &mut Report) -> Outcome {
    let [channels, height, width] = SHAPE;
    let samples = args.samples.unwrap_or(20_000);
    let mut data = data::random::<T>(&[samples, channels, height, width], args.seed)?;
    for variant in args.variants(&["loop", "ahead", "registered"], 2) {
        // All results of one device, which knows the memory; else each has a fresh one.
        let mut registered = None;
        if variant == "registered" {
            let device = target.device()?;
            data = data.register(&device)?;
            registered = Some(device);
        }
        let way = match variant {
            "loop" => Way::Loop,
            _ => Way::Ahead(args.depth),
        };
        for &workers in &args.workers(&[cores()]) {
            for &batch_size in &args.batch_sizes(256) {
                let run = Run {
                    args,
                    target,
                    registered: registered.as_ref(),
                    data: &data,
                    variant,
                    way,
                    workers,
                    batch_size,
                };
                report.print(&run.measure()?);
            }
        }
    }
    Ok(())
}

struct Run<'a, T: Number> {
    args: &'a Args,
    target: &'a Target,
    registered: Option<&'a Device>,
    data: &'a Tensor<T>,
    variant: &'static str,
    way: Way,
    workers: usize,
    batch_size: usize,
}

impl<T: Number> Run<'_, T> {
    fn measure(&self) -> Outcome<Record> {
        let device = match self.registered {
            Some(device) => {
                device.release_pinned();
                device.clone()
            }
            None => self.target.device()?,
        };
        let loader = self.loader(&device)?;
        let rows = Rows {
            bytes: data::bytes(self.data),
            row_bytes: SHAPE.iter().product::<usize>() * size_of::<T>(),
            batch: self.batch_size,
        };

        if let Some(way) = self.args.gather {
            // In time only for the first result of a device; the others go the same way.
            device.gather_by(way);
        }
        let before = self.limits(rows)?;
        let seconds = self.args.seconds(5.0);
        let mut fed = drive::measure(&loader, self.way, &device, seconds, &mut drive::touch)?;
        let unpinned = loader.stats().unpinned.count;
        let after = self.limits(rows)?;
        let gathered = match self.registered {
            Some(_) => self.target.bare_gather(rows)?,
            None => None,
        };
        let checked = self.check(&loader, &device)?;

        let mut record = Record::new("tensor", self.target.name).fed(&mut fed);
        record.workers = Some(self.workers);
        record.batch_size = Some(self.batch_size);
        record.dtype = Some(T::NAME);
        record.limit_gb_s = Some(mean(before.0, after.0));
        if let Some((gb_s, cores)) = gathered {
            record = record
                .with_number("bare_gather_gb_s", gb_s)
                .with_number("bare_gather_cores", cores);
        }
        Ok(record
            .with("variant", self.variant)
            .with("samples", self.data.shape()[0])
            .with_number("data_mb", self.data.size_bytes() as f64 / 1e6)
            .with("prefetch", self.args.prefetch(self.workers))
            .with("pinned", self.args.pin.unwrap_or(true))
            .with("unpinned_batches", unpinned)
            .with_number("limit_before_gb_s", before.0)
            .with_number("limit_after_gb_s", after.0)
            .with_number("bare_loop_gb_s", mean(before.1, after.1))
            .with("checked_batches", checked))
    }

    fn loader(&self, device: &Device) -> Outcome<DataLoader<Tensor<T>>> {
        let mut builder = DataLoader::builder(TensorDataset::new(self.data.view())?)
            .batch_size(self.batch_size)
            .shuffle(true)
            .seed(self.args.seed)
            .drop_last(true)
            .num_workers(self.workers);
        if self.args.pin.unwrap_or(true) {
            builder = builder.pin_memory(device);
        }
        if let Some(prefetch) = self.args.prefetch(self.workers) {
            builder = builder.prefetch(prefetch);
        }
        Ok(builder.build()?)
    }

    /// What the link gives, and the bare loop.
    fn limits(&self, rows: Rows<'_>) -> Outcome<(f64, f64)> {
        let limit = self.target.feed_limit(rows, self.workers)?;
        let bare_loop = match self.target.name {
            crate::args::DeviceName::Cpu => limit,
            crate::args::DeviceName::Cuda(_) => self.target.bare_loop(rows, self.workers)?,
        };
        Ok((limit, bare_loop))
    }

    /// Compares an epoch, as it arrived on the device, with the rows that its order names; returns how many batches.
    fn check(&self, loader: &DataLoader<Tensor<T>>, device: &Device) -> Outcome<usize> {
        const EPOCH: u64 = 1 << 40; // one that was not measured
        let order = RandomSampler::with_seed(self.data.shape()[0] as u64, self.args.seed);
        let epoch = loader.epoch(EPOCH);
        let batches: Box<dyn Iterator<Item = _>> = match self.way {
            Way::Loop => Box::new(epoch.map(|batch| batch?.to_device(device, true))),
            Way::Ahead(depth) => Box::new(epoch.prefetch_to_device(device, depth)),
        };
        let mut checked = 0;
        for batch in batches.take(CHECKED_BATCHES) {
            let here = batch?.to_host(false)?.wait()?;
            for row in 0..self.batch_size {
                let position = (checked * self.batch_size + row) as u64;
                let index = order.index(EPOCH, position);
                if here.row(row) != self.data.row(index as usize) {
                    return Err(format!(
                        "corrupted: row {row} of batch {checked} is not sample {index}"
                    )
                    .into());
                }
            }
            checked += 1;
        }
        Ok(checked)
    }
}
