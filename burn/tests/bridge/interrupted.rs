//! Epochs that are left, fail or panic in the middle: the next one is whole, with all of the ring's memory.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use burn::data::dataloader::DataLoader as BurnLoader;
use burn::tensor::Device;
use pinfeed::{DataLoader, from_fn};
use pinfeed_burn::{Error, IntoBurn, Loader};

use crate::net::{Points, loader};

fn count(loader: &dyn BurnLoader<Points>) -> usize {
    let batches = loader.iter().map(Result::unwrap);
    batches.map(|points| points.classes.dims()[0]).sum()
}

#[test]
fn an_epoch_that_is_left_is_followed_by_a_whole_one() {
    let loader = loader(200, |builder| builder.num_workers(2));
    for taken in 0..6 {
        let held: Vec<_> = loader
            .iter()
            .take(taken.min(3))
            .map(Result::unwrap)
            .collect();
        drop(held);
        let mut epoch = loader.iter();
        for _ in 0..taken {
            epoch.next().unwrap().unwrap();
        }
        drop(epoch);
        assert_eq!(count(&loader), 200);
    }
}

#[test]
fn batches_outlive_the_epoch_and_the_loader() {
    let loader = loader(64, |builder| builder.num_workers(2));
    let batch = loader.iter().nth(1).unwrap().unwrap();
    let before = batch
        .features
        .clone()
        .into_data()
        .try_to_vec::<f32>()
        .unwrap();
    assert_eq!(count(&loader), 64); // other batches come into the ring meanwhile
    drop(loader);
    assert_eq!(
        batch.features.into_data().try_to_vec::<f32>().unwrap(),
        before
    );
}

#[test]
fn a_panic_in_the_loop_leaves_nothing_behind() {
    let loader = loader(200, |builder| builder.num_workers(2));
    let panicked = catch_unwind(AssertUnwindSafe(|| {
        for (step, batch) in loader.iter().enumerate() {
            let _batch = batch.unwrap();
            if step == 2 {
                watch::provoked("the step has a bug");
            }
        }
    }));
    assert!(panicked.is_err());
    assert_eq!(count(&loader), 200);
}

#[test]
fn a_panic_where_batches_are_made_is_the_programs() {
    let panics = Arc::new(AtomicBool::new(true));
    let wants = Arc::clone(&panics);
    let build = |data| {
        DataLoader::builder(data)
            .batch_size(4)
            .num_workers(1)
            .build()
    };
    let loader = Loader::new(
        from_fn(20, |index, _| Ok(index as f32)),
        build,
        move |batch: pinfeed::Tensor<f32>, device| {
            if wants.swap(false, Ordering::Relaxed) {
                watch::provoked("a bug in convert");
            }
            Ok(batch.into_burn::<1>(device)?)
        },
    )
    .unwrap()
    .with_device(Device::flex());
    let mut epoch = loader.iter();
    assert!(catch_unwind(AssertUnwindSafe(|| epoch.next())).is_err());
    assert_eq!(epoch.filter(Result::is_ok).count(), 4); // the others of the same epoch
    assert_eq!(loader.iter().filter(Result::is_ok).count(), 5);
}

#[test]
fn a_sample_that_fails_is_its_batchs_error_and_the_epoch_goes_on() {
    let build = |data| {
        DataLoader::builder(data)
            .batch_size(4)
            .num_workers(2)
            .build()
    };
    let samples = from_fn(20, |index, _| match index {
        6 => Err("the file is empty".into()),
        7 => watch::provoked("a bug in get"),
        index => Ok(index as f32),
    });
    let samples = samples.describe(|index| format!("{index}.wav"));
    let loader = Loader::new(samples, build, |batch: pinfeed::Tensor<f32>, device| {
        Ok(batch.into_burn::<1>(device)?)
    })
    .unwrap()
    .with_device(Device::flex());
    for _ in 0..2 {
        let batches: Vec<_> = loader.iter().collect();
        let are_ok: Vec<_> = batches.iter().map(Result::is_ok).collect();
        assert_eq!(are_ok, [true, false, true, true, true]);
        let error = batches[1].as_ref().unwrap_err();
        assert!(error.to_string().contains("(6.wav)"), "{error}");
        let source = std::error::Error::source(error).unwrap();
        assert!(matches!(
            source.downcast_ref(),
            Some(pinfeed::Error::Sample(..))
        ));
    }
}

#[test]
fn a_batch_that_cannot_be_made_is_an_error_with_its_cause() {
    let build = |data| DataLoader::builder(data).batch_size(4).build();
    let loader = Loader::new(
        from_fn(8, |index, _| Ok([index as f32; 2])),
        build,
        |batch: pinfeed::Tensor<f32>, device| Ok(batch.into_burn::<3>(device)?), // it has two dimensions
    )
    .unwrap()
    .with_device(Device::flex());
    let error = loader.iter().next().unwrap().unwrap_err();
    assert!(
        error.to_string().contains("write `into_burn::<2>`"),
        "{error}"
    );
    let source = std::error::Error::source(&error).unwrap();
    let Some(Error::Convert(cause)) = source.downcast_ref() else {
        panic!("{source:?}");
    };
    assert!(matches!(
        cause.downcast_ref(),
        Some(Error::Rank { wanted: 3, .. })
    ));
}
