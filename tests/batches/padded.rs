//! Padded batches are as long as their longest sample, whoever made them, and hold nothing of the batch before.
#![cfg(not(miri))] // it takes many loaders

use pinfeed::loader::OnError;
use pinfeed::padded::PaddedTensor;
use pinfeed::{BoxError, DataLoader, Dataset, Device, Error, Padded, Tensor, from_fn};
use proptest::prelude::*;
use serde_json::Value;

/// A loader of one batch of these samples.
fn batch_of(
    count: usize,
    sample: impl Fn(usize) -> Padded<f32> + Send + Sync + 'static,
) -> Result<PaddedTensor<f32>, Error> {
    let samples = from_fn(count as u64, move |index, _| Ok(sample(index as usize)));
    let loader = DataLoader::builder(samples).batch_size(count).build()?;
    loader.epoch(0).next().unwrap()
}

/// `pad_sequence(.., batch_first=True, padding_value=..)`, see `fixtures/padding.py`.
#[test]
fn batches_are_those_of_pytorch() {
    let table: Value = serde_json::from_str(include_str!("../fixtures/padding.json")).unwrap();
    let numbers = |of: &Value| -> Vec<usize> {
        let numbers = of.as_array().unwrap().iter();
        numbers.map(|n| n.as_u64().unwrap() as usize).collect()
    };
    let cases = table["padded"].as_array().unwrap();
    assert_eq!(cases.len(), 60);
    for case in cases {
        let (lengths, row) = (numbers(&case["lengths"]), numbers(&case["row"]));
        let value = case["value"].as_f64().unwrap() as f32;
        let of = lengths.clone();
        let batch = batch_of(lengths.len(), move |index| {
            let shape: Vec<usize> = [of[index]].into_iter().chain(row.clone()).collect();
            let elements = shape.iter().product::<usize>();
            let rows = (0..elements).map(|at| (100 * index + at) as f32).collect();
            let rows = Tensor::from_vec(rows, &shape).unwrap();
            Padded::new(rows).unwrap().with_value(value)
        });
        let batch = batch.unwrap();
        assert_eq!(batch.values.shape()[..], numbers(&case["shape"]), "{case}");
        let expected = case["padded"].as_array().unwrap().iter();
        let expected: Vec<f32> = expected.map(|x| x.as_f64().unwrap() as f32).collect();
        assert_eq!(batch.values.as_slice(), expected, "{case}");
        let lengths: Vec<i64> = lengths.iter().map(|length| *length as i64).collect();
        assert_eq!(batch.lengths.as_slice(), lengths, "{case}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn a_padded_batch_is_its_samples_and_padding(
        samples in prop::collection::vec(prop::collection::vec(any::<[i16; 2]>(), 0..20), 0..40),
        batch_size in 1..12usize,
        workers in prop::sample::select(vec![0, 1, 4]),
        multiple in 0..9usize,
        value: i16,
        pin: bool,
    ) {
        let expected = samples.clone();
        let dataset = from_fn(samples.len(), move |index, _| {
            let rows = Padded::from(samples[index as usize].clone());
            let rows = rows.with_value(value).with_multiple_of(multiple);
            Ok((index as i64, rows.mask(), rows))
        });
        let device = Device::cpu();
        let mut builder = DataLoader::builder(dataset)
            .batch_size(batch_size)
            .num_workers(workers);
        if pin {
            builder = builder.pin_memory(&device);
        }
        let loader = builder.build().unwrap();
        // The second epoch's slabs are full of the first one's rows.
        for epoch in 0..2 {
            let mut batches = 0;
            for (batch, expected) in loader.epoch(epoch).zip(expected.chunks(batch_size)) {
                let (numbers, mask, batch) = batch.unwrap();
                let longest = expected.iter().map(Vec::len).max().unwrap();
                let longest = longest.next_multiple_of(multiple.max(1));
                prop_assert_eq!(&batch.values.shape()[..], [expected.len(), longest, 2]);
                prop_assert_eq!((batch.len(), numbers.len()), (expected.len(), expected.len()));
                prop_assert_eq!(batch.padded_len(), longest);
                prop_assert_eq!(batch.values.is_pinned(), pin);
                let mut padded = expected.to_vec();
                padded.iter_mut().for_each(|rows| rows.resize(longest, [value; 2]));
                let padded = padded.concat();
                prop_assert_eq!(batch.values.as_slice(), padded.as_flattened());
                let rows: Vec<Vec<[i16; 2]>> = batch
                    .rows()
                    .map(|row| row.as_chunks().0.to_vec())
                    .collect();
                prop_assert_eq!(&rows, expected);
                prop_assert_eq!(&batch.mask(), &mask.values);
                let own = |mask: &[u8]| mask.iter().map(|own| i64::from(*own)).sum::<i64>();
                let counts: Vec<i64> = mask.values.as_slice().chunks(longest.max(1)).map(own).collect();
                if longest > 0 {
                    prop_assert_eq!(batch.lengths.as_slice(), counts);
                }
                batches += 1;
            }
            prop_assert_eq!(batches, expected.len().div_ceil(batch_size));
        }
    }
}

#[test]
fn samples_padded_otherwise_are_refused() {
    let refusal = |sample: fn(usize) -> Padded<f32>| {
        let Err(Error::Collate(misfit)) = batch_of(4, sample) else {
            panic!("it was not refused");
        };
        (misfit.sample.index, misfit.source.to_string())
    };
    let (index, said) = refusal(|index| {
        let value = if index == 2 { 0.0 } else { -100.0 };
        Padded::from(vec![1.0; index]).with_value(value)
    });
    assert_eq!(
        (index, said.as_str()),
        (
            2,
            "it is padded with 0.0, and the first sample of its batch with -100.0: pad all samples alike"
        )
    );
    let (index, said) = refusal(|index| Padded::from(vec![1.0; 9]).with_multiple_of(8 + index / 3));
    assert_eq!(index, 3);
    assert!(
        said.starts_with("it is padded with 0.0 to a multiple of 9,"),
        "{said}"
    );
    let (index, said) = refusal(|index| {
        let width = if index == 1 { 5 } else { 4 };
        Padded::new(Tensor::zeros(&[index, width])).unwrap()
    });
    assert_eq!(index, 1);
    assert!(
        said.starts_with("its shape is [1, 5], and the batch's rows are [3, 4]"),
        "{said}"
    );
    assert!(Padded::new(Tensor::<u8>::zeros(&[])).is_err());

    // A number that is none is no other one.
    let batch = batch_of(2, |index| {
        Padded::from(vec![1.0; index]).with_value(f32::NAN)
    });
    let batch = batch.unwrap();
    assert!(batch.values.as_slice()[0].is_nan() && batch.values.as_slice()[1] == 1.0);
}

#[test]
fn an_error_names_the_field_of_the_struct_or_tuple() {
    let samples = from_fn(2, |index, _| {
        let labels = Padded::from(vec![1i64]).with_value(-(index as i64));
        Ok((index as i64, labels))
    });
    let loader = DataLoader::builder(samples).batch_size(2).build().unwrap();
    let error = loader.epoch(0).next().unwrap().unwrap_err().to_string();
    assert!(
        error.contains("sample 1, row 1") && error.contains("field `1`: it is padded with -1,"),
        "{error}"
    );
}

#[test]
fn what_is_too_long_is_cut_or_refused() {
    let rows = |length: usize| Padded::from((0..length).map(|x| [x as f32; 3]).collect::<Vec<_>>());
    let batch = batch_of(6, move |index| {
        rows(2 * index).truncate(5).with_multiple_of(4)
    })
    .unwrap();
    assert_eq!(batch.values.shape()[..], [6, 8, 3]);
    assert_eq!(batch.lengths.as_slice(), [0, 2, 4, 5, 5, 5]);
    let cut: Vec<f32> = (0..5).flat_map(|x| [x as f32; 3]).collect();
    assert_eq!(batch.row(5), cut);
    assert!(
        batch.values.row(5).as_slice()[15..]
            .iter()
            .all(|x| *x == 0.0)
    );

    assert_eq!(rows(5).at_most(5).unwrap().len(), 5);
    let error = rows(6).at_most(5).unwrap_err().to_string();
    assert!(
        error.contains("its length is 6, and at most 5 is allowed"),
        "{error}"
    );
    assert_eq!(
        (
            rows(0).len(),
            rows(0).is_empty(),
            rows(3).truncate(0).is_empty()
        ),
        (0, true, true)
    );
}

/// A batch whose samples are all empty has rows of no length, and the next one is as it would have been.
#[test]
fn empty_samples_make_an_empty_batch() {
    let samples = from_fn(6, |index, _| {
        Ok(Padded::from(vec![index as i64; index as usize / 3]).with_multiple_of(8))
    });
    for workers in [0, 2] {
        let loader = DataLoader::builder(samples.clone())
            .batch_size(3)
            .num_workers(workers)
            .pin_memory(&Device::cpu())
            .build()
            .unwrap();
        let batches: Vec<_> = loader.epoch(0).map(Result::unwrap).collect();
        assert_eq!(batches[0].values.shape()[..], [3, 0]);
        assert_eq!(batches[0].mask().shape()[..], [3, 0]);
        assert_eq!(batches[0].lengths.as_slice(), [0, 0, 0]);
        assert_eq!(batches[1].values.shape()[..], [3, 8]);
        assert_eq!(batches[1].row(2), [5]);
    }
}

/// Texts, of which some cannot be had.
fn texts(is_bad: fn(u64) -> bool) -> impl Dataset<Sample = (i64, Padded<i64>)> {
    from_fn(60, move |index, _| match is_bad(index) {
        true => Err::<_, BoxError>("it is broken".into()),
        false => Ok((
            index as i64,
            Padded::from(vec![index as i64; index as usize % 11]).with_value(-1),
        )),
    })
}

/// The batch's own samples decide its length: the longest is left out, or another one comes.
#[test]
fn a_batch_without_its_bad_samples_is_as_long_as_the_others() {
    let is_bad = |index| index % 11 == 10;
    for workers in [0, 1, 4] {
        for pin in [false, true] {
            for on_error in [
                OnError::Skip { at_most: 100 },
                OnError::Replace { at_most: 100 },
                OnError::Fail,
            ] {
                let mut builder = DataLoader::builder(texts(is_bad))
                    .batch_size(15)
                    .num_workers(workers)
                    .on_error(on_error);
                if pin {
                    builder = builder.pin_memory(&Device::cpu());
                }
                let loader = builder.build().unwrap();
                for epoch in 0..2 {
                    for (number, batch) in loader.epoch(epoch).enumerate() {
                        let what = format!("{on_error:?}, {workers} workers, batch {number}");
                        let Ok((indices, texts)) = batch else {
                            assert_eq!(on_error, OnError::Fail, "{what}");
                            continue;
                        };
                        let lengths: Vec<i64> =
                            indices.as_slice().iter().map(|index| index % 11).collect();
                        assert_eq!(texts.lengths.as_slice(), lengths, "{what}");
                        let longest = *lengths.iter().max().unwrap();
                        assert_eq!(texts.padded_len() as i64, longest, "{what}");
                        for (row, index) in indices.as_slice().iter().enumerate() {
                            let mut expected = vec![*index; *index as usize % 11];
                            expected.resize(longest as usize, -1);
                            assert_eq!(texts.values.row(row).as_slice(), expected, "{what}");
                        }
                        let kept = (number * 15..(number + 1) * 15).filter(|i| !is_bad(*i as u64));
                        if let OnError::Skip { .. } = on_error {
                            assert_eq!(indices.len(), kept.count(), "{what}");
                        }
                    }
                }
            }
        }
    }
}

/// Long rows are copied around the cache: what lies behind them is padding all the same.
#[test]
fn long_rows_are_padded_too() {
    let length = |index: u64| 700 * (index as usize % 7);
    let samples = from_fn(28, move |index, _| {
        let rows = vec![[index as f32; 80]; length(index)];
        Ok(Padded::from(rows).with_value(-11.5).with_multiple_of(64))
    });
    let device = Device::cpu();
    let loader = DataLoader::builder(samples)
        .batch_size(7)
        .num_workers(2)
        .shuffle(true)
        .pin_memory(&device)
        .build()
        .unwrap();
    for epoch in 0..2 {
        for batch in loader.epoch(epoch) {
            let batch = batch.unwrap();
            let padded = batch.padded_len();
            assert_eq!(padded % 64, 0);
            for (row, own) in batch.rows().enumerate() {
                let all = batch.values.row(row);
                let (front, back) = all.as_slice().split_at(own.len());
                assert!(front.iter().all(|x| *x == front[0]) && front == own);
                assert_eq!(back.len(), padded * 80 - own.len());
                assert!(back.iter().all(|x| *x == -11.5));
            }
        }
    }
}

/// In a `collate_fn`, padded samples are stacked as they are without one.
#[test]
fn a_collate_function_can_pad() {
    let texts = texts(|_| false);
    let loader = DataLoader::builder(texts)
        .batch_size(4)
        .num_workers(2)
        .pin_memory(&Device::cpu())
        .collate_fn(|samples: Vec<(i64, Padded<i64>)>, arena| {
            let texts: Vec<_> = samples.into_iter().map(|(_, text)| text).collect();
            Ok(arena.collate(texts)?)
        })
        .build()
        .unwrap();
    let batch = loader.epoch(0).nth(2).unwrap().unwrap();
    assert_eq!(batch.lengths.as_slice(), [8, 9, 10, 0]);
    assert_eq!(batch.values.row(3).as_slice(), [-1; 10]);
    assert!(batch.values.is_pinned());
}

/// A sample that the cache keeps is what it was.
#[test]
fn padded_samples_can_be_cached() {
    let loader = DataLoader::builder(texts(|_| false).cached(1 << 20))
        .batch_size(60)
        .build()
        .unwrap();
    let of = |epoch| loader.epoch(epoch).next().unwrap().unwrap().1;
    assert_eq!(of(0), of(1));
    assert_eq!(of(2).values.row(1).as_slice()[..3], [1, -1, -1]);
}
