//! Sources without a length, as a program uses them.

use std::fmt::Debug;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc;
use std::time::Duration;

use pinfeed::dataset::Fingerprint;
use pinfeed::device::Hostile;
use pinfeed::error::Temporary;
use pinfeed::iterable::{self, ItemIter, IterableDataset, Shard};
use pinfeed::loader::{Epoch, Iterable, IterableState, OnError, TryNext, World};
use pinfeed::{BoxError, DataLoader, Device, Error, Result, SampleRng, Tensor};
use proptest::prelude::*;

/// 0, 1, 2, ..., and no end of its own is known.
pub(super) fn numbers(len: u64) -> impl IterableDataset<Sample = i64> {
    iterable::from_fn(move |_, shard: Shard| {
        let own = (0..len).filter(move |number| shard.keeps(*number));
        Ok(own.map(|number| Ok(number as i64)))
    })
}

/// The same, from a stream that can go where it was, and says how often it was asked for an item.
#[derive(Clone, Default)]
pub(super) struct Seekable {
    pub(super) len: u64,
    pub(super) pulled: Arc<AtomicU64>,
}

pub(super) struct Counting {
    at: u64,
    end: u64,
    first: u64,
    pulled: Arc<AtomicU64>,
}

impl IterableDataset for Seekable {
    type Item = i64;
    type Sample = i64;
    type Iter = Counting;

    fn open(&self, epoch: u64, _: Shard) -> Result<Counting, BoxError> {
        Ok(Counting {
            at: 0,
            end: self.len,
            first: 1_000 * epoch,
            pulled: Arc::clone(&self.pulled),
        })
    }

    fn load(&self, item: i64, _: &mut SampleRng) -> Result<i64, BoxError> {
        Ok(item)
    }
}

impl ItemIter for Counting {
    type Item = i64;

    fn next(&mut self) -> Option<Result<i64, BoxError>> {
        self.pulled.fetch_add(1, Ordering::Relaxed);
        if self.at == self.end {
            return None;
        }
        self.at += 1;
        Some(Ok((self.first + self.at - 1) as i64))
    }

    fn state(&self) -> Option<Vec<u8>> {
        Some(vec![self.at as u8])
    }

    fn seek(&mut self, state: &[u8]) -> Result<(), BoxError> {
        self.at = u64::from(*state.first().ok_or("no state")?);
        Ok(())
    }
}

pub(super) fn values(batch: &Tensor<i64>) -> Vec<i64> {
    batch.as_slice().to_vec()
}

pub(super) fn all(epoch: Epoch<'_, Tensor<i64>, Iterable>) -> Vec<Vec<i64>> {
    epoch.map(|batch| values(&batch.unwrap())).collect()
}

pub(super) fn chunks(numbers: impl IntoIterator<Item = i64>, size: usize) -> Vec<Vec<i64>> {
    let numbers: Vec<i64> = numbers.into_iter().collect();
    numbers.chunks(size).map(<[i64]>::to_vec).collect()
}

pub(super) const WORKERS: [usize; 4] = [0, 1, 2, 4];

#[test]
fn batches_come_in_order_until_the_end_whatever_the_workers() {
    for workers in WORKERS {
        for len in 0..=13 {
            let loader = DataLoader::iterable(numbers(len))
                .batch_size(4)
                .num_workers(workers)
                .build()
                .unwrap();
            for epoch in 0..2 {
                let expected = chunks(0..len as i64, 4);
                assert_eq!(all(loader.epoch(epoch)), expected, "{workers} workers");
            }
        }
    }
}

/// Neither sizes nor what is printed tell a number of batches that nobody knows.
#[test]
fn what_has_no_length_tells_none() {
    let device = Device::cpu();
    let loader = DataLoader::iterable(numbers(9)).batch_size(4);
    let loader = loader.num_workers(2).pin_memory(&device).build().unwrap();
    fn check<T>(mut batches: impl Iterator<Item = T> + Debug) {
        for _ in 0..2 {
            assert_eq!(batches.size_hint(), (0, None));
            let printed = format!("{batches:?}");
            assert!(!printed.contains("remaining"), "{printed}");
            assert!(batches.next().is_some());
        }
    }
    check(loader.epoch(0));
    check(loader.epoch(0).with_info());
    check(loader.epoch(0).prefetch_to_device(&device, 1));
    check(loader.epoch(0).prefetch_to_device(&device, 1).with_info());
    check(loader.replay(0).unwrap());
    // But it is known how many epochs there are.
    assert_eq!(loader.epochs([0, 1, 2]).len(), 3);
    let replay = loader.replay(0).unwrap();
    assert_eq!(replay.prefetch_to_device(&device, 1).size_hint(), (0, None));
}

/// A source that has another order in each epoch, on each rank.
fn shuffled(len: u64, window: usize) -> impl IterableDataset<Sample = i64> {
    numbers(len).shuffle(window)
}

#[test]
fn what_comes_depends_on_neither_workers_nor_prefetch_nor_where_it_goes() {
    let noisy = || shuffled(50, 16).map(|number, rng| Ok((number, rng.next_u32())));
    let plain = |workers, prefetch: Option<usize>, device: Option<&Device>| {
        let builder = DataLoader::iterable(noisy()).batch_size(7).seed(3);
        let builder = builder.num_workers(workers);
        let builder = match prefetch {
            Some(prefetch) => builder.prefetch(prefetch),
            None => builder,
        };
        match device {
            Some(device) => builder.pin_memory(device),
            None => builder,
        }
        .build()
        .unwrap()
    };
    let expected: Vec<(Vec<i64>, Vec<i64>)> = plain(0, None, None)
        .epoch(1)
        .map(|batch| {
            let (numbers, noise) = batch.unwrap();
            (
                values(&numbers),
                noise
                    .as_slice()
                    .iter()
                    .map(|&noise| i64::from(noise))
                    .collect(),
            )
        })
        .collect();
    let mut hostile = Hostile::default();
    hostile.max_delay = Duration::from_micros(200);
    let devices = [Device::cpu(), Device::hostile(hostile).unwrap()];
    for device in &devices {
        for (workers, prefetch) in [
            (0, None),
            (1, Some(1)),
            (3, Some(1)),
            (3, None),
            (4, Some(6)),
        ] {
            for pinned in [None, Some(device)] {
                let loader = plain(workers, prefetch, pinned);
                let mut count = 0;
                for (batch, expected) in loader.epoch(1).zip(&expected) {
                    let (numbers, noise) = batch.unwrap();
                    assert_eq!(numbers.is_pinned(), pinned.is_some());
                    let noise = noise.as_slice().iter().map(|&noise| i64::from(noise));
                    assert_eq!((values(&numbers), noise.collect()), *expected);
                    count += 1;
                }
                assert_eq!(count, 8);
                let there = loader.epoch(1).prefetch_to_device(device, 2).with_info();
                let mut items = 0;
                for (batch, expected) in there.zip(&expected) {
                    let ((numbers, _), info) = batch.unwrap();
                    let back = numbers.to_host(true).unwrap().wait().unwrap();
                    assert_eq!(values(&back), expected.0);
                    assert_eq!(
                        (info.rows(), info.real_rows()),
                        (expected.0.len(), expected.0.len())
                    );
                    let own = info.indices();
                    assert!(own.iter().copied().eq(items..items + own.len() as u64));
                    items += own.len() as u64;
                }
                assert_eq!(items, 50);
            }
        }
    }
}

#[test]
fn the_last_batch_is_short_or_left_out() {
    for workers in [0, 3] {
        for len in 0..9 {
            let loader = DataLoader::iterable(numbers(len))
                .batch_size(4)
                .drop_last(true)
                .num_workers(workers)
                .build()
                .unwrap();
            let full = len as i64 / 4 * 4;
            assert_eq!(all(loader.epoch(0)), chunks(0..full, 4));
        }
    }
}

/// The end is found while the program waits for a batch that never comes.
#[test]
fn an_end_that_comes_late_ends_the_epoch() {
    for workers in [1, 2] {
        let (send, items) = mpsc::channel::<i64>();
        let items = std::sync::Mutex::new(Some(items));
        let source = iterable::from_fn(move |_, _| {
            let items = items.lock().unwrap().take().unwrap();
            Ok(items.into_iter().map(Ok))
        });
        let loader = DataLoader::iterable(source)
            .batch_size(2)
            .num_workers(workers)
            .build()
            .unwrap();
        let mut epoch = loader.epoch(0);
        assert!(matches!(epoch.try_next(), TryNext::NotYet));
        send.send(1).unwrap();
        send.send(2).unwrap();
        // What was pulled is given out, although no more comes: with one worker, too.
        assert_eq!(values(&epoch.next().unwrap().unwrap()), [1, 2]);
        assert!(matches!(
            epoch.next_timeout(Duration::from_millis(5)),
            TryNext::NotYet
        ));
        let ending = std::thread::Builder::new().name("ending".to_owned());
        let ending = ending.spawn(move || {
            std::thread::sleep(Duration::from_millis(5));
            drop(send);
        });
        assert!(epoch.next().is_none());
        assert!(epoch.next().is_none());
        ending.unwrap().join().unwrap();
    }
}

#[test]
fn a_stream_that_does_not_open_is_one_error() {
    for workers in WORKERS {
        let source = iterable::from_fn(|epoch, _| match epoch {
            0 => Err("the server is away".into()),
            _ => Ok([Ok(7i64)].into_iter()),
        });
        let loader = DataLoader::iterable(source)
            .num_workers(workers)
            .build()
            .unwrap();
        let mut epochs = loader.epochs(0..2);
        let mut broken = epochs.next().unwrap();
        let error = broken.next().unwrap().unwrap_err();
        assert!(matches!(error, Error::Iterable { epoch: 0, .. }), "{error}");
        assert_eq!(
            error.to_string(),
            "the iterable of epoch 0 did not open: the server is away"
        );
        assert!(broken.next().is_none());
        assert_eq!(all(epochs.next().unwrap()), [[7]]);
    }
}

#[test]
fn an_item_that_fails_is_an_error_of_its_batch_and_the_stream_goes_on() {
    let source = || {
        let items = iterable::from_fn(|_, _| {
            Ok((0..12i64).map(|number| match number {
                5 => Err("line 5 is no number".into()),
                number => Ok(number),
            }))
        });
        items.map(|number, _| match number {
            9 => Err("nine".into()),
            number => Ok(number),
        })
    };
    for workers in WORKERS {
        let builder = || {
            DataLoader::iterable(source())
                .batch_size(3)
                .num_workers(workers)
        };
        let loader = builder().build().unwrap();
        let batches: Vec<Result<Tensor<i64>>> = loader.epoch(0).collect();
        let said: Vec<String> = batches
            .iter()
            .filter_map(|batch| Some(batch.as_ref().err()?.to_string()))
            .collect();
        assert_eq!(batches.len(), 4);
        assert!(
            said[0].starts_with("sample 5, row 2 of batch 1 in epoch 0, "),
            "{said:?}"
        );
        assert!(
            said[0].ends_with("line 5 is no number") && said[1].ends_with("nine"),
            "{said:?}"
        );

        let device = Device::cpu();
        for pinned in [false, true] {
            let builder = builder().on_error(OnError::Skip { at_most: 2 });
            let builder = if pinned {
                builder.pin_memory(&device)
            } else {
                builder
            };
            let loader = builder.build().unwrap();
            let mut epoch = loader.epoch(0).with_info();
            let mut seen = Vec::new();
            for batch in epoch.by_ref() {
                let (batch, info) = batch.unwrap();
                assert_eq!(info.indices().len(), batch.len());
                seen.push(values(&batch));
            }
            assert_eq!(seen, [&[0, 1, 2][..], &[3, 4], &[6, 7, 8], &[10, 11]]);
            let stats = loader.stats();
            assert_eq!((stats.bad.skipped, stats.samples), (2, 10));
            assert!(
                stats.bad.listed[0].ends_with("line 5 is no number"),
                "{stats:?}"
            );
            assert!(stats.bad.listed[1].ends_with("nine"), "{stats:?}");
        }
    }
    let refused = DataLoader::iterable(source()).on_error(OnError::Replace { at_most: 1 });
    let refused = refused.build().unwrap_err().to_string();
    assert!(
        refused.contains("an iterable has no other sample"),
        "{refused}"
    );
}

#[test]
fn an_item_is_loaded_again_where_its_error_may_go_away() {
    let calls = Arc::new(AtomicU64::new(0));
    let counted = Arc::clone(&calls);
    let source = numbers(4).map(move |number, _| {
        match number == 2 && counted.fetch_add(1, Ordering::Relaxed) < 2 {
            true => Err(Temporary::new("503").into()),
            false => Ok(number),
        }
    });
    let loader = DataLoader::iterable(source)
        .batch_size(4)
        .retry(2, Duration::from_millis(1))
        .build()
        .unwrap();
    assert_eq!(all(loader.epoch(0)), [[0, 1, 2, 3]]);
    assert_eq!(calls.load(Ordering::Relaxed), 3);
}

#[test]
fn a_stream_that_panics_ends_with_that() {
    for workers in WORKERS {
        let source = iterable::from_fn(|_, _| {
            Ok((0..9i64).map(|number| match number {
                5 => watch::provoked("no item 5"),
                number => Ok(number),
            }))
        });
        let loader = DataLoader::iterable(source)
            .batch_size(2)
            .num_workers(workers)
            .build()
            .unwrap();
        for epoch in loader.epochs(0..2) {
            let batches: Vec<_> = epoch.collect();
            assert_eq!(batches.len(), 3);
            assert_eq!(values(batches[1].as_ref().unwrap()), [2, 3]);
            let error = batches[2].as_ref().unwrap_err();
            assert!(
                matches!(error, Error::IterablePanicked { batch: 2, .. }),
                "{error}"
            );
        }
    }
}

#[test]
fn a_stream_that_hangs_ends_with_the_timeout() {
    let (answer, server) = mpsc::channel::<()>();
    let server = std::sync::Mutex::new(Some(server));
    let source = iterable::from_fn(move |epoch, _| {
        let server = server.lock().unwrap().take();
        Ok((0..6i64).map(move |number| {
            if number == 3 && epoch == 0 {
                let _ = server.as_ref().map(mpsc::Receiver::recv); // no answer comes
            }
            Ok(number)
        }))
    });
    let loader = DataLoader::iterable(source)
        .batch_size(2)
        .num_workers(2)
        .timeout(Duration::from_millis(50))
        .build()
        .unwrap();
    let batches: Vec<_> = loader.epoch(0).collect();
    assert_eq!(batches.len(), 2);
    assert_eq!(values(batches[0].as_ref().unwrap()), [0, 1]);
    let said = batches[1].as_ref().unwrap_err().to_string();
    assert!(
        said.contains("an item of the iterable, for batch 1 of epoch 0, was still being pulled"),
        "{said}"
    );
    assert_eq!(all(loader.epoch(1)), [[0, 1], [2, 3], [4, 5]]);
    drop(loader); // does not wait for it
    drop(answer);
}

#[test]
fn a_stream_without_end_is_left_by_break() {
    for workers in WORKERS {
        let device = Device::cpu();
        let endless = iterable::from_fn(|_, _| Ok((0i64..).map(Ok)));
        let loader = DataLoader::iterable(endless)
            .batch_size(3)
            .num_workers(workers)
            .pin_memory(&device)
            .build()
            .unwrap();
        let mut seen = 0;
        for epoch in loader.epochs(0..3) {
            for batch in epoch {
                assert_eq!(values(&batch.unwrap())[0] % 3, 0);
                seen += 1;
                if seen % 5 == 0 {
                    break;
                }
            }
        }
        assert_eq!(seen, 15);
        for (number, epoch) in loader
            .epochs(0..3)
            .prefetch_to_device(&device, 2)
            .enumerate()
        {
            assert_eq!(epoch.take(number).count(), number);
        }
    }
}

/// Epochs follow each other, and what the next one has is pulled before the program comes to it.
#[test]
fn epochs_are_loaded_across_their_boundary() {
    for workers in WORKERS {
        for len in [0, 1, 5, 6] {
            let device = Device::cpu();
            let source = iterable::from_fn(move |epoch, _| {
                Ok((0..len).map(move |number| Ok(100 * epoch as i64 + number)))
            });
            let loader = DataLoader::iterable(source)
                .batch_size(2)
                .num_workers(workers)
                .pin_memory(&device)
                .build()
                .unwrap();
            let expected =
                |epoch: u64| chunks((0..len).map(|number| 100 * epoch as i64 + number), 2);
            for epoch in loader.epochs(2..5) {
                let number = epoch.number();
                assert_eq!(all(epoch), expected(number));
            }
            for epoch in loader.epochs(2..5).prefetch_to_device(&device, 3) {
                let number = epoch.number();
                let batches = epoch
                    .map(|batch| values(&batch.unwrap().to_host(true).unwrap().wait().unwrap()));
                assert_eq!(batches.collect::<Vec<_>>(), expected(number));
            }
        }
    }
    let (send, opened) = mpsc::channel();
    let source = iterable::from_fn(move |epoch, _| {
        send.send(epoch)?;
        Ok((0..2i64).map(Ok))
    });
    let loader = DataLoader::iterable(source)
        .batch_size(1)
        .num_workers(2)
        .build()
        .unwrap();
    let mut epochs = loader.epochs(0..9);
    let mut first = epochs.next().unwrap();
    assert!(first.next().is_some() && first.next().is_some());
    // Nobody asked for the second epoch, and it is opened as soon as there is room.
    assert_eq!((opened.recv(), opened.recv()), (Ok(0), Ok(1)));
}

#[test]
fn ranks_have_what_their_shard_says_and_numbers_of_their_own() {
    let loader = |rank, workers| {
        let source = numbers(20).map(|number, rng| Ok((number, rng.next_u32())));
        DataLoader::iterable(source)
            .batch_size(3)
            .num_workers(workers)
            .world(World::new(rank, 2).unwrap())
            .build()
            .unwrap()
    };
    let (mut seen, mut drawn) = (Vec::new(), Vec::new());
    for rank in 0..2 {
        for batch in loader(rank, 2).epoch(0) {
            let (numbers, noise) = batch.unwrap();
            assert!(
                numbers
                    .as_slice()
                    .iter()
                    .all(|number| *number as usize % 2 == rank)
            );
            seen.extend(values(&numbers));
            drawn.extend(noise.as_slice().to_vec());
        }
    }
    seen.sort_unstable();
    drawn.sort_unstable();
    drawn.dedup();
    assert!(seen.iter().copied().eq(0..20));
    assert_eq!(drawn.len(), 20);
}

#[test]
fn windows_are_shuffled_by_seed_epoch_and_rank() {
    let order = |seed, epoch, rank, window| {
        let loader =
            DataLoader::iterable(iterable::from_fn(|_, _| Ok((0..100i64).map(Ok))).shuffle(window))
                .batch_size(100)
                .seed(seed)
                .world(World::new(rank, 2).unwrap())
                .build()
                .unwrap();
        all(loader.epoch(epoch)).remove(0)
    };
    assert_eq!(order(1, 0, 0, 0), (0..100).collect::<Vec<_>>());
    assert_eq!(order(1, 0, 0, 1), (0..100).collect::<Vec<_>>());
    let orders = [
        order(1, 0, 0, 30),
        order(2, 0, 0, 30),
        order(1, 1, 0, 30),
        order(1, 0, 1, 30),
    ];
    for (number, one) in orders.iter().enumerate() {
        assert!(orders[..number].iter().all(|other| other != one));
        for (window, items) in one.chunks(30).enumerate() {
            let mut items = items.to_vec();
            assert!(!items.is_sorted());
            items.sort_unstable();
            let first = 30 * window as i64;
            assert!(items.iter().copied().eq(first..100.min(first + 30)));
        }
    }
    assert_eq!(order(1, 0, 0, 30), orders[0]);
}

/// All places of a window are as likely for each item (chi-square, 35 degrees of freedom, one in a million).
#[test]
fn windows_are_shuffled_evenly() {
    let mut counts = [[0u64; 6]; 6];
    let loader =
        DataLoader::iterable(iterable::from_fn(|_, _| Ok((0..6 * 1_000i64).map(Ok))).shuffle(6))
            .batch_size(6)
            .build()
            .unwrap();
    for batch in loader.epoch(0) {
        for (place, number) in batch.unwrap().as_slice().iter().enumerate() {
            counts[place][(number % 6) as usize] += 1;
        }
    }
    let expected = 1_000.0 / 6.0;
    let square = |count: &u64| (*count as f64 - expected).powi(2) / expected;
    let chi: f64 = counts.iter().flatten().map(square).sum();
    assert!(chi < 87.0, "{counts:?}: {chi}");
}

/// Whatever the weights, no source is ever further from its share than there are sources.
#[test]
fn sources_are_mixed_in_proportion() {
    for weights in [
        vec![1.0],
        vec![0.7, 0.3],
        vec![5.0, 0.0, 1.0, 2.5],
        vec![1.0; 7],
        vec![1e-3, 1.0, 0.3],
    ] {
        let sources = weights.iter().enumerate().map(|(source, weight)| {
            let items =
                iterable::from_fn(move |_, _| Ok((0..).map(move |_: u64| Ok(source as i64))));
            (items, *weight)
        });
        let mixed = iterable::mix(sources.collect::<Vec<_>>())
            .unwrap()
            .take(5_000);
        let loader = DataLoader::iterable(mixed).batch_size(64).build().unwrap();
        let sum: f64 = weights.iter().sum();
        let (mut counts, mut total) = (vec![0.0; weights.len()], 0.0);
        for batch in loader.epoch(0) {
            for source in values(&batch.unwrap()) {
                counts[source as usize] += 1.0;
                total += 1.0;
                for (count, weight) in counts.iter().zip(&weights) {
                    let away: f64 = count - total * weight / sum;
                    assert!(away.abs() < weights.len() as f64, "{weights:?} {counts:?}");
                }
            }
        }
        assert_eq!(total, 5_000.0);
    }
    for bad in [
        vec![],
        vec![0.0],
        vec![-1.0, 2.0],
        vec![f64::NAN],
        vec![f64::INFINITY],
    ] {
        let sources = bad.iter().map(|weight| (numbers(1), *weight));
        assert!(matches!(
            iterable::mix(sources),
            Err(Error::InvalidOption { option: "mix", .. })
        ));
    }
}

/// Not even to see that it is there; and a run is resumed all the same.
#[test]
fn a_source_of_weight_0_is_not_opened() {
    let source = |rest| {
        let part = move |part: i64| {
            iterable::from_fn(move |_, _| match part {
                1 => Err("it is not there".into()),
                part => Ok((0..4).map(move |number| Ok(10 * part + number))),
            })
        };
        let weights = [1.0, 0.0, 1.0].map(|weight| weight * rest);
        iterable::mix((0..).map(part).zip(weights)).unwrap()
    };
    let expected = chunks([0, 20, 1, 21, 2, 22, 3, 23], 3);
    for workers in WORKERS {
        let loader = DataLoader::iterable(source(0.5)).batch_size(3);
        let loader = loader.num_workers(workers).build().unwrap();
        let mut epoch = loader.epoch(0);
        assert_eq!(values(&epoch.next().unwrap().unwrap()), expected[0]);
        let state = epoch.state();
        assert_eq!(all(epoch), expected[1..]);
        let resumed = loader.resume(0..1, &state).unwrap().next().unwrap();
        assert_eq!(all(resumed), expected[1..]);
    }
    // By its place, too.
    let own = Seekable {
        len: 9,
        ..Seekable::default()
    };
    let mixed = iterable::mix([(own.clone(), 0.0), (own.clone(), 1.0)]).unwrap();
    let loader = DataLoader::iterable(mixed).batch_size(4).build().unwrap();
    let mut epoch = loader.epoch(0);
    assert_eq!(values(&epoch.next().unwrap().unwrap()), [0, 1, 2, 3]);
    own.pulled.store(0, Ordering::Relaxed);
    let resumed = loader.resume(0..1, &epoch.state()).unwrap().next().unwrap();
    assert_eq!(all(resumed), [&[4, 5, 6, 7][..], &[8]]);
    assert_eq!(own.pulled.load(Ordering::Relaxed), 6);
}

#[test]
fn when_one_source_has_ended_the_others_go_on() {
    let part =
        |first: i64, len: i64| iterable::from_fn(move |_, _| Ok((first..first + len).map(Ok)));
    let mixed =
        iterable::mix([(part(0, 3), 1.0), (part(100, 9), 1.0), (part(200, 6), 2.0)]).unwrap();
    let mut seen = all(DataLoader::iterable(mixed)
        .batch_size(99)
        .build()
        .unwrap()
        .epoch(0))
    .remove(0);
    // Each keeps its own order.
    for first in [0, 100, 200] {
        let own = seen
            .iter()
            .filter(|number| (first..first + 100).contains(*number));
        assert!(own.is_sorted());
    }
    seen.sort_unstable();
    assert!(seen.into_iter().eq((0..3).chain(100..109).chain(200..206)));
}

#[test]
fn a_pass_without_items_does_not_repeat_for_ever() {
    for times in [None, Some(5)] {
        let source = match times {
            None => numbers(0).repeat(),
            Some(times) => numbers(0).repeat_n(times),
        };
        assert!(all(DataLoader::iterable(source).build().unwrap().epoch(0)).is_empty());
    }
    assert!(
        all(DataLoader::iterable(numbers(3).repeat_n(0))
            .build()
            .unwrap()
            .epoch(0))
        .is_empty()
    );
    let twice = numbers(3).repeat_n(2);
    assert_eq!(
        all(DataLoader::iterable(twice)
            .batch_size(4)
            .build()
            .unwrap()
            .epoch(0)),
        [&[0, 1, 2, 0][..], &[1, 2]]
    );
}

/// A source with everything in it.
fn deep<S: IterableDataset<Sample = i64> + Clone>(
    own: S,
    window: usize,
) -> impl IterableDataset<Sample = (i64, u32)> {
    let mixed = iterable::mix([
        (own.clone().shuffle(window), 2.0),
        (own.clone().shuffle(3), 1.0),
    ])
    .unwrap();
    let chained = own.clone().skip(2).take(4).chain(mixed);
    let repeated = chained.repeat_n(2).take(40).shuffle(window);
    repeated.map(|number, rng| Ok((number, rng.next_u32())))
}

pub(super) type Noisy = (Vec<i64>, Vec<u32>);

/// Runs until the end, and is interrupted after each so many batches; every time, another loader goes on from the text of the state.
pub(super) fn interrupted<S>(
    source: impl Fn() -> S,
    workers: usize,
    batch: usize,
    stops: &[usize],
) -> (Noisy, usize)
where
    S: IterableDataset<Sample = (i64, u32)>,
{
    let (mut seen, mut state) = (
        (Vec::new(), Vec::new()),
        IterableState::default().to_string(),
    );
    for stop in stops.iter().copied().map(Some).chain([None]) {
        let loader = DataLoader::iterable(source())
            .batch_size(batch)
            .seed(5)
            .num_workers(workers)
            .build()
            .unwrap();
        let resumed = loader.resume(0..2, &state.parse().unwrap()).unwrap();
        let mut left = stop;
        'epochs: for epoch in resumed {
            for next in epoch {
                let (numbers, noise) = next.unwrap();
                seen.0.extend(values(&numbers));
                seen.1.extend(noise.as_slice().iter().copied());
                if let Some(left) = &mut left {
                    *left -= 1;
                    if *left == 0 {
                        break 'epochs;
                    }
                }
            }
        }
        state = loader.state().to_string();
    }
    let len = seen.0.len();
    (seen, len)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(40))]

    /// Interrupted anywhere, any number of times, a run sees what it would have seen.
    #[test]
    fn a_run_that_is_resumed_sees_the_same(
        len in 0u64..14,
        window in 1usize..9,
        batch in 1usize..6,
        workers in prop::sample::select(vec![0, 1, 3]),
        stops in prop::collection::vec(1usize..9, 0..6),
        seeks in any::<bool>(),
    ) {
        let (whole, resumed) = if seeks {
            let own = Seekable { len, ..Seekable::default() };
            let source = || deep(own.clone(), window);
            (interrupted(source, 0, batch, &[]), interrupted(source, workers, batch, &stops))
        } else {
            let own = Arc::new(numbers(len));
            let source = || deep(Arc::clone(&own), window);
            (interrupted(source, 0, batch, &[]), interrupted(source, workers, batch, &stops))
        };
        prop_assert_eq!(whole, resumed);
    }
}

/// Random numbers are keyed by the item, so a run may go on with another batch size, and others after that.
#[test]
fn a_run_goes_on_with_another_batch_size() {
    let run = |seeks: bool, sizes: &[usize]| {
        let own = Seekable {
            len: 60,
            ..Seekable::default()
        };
        let (mut seen, mut state) = (Vec::new(), IterableState::default());
        for (number, size) in sizes.iter().enumerate() {
            let is_last = number + 1 == sizes.len();
            let count = if is_last { usize::MAX } else { 3 };
            let mut go_on = |loader: DataLoader<(Tensor<i64>, Tensor<u32>), Iterable>| {
                for epoch in loader.resume(0..1, &state).unwrap() {
                    for batch in epoch.take(count) {
                        let (numbers, noise) = batch.unwrap();
                        seen.extend(values(&numbers).into_iter().zip(noise.to_vec()));
                    }
                }
                state = loader.state();
            };
            let noisy = |number, rng: &mut SampleRng| Ok((number, rng.next_u32()));
            go_on(match seeks {
                true => DataLoader::iterable(own.clone().shuffle(7).map(noisy))
                    .batch_size(*size)
                    .num_workers(2)
                    .build()
                    .unwrap(),
                false => DataLoader::iterable(numbers(60).shuffle(7).map(noisy))
                    .batch_size(*size)
                    .build()
                    .unwrap(),
            });
        }
        seen
    };
    for seeks in [false, true] {
        let whole = run(seeks, &[9]);
        assert_eq!(whole.len(), 60);
        assert_eq!(run(seeks, &[4, 1, 7, 5]), whole);
    }
}

/// A source that seeks reads no more than two windows again, whatever came before.
#[test]
fn seeking_reads_two_windows_at_most() {
    let own = Seekable {
        len: 200,
        ..Seekable::default()
    };
    let loader = DataLoader::iterable(own.clone().shuffle(8))
        .batch_size(5)
        .build()
        .unwrap();
    let mut epoch = loader.epoch(0);
    let whole: Vec<i64> = epoch
        .by_ref()
        .take(31)
        .flat_map(|batch| values(&batch.unwrap()))
        .collect();
    let state = epoch.state();
    let next = values(&epoch.next().unwrap().unwrap());
    own.pulled.store(0, Ordering::Relaxed);
    let resumed = loader.resume(0..1, &state).unwrap().next().unwrap().next();
    assert_eq!(values(&resumed.unwrap().unwrap()), next);
    // Two windows, and an item for each of the batch.
    assert!(own.pulled.load(Ordering::Relaxed) <= 16 + 5);
    assert_eq!((state.items(), whole.len()), (155, 155));
}

#[test]
fn the_state_of_an_epoch_that_ended_begins_the_next() {
    let own = Seekable {
        len: 5,
        ..Seekable::default()
    };
    let loader = DataLoader::iterable(own)
        .batch_size(2)
        .num_workers(2)
        .build()
        .unwrap();
    assert_eq!(loader.state().epoch(), 0);
    let mut epoch = loader.epoch(3);
    assert_eq!(epoch.by_ref().take(3).count(), 3);
    // Nobody has seen the end yet: what is left of the epoch is nothing.
    let state = epoch.state();
    assert_eq!((state.epoch(), state.items()), (3, 5));
    let resumed: Vec<_> = loader.resume(0..5, &state).unwrap().map(all).collect();
    assert_eq!(resumed, [vec![], chunks(4_000..4_005, 2)]);
    assert!(epoch.next().is_none());
    let state = epoch.state();
    assert_eq!((state.epoch(), state.items()), (4, 0));
    let resumed: Vec<_> = loader.resume(0..5, &state).unwrap().map(all).collect();
    assert_eq!(resumed, [chunks(4_000..4_005, 2)]);
}

#[test]
fn a_state_of_another_run_or_source_is_refused() {
    let loader = |seed, rank, ranks| {
        DataLoader::iterable(
            Seekable {
                len: 9,
                ..Seekable::default()
            }
            .shuffle(4),
        )
        .seed(seed)
        .world(World::new(rank, ranks).unwrap())
        .build()
        .unwrap()
    };
    let own = loader(1, 0, 2);
    let mut epoch = own.epoch(0);
    epoch.next();
    let state: IterableState = epoch.state().to_string().parse().unwrap();
    assert_eq!(state, epoch.state());
    let said = |seed, rank, ranks| match loader(seed, rank, ranks).resume(0..1, &state) {
        Ok(_) => String::new(),
        Err(error) => error.to_string(),
    };
    assert!(said(1, 0, 2).is_empty());
    assert!(said(2, 0, 2).contains("its seed is 1, the loader's 2"));
    assert!(said(1, 1, 2).contains("that of rank 0, and this is rank 1"));
    assert!(said(1, 0, 3).contains("of 2 ranks, and there are 3"));
    let text = state.to_string();
    for end in 0..text.len() {
        assert!(text[..end].parse::<IterableState>().is_err(), "{end}");
    }
    assert!("pinfeed-state-1 epoch=0".parse::<IterableState>().is_err());

    // Streams look themselves, too: a source may give a fingerprint of its own.
    let shard = Shard::new(0, 1, 0);
    let source = || Seekable {
        len: 9,
        ..Seekable::default()
    };
    let mut cut = source().take(4).open(0, shard).unwrap();
    let shuffled = source().shuffle(4).open(0, shard).unwrap().state().unwrap();
    let error = cut.seek(&shuffled).unwrap_err().to_string();
    assert!(
        error.contains("the state is that of another source"),
        "{error}"
    );
    for end in 0..shuffled.len() {
        let mut own = source().shuffle(4).open(0, shard).unwrap();
        assert!(own.seek(&shuffled[..end]).is_err(), "{end}");
    }
}

/// Lines of a file that is known by its name.
#[derive(Clone)]
struct Named(&'static str);

impl IterableDataset for Named {
    type Item = i64;
    type Sample = i64;
    type Iter = std::vec::IntoIter<std::result::Result<i64, BoxError>>;

    fn open(&self, _: u64, _: Shard) -> Result<Self::Iter, BoxError> {
        Ok((0..40).map(Ok).collect::<Vec<_>>().into_iter())
    }

    fn load(&self, item: i64, _: &mut SampleRng) -> Result<i64, BoxError> {
        Ok(item)
    }

    fn fingerprint(&self) -> u32 {
        let mut print = Fingerprint::new();
        print.add(self.0.as_bytes());
        print.finish()
    }
}

#[test]
fn sources_are_told_apart_by_fingerprints() {
    let (a, b) = (Named("a"), Named("b"));
    let mixed = |first: f64| iterable::mix([(a.clone(), first), (b.clone(), 1.0)]).unwrap();
    let documents = || a.clone().map(|token, _| Ok(vec![token]));
    let prints = [
        numbers(3).fingerprint(),
        a.fingerprint(),
        b.fingerprint(),
        a.clone().shuffle(4).fingerprint(),
        a.clone().shuffle(5).fingerprint(),
        b.clone().shuffle(4).fingerprint(),
        a.clone().take(4).fingerprint(),
        a.clone().take(5).fingerprint(),
        a.clone().skip(4).fingerprint(),
        a.clone().skip(5).fingerprint(),
        a.clone().chain(b.clone()).fingerprint(),
        b.clone().chain(a.clone()).fingerprint(),
        a.clone().repeat().fingerprint(),
        a.clone().repeat_n(2).fingerprint(),
        a.clone().repeat_n(3).fingerprint(),
        mixed(1.0).fingerprint(),
        mixed(2.0).fingerprint(),
        mixed(2.0).shuffle(4).fingerprint(),
        a.clone().take(4).shuffle(4).fingerprint(),
        a.clone().shuffle(4).take(4).fingerprint(),
        a.clone().filter(|_, _| Ok(true)).fingerprint(),
        b.clone().filter(|_, _| Ok(true)).fingerprint(),
        a.clone().flat_map(|_, _| Ok([Ok(1)])).fingerprint(),
        b.clone().flat_map(|_, _| Ok([Ok(1)])).fingerprint(),
        a.clone().bucket_by_length(4, |_| 1).unwrap().fingerprint(),
        a.clone()
            .bucket_by_length(8, |_| 1)
            .unwrap()
            .with_buffer(50)
            .fingerprint(),
        b.clone().bucket_by_length(4, |_| 1).unwrap().fingerprint(),
        documents().pack(4).unwrap().fingerprint(),
        documents().pack(5).unwrap().fingerprint(),
        documents().pack(4).unwrap().with_best_fit(2).fingerprint(),
        documents().pack(4).unwrap().with_best_fit(3).fingerprint(),
    ];
    for (number, print) in prints.iter().enumerate() {
        assert!(!prints[..number].contains(print), "{number}: {prints:x?}");
    }
    // What does not change which items come is no part of it; nor is how the program holds it.
    assert_eq!(documents().fingerprint(), a.fingerprint());
    assert_eq!(Arc::new(a.clone()).fingerprint(), a.fingerprint());
    let one = a.clone().shuffle(1).fingerprint();
    assert_eq!(a.clone().shuffle(0).fingerprint(), one);
    // A checkpoint of today must fit the loader of tomorrow.
    assert_eq!(one, 0x2776_0bae);
}

/// An iterator has no state of its own by which it could tell.
#[test]
fn a_state_of_another_source_is_refused_even_where_it_is_resumed_by_skipping() {
    let run = |name, window, state: &IterableState| -> Result<IterableState> {
        let loader = DataLoader::iterable(Named(name).shuffle(window))
            .batch_size(5)
            .build()?;
        loader.resume(0..1, state)?.next().unwrap().next();
        // The state before the first batch of a resumed run, and the one behind it, belong to the same source.
        drop(loader.resume(0..1, &loader.state())?);
        Ok(loader.state())
    };
    let state = run("a.txt", 8, &IterableState::default()).unwrap();
    let state: IterableState = state.to_string().parse().unwrap();
    assert_eq!(run("a.txt", 8, &state).unwrap().items(), 10);
    for (name, window) in [("b.txt", 8), ("a.txt", 9)] {
        let error = run(name, window, &state).unwrap_err();
        assert!(matches!(error, Error::State { .. }), "{error}");
        assert!(
            error.to_string().contains("its source is another one"),
            "{error}"
        );
    }
}

/// Two shuffles do not draw the same order twice.
#[test]
fn sources_within_sources_draw_other_numbers() {
    let order = |times| {
        let once = numbers(64).shuffle(64);
        let builder = |source| DataLoader::iterable(source).batch_size(64).seed(3);
        match times {
            1 => all(builder(once).build().unwrap().epoch(0)).remove(0),
            _ => all(DataLoader::iterable(once.shuffle(64))
                .batch_size(64)
                .seed(3)
                .build()
                .unwrap()
                .epoch(0))
            .remove(0),
        }
    };
    let once = order(1);
    let again: Vec<i64> = once.iter().map(|at| once[*at as usize]).collect();
    assert_ne!(order(2), again);
}

#[test]
fn a_collate_function_gets_items_in_order() {
    let words = iterable::from_fn(|_, _| {
        Ok(["a", "bb", "ccc"]
            .map(|word| Ok(word.to_owned()))
            .into_iter())
    });
    for workers in [0, 2] {
        let loader = DataLoader::iterable(words.clone())
            .batch_size(2)
            .num_workers(workers)
            .collate_fn(|words: Vec<String>, arena| {
                Ok(arena.collate::<i64>(words.iter().map(|word| word.len() as i64).collect())?)
            })
            .build()
            .unwrap();
        assert_eq!(all(loader.epoch(0)), [&[1, 2][..], &[3]]);
    }
}

/// An item that is dropped may panic, and so may the stream.
#[test]
fn items_and_streams_may_panic_when_they_are_dropped() {
    #[derive(Clone)]
    struct Fragile;
    impl Drop for Fragile {
        fn drop(&mut self) {
            if !std::thread::panicking() {
                watch::provoked("dropped");
            }
        }
    }
    for workers in [0, 1, 3] {
        let items = iterable::from_fn(|_, _| {
            let own = Fragile;
            Ok((0..5i64).map(move |number| {
                let _held = &own;
                match number {
                    3 => Err("an error".into()),
                    number => Ok((number, Arc::new(Fragile))),
                }
            }))
        });
        let source = items.map(|(number, fragile), _| {
            let _held = std::mem::ManuallyDrop::new(fragile);
            Ok(number)
        });
        let loader = DataLoader::iterable(source)
            .batch_size(2)
            .num_workers(workers)
            .build()
            .unwrap();
        for epoch in loader.epochs(0..3) {
            let batches: Vec<_> = epoch.collect();
            assert!(batches.len() >= 2, "{}", batches.len());
            assert_eq!(values(batches[0].as_ref().unwrap()), [0, 1]);
            assert!(batches[1].is_err());
        }
    }
}

/// Only the source could split a stream.
#[test]
fn a_stream_is_for_one_device() {
    let devices = [Device::cpu(), Device::cpu()];
    let build = |devices: &[Device]| {
        let numbers = iterable::from_fn(|_, _| Ok((0..10i64).map(Ok)));
        DataLoader::iterable(numbers).pin_memory(devices).build()
    };
    let error = build(&devices).unwrap_err().to_string();
    assert!(
        error.contains("pin_memory") && error.contains("2 devices"),
        "{error}"
    );
    assert!(build(&devices[..1]).is_ok());
    let error = build(&[]).unwrap_err().to_string();
    assert!(error.contains("`pin_memory`: names no device"), "{error}");
}
