//! `devices`: the samples of `tensor` to several devices at once, in several ways, in turns: `loaders`, one for each device, which share the
//! workers evenly; `split`, one loader for all; `auto`, the same with `Workers::Auto`; and `registered`, one loader for all whose data set is
//! page-locked.
//!
//! Each device has a thread that iterates its epochs, `depth` ahead, lends each batch to its stream and drops it. It is held against bare
//! pinned copies of the size of a batch to all devices at once (`limit_gb_s`). What one loader for all sends in an epoch of its own is compared
//! with the rows that the order names.

use std::sync::Barrier;
use std::thread;
use std::time::Instant;

use pinfeed::loader::{DeviceEpochs, Workers};
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

/// The ways.
pub const VARIANTS: &[&str] = &["loaders", "split", "auto", "registered"];

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
                for variant in args.variants(VARIANTS, 2) {
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
        let (mut checked, mut loading, mut bare_gather) = (0, None, None);
        let fed = match variant {
            "loaders" => {
                let workers = self.workers / devices.len();
                let loaders: Vec<_> = devices
                    .iter()
                    .map(|device| self.loader(std::slice::from_ref(device), self.data, workers))
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
                // (Its own memory, which is page-locked as long as this lives. One registration serves all devices.)
                let registered = match (variant, devices.first()) {
                    ("registered", Some(device)) => {
                        let copy =
                            Tensor::from_vec(self.data.as_slice().to_vec(), self.data.shape())?;
                        Some(copy.register(device)?)
                    }
                    _ => None,
                };
                let data = registered.as_ref().unwrap_or(self.data);
                let workers = match variant {
                    "auto" => Workers::Auto,
                    _ => Workers::Fixed(self.workers),
                };
                let loader = self.loader(&devices, data, workers)?;
                let epochs = loader.epochs(0..).split(&devices, self.args.depth);
                let fed = self.feed(epochs, &devices)?;
                loading = Some(loader.stats().workers);
                if self.args.stats {
                    eprintln!("{variant}\n{}", loader.total_stats());
                }
                checked = self.check(&loader, &devices)?;
                if registered.is_some() {
                    bare_gather = self.bare_gather(data)?;
                }
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
        if let Some((gb_s, cores)) = bare_gather {
            record = record
                .with_number("bare_gather_gb_s", gb_s)
                .with_number("bare_gather_cores", cores);
        }
        Ok(record
            .with("variant", variant)
            .with("loading_workers", loading)
            .with_numbers("each_gb_s", &of_each)
            .with_number("bare_loop_gb_s", bare_loop)
            .with("slabs_made_after_warmup", fed.slabs_made)
            .with("checked_batches", checked))
    }

    fn loader(
        &self,
        devices: &[Device],
        data: &Tensor<T>,
        workers: impl Into<Workers>,
    ) -> Outcome<DataLoader<Tensor<T>>> {
        let mut builder = DataLoader::builder(TensorDataset::new(data.view())?)
            .batch_size(self.batch_size)
            .shuffle(true)
            .seed(self.args.seed)
            .drop_last(true)
            .num_workers(workers)
            .pin_memory(devices);
        if let Some(prefetch) = self.args.prefetch(self.workers) {
            builder = builder.prefetch(prefetch);
        }
        Ok(builder.build()?)
    }

    fn rows<'d>(&self, data: &'d Tensor<T>) -> Rows<'d> {
        Rows {
            bytes: data::bytes(data),
            row_bytes: SHAPE.iter().product::<usize>() * size_of::<T>(),
            batch: self.batch_size,
        }
    }

    /// GB/s and cores of bare calls that gather rows of registered memory to all devices at once, a thread for each.
    fn bare_gather(&self, registered: &Tensor<T>) -> Outcome<Option<(f64, f64)>> {
        let rows = self.rows(registered);
        thread::scope(|scope| {
            let rates = self.targets.iter();
            let rates = rates.map(|target| scope.spawn(move || target.bare_gather(rows)));
            let rates: Vec<_> = rates.collect();
            let (mut sum, mut cores) = (0.0, 0.0_f64);
            for rate in rates {
                let Some(rate) = rate.join().map_err(|_| "a bare loop panicked")?? else {
                    return Ok(None);
                };
                // Each thread's cores are those of the process.
                (sum, cores) = (sum + rate.0, cores.max(rate.1));
            }
            Ok(Some((sum, cores)))
        })
    }

    /// The bare loop of all devices at once, which share the threads evenly.
    fn bare_loop(&self) -> Outcome<f64> {
        let rows = self.rows(self.data);
        let threads = self.workers.max(self.targets.len()) / self.targets.len();
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
