//! Burn's `Learner` on pictures of handwritten digits, which lie in `data/`: bytes come in page-locked memory, and burn's device makes
//! floats of them. It takes some seconds on a CPU.
//!
//!     cargo run --release --example digits
//!     cargo run --release --example digits --features cuda      # on the first GPU

use std::error::Error;
use std::sync::Arc;

use burn::data::dataloader::DataLoader as _;
use burn::module::Module;
use burn::nn::conv::{Conv2d, Conv2dConfig};
use burn::nn::loss::CrossEntropyLossConfig;
use burn::nn::pool::{MaxPool2d, MaxPool2dConfig};
use burn::nn::{Linear, LinearConfig, PaddingConfig2d};
use burn::optim::AdamConfig;
use burn::tensor::activation::relu;
use burn::tensor::{Device, Int, Tensor};
use burn::train::{
    ClassificationOutput, ExecutionStrategy, InferenceStep, Learner, SupervisedTraining,
    TrainOutput, TrainStep,
};
use pinfeed::dataset::random_split;
use pinfeed::{BoxError, DataLoader, Dataset, SampleRng, TensorDataset, arrays};
use pinfeed_burn::{IntoBurn, Loader};

/// A batch of burn's.
#[derive(Clone, Debug)]
struct Digits {
    /// `[n, 8, 8]`, in bytes of 0 to 16.
    pixels: Tensor<3, Int>,
    /// `[n]`
    classes: Tensor<1, Int>,
}

fn to_burn(
    (pixels, classes): (pinfeed::Tensor<u8>, pinfeed::Tensor<i32>),
    device: &Device,
) -> Result<Digits, BoxError> {
    Ok(Digits {
        pixels: pixels.into_burn(device)?,
        classes: classes.into_burn(device)?,
    })
}

/// Moves the picture by up to one pixel, and fills with paper.
fn shifted(pixels: &[u8], rng: &mut SampleRng) -> [u8; 64] {
    let (down, right) = (rng.range(-1..2), rng.range(-1..2));
    std::array::from_fn(|at| {
        let (row, column) = (at as i32 / 8 - down, at as i32 % 8 - right);
        match (0..8).contains(&row) && (0..8).contains(&column) {
            true => pixels[(row * 8 + column) as usize],
            false => 0,
        }
    })
}

pub(crate) fn main() -> Result<(), Box<dyn Error>> {
    #[cfg(feature = "cuda")]
    let (burns, ours) = (Device::cuda(0), pinfeed::Device::cuda(0)?); // the same GPU
    #[cfg(not(feature = "cuda"))]
    let (burns, ours) = (Device::flex(), pinfeed::Device::cpu());

    let data = concat!(env!("CARGO_MANIFEST_DIR"), "/data");
    let pixels = arrays::npy(format!("{data}/digits.npy"))?.tensor::<u8>()?;
    let classes = arrays::npy(format!("{data}/classes.npy"))?.tensor::<u8>()?;
    let classes: Vec<i32> = classes
        .as_slice()
        .iter()
        .map(|class| i32::from(*class))
        .collect(); // burn's own integers
    let digits = TensorDataset::new((pixels, pinfeed::Tensor::from(classes)))?;
    let [train, valid] = random_split(digits, [1_400, 397], 17)?;

    let pinned = ours.clone();
    let train = Loader::new(
        train.map(|(pixels, class), rng| {
            let pixels = shifted(pixels.as_slice(), rng);
            Ok((
                pinfeed::Tensor::from_slice(&pixels, &[8, 8])?,
                class.as_slice()[0],
            ))
        }),
        move |train| {
            DataLoader::builder(train)
                .batch_size(32)
                .shuffle(true)
                .seed(17)
                .num_workers(2)
                .pin_memory(&pinned)
                .build()
        },
        to_burn,
    )?;
    let valid = Loader::new(
        valid.map(|(pixels, class), _| Ok((pixels, class.as_slice()[0]))),
        move |valid| {
            DataLoader::builder(valid)
                .batch_size(100)
                .pin_memory(&ours)
                .build()
        },
        to_burn,
    )?;
    let (train, valid) = (Arc::new(train), Arc::new(valid));

    burns.seed(17);
    let learner = Learner::new(
        Net::new(&burns.clone().autodiff()),
        AdamConfig::new().init(),
        6e-3,
    );
    let folder = tempfile::tempdir()?;
    let trained = SupervisedTraining::new(folder.path(), train.clone(), valid.clone())
        .with_training_strategy(ExecutionStrategy::single(burns.clone()).into())
        .with_application_logger(None)
        .num_epochs(6)
        .launch(learner);
    if let Some(error) = trained.error {
        return Err(error.to_string().into());
    }

    let (mut right, mut all) = (0, 0);
    for digits in valid.to_device(&burns).iter() {
        let output = trained.model.forward(digits?);
        let found = output.output.argmax(1).squeeze::<1>();
        right += found
            .equal(output.targets.clone())
            .int()
            .sum()
            .into_scalar::<i64>();
        all += output.targets.dims()[0];
    }
    println!("{right} of {all} digits are recognized");
    if let Some(loader) = train.loader() {
        println!("{}", loader.total_stats());
    }
    assert!(right as f64 > 0.93 * all as f64);
    Ok(())
}

/// Two convolutions, and a layer behind them.
#[derive(Module, Debug)]
struct Net {
    first: Conv2d,
    second: Conv2d,
    pool: MaxPool2d,
    last: Linear,
}

impl Net {
    fn new(device: &Device) -> Net {
        let convolution = |channels| {
            Conv2dConfig::new(channels, [3, 3])
                .with_padding(PaddingConfig2d::Same)
                .init(device)
        };
        Net {
            first: convolution([1, 16]),
            second: convolution([16, 32]),
            pool: MaxPool2dConfig::new([2, 2]).with_strides([2, 2]).init(),
            last: LinearConfig::new(32 * 2 * 2, 10).init(device),
        }
    }

    fn forward(&self, digits: Digits) -> ClassificationOutput {
        let x = digits.pixels.float().unsqueeze_dim::<4>(1) / 16.0; // on the device
        let x = self.pool.forward(relu(self.first.forward(x)));
        let x = self.pool.forward(relu(self.second.forward(x)));
        let output = self.last.forward(x.flatten(1, 3));
        let loss = CrossEntropyLossConfig::new()
            .init(&output.device())
            .forward(output.clone(), digits.classes.clone());
        ClassificationOutput::new(loss, output, digits.classes)
    }
}

impl TrainStep for Net {
    type Input = Digits;
    type Output = ClassificationOutput;

    fn step(&self, digits: Digits) -> TrainOutput<ClassificationOutput> {
        let item = self.forward(digits);
        TrainOutput::new(self, item.loss.backward(), item)
    }
}

impl InferenceStep for Net {
    type Input = Digits;
    type Output = ClassificationOutput;

    fn step(&self, digits: Digits) -> ClassificationOutput {
        self.forward(digits)
    }
}
