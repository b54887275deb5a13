//! Requests that hang, beside a loader with a `timeout`: their samples are errors, and nothing else is.
//!
//! Nothing here asserts a time. What hangs waits for a gate that the test opens at its end.

use std::collections::HashSet;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

use pinfeed::collate::Stack;
use pinfeed::dataset::{Staged, StagedDataset, StagedStats};
use pinfeed::error::Temporary;
use pinfeed::loader::{Builder, OnError};
use pinfeed::{BoxError, DataLoader, Dataset, Error, Result, SampleRng, Tensor};

/// Not so short that a sample is late by chance.
const TIMEOUT: Duration = Duration::from_millis(400);

/// What hangs waits here, and so does a test, for so many to hang.
#[derive(Default)]
struct Gate {
    state: Mutex<(bool, usize)>,
    changed: Condvar,
}

impl Gate {
    fn hang(&self) {
        let mut state = self.state.lock().unwrap();
        state.1 += 1;
        self.changed.notify_all();
        while !state.0 {
            state = self.changed.wait(state).unwrap();
        }
    }

    fn wait_for(&self, came: usize) {
        let mut state = self.state.lock().unwrap();
        while state.1 < came {
            state = self.changed.wait(state).unwrap();
        }
    }

    fn open(&self) {
        self.state.lock().unwrap().0 = true;
        self.changed.notify_all();
    }
}

/// A store whose requests for some samples hang: always, or the first time.
#[derive(Clone, Default)]
struct Store(Arc<Inner>);

#[derive(Default)]
struct Inner {
    len: u64,
    gate: Gate,
    hang: Mutex<HashSet<u64>>,
    hangs_once: bool,
    /// Hangs in `decode`.
    hangs_decoding: Option<u64>,
    fails: Option<fn(u64) -> BoxError>,
    bad: Mutex<HashSet<u64>>,
    /// This one's request opens the gate.
    opens: Option<u64>,
    /// How many values are alive.
    alive: Arc<AtomicUsize>,
}

struct Raw(u64, Arc<AtomicUsize>);

impl Drop for Raw {
    fn drop(&mut self) {
        self.1.fetch_sub(1, Ordering::SeqCst);
    }
}

impl StagedDataset for Store {
    type Raw = Raw;
    type Sample = i64;

    fn len(&self) -> u64 {
        self.0.len
    }

    fn fetch(&self, index: u64) -> Result<Raw, BoxError> {
        let hangs = {
            let mut hang = self.0.hang.lock().unwrap();
            match self.0.hangs_once {
                true => hang.remove(&index),
                false => hang.contains(&index),
            }
        };
        if self.0.opens == Some(index) {
            self.0.gate.open();
        }
        if hangs {
            self.0.gate.hang();
        }
        if let Some(fails) = self.0.fails
            && self.0.bad.lock().unwrap().remove(&index)
        {
            return Err(fails(index));
        }
        self.0.alive.fetch_add(1, Ordering::SeqCst);
        Ok(Raw(index, Arc::clone(&self.0.alive)))
    }

    fn decode(&self, index: u64, raw: Raw, _: &mut SampleRng) -> Result<i64, BoxError> {
        if self.0.hangs_decoding == Some(index) {
            self.0.gate.hang();
        }
        assert_eq!(raw.0, index);
        Ok(index as i64)
    }

    fn raw_bytes(&self, _: &Raw) -> usize {
        100
    }

    fn describe(&self, index: u64) -> Option<String> {
        Some(format!("object {index}"))
    }
}

fn store(len: u64, hang: impl IntoIterator<Item = u64>) -> Inner {
    Inner {
        len,
        hang: Mutex::new(hang.into_iter().collect()),
        ..Inner::default()
    }
}

fn builder<D: Dataset>(dataset: D, workers: usize) -> Builder<D, Stack> {
    DataLoader::builder(dataset)
        .batch_size(1)
        .num_workers(workers)
        .timeout(TIMEOUT)
}

/// Checks that exactly these samples are errors, in batches of one.
fn check(batches: impl Iterator<Item = Result<Tensor<i64>>>, len: u64, hung: &[u64]) {
    let mut seen = 0;
    for (number, batch) in batches.enumerate() {
        seen += 1;
        match batch {
            Ok(batch) => {
                assert!(!hung.contains(&(number as u64)), "{number}");
                assert_eq!(batch.as_slice(), [number as i64]);
            }
            Err(error) => {
                assert!(hung.contains(&(number as u64)), "{number}: {error}");
                check_late(&error, number as u64);
            }
        }
    }
    assert_eq!(seen, len);
}

fn check_late(error: &Error, index: u64) {
    let Error::TimedOut(late) = error else {
        panic!("{error}");
    };
    let sample = late.sample.as_ref().unwrap();
    assert_eq!(sample.index, index, "{error}");
    assert_eq!(sample.description, Some(format!("object {index}")));
    assert!(late.elapsed >= TIMEOUT, "{error}");
    assert!(late.worker.starts_with("pinfeed-worker-"), "{error}");
}

/// Waits until its statistics say so.
fn wait_for(staged: &Staged<Store>, is_so: impl Fn(StagedStats) -> bool) -> StagedStats {
    loop {
        let stats = staged.stats();
        if is_so(stats) {
            return stats;
        }
        std::thread::yield_now();
    }
}

/// Opens the gate and waits until everything has come back, and is freed.
fn end(store: &Store) {
    store.0.gate.open();
    while Arc::strong_count(&store.0) > 1 {
        std::thread::yield_now();
    }
    assert_eq!(store.0.alive.load(Ordering::SeqCst), 0);
}

/// As many hang as may be in flight, and more; the samples behind them come, in this epoch and in the next.
#[test]
fn requests_that_hang_are_not_in_the_way_of_others() {
    for (in_flight, workers, hung) in [
        (2, 2, &[3, 4][..]),
        (1, 1, &[3]),
        (1, 2, &[3]),
        (2, 3, &[0, 9]),
        (2, 2, &[1, 2, 3, 4, 5, 12, 19]),
    ] {
        let store = Store(Arc::new(store(20, hung.iter().copied())));
        let staged = Arc::new(Staged::new(store.clone()).with_in_flight(in_flight));
        let loader = builder(Arc::clone(&staged), workers).build().unwrap();
        for epoch in loader.epochs(0..2) {
            check(epoch, 20, hung);
        }
        let given_up = 2 * hung.len() as u64;
        let stats = wait_for(&staged, |stats| stats.given_up == given_up);
        assert_eq!(stats.running, 2 * hung.len(), "{stats:?}");
        drop(loader);
        drop(staged); // neither waits for them
        end(&store);
    }
}

/// A sample that hung once is requested again in the next epoch, whatever became of its first request.
#[test]
fn the_same_sample_is_asked_for_again() {
    let store = Store(Arc::new(Inner {
        hangs_once: true,
        ..store(20, [3, 4])
    }));
    let staged = Arc::new(Staged::new(store.clone()).with_in_flight(2));
    let loader = builder(Arc::clone(&staged), 2).build().unwrap();
    check(loader.epoch(0), 20, &[3, 4]);
    check(loader.epoch(1), 20, &[]);
    let stats = wait_for(&staged, |stats| stats.given_up == 2);
    assert_eq!((stats.running, stats.overdue), (2, 2));
    // They come back when nobody needs them: what they bring is dropped, and their threads go on.
    store.0.gate.open();
    let stats = wait_for(&staged, |stats| stats.running == 0);
    assert_eq!((stats.overdue, stats.held_bytes), (0, 0));
    check(loader.epoch(2), 20, &[]);
    wait_for(&staged, |stats| stats.given_up == 2);
    drop((loader, staged));
    end(&store);
}

/// A request that gave its place to another may still come in time.
#[test]
fn a_request_that_is_slow_is_no_error() {
    // Sample 0 comes once 1 is requested, which waits for its place.
    let store = Store(Arc::new(Inner {
        opens: Some(1),
        ..store(20, [0])
    }));
    let staged = Arc::new(Staged::new(store.clone()).with_in_flight(1));
    let loader = builder(Arc::clone(&staged), 2).timeout(4 * TIMEOUT);
    check(loader.build().unwrap().epoch(0), 20, &[]);
    let stats = staged.stats();
    assert_eq!((stats.fetched, stats.given_up), (20, 0));
    drop(staged);
    end(&store);
}

/// All samples of a batch that was given up for one of them: nobody waits for the others, which hang as well.
#[test]
fn the_rest_of_a_batch_may_hang_too() {
    let store = Store(Arc::new(store(60, [1, 2, 3, 4, 5, 6])));
    let staged = Staged::new(store.clone()).with_in_flight(3);
    let loader = builder(staged, 2).batch_size(10).build().unwrap();
    let batches: Vec<_> = loader.epoch(0).collect();
    let failed: Vec<bool> = batches.iter().map(Result::is_err).collect();
    assert_eq!(failed, [true, false, false, false, false, false]);
    drop((batches, loader));
    end(&store);
}

/// Requests of an epoch that was dropped hang: the next one is whole.
#[test]
fn an_epoch_that_was_dropped_may_leave_requests_that_hang() {
    let store = Store(Arc::new(Inner {
        hangs_once: true,
        ..store(20, 2..6)
    }));
    let loader = builder(Staged::new(store.clone()).with_in_flight(4), 1);
    let loader = loader.build().unwrap();
    let mut epoch = loader.epoch(0);
    assert!(epoch.next().unwrap().is_ok());
    store.0.gate.wait_for(4);
    drop(epoch);
    check(loader.epoch(1), 20, &[]);
    drop(loader);
    end(&store);
}

/// A sample that nobody announced, in place of a bad one or tried again, needs a place while all of them hang.
#[test]
fn a_sample_that_failed_is_requested_again_beside_those_that_hang() {
    for is_temporary in [true, false] {
        let store = Store(Arc::new(Inner {
            bad: Mutex::new(HashSet::from([2])),
            fails: Some(match is_temporary {
                true => |_| Temporary::new("503").into(),
                false => |_| "it is broken".into(),
            }),
            ..store(20, [3, 4])
        }));
        let loader = builder(Staged::new(store.clone()).with_in_flight(2), 1)
            .retry(1, Duration::from_nanos(1))
            .on_error(OnError::Replace { at_most: 1 })
            .build()
            .unwrap();
        let mut errors = 0;
        for (number, batch) in loader.epoch(0).enumerate() {
            match batch {
                Ok(batch) if number == 2 => {
                    assert_eq!(batch.as_slice()[0] == 2, is_temporary);
                }
                Ok(batch) => assert_eq!(batch.as_slice(), [number as i64]),
                Err(error) => {
                    errors += 1;
                    check_late(&error, number as u64);
                }
            }
        }
        assert_eq!(errors, 2);
        let stats = loader.stats();
        let expected = if is_temporary { (1, 0) } else { (0, 1) };
        assert_eq!((stats.bad.retried, stats.bad.replaced), expected);
        drop(loader);
        end(&store);
    }
}

/// What hangs takes no room from others, be it in `fetch` or in `decode`.
#[test]
fn what_hangs_needs_no_room() {
    for max_bytes in [1, 250] {
        let store = Store(Arc::new(Inner {
            hangs_decoding: Some(6),
            ..store(20, [3, 4])
        }));
        let staged = Arc::new(
            Staged::new(store.clone())
                .with_in_flight(4)
                .with_max_bytes(max_bytes),
        );
        let loader = builder(Arc::clone(&staged), 2).build().unwrap();
        check(loader.epoch(0), 20, &[3, 4, 6]);
        // What is being decoded is there.
        assert_eq!(staged.stats().held_bytes, 100);
        drop((loader, staged));
        end(&store);
    }
}

/// A worker notices by itself that no answer comes, while the program is busy; and no policy takes that for a bad sample.
#[test]
fn nobody_need_ask() {
    for on_error in [OnError::Fail, OnError::Replace { at_most: 9 }] {
        let store = Store(Arc::new(store(20, [0])));
        let staged = Arc::new(Staged::new(store.clone()));
        let loader = builder(Arc::clone(&staged), 1).on_error(on_error);
        let loader = loader.retry(9, Duration::from_nanos(1)).build().unwrap();
        let epoch = loader.epoch(0);
        wait_for(&staged, |stats| stats.given_up == 1);
        check(epoch, 20, &[0]);
        let stats = loader.stats();
        assert_eq!((stats.bad.replaced, stats.bad.retried), (0, 0));
        drop((loader, staged));
        end(&store);
    }
}

/// The workers that waited come back when their time is over: whatever they hold is free, though the requests still hang.
#[test]
fn only_the_threads_of_requests_are_left() {
    let store = Store(Arc::new(store(20, [3, 4])));
    let staged = Arc::new(Staged::new(store.clone()).with_in_flight(2));
    let loader = builder(Arc::clone(&staged), 2).build().unwrap();
    check(loader.epoch(0), 20, &[3, 4]);
    drop(loader);
    while Arc::strong_count(&staged) > 1 {
        std::thread::yield_now();
    }
    drop(staged);
    end(&store);
}
