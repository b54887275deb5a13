//! Ragged batches: samples of as many rows as each has, on every path to the device.

use pinfeed::collate::{Collate, Stack};
use pinfeed::ragged::{RaggedDeviceTensor, RaggedTensor};
use pinfeed::rng::RngKey;
use pinfeed::{
    Batch, DataLoader, Dataset, Error, Ragged, SampleRng, Tensor, TensorDataset, from_fn,
};

use crate::Test;
use crate::backend::Backend;

pub const TESTS: &[Test] = &[
    (
        "ragged_rows_are_the_same_on_every_path",
        ragged_rows_are_the_same_on_every_path,
    ),
    (
        "ragged_batches_lie_beside_gathered_rows",
        ragged_batches_lie_beside_gathered_rows,
    ),
    (
        "ragged_rows_of_another_shape_are_refused",
        ragged_rows_of_another_shape_are_refused,
    ),
];

const LEN: u64 = 61;

type Boxes = Vec<[f32; 4]>;

/// None at all of some, many of others; of a dozen in a row, none.
fn boxes(index: u64) -> Boxes {
    let mut rng = SampleRng::for_sample(RngKey {
        seed: 3,
        epoch: 0,
        position: index,
    });
    let count = match index {
        24..36 => 0,
        7 => 200,
        _ => rng.below(6),
    };
    let sides = |_| [rng.f32(), rng.f32(), rng.f32(), index as f32];
    (0..count).map(sides).collect()
}

fn image(index: u64) -> Vec<u8> {
    (0..600).map(|place| (place + index * 7) as u8).collect()
}

fn samples() -> impl Dataset<Sample = (Ragged<f32>, Tensor<u8>, Ragged<i64>, String)> {
    from_fn(LEN, |index, _| {
        let words: Vec<i64> = (0..index as i64 % 4).collect();
        let image = Tensor::from_vec(image(index), &[10, 60])?;
        Ok((
            Ragged::from(boxes(index)),
            image,
            Ragged::from(words),
            format!("{index}.jpg"),
        ))
    })
}

type Here = (
    RaggedTensor<f32>,
    Tensor<u8>,
    RaggedTensor<i64>,
    Vec<String>,
);

fn check_here((found, images, words, names): &Here, first: u64) {
    let count = names.len();
    assert_eq!((found.len(), words.len()), (count, count));
    for (row, index) in (first..).take(count).enumerate() {
        assert_eq!(found.row(row), boxes(index).concat(), "sample {index}");
        assert_eq!(images.row(row).as_slice(), image(index));
        let expected: Vec<i64> = (0..index as i64 % 4).collect();
        assert_eq!(words.row(row), expected);
        assert_eq!(names[row], format!("{index}.jpg"));
    }
}

/// Brings a batch back, by its parts.
fn back<T: pinfeed::tensor::Element>(there: &RaggedDeviceTensor<T>) -> RaggedTensor<T> {
    let (values, offsets) = (there.values.to_host(true), there.offsets.to_host(true));
    let back = RaggedTensor {
        values: values.unwrap().wait().unwrap(),
        offsets: offsets.unwrap().wait().unwrap(),
    };
    assert_eq!(
        (back.len(), back.is_empty()),
        (there.len(), there.is_empty())
    );
    back
}

fn check_there(there: <Here as Batch>::OnDevice, first: u64) {
    let (found, images, words, names) = there;
    let images = images.to_host(true).unwrap().wait().unwrap();
    check_here(&(back(&found), images, back(&words), names), first);
}

fn ragged_rows_are_the_same_on_every_path(backend: &Backend) {
    let device = &backend.device;
    // Batches this small are cut where they can be: these cannot.
    device.cut_batches_at(4_000, 1_000);
    type Sample = (Ragged<f32>, Tensor<u8>, Ragged<i64>, String);
    const { assert!(!<Stack as Collate<Sample>>::IN_PARTS) };
    for (workers, batch_size) in [(0, 12), (1, 7), (4, 12), (2, 1), (3, 61)] {
        for (pin, by_copy) in [(false, false), (true, false), (true, true)] {
            let mut builder = DataLoader::builder(samples())
                .batch_size(batch_size)
                .num_workers(workers);
            if pin {
                builder = builder.pin_memory(device).pin_by_copy(by_copy);
            }
            let loader = builder.build().unwrap();
            let first = |number: usize| (number * batch_size) as u64;
            for (number, batch) in loader.epoch(0).enumerate() {
                let batch: Here = batch.unwrap();
                assert_eq!(batch.0.offsets.is_pinned(), pin);
                check_here(&batch, first(number));
                let there = batch.to_device(device, number % 2 == 0);
                check_there(there.unwrap(), first(number));
            }
            for epoch in 1..3 {
                let batches = loader.epoch(epoch).prefetch_to_device(device, 2);
                for (number, batch) in batches.enumerate() {
                    check_there(batch.unwrap(), first(number));
                }
                let copies = loader.stats().transfers.count as usize;
                assert!(
                    !pin || copies == loader.len(),
                    "{copies} copies, not one a batch"
                );
            }
        }
    }
    assert_eq!(device.memory().leaked, 0);
}

/// Rows of registered memory stay where they lie, in the batch whose boxes are written into the slab.
fn ragged_batches_lie_beside_gathered_rows(backend: &Backend) {
    const PIXELS: usize = 20_000;
    let device = &backend.device;
    let pixels: Vec<u8> = (0..30 * PIXELS).map(|place| (place / 7) as u8).collect();
    let images = Tensor::from_vec(pixels.clone(), &[30, PIXELS]).unwrap();
    let images = images.register(device).unwrap();
    let dataset = TensorDataset::new(images).unwrap();
    let dataset = dataset.map(|image, rng| Ok((image, Ragged::from(boxes(rng.below(LEN))))));
    let loader = DataLoader::builder(dataset)
        .batch_size(8)
        .num_workers(2)
        .seed(5)
        .pin_memory(device)
        .build()
        .unwrap();
    for epoch in 0..3 {
        let batches = loader.epoch(epoch).prefetch_to_device(device, 1);
        for (number, batch) in batches.enumerate() {
            let (images, found) = batch.unwrap();
            let images = images.to_host(true).unwrap().wait().unwrap();
            let (found, first) = (back(&found), number * 8);
            assert!(images.as_slice() == &pixels[first * PIXELS..][..images.len()]);
            for (position, found) in (first as u64..).zip(found.rows()) {
                let index = SampleRng::for_sample(RngKey {
                    seed: 5,
                    epoch,
                    position,
                })
                .below(LEN);
                assert_eq!(found, boxes(index).concat());
            }
        }
    }
}

fn ragged_rows_of_another_shape_are_refused(backend: &Backend) {
    let samples = from_fn(20, |index, _| {
        let width = if index == 13 { 5 } else { 4 };
        let boxes = Tensor::<f32>::zeros(&[index as usize % 3, width]);
        Ok((index as i64, Ragged::new(boxes)?))
    });
    for workers in [0, 2] {
        let loader = DataLoader::builder(samples.clone())
            .batch_size(10)
            .num_workers(workers)
            .pin_memory(&backend.device)
            .build()
            .unwrap();
        let mut batches = loader.epoch(0).prefetch_to_device(&backend.device, 1);
        assert_eq!(batches.next().unwrap().unwrap().1.len(), 10);
        let Some(Err(Error::Collate(misfit))) = batches.next() else {
            panic!("a row of five numbers came among rows of four");
        };
        assert_eq!((misfit.sample.index, misfit.sample.row), (13, 3));
        let reason = misfit.source.to_string();
        assert!(reason.contains("field `1`: its shape is [5]"), "{reason}");
    }
}
