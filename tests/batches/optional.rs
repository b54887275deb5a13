//! Samples that may be `None`: their batches have zeros there, and say so.

#![cfg(feature = "derive")]

use pinfeed::collate::{Collate, Stack};
use pinfeed::error::CollateError;
use pinfeed::loader::OnError;
use pinfeed::{Batch, BoxError, DataLoader, Dataset, Device, Error, Sample, Tensor, from_fn};

/// Whether a sample has its value.
fn has(index: u64) -> bool {
    !index.is_multiple_of(3)
}

#[derive(Sample)]
struct Patient {
    id: i64,
    age: Option<f32>,
    visits: Option<u64>,
    smokes: Option<bool>,
    pose: Option<[[f32; 2]; 2]>,
    scan: Option<Tensor<u8>>,
    history: Option<Vec<i64>>,
    note: Option<String>,
}

fn patients() -> impl Dataset<Sample = Patient> {
    from_fn(90, |index, _| {
        let scan = Tensor::from_vec(vec![index as u8; 6], &[2, 3])?;
        Ok(Patient {
            id: index as i64,
            age: has(index).then_some(index as f32),
            visits: has(index + 1).then_some(index),
            smokes: has(index).then_some(true),
            pose: has(index + 2).then_some([[1.0, 2.0], [3.0, index as f32]]),
            scan: has(index).then_some(scan),
            history: has(index).then(|| vec![index as i64; 4]),
            note: has(index).then(|| index.to_string()),
        })
    })
}

/// Checks a column: the values, and the mask.
fn check<T: pinfeed::tensor::Element>(
    (values, mask): &(Tensor<T>, Tensor<u8>),
    ids: &[i64],
    expected: impl Fn(u64) -> Option<Vec<T>>,
    shape: &[usize],
) {
    assert_eq!(values.shape()[..], [&[ids.len()], shape].concat());
    assert_eq!(mask.shape()[..], [ids.len()]);
    for (row, id) in ids.iter().enumerate() {
        let expected = expected(*id as u64);
        assert_eq!(mask.as_slice()[row], u8::from(expected.is_some()), "{id}");
        let zeros = vec![T::default(); shape.iter().product()];
        assert_eq!(
            values.row(row).as_slice(),
            expected.unwrap_or(zeros),
            "{id}"
        );
    }
}

#[test]
fn where_there_is_no_value_are_zeros_and_the_mask_says_so() {
    let device = Device::cpu();
    for (workers, pin) in [(0, false), (0, true), (4, false), (4, true)] {
        let mut builder = DataLoader::builder(patients())
            .batch_size(20)
            .shuffle(true)
            .num_workers(workers);
        if pin {
            builder = builder.pin_memory(&device);
        }
        let loader = builder.build().unwrap();
        // In the second epoch, slabs hold what the first one left there.
        for epoch in 0..2 {
            for batch in loader.epoch(epoch) {
                let batch: PatientBatch = batch.unwrap();
                let ids = batch.id.to_vec();
                check(&batch.age, &ids, |id| has(id).then(|| vec![id as f32]), &[]);
                let visits = |id| has(id + 1).then(|| vec![id as i64]);
                check(&batch.visits, &ids, visits, &[]);
                check(&batch.smokes, &ids, |id| has(id).then(|| vec![1]), &[]);
                let pose = |id| has(id + 2).then(|| vec![1.0, 2.0, 3.0, id as f32]);
                check(&batch.pose, &ids, pose, &[2, 2]);
                let scan = |id| has(id).then(|| vec![id as u8; 6]);
                check(&batch.scan, &ids, scan, &[2, 3]);
                let history = |id| has(id).then(|| vec![id as i64; 4]);
                check(&batch.history, &ids, history, &[4]);
                for (id, note) in ids.iter().zip(&batch.note) {
                    assert_eq!(note.is_some(), has(*id as u64));
                }
                let there: PatientDeviceBatch = batch.to_device(&device, true).unwrap();
                let (ages, known) = there.age;
                let back = |tensor: pinfeed::DeviceTensor<f32>| {
                    tensor.to_host(true).unwrap().wait().unwrap()
                };
                let known = known.to_host(true).unwrap().wait().unwrap();
                check(
                    &(back(ages), known),
                    &ids,
                    |id| has(id).then(|| vec![id as f32]),
                    &[],
                );
            }
        }
    }
}

/// What tells its shape by its type is planned from one sample, and large batches of it travel in parts.
#[test]
fn numbers_and_arrays_are_as_quick_as_without_an_option() {
    const fn in_parts<S: Sample<Batch: Batch>>() -> bool {
        <Stack as Collate<S>>::IN_PARTS
    }
    const { assert!(in_parts::<(Option<f32>, Option<[u64; 3]>, Option<bool>)>()) };
    const { assert!(!Option::<Tensor<u8>>::ALIKE && !Option::<Vec<f32>>::ALIKE) };
}

#[test]
fn numbers_and_arrays_may_all_be_none() {
    let samples = from_fn(3, |_, _| Ok((None::<f32>, None::<[i32; 2]>)));
    let loader = DataLoader::builder(samples).batch_size(3).build().unwrap();
    let ((numbers, a), (arrays, b)) = loader.epoch(0).next().unwrap().unwrap();
    assert_eq!((numbers.as_slice(), arrays.shape()[1]), (&[0.0; 3][..], 2));
    assert_eq!((a.as_slice(), b.as_slice()), (&[0; 3][..], &[0; 3][..]));
}

/// A batch of tensors of which there is none has no shape. The batches around it are what they are.
#[test]
fn tensors_that_are_all_none_are_an_error_of_their_batch() {
    let samples = from_fn(12, |index, _| {
        let scan = (index / 4 != 1 && index % 4 != 0).then(|| Tensor::<f32>::zeros(&[2, 5]));
        Ok((index as i64, scan))
    });
    for workers in [0, 1, 4] {
        let loader = DataLoader::builder(samples.clone())
            .batch_size(4)
            .num_workers(workers)
            .pin_memory(&Device::cpu())
            .build()
            .unwrap();
        for epoch in 0..2 {
            let batches: Vec<_> = loader.epoch(epoch).collect();
            let Err(error @ Error::Collate(misfit)) = &batches[1] else {
                panic!("a shape was made up");
            };
            let text = error.to_string();
            assert!(matches!(
                misfit.source,
                CollateError::AllNone { field: "1" }
            ));
            assert!(
                text.contains("field `1`: all samples of the batch are `None`"),
                "{text}"
            );
            for batch in [&batches[0], &batches[2]] {
                let (_, (scans, mask)) = batch.as_ref().unwrap();
                assert_eq!(scans.shape()[..], [4, 2, 5]);
                assert_eq!(mask.as_slice(), [0, 1, 1, 1]);
            }
        }
    }
}

#[test]
fn values_of_another_shape_are_refused() {
    let samples = from_fn(4, |index, _| {
        Ok((index > 0).then(|| vec![1.0f32; 2 + index as usize / 3]))
    });
    let loader = DataLoader::builder(samples).batch_size(4).build().unwrap();
    let Err(Error::Collate(misfit)) = loader.epoch(0).next().unwrap() else {
        panic!("it was not refused");
    };
    assert_eq!((misfit.sample.index, misfit.sample.row), (3, 3));

    let samples = from_fn(2, |index, _| Ok((index > 0).then_some(u64::MAX)));
    let loader = DataLoader::builder(samples).batch_size(2).build().unwrap();
    let error = loader.epoch(0).next().unwrap().unwrap_err().to_string();
    assert!(error.contains("does not fit into an i64"), "{error}");
}

/// A sample that is left out or replaced leaves its row to the others, whether it is planned from one sample or from all.
#[test]
fn bad_samples_leave_nothing_behind() {
    for on_error in [
        OnError::Skip { at_most: 50 },
        OnError::Replace { at_most: 50 },
    ] {
        for workers in [0, 4] {
            let samples = from_fn(60, |index, _| match index % 7 {
                5 => Err::<_, BoxError>("it is broken".into()),
                _ => {
                    let scan = has(index).then(|| Tensor::from(vec![index as f32; 3]));
                    Ok((index as i64, has(index).then_some(index as f32), scan))
                }
            });
            let loader = DataLoader::builder(samples)
                .batch_size(10)
                .num_workers(workers)
                .on_error(on_error)
                .build()
                .unwrap();
            for epoch in 0..2 {
                for batch in loader.epoch(epoch) {
                    let (ids, numbers, scans) = batch.unwrap();
                    let ids = ids.to_vec();
                    check(&numbers, &ids, |id| has(id).then(|| vec![id as f32]), &[]);
                    check(&scans, &ids, |id| has(id).then(|| vec![id as f32; 3]), &[3]);
                }
            }
        }
    }
}

/// Rows of registered memory stay where they lie; where a sample has none, the device gathers zeros.
#[test]
fn missing_rows_lie_beside_gathered_ones() {
    const PIXELS: usize = 20_000;
    let device = Device::cpu();
    let pixels: Vec<u8> = (0..20 * PIXELS).map(|at| (at / 7) as u8 | 1).collect();
    let images = Tensor::from_vec(pixels.clone(), &[20, PIXELS]).unwrap();
    let images = pinfeed::TensorDataset::new(images.register(&device).unwrap()).unwrap();
    let samples = images.map(|image, rng| Ok(rng.bool(0.7).then_some(image)));
    let loader = DataLoader::builder(samples)
        .batch_size(5)
        .num_workers(2)
        .seed(5)
        .pin_memory(&device)
        .build()
        .unwrap();
    for epoch in 0..3 {
        for (number, batch) in loader
            .epoch(epoch)
            .prefetch_to_device(&device, 1)
            .enumerate()
        {
            let (images, mask) = batch.unwrap();
            let images = images.to_host(true).unwrap().wait().unwrap();
            let mask = mask.to_host(true).unwrap().wait().unwrap();
            for row in 0..5 {
                let index = number * 5 + row;
                let given = pinfeed::SampleRng::for_sample(pinfeed::rng::RngKey {
                    seed: 5,
                    epoch,
                    position: index as u64,
                })
                .bool(0.7);
                assert_eq!(mask.as_slice()[row], u8::from(given));
                let expected = match given {
                    true => &pixels[index * PIXELS..][..PIXELS],
                    false => &[0; PIXELS],
                };
                assert!(images.row(row).as_slice() == expected, "{index}");
            }
        }
    }
}
