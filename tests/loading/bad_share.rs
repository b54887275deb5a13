//! At most a share of an epoch's samples may be bad: the batch that exceeds it ends the epoch, whatever the number of workers.

use std::sync::Arc;

use pinfeed::iterable::{self, IterableDataset};
use pinfeed::loader::{LoaderState, OnError, World};
use pinfeed::{DataLoader, Device, Error, Result, Tensor, from_fn};
use proptest::prelude::*;

const SKIP: OnError = OnError::Skip { at_most: u64::MAX };
const REPLACE: OnError = OnError::Replace { at_most: u64::MAX };

fn values(batch: &Tensor<i64>) -> Vec<i64> {
    batch.as_slice().to_vec()
}

/// What an epoch gave out, and the error that ended it: bad, and all.
type Given = (Vec<Vec<i64>>, Option<(u64, u64)>);

fn given(batches: impl IntoIterator<Item = Result<Tensor<i64>>>) -> Given {
    let (mut seen, mut ended) = (Vec::new(), None);
    for batch in batches {
        assert!(ended.is_none(), "the epoch goes on behind its end");
        match batch {
            Ok(batch) => seen.push(values(&batch)),
            Err(Error::TooManyBad { bad, samples, .. }) => ended = Some((bad, samples)),
            Err(_) => seen.push(vec![-1]), // nothing is left of the batch
        }
    }
    (seen, ended)
}

/// The same, by the definition.
fn expected(bad: &[bool], size: usize, (most, after): (f64, u64)) -> Given {
    let (mut seen, mut counted, mut found) = (Vec::new(), 0, 0);
    let numbered: Vec<(i64, bool)> = (0..).zip(bad.iter().copied()).collect();
    for batch in numbered.chunks(size) {
        counted += batch.len() as u64;
        found += batch.iter().filter(|(_, is_bad)| *is_bad).count() as u64;
        let holds = counted >= after || counted == bad.len() as u64;
        if holds && found as f64 > most * counted as f64 {
            return (seen, Some((found, counted)));
        }
        let kept = batch.iter().filter(|(_, is_bad)| !is_bad);
        let kept: Vec<i64> = kept.map(|(number, _)| *number).collect();
        seen.push(if kept.is_empty() { vec![-1] } else { kept });
    }
    (seen, None)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    #[test]
    fn the_same_batch_ends_the_epoch_wherever_it_goes_and_whoever_loads_it(
        bad in prop::collection::vec(prop::bool::weighted(0.12), 1..80),
        size in 1usize..9,
        most in prop::sample::select(vec![0.0, 0.05, 0.1, 0.3, 1.0]),
        after in prop::sample::select(vec![0u64, 20, 1_000]),
        workers in prop::sample::select(vec![0, 1, 3]),
        pins in any::<bool>(),
    ) {
        let expected = expected(&bad, size, (most, after));
        let device = Device::cpu();
        let own = Arc::new(bad);

        let samples = Arc::clone(&own);
        let samples = from_fn(own.len(), move |index, _| match samples[index as usize] {
            true => Err("bad".into()),
            false => Ok(index as i64),
        });
        let builder = DataLoader::builder(samples).batch_size(size).num_workers(workers);
        let builder = builder.on_error(SKIP).bad_share_at_most(most, after);
        let builder = if pins { builder.pin_memory(&device) } else { builder };
        let loader = builder.build().unwrap();
        for epoch in loader.epochs(0..2) {
            prop_assert_eq!(&given(epoch), &expected);
        }
        for epoch in loader.epochs(0..2).prefetch_to_device(&device, 2) {
            let back = epoch.map(|batch| batch?.to_host(true)?.wait());
            prop_assert_eq!(&given(back), &expected);
        }

        // Of an iterable, the end is not known before: the last batch is given out, and the error comes behind it.
        let items = Arc::clone(&own);
        let source = iterable::from_fn(move |_, _| {
            let items = Arc::clone(&items);
            Ok((0..items.len()).map(move |number| match items[number] {
                true => Err("bad".into()),
                false => Ok(number as i64),
            }))
        });
        let builder = DataLoader::iterable(source).batch_size(size).num_workers(workers);
        let loader = builder.on_error(SKIP).bad_share_at_most(most, after).build().unwrap();
        let mut streamed = expected.clone();
        if let Some((_, counted)) = expected.1
            && counted == own.len() as u64
            && counted < after
        {
            let last = (own.len() - 1) / size * size;
            let kept: Vec<i64> = (last..own.len()).filter(|number| !own[*number]).map(|number| number as i64).collect();
            streamed.0.push(if kept.is_empty() { vec![-1] } else { kept });
        }
        for epoch in loader.epochs(0..2) {
            prop_assert_eq!(&given(epoch), &streamed);
        }
        for epoch in loader.epochs(0..2).prefetch_to_device(&device, 2) {
            let back = epoch.map(|batch| batch?.to_host(true)?.wait());
            prop_assert_eq!(&given(back), &streamed);
        }
    }
}

#[test]
fn samples_that_are_replaced_count_once() {
    for workers in [0, 3] {
        // Those that take their places may be bad, too.
        let loader = |most| {
            let samples = from_fn(100u64, |index, _| match index % 4 {
                0 => Err("bad".into()),
                _ => Ok(index as i64),
            });
            let builder = DataLoader::builder(samples)
                .batch_size(20)
                .num_workers(workers);
            builder
                .on_error(REPLACE)
                .bad_share_at_most(most, 0)
                .build()
                .unwrap()
        };
        let (seen, ended) = given(loader(0.25).epoch(0));
        assert_eq!((seen.len(), ended), (5, None));
        assert!(seen.iter().all(|batch| batch.len() == 20));
        assert_eq!(given(loader(0.24).epoch(0)).1, Some((5, 20)));
    }
}

/// Nothing is lost: the run stands before the batch, and goes on there when more is allowed.
#[test]
fn the_run_goes_on_before_the_batch_that_was_not_given_out() {
    let loader = |most, workers| {
        let samples = from_fn(120u64, |index, _| match index {
            50..60 => Err("bad".into()),
            _ => Ok(index as i64),
        });
        let builder = DataLoader::builder(samples).batch_size(8).shuffle(false);
        let builder = builder.num_workers(workers).on_error(SKIP);
        builder.bad_share_at_most(most, 20).build().unwrap()
    };
    let whole: Vec<i64> = (0..50).chain(60..120).collect();
    for workers in [0, 2] {
        for to_device in [false, true] {
            let device = Device::cpu();
            let strict = loader(0.05, workers);
            let (mut seen, state) = match to_device {
                false => {
                    let mut epoch = strict.epoch(0).with_info();
                    let seen = epoch
                        .by_ref()
                        .map_while(|batch| Some(values(&batch.ok()?.0)));
                    let seen: Vec<i64> = seen.collect::<Vec<_>>().concat();
                    assert!(epoch.next().is_none());
                    (seen, epoch.state())
                }
                true => {
                    let mut epoch = strict.epoch(0).prefetch_to_device(&device, 2);
                    let seen = epoch.by_ref().map_while(|batch| {
                        Some(values(&batch.ok()?.to_host(true).unwrap().wait().unwrap()))
                    });
                    let seen: Vec<i64> = seen.collect::<Vec<_>>().concat();
                    assert!(epoch.next().is_none() && epoch.size_hint() == (0, Some(0)));
                    (seen, epoch.state())
                }
            };
            assert_eq!(seen.len(), 48);
            let state: LoaderState = state.to_string().parse().unwrap();
            assert_eq!(strict.state(), state);
            let lenient = loader(0.5, workers); // it counts anew
            for epoch in lenient.resume(0..1, &state).unwrap() {
                seen.extend(epoch.flat_map(|batch| values(&batch.unwrap())));
            }
            assert_eq!(seen, whole);
        }
    }
}

#[test]
fn an_iterables_run_stands_there_too() {
    let source = || {
        iterable::from_fn(|_, _| {
            Ok((0..60i64).map(|number| match number {
                30..36 => Err("bad".into()),
                number => Ok(number),
            }))
        })
        .shuffle(1)
    };
    let loader = |most| {
        let builder = DataLoader::iterable(source()).batch_size(8).num_workers(2);
        builder
            .on_error(SKIP)
            .bad_share_at_most(most, 10)
            .build()
            .unwrap()
    };
    let strict = loader(0.1);
    let mut epoch = strict.epoch(0);
    let seen = epoch.by_ref().map_while(|batch| Some(values(&batch.ok()?)));
    let mut seen: Vec<i64> = seen.collect::<Vec<_>>().concat();
    assert_eq!(seen, (0..30).collect::<Vec<_>>());
    assert_eq!(epoch.state().items(), 32);
    assert!(epoch.next().is_none());
    for epoch in loader(0.5).resume(0..1, &epoch.state()).unwrap() {
        seen.extend(epoch.flat_map(|batch| values(&batch.unwrap())));
    }
    assert_eq!(seen, (0..30).chain(36..60).collect::<Vec<_>>());
}

/// An epoch that ended like this is left like any other: the next one is whole.
#[test]
fn the_next_epoch_counts_anew() {
    for workers in [0, 1, 3] {
        let source = iterable::from_fn(|epoch, _| {
            Ok((0..40i64).map(move |number| match number % 4 {
                0 if epoch == 1 => Err("bad".into()),
                _ => Ok(number),
            }))
        });
        let loader = DataLoader::iterable(source)
            .batch_size(4)
            .num_workers(workers);
        let loader = loader
            .on_error(SKIP)
            .bad_share_at_most(0.2, 8)
            .build()
            .unwrap();
        let counts = loader.epochs(0..3).map(given);
        let counts: Vec<_> = counts.map(|(seen, ended)| (seen.len(), ended)).collect();
        assert_eq!(counts, [(10, None), (1, Some((2, 8))), (10, None)]);
        let device = Device::cpu();
        let epochs = loader.epochs(0..3).prefetch_to_device(&device, 3);
        let counts = epochs.map(|epoch| given(epoch.map(|batch| batch?.to_host(true)?.wait())));
        let counts: Vec<_> = counts.map(|(seen, ended)| (seen.len(), ended)).collect();
        assert_eq!(counts, [(10, None), (1, Some((2, 8))), (10, None)]);
    }
}

#[test]
fn each_rank_counts_its_own() {
    let ended = |rank| {
        let samples = from_fn(80u64, |index, _| match index % 2 {
            1 => Err("bad".into()),
            _ => Ok(index as i64),
        });
        let builder = DataLoader::builder(samples).batch_size(1).on_error(SKIP);
        let builder = builder
            .bad_share_at_most(0.1, 10)
            .world(World::new(rank, 2).unwrap());
        given(builder.build().unwrap().epoch(0)).1
    };
    assert_eq!((ended(0), ended(1)), (None, Some((10, 10))));
}

#[test]
fn the_error_says_how_many_and_where_to_look() {
    let samples = from_fn(10u64, |_, _| Err::<i64, _>("bad".into()));
    let builder = DataLoader::builder(samples).batch_size(5).on_error(SKIP);
    let loader = builder.bad_share_at_most(0.01, 5).build().unwrap();
    let error = loader.epoch(0).next().unwrap().unwrap_err();
    assert_eq!(
        error.to_string(),
        "5 of 5 samples of epoch 0 failed to load, more than a share of 0.01 (`bad_share_at_most`): `Stats::bad` lists them; mend the \
         data, or allow more, and resume before this batch"
    );
    assert_eq!(loader.stats().bad.listed.len(), 5);

    for share in [-0.1, 1.5, f64::NAN] {
        let samples = from_fn(10u64, |index, _| Ok(index as i64));
        let refused = DataLoader::builder(samples)
            .on_error(REPLACE)
            .bad_share_at_most(share, 0);
        let refused = refused.build().unwrap_err().to_string();
        assert!(
            refused.contains("a share is a number from 0 (none) to 1 (all)"),
            "{refused}"
        );
    }
    let samples = from_fn(10u64, |index, _| Ok(index as i64));
    let refused = DataLoader::builder(samples)
        .bad_share_at_most(0.1, 0)
        .build();
    let refused = refused.unwrap_err().to_string();
    assert!(refused.contains("needs on_error"), "{refused}");
}
