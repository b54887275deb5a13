//! Streams of which a function keeps some items, or makes several of each: `filter` and `flat_map`, as a program uses them.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use pinfeed::error::{ItemError, Temporary};
use pinfeed::iterable::{self, ItemIter, IterableDataset, Shard};
use pinfeed::loader::{Iterable, OnError, TryNext, World};
use pinfeed::{BoxError, DataLoader, Error, SampleRng, Tensor};
use proptest::prelude::*;

use super::streams::{Seekable, WORKERS, all, chunks, interrupted, numbers, values};

fn loader_of(
    source: impl IterableDataset<Sample = i64>,
    batch: usize,
    workers: usize,
) -> DataLoader<Tensor<i64>, Iterable> {
    let builder = DataLoader::iterable(source).batch_size(batch).seed(5);
    builder.num_workers(workers).build().unwrap()
}

/// The first `number % 4` multiples of a number.
fn multiples(number: i64) -> impl Iterator<Item = i64> + Send {
    (0..number % 4).map(move |part| 10 * number + part)
}

#[test]
fn they_are_those_of_rusts_iterators_whatever_the_workers() {
    for workers in WORKERS {
        for len in [0, 1, 2, 3, 13, 40] {
            let thirds = numbers(len).filter(|number, _| Ok(number % 3 == 0));
            let expected = (0..len as i64).filter(|number| number % 3 == 0);
            assert_eq!(
                all(loader_of(thirds, 4, workers).epoch(0)),
                chunks(expected, 4)
            );

            let parts = numbers(len).flat_map(|number, _| Ok(multiples(number).map(Ok)));
            let expected = (0..len as i64).flat_map(multiples);
            assert_eq!(
                all(loader_of(parts, 4, workers).epoch(0)),
                chunks(expected, 4)
            );

            // One within the other. They see what a `map` before them made.
            let nested = numbers(len).map(|number, _| Ok(number + 1));
            let nested = nested.filter(|number, _| Ok(number % 2 == 0));
            let nested = nested.flat_map(|number, _| Ok(multiples(number).map(Ok)));
            let nested = nested.map(|part, _| Ok(part - 1));
            let nested = nested.flat_map(|part, _| Ok((part % 5 != 0).then_some(Ok(-part))));
            let expected = (1..=len as i64)
                .filter(|number| number % 2 == 0)
                .flat_map(multiples)
                .map(|part| part - 1)
                .filter(|part| part % 5 != 0)
                .map(|part| -part);
            let loader = loader_of(nested, 4, workers);
            let expected = chunks(expected, 4);
            for epoch in loader.epochs(0..2) {
                assert_eq!(all(epoch), expected, "{workers} workers, {len} items");
            }
        }
    }
}

/// Other items, and as many batches, on each rank; nothing is there twice.
#[test]
fn ranks_keep_of_their_own() {
    let mut seen = Vec::new();
    for rank in 0..3 {
        let odd = numbers(50).filter(|number, _| Ok(number % 2 == 1));
        let parts = odd.flat_map(|number, _| Ok([Ok(number), Ok(-number)]));
        let loader = DataLoader::iterable(parts).batch_size(4);
        let loader = loader.world(World::new(rank, 3).unwrap()).build().unwrap();
        seen.extend(all(loader.epoch(0)).concat());
    }
    seen.sort_unstable();
    let expected = (-49..50).filter(|number| number % 2 != 0);
    assert_eq!(seen, expected.collect::<Vec<i64>>());
}

/// What is drawn follows from seed, epoch, rank and item: not from the workers, and not from what was kept before.
#[test]
fn random_choices_are_those_of_the_item() {
    let kept = |workers, seed, epoch, rank, skipped: u64| {
        let all_of_them = iterable::from_fn(|_, _| Ok((0..400i64).map(Ok)));
        let some = all_of_them.filter(|_, rng| Ok(rng.bool(0.5)));
        let some = some.skip(skipped).flat_map(|number, rng| {
            let mut rng = rng.clone();
            Ok((0..2).map(move |_| Ok(1_000 * number + rng.range(0..1_000))))
        });
        let builder = DataLoader::iterable(some).batch_size(64).seed(seed);
        let builder = builder
            .num_workers(workers)
            .world(World::new(rank, 2).unwrap());
        all(builder.build().unwrap().epoch(epoch)).concat()
    };
    let first = kept(0, 1, 0, 0, 0);
    assert!((2 * 150..2 * 250).contains(&first.len()), "{}", first.len());
    assert_eq!(kept(3, 1, 0, 0, 0), first);
    for other in [
        kept(0, 2, 0, 0, 0),
        kept(0, 1, 1, 0, 0),
        kept(0, 1, 0, 1, 0),
    ] {
        assert_ne!(other, first);
    }
    let numbers = |drawn: &[i64]| drawn.iter().map(|drawn| drawn / 1_000).collect::<Vec<_>>();
    assert_eq!(numbers(&kept(0, 1, 0, 0, 5)), numbers(&first)[10..]);
    // A part draws for itself.
    assert!(first.chunks(2).filter(|pair| pair[0] != pair[1]).count() > 140);
}

fn said(batches: Vec<pinfeed::Result<Tensor<i64>>>) -> Vec<String> {
    let said = batches.into_iter().map(|batch| match batch {
        Ok(batch) => format!("{:?}", batch.as_slice()),
        Err(error) => error.to_string(),
    });
    said.collect()
}

#[test]
fn what_fails_is_a_bad_sample_in_its_place() {
    let source = || {
        let items = iterable::from_fn(|_, _| {
            Ok((0..24i64).map(|number| match number {
                2 => Err("the source has no 2".into()),
                number => Ok(number),
            }))
        });
        let items = items.map(|number, _| match number {
            5 => Err("5 cannot be loaded".into()),
            number => Ok(number),
        });
        items.filter(|number, _| match number {
            8 => Err("nothing is known of 8".into()),
            11 => watch::provoked("eleven"),
            number => Ok(number % 2 == 0),
        })
    };
    for workers in WORKERS {
        // 0 E 4 | E 6 E | 10 E 12 | 14 16 18 | 20 22
        let batches: Vec<_> = loader_of(source(), 3, workers).epoch(0).collect();
        if let Error::Sample(_, cause) = batches[0].as_ref().unwrap_err() {
            let item = cause.downcast_ref::<ItemError>().unwrap();
            assert_eq!((item.item, item.part), (2, None));
        } else {
            panic!("{batches:?}");
        }
        let told = said(batches);
        let expected = [
            "sample 1, row 1 of batch 0 in epoch 0, failed to load: item 2 of the source: the source has no 2",
            "sample 3, row 0 of batch 1 in epoch 0, failed to load: item 5 of the source: 5 cannot be loaded",
            "sample 7, row 1 of batch 2 in epoch 0, failed to load: item 11 of the source: it panicked while loading: eleven",
            "[14, 16, 18]",
            "[20, 22]",
        ];
        assert_eq!(told, expected, "{workers} workers");

        let loader = DataLoader::iterable(source())
            .batch_size(3)
            .num_workers(workers);
        let loader = loader
            .on_error(OnError::Skip { at_most: 4 })
            .build()
            .unwrap();
        for epoch in 0..2 {
            let batches = all(loader.epoch(epoch));
            assert_eq!(
                batches,
                [&[0, 4][..], &[6], &[10, 12], &[14, 16, 18], &[20, 22]]
            );
            let bad = loader.stats().bad;
            assert_eq!((bad.skipped, bad.listed.len()), (4, 4));
            // (In whatever order several workers came to them.)
            let of_8 = "item 8 of the source: nothing is known of 8";
            assert!(bad.listed.iter().any(|bad| bad.ends_with(of_8)));
        }
    }
}

#[test]
fn an_item_and_its_parts_fail_one_by_one() {
    let source = || {
        numbers(8).flat_map(|number, _| {
            match number {
                1 => return Err("1 cannot be opened".into()),
                2 => watch::provoked("two"),
                _ => {}
            }
            Ok((0..3).map(move |part| match (number, part) {
                (4, 1) => Err("it is cut off".into()),
                (6, 1) => watch::provoked("six"),
                _ => Ok(10 * number + part),
            }))
        })
    };
    for workers in WORKERS {
        let told = said(loader_of(source(), 1, workers).epoch(0).collect());
        let failed = |number: u64, why: &str| {
            format!("sample {number}, row 0 of batch {number} in epoch 0, failed to load: {why}")
        };
        let value = |value: i64| format!("[{value}]");
        let mut expected: Vec<String> = (0..3).map(value).collect();
        expected.push(failed(3, "item 1 of the source: 1 cannot be opened"));
        expected.push(failed(
            4,
            "item 2 of the source: it panicked while loading: two",
        ));
        expected.extend((30..33).chain([40]).map(value));
        expected.push(failed(9, "item 4 of the source, part 1: it is cut off"));
        expected.extend([42, 50, 51, 52, 60].map(value));
        // What comes behind a panic is unknown.
        expected.push(failed(
            15,
            "item 6 of the source, part 1: it panicked while giving it: six",
        ));
        expected.extend((70..73).map(value));
        assert_eq!(told, expected, "{workers} workers");

        let skips = DataLoader::iterable(source())
            .batch_size(5)
            .num_workers(workers);
        let skips = skips
            .on_error(OnError::Skip { at_most: 4 })
            .build()
            .unwrap();
        let kept = [0, 1, 2, 30, 31, 32, 40, 42, 50, 51, 52, 60, 70, 71, 72];
        assert_eq!(all(skips.epoch(0)).concat(), kept);
    }
}

/// The iterable cannot be asked again, whatever an error says of itself.
#[test]
fn what_fails_while_it_is_pulled_is_not_tried_again() {
    let calls = Arc::new(AtomicU64::new(0));
    let counted = Arc::clone(&calls);
    let source = numbers(4).filter(move |number, _| {
        counted.fetch_add(1, Ordering::Relaxed);
        match number {
            2 => Err(Temporary::new("503").into()),
            _ => Ok(true),
        }
    });
    let builder = DataLoader::iterable(source).batch_size(2);
    let loader = builder.retry(3, Duration::from_millis(1)).build().unwrap();
    let told = said(loader.epoch(0).collect());
    assert!(told[1].ends_with("item 2 of the source: 503"), "{told:?}");
    assert_eq!(calls.load(Ordering::Relaxed), 4);
}

/// Everything in everything, with random choices.
fn deep<S: IterableDataset<Sample = i64> + Clone>(
    own: S,
) -> impl IterableDataset<Sample = (i64, u32)> {
    let views = own.clone().flat_map(|number, rng| {
        let mut rng = rng.clone();
        if number % 11 == 7 {
            return Err("seven".into());
        }
        Ok((0..rng.below(4)).map(move |part| match (number % 5, part) {
            (2, 1) => Err("cut off".into()),
            _ => Ok(100 * number + 10 * part as i64 + rng.range(0..10)),
        }))
    });
    let some = views.filter(|part, rng| match part % 13 {
        5 => Err("thirteen".into()),
        _ => Ok(rng.bool(0.7)),
    });
    let pairs = some
        .shuffle(5)
        .flat_map(|part, _| Ok([Ok(part), Ok(part + 1)]));
    let both = pairs.chain(own.filter(|number, _| Ok(number % 2 == 0)));
    let twice = both.repeat_n(2).skip(1).take(70);
    twice.map(|number, rng: &mut SampleRng| Ok((number, rng.next_u32())))
}

/// What fails is left out by the iterable itself, so that the number of rows is what was given out.
#[derive(Clone)]
struct Told<S>(S);

struct ToldIter<I>(I);

impl<S: IterableDataset<Sample = (i64, u32)>> IterableDataset for Told<S> {
    type Item = Option<S::Item>;
    type Sample = (i64, u32);
    type Iter = ToldIter<S::Iter>;

    fn open(&self, epoch: u64, shard: Shard) -> Result<Self::Iter, BoxError> {
        Ok(ToldIter(self.0.open(epoch, shard)?))
    }

    fn load(&self, item: Self::Item, rng: &mut SampleRng) -> Result<(i64, u32), BoxError> {
        match item {
            Some(item) => self.0.load(item, rng),
            None => Ok((-1, rng.next_u32())),
        }
    }
}

impl<I: ItemIter> ItemIter for ToldIter<I> {
    type Item = Option<I::Item>;

    fn next(&mut self) -> Option<Result<Self::Item, BoxError>> {
        Some(Ok(self.0.next()?.ok()))
    }

    fn state(&self) -> Option<Vec<u8>> {
        self.0.state()
    }

    fn seek(&mut self, state: &[u8]) -> Result<(), BoxError> {
        self.0.seek(state)
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(40))]

    /// Interrupted anywhere, in the middle of an item or at one that failed, a run sees what it would have seen.
    #[test]
    fn a_run_that_is_resumed_sees_the_same(
        len in 0u64..24,
        batch in 1usize..6,
        workers in prop::sample::select(vec![0, 1, 3]),
        stops in prop::collection::vec(1usize..9, 0..6),
        seeks in any::<bool>(),
    ) {
        let (whole, resumed) = if seeks {
            let own = Seekable { len, ..Seekable::default() };
            let source = || Told(deep(own.clone()));
            (interrupted(source, 0, batch, &[]), interrupted(source, workers, batch, &stops))
        } else {
            let own = Arc::new(numbers(len));
            let source = || Told(deep(Arc::clone(&own)));
            (interrupted(source, 0, batch, &[]), interrupted(source, workers, batch, &stops))
        };
        prop_assert_eq!(whole, resumed);
    }
}

/// Of a source that seeks, one item is loaded again: the one whose parts are not all given out.
#[test]
fn a_run_goes_on_in_the_middle_of_an_item() {
    let own = Seekable {
        len: 200,
        ..Seekable::default()
    };
    let opened = Arc::new(AtomicU64::new(0));
    let counted = Arc::clone(&opened);
    let parts = own.clone().filter(|number, _| Ok(number % 2 == 0));
    let parts = parts.flat_map(move |number, _| {
        counted.fetch_add(1, Ordering::Relaxed);
        Ok((0..7).map(move |part| Ok(10 * number + part)))
    });
    let loader = loader_of(parts, 5, 0);
    let mut epoch = loader.epoch(0);
    assert_eq!(epoch.by_ref().take(31).count(), 31); // 155 parts: the 23rd item is open, with one part given out
    let state = epoch.state();
    let next = values(&epoch.next().unwrap().unwrap());
    assert_eq!(next, [441, 442, 443, 444, 445]);
    own.pulled.store(0, Ordering::Relaxed);
    opened.store(0, Ordering::Relaxed);
    let text = state.to_string();
    let resumed = loader.resume(0..1, &text.parse().unwrap()).unwrap();
    let resumed = resumed
        .map(|mut epoch| epoch.next().unwrap())
        .next()
        .unwrap();
    assert_eq!(values(&resumed.unwrap()), next);
    // (And the odd one before it, which is left out again.)
    assert_eq!(own.pulled.load(Ordering::Relaxed), 2);
    assert_eq!(opened.load(Ordering::Relaxed), 1);

    // On as many ranks, with other batches and workers.
    let whole = loader_of(
        own.clone()
            .flat_map(|number, _| Ok(multiples(number).map(Ok))),
        8,
        0,
    );
    let whole = all(whole.epoch(0)).concat();
    let mut seen = Vec::new();
    let mut state = None;
    for (batch, workers) in [(3, 0), (10, 2), (7, 1), (64, 3)] {
        let parts = own
            .clone()
            .flat_map(|number, _| Ok(multiples(number).map(Ok)));
        let loader = loader_of(parts, batch, workers);
        let mut epochs = match &state {
            None => loader.epochs(0..1),
            Some(state) => loader.resume(0..1, state).unwrap(),
        };
        let count = if batch == 64 { usize::MAX } else { 4 };
        let mut epoch = epochs.next().unwrap();
        seen.extend(
            epoch
                .by_ref()
                .take(count)
                .flat_map(|batch| values(&batch.unwrap())),
        );
        state = Some(epoch.state());
    }
    assert_eq!(seen, whole);
}

#[test]
fn an_item_that_has_become_shorter_is_an_error() {
    let parts = |count: i64| {
        let own = Seekable {
            len: 9,
            ..Seekable::default()
        };
        let parts =
            own.flat_map(move |number, _| Ok((0..count).map(move |part| Ok(10 * number + part))));
        loader_of(parts, 4, 0)
    };
    let loader = parts(6);
    let mut epoch = loader.epoch(0);
    epoch.next();
    let state = epoch.state();
    let shorter = parts(3);
    let mut resumed = shorter.resume(0..1, &state).unwrap().next().unwrap();
    let error = resumed.next().unwrap().unwrap_err().to_string();
    assert!(
        error.contains("had 4 parts of an item, and it has 3 now"),
        "{error}"
    );
    assert!(resumed.next().is_none());

    let shard = Shard::new(0, 1, 0);
    let own = || Seekable {
        len: 9,
        ..Seekable::default()
    };
    let mut kept = own().filter(|_, _| Ok(true)).open(0, shard).unwrap();
    kept.next();
    let state = kept.state().unwrap();
    let mut parts = own()
        .flat_map(|number, _| Ok([Ok(number)]))
        .open(0, shard)
        .unwrap();
    let error = parts.seek(&state).unwrap_err().to_string();
    assert!(
        error.contains("the state is that of another source"),
        "{error}"
    );
    parts.next();
    let state = parts.state().unwrap();
    for end in 0..state.len() {
        let mut own = own()
            .flat_map(|number, _| Ok([Ok(number)]))
            .open(0, shard)
            .unwrap();
        assert!(own.seek(&state[..end]).is_err(), "{end}");
    }
}

/// A search without end is left like any epoch, whoever waits for it; and a slow one is not taken for one that hangs.
#[test]
fn a_search_that_finds_nothing_is_interrupted() {
    for workers in [1, 3] {
        let endless = || iterable::from_fn(|_, _| Ok((0i64..).map(Ok)));
        let none = endless().filter(|_, _| Ok(false));
        let empty = endless().flat_map(|_, _| Ok(None));
        for loader in [loader_of(none, 2, workers), loader_of(empty, 2, workers)] {
            for epoch in 0..2 {
                let mut epoch = loader.epoch(epoch);
                let waited = epoch.next_timeout(Duration::from_millis(5));
                assert!(matches!(waited, TryNext::NotYet));
            }
        }
        let slow = numbers(60).filter(|number, _| {
            std::thread::sleep(Duration::from_millis(5));
            Ok(*number == 59)
        });
        let loader = DataLoader::iterable(slow).num_workers(workers);
        let loader = loader.timeout(Duration::from_millis(200)).build().unwrap();
        assert_eq!(all(loader.epoch(0)), [[59]]);
    }
}

/// A large file is read as its records are asked for; one without end, too.
#[test]
fn parts_are_asked_for_when_their_turn_has_come() {
    let asked = Arc::new(AtomicU64::new(0));
    for workers in WORKERS {
        let counted = Arc::clone(&asked);
        let endless = numbers(2).flat_map(move |_, _| {
            let counted = Arc::clone(&counted);
            Ok((0i64..).map(move |part| {
                counted.fetch_add(1, Ordering::Relaxed);
                Ok(part)
            }))
        });
        let loader = loader_of(endless.take(10u64), 3, workers);
        asked.store(0, Ordering::Relaxed);
        assert_eq!(all(loader.epoch(0)), chunks(0..10, 3));
        assert_eq!(asked.load(Ordering::Relaxed), 10);
    }
}
