//! Derived batches: what a `collate_fn` gives, pinned and on a device.

#![cfg(feature = "derive")]

use pinfeed::collate::Arena;
use pinfeed::ragged::RaggedTensor;
use pinfeed::tensor::Element;
use pinfeed::{
    Batch, BoxError, DataLoader, Device, DeviceTensor, Error, Host, Ragged, Tensor, from_fn,
};

/// Tensors of several types, among them some of one type, built in the arena and elsewhere.
#[derive(Debug, Batch)]
struct Mixed {
    images: Tensor<u8>,
    labels: Tensor<i64>,
    weights: Tensor<f32>,
    boxes: RaggedTensor<f32>,
    more_labels: Tensor<i64>,
    names: Vec<String>,
    #[pinfeed(host)]
    count: usize,
    note: Host<&'static str>,
    pair: Pair<u16>,
}

/// In another batch, with a parameter.
#[derive(Debug, Batch)]
#[pinfeed(on_device = "PairThere")]
struct Pair<T: Element>(Tensor<T>, pub Vec<T>);

fn collate(samples: Vec<i64>, arena: &mut Arena) -> Result<Mixed, BoxError> {
    let count = samples.len();
    let all = |add: i64| samples.iter().map(move |sample| sample + add);
    let boxes = samples
        .iter()
        .map(|sample| Ragged::from(vec![[*sample as f32; 4]; *sample as usize % 3]));
    Ok(Mixed {
        images: arena.collate(all(0).map(|sample| [sample as u8; 3]).collect())?,
        // Built elsewhere: the pin thread moves it.
        labels: Tensor::from(all(100).collect::<Vec<_>>()),
        weights: arena.collate(all(0).map(|sample| sample as f32 / 2.0).collect())?,
        boxes: arena.collate(boxes.collect())?,
        more_labels: Tensor::from(all(200).collect::<Vec<_>>()),
        names: all(0).map(|sample| sample.to_string()).collect(),
        count,
        note: Host("a note"),
        pair: Pair(
            Tensor::from(all(300).map(|sample| sample as u16).collect::<Vec<_>>()),
            vec![7],
        ),
    })
}

fn values<T: Element>(tensor: &DeviceTensor<T>) -> Vec<T> {
    tensor.to_host(false).unwrap().wait().unwrap().to_vec()
}

#[test]
fn every_tensor_arrives_where_it_belongs() {
    let device = Device::cpu();
    for (workers, pin) in [(0, false), (0, true), (2, false), (2, true)] {
        let samples: Vec<i64> = (0..30).collect();
        let builder = DataLoader::builder(samples)
            .batch_size(10)
            .num_workers(workers);
        let builder = match pin {
            true => builder.pin_memory(&device),
            false => builder,
        };
        let loader = builder.collate_fn(collate).build().unwrap();
        for epoch in 0..2 {
            for (number, batch) in loader.epoch(epoch).enumerate() {
                let batch: Mixed = batch.unwrap();
                if pin {
                    assert!(batch.images.is_pinned() && batch.labels.is_pinned());
                    assert!(batch.boxes.values.is_pinned() && batch.pair.0.is_pinned());
                }
                let batch: MixedOnDevice = batch.to_device(&device, true).unwrap();
                let all: Vec<i64> = (0..10).map(|row| 10 * number as i64 + row).collect();
                let plus = |add: i64| all.iter().map(|sample| sample + add).collect::<Vec<_>>();
                assert_eq!(batch.images.shape()[..], [10, 3]);
                assert_eq!(values(&batch.images)[29], all[9] as u8);
                assert_eq!(values(&batch.labels), plus(100));
                assert_eq!(values(&batch.weights)[9], all[9] as f32 / 2.0);
                assert_eq!(values(&batch.more_labels), plus(200));
                assert_eq!(batch.names[9], all[9].to_string());
                let boxes: Vec<_> = all
                    .iter()
                    .flat_map(|sample| vec![*sample as f32; 4 * (*sample as usize % 3)])
                    .collect();
                assert_eq!(values(&batch.boxes.values), boxes);
                assert_eq!((batch.count, batch.note.0), (10, "a note"));
                let PairThere(first, second) = &batch.pair;
                assert_eq!(values(first)[9], all[9] as u16 + 300);
                assert_eq!(*second, [7]);
            }
        }
    }
}

#[test]
fn the_batch_on_the_device_is_shown_by_its_own_name() {
    let batch = Pair(Tensor::from(vec![1u8]), vec![2]);
    let shown = format!("{:?}", batch.to_device(&Device::cpu(), true).unwrap());
    assert!(shown.starts_with("PairThere { 0: DeviceTensor"), "{shown}");
}

/// One value for the batch, in a tuple.
#[test]
fn a_host_value_is_a_batch() {
    let collate = |samples: Vec<i64>, arena: &mut Arena| {
        let count = samples.len();
        Ok((arena.collate(samples)?, Host(count)))
    };
    let loader = DataLoader::builder(vec![1i64, 2, 3]).batch_size(3);
    let loader = loader.collate_fn(collate).build().unwrap();
    let batch = loader.epoch(0).next().unwrap().unwrap();
    let (numbers, Host(count)) = batch.to_device(&Device::cpu(), true).unwrap();
    assert_eq!((values(&numbers), count), (vec![1, 2, 3], 3));
}

/// What `collate` makes is what the loader makes, with as many bytes page-locked: in the arena from the second batch on.
#[test]
fn a_collate_fn_stacks_as_the_loader_does() {
    let sample = |index: u64| {
        let boxes = Ragged::from(vec![[index as f32; 2]; index as usize % 4]);
        (
            Tensor::from(vec![index as u8; 300]),
            boxes,
            index,
            index.to_string(),
        )
    };
    let device = Device::cpu();
    for workers in [0, 2] {
        let builder = || {
            DataLoader::builder(from_fn(40, move |index, _| Ok(sample(index))))
                .batch_size(8)
                .shuffle(true)
                .num_workers(workers)
                .pin_memory(&device)
        };
        let stacked = builder().build().unwrap();
        let function = builder().collate_fn(|samples, arena| Ok(arena.collate(samples)?));
        let function = function.build().unwrap();
        for (one, other) in stacked.epoch(0).zip(function.epoch(0)) {
            let (one, other) = (one.unwrap(), other.unwrap());
            assert!(other.0.is_pinned() && other.1.values.is_pinned() && other.2.is_pinned());
            assert_eq!(one, other);
        }
    }
}

#[test]
fn what_is_left_out_leaves_a_smaller_batch() {
    let collate = |samples: Vec<(i64, [f32; 2])>, arena: &mut Arena| {
        let kept = samples.into_iter().filter(|(label, _)| label % 2 == 0);
        Ok(arena.collate(kept.collect())?)
    };
    let samples: Vec<_> = (0..7).map(|label| (label, [0.5; 2])).collect();
    let loader = DataLoader::builder(samples).batch_size(7);
    let loader = loader.collate_fn(collate).build().unwrap();
    let (labels, values) = loader.epoch(0).next().unwrap().unwrap();
    assert_eq!(labels.as_slice(), [0, 2, 4, 6]);
    assert_eq!(values.shape()[..], [4, 2]);

    let nothing = DataLoader::builder(vec![1i64])
        .collate_fn(|_, arena| Ok(arena.collate(Vec::<(i64, String)>::new())?));
    let (numbers, strings) = nothing.build().unwrap().epoch(0).next().unwrap().unwrap();
    assert!(numbers.is_empty() && strings.is_empty());
}

#[test]
fn a_sample_that_does_not_fit_is_named_by_its_place_and_field() {
    let collate = |samples: Vec<Vec<f32>>, arena: &mut Arena| {
        let numbered = samples.into_iter().map(|sample| (1i64, sample));
        Ok(arena.collate(numbered.collect())?)
    };
    let mut samples = vec![vec![0.0; 3]; 6];
    samples[4] = vec![0.0; 2];
    let loader = DataLoader::builder(samples).batch_size(6);
    let loader = loader.collate_fn(collate).build().unwrap();
    for epoch in 0..2 {
        let error = loader.epoch(epoch).next().unwrap().unwrap_err();
        let Error::CollateFn { source, .. } = &error else {
            panic!("{error}")
        };
        let ours = source.downcast_ref::<Error>().unwrap();
        assert!(matches!(ours, Error::Stack(misfit) if misfit.place == 4));
        let said = "of 6 samples to stack, number 4 does not fit the others, whose layout was planned from number 0: \
                    field `1`: its shape is [2], and the batch's rows are [3]";
        assert!(ours.to_string().starts_with(said), "{ours}");
        assert!(error.to_string().contains(said), "{error}");
    }
}
