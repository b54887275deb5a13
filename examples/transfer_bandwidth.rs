//! How fast do tensors travel to a device and back, and how much does pinning matter?
//!
//!     cargo run --release --example transfer_bandwidth
//!
//! All CUDA devices are measured, one after the other; `--device` picks one. (What they reach at once, `examples/probe` says.)
//!
//! One batch of images (10 x 3 x 3840 x 2160 `f32`, 995 MB) goes to the device and back, repeatedly, in three ways:
//!
//! - `no-pin`: from ordinary, *pageable* memory, and into it. Several threads copy it piece by piece through
//!   page-locked slabs of the device's ring: near the link's speed, but the call blocks and takes processor time.
//! - `pin each time`: page-locked anew in each step. The copy itself is fast, but *page-locking costs more than the
//!   copy saves*: this is why pinning was "slower for me".
//! - `pin and reuse`: page-locked once and reused. It runs at the link's own speed, and the call returns before the
//!   copy is done. A `DataLoader` with `pin_memory` does this with its ring.

#[allow(unreachable_pub)] // a module of a program: it is `pub` for the rest of the program
mod args;

use std::process::ExitCode;
use std::time::Instant;

use pinfeed::{Batch, BoxError, Device, Error, Tensor};

use args::DeviceName;

const HELP: &str = "\
Measures how fast tensors travel to a device and back: from pageable memory, page-locked each time, and page-locked once.

cargo run --release --example transfer_bandwidth -- [OPTIONS]

  --device DEVICE     cpu or cuda:0 (default: all CUDA devices in turn, or the CPU if there is none)
  --batch-size N      frames of the batch (default: 10)
  --frame-shape N..   lengths of a frame's dimensions (default: 3 3840 2160)
  --repeats N         round trips to measure (default: 10)
  --warmup N          round trips before measuring (default: 2)
  --no-pin            from pageable memory only
  --help              this text";

struct Options {
    devices: Vec<Device>,
    shape: Vec<usize>,
    repeats: u32,
    warmup: u32,
    no_pin_only: bool,
}

impl Options {
    fn take(mut options: args::Options) -> Result<Options, BoxError> {
        let device = options.value("--device", "cpu or cuda:0")?;
        let batch_size = options.positive("--batch-size")?.unwrap_or(10);
        let frame = options.values("--frame-shape", "whole numbers, such as 3 224 224")?;
        let repeats = options.positive("--repeats")?.unwrap_or(10);
        let warmup = options.value("--warmup", "a whole number, such as 2")?;
        let no_pin_only = options.flag("--no-pin");
        options.finish()?;
        let mut shape = frame.unwrap_or_else(|| vec![3, 3840, 2160]);
        shape.insert(0, batch_size);
        Ok(Options {
            devices: open(device)?,
            shape,
            repeats: repeats.try_into()?,
            warmup: warmup.unwrap_or(2),
            no_pin_only,
        })
    }
}

/// The device that was named, or all.
fn open(device: Option<DeviceName>) -> Result<Vec<Device>, Error> {
    match device {
        Some(DeviceName::Cpu) => Ok(vec![Device::cpu()]),
        Some(DeviceName::Cuda(ordinal)) => Ok(vec![Device::cuda(ordinal)?]),
        None => {
            let count = Device::cuda_count().unwrap_or(0);
            let (mut devices, mut problems) = (Vec::new(), Vec::new());
            // (The error of the first says why there is none.)
            for ordinal in 0..count.max(1) {
                match Device::cuda(ordinal) {
                    Ok(device) => devices.push(device),
                    Err(error) => problems.push(error),
                }
            }
            let what = if devices.is_empty() {
                devices.push(Device::cpu());
                "using the CPU"
            } else {
                "left out"
            };
            for problem in problems {
                println!("{what}: {problem}");
            }
            Ok(devices)
        }
    }
}

fn main() -> ExitCode {
    args::start(HELP, run)
}

fn run(options: args::Options) -> Result<(), BoxError> {
    let options = Options::take(options)?;
    for (index, device) in options.devices.iter().enumerate() {
        if index > 0 {
            println!();
        }
        table(device, &options)?;
        // The next device may want the memory.
        device.release_pinned();
        device.release_device_memory()?;
    }
    Ok(())
}

/// What one device reaches.
fn table(device: &Device, options: &Options) -> Result<(), Error> {
    let info = device.info()?;
    println!("{}: {}", device.name(), info.name);
    if let (Some((major, minor)), Some(driver)) = (info.compute_capability, info.driver_version) {
        println!(
            "compute capability {major}.{minor}, driver for CUDA {}.{}",
            driver / 1000,
            driver % 1000 / 10
        );
    }
    println!(
        "{:.1} GB of memory, {} copy engines",
        info.total_memory_bytes as f64 / 1e9,
        info.copy_engines
    );
    let gigabytes = options.shape.iter().product::<usize>() as f64 * 4.0 / 1e9;
    println!(
        "a batch of shape {:?} f32: {gigabytes:.3} GB, {} times\n",
        options.shape, options.repeats
    );
    println!("{:<16}{:>16}{:>16}", "", "to the device", "back");

    report("no-pin", gigabytes, device, options, no_pin)?;
    if !options.no_pin_only {
        report("pin each time", gigabytes, device, options, pin_each_time)?;
        report("pin and reuse", gigabytes, device, options, pin_and_reuse)?;
    }
    Ok(())
}

/// Seconds to the device and back.
type Seconds = (f64, f64);

fn report(
    name: &str,
    gigabytes: f64,
    device: &Device,
    options: &Options,
    run: fn(&Device, &Options) -> Result<Seconds, Error>,
) -> Result<(), Error> {
    let (to, back) = run(device, options)?;
    let steps = f64::from(options.repeats);
    println!(
        "{name:<16}{:>11.1} GB/s{:>11.1} GB/s",
        gigabytes * steps / to,
        gigabytes * steps / back
    );
    Ok(())
}

/// From pageable memory, and into fresh pageable memory.
fn no_pin(device: &Device, options: &Options) -> Result<Seconds, Error> {
    let source = filled(&options.shape);
    measure(options, || {
        let start = Instant::now();
        let there = source.view().to_device(device, false)?;
        let to = start.elapsed();
        let start = Instant::now();
        let back = there
            .copy_to_host(Tensor::zeros(&options.shape), false)?
            .wait()?;
        check(&back);
        Ok((to.as_secs_f64(), start.elapsed().as_secs_f64()))
    })
}

/// Page-locked anew in each step, both ways: the time includes the page-locking.
fn pin_each_time(device: &Device, options: &Options) -> Result<Seconds, Error> {
    let source = filled(&options.shape);
    measure(options, || {
        device.release_pinned();
        let start = Instant::now();
        let there = source.view().pin(device)?.to_device(device, false)?;
        let to = start.elapsed();
        device.release_pinned();
        let start = Instant::now();
        let back = there.to_host(false)?.wait()?;
        check(&back);
        Ok((to.as_secs_f64(), start.elapsed().as_secs_f64()))
    })
}

/// Page-locked once: each step copies from and into memory that the ring keeps.
fn pin_and_reuse(device: &Device, options: &Options) -> Result<Seconds, Error> {
    let source = filled(&options.shape).pin(device)?;
    measure(options, || {
        let start = Instant::now();
        let there = source.view().to_device(device, false)?;
        let to = start.elapsed();
        let start = Instant::now();
        let back = there.to_host(false)?.wait()?;
        let back_seconds = start.elapsed().as_secs_f64();
        check(&back);
        Ok((to.as_secs_f64(), back_seconds))
    })
}

fn measure(
    options: &Options,
    mut step: impl FnMut() -> Result<Seconds, Error>,
) -> Result<Seconds, Error> {
    for _ in 0..options.warmup {
        step()?;
    }
    let mut sum = (0.0, 0.0);
    for _ in 0..options.repeats {
        let (to, back) = step()?;
        sum = (sum.0 + to, sum.1 + back);
    }
    Ok(sum)
}

fn filled(shape: &[usize]) -> Tensor<f32> {
    let mut tensor = Tensor::zeros(shape);
    if let Some(elements) = tensor.as_mut_slice() {
        elements
            .iter_mut()
            .enumerate()
            .for_each(|(index, element)| *element = (index % 8191) as f32);
    }
    tensor
}

/// A fast copy of the wrong bytes is worthless.
fn check(back: &Tensor<f32>) {
    let wrong = back
        .as_slice()
        .iter()
        .enumerate()
        .step_by(4099)
        .find(|(index, element)| **element != (index % 8191) as f32);
    assert!(wrong.is_none(), "a corrupted element: {wrong:?}");
}
