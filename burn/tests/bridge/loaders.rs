//! `Loader`, as burn's `DataLoader`: what its methods promise.

use burn::data::dataloader::DataLoader as BurnLoader;
use burn::data::dataloader::split::split_dataloader;
use burn::data::dataset::DatasetError;
use burn::tensor::Device;
use pinfeed::loader::OnError;
use pinfeed::{DataLoader, from_fn};
use pinfeed_burn::{Error, IntoBurn, Loader};

use crate::net::{Points, loader, point};

/// The classes and first features of an epoch's points, which tell the points.
fn features(loader: &dyn BurnLoader<Points>) -> Vec<f32> {
    let batches = loader.iter().map(Result::unwrap);
    let each = batches.map(|points| points.features.into_data().try_to_vec::<f32>().unwrap());
    each.flatten().collect()
}

/// Those of the points of these indices.
fn expected(indices: impl IntoIterator<Item = u64>) -> Vec<f32> {
    indices
        .into_iter()
        .flat_map(|index| point(index).0)
        .collect()
}

fn sorted(mut numbers: Vec<f32>) -> Vec<f32> {
    numbers.sort_unstable_by(f32::total_cmp);
    numbers
}

#[test]
fn an_epoch_has_all_samples_in_order() {
    let loader = loader(50, |builder| builder.num_workers(2));
    assert_eq!(features(&loader), expected(0..50));
    assert_eq!(features(&loader), expected(0..50)); // and the next
    assert_eq!(loader.loader().unwrap().total_stats().epochs, 2);
}

#[test]
fn each_iteration_is_the_next_epoch() {
    let shuffled = || loader(50, |builder| builder.shuffle(true).seed(4));
    let loader = shuffled();
    let (first, second) = (features(&loader), features(&loader));
    assert_ne!(first, second);
    assert_eq!(sorted(first.clone()), sorted(second.clone()));
    // A training that goes on with the second.
    assert_eq!(features(&shuffled().starting_at(1)), second);
    // The Learner's loader for its device is the same one, and counts the same epochs.
    let moved = shuffled().to_device(&Device::flex());
    assert_eq!((features(&*moved), features(&*moved)), (first, second));
}

#[test]
fn two_iterations_at_the_same_time_are_two_epochs() {
    let loader = loader(64, |builder| builder.num_workers(2).shuffle(true));
    let (mut first, mut second) = (loader.iter(), loader.iter());
    let mut seen = 0;
    while let (Some(one), Some(other)) = (first.next(), second.next()) {
        seen += one.unwrap().classes.dims()[0] + other.unwrap().classes.dims()[0];
    }
    assert_eq!(seen, 128);
}

#[test]
fn items_are_those_that_batches_have() {
    for (drop_last, items, batches) in [(false, 50, 4), (true, 48, 3)] {
        let loader = loader(50, move |builder| builder.drop_last(drop_last));
        assert_eq!(loader.num_items(), items);
        let mut epoch = loader.iter();
        let progress = epoch.progress();
        assert_eq!((progress.items_processed, progress.items_total), (0, items));
        assert_eq!(epoch.size_hint(), (batches, Some(batches)));
        for batch in 1..=batches {
            epoch.next().unwrap().unwrap();
            let progress = epoch.progress();
            assert_eq!(progress.items_processed, (batch * 16).min(items));
            assert_eq!(progress.items_total, items);
            assert_eq!(progress.is_completed(), batch == batches);
        }
        assert!(epoch.next().is_none() && epoch.next().is_none());
    }
}

#[test]
fn progress_is_complete_where_samples_were_left_out() {
    let samples = from_fn(40, |index, _| match index {
        5 | 39 => Err("broken".into()),
        index => Ok(index as i64),
    });
    let build = |data| {
        DataLoader::builder(data)
            .batch_size(10)
            .on_error(OnError::Skip { at_most: 2 })
            .build()
    };
    let loader = Loader::new(samples, build, |batch, device| {
        Ok(batch.into_burn::<1>(device)?)
    })
    .unwrap()
    .with_device(Device::flex());
    let mut epoch = loader.iter();
    let mut completed = Vec::new();
    while let Some(batch) = epoch.next() {
        batch.unwrap();
        completed.push(epoch.progress().is_completed());
    }
    assert_eq!(completed, [false, false, false, true]);
    assert_eq!(epoch.progress().items_total, 38);
}

#[test]
fn a_slice_has_its_samples_and_keeps_the_options() {
    let loader = loader(50, |builder| builder.num_workers(2));
    let slice = loader.slice(10, 30);
    assert_eq!(
        (features(&*slice), slice.num_items()),
        (expected(10..30), 20)
    );
    let of_slice = slice.slice(5, 8); // of the slice, and not of the whole
    assert_eq!(features(&*of_slice), expected(15..18));
    assert_eq!(loader.slice(7, 7).num_items(), 0);
    assert!(loader.slice(7, 7).iter().next().is_none());
    assert_eq!(features(&loader), expected(0..50)); // the whole is as it was
}

#[test]
fn burns_split_gives_each_sample_once() {
    let loader = loader(50, |builder| builder.shuffle(true).num_workers(1));
    let devices = [Device::flex(), Device::flex(), Device::flex()];
    let parts = split_dataloader(std::sync::Arc::new(loader) as _, &devices);
    let items: Vec<_> = parts.iter().map(|part| part.num_items()).collect();
    assert_eq!(items, [16, 16, 18]);
    for _ in 0..2 {
        // Each on a thread of its own, as with burn's DDP.
        let all: Vec<f32> = std::thread::scope(|scope| {
            let each = parts.iter().map(|part| scope.spawn(|| features(&**part)));
            let each: Vec<_> = each.collect();
            each.into_iter()
                .flat_map(|part| part.join().unwrap())
                .collect()
        });
        assert_eq!(sorted(all), sorted(expected(0..50)));
    }
}

#[test]
fn a_slice_that_cannot_be_is_an_error_where_it_is_iterated() {
    let loader = loader(50, |builder| builder);
    let slice = loader.slice(40, 60);
    assert_eq!(slice.num_items(), 20);
    let mut batches = slice.iter();
    let error = batches.next().unwrap().unwrap_err();
    assert!(batches.next().is_none());
    assert!(error.to_string().contains("the samples 40..60"), "{error}");
    assert!(
        error.to_string().contains("index 50 is not below 50"),
        "{error}"
    );
    assert!(matches!(
        ours(&error),
        Error::Slice {
            start: 40,
            end: 60,
            ..
        }
    ));
}

fn ours(error: &DatasetError) -> &Error {
    std::error::Error::source(error)
        .unwrap()
        .downcast_ref()
        .unwrap()
}

#[test]
fn batches_are_made_for_the_loaders_device() {
    let build = |data| DataLoader::builder(data).batch_size(4).build();
    let samples = from_fn(8, |index, _| Ok(index as f32));
    let loader = Loader::new(samples, build, |_: pinfeed::Tensor<f32>, device| {
        Ok(device.clone())
    })
    .unwrap()
    .with_device(crate::net::ndarray());
    let devices = |loader: &dyn BurnLoader<Device>| {
        let devices = loader.iter().map(Result::unwrap);
        devices.collect::<Vec<_>>()
    };
    assert_eq!(
        devices(&loader),
        [crate::net::ndarray(), crate::net::ndarray()]
    );
    let moved = loader.to_device(&Device::flex());
    assert_eq!(devices(&*moved), [Device::flex(), Device::flex()]);
    assert_eq!(devices(&*moved.slice(0, 4)), [Device::flex()]); // a slice stays there
    let autodiff = loader.to_device(&Device::flex().autodiff());
    assert_eq!(devices(&*autodiff)[0], Device::flex().autodiff());
}

#[test]
fn options_that_make_no_sense_are_an_error_at_once() {
    let build = |data| DataLoader::builder(data).batch_size(0).build();
    let samples = from_fn(8, |index, _| Ok(index as f32));
    let error = Loader::new(samples, build, |_: pinfeed::Tensor<f32>, _| Ok(())).unwrap_err();
    assert!(error.to_string().contains("batch_size"), "{error}");
}
