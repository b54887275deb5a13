//! Statistics: of one epoch, of several at once, of all, and what they say.

#![allow(clippy::unwrap_used)] // a panic is how a test fails

#[macro_use]
extern crate watch;

use std::sync::Mutex;
use std::sync::mpsc::channel;
use std::thread;
use std::time::Duration;

use pinfeed::loader::Stats;
use pinfeed::{Batch, BoxError, DataLoader, Device, Result, SampleRng, Tensor, from_fn, stream};

fn number(index: u64, _: &mut SampleRng) -> Result<i64, BoxError> {
    Ok(index as i64)
}

/// Batches that the program was given, and samples in batches that were made.
fn counts(stats: &Stats) -> (u64, u64) {
    (stats.consumer_wait_times.count(), stats.samples)
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
            assert_eq!(total.consumer_wait_times.count(), 205);
            assert!(total.samples >= 20 * 40 + 12 + 8, "{}", total.samples);
            assert!(total.samples <= 22 * 40, "{}", total.samples);
        }
        take(&mut last, 10);
        assert_eq!(loader.total_stats().consumer_wait_times.count(), 213);
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
    assert!(total.host_ns >= sum.host_ns); // until the epochs were dropped
    sum.host_ns = total.host_ns;
    assert_eq!(sum, total);
    assert_eq!((sum.epochs, counts(&sum)), (3, (15, 60)));
    assert!(
        sum.to_string()
            .starts_with("3 epochs to 2: 15 batches, 60 samples")
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
    let mut epoch = loader.epoch(0).to_device(&device, 2).with_info();
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
    let timed = stats.transfer_times.count();
    assert!(
        (1..=stats.transfers).contains(&timed),
        "{timed} of {}",
        stats.transfers
    );
    assert_eq!(stats.ready_batches.count(), 10);
    assert_eq!(stats.slab_wait_times.count(), 10);
    assert_eq!(stats.collating_times.count(), 10);

    let items = stream::from_fn(|_, _| Ok((0..10i64).map(Ok)));
    let loader = DataLoader::stream(items).batch_size(4).build().unwrap();
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
    assert_eq!((stats.transfers, stats.transfer_bytes), (200, 400 * 256));
    // The first 64, and then the 73rd, the 89th, ...
    assert_eq!(stats.transfer_times.count(), 64 + 8);
    assert_eq!(stats.processed, 64 + 8);
    let recording = loader.record();
    let stats = send(1);
    assert_eq!((stats.transfers, stats.transfer_times.count()), (200, 200));
    drop(recording);
    assert_eq!(send(2).transfer_times.count(), 64 + 8);
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
    assert!(epoch.try_next().is_pending());
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
        let came = epoch.try_next().is_ready();
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
            assert_eq!((stats.batches, stats.consumer_wait_times.count()), (8, 10));
            assert_eq!(stats.epochs, 1);
        }
        let total = loader.total_stats();
        assert_eq!((total.batches, total.consumer_wait_times.count()), (16, 20));
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
            (stats.epoch, stats.consumer_wait_times.count()),
            (2, given as u64)
        );
        state = epoch.state();
    }
    assert_eq!((state.epoch(), state.position()), (3, 0));
    assert_eq!(loader.total_stats().consumer_wait_times.count(), 8);
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
        assert!(stats.loading_ns > stats.collating_ns, "{stats}");
        assert!(stats.loading_times.count() > 0);
    }
}
