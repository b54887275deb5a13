//! Statistics: of one epoch, of several at once, of all, and what they say.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use pinfeed::dataset::{Pass, Staged, StagedDataset};
use pinfeed::loader::{Builder, LastBatch, Limit, OnError, Stats, TryNext};
use pinfeed::sampler::{BatchSampler, Batches, Sampler};
use pinfeed::{
    Batch, BoxError, DataLoader, Dataset, Device, DeviceTensor, Result, SampleRng, Tensor, from_fn,
    iterable,
};

fn number(index: u64, _: &mut SampleRng) -> Result<i64, BoxError> {
    Ok(index as i64)
}

/// Batches that the program was given, with errors, and samples in those that are none.
fn counts(stats: &Stats) -> (u64, u64) {
    (stats.consumer_wait.each.count(), stats.samples)
}

fn take<T>(epoch: impl Iterator<Item = Result<T>>, batches: usize) {
    for batch in epoch.take(batches) {
        batch.unwrap();
    }
}

#[test]
fn each_epoch_has_its_own_while_several_run() {
    let loader = DataLoader::builder(from_fn(40, number))
        .batch_size(4)
        .build()
        .unwrap();
    let [mut first, mut second] = [loader.epoch(0), loader.epoch(7)];
    take(&mut first, 3);
    take(&mut second, 10);
    take(&mut first, 1);
    assert_eq!(counts(&first.stats()), (4, 16));
    assert_eq!(counts(&second.stats()), (10, 40));
    assert_eq!((first.stats().epoch, second.stats().epoch), (0, 7));
    assert_eq!(loader.stats(), second.stats()); // the one that was begun last
    take(&mut first, 10);
    assert_eq!(counts(&first.stats()), (10, 40));
}

#[test]
fn all_epochs_are_counted_once() {
    for workers in [0, 2] {
        let loader = DataLoader::builder(from_fn(40, number))
            .batch_size(4)
            .num_workers(workers)
            .build()
            .unwrap();
        assert_eq!(loader.total_stats().epochs, 0);
        for epoch in loader.epochs(0..20) {
            take(epoch, 10);
        }
        take(loader.epoch(20), 3); // left midway
        let mut last = loader.epoch(21);
        take(&mut last, 2); // and this one goes on
        for _ in 0..3 {
            let total = loader.total_stats();
            assert_eq!((total.epochs, total.epoch), (22, 21));
            assert_eq!(total.consumer_wait.each.count(), 205);
            assert_eq!(total.samples, 20 * 40 + 12 + 8);
            assert!((total.samples..=22 * 40).contains(&total.made.samples));
        }
        take(&mut last, 10);
        assert_eq!(loader.total_stats().consumer_wait.each.count(), 213);
    }
}

#[test]
fn a_sum_is_the_same_as_the_total() {
    let loader = DataLoader::builder(from_fn(40, number))
        .batch_size(4)
        .build()
        .unwrap();
    let epochs = (0..3).map(|number| {
        let mut epoch = loader.epoch(number);
        take(&mut epoch, 5);
        epoch.stats()
    });
    let mut sum: Stats = epochs.sum();
    let total = loader.total_stats();
    assert!(total.step >= sum.step); // until the epochs were dropped
    sum.step = total.step;
    assert_eq!(sum, total);
    assert_eq!((sum.epochs, counts(&sum)), (3, (15, 60)));
    assert!(
        sum.to_string()
            .starts_with("3 epochs to 2: 15 batches, 60 samples")
    );
}

/// What a dashboard reads: the names and the nesting of the fields, and seconds.
#[test]
fn json_has_seconds_under_the_names_of_the_fields() {
    let device = Device::cpu();
    let samples = from_fn(40, |index, _| match index {
        7 => Err("broken".into()),
        _ => {
            thread::sleep(Duration::from_millis(1));
            Ok([index as f32; 64])
        }
    });
    let loader = DataLoader::builder(samples)
        .batch_size(4)
        .num_workers(1)
        .pin_memory(&device)
        .on_error(OnError::Skip { at_most: 1 })
        .build()
        .unwrap();
    take(loader.epoch(0).prefetch_to_device(&device, 2), 10);
    let stats = loader.stats();
    let json = serde_json::to_value(&stats).unwrap();
    let seconds = |place: &str| json.pointer(place).unwrap().as_f64().unwrap();
    let times = [
        ("/loading/total", stats.loading.total),
        ("/loading/each/p50", stats.loading.each.p50()),
        ("/loading/each/mean", stats.loading.each.mean()),
        ("/sampling", stats.sampling),
        ("/slab_wait/total", stats.slab_wait.total),
        ("/transfers/total", stats.transfers.total),
        ("/transfers/each/p99", stats.transfers.each.p99()),
        ("/processing/total", stats.processing.total),
        ("/consumer_wait/total", stats.consumer_wait.total),
        ("/first_wait/total", stats.first_wait.total),
        ("/decoder/decoding", stats.decoder.decoding),
    ];
    for (place, time) in times {
        assert_eq!(seconds(place), time.as_secs_f64(), "{place}: {json}");
    }
    assert!((0.039..60.0).contains(&seconds("/loading/total")), "{json}");
    // What a reader of the file knows is what the program knows.
    let wall = seconds("/consumer_wait/total") + seconds("/step") - seconds("/parallel");
    assert!(
        (wall - stats.wall_time().as_secs_f64()).abs() < 1e-6,
        "{json}"
    );
    let counts = [
        ("/made/batches", 10),
        ("/transfers/bytes", 39 * 256),
        ("/ready_batches/count", 10),
        ("/unpinned/count", 0),
        ("/bad/skipped", 1),
    ];
    for (place, count) in counts {
        assert_eq!(
            json.pointer(place).unwrap().as_u64(),
            Some(count),
            "{place}: {json}"
        );
    }
    assert!(
        json.pointer("/bad/listed/0")
            .unwrap()
            .as_str()
            .unwrap()
            .contains("broken")
    );

    let memory = serde_json::to_value(device.memory()).unwrap();
    let page_locking = device.memory().page_locking;
    assert!(!page_locking.is_zero());
    assert_eq!(
        memory["page_locking"].as_f64(),
        Some(page_locking.as_secs_f64())
    );
}

#[test]
fn epochs_on_a_device_and_of_streams_have_theirs() {
    let device = Device::cpu();
    let samples = from_fn(40, |index, _| Ok([index as f32; 64]));
    let loader = DataLoader::builder(samples)
        .batch_size(4)
        .num_workers(2)
        .pin_memory(&device)
        .build()
        .unwrap();
    let mut epoch = loader.epoch(0).prefetch_to_device(&device, 2).with_info();
    for batch in epoch.by_ref().take(9) {
        drop(batch.unwrap());
    }
    // Nothing is in flight behind a copy that the program waits for.
    let last: Tensor<f32> = epoch
        .next()
        .unwrap()
        .unwrap()
        .0
        .to_host(true)
        .unwrap()
        .wait()
        .unwrap();
    assert_eq!(last.shape()[..], [4, 64]);
    let stats = epoch.stats();
    assert_eq!(counts(&stats), (10, 40));
    // Batches that were ready together went in one transfer.
    let timed = stats.transfers.each.count();
    assert!(
        (1..=stats.transfers.count).contains(&timed),
        "{timed} of {}",
        stats.transfers.count
    );
    assert_eq!(stats.ready_batches.count(), 10);
    assert_eq!(stats.slab_wait.each.count(), 10);
    assert_eq!(stats.collating.each.count(), 10);

    let items = iterable::from_fn(|_, _| Ok((0..10i64).map(Ok)));
    let loader = DataLoader::iterable(items).batch_size(4).build().unwrap();
    let mut epoch = loader.epoch(0);
    take(&mut epoch, 2);
    assert_eq!(counts(&epoch.stats()), (2, 8));
    take(loader.epoch(1), 5);
    assert_eq!(counts(&loader.total_stats()), (5, 18));
}

/// Of small copies, not all are timed; but all are counted. Of those that somebody looks at, all are timed.
#[test]
fn small_copies_are_timed_now_and_then() {
    let device = Device::cpu();
    let samples = from_fn(400, |index, _| Ok([index as f32; 64]));
    let loader = DataLoader::builder(samples).batch_size(2);
    let loader = loader.pin_memory(&device).build().unwrap();
    let stream = device.stream().unwrap();
    let send = |epoch: u64| {
        let mut epoch = loader.epoch(epoch);
        for batch in epoch.by_ref() {
            let there = batch.unwrap().to_device(&device, false).unwrap();
            drop(there.on(&stream).unwrap());
        }
        stream.synchronize().unwrap();
        epoch.stats()
    };
    let stats = send(0);
    assert_eq!(
        (stats.transfers.count, stats.transfers.bytes),
        (200, 400 * 256)
    );
    // The first 64, and then the 73rd, the 89th, ...
    assert_eq!(stats.transfers.each.count(), 64 + 8);
    assert_eq!(stats.processing.count, 64 + 8);
    let recording = loader.record();
    let stats = send(1);
    assert_eq!(
        (stats.transfers.count, stats.transfers.each.count()),
        (200, 200)
    );
    drop(recording);
    assert_eq!(send(2).transfers.each.count(), 64 + 8);
}

#[test]
fn the_queue_is_as_full_as_the_program_finds_it() {
    let (open, gate) = channel();
    let (enter, entered) = channel();
    let gates = Mutex::new((gate, enter));
    let samples = from_fn(6, move |index, _| {
        let gates = gates.lock().unwrap();
        gates.1.send(())?;
        gates.0.recv()?;
        thread::sleep(Duration::from_millis(1)); // of batches that take microseconds, the program takes several at once
        Ok(index as i64)
    });
    let loader = DataLoader::builder(samples)
        .batch_size(1)
        .num_workers(1)
        .prefetch(4)
        .build()
        .unwrap();
    let (open, mut epoch) = (open, loader.epoch(0)); // if this fails, the gate goes before the loader waits for it
    // None is ready when the first is asked for.
    assert!(matches!(epoch.try_next(), TryNext::NotYet));
    (0..4).for_each(|_| open.send(()).unwrap());
    take(&mut epoch, 1);
    // When the worker is at the fifth, the three before it are.
    (0..5).for_each(|_| entered.recv().unwrap());
    take(&mut epoch, 1);
    let ready = epoch.stats().ready_batches;
    assert_eq!((ready.count(), ready.share_of_zero()), (2, 0.5));
    assert_eq!((ready.quantile(0.0), ready.quantile(1.0)), (0, 3));
    (0..2).for_each(|_| open.send(()).unwrap());
    take(&mut epoch, 4);
    assert_eq!(epoch.stats().ready_batches.count(), 6);
}

/// Where any batch may come next, those behind a slow one are ready as well.
#[test]
fn what_is_behind_a_slow_batch_is_ready_in_any_order() {
    for in_order in [true, false] {
        let (open, gate) = channel();
        let (enter, entered) = channel();
        let gates = (Mutex::new(gate), Mutex::new(enter));
        let samples = from_fn(6, move |index, _| {
            if index == 0 {
                gates.0.lock().unwrap().recv()?;
            } else {
                gates.1.lock().unwrap().send(index)?;
            }
            Ok(index as i64)
        });
        let loader = DataLoader::builder(samples)
            .batch_size(1)
            .num_workers(2)
            .prefetch(4)
            .in_order(in_order)
            .build()
            .unwrap();
        let (open, mut epoch) = (open, loader.epoch(0)); // if this fails, the gate goes before the loader waits for it
        // The other worker is at the fourth sample, so it has made those before, but the first.
        while entered.recv().unwrap() < 3 {}
        let came = epoch.try_next().batch().is_some();
        assert_eq!(came, !in_order);
        let ready = epoch.stats().ready_batches; // of what was given out
        assert_eq!(ready.count(), u64::from(came));
        assert!(!came || ready.quantile(0.0) >= 2, "{ready:?}");
        open.send(()).unwrap();
        take(&mut epoch, 6);
    }
}

/// Errors are given in their batch's place, and waited for like any; the epoch after them starts from nothing.
#[test]
fn batches_that_fail_are_waited_for_and_not_made() {
    for workers in [0, 2] {
        let samples = from_fn(40, |index, _| match index {
            5 | 30 => Err("broken".into()),
            _ => Ok(index as i64),
        });
        let loader = DataLoader::builder(samples)
            .batch_size(4)
            .num_workers(workers)
            .build()
            .unwrap();
        for epoch in 0..2 {
            let mut epoch = loader.epoch(epoch);
            assert_eq!(epoch.by_ref().filter(Result::is_err).count(), 2);
            let stats = epoch.stats();
            assert_eq!((stats.batches, stats.consumer_wait.each.count()), (8, 10));
            assert_eq!(stats.epochs, 1);
        }
        let total = loader.total_stats();
        assert_eq!((total.batches, total.consumer_wait.each.count()), (16, 20));
    }
}

/// An epoch that goes on in a second and a third run has what was done in each.
#[test]
fn a_resumed_epoch_counts_from_where_it_goes_on() {
    let loader = DataLoader::builder(from_fn(40, number))
        .batch_size(4)
        .num_workers(1)
        .build()
        .unwrap();
    let mut state = loader.state_at(2, 8);
    for given in [3, 4, 1] {
        let mut epochs = loader.resume(0..3, &state).unwrap();
        let mut epoch = epochs.next().unwrap();
        take(&mut epoch, given);
        let stats = epoch.stats();
        assert_eq!(
            (stats.epoch, stats.consumer_wait.each.count()),
            (2, given as u64)
        );
        state = epoch.state();
    }
    assert_eq!((state.epoch(), state.position()), (3, 0));
    assert_eq!(loader.total_stats().consumer_wait.each.count(), 8);
}

/// The calls of a source that gets several samples at once are loading, and not collating.
#[test]
fn samples_that_come_together_are_loading() {
    struct Slow;
    impl pinfeed::Dataset for Slow {
        type Sample = i64;

        fn len(&self) -> u64 {
            64
        }

        fn get(&self, index: u64, _: &mut SampleRng) -> Result<i64, BoxError> {
            Ok(index as i64)
        }

        fn get_many(&self, indices: &[u64], _: &mut [SampleRng]) -> Vec<Result<i64, BoxError>> {
            std::thread::sleep(std::time::Duration::from_millis(2));
            indices.iter().map(|index| Ok(*index as i64)).collect()
        }

        fn at_once(&self) -> usize {
            16
        }
    }
    for workers in [0, 2] {
        let loader = DataLoader::builder(Slow)
            .batch_size(16)
            .num_workers(workers)
            .build()
            .unwrap();
        let mut epoch = loader.epoch(0);
        take(&mut epoch, 4);
        let stats = epoch.stats();
        assert!(stats.loading.total > stats.collating.total, "{stats}");
        assert!(stats.loading.each.count() > 0);
    }
}

/// What a program counts itself.
#[derive(Debug, Default)]
struct Seen {
    batches: u64,
    rows: u64,
    errors: u64,
    /// Loops that were given something.
    loops: u64,
    /// How long they took, one after the other, or the longest of those side by side; and how much of that the program slept at least.
    took: Duration,
    slept: Duration,
}

/// What has rows.
trait Rows {
    fn rows(&self) -> usize;
}

impl Rows for Tensor<i64> {
    fn rows(&self) -> usize {
        self.len()
    }
}

impl Rows for DeviceTensor<i64> {
    fn rows(&self) -> usize {
        self.len()
    }
}

/// How long the program's step takes.
const STEP: Duration = Duration::from_millis(1);

impl Seen {
    /// Iterates what this gives, as a program does that counts. `make`: as it may take its time.
    fn look<T: Rows, E: Iterator<Item = Result<T>>>(&mut self, make: impl FnOnce() -> E) {
        let start = Instant::now();
        let before = self.batches + self.errors;
        for batch in make() {
            match batch {
                Ok(batch) => {
                    self.rows += batch.rows() as u64;
                    self.batches += 1;
                }
                Err(_) => self.errors += 1,
            }
            thread::sleep(STEP);
            self.slept += STEP;
        }
        self.took += start.elapsed();
        self.loops += u64::from(self.batches + self.errors > before);
    }

    /// The same by others at the same time.
    fn beside(&mut self, other: Seen) {
        self.batches += other.batches;
        self.rows += other.rows;
        self.errors += other.errors;
        self.loops += other.loops;
        self.took = self.took.max(other.took);
        self.slept = self.slept.max(other.slept);
    }

    fn check(&self, epochs: u64, workers: usize, stats: &Stats, what: &str) {
        let counted = (stats.epochs, stats.batches, stats.samples);
        assert_eq!(counted, (epochs, self.batches, self.rows), "{what}");
        let waits = stats.consumer_wait.each.count();
        assert_eq!(waits, self.batches + self.errors, "{what}");
        assert_eq!(stats.first_wait.count, self.loops, "{what}");
        let asked = if workers == 0 { 0 } else { waits };
        assert_eq!(stats.ready_batches.count(), asked, "{what}");
        assert!(stats.made.batches >= stats.batches, "{what}");
        assert!(stats.made.samples >= stats.samples, "{what}");
        let wall = stats.wall_time();
        assert!(
            wall <= self.took && wall >= self.slept,
            "{what}: {wall:?}, {self:?}"
        );
        let rate = self.rows as f64 / wall.as_secs_f64();
        assert!((stats.samples_per_second() - rate).abs() < 1.0, "{what}");
    }
}

/// Whatever the mode, the statistics say what the program sees, of the epoch and in all.
#[test]
fn every_count_is_what_the_program_saw() {
    type Of = fn(&DataLoader<Tensor<i64>>, &[Device], &mut Seen) -> u64;
    type Built = fn(Builder<pinfeed::dataset::FromFn<Number>, pinfeed::collate::Stack>) -> Built2;
    type Built2 = Builder<pinfeed::dataset::FromFn<Number>, pinfeed::collate::Stack>;
    type Number = fn(u64, &mut SampleRng) -> Result<i64, BoxError>;
    let even: Built = |builder| builder.batch_size(4);
    let builders: [(&str, Built); 6] = [
        ("even", even),
        ("in any order", |builder| {
            builder.batch_size(4).in_order(false)
        }),
        ("a last batch of filler", |builder| {
            builder.batch_size(9).last_batch(LastBatch::Fill)
        }),
        ("lists", |builder| {
            let lists: Vec<Vec<u64>> =
                vec![(0..7).collect(), vec![3], (5..40).collect(), vec![9, 9]];
            builder.batch_sampler(lists)
        }),
        ("left out", |builder| {
            builder
                .batch_size(4)
                .on_error(OnError::Skip { at_most: 99 })
        }),
        ("replaced", |builder| {
            builder
                .batch_size(4)
                .on_error(OnError::Replace { at_most: 99 })
        }),
    ];
    // Each begins as many epochs as it says.
    let modes: [(&str, Of); 9] = [
        ("an epoch", |loader, _, seen| {
            seen.look(|| loader.epoch(0));
            1
        }),
        ("take", |loader, _, seen| {
            seen.look(|| loader.epoch(0).take(2));
            1
        }),
        ("epochs", |loader, _, seen| {
            let mut epochs = loader.epochs(0..3);
            for _ in 0..3 {
                seen.look(|| epochs.next().unwrap());
            }
            3
        }),
        ("epochs left midway", |loader, _, seen| {
            let mut epochs = loader.epochs(0..9);
            for _ in 0..2 {
                seen.look(|| epochs.next().unwrap().take(1));
            }
            2
        }),
        ("resumed", |loader, _, seen| {
            seen.look(|| loader.epoch(0).take(2));
            let state = loader.state();
            let mut epochs = loader.resume(0..1, &state).unwrap();
            seen.look(|| epochs.next().unwrap());
            2
        }),
        ("to a device", |loader, devices, seen| {
            seen.look(|| loader.epoch(0).prefetch_to_device(&devices[0], 2));
            seen.look(|| loader.epoch(1).prefetch_to_device(&devices[0], 2).take(2));
            2
        }),
        ("epochs to a device", |loader, devices, seen| {
            let mut epochs = loader.epochs(0..2).prefetch_to_device(&devices[0], 2);
            seen.look(|| epochs.next().unwrap());
            seen.look(|| epochs.next().unwrap());
            2
        }),
        ("split", |loader, devices, seen| {
            let parts = loader.epochs(0..2).split(devices, 1);
            thread::scope(|scope| {
                let looked: Vec<_> = parts
                    .into_iter()
                    .map(|epochs| {
                        scope.spawn(|| {
                            let (mut seen, mut epochs) = (Seen::default(), epochs);
                            seen.look(|| epochs.next().unwrap());
                            seen.look(|| epochs.next().unwrap());
                            seen
                        })
                    })
                    .collect();
                looked
                    .into_iter()
                    .for_each(|looked| seen.beside(looked.join().unwrap()));
            });
            2
        }),
        ("a replay before", |loader, _, seen| {
            loader
                .replay(1)
                .unwrap()
                .for_each(|batch| drop(batch.unwrap()));
            seen.look(|| loader.epoch(0));
            1
        }),
    ];
    for (kind, build) in builders {
        for workers in [0, 2] {
            for (mode, run) in modes {
                for pins in [false, true] {
                    let devices = [Device::cpu(), Device::cpu()];
                    let samples: Number = |index, _| match index {
                        22 => Err("broken".into()),
                        _ => Ok(index as i64),
                    };
                    let mut builder = build(DataLoader::builder(from_fn(40, samples)));
                    builder = builder.num_workers(workers);
                    if pins {
                        builder = builder.pin_memory(&devices);
                    }
                    let loader = builder.build().unwrap();
                    let what = format!("{kind}, {mode}, {workers} workers, pinned: {pins}");
                    let mut seen = Seen::default();
                    let epochs = run(&loader, &devices, &mut seen);
                    seen.check(epochs, workers, &loader.total_stats(), &what);
                    if epochs == 1 {
                        seen.check(1, workers, &loader.stats(), &what);
                    }
                }
            }
        }
    }
}

#[test]
fn every_count_of_a_stream_is_what_the_program_saw() {
    let device = Device::cpu();
    for workers in [0, 2] {
        let build = || {
            let numbers = iterable::from_fn(|_, _| Ok((0..42i64).map(Ok)));
            let builder = DataLoader::iterable(numbers).batch_size(4);
            let builder = builder.num_workers(workers).pin_memory(&device);
            builder.build().unwrap()
        };
        let (loader, mut seen) = (build(), Seen::default());
        seen.look(|| loader.epoch(0));
        seen.check(1, workers, &loader.stats(), "a stream");
        assert_eq!((seen.batches, seen.rows), (11, 42));
        seen.look(|| loader.epoch(1).take(3));
        let mut epochs = loader.epochs(2..4).prefetch_to_device(&device, 2);
        seen.look(|| epochs.next().unwrap());
        seen.look(|| epochs.next().unwrap().take(2));
        drop(epochs);
        seen.check(4, workers, &loader.total_stats(), "a stream");
    }
}

/// Each of a program's slow parts counts the time that it takes.
#[derive(Debug, Clone, Default)]
struct Clock(Arc<AtomicU64>);

impl Clock {
    fn takes(&self, time: Duration) {
        let start = Instant::now();
        thread::sleep(time);
        self.0
            .fetch_add(start.elapsed().as_nanos() as u64, Ordering::Relaxed);
    }

    /// Whether a counter of the statistics has what this has, and not much more.
    fn check(&self, counted: Duration, what: &str) {
        let took = self.took();
        assert!(
            counted >= took - took / 50 && counted <= took + took / 2,
            "{what}: {counted:?} of {took:?}"
        );
    }

    fn took(&self) -> Duration {
        Duration::from_nanos(self.0.load(Ordering::Relaxed))
    }
}

/// What takes long in a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum SlowPart {
    Sampler,
    Lists,
    Get,
    GetMany,
    WillNeed,
}

struct Parts {
    slow: SlowPart,
    clock: Clock,
}

impl Dataset for Parts {
    type Sample = i64;

    fn len(&self) -> u64 {
        64
    }

    fn get(&self, index: u64, _: &mut SampleRng) -> Result<i64, BoxError> {
        if self.slow == SlowPart::Get {
            self.clock.takes(Duration::from_millis(1));
        }
        Ok(index as i64)
    }

    fn get_many(&self, indices: &[u64], _: &mut [SampleRng]) -> Vec<Result<i64, BoxError>> {
        self.clock.takes(Duration::from_millis(5));
        indices.iter().map(|index| Ok(*index as i64)).collect()
    }

    fn at_once(&self) -> usize {
        if self.slow == SlowPart::GetMany { 5 } else { 1 }
    }

    fn lookahead(&self) -> usize {
        4 * usize::from(self.slow == SlowPart::WillNeed)
    }

    fn will_need(&self, indices: &[u64], _: Pass) {
        self.clock
            .takes(Duration::from_millis(indices.len() as u64));
    }
}

impl Sampler for Parts {
    fn len(&self) -> u64 {
        64
    }

    fn index(&self, _: u64, position: u64) -> u64 {
        if self.slow == SlowPart::Sampler {
            self.clock.takes(Duration::from_millis(1));
        }
        position
    }

    fn fingerprint(&self) -> u32 {
        0
    }
}

impl BatchSampler for Parts {
    fn batches(&self, _: u64) -> Batches {
        if self.slow == SlowPart::Lists {
            self.clock.takes(Duration::from_millis(64));
        }
        (0..8u64).map(|batch| batch * 8..batch * 8 + 8).collect()
    }

    fn fingerprint(&self) -> u32 {
        0
    }
}

/// What is slow is what the statistics say is slow, by as much as it takes, and nothing else is.
#[test]
fn time_is_booked_where_it_goes() {
    use SlowPart::{Get, GetMany, Lists, Sampler, WillNeed};
    for slow in [Sampler, Lists, Get, GetMany, WillNeed] {
        for (workers, pins) in [(0, false), (0, true), (1, false), (2, true)] {
            let device = Device::cpu();
            let clock = Clock::default();
            let parts = || Parts {
                slow,
                clock: clock.clone(),
            };
            let mut builder = DataLoader::builder(parts()).num_workers(workers);
            builder = match slow {
                Lists => builder.batch_sampler(parts()),
                _ => builder.sampler(parts()).batch_size(8),
            };
            if pins {
                builder = builder.pin_memory(&device);
            }
            let loader: DataLoader<Tensor<i64>> = builder.build().unwrap();
            let mut seen = Seen::default();
            let mut epochs = loader.epochs(0..2);
            seen.look(|| epochs.next().unwrap());
            seen.look(|| epochs.next().unwrap());
            drop(epochs);
            let stats = loader.total_stats();
            let what = format!("{slow:?} with {workers} workers, pinned: {pins}\n{stats}");
            seen.check(2, workers, &stats, &what);
            let is_sampler = matches!(slow, Sampler | Lists);
            let (is, other) = match is_sampler {
                true => (stats.sampling, stats.loading.total),
                false => (stats.loading.total, stats.sampling),
            };
            clock.check(is, &what);
            let least = clock.took();
            assert!(
                other < least / 4 && stats.collating.total < least / 4,
                "{what}"
            );
            // Of a `get` that is timed, the distribution has what the sum has.
            if slow == Get {
                let times = &stats.loading.each;
                assert_eq!(times.count(), stats.made.samples, "{what}");
                clock.check(times.mean() * times.count() as u32, &what);
            }
            // (Lists are made once, and ahead where there are workers.)
            if slow != Lists {
                let limit = if is_sampler {
                    Limit::Sampling
                } else {
                    Limit::Loading
                };
                assert_eq!(stats.limit(), limit, "{what}");
            }
        }
    }
}

/// Of a stream, pulling is what one worker does at a time.
#[test]
fn a_slow_stream_is_said_to_be() {
    for workers in [0, 1, 3] {
        let clock = Clock::default();
        let of_source = clock.clone();
        let numbers = iterable::from_fn(move |_, _| {
            let clock = of_source.clone();
            Ok((0..64i64).map(move |number| {
                clock.takes(Duration::from_millis(1));
                Ok(number)
            }))
        });
        let loader = DataLoader::iterable(numbers)
            .batch_size(8)
            .num_workers(workers)
            .build()
            .unwrap();
        take(loader.epoch(0), 8);
        let stats = loader.stats();
        let what = format!("{workers} workers\n{stats}");
        clock.check(stats.pulling, &what);
        assert!(stats.loading.total < stats.pulling / 4, "{what}");
        assert_eq!(stats.limit(), Limit::Pulling, "{what}");
    }
}

/// Requests that are not enough are told from a `get` that computes.
#[test]
fn requests_that_are_waited_for_are_said_to_be() {
    struct Remote;
    impl StagedDataset for Remote {
        type Raw = i64;
        type Sample = i64;

        fn len(&self) -> u64 {
            64
        }

        fn fetch(&self, index: u64) -> Result<i64, BoxError> {
            thread::sleep(Duration::from_millis(2));
            Ok(index as i64)
        }

        fn decode(&self, _: u64, raw: i64, _: &mut SampleRng) -> Result<i64, BoxError> {
            Ok(raw)
        }

        fn raw_bytes(&self, _: &i64) -> usize {
            8
        }
    }
    for workers in [0, 2] {
        let loader = DataLoader::builder(Staged::new(Remote).with_in_flight(1))
            .batch_size(8)
            .num_workers(workers)
            .build()
            .unwrap();
        take(loader.epoch(0), 8);
        let stats = loader.stats();
        assert_eq!(stats.limit(), Limit::Loading, "{stats}");
        assert!(stats.fetch_wait > stats.loading.total / 2, "{stats}");
        assert!(stats.fetch_wait <= stats.loading.total, "{stats}");
        assert!(stats.to_string().contains("`with_in_flight`"), "{stats}");
    }
}
