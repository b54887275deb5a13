//! `devices`: the samples of `tensor` to several devices at once, in two ways, in turns: `loaders`, one for each device, which share the
//! workers evenly; and `split`, one loader for all.
//!
//! Each device has a thread that iterates its epochs, `depth` ahead, lends each batch to its stream and drops it. It is held against bare
//! pinned copies of the size of a batch to all devices at once (`limit_gb_s`). What `split` sends in an epoch of its own is compared
//! with the rows that the order names.

use std::sync::Barrier;
use std::thread;
use std::time::Instant;

use pinfeed::loader::DeviceEpochs;
use pinfeed::sampler::{RandomSampler, Sampler};
use pinfeed::{DataLoader, Device, Tensor, TensorDataset};

use crate::Outcome;
use crate::args::{Args, cores};
use crate::data::{self, Number};
use crate::drive::{self, mean};
use crate::gather::{Direction, Rows};
use crate::report::{Record, Report};
use crate::target::Target;
use crate::window::Window;

const SHAPE: [usize; 3] = [3, 224, 224];

/// Epochs without end, of numbers that the check does not use.
type Numbers = std::ops::RangeFrom<u64>;

/// How many batches of each device the check looks at.
const CHECKED_BATCHES: usize = 50;

pub fn run(args: &Args, report: &mut Report) -> Outcome {
    for dtype in &args.dtypes {
        match dtype.as_str() {
            "f32" => with::<f32>(args, report)?,
            _ => with::<u8>(args, report)?,
        }
    }
    Ok(())
}

fn with<T: Number>(args: &Args, report: &mut Report) -> Outcome {
    let targets: Vec<Target> = args
        .devices
        .iter()
        .map(|name| Target::open(*name))
        .collect::<Outcome<_>>()?;
    let [channels, height, width] = SHAPE;
    let samples = args.samples.unwrap_or(20_000);
    let data = data::random::<T>(&[samples, channels, height, width], args.seed)?;
    for workers in args.workers(&[cores()]) {
        for batch_size in args.batch_sizes(256) {
            let run = Run {
                args,
                targets: &targets,
                data: &data,
                workers,
                batch_size,
            };
            for round in 0..args.pairs {
                for variant in ["loaders", "split"] {
                    report.print(&run.measure(variant)?.with("round", round));
                }
            }
        }
    }
    Ok(())
}

struct Run<'a, T: Number> {
    args: &'a Args,
    targets: &'a [Target],
    data: &'a Tensor<T>,
    workers: usize,
    batch_size: usize,
}

impl<T: Number> Run<'_, T> {
    fn measure(&self, variant: &'static str) -> Outcome<Record> {
        let devices: Vec<Device> = self
            .targets
            .iter()
            .map(Target::device)
            .collect::<Outcome<_>>()?;
        let before = self.limit()?;
        let mut checked = 0;
        let fed = match variant {
            "loaders" => {
                let workers = self.workers / devices.len();
                let loaders: Vec<_> = devices
                    .iter()
                    .map(|device| self.loader(std::slice::from_ref(device), workers))
                    .collect::<Outcome<_>>()?;
                let epochs = loaders.iter().zip(&devices);
                let epochs = epochs.map(|(loader, device)| {
                    loader
                        .epochs(0..)
                        .prefetch_to_device(device, self.args.depth)
                });
                self.feed(epochs.collect(), &devices)?
            }
            _ => {
                let loader = self.loader(&devices, self.workers)?;
                let epochs = loader.epochs(0..).split(&devices, self.args.depth);
                let fed = self.feed(epochs, &devices)?;
                checked = self.check(&loader, &devices)?;
                fed
            }
        };
        let limit = mean(before, self.limit()?);
        let bare_loop = self.bare_loop()?;
        let names: Vec<String> = self
            .targets
            .iter()
            .map(|target| target.name.to_string())
            .collect();
        let mut record = Record::new("devices", names.join("+")).measured(&fed.measured);
        let seconds = fed.measured.window_s;
        let of_each: Vec<f64> = fed
            .bytes
            .iter()
            .map(|bytes| *bytes as f64 / seconds / 1e9)
            .collect();
        record.workers = Some(self.workers);
        record.batch_size = Some(self.batch_size);
        record.dtype = Some(T::NAME);
        record.gb_s = Some(of_each.iter().sum());
        record.limit_gb_s = Some(limit);
        record.pinned_mb = Some(fed.pinned_bytes as f64 / 1e6);
        Ok(record
            .with("variant", variant)
            .with_numbers("each_gb_s", &of_each)
            .with_number("bare_loop_gb_s", bare_loop)
            .with("slabs_made_after_warmup", fed.slabs_made)
            .with("checked_batches", checked))
    }

    fn loader(&self, devices: &[Device], workers: usize) -> Outcome<DataLoader<Tensor<T>>> {
        let mut builder = DataLoader::builder(TensorDataset::new(self.data.view())?)
            .batch_size(self.batch_size)
            .shuffle(true)
            .seed(self.args.seed)
            .drop_last(true)
            .num_workers(workers)
            .pin_memory(devices);
        if let Some(prefetch) = self.args.prefetch(workers) {
            builder = builder.prefetch(prefetch);
        }
        Ok(builder.build()?)
    }

    /// The bare loop of all devices at once, which share the threads evenly.
    fn bare_loop(&self) -> Outcome<f64> {
        let rows = Rows {
            bytes: data::bytes(self.data),
            row_bytes: SHAPE.iter().product::<usize>() * size_of::<T>(),
            batch: self.batch_size,
        };
        let threads = self.workers / self.targets.len();
        thread::scope(|scope| {
            let rates = self.targets.iter();
            let rates = rates.map(|target| scope.spawn(move || target.bare_loop(rows, threads)));
            let rates: Vec<_> = rates.collect();
            let mut sum = 0.0;
            for rate in rates {
                sum += rate.join().map_err(|_| "a bare loop panicked")??;
            }
            Ok(sum)
        })
    }

    /// Bare copies to all devices at once.
    fn limit(&self) -> Outcome<f64> {
        let bytes = self.batch_size * SHAPE.iter().product::<usize>() * size_of::<T>();
        thread::scope(|scope| {
            let rates = self
                .targets
                .iter()
                .map(|target| scope.spawn(move || target.copy_limit(Direction::ToDevice, bytes)));
            let rates: Vec<_> = rates.collect();
            let mut sum = 0.0;
            for rate in rates {
                sum += rate.join().map_err(|_| "a bare loop panicked")??;
            }
            Ok(sum)
        })
    }

    /// One epoch on each device to warm up, and then epoch after epoch for so long.
    fn feed(
        &self,
        epochs: Vec<DeviceEpochs<'_, Tensor<T>, Numbers>>,
        devices: &[Device],
    ) -> Outcome<Fed> {
        let made = || devices.iter().map(|device| device.memory().slabs_made);
        let (start, end) = (
            Barrier::new(devices.len() + 1),
            Barrier::new(devices.len() + 1),
        );
        let duration = self.args.seconds(5.0);
        let (bytes, warm, measured) = thread::scope(|scope| -> Outcome<_> {
            let (start, end) = (&start, &end);
            let threads = epochs.into_iter().zip(devices).map(|(mut epochs, device)| {
                scope.spawn(move || -> Outcome<u64> {
                    let mut go = || -> Outcome<u64> {
                        let stream = device.stream()?;
                        if let Some(epoch) = epochs.next() {
                            for batch in epoch {
                                drive::touch(batch?, &stream)?;
                            }
                        }
                        stream.synchronize()?;
                        start.wait();
                        let (begun, mut bytes) = (Instant::now(), 0);
                        'all: for epoch in epochs.by_ref() {
                            for batch in epoch {
                                bytes += drive::touch(batch?, &stream)?.bytes;
                                if begun.elapsed() >= duration {
                                    break 'all;
                                }
                            }
                        }
                        stream.synchronize()?;
                        Ok(bytes)
                    };
                    let fed = go();
                    if let Err(error) = &fed {
                        // Others wait for it at the barriers.
                        eprintln!("error: {error}");
                        std::process::exit(1);
                    }
                    end.wait();
                    fed
                })
            });
            let threads: Vec<_> = threads.collect();
            start.wait();
            let (window, warm) = (Window::begin(), made().sum::<u64>());
            end.wait();
            let measured = window.end();
            let mut bytes = Vec::new();
            for thread in threads {
                bytes.push(thread.join().map_err(|_| "a consumer panicked")??);
            }
            Ok((bytes, warm, measured))
        })?;
        Ok(Fed {
            bytes,
            measured,
            slabs_made: made().sum::<u64>() - warm,
            pinned_bytes: devices
                .iter()
                .map(|device| device.memory().pinned_bytes)
                .sum(),
        })
    }

    /// Compares what arrives on each device with the rows that the order names; returns how many batches.
    fn check(&self, loader: &DataLoader<Tensor<T>>, devices: &[Device]) -> Outcome<usize> {
        const EPOCH: u64 = 1 << 40; // one that was not measured
        let order = RandomSampler::with_seed(self.data.shape()[0] as u64, self.args.seed);
        let epochs = loader.epoch(EPOCH).split(devices, self.args.depth);
        let of = epochs.len();
        thread::scope(|scope| {
            let order = &order;
            let threads = epochs.into_iter().enumerate().map(|(index, epoch)| {
                scope.spawn(move || -> Outcome<usize> {
                    let mut checked = 0;
                    for batch in epoch.take(CHECKED_BATCHES) {
                        let here = batch?.to_host(false)?.wait()?;
                        for row in 0..self.batch_size {
                            let position = (checked * of + index) * self.batch_size + row;
                            let sample = order.index(EPOCH, position as u64);
                            if here.row(row) != self.data.row(sample as usize) {
                                return Err(format!(
                                    "corrupted: row {row} of batch {checked} of device {index} is not sample {sample}"
                                )
                                .into());
                            }
                        }
                        checked += 1;
                    }
                    Ok(checked)
                })
            });
            let threads: Vec<_> = threads.collect();
            let mut checked = 0;
            for thread in threads {
                checked += thread.join().map_err(|_| "a check panicked")??;
            }
            Ok(checked)
        })
    }
}

struct Fed {
    /// What each device got.
    bytes: Vec<u64>,
    measured: crate::window::Measured,
    slabs_made: u64,
    pinned_bytes: usize,
}
