//! Trains a ResNet on ImageNet, or on other pictures in class folders, with torchvision's newer recipe: random resized crops,
//! flips, RandAugment, random erasing, MixUp and CutMix, label smoothing, SGD with warm-up and cosine decay. (The
//! reference has TrivialAugment instead of RandAugment, and more: 600 epochs, repeated augmentation, a moving average
//! of the weights.)
//!
//! For ImageNet: `-- --data imagenet --device cuda:0 --workers 16`, built with `--features candle-cuda`. With few cores, let
//! the GPU decode, too: `--workers 4 --decode both`, built with `--features candle-cuda,nvjpeg,turbojpeg`.
//!
//! Without data, it draws its own. A narrow network on small pictures learns to classify them in about 100 seconds on one
//! core:
//!
//! ```text
//! cargo run --release -p training --bin imagenet -- \
//!     --arch resnet18 --width 16 --size 48 --batch-size 32 --epochs 10 --lr 0.1
//!
//! 6 classes, 3000 training and 600 validation images; cpu with 2 workers
//! epoch  2/10: loss 1.629, 140 images/s; top-1 53.8 %, top-5 99.5 %
//! epoch  6/10: loss 1.398, 218 images/s; top-1 85.8 %, top-5 99.5 %
//! epoch 10/10: loss 1.274, 162 images/s; top-1 89.7 %, top-5 99.7 %
//! ```
//!
//! (On two cores, shared with other programs. The loss is that of mixed and smoothed targets, so it cannot approach 0.)
#![allow(unreachable_pub)] // modules of a program: they are `pub` for the rest of the program

mod data;
mod optimizer;
mod resnet;

use std::process::ExitCode;
use std::time::Instant;

use candle_core::{
    D, DType, Device as CandleDevice, Result as CandleResult, Tensor as CandleTensor,
};
use candle_nn::ops::log_softmax;
use pinfeed::ops::{Mixup, Normalize};
use pinfeed::{DataLoader, Device, Tensor};

use data::{Data, Decoder};
use optimizer::{Schedule, Sgd};
use resnet::{Arch, ResNet};
use training::args::{Args, Options};
use training::{Result, json, loader, open};

const HELP: &str = "\
Trains a ResNet on pictures in class folders, with torchvision's newer recipe for ImageNet.

cargo run --release -p training --bin imagenet -- [OPTIONS]

  --data DIR          pictures in DIR/train/<class>/ and DIR/val/<class>/, or in DIR/<class>/,
                      of which every tenth is held out (default: shapes, drawn into a cache folder)
  --arch ARCH         resnet18 or resnet50 (default: resnet50)
  --width N           channels of the first stage (default: 64; fewer for small pictures)
  --size N            side of the training pictures (default: 176; validated on 224 / 176 of it)
  --lr RATE           the highest learning rate (default: 0.5 for 1024 images per step, scaled with the batch size)
  --batch-size N      images per training step (default: 128)
  --epochs N          how often each image is seen (default: 90)
  --device DEVICE     cpu or cuda:0 (default: cpu)
  --workers N         threads that load images (default: one per core, at most 8)
  --decode WHO        cpu, device or both (default: cpu; the others need the feature nvjpeg)
  --no-pin            load into pageable instead of page-locked memory
  --seed N            of the network, the order, the crops and the mixing (default: 0)
  --json              end with the results as one line of JSON
  --quick             few images, 2 epochs, and unless told otherwise a small network: resnet18 of width 16, images of
                      48 pixels, 32 per step. Checks that everything works, in a minute and less than 2 GiB
  --help              this text";

const LABEL_SMOOTHING: f64 = 0.1;

/// Batches of pictures, `[N, H, W, 3]`, with their labels.
type Loader = DataLoader<(Tensor<u8>, Tensor<i64>)>;

fn main() -> ExitCode {
    training::start(HELP, run)
}

fn run(mut options: Options) -> Result<()> {
    let batch_size = options.positive("--batch-size")?;
    let mut args = Args::take(&mut options, 128, 90)?;
    // On a CPU, a step of ResNet-50 on 128 images of 176 pixels takes more than 13 GB.
    let quick = args.quick;
    let default = |usual, small| if quick { small } else { usual };
    args.batch_size = batch_size.unwrap_or(default(128, 32));
    let arch = options.value("--arch", "resnet18 or resnet50")?;
    let width = options.positive("--width")?.unwrap_or(default(64, 16));
    let size = options.positive("--size")?.unwrap_or(default(176, 48));
    let lr = options.value("--lr", "a number, such as 0.1")?;
    let decoder = options.value("--decode", "cpu, device or both")?;
    options.finish()?;
    let (device, candle) = open(args.device)?;

    let data = Data::open(&args, size, decoder.unwrap_or(Decoder::Cpu))?;
    println!("{data}; {} with {} workers", device.name(), args.workers);
    let train = loader(&args, data.train, true, &device)?;
    let val = loader(&args, data.val, false, &device)?;
    let network = ResNet::new(
        arch.unwrap_or(match quick {
            true => Arch::ResNet18,
            false => Arch::ResNet50,
        }),
        width,
        data.classes,
        args.seed,
        &candle,
    )?;
    let mut training = Training {
        sgd: Sgd::new(&network.weights, &network.norms),
        schedule: Schedule::new(
            lr.unwrap_or(0.5 * args.batch_size as f64 / 1024.0),
            args.epochs,
            train.len(),
        ),
        mixing: Mixup::new().with_mixup(0.2).with_cutmix(1.0),
        classes: data.classes,
        network,
        device,
        candle,
    };

    let mut images_per_s = 0.0;
    let mut top = [0.0; 2];
    for epoch in 0..args.epochs {
        let begin = Instant::now();
        let (images, loss) = training.epoch(&train, epoch as u64)?;
        images_per_s = images as f64 / begin.elapsed().as_secs_f64();
        top = training.validate(&val)?;
        println!(
            "epoch {:>2}/{}: loss {loss:.3}, {images_per_s:.0} images/s; top-1 {:.1} %, top-5 {:.1} %",
            epoch + 1,
            args.epochs,
            100.0 * top[0],
            100.0 * top[1],
        );
    }
    let stats = train.stats();
    println!("\n{stats}");
    if args.json {
        let results = [
            ("top1", top[0]),
            ("top5", top[1]),
            ("images_per_s", images_per_s),
        ];
        println!("{}", json(&results, &stats));
    }
    Ok(())
}

struct Training {
    network: ResNet,
    sgd: Sgd,
    schedule: Schedule,
    mixing: Mixup,
    classes: usize,
    device: Device,
    candle: CandleDevice,
}

impl Training {
    /// Returns how many images were seen, and the mean loss.
    fn epoch(&mut self, loader: &Loader, epoch: u64) -> Result<(usize, f32)> {
        let mut seen = 0;
        let mut losses = CandleTensor::new(0f32, &self.candle)?;
        let normalize = Normalize::IMAGENET.with_channels_last(true);
        for batch in loader
            .epoch(epoch)
            .prefetch_to_device(&self.device, 1)
            .with_info()
        {
            let ((images, labels), info) = batch?;
            let (height, width) = (images.shape()[1], images.shape()[2]);
            seen += labels.len();
            // The pictures arrived as bytes. The device normalises and mixes them, and mixes their labels.
            let mix = self.mixing.draw(&mut info.rng(), height, width);
            let images = images.normalize_mixed::<f32>(&normalize, &mix)?;
            let targets = labels.soft_labels::<f32>(self.classes, &mix, LABEL_SMOOTHING)?;

            let images = images.to_candle(&self.candle)?;
            let targets = targets.to_candle(&self.candle)?;
            let loss = cross_entropy(&self.network.forward(&images, true)?, &targets)?;
            self.sgd.step(&loss, self.schedule.next())?;
            losses = (losses + loss.detach())?;
        }
        Ok((seen, losses.to_scalar::<f32>()? / loader.len() as f32))
    }

    /// Returns the top-1 and the top-5 accuracy.
    fn validate(&self, loader: &Loader) -> Result<[f64; 2]> {
        let mut seen = 0;
        let mut right = [0; 2];
        let normalize = Normalize::IMAGENET.with_channels_last(true);
        for batch in loader.epoch(0).prefetch_to_device(&self.device, 1) {
            let (images, labels) = batch?;
            seen += labels.len();
            let images = images.normalize::<f32>(&normalize)?;
            let images = images.to_candle(&self.candle)?;
            let labels = labels.to_candle(&self.candle)?;
            let ranks = ranks(&self.network.forward(&images, false)?, &labels)?;
            for (right, top) in right.iter_mut().zip([1, 5]) {
                *right += ranks.iter().filter(|rank| **rank < top).count();
            }
        }
        Ok(right.map(|right| right as f64 / seen as f64))
    }
}

/// The cross-entropy of scores against targets that are probabilities.
fn cross_entropy(scores: &CandleTensor, targets: &CandleTensor) -> CandleResult<CandleTensor> {
    (targets * log_softmax(scores, D::Minus1)?)?
        .sum(1)?
        .mean(0)?
        .neg()
}

/// For each image, the number of classes with a higher score than its own.
fn ranks(scores: &CandleTensor, labels: &CandleTensor) -> CandleResult<Vec<u32>> {
    let own = scores.gather(&labels.unsqueeze(1)?, 1)?;
    scores
        .broadcast_gt(&own)?
        .to_dtype(DType::U32)?
        .sum(1)?
        .to_vec1()
}
