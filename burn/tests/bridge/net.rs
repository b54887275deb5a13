//! A small network, its batches, and the points that it learns to tell apart.

use std::sync::Mutex;

use burn::module::Module;
use burn::nn::loss::CrossEntropyLossConfig;
use burn::nn::{Linear, LinearConfig};
use burn::tensor::activation::relu;
use burn::tensor::{Device, Int, Tensor};
use burn::train::{ClassificationOutput, InferenceStep, TrainOutput, TrainStep};
use pinfeed::collate::Stack;
use pinfeed::loader::Builder;
use pinfeed::{DataLoader, Dataset, SampleRng, from_fn};
use pinfeed_burn::{AnyDataset, IntoBurn, Loader};

/// A batch of burn's.
#[derive(Clone, Debug)]
pub struct Points {
    pub features: Tensor<2>,
    pub classes: Tensor<1, Int>,
}

/// Two rings of points, one inside the other. A point follows from its index.
pub fn point(index: u64) -> ([f32; 2], i64) {
    let mut rng = SampleRng::for_sample(pinfeed::rng::RngKey {
        seed: 5,
        epoch: 0,
        position: index,
    });
    let class = index as i64 % 2;
    let radius = 0.5 + class as f32 + 0.2 * rng.f32();
    let angle = std::f32::consts::TAU * rng.f32();
    ([radius * angle.cos(), radius * angle.sin()], class)
}

/// The other CPU backend, which copies before it writes. Burn will remove it; until then, programs have it.
#[allow(deprecated)]
pub fn ndarray() -> Device {
    Device::ndarray()
}

pub type Sample = ([f32; 2], i64);
pub type Batch = (pinfeed::Tensor<f32>, pinfeed::Tensor<i64>);

pub fn points(count: u64) -> impl Dataset<Sample = Sample> {
    from_fn(count, |index, _| Ok(point(index)))
}

/// Makes burn's batch.
pub fn convert((features, classes): Batch, device: &Device) -> Result<Points, pinfeed::BoxError> {
    Ok(Points {
        features: features.into_burn(device)?,
        classes: classes.into_burn(device)?,
    })
}

/// The loader of so many points; `options` sets what is not as usual.
pub fn loader(
    count: u64,
    options: impl Fn(Builder<AnyDataset<Sample>, Stack>) -> Builder<AnyDataset<Sample>, Stack>
    + Send
    + Sync
    + 'static,
) -> Loader<Batch, Points> {
    let build = move |data| {
        let builder = DataLoader::builder(data)
            .batch_size(16)
            .pin_memory(&pinfeed::Device::cpu())
            .strict_pinning(true);
        options(builder).build()
    };
    Loader::new(points(count), build, convert)
        .unwrap()
        .with_device(Device::flex())
}

#[derive(Module, Debug)]
pub struct Net {
    first: Linear,
    second: Linear,
}

impl Net {
    /// The same weights each time. (Burn's generator is the process's, so no other test may draw from it meanwhile.)
    pub fn new(device: &Device) -> Net {
        static DRAWING: Mutex<()> = Mutex::new(());
        let _alone = DRAWING.lock();
        device.seed(1);
        let net = Net {
            first: LinearConfig::new(2, 16).init(device),
            second: LinearConfig::new(16, 2).init(device),
        };
        net.weights(); // it draws them when they are used first
        net
    }

    pub fn forward(&self, points: Points) -> ClassificationOutput {
        let hidden = relu(self.first.forward(points.features));
        let output = self.second.forward(hidden);
        let loss = CrossEntropyLossConfig::new()
            .init(&output.device())
            .forward(output.clone(), points.classes.clone());
        ClassificationOutput::new(loss, output, points.classes)
    }

    /// All weights, one behind the other.
    pub fn weights(&self) -> Vec<f32> {
        let of = |linear: &Linear| {
            let bias = linear.bias.as_ref().unwrap().val().into_data();
            let weights = linear.weight.val().into_data();
            [weights, bias]
                .map(|data| data.try_to_vec::<f32>().unwrap())
                .concat()
        };
        [of(&self.first), of(&self.second)].concat()
    }

    /// The share of points that it tells right.
    pub fn accuracy(&self, count: u64) -> f64 {
        let device = self.first.weight.val().device();
        let (features, classes): (Vec<_>, Vec<_>) = (0..count).map(point).unzip();
        let features = pinfeed::Tensor::from_vec(features.concat(), &[count as usize, 2]);
        let points = convert((features.unwrap(), classes.clone().into()), &device).unwrap();
        let found = self.forward(points).output.argmax(1).into_data();
        let found = found.iter::<i64>().zip(&classes);
        let right = found.filter(|(found, class)| found == *class).count();
        right as f64 / count as f64
    }
}

impl TrainStep for Net {
    type Input = Points;
    type Output = ClassificationOutput;

    fn step(&self, points: Points) -> TrainOutput<ClassificationOutput> {
        let item = self.forward(points);
        TrainOutput::new(self, item.loss.backward(), item)
    }
}

impl InferenceStep for Net {
    type Input = Points;
    type Output = ClassificationOutput;

    fn step(&self, points: Points) -> ClassificationOutput {
        self.forward(points)
    }
}
