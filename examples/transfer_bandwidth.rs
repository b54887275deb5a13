//! How fast do tensors travel to a device and back, and what has pinning to do with it?
//!
//!     cargo run --release --example transfer_bandwidth -- --device cuda:0
//!
//! An experiment that many have made, and few believed: one batch of images (10 x 3 x 3840 x 2160 `f32`, 995 MB) goes
//! to the device and comes back, again and again, in three ways that all call themselves "a copy":
//!
//! - `no-pin`: from ordinary, *pageable* memory. The driver copies through a small buffer of its own, on the calling
//!   thread: slow, and the call blocks. On the way back, fresh pageable memory is slower still.
//! - `pin each time`: page-locked afresh in each step. The copy itself is fast, and *page-locking costs more than the
//!   copy saves*: this is why pinning was "slower for me".
//! - `pin and reuse`: page-locked once and used again. This is the link's own speed, it is what the ring of a
//!   `DataLoader` with `pin_memory` does, and the call returns before the copy is done.

use std::time::Instant;

use pinfeed::{Batch, Device, Error, Tensor};

struct Options {
    device: Device,
    shape: Vec<usize>,
    repeats: u32,
    warmup: u32,
    no_pin_only: bool,
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let Some(options) = parse()? else {
        return Ok(());
    };
    let info = options.device.info()?;
    println!("{}: {}", options.device.name(), info.name);
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

    report("no-pin", gigabytes, &options, no_pin)?;
    if !options.no_pin_only {
        report("pin each time", gigabytes, &options, pin_each_time)?;
        report("pin and reuse", gigabytes, &options, pin_and_reuse)?;
    }
    Ok(())
}

/// Seconds to the device and back.
type Seconds = (f64, f64);

fn report(
    name: &str,
    gigabytes: f64,
    options: &Options,
    run: fn(&Options) -> Result<Seconds, Error>,
) -> Result<(), Error> {
    let (to, back) = run(options)?;
    let steps = f64::from(options.repeats);
    println!(
        "{name:<16}{:>11.1} GB/s{:>11.1} GB/s",
        gigabytes * steps / to,
        gigabytes * steps / back
    );
    Ok(())
}

/// From pageable memory, and into fresh pageable memory.
fn no_pin(options: &Options) -> Result<Seconds, Error> {
    let source = filled(&options.shape);
    measure(options, || {
        let start = Instant::now();
        let there = source.view().to_device(&options.device, false)?;
        let to = start.elapsed();
        let start = Instant::now();
        let back = there
            .copy_to_host(Tensor::zeros(&options.shape), false)?
            .wait()?;
        check(&back);
        Ok((to.as_secs_f64(), start.elapsed().as_secs_f64()))
    })
}

/// Page-locked afresh in each step, both ways: the page-locking is part of the time.
fn pin_each_time(options: &Options) -> Result<Seconds, Error> {
    let source = filled(&options.shape);
    measure(options, || {
        options.device.release_pinned();
        let start = Instant::now();
        let there = source
            .view()
            .pin(&options.device)?
            .to_device(&options.device, false)?;
        let to = start.elapsed();
        options.device.release_pinned();
        let start = Instant::now();
        let back = there.to_host(false)?.wait()?;
        check(&back);
        Ok((to.as_secs_f64(), start.elapsed().as_secs_f64()))
    })
}

/// Page-locked once: each step copies from and into memory that the ring keeps.
fn pin_and_reuse(options: &Options) -> Result<Seconds, Error> {
    let source = filled(&options.shape).pin(&options.device)?;
    measure(options, || {
        let start = Instant::now();
        let there = source.view().to_device(&options.device, false)?;
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

/// A fast copy of the wrong bytes is no copy.
fn check(back: &Tensor<f32>) {
    let wrong = back
        .as_slice()
        .iter()
        .enumerate()
        .step_by(4099)
        .find(|(index, element)| **element != (index % 8191) as f32);
    assert!(wrong.is_none(), "a corrupted element: {wrong:?}");
}

const HELP: &str = "\
usage: transfer_bandwidth [--device cpu|cuda:N] [--batch-size 10] [--frame-shape 3 3840 2160]
                          [--repeats 10] [--warmup 2] [--no-pin]

Without --device: the first CUDA device, or the CPU where there is none.";

fn parse() -> Result<Option<Options>, Box<dyn std::error::Error>> {
    let (mut device, mut batch_size, mut frame) = (None, 10, vec![3, 3840, 2160]);
    let (mut repeats, mut warmup, mut no_pin_only) = (10, 2, false);
    let mut arguments = std::env::args().skip(1).peekable();
    while let Some(argument) = arguments.next() {
        let mut value = || {
            arguments
                .next()
                .ok_or(format!("{argument} needs a value\n\n{HELP}"))
        };
        match argument.as_str() {
            "--device" => device = Some(open(&value()?)?),
            "--batch-size" => batch_size = value()?.parse()?,
            "--repeats" => repeats = value()?.parse()?,
            "--warmup" => warmup = value()?.parse()?,
            "--no-pin" => no_pin_only = true,
            "--frame-shape" => {
                frame.clear();
                while let Some(length) = arguments.next_if(|argument| !argument.starts_with("--")) {
                    frame.push(length.parse()?);
                }
            }
            "--help" | "-h" => {
                println!("{HELP}");
                return Ok(None);
            }
            _ => return Err(format!("unknown argument {argument}\n\n{HELP}").into()),
        }
    }
    let device = match device {
        Some(device) => device,
        None => Device::cuda(0).unwrap_or_else(|error| {
            println!("using the CPU: {error}");
            Device::cpu()
        }),
    };
    frame.insert(0, batch_size);
    Ok(Some(Options {
        device,
        shape: frame,
        repeats,
        warmup,
        no_pin_only,
    }))
}

fn open(name: &str) -> Result<Device, Box<dyn std::error::Error>> {
    match name.split_once(':') {
        None if name == "cpu" => Ok(Device::cpu()),
        None if name == "cuda" => Ok(Device::cuda(0)?),
        Some(("cuda", ordinal)) => Ok(Device::cuda(ordinal.parse()?)?),
        _ => Err(format!("unknown device {name}: cpu, cuda or cuda:N").into()),
    }
}
