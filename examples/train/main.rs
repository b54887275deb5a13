//! Trains a small network on JPEG files that pinfeed loads, and shows where the time went.
//!
//! `cargo run --release --example train` works as it stands: it draws its own data set.
#![allow(unreachable_pub)] // modules of a program: what is `pub` in them is for the others

mod args;
mod draw;
mod model;
mod report;
mod rng;

use std::env;
use std::error::Error;
use std::fmt::Display;
use std::hint::black_box;
use std::path::Path;
use std::process::ExitCode;
use std::time::Instant;

use candle_core::{Device as CandleDevice, Tensor as CandleTensor};
use indicatif::{ProgressBar, ProgressStyle};
use pinfeed::{DataLoader, Device, ImageFolder, ImageTransform, RandomResizedCrop, Tensor};

use args::{Args, DeviceName};
use draw::Size;
use model::{Network, SIDE, Trainer};
use report::Report;

type BoxError = Box<dyn Error + Send + Sync>;
type Result<T, E = BoxError> = std::result::Result<T, E>;

/// Batches of images, `[N, SIDE, SIDE, 3]`, with their labels.
type Loader = DataLoader<(Tensor<u8>, Tensor<i64>)>;

fn main() -> ExitCode {
    let done = Args::parse(env::args_os().skip(1))
        .map_err(BoxError::from)
        .and_then(|args| {
            if args.help {
                println!("{}", args::HELP);
                return Ok(());
            }
            prepare_cpu();
            run(&args)
        });
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {}", chain(&*error));
            ExitCode::FAILURE
        }
    }
}

fn run(args: &Args) -> Result<()> {
    let (device, candle) = open(args.device)?;
    let data = match &args.data {
        Some(folder) => folder.clone(),
        None if args.quick => draw::cached("pinfeed-shapes-v1-quick", Size { train: 40, val: 10 })?,
        None => draw::cached(
            "pinfeed-shapes-v1",
            Size {
                train: 500,
                val: 100,
            },
        )?,
    };
    let train = ImageFolder::open(data.join("train"))?.transform(
        ImageTransform::new()
            .random_resized_crop(
                RandomResizedCrop::new(SIDE)
                    .scale(0.8..=1.0)
                    .ratio(1.0..=1.0),
            )
            .random_horizontal_flip(0.5),
    );
    let val = ImageFolder::open(data.join("val"))?
        .with_classes(train.classes().iter().cloned())?
        .transform(ImageTransform::new().resize_exact(SIDE, SIDE));
    println!(
        "{} classes, {} training and {} validation images; {} with {} workers, {} memory",
        train.classes().len(),
        train.paths().count(),
        val.paths().count(),
        device.name(),
        args.workers,
        if args.pin { "page-locked" } else { "pageable" },
    );
    let classes = train.classes().len();
    let train = loader(args, train, true, &device)?;
    let val = loader(args, val, false, &device)?;

    let network = Network::new(classes, args.seed, &candle)?;
    let start = Instant::now();
    let images = fit(&network, &train, args.epochs(), &device, &candle)?;
    let images_per_s = images as f64 / start.elapsed().as_secs_f64();
    let stats = train.stats();
    let accuracy = validate(&network, &val, &device, &candle)?;

    let report = Report {
        accuracy,
        images_per_s,
        stats,
    };
    report.print();
    if args.json {
        println!("{}", report.json());
    }
    Ok(())
}

/// The device of the loader, and candle's on the same hardware.
fn open(device: DeviceName) -> Result<(Device, CandleDevice)> {
    match device {
        DeviceName::Cpu => Ok((Device::cpu(), CandleDevice::Cpu)),
        DeviceName::Cuda(_) if cfg!(not(feature = "candle-cuda")) => Err(format!(
            "--device {device} needs the feature candle-cuda: \
             cargo run --release --features candle-cuda --example train -- --device {device}"
        )
        .into()),
        DeviceName::Cuda(ordinal) => Ok((Device::cuda(ordinal)?, CandleDevice::new_cuda(ordinal)?)),
    }
}

fn loader(args: &Args, images: ImageFolder, training: bool, device: &Device) -> Result<Loader> {
    let mut builder = DataLoader::builder(images)
        .batch_size(args.batch_size)
        .shuffle(training)
        .seed(args.seed)
        .num_workers(args.workers);
    if args.pin {
        builder = builder.pin_memory(device);
    }
    Ok(builder.build()?)
}

/// Trains for some epochs, and returns how many images that were.
fn fit(
    network: &Network,
    loader: &Loader,
    epochs: usize,
    device: &Device,
    candle: &CandleDevice,
) -> Result<usize> {
    let mut trainer = Trainer::new(network, epochs * loader.len())?;
    let style = ProgressStyle::with_template("{bar:40} {pos}/{len} images, {per_sec}, {msg}")?;
    let mut seen = 0;
    // The next batch is on its way to the device while this one is trained on, across epochs too.
    let passes = loader.epochs(0..epochs as u64).to_device(device, 1);
    for (number, epoch) in (1..).zip(passes) {
        let (begin, before) = (Instant::now(), seen);
        let bar =
            ProgressBar::new((loader.len() * loader.batch_size()) as u64).with_style(style.clone());
        let mut losses = CandleTensor::new(0f32, candle)?;
        for batch in epoch {
            let (images, labels) = batch?;
            let (images, labels) = (images.to_candle(candle)?, labels.to_candle(candle)?);
            let loss = trainer.step(network, &images, &labels)?;
            // On a GPU nothing comes back to the host inside of the loop: reading the loss would wait for the step.
            if candle.is_cpu() {
                bar.set_message(format!("loss {:.3}", loss.to_scalar::<f32>()?));
            }
            losses = (losses + loss)?;
            seen += labels.dim(0)?;
            bar.inc(labels.dim(0)? as u64);
        }
        bar.finish_and_clear();
        println!(
            "epoch {number:>2}/{epochs}: loss {:.3}, {:.0} images/s",
            losses.to_scalar::<f32>()? / loader.len() as f32,
            (seen - before) as f64 / begin.elapsed().as_secs_f64(),
        );
    }
    Ok(seen)
}

/// Returns the share of images that the network classifies right.
fn validate(
    network: &Network,
    loader: &Loader,
    device: &Device,
    candle: &CandleDevice,
) -> Result<f64> {
    let (mut correct, mut seen) = (0, 0);
    for batch in loader.epoch(0).to_device(device, 1) {
        let (images, labels) = batch?;
        let (images, labels) = (images.to_candle(candle)?, labels.to_candle(candle)?);
        correct += network.correct(&images, &labels)?;
        seen += labels.dim(0)?;
    }
    Ok(correct as f64 / seen as f64)
}

/// Makes candle on the CPU a good neighbour of the loader, and several times as fast.
#[expect(
    unsafe_code,
    reason = "candle takes the number from the environment only"
)]
fn prepare_cpu() {
    // candle's threads wait for each other in busy loops. Where the loader's threads share their
    // cores, a step of this small network then takes up to ten times as long as on one thread.
    if env::var_os("CANDLE_NUM_THREADS").is_none() {
        // SAFETY: this is the program's only thread so far, so none reads the environment now.
        unsafe { env::set_var("CANDLE_NUM_THREADS", "1") };
    }
    // A step frees what the next one allocates. glibc gives such blocks back to the kernel, and
    // takes them again page by page, unless it has seen a large one like this be freed before.
    drop(black_box(vec![0_u8; 31 << 20]));
}

/// An error with all that caused it.
fn chain(error: &dyn Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        text = format!("{text}: {error}");
        cause = error.source();
    }
    text
}

/// Makes an error say which file or folder it is about.
fn at<E: Display>(path: &Path) -> impl FnOnce(E) -> BoxError {
    move |error| format!("{}: {error}", path.display()).into()
}
