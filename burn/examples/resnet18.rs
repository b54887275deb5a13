//! Loading, transfer and processing of a ResNet-18 that burn trains, with page-locked memory and without: what `python/benches/data_parallel.py`
//! measures for PyTorch.
//!
//!     cargo run --release --example resnet18 --features cuda -- FOLDER      # a folder of JPEG files for each class, on the first GPU
//!     cargo run --release --example resnet18 -- --size 32 --batches 4 --batch-sizes 8 --workers 2      # pictures of noise, on a CPU
//!
//! Each line is measured twice: with each part waited for, and as the loop runs. The pictures cross the link as bytes, and burn's device makes floats of them.

use std::error::Error;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use burn::module::Module;
use burn::nn::conv::{Conv2d, Conv2dConfig};
use burn::nn::loss::CrossEntropyLossConfig;
use burn::nn::pool::{AdaptiveAvgPool2d, AdaptiveAvgPool2dConfig, MaxPool2d, MaxPool2dConfig};
use burn::nn::{BatchNorm, BatchNormConfig, Linear, LinearConfig, PaddingConfig2d};
use burn::optim::momentum::MomentumConfig;
use burn::optim::{GradientsParams, SgdConfig};
use burn::tensor::activation::relu;
use burn::tensor::{Device, Int, Tensor};
use pinfeed::image::{ImageFolder, ImageTransform, RandomResizedCrop};
use pinfeed::{DataLoader, from_fn};
use pinfeed_burn::IntoBurn;

const HELP: &str = "\
cargo run --release --example resnet18 -- [FOLDER] [OPTIONS]

  FOLDER              has a folder of pictures for each class; without it, pictures are noise that the workers make
  --size N            pixels of a side (default: 224)
  --batch-sizes LIST  (default: 64,256)
  --workers LIST      (default: 4,16)
  --batches N         that each line measures, twice (default: 20)";

type Result<T, E = Box<dyn Error + Send + Sync>> = std::result::Result<T, E>;

/// Pictures `[n, size, size, 3]`, and classes.
type Batch = (pinfeed::Tensor<u8>, pinfeed::Tensor<i64>);

fn main() -> ExitCode {
    if std::env::args().any(|argument| argument == "--help") {
        println!("{HELP}");
        return ExitCode::SUCCESS;
    }
    match Options::take().and_then(|options| run(&options)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}

struct Options {
    folder: Option<String>,
    size: usize,
    batch_sizes: Vec<usize>,
    workers: Vec<usize>,
    batches: usize,
}

impl Options {
    fn take() -> Result<Options> {
        let mut options = Options {
            folder: None,
            size: 224,
            batch_sizes: vec![64, 256],
            workers: vec![4, 16],
            batches: 20,
        };
        let mut arguments = std::env::args().skip(1);
        while let Some(argument) = arguments.next() {
            if !argument.starts_with("--") {
                options.folder = Some(argument);
                continue;
            }
            let value = arguments.next().unwrap_or_default();
            let numbers: std::result::Result<Vec<usize>, _> =
                value.split(',').map(str::parse).collect();
            let numbers = numbers.map_err(|_| format!("{argument} {value}: it wants numbers"))?;
            match argument.as_str() {
                "--size" => options.size = numbers[0].max(32),
                "--batch-sizes" => options.batch_sizes = numbers,
                "--workers" => options.workers = numbers,
                "--batches" => options.batches = numbers[0].max(2),
                _ => return Err(format!("{argument} is not known: --help lists what is").into()),
            }
        }
        Ok(options)
    }
}

fn run(options: &Options) -> Result<()> {
    #[cfg(feature = "cuda")]
    let (burns, ours) = (Device::cuda(0), pinfeed::Device::cuda(0)?); // the same GPU
    #[cfg(not(feature = "cuda"))]
    let (burns, ours) = (Device::flex(), pinfeed::Device::cpu());
    let burns = burns.autodiff();
    println!(
        "{}; ms a batch\n\n| batch | workers | page-locked | loading | transfer | processing | as it runs: next | to burn | loop | images/s |\n\
         | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |",
        ours.info()?.name
    );
    let mut sgd = SgdConfig::new()
        .with_momentum(Some(MomentumConfig::new()))
        .init();
    let mut training = Training {
        model: Some(ResNet::new(&burns)),
        learn: Box::new(move |model, grads| sgd.step(0.01, model, grads)),
        device: burns,
    };
    for &batch_size in &options.batch_sizes {
        for &workers in &options.workers {
            for pinned in [true, false] {
                let pinned = pinned.then_some(&ours);
                let loader = loader(options, batch_size, workers, pinned)?;
                // (Epochs without end, one behind the other.)
                let mut batches = loader.epochs(0..).flatten();
                training.waited_for(&mut batches, 3)?; // burn tunes its kernels
                let parts = training.waited_for(&mut batches, options.batches)?;
                let runs = training.as_it_runs(&mut batches, options.batches)?;
                let ms = |time: Duration| 1e3 * time.as_secs_f64() / options.batches as f64;
                let [loading, transfer, processing] = parts.map(ms);
                let [next, to_burn, all] = runs.map(ms);
                println!(
                    "| {batch_size} | {workers} | {} | {loading:.2} | {transfer:.2} | {processing:.2} | {next:.2} | {to_burn:.2} | {all:.2} | {:.0} |",
                    if pinned.is_some() { "yes" } else { "no" },
                    1e3 * batch_size as f64 / all
                );
            }
        }
    }
    Ok(())
}

fn loader(
    options: &Options,
    batch_size: usize,
    workers: usize,
    pinned: Option<&pinfeed::Device>,
) -> Result<DataLoader<Batch>> {
    let size = options.size;
    let Some(folder) = &options.folder else {
        let noise = from_fn(20 * batch_size as u64, move |index, rng| {
            let pixels: Vec<u8> = (0..size * size * 3).map(|_| rng.next_u64() as u8).collect();
            Ok((
                pinfeed::Tensor::from_vec(pixels, &[size, size, 3])?,
                index as i64 % 10,
            ))
        });
        let builder = DataLoader::builder(noise)
            .batch_size(batch_size)
            .num_workers(workers);
        let builder = builder.shuffle(true).seed(17).drop_last(true);
        return Ok(match pinned {
            Some(device) => builder.pin_memory(device).build()?,
            None => builder.build()?,
        });
    };
    let transform = ImageTransform::new()
        .random_resized_crop(RandomResizedCrop::new(size))
        .random_horizontal_flip(0.5);
    let builder = DataLoader::builder(ImageFolder::open(folder)?.with_transform(transform))
        .batch_size(batch_size)
        .num_workers(workers);
    let builder = builder.shuffle(true).seed(17).drop_last(true);
    Ok(match pinned {
        Some(device) => builder.pin_memory(device).build()?,
        None => builder.build()?,
    })
}

/// The model, and how a batch trains it.
struct Training {
    model: Option<ResNet>,
    learn: Box<dyn FnMut(ResNet, GradientsParams) -> ResNet>,
    device: Device,
}

impl Training {
    fn to_burn(&self, (pixels, classes): Batch) -> Result<(Tensor<4, Int>, Tensor<1, Int>)> {
        Ok((
            pixels.into_burn(&self.device)?,
            classes.into_burn(&self.device)?,
        ))
    }

    fn step(&mut self, (pixels, classes): (Tensor<4, Int>, Tensor<1, Int>)) -> Result<()> {
        let Some(model) = self.model.take() else {
            return Err("the step before this one failed".into());
        };
        let pixels = pixels.float().permute([0, 3, 1, 2]);
        let output = model.forward((pixels / 255.0 - 0.45) / 0.225);
        let loss = CrossEntropyLossConfig::new()
            .init(&self.device)
            .forward(output, classes);
        let grads = GradientsParams::from_grads(loss.backward(), &model);
        self.model = Some((self.learn)(model, grads));
        Ok(())
    }

    /// Loading, transfer and processing, with the device waited for behind each.
    fn waited_for(
        &mut self,
        batches: &mut impl Iterator<Item = pinfeed::Result<Batch>>,
        count: usize,
    ) -> Result<[Duration; 3]> {
        let mut sums = [Duration::ZERO; 3];
        self.device.sync()?;
        for _ in 0..count {
            let begun = Instant::now();
            let next = batches.next().ok_or("the data ended")??;
            let loaded = Instant::now();
            let next = self.to_burn(next)?;
            self.device.sync()?;
            let there = Instant::now();
            self.step(next)?;
            self.device.sync()?;
            let parts = [loaded - begun, there - loaded, there.elapsed()];
            sums.iter_mut()
                .zip(parts)
                .for_each(|(sum, part)| *sum += part);
        }
        Ok(sums)
    }

    /// What the host spends in `next`, and in giving a batch to burn, and how long the loop takes, which waits at its end only.
    fn as_it_runs(
        &mut self,
        batches: &mut impl Iterator<Item = pinfeed::Result<Batch>>,
        count: usize,
    ) -> Result<[Duration; 3]> {
        let mut sums = [Duration::ZERO; 3];
        let all = Instant::now();
        for _ in 0..count {
            let begun = Instant::now();
            let next = batches.next().ok_or("the data ended")??;
            let loaded = Instant::now();
            let next = self.to_burn(next)?;
            self.device.flush()?;
            sums[0] += loaded - begun;
            sums[1] += loaded.elapsed();
            self.step(next)?;
        }
        self.device.sync()?;
        sums[2] = all.elapsed();
        Ok(sums)
    }
}

/// A ResNet-18, as torchvision has it, of 1,000 classes.
#[derive(Module, Debug)]
struct ResNet {
    stem: Convolution,
    pool: MaxPool2d,
    blocks: Vec<Block>,
    mean: AdaptiveAvgPool2d,
    last: Linear,
}

impl ResNet {
    fn new(device: &Device) -> ResNet {
        let blocks = [
            (64, 64, 1),
            (64, 64, 1),
            (64, 128, 2),
            (128, 128, 1),
            (128, 256, 2),
            (256, 256, 1),
            (256, 512, 2),
            (512, 512, 1),
        ];
        ResNet {
            stem: Convolution::new([3, 64], 7, 2, device),
            pool: MaxPool2dConfig::new([3, 3])
                .with_strides([2, 2])
                .with_padding(PaddingConfig2d::Explicit(1, 1, 1, 1))
                .init(),
            blocks: blocks
                .map(|(from, to, stride)| Block::new(from, to, stride, device))
                .into(),
            mean: AdaptiveAvgPool2dConfig::new([1, 1]).init(),
            last: LinearConfig::new(512, 1_000).init(device),
        }
    }

    fn forward(&self, pictures: Tensor<4>) -> Tensor<2> {
        let x = self.pool.forward(relu(self.stem.forward(pictures)));
        let x = self.blocks.iter().fold(x, |x, block| block.forward(x));
        self.last.forward(self.mean.forward(x).flatten(1, 3))
    }
}

/// Two convolutions, beside which their input passes.
#[derive(Module, Debug)]
struct Block {
    first: Convolution,
    second: Convolution,
    beside: Option<Convolution>,
}

impl Block {
    fn new(from: usize, to: usize, stride: usize, device: &Device) -> Block {
        let is_alike = from == to && stride == 1;
        Block {
            first: Convolution::new([from, to], 3, stride, device),
            second: Convolution::new([to, to], 3, 1, device),
            beside: (!is_alike).then(|| Convolution::new([from, to], 1, stride, device)),
        }
    }

    fn forward(&self, x: Tensor<4>) -> Tensor<4> {
        let through = relu(self.first.forward(x.clone()));
        let through = self.second.forward(through);
        let beside = match &self.beside {
            Some(convolution) => convolution.forward(x),
            None => x,
        };
        relu(through + beside)
    }
}

/// A convolution without a bias, and what normalizes its output.
#[derive(Module, Debug)]
struct Convolution {
    convolution: Conv2d,
    norm: BatchNorm,
}

impl Convolution {
    fn new(channels: [usize; 2], kernel: usize, stride: usize, device: &Device) -> Convolution {
        let pad = kernel / 2;
        Convolution {
            convolution: Conv2dConfig::new(channels, [kernel, kernel])
                .with_stride([stride, stride])
                .with_padding(PaddingConfig2d::Explicit(pad, pad, pad, pad))
                .with_bias(false)
                .init(device),
            norm: BatchNormConfig::new(channels[1]).init(device),
        }
    }

    fn forward(&self, x: Tensor<4>) -> Tensor<4> {
        self.norm.forward(self.convolution.forward(x))
    }
}
