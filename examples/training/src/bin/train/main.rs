//! Trains a small network on JPEG files that pinfeed loads, and shows where the time went.
//!
//! `cargo run --release -p training` needs no data: it draws its own data set.
#![allow(unreachable_pub)] // modules of a program: they are `pub` for the rest of the program

mod model;

use std::process::ExitCode;
use std::time::Instant;

use candle_core::{Device as CandleDevice, Tensor as CandleTensor};
use candle_nn::loss::cross_entropy;
use indicatif::{ProgressBar, ProgressStyle};
use pinfeed::image::{ImageFolder, ImageTransform, RandomResizedCrop};
use pinfeed::{DataLoader, Device, Tensor};

use model::{Network, SIDE};
use training::args::{Args, Options};
use training::net::Trainer;
use training::{Result, folders, json, loader, open};

const HELP: &str = "\
Trains a small network to tell shapes apart, from JPEG files that pinfeed loads.

cargo run --release -p training -- [OPTIONS]

  --data DIR          images in DIR/train/<class>/ and DIR/val/<class>/
                      (default: shapes, drawn into a cache folder the first time)
  --device DEVICE     cpu or cuda:0 (default: cpu)
  --workers N         threads that load images (default: one per core, at most 8)
  --batch-size N      images per training step (default: 32)
  --epochs N          how often each image is seen (default: 10)
  --no-pin            load into pageable instead of page-locked memory
  --seed N            of the network, the order and the crops (default: 0)
  --json              end with the results as one line of JSON
  --quick             few images, 2 epochs: checks that everything works, in seconds
  --help              this text";

/// Batches of images, `[N, SIDE, SIDE, 3]`, with their labels.
type Loader = DataLoader<(Tensor<u8>, Tensor<i64>)>;

fn main() -> ExitCode {
    training::start(HELP, run)
}

fn run(mut options: Options) -> Result<()> {
    let args = Args::take(&mut options, 32, 10)?;
    options.finish()?;
    let (device, candle) = open(args.device)?;
    let data = match &args.data {
        Some(folder) => folder.clone(),
        None => folders::drawn(folders::SHAPES, args.quick)?,
    };
    let train = ImageFolder::open(data.join("train"))?.with_transform(
        ImageTransform::new()
            .random_resized_crop(
                RandomResizedCrop::new(SIDE)
                    .with_scale(0.8..=1.0)
                    .with_ratio(1.0..=1.0),
            )
            .random_horizontal_flip(0.5),
    );
    let val = ImageFolder::open(data.join("val"))?
        .with_classes(train.classes().iter().cloned())?
        .with_transform(ImageTransform::new().resize_exact(SIDE, SIDE));
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
    let train = loader(&args, train, true, &device)?;
    let val = loader(&args, val, false, &device)?;

    let network = Network::new(classes, args.seed, &candle)?;
    let start = Instant::now();
    let images = fit(&network, &train, args.epochs, &device, &candle)?;
    let images_per_s = images as f64 / start.elapsed().as_secs_f64();
    let stats = train.stats();
    let accuracy = validate(&network, &val, &device, &candle)?;

    println!(
        "\nvalidation accuracy {:.1} %, {images_per_s:.0} images/s\n",
        100.0 * accuracy
    );
    println!("{stats}");
    if args.json {
        let results = [("accuracy", accuracy), ("images_per_s", images_per_s)];
        println!("{}", json(&results, &stats));
    }
    Ok(())
}

/// Trains for some epochs, and returns the number of images seen.
fn fit(
    network: &Network,
    loader: &Loader,
    epochs: usize,
    device: &Device,
    candle: &CandleDevice,
) -> Result<usize> {
    let steps = epochs * loader.len();
    let mut trainer = Trainer::new(&network.variables, loader.batch_size(), steps)?;
    let style = ProgressStyle::with_template("{bar:40} {pos}/{len} images, {per_sec}, {msg}")?;
    let mut seen = 0;
    // The next batch is copied to the device while this one is trained on, across epochs too.
    let passes = loader
        .epochs(0..epochs as u64)
        .prefetch_to_device(device, 1);
    for (number, epoch) in (1..).zip(passes) {
        let (begin, before) = (Instant::now(), seen);
        let bar =
            ProgressBar::new((loader.len() * loader.batch_size()) as u64).with_style(style.clone());
        let mut losses = CandleTensor::new(0f32, candle)?;
        for batch in epoch {
            let (images, labels) = batch?;
            let (images, labels) = (images.to_candle(candle)?, labels.to_candle(candle)?);
            let loss = cross_entropy(&network.forward(&images)?, &labels)?;
            trainer.step(&loss)?;
            // On a GPU the loop reads nothing back to the host: reading the loss would wait for the step.
            if candle.is_cpu() {
                bar.set_message(format!("loss {:.3}", loss.to_scalar::<f32>()?));
            }
            losses = (losses + loss.detach())?;
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

/// Returns the share of images that the network classifies correctly.
fn validate(
    network: &Network,
    loader: &Loader,
    device: &Device,
    candle: &CandleDevice,
) -> Result<f64> {
    let (mut correct, mut seen) = (0, 0);
    for batch in loader.epoch(0).prefetch_to_device(device, 1) {
        let (images, labels) = batch?;
        let (images, labels) = (images.to_candle(candle)?, labels.to_candle(candle)?);
        correct += network.correct(&images, &labels)?;
        seen += labels.dim(0)?;
    }
    Ok(correct as f64 / seen as f64)
}
