//! Burn's `Learner` on these loaders, beside burn's own: the same batches give the same weights, bit by bit.

use std::sync::Arc;

use burn::data::dataloader::batcher::Batcher;
use burn::data::dataloader::{DataLoader as BurnLoader, DataLoaderBuilder};
use burn::optim::AdamConfig;
use burn::tensor::{Device, Tensor, TensorData};
use burn::train::renderer::CliMetricsRenderer;
use burn::train::{ExecutionStrategy, Learner, MultiDeviceOptim, SupervisedTraining};
use pinfeed_burn::{Loader, ToBurn};

use crate::net::{Net, Points, Sample, convert, loader, point, points};

/// Burn's own way from samples to a batch.
#[derive(Clone)]
struct Stack;

impl Batcher<Sample, Points> for Stack {
    fn batch(&self, items: Vec<Sample>, device: &Device) -> Points {
        let rows = items.len();
        let (features, classes): (Vec<_>, Vec<_>) = items.into_iter().unzip();
        Points {
            features: Tensor::from_data(TensorData::new(features.concat(), [rows, 2]), device),
            classes: Tensor::from_data(TensorData::new(classes, [rows]), device),
        }
    }
}

const EPOCHS: usize = 3;
const TRAIN: u64 = 200; // 13 batches of 16, of which the last has 8
const VALID: u64 = 50;

/// Trains a network, and returns its weights and itself.
fn trained(
    train: Arc<dyn BurnLoader<Points>>,
    valid: Arc<dyn BurnLoader<Points>>,
    strategy: ExecutionStrategy,
    accumulation: usize,
) -> Net {
    let folder = tempfile::tempdir().unwrap();
    let device = Device::flex().autodiff();
    let learner = Learner::new(Net::new(&device), AdamConfig::new().init(), 0.05);
    SupervisedTraining::new(folder.path(), train, valid)
        .with_training_strategy(strategy.into())
        .with_application_logger(None)
        .renderer(Box::new(CliMetricsRenderer::new()))
        .grads_accumulation(accumulation)
        .num_epochs(EPOCHS)
        .launch(learner)
        .model
}

fn burns_own(count: u64, workers: usize) -> Arc<dyn BurnLoader<Points>> {
    DataLoaderBuilder::new(Stack)
        .batch_size(16)
        .num_workers(workers)
        .set_device(Device::flex())
        .build(ToBurn::new(points(count)))
}

fn single() -> ExecutionStrategy {
    ExecutionStrategy::single(Device::flex())
}

#[test]
fn the_same_batches_give_the_same_weights_as_burns_own_loader() {
    for accumulation in [1, 3] {
        // (burn's own with workers gives batches in any order.)
        let burns = trained(
            burns_own(TRAIN, 0),
            burns_own(VALID, 0),
            single(),
            accumulation,
        );
        for workers in [0, 1, 4] {
            let train = loader(TRAIN, move |builder| builder.num_workers(workers));
            let valid = loader(VALID, move |builder| builder.num_workers(workers));
            let ours = trained(Arc::new(train), Arc::new(valid), single(), accumulation);
            assert_eq!(
                ours.weights(),
                burns.weights(),
                "{workers} workers, {accumulation} accumulated"
            );
        }
    }
}

/// Gradients that were accumulated are applied with the last batch of an epoch, also if samples were left out of it.
#[test]
fn the_last_gradients_are_applied() {
    let one_step = |skips: bool| {
        let train = loader(40, move |builder| match skips {
            true => builder.batch_size(10).drop_last(true),
            false => builder.batch_size(10),
        });
        trained(Arc::new(train), burns_own(VALID, 0), single(), 100).weights()
    };
    assert_ne!(one_step(true), Net::new(&Device::flex()).weights());
    assert_eq!(one_step(true), one_step(false));
}

#[test]
fn shuffled_epochs_train_alike_on_any_number_of_workers() {
    let net = |workers| {
        let train = loader(TRAIN, move |builder| {
            builder.shuffle(true).seed(9).num_workers(workers)
        });
        trained(Arc::new(train), burns_own(VALID, 0), single(), 1)
    };
    let (one, three) = (net(1), net(3));
    assert_eq!(one.weights(), three.weights());
    assert!(one.accuracy(500) > 0.95, "{}", one.accuracy(500));
}

/// Two replicas, each with a slice of the data set: as burn's own loaders, which slice in the same way.
#[test]
fn two_devices_train_on_a_slice_each() {
    let strategy = || {
        ExecutionStrategy::multi(
            vec![Device::flex(), Device::flex()],
            MultiDeviceOptim::OptimMainDevice,
        )
    };
    let burns = trained(burns_own(160, 0), burns_own(VALID, 0), strategy(), 1);
    let train = loader(160, |builder| builder.num_workers(2));
    let valid = loader(VALID, |builder| builder);
    let ours = trained(Arc::new(train), Arc::new(valid), strategy(), 1);
    let pairs = ours.weights().into_iter().zip(burns.weights());
    for (ours, burns) in pairs {
        assert!((ours - burns).abs() < 1e-3, "{ours} {burns}"); // (the order of the replicas' gradients is not fixed)
    }
}

/// Burn's `Learner` ends with the error, which names the sample; and the same loader goes on.
#[test]
fn a_sample_that_fails_ends_the_training_and_is_named() {
    let broken = std::sync::atomic::AtomicBool::new(true);
    let samples = pinfeed::from_fn(64, move |index, _| {
        match index == 40 && broken.swap(false, std::sync::atomic::Ordering::Relaxed) {
            true => Err("the file is empty".into()),
            false => Ok(point(index)),
        }
    });
    let build = |data| {
        pinfeed::DataLoader::builder(data)
            .batch_size(16)
            .num_workers(2)
            .build()
    };
    let samples = samples.describe(|index| format!("{index}.csv"));
    let train: Arc<dyn BurnLoader<Points>> =
        Arc::new(Loader::new(samples, build, convert).unwrap());
    let launched = || {
        let folder = tempfile::tempdir().unwrap();
        let device = Device::flex().autodiff();
        let learner = Learner::new(Net::new(&device), AdamConfig::new().init(), 0.05);
        SupervisedTraining::new(folder.path(), Arc::clone(&train), burns_own(VALID, 0))
            .with_application_logger(None)
            .renderer(Box::new(CliMetricsRenderer::new()))
            .num_epochs(2)
            .launch(learner)
    };
    let error = launched()
        .error
        .expect("the sample cannot be loaded")
        .to_string();
    assert!(
        error.contains("(40.csv)") && error.contains("the file is empty"),
        "{error}"
    );
    assert!(launched().error.is_none());
}
