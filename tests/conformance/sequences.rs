//! Padded and packed batches, and batches of optional values, on every path to the device.

use pinfeed::collate::{Collate, Stack};
use pinfeed::dataset::{PackedDataset, PackingStrategy};
use pinfeed::loader::OnError;
use pinfeed::packed::{PackedBatch, PackedRow};
use pinfeed::padded::PaddedTensor;
use pinfeed::rng::RngKey;
use pinfeed::tensor::Element;
use pinfeed::{
    Batch, BoxError, DataLoader, Dataset, DeviceTensor, Padded, SampleRng, Tensor, from_fn,
};

use crate::Test;
use crate::backend::Backend;

pub const TESTS: &[Test] = &[
    (
        "padded_rows_are_the_same_on_every_path",
        padded_rows_are_the_same_on_every_path,
    ),
    (
        "packed_rows_are_the_same_on_every_path",
        packed_rows_are_the_same_on_every_path,
    ),
    (
        "optional_numbers_travel_in_parts",
        optional_numbers_travel_in_parts,
    ),
    (
        "optional_rows_lie_beside_gathered_ones",
        optional_rows_lie_beside_gathered_ones,
    ),
    (
        "padded_batches_without_their_bad_samples_travel_too",
        padded_batches_without_their_bad_samples_travel_too,
    ),
];

fn back<T: Element>(there: &DeviceTensor<T>) -> Tensor<T> {
    there.to_host(true).unwrap().wait().unwrap()
}

/// Gives each batch of three epochs to `check`, by way of the host and of the device, with the number of the batch.
fn on_every_path<S, B>(
    backend: &Backend,
    dataset: impl Dataset<Sample = S> + Clone,
    check: impl Fn(B::OnDevice, usize, usize),
) where
    S: Send + 'static,
    B: Batch,
    Stack: Collate<S, Batch = B>,
{
    let device = &backend.device;
    device.cut_batches_at(4_000, 1_000);
    for (workers, batch_size) in [(0, 12), (1, 7), (4, 12), (2, 1), (3, 61)] {
        for (pin, by_copy) in [(false, false), (true, false), (true, true)] {
            let mut builder = DataLoader::builder(dataset.clone())
                .batch_size(batch_size)
                .num_workers(workers);
            if pin {
                builder = builder.pin_memory(device).pin_by_copy(by_copy);
            }
            let loader = builder.build().unwrap();
            for (number, batch) in loader.epoch(0).enumerate() {
                let there = batch.unwrap().to_device(device, number % 2 == 0);
                check(there.unwrap(), number, batch_size);
            }
            for epoch in 1..3 {
                let batches = loader.epoch(epoch).prefetch_to_device(device, 2);
                for (number, batch) in batches.enumerate() {
                    check(batch.unwrap(), number, batch_size);
                }
            }
        }
    }
    assert_eq!(device.memory().leaked, 0);
}

const LEN: u64 = 61;

fn frames(index: u64) -> Vec<[f32; 5]> {
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
    (0..count).map(|_| [rng.f32(); 5]).collect()
}

fn padded_rows_are_the_same_on_every_path(backend: &Backend) {
    let samples = from_fn(LEN, |index, _| {
        let frames = Padded::from(frames(index))
            .with_value(-1.5)
            .with_multiple_of(4);
        Ok((frames.mask(), index as i64, frames))
    });
    on_every_path::<_, (PaddedTensor<u8>, Tensor<i64>, PaddedTensor<f32>)>(
        backend,
        samples,
        |(mask, indices, padded), number, batch_size| {
            let (values, lengths) = (back(&padded.values), back(&padded.lengths));
            let (mask, indices) = (back(&mask.values), back(&indices));
            let first = (number * batch_size) as u64;
            let samples = (first..LEN).take(batch_size);
            let longest = samples.clone().map(|index| frames(index).len()).max();
            let longest = longest.unwrap().next_multiple_of(4);
            assert_eq!(values.shape()[..], [indices.len(), longest, 5]);
            assert_eq!(
                (padded.len(), padded.padded_len()),
                (indices.len(), longest)
            );
            for (row, index) in samples.enumerate() {
                let mut expected = frames(index);
                let own = expected.len();
                expected.resize(longest, [-1.5; 5]);
                assert_eq!(values.row(row).as_slice(), expected.as_flattened());
                assert_eq!(lengths.as_slice()[row], own as i64);
                let expected = (0..longest).map(|place| u8::from(place < own));
                assert!(mask.row(row).as_slice().iter().copied().eq(expected));
                assert_eq!(indices.as_slice()[row], index as i64);
            }
        },
    );
}

fn packed_rows_are_the_same_on_every_path(backend: &Backend) {
    const N: usize = 40;
    let lengths: Vec<u64> = (0..130).map(|index| index * index % 37).collect();
    let total: u64 = lengths.iter().sum();
    let documents: Vec<Vec<u32>> = (0..)
        .zip(&lengths)
        .map(|(index, length)| {
            (0..*length as u32)
                .map(|place| 1 + 100 * index + place)
                .collect()
        })
        .collect();
    let stream = documents.concat();
    let packed = PackedDataset::new(documents, &lengths, N, PackingStrategy::Concatenated).unwrap();
    let rows: Vec<PackedRow<u32>> = (0..packed.len())
        .map(|row| {
            packed
                .get(
                    row,
                    &mut SampleRng::for_sample(RngKey {
                        seed: 0,
                        epoch: 0,
                        position: 0,
                    }),
                )
                .unwrap()
        })
        .collect();
    on_every_path::<_, PackedBatch<u32>>(
        backend,
        std::sync::Arc::new(packed),
        |batch, number, batch_size| {
            let rows = rows.iter().skip(number * batch_size).take(batch_size);
            let (tokens, mask) = (back(&batch.tokens), back(&batch.mask));
            let (places, ids) = (back(&batch.cu_seqlens), back(&batch.segment_ids));
            let positions = back(&batch.position_ids);
            let from = number * batch_size * N;
            let real = (total as usize - from).min(batch_size * N);
            assert_eq!(tokens.as_slice()[..real], stream[from..from + real]);
            assert!(tokens.as_slice()[real..].iter().all(|token| *token == 0));
            let expected = (0..tokens.len()).map(|place| u8::from(place < real));
            assert!(mask.as_slice().iter().copied().eq(expected));
            let mut lengths: Vec<usize> = rows.flat_map(|row| row.lengths.clone()).collect();
            let numbers = places.as_slice().windows(2);
            let found: Vec<usize> = numbers.map(|pair| (pair[1] - pair[0]) as usize).collect();
            lengths.extend(Some(tokens.len() - real).filter(|padding| *padding > 0));
            assert_eq!((places.as_slice()[0], &found), (0, &lengths));
            assert_eq!(batch.max_seqlen, lengths.into_iter().max().unwrap());
            for pair in places.as_slice().windows(2) {
                let (start, end) = (pair[0] as usize, pair[1] as usize);
                let places = positions.as_slice()[start..end].iter().copied();
                assert!(places.eq(0..(end - start) as i64));
                let ids = &ids.as_slice()[start..end];
                assert!(ids.iter().all(|id| *id == ids[0]) && (ids[0] == 0) == (start >= real));
            }
        },
    );
}

fn weight(index: u64) -> Option<f32> {
    (index % 3 != 1).then_some(index as f32)
}

fn pose(index: u64) -> Option<[i64; 40]> {
    (index % 5 == 2).then_some([index as i64; 40])
}

fn optional_numbers_travel_in_parts(backend: &Backend) {
    type Sample = (Option<f32>, Option<[i64; 40]>);
    type Optional<T> = (Tensor<T>, Tensor<u8>);
    const { assert!(<Stack as Collate<Sample>>::IN_PARTS) };
    let samples = from_fn(LEN, |index, _| Ok((weight(index), pose(index))));
    on_every_path::<_, (Optional<f32>, Optional<i64>)>(
        backend,
        samples,
        |((weights, a), (poses, b)), number, batch_size| {
            let first = (number * batch_size) as u64;
            let (weights, poses) = (back(&weights), back(&poses));
            let (a, b) = (back(&a), back(&b));
            for (row, index) in (first..LEN).take(batch_size).enumerate() {
                let expected = weight(index).unwrap_or_default();
                assert_eq!(weights.as_slice()[row], expected, "{index}");
                let expected = pose(index).unwrap_or([0; 40]);
                assert_eq!(poses.row(row).as_slice(), expected, "{index}");
                let present = (weight(index).is_some(), pose(index).is_some());
                assert_eq!((a.as_slice()[row] == 1, b.as_slice()[row] == 1), present);
            }
        },
    );
}

/// Rows of registered memory stay where they lie; where a sample has none, the device gathers zeros.
fn optional_rows_lie_beside_gathered_ones(backend: &Backend) {
    const PIXELS: usize = 20_000;
    let device = &backend.device;
    let pixels: Vec<u8> = (0..30 * PIXELS)
        .map(|place| (place / 7) as u8 | 1)
        .collect();
    let images = Tensor::from_vec(pixels.clone(), &[30, PIXELS]).unwrap();
    let images = images.register(device).unwrap();
    let dataset = pinfeed::TensorDataset::new(images).unwrap();
    let dataset = dataset.map(|image, rng| Ok(rng.bool(0.6).then_some(image)));
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
            let (images, mask) = batch.unwrap();
            let (images, mask) = (back(&images), back(&mask));
            for (row, has) in mask.as_slice().iter().enumerate() {
                let index = number * 8 + row;
                let expected = SampleRng::for_sample(RngKey {
                    seed: 5,
                    epoch,
                    position: index as u64,
                })
                .bool(0.6);
                assert_eq!(*has == 1, expected);
                let expected = match expected {
                    true => &pixels[index * PIXELS..][..PIXELS],
                    false => &[0; PIXELS],
                };
                assert!(images.row(row).as_slice() == expected, "{index}");
            }
        }
    }
}

fn padded_batches_without_their_bad_samples_travel_too(backend: &Backend) {
    let device = &backend.device;
    for on_error in [
        OnError::Skip { at_most: 9 },
        OnError::Replace { at_most: 9 },
    ] {
        let samples = from_fn(LEN, |index, _| match index % 25 {
            7 => Err::<_, BoxError>("it is broken".into()),
            _ => Ok((index as i64, Padded::from(frames(index)))),
        });
        let loader = DataLoader::builder(samples)
            .batch_size(10)
            .shuffle(true)
            .num_workers(3)
            .on_error(on_error)
            .pin_memory(device)
            .build()
            .unwrap();
        for epoch in loader.epochs(0..3).prefetch_to_device(device, 2) {
            let mut rows = 0;
            for batch in epoch {
                let (indices, padded) = batch.unwrap();
                let (indices, values) = (back(&indices), back(&padded.values));
                let samples = indices.as_slice().iter().map(|index| frames(*index as u64));
                let samples: Vec<_> = samples.collect();
                let longest = samples.iter().map(Vec::len).max().unwrap();
                assert_eq!(values.shape()[..], [indices.len(), longest, 5]);
                for (row, mut expected) in samples.into_iter().enumerate() {
                    expected.resize(longest, [0.0; 5]);
                    assert_eq!(values.row(row).as_slice(), expected.as_flattened());
                }
                rows += indices.len() as u64;
            }
            let skips = matches!(on_error, OnError::Skip { .. });
            assert_eq!(rows, if skips { LEN - 3 } else { LEN });
        }
    }
}
