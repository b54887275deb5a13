//! `Workers::Auto`: workers that go off duty, and on duty again. (The clock jumps, so as many as the schedule likes are found to be
//! enough.)

use std::sync::Arc;

use pinfeed::loader::Workers;
use pinfeed::{DataLoader, Tensor, from_fn, iterable};
use shuttle::sync::{Condvar, Mutex};

use crate::explore::explore;
use crate::support::{below, check_all_back, coin, device};

/// Which samples were begun, of how many epochs.
#[derive(Default)]
struct Begun {
    samples: Mutex<Vec<u64>>,
    changed: Condvar,
}

impl Begun {
    fn begin(&self, sample: u64) {
        self.samples.lock().unwrap().push(sample);
        self.changed.notify_all();
    }

    /// Waits until the sample was begun so often.
    fn wait_for(&self, sample: u64, times: usize) {
        let mut samples = self.samples.lock().unwrap();
        while samples.iter().filter(|&&begun| begun == sample).count() < times {
            samples = self.changed.wait(samples).unwrap();
        }
    }

    fn times(&self, sample: u64) -> usize {
        let samples = self.samples.lock().unwrap();
        samples.iter().filter(|&&begun| begun == sample).count()
    }
}

fn check(epoch: impl Iterator<Item = pinfeed::Result<Tensor<i64>>>, len: u64) {
    let batches = epoch.map(Result::unwrap);
    let all: Vec<i64> = batches.flat_map(|batch| batch.to_vec()).collect();
    assert!(all.into_iter().eq(0..len as i64));
}

/// In each epoch, a sample waits until another worker begins the next one.
fn wait_for_each_other() {
    let len = 4 + below(4) as u64;
    let waits = below(len as usize - 1) as u64;
    let device = device();
    let begun = Arc::new(Begun::default());
    let own = Arc::clone(&begun);
    let samples = from_fn(len, move |index, _| {
        own.begin(index);
        if index == waits {
            own.wait_for(index + 1, own.times(index));
        }
        Ok(index as i64)
    });
    let builder = DataLoader::builder(samples).num_workers(Workers::Auto);
    let mut builder = builder.cores(2 + below(3)).prefetch(2 + below(2));
    if coin() {
        builder = builder.pin_memory(&device);
    }
    let loader = builder.build().unwrap();
    match coin() {
        true => (0..3).for_each(|epoch| check(loader.epoch(epoch), len)),
        false => loader.epochs(0..3).for_each(|epoch| check(epoch, len)),
    }
    assert!(loader.stats().workers > 0);
    drop(loader);
    check_all_back(&device);
}

#[test]
fn workers_that_wait_for_each_other_are_found() {
    explore(
        "duty::workers_that_wait_for_each_other_are_found",
        wait_for_each_other,
    );
}

/// What may be ahead is loaded while the consumer is elsewhere, by those on duty.
fn load_ahead() {
    let len = 5 + below(4) as u64;
    let prefetch = 1 + below(3);
    let begun = Arc::new(Begun::default());
    let own = Arc::clone(&begun);
    let samples = from_fn(len, move |index, _| {
        own.begin(index);
        Ok(index as i64)
    });
    let builder = DataLoader::builder(samples).num_workers(Workers::Auto);
    let builder = builder.cores(1 + below(4)).prefetch(prefetch);
    let loader = builder.build().unwrap();
    for epoch in 0..2 {
        let batches = loader.epoch(epoch).enumerate();
        let batches = batches.map(|(number, batch)| {
            let ahead = (number + prefetch).min(len as usize - 1);
            (0..=ahead as u64).for_each(|sample| begun.wait_for(sample, epoch as usize + 1));
            batch
        });
        check(batches, len);
    }
}

#[test]
fn those_on_duty_load_ahead() {
    explore("duty::those_on_duty_load_ahead", load_ahead);
}

/// One pulls, and waits until another loads what it pulled before.
fn pull() {
    let len = 4 + below(4) as u64;
    let waits = 1 + below(len as usize - 1) as u64;
    let begun = Arc::new(Begun::default());
    let own = Arc::clone(&begun);
    let items = iterable::from_fn(move |epoch, _| {
        let own = Arc::clone(&own);
        Ok((0..len as i64).map(move |item| {
            if item as u64 == waits {
                own.wait_for(waits - 1, epoch as usize + 1);
            }
            Ok(item)
        }))
    });
    let own = Arc::clone(&begun);
    let loader = DataLoader::iterable(items)
        .num_workers(Workers::Auto)
        .cores(2 + below(2))
        .prefetch(2 + below(2))
        .collate_fn(move |items: Vec<i64>, arena| {
            items.iter().for_each(|&item| own.begin(item as u64));
            let mut batch = arena.zeros(&[items.len()])?;
            if let Some(batch) = batch.as_mut_slice() {
                batch.copy_from_slice(&items);
            }
            Ok(batch)
        })
        .build()
        .unwrap();
    (0..2).for_each(|epoch| check(loader.epoch(epoch), len));
}

#[test]
fn who_pulls_is_not_alone() {
    explore("duty::who_pulls_is_not_alone", pull);
}
