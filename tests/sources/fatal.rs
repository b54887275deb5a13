//! Errors that end an iterable: `fatal`.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use pinfeed::error::BoxError;
use pinfeed::iterable::{self, IterableDataset, fatal};
use pinfeed::loader::{Iterable, OnError};
use pinfeed::{DataLoader, Error, Tensor};

use super::streams::{WORKERS, all};

/// Numbers from 0 on; in place of the one at `end`, an error that ends them. Counts what is asked for.
fn ending(
    end: u64,
    asked: &Arc<AtomicU64>,
) -> impl IterableDataset<Item = i64, Sample = i64> + use<> {
    let asked = Arc::clone(asked);
    iterable::from_fn(move |_, _| {
        let asked = Arc::clone(&asked);
        Ok((0..).map(move |number| {
            asked.fetch_add(1, Ordering::Relaxed);
            match number == end {
                true => Err(fatal("the server is gone")),
                false => Ok(number as i64),
            }
        }))
    })
}

fn loader_of(
    source: impl IterableDataset<Sample = i64>,
    workers: usize,
    on_error: OnError,
) -> DataLoader<Tensor<i64>, Iterable> {
    let builder = DataLoader::iterable(source).batch_size(4);
    builder
        .num_workers(workers)
        .on_error(on_error)
        .build()
        .unwrap()
}

#[test]
fn it_ends_the_epoch_whatever_becomes_of_bad_items() {
    for workers in WORKERS {
        for on_error in [OnError::Fail, OnError::Skip { at_most: 1_000 }] {
            for end in [0, 3, 4, 9] {
                let asked = Arc::<AtomicU64>::default();
                let loader = loader_of(ending(end, &asked), workers, on_error);
                let mut epoch = loader.epoch(0);
                let good = end / 4;
                for batch in 0..good {
                    let first = 4 * batch as i64;
                    let numbers = epoch.next().unwrap().unwrap();
                    assert_eq!(numbers.as_slice(), [first, first + 1, first + 2, first + 3]);
                }
                let error = epoch.next().unwrap().unwrap_err();
                assert!(matches!(error, Error::Iterable { epoch: 0, .. }), "{error}");
                assert_eq!(
                    error.to_string(),
                    "the iterable of epoch 0 cannot go on: the server is gone"
                );
                assert!(epoch.next().is_none());
                assert_eq!(asked.load(Ordering::Relaxed), end + 1); // nothing is asked for behind it
                assert_eq!(loader.stats().bad.skipped, 0);
            }
        }
    }
}

#[test]
fn iterables_around_it_pass_it_on() {
    type Source = fn(&Arc<AtomicU64>) -> DataLoader<Tensor<i64>, Iterable>;
    const SKIP: OnError = OnError::Skip { at_most: 1_000 };
    let sources: [Source; 6] = [
        |asked| loader_of(ending(9, asked).map(|number, _| Ok(number)), 2, SKIP),
        |asked| loader_of(ending(9, asked).filter(|_, _| Ok(true)), 2, SKIP),
        |asked| {
            let parts = ending(9, asked).flat_map(|number, _| Ok([Ok(number)]));
            loader_of(parts, 2, SKIP)
        },
        |asked| loader_of(ending(9, asked).shuffle(2), 2, SKIP),
        |asked| loader_of(ending(9, asked).chain(ending(1, asked)), 2, SKIP),
        |asked| loader_of(ending(9, asked).repeat(), 2, SKIP),
    ];
    for (at, source) in sources.iter().enumerate() {
        let asked = Arc::<AtomicU64>::default();
        let loader = source(&asked);
        let batches: Vec<_> = loader.epoch(0).collect();
        let error = batches.last().unwrap().as_ref().unwrap_err();
        assert!(matches!(error, Error::Iterable { .. }), "{at}: {error}");
        let good = &batches[..batches.len() - 1];
        assert!(good.iter().all(Result::is_ok), "{at}");
        assert_eq!(asked.load(Ordering::Relaxed), 10, "{at}");
    }
}

/// A run goes on behind the last batch that was good.
#[test]
fn a_run_is_resumed_where_it_ended() {
    for workers in WORKERS {
        let is_away = Arc::new(AtomicBool::new(true));
        let away = Arc::clone(&is_away);
        let source = iterable::from_fn(move |_, _| {
            let away = Arc::clone(&away);
            Ok((0..11i64).map(move |number| match number {
                6 if away.load(Ordering::Relaxed) => {
                    Err(fatal(std::io::Error::other("connection reset")))
                }
                number => Ok::<i64, BoxError>(number),
            }))
        });
        let loader = loader_of(source, workers, OnError::Fail);
        let mut epoch = loader.epoch(0);
        assert_eq!(epoch.next().unwrap().unwrap().as_slice(), [0, 1, 2, 3]);
        let state = epoch.state();
        assert!(epoch.next().unwrap().is_err());
        assert_eq!(epoch.state().items(), state.items());
        drop(epoch);
        is_away.store(false, Ordering::Relaxed);
        let rest = all(loader.resume(0..1, &state).unwrap().next().unwrap());
        assert_eq!(rest, [vec![4, 5, 6, 7], vec![8, 9, 10]]);
    }
}
