//! Streams that are left while they are pulled: nobody waits for more than the item that is just being pulled, whatever the stream does with
//! items. And a timeout holds for each item of a source, not for what becomes of them.
//!
//! Nothing here asserts a time: items are counted.

#![allow(clippy::disallowed_methods)] // threads of one line need no names
#![allow(clippy::mem_forget)] // an epoch that was leaked is what is tested

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, mpsc};
use std::thread;
use std::time::Duration;

use pinfeed::error::Stage;
use pinfeed::iterable::{self, ItemIter, IterableDataset, Shard};
use pinfeed::loader::{Epoch, Iterable, IterableState, TryNext};
use pinfeed::{BoxError, DataLoader, Error, Result, SampleRng, Tensor};

const LEN: u64 = 12_000;
/// How many items a window has, or are left out.
const MANY: usize = 5_000;
const NEVER: u64 = u64::MAX;

/// Numbers. At one of them, in epoch 0, the stream tells that it is there, and waits until it is interrupted.
#[derive(Clone)]
struct Numbers(Arc<Shared>);

struct Shared {
    waits_at: AtomicU64,
    /// How many numbers of epoch 0 were asked for; and had been when the stream was interrupted.
    pulled: AtomicU64,
    had_pulled: AtomicU64,
    is_there: AtomicU64,
}

impl Numbers {
    fn new(waits_at: u64) -> Numbers {
        Numbers(Arc::new(Shared {
            waits_at: waits_at.into(),
            pulled: 0.into(),
            had_pulled: 0.into(),
            is_there: 0.into(),
        }))
    }

    fn is_there(&self) -> bool {
        self.0.is_there.load(Ordering::SeqCst) > 0
    }

    fn wait_until_there(&self) {
        while !self.is_there() {
            thread::yield_now();
        }
    }

    /// No number was pulled since the interruption.
    fn check(&self, what: &str) {
        let had_pulled = self.0.had_pulled.load(Ordering::SeqCst);
        assert!(had_pulled > 0, "{what}: it was not interrupted");
        assert_eq!(self.0.pulled.load(Ordering::SeqCst), had_pulled, "{what}");
    }

    /// From now on, it waits nowhere.
    fn waits_never(&self) {
        self.0.waits_at.store(NEVER, Ordering::SeqCst);
    }
}

struct Counting {
    numbers: Numbers,
    epoch: u64,
    at: u64,
}

impl IterableDataset for Numbers {
    type Item = i64;
    type Sample = i64;
    type Iter = Counting;

    fn open(&self, epoch: u64, _: Shard) -> Result<Counting, BoxError> {
        Ok(Counting {
            numbers: self.clone(),
            epoch,
            at: 0,
        })
    }

    fn load(&self, item: i64, _: &mut SampleRng) -> Result<i64, BoxError> {
        Ok(item)
    }
}

impl ItemIter for Counting {
    type Item = i64;

    fn next(&mut self) -> Option<Result<i64, BoxError>> {
        if self.at == LEN {
            return None;
        }
        let shared = &*self.numbers.0;
        if self.epoch == 0 {
            shared.pulled.fetch_add(1, Ordering::SeqCst);
            if shared.waits_at.load(Ordering::SeqCst) == self.at {
                shared.is_there.store(1, Ordering::SeqCst);
                while iterable::progress().is_ok() {
                    thread::yield_now();
                }
                let pulled = shared.pulled.load(Ordering::SeqCst);
                shared.had_pulled.store(pulled, Ordering::SeqCst);
            }
        }
        self.at += 1;
        Some(Ok(self.at as i64 - 1))
    }

    fn state(&self) -> Option<Vec<u8>> {
        Some(self.at.to_le_bytes().to_vec())
    }

    fn seek(&mut self, state: &[u8]) -> Result<(), BoxError> {
        self.at = u64::from_le_bytes(state.try_into()?);
        Ok(())
    }
}

/// An adapter as a program writes it: it leaves out all but every so many-th item.
#[derive(Clone)]
struct Every<S>(S, i64);

struct EveryStream<I>(I, i64);

impl<S: IterableDataset<Item = i64, Sample = i64>> IterableDataset for Every<S> {
    type Item = i64;
    type Sample = i64;
    type Iter = EveryStream<S::Iter>;

    fn open(&self, epoch: u64, shard: Shard) -> Result<Self::Iter, BoxError> {
        Ok(EveryStream(self.0.open(epoch, shard)?, self.1))
    }

    fn load(&self, item: i64, rng: &mut SampleRng) -> Result<i64, BoxError> {
        self.0.load(item, rng)
    }
}

impl<I: ItemIter<Item = i64>> ItemIter for EveryStream<I> {
    type Item = i64;

    fn next(&mut self) -> Option<Result<i64, BoxError>> {
        loop {
            match self.0.next()? {
                Ok(number) if number % self.1 != self.1 - 1 => {}
                item => return Some(item),
            }
            if let Err(interrupted) = iterable::progress() {
                return Some(Err(interrupted.into()));
            }
        }
    }

    fn state(&self) -> Option<Vec<u8>> {
        self.0.state()
    }

    fn seek(&mut self, state: &[u8]) -> Result<(), BoxError> {
        self.0.seek(state)
    }
}

fn loader<S: IterableDataset<Sample = i64>>(
    source: S,
    batch_size: usize,
    workers: usize,
) -> DataLoader<Tensor<i64>, Iterable> {
    let builder = DataLoader::iterable(source).batch_size(batch_size).seed(3);
    builder.num_workers(workers).build().unwrap()
}

fn all(epoch: Epoch<'_, Tensor<i64>, Iterable>) -> Vec<i64> {
    epoch.flat_map(|batch| batch.unwrap().to_vec()).collect()
}

/// Takes batches until the source waits.
fn until_there(epoch: &mut Epoch<'_, Tensor<i64>, Iterable>, numbers: &Numbers) -> Vec<i64> {
    let mut seen = Vec::new();
    while !numbers.is_there() {
        if let TryNext::Batch(batch) = epoch.next_timeout(Duration::from_millis(1)) {
            seen.extend(batch.unwrap().to_vec());
        }
    }
    seen
}

/// Leaves a stream in all ways, while it waits at each of some numbers.
fn left_in_all_ways<S: IterableDataset<Sample = i64>>(
    what: &str,
    batch_size: usize,
    make: impl Fn(Numbers) -> S,
) {
    let whole = |epoch| all(loader(make(Numbers::new(NEVER)), batch_size, 0).epoch(epoch));
    let (whole, following) = (whole(0), whole(1));
    assert!(!whole.is_empty(), "{what}");
    for (workers, waits_at) in [(1, 1_000), (3, 1_000), (1, 7_000), (2, 0)] {
        let what = format!("{what}, {workers} workers, at {waits_at}");
        let start = || {
            let numbers = Numbers::new(waits_at);
            (loader(make(numbers.clone()), batch_size, workers), numbers)
        };

        // The epoch, and then comes another one, of the same line or not.
        for follows in [true, false] {
            let (loader, numbers) = start();
            let mut epochs = loader.epochs(0..2);
            let mut epoch = epochs.next().unwrap();
            let seen = until_there(&mut epoch, &numbers);
            let state = epoch.state();
            drop(epoch);
            let next = match follows {
                true => epochs.next().unwrap(),
                false => loader.epoch(1),
            };
            assert_eq!(all(next), following, "{what}");
            drop(epochs);
            if workers == 1 {
                numbers.check(&what);
            }
            // What was not given out comes again.
            numbers.waits_never();
            let mut resumed = loader.resume(0..1, &state).unwrap();
            let rest = all(resumed.next().unwrap());
            assert_eq!([seen, rest].concat(), whole, "{what}");
        }

        // The epoch, and the loader with it, in the usual way and by a panic.
        for panics in [false, true] {
            let (loader, numbers) = start();
            let (there, what) = (numbers.clone(), &what);
            let left = AssertUnwindSafe(move || {
                let mut epoch = loader.epoch(0);
                until_there(&mut epoch, &there);
                if panics {
                    watch::provoked("the step panics");
                }
            });
            assert_eq!(catch_unwind(left).is_err(), panics);
            numbers.check(what);
        }

        // The loader alone: the epoch is leaked.
        let (loader, numbers) = start();
        let mut epoch = loader.epoch(0);
        until_there(&mut epoch, &numbers);
        std::mem::forget(epoch);
        drop(loader);
        numbers.check(&what);
    }
}

#[test]
fn windows_are_left_while_they_are_filled() {
    left_in_all_ways("shuffle", 50, |numbers| numbers.shuffle(MANY));
    left_in_all_ways("shuffle twice", 50, |numbers| {
        numbers.shuffle(700).shuffle(MANY)
    });
}

#[test]
fn batches_are_left_while_they_are_pulled() {
    left_in_all_ways("batch_size", 4_000, |numbers| numbers);
    left_in_all_ways("take", 4_000, |numbers| numbers.take(LEN - 1));
    left_in_all_ways("repeat", 9_000, |numbers| numbers.repeat_n(2));
}

#[test]
fn what_is_skipped_is_left() {
    left_in_all_ways("skip", 50, |numbers| numbers.skip(MANY as u64));
    left_in_all_ways("skip and chain", 50, |numbers| {
        numbers.clone().take(3).chain(numbers.skip(MANY as u64))
    });
    left_in_all_ways("skip and mix", 50, |numbers| {
        let skipped = |count| numbers.clone().skip(count);
        iterable::mix([(skipped(10), 1.0), (skipped(MANY as u64), 2.0)]).unwrap()
    });
}

#[test]
fn an_adapter_of_the_programs_is_left() {
    left_in_all_ways("an adapter", 2, |numbers| Every(numbers, 2_000));
    left_in_all_ways("two adapters", 1, |numbers| {
        Every(Every(numbers, 4), 40).skip(20)
    });
}

#[test]
fn rows_are_left_while_they_are_packed() {
    let tokens = |numbers: Numbers| {
        numbers.map(|number, _| Ok(vec![number as u32; 1 + number as usize % 3]))
    };
    left_in_all_ways("pack", 1, |numbers| {
        let rows = tokens(numbers).pack(9_000).unwrap();
        rows.map(|row, _| Ok(row.tokens.iter().map(|token| i64::from(*token)).sum()))
    });
    left_in_all_ways("best_fit", 50, |numbers| {
        let rows = tokens(numbers).pack(32).unwrap().with_best_fit(MANY);
        rows.map(|row, _| Ok(row.tokens.iter().map(|token| i64::from(*token)).sum()))
    });
}

/// The items of a stream are those of a loader without workers: the worker that pulls them is asked to stop.
#[test]
fn a_loader_within_a_stream_is_left() {
    left_in_all_ways("a loader within", 50, |numbers| {
        iterable::from_fn(move |epoch, _| {
            let inner = Arc::new(loader(numbers.clone().shuffle(MANY), 20, 0));
            let batches = inner.owned_epoch(epoch);
            Ok(batches.flat_map(|batch| match batch {
                Ok(batch) => batch.to_vec().into_iter().map(Ok).collect::<Vec<_>>(),
                Err(error) => vec![Err(error.into())],
            }))
        })
    });
}

/// A run is left again while it is resumed, by pulling what was given out, or a window, again.
#[test]
fn a_run_is_left_while_it_is_resumed() {
    fn check<S: IterableDataset<Sample = i64>>(make: impl Fn(Numbers) -> S, waits_at: u64) {
        let whole = loader(make(Numbers::new(NEVER)), 50, 0);
        let mut epoch = whole.epoch(0);
        epoch
            .by_ref()
            .take(120)
            .for_each(|batch| _ = batch.unwrap());
        let state: IterableState = epoch.state();
        let rest = all(epoch);
        for leaks in [false, true] {
            let numbers = Numbers::new(waits_at);
            let resumed = loader(make(numbers.clone()), 50, 1);
            let mut epoch = resumed.resume(0..1, &state).unwrap().next().unwrap();
            assert!(matches!(epoch.try_next(), TryNext::NotYet));
            numbers.wait_until_there();
            match leaks {
                true => std::mem::forget(epoch),
                false => drop(epoch),
            }
            drop(resumed);
            numbers.check("resumed");
            numbers.waits_never();
            let resumed = loader(make(numbers), 50, 2);
            let epoch = resumed.resume(0..1, &state).unwrap().next().unwrap();
            assert_eq!(all(epoch), rest);
        }
    }
    // (An iterator cannot seek.)
    let blind = |numbers: Numbers| {
        iterable::from_fn(move |epoch, shard| {
            let mut numbers = numbers.open(epoch, shard)?;
            Ok(std::iter::from_fn(move || numbers.next()))
        })
    };
    check(blind, 1_000);
    check(|numbers| blind(numbers).shuffle(MANY), 1_000);
    check(|numbers| numbers.shuffle(MANY), 5_100);
    check(
        |numbers| {
            let rows = numbers
                .map(|number, _| Ok(vec![number as u32]))
                .pack(1)
                .unwrap();
            rows.with_best_fit(MANY)
                .map(|row, _| Ok(i64::from(row.tokens[0])))
        },
        5_100,
    );
}

/// Whoever pulls for no loader, or on the program's own thread, is not interrupted.
#[test]
fn nobody_interrupts_the_program() {
    assert_eq!(iterable::progress(), Ok(()));
    let asked = Arc::<AtomicU64>::default();
    let counted = Arc::clone(&asked);
    let numbers = iterable::from_fn(move |_, _| {
        let counted = Arc::clone(&counted);
        Ok((0..10i64).map(move |number| {
            assert_eq!(iterable::progress(), Ok(()));
            counted.fetch_add(1, Ordering::Relaxed);
            Ok(number)
        }))
    });
    assert_eq!(all(loader(numbers, 4, 0).epoch(0)), Vec::from_iter(0..10));
    assert_eq!(asked.load(Ordering::Relaxed), 10);
}

/// Long enough that an item of 10 ms is not late by chance.
const TIMEOUT: Duration = Duration::from_millis(400);

/// Numbers that come slowly: 60 of them take longer than the timeout.
fn slow() -> impl IterableDataset<Item = i64, Sample = i64> + Clone {
    Arc::new(iterable::from_fn(|_, _| {
        Ok((0..61i64).map(|number| {
            thread::sleep(Duration::from_millis(10));
            Ok(number)
        }))
    }))
}

/// What comes slowly is not what hangs.
#[test]
fn each_item_has_the_timeout() {
    fn check<S: IterableDataset<Sample = i64>>(source: S, batch_size: usize, expected: i64) {
        let builder = DataLoader::iterable(source).batch_size(batch_size);
        let loader: DataLoader<Tensor<i64>, Iterable> =
            builder.num_workers(1).timeout(TIMEOUT).build().unwrap();
        assert_eq!(all(loader.epoch(0)).iter().sum::<i64>(), expected);
    }
    let sum: i64 = (0..61).sum();
    thread::scope(|scope| {
        scope.spawn(|| check(slow().shuffle(60), 1, sum));
        scope.spawn(|| check(slow().skip(60), 1, 60));
        scope.spawn(|| check(slow(), 61, sum));
        scope.spawn(|| check(Every(slow(), 61), 1, 60));
        scope.spawn(|| {
            let rows = slow().map(|number, _| Ok(vec![number as u32])).pack(61);
            let rows = rows.unwrap();
            check(
                rows.map(|row, _| Ok(row.tokens.iter().map(|token| i64::from(*token)).sum())),
                1,
                sum,
            );
        });
        scope.spawn(|| {
            let rows = slow().map(|number, _| Ok(vec![number as u32])).pack(1);
            let rows = rows.unwrap().with_best_fit(60);
            check(rows.map(|row, _| Ok(i64::from(row.tokens[0]))), 1, sum);
        });
        scope.spawn(|| check(slow().take(30).chain(slow()).skip(60), 1, (30..61).sum()));
        scope.spawn(|| {
            let mixed = iterable::mix([(slow(), 1.0), (slow(), 0.0)]).unwrap();
            check(mixed.shuffle(60), 1, sum);
        });
        // A run that is resumed by skipping.
        scope.spawn(|| {
            let builder = DataLoader::iterable(slow()).timeout(TIMEOUT).num_workers(1);
            let loader: DataLoader<Tensor<i64>, Iterable> = builder.build().unwrap();
            let mut epoch = loader.epoch(0);
            epoch.by_ref().take(55).for_each(|batch| _ = batch.unwrap());
            let state = epoch.state();
            drop(epoch);
            let rest = loader.resume(0..1, &state).unwrap().next().unwrap();
            assert_eq!(all(rest), Vec::from_iter(55..61));
        });
    });
}

/// What hangs waits here, until it is opened.
#[derive(Default)]
struct Gate {
    state: Mutex<(bool, bool)>,
    changed: Condvar,
}

impl Gate {
    fn hang(&self) {
        let mut state = self.state.lock().unwrap();
        state.0 = true;
        self.changed.notify_all();
        drop(self.changed.wait_while(state, |state| !state.1).unwrap());
    }

    fn wait_until_it_hangs(&self) {
        let state = self.state.lock().unwrap();
        drop(self.changed.wait_while(state, |state| !state.0).unwrap());
    }

    fn open(&self) {
        self.state.lock().unwrap().1 = true;
        self.changed.notify_all();
    }
}

/// Numbers of which one hangs, in epoch 0. It tells how many of them were pulled when that stream is dropped.
struct Hanging {
    gate: Arc<Gate>,
    ended: mpsc::Sender<u64>,
}

struct HangingStream {
    gate: Option<Arc<Gate>>,
    at: u64,
    ended: mpsc::Sender<u64>,
}

impl IterableDataset for Hanging {
    type Item = i64;
    type Sample = i64;
    type Iter = HangingStream;

    fn open(&self, epoch: u64, _: Shard) -> Result<HangingStream, BoxError> {
        Ok(HangingStream {
            gate: (epoch == 0).then(|| Arc::clone(&self.gate)),
            at: 0,
            ended: self.ended.clone(),
        })
    }

    fn load(&self, item: i64, _: &mut SampleRng) -> Result<i64, BoxError> {
        Ok(item)
    }
}

impl ItemIter for HangingStream {
    type Item = i64;

    fn next(&mut self) -> Option<Result<i64, BoxError>> {
        self.at += 1;
        if self.at == 31
            && let Some(gate) = &self.gate
        {
            gate.hang();
        }
        (self.at <= 1_000).then_some(Ok(self.at as i64 - 1))
    }
}

impl Drop for HangingStream {
    fn drop(&mut self) {
        if self.gate.is_some() {
            let _ = self.ended.send(self.at);
        }
    }
}

/// An item that hangs is an error after the timeout, wherever it is pulled; and when it comes back, nothing more is pulled.
#[test]
fn an_item_that_hangs_is_late_within_a_window_too() {
    fn check<S>(make: impl Fn(Hanging) -> S, batch_size: usize, following: usize)
    where
        S: IterableDataset<Sample = i64>,
    {
        let (gate, (ended, pulled)) = (Arc::<Gate>::default(), mpsc::channel());
        let source = make(Hanging {
            gate: Arc::clone(&gate),
            ended,
        });
        let builder = DataLoader::iterable(source).batch_size(batch_size);
        let builder = builder.num_workers(1).timeout(Duration::from_millis(100));
        let loader: DataLoader<Tensor<i64>, Iterable> = builder.build().unwrap();
        let mut epoch = loader.epoch(0);
        match epoch.next().unwrap().unwrap_err() {
            Error::TimedOut(late) => assert_eq!((late.stage, late.batch), (Stage::Pulling, 0)),
            error => panic!("{error}"),
        }
        assert!(epoch.next().is_none());
        assert_eq!(all(loader.epoch(1)).len(), following);
        gate.open();
        assert_eq!(pulled.recv().unwrap(), 31);
    }
    check(|numbers| numbers.shuffle(500), 1, 1000);
    check(|numbers| numbers.skip(500), 1, 500);
    check(|numbers| numbers, 500, 1000);
    check(|numbers| Every(numbers, 500), 1, 2);
}

/// A loader that is dropped waits for an item that hangs no longer than the timeout, and the stream ends when it comes back.
#[test]
fn a_loader_is_dropped_while_an_item_of_a_window_hangs() {
    for forgets in [false, true] {
        let (gate, (ended, pulled)) = (Arc::<Gate>::default(), mpsc::channel());
        let source = Hanging {
            gate: Arc::clone(&gate),
            ended,
        };
        let builder = DataLoader::iterable(source.shuffle(500)).num_workers(1);
        let loader: DataLoader<Tensor<i64>, Iterable> =
            builder.timeout(Duration::from_millis(100)).build().unwrap();
        let mut epoch = loader.epoch(0);
        assert!(matches!(epoch.try_next(), TryNext::NotYet));
        gate.wait_until_it_hangs();
        match forgets {
            true => std::mem::forget(epoch),
            false => drop(epoch),
        }
        drop(loader);
        gate.open();
        assert_eq!(pulled.recv().unwrap(), 31);
    }
}
