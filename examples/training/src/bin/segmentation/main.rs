//! Trains a small network to classify each pixel: pictures and their masks go through one crop, flip and rotation.
//!
//! `cargo run --release -p training --bin segmentation` draws its own pictures, and after about 80 seconds on one core
//! prints:
//!
//! ```text
//! pixel accuracy 99.0 %, mean IoU 90.3 %
//! ```
#![allow(unreachable_pub)] // modules of a program: they are `pub` for the rest of the program

mod data;
mod network;

use std::process::ExitCode;
use std::time::Instant;

use candle_core::{
    D, DType, Device as CandleDevice, Result as CandleResult, Tensor as CandleTensor,
};
use candle_nn::ops::log_softmax;
use pinfeed::image::{ImageTransform, RandomResizedCrop};
use pinfeed::{DataLoader, Device, Tensor};

use data::{IGNORED, VocSegmentation, drawn};
use network::Network;
use training::args::{Args, Options, misuse};
use training::net::Trainer;
use training::shapes::KINDS;
use training::{Result, json, loader, open};

const HELP: &str = "\
Trains a small network to classify each pixel.

cargo run --release -p training --bin segmentation -- [OPTIONS]

  --data DIR          a folder in PASCAL VOC's layout, such as VOCdevkit/VOC2012
                      (default: shapes, drawn into a cache folder the first time)
  --classes N         classes in the masks, with the background (default: VOC's 21, or the shapes' 7)
  --size N            side of the pictures, a multiple of 8 (default: 64)
  --device DEVICE     cpu or cuda:0 (default: cpu)
  --workers N         threads that load pictures (default: one per core, at most 8)
  --batch-size N      pictures per training step (default: 16)
  --epochs N          how often each picture is seen (default: 4)
  --no-pin            load into pageable instead of page-locked memory
  --seed N            of the network, the order and the crops (default: 0)
  --json              end with the results as one line of JSON
  --quick             few pictures, 2 epochs: checks that everything works, in seconds
  --help              this text";

/// Batches of pictures, `[N, size, size, 3]`, with their masks, `[N, size, size]`.
type Loader = DataLoader<(Tensor<u8>, Tensor<u8>)>;

fn main() -> ExitCode {
    training::start(HELP, run)
}

fn run(mut options: Options) -> Result<()> {
    let args = Args::take(&mut options, 16, 4)?;
    let classes = options.positive("--classes")?;
    let size = options.positive("--size")?.unwrap_or(64);
    options.finish()?;
    if size % 8 != 0 {
        return Err(misuse(format!("--size wants a multiple of 8, not {size}")));
    }
    let (device, candle) = open(args.device)?;
    let (root, classes) = match &args.data {
        Some(root) => (root.clone(), classes.unwrap_or(21)),
        None if args.quick => (drawn("pinfeed-masks-v1-quick", [64, 32])?, 1 + KINDS.len()),
        None => (drawn("pinfeed-masks-v1", [1600, 200])?, 1 + KINDS.len()),
    };

    let augmented = ImageTransform::new()
        .random_rotation(15.0)
        .random_resized_crop(RandomResizedCrop::new(size).with_scale(0.5..=1.0))
        .random_horizontal_flip(0.5);
    let plain = ImageTransform::new().resize_exact(size, size);
    let train = VocSegmentation::open(&root, "train", augmented)?;
    let val = VocSegmentation::open(&root, "val", plain)?;
    let train: Loader = loader(&args, train, true, &device)?;
    let val: Loader = loader(&args, val, false, &device)?;

    let network = Network::new(classes, args.seed, &candle)?;
    let steps = args.epochs * train.len();
    let mut trainer = Trainer::new(&network.variables, args.batch_size, steps)?;
    let mut images_per_s = 0.0;
    for epoch in 0..args.epochs {
        let (begin, mut seen) = (Instant::now(), 0);
        let mut losses = CandleTensor::new(0f32, &candle)?;
        for batch in train.epoch(epoch as u64).prefetch_to_device(&device, 1) {
            let (images, masks) = batch?;
            seen += images.shape()[0];
            let (images, masks) = (images.to_candle(&candle)?, masks.to_candle(&candle)?);
            let loss = loss(&network.forward(&images)?, &masks)?;
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
    let (accuracy, iou) = validate(&network, classes, &val, &device, &candle)?;
    println!(
        "\npixel accuracy {:.1} %, mean IoU {:.1} %\n",
        100.0 * accuracy,
        100.0 * iou
    );
    println!("{stats}");
    if args.json {
        let results = [
            ("pixel_accuracy", accuracy),
            ("mean_iou", iou),
            ("images_per_s", images_per_s),
        ];
        println!("{}", json(&results, &stats));
    }
    Ok(())
}

/// The cross-entropy of the pixels that are not ignored.
fn loss(scores: &CandleTensor, masks: &CandleTensor) -> CandleResult<CandleTensor> {
    let counts = masks.ne(IGNORED)?;
    let labels = counts.where_cond(masks, &masks.zeros_like()?)?;
    let counts = counts.to_dtype(DType::F32)?;
    let own = log_softmax(scores, D::Minus1)?.gather(&labels.unsqueeze(3)?, 3)?;
    let sum = (own.squeeze(3)? * &counts)?.sum_all()?.neg()?;
    sum / (counts.sum_all()? + 1e-6)?
}

/// Returns the share of pixels that are labelled correctly, and the mean over the classes of intersection over union.
fn validate(
    network: &Network,
    classes: usize,
    loader: &Loader,
    device: &Device,
    candle: &CandleDevice,
) -> Result<(f64, f64)> {
    // How often a pixel of one class was taken for another.
    let mut confusion = vec![vec![0u64; classes]; classes];
    for batch in loader.epoch(0).prefetch_to_device(device, 1) {
        let (images, masks) = batch?;
        let (images, masks) = (images.to_candle(candle)?, masks.to_candle(candle)?);
        let found = network.forward(&images)?.argmax(D::Minus1)?;
        let found: Vec<u32> = found.flatten_all()?.to_vec1()?;
        let labels: Vec<u8> = masks.flatten_all()?.to_vec1()?;
        for (label, found) in labels.into_iter().zip(found) {
            if label != IGNORED {
                confusion[usize::from(label)][found as usize] += 1;
            }
        }
    }
    let all: u64 = confusion.iter().flatten().sum();
    let right: u64 = (0..classes).map(|class| confusion[class][class]).sum();
    let ious = (0..classes).filter_map(|class| {
        let labelled: u64 = confusion[class].iter().sum();
        let found: u64 = confusion.iter().map(|row| row[class]).sum();
        let both = confusion[class][class];
        let either = labelled + found - both;
        (either > 0).then(|| both as f64 / either as f64)
    });
    let ious: Vec<_> = ious.collect();
    Ok((
        right as f64 / all as f64,
        ious.iter().sum::<f64>() / ious.len() as f64,
    ))
}
