//! Trains a small network to detect objects: pictures and their boxes go through one crop and flip, and the number of
//! boxes varies.
//!
//! `cargo run --release -p training --bin detection` draws its own pictures, and after about 90 seconds prints:
//!
//! ```text
//! at an IoU of 0.5: recall 100.0 %, precision 99.6 %
//! ```
#![allow(unreachable_pub)] // modules of a program: they are `pub` for the rest of the program

mod data;
mod network;

use std::process::ExitCode;
use std::time::Instant;

use candle_core::{Device as CandleDevice, Tensor as CandleTensor};
use pinfeed::image::{ImageTransform, RandomResizedCrop};
use pinfeed::ragged::RaggedTensor;
use pinfeed::{Batch, DataLoader, Device, Tensor};

use data::{CocoDetection, drawn};
use network::{CELL, Found, Network, loss, objects};
use training::args::{Args, Options, misuse};
use training::net::Trainer;
use training::{Result, json, loader, open};

const HELP: &str = "\
Trains a small network to detect objects.

cargo run --release -p training --bin detection -- [OPTIONS]

  --data DIR          a folder in COCO's layout: DIR/train2017/, DIR/val2017/, DIR/annotations/
                      (default: shapes, drawn into a cache folder the first time)
  --size N            side of the pictures, a multiple of 4 (default: 64)
  --device DEVICE     cpu or cuda:0 (default: cpu)
  --workers N         threads that load pictures (default: one per core, at most 8)
  --batch-size N      pictures per training step (default: 16)
  --epochs N          how often each picture is seen (default: 6)
  --no-pin            load into pageable instead of page-locked memory
  --seed N            of the network, the order and the crops (default: 0)
  --json              end with the results as one line of JSON
  --quick             few pictures, 2 epochs: checks that everything works, in seconds
  --help              this text";

/// A detection has a score of at least `LEAST_SCORE`. It is right if it overlaps an object by at least `LEAST_IOU`.
const LEAST_SCORE: f32 = 0.3;
const LEAST_IOU: f32 = 0.5;

/// Batches of pictures, `[N, size, size, 3]`, with all of their boxes and labels.
type Loader = DataLoader<(Tensor<u8>, RaggedTensor<f32>, RaggedTensor<i64>)>;

fn main() -> ExitCode {
    training::start(HELP, run)
}

fn run(mut options: Options) -> Result<()> {
    let args = Args::take(&mut options, 16, 6)?;
    let size = options.positive("--size")?.unwrap_or(64);
    options.finish()?;
    if size % CELL != 0 {
        return Err(misuse(format!(
            "--size wants a multiple of {CELL}, not {size}"
        )));
    }
    let (device, candle) = open(args.device)?;
    let root = match &args.data {
        Some(root) => root.clone(),
        None if args.quick => drawn("pinfeed-boxes-v1-quick", [64, 32])?,
        None => drawn("pinfeed-boxes-v1", [1600, 200])?,
    };

    let augmented = ImageTransform::new()
        .random_resized_crop(RandomResizedCrop::new(size).with_scale(0.6..=1.0))
        .random_horizontal_flip(0.5);
    let plain = ImageTransform::new().resize_exact(size, size);
    let train = CocoDetection::open(&root, "train2017", augmented)?;
    let val = CocoDetection::open(&root, "val2017", plain)?;
    let network = Network::new(train.categories.len(), args.seed, &candle)?;
    let train: Loader = loader(&args, train, true, &device)?;
    let val: Loader = loader(&args, val, false, &device)?;

    let steps = args.epochs * train.len();
    let mut trainer = Trainer::new(&network.variables, args.batch_size, steps)?;
    let mut images_per_s = 0.0;
    for epoch in 0..args.epochs {
        let (begin, mut seen) = (Instant::now(), 0);
        let mut losses = CandleTensor::new(0f32, &candle)?;
        for batch in train.epoch(epoch as u64).prefetch_to_device(&device, 1) {
            let (images, boxes, labels) = batch?;
            seen += images.shape()[0];
            let loss = loss(
                &network.forward(&images.to_candle(&candle)?)?,
                &boxes.values.to_candle(&candle)?,
                &labels.values.to_candle(&candle)?,
                &boxes.offsets.to_candle(&candle)?,
            )?;
            trainer.step(&loss)?;
            losses = (losses + loss.detach())?;
        }
        images_per_s = seen as f64 / begin.elapsed().as_secs_f64();
        println!(
            "epoch {:>2}/{}: loss {:.3}, {images_per_s:.0} images/s",
            epoch + 1,
            args.epochs,
            losses.to_scalar::<f32>()? / train.len() as f32,
        );
    }
    let stats = train.stats();
    let (recall, precision) = validate(&network, &val, &device, &candle)?;
    println!(
        "\nat an IoU of {LEAST_IOU}: recall {:.1} %, precision {:.1} %\n",
        100.0 * recall,
        100.0 * precision
    );
    println!("{stats}");
    if args.json {
        let results = [
            ("recall", recall),
            ("precision", precision),
            ("images_per_s", images_per_s),
        ];
        println!("{}", json(&results, &stats));
    }
    Ok(())
}

/// Returns the share of the objects that were detected (recall), and the share of the detections that are right
/// (precision).
fn validate(
    network: &Network,
    loader: &Loader,
    device: &Device,
    candle: &CandleDevice,
) -> Result<(f64, f64)> {
    let (mut right, mut found, mut all) = (0, 0, 0);
    for batch in loader.epoch(0) {
        // The boxes stay on the host, where they are compared.
        let (images, boxes, labels) = batch?;
        let images = images.to_device(device, true)?.to_candle(candle)?;
        let objects = objects(&network.forward(&images)?, LEAST_SCORE)?;
        for ((objects, boxes), labels) in objects.iter().zip(boxes.rows()).zip(labels.rows()) {
            right += count_right(objects, boxes.as_chunks().0, labels);
            found += objects.len();
            all += labels.len();
        }
    }
    Ok((
        right as f64 / all as f64,
        right as f64 / found.max(1) as f64,
    ))
}

/// Counts the objects that overlap a box of their class, each box once.
fn count_right(found: &[Found], boxes: &[[f32; 4]], labels: &[i64]) -> usize {
    let mut left: Vec<_> = boxes.iter().zip(labels).collect();
    let mut right = 0;
    for object in found {
        let fits = |(corners, label): &(&[f32; 4], &i64)| {
            **label == object.label as i64 && iou(corners, &object.corners) >= LEAST_IOU
        };
        if let Some(place) = left.iter().position(fits) {
            left.swap_remove(place);
            right += 1;
        }
    }
    right
}

/// Intersection over union.
fn iou(a: &[f32; 4], b: &[f32; 4]) -> f32 {
    let area =
        |[left, top, right, bottom]: [f32; 4]| (right - left).max(0.0) * (bottom - top).max(0.0);
    let both = area([
        a[0].max(b[0]),
        a[1].max(b[1]),
        a[2].min(b[2]),
        a[3].min(b[3]),
    ]);
    both / (area(*a) + area(*b) - both)
}
