//! What is loaded ahead is loaded while the consumer is elsewhere: it waits for what the loader does by itself, and is blocked for
//! good if that needs a further call.

use std::ops::Range;
use std::sync::Arc;

use pinfeed::error::CollateError;
use pinfeed::sample::{Field, Filled, Layout, Row};
use pinfeed::{Batch, BoxError, DataLoader, Dataset, Sample, SampleRng, Tensor, from_fn};
use shuttle::sync::{Condvar, Mutex};
use shuttle::thread;

use crate::explore::explore;
use crate::support::{
    BLOCK, How, Pin, SLAB, below, check, check_all_back, check_error, check_there, coin, device,
    next_and_wake, sample,
};

/// Counts the rows that were written into slabs.
#[derive(Default)]
struct Rows {
    written: Mutex<u64>,
    changed: Condvar,
}

impl Rows {
    fn wait_for(&self, rows: u64) {
        let mut written = self.written.lock().unwrap();
        while *written < rows {
            written = self.changed.wait(written).unwrap();
        }
    }
}

struct Numbers {
    len: u64,
    rows: Arc<Rows>,
    broken: Option<u64>,
}

struct Number {
    index: u64,
    rows: Arc<Rows>,
}

impl Dataset for Numbers {
    type Sample = Number;

    fn len(&self) -> u64 {
        self.len
    }

    fn get(&self, index: u64, _: &mut SampleRng) -> Result<Number, BoxError> {
        if self.broken == Some(index) {
            return Err("no sample".into());
        }
        let rows = Arc::clone(&self.rows);
        Ok(Number { index, rows })
    }
}

impl Sample for Number {
    type Batch = Tensor<i64>;
    type Plan = Field<i64>;
    type Rest = ();

    fn plan<'a>(
        _: impl Iterator<Item = &'a Self> + Clone,
        layout: &mut Layout,
    ) -> Result<Field<i64>, CollateError> {
        layout.field(&[])
    }

    fn fill(self, plan: &Field<i64>, row: &mut Row<'_>) -> Result<(), CollateError> {
        row.write(plan, &[self.index as i64])?;
        *self.rows.written.lock().unwrap() += 1;
        self.rows.changed.notify_all();
        Ok(())
    }

    fn finish(plan: Field<i64>, _: Vec<()>, filled: &mut Filled) -> Tensor<i64> {
        filled.take(plan)
    }
}

/// A slab that comes home, dropped here or elsewhere, or brought by a copy, is filled for the next batch, if fewer than `prefetch`
/// are ahead: whether the consumer asks or not.
fn fill_ahead(slabs: usize) {
    let how = How {
        workers: 1 + below(3),
        prefetch: 1 + below(3),
        pin: Pin::InPlace,
        strict: true,
        ..How::pinned()
    };
    let device = device();
    device.set_pinned_budget_bytes(slabs * SLAB);
    let rows = Arc::new(Rows::default());
    let dataset = Numbers {
        len: how.len,
        rows: Arc::clone(&rows),
        broken: None,
    };
    let loader = how.build(DataLoader::builder(dataset), &device);
    let mut elsewhere = Vec::new();
    let mut epoch = loader.epoch(0);
    for taken in 0..how.batches() {
        let ahead = taken + how.prefetch.min(slabs);
        rows.wait_for(how.samples_of(ahead.min(how.batches()) - 1).end);
        let batch = epoch.next().unwrap().unwrap();
        let found = batch.as_slice().iter().map(|&index| index as u64);
        assert!(found.eq(how.samples_of(taken)));
        let device = device.clone();
        let end = move || match coin() {
            true => drop(batch),
            false => drop(batch.to_device(&device, true).unwrap()),
        };
        match coin() {
            true => elsewhere.push(thread::spawn(end)),
            false => end(),
        }
    }
    assert!(epoch.next().is_none());
    drop(epoch);
    let elsewhere = elsewhere.into_iter();
    elsewhere.for_each(|thread| thread.join().unwrap());
    drop(loader);
    check_all_back(&device);
}

#[test]
fn a_slab_is_filled_ahead() {
    explore("a_slab_is_filled_ahead", || fill_ahead(1));
}

#[test]
fn slabs_are_filled_ahead() {
    explore("slabs_are_filled_ahead", || fill_ahead(2 + below(3)));
}

/// As many batches are made ahead as there is room for in bytes, whether the consumer asks or not, and whether it keeps the last batch.
#[test]
fn room_for_bytes_is_used_ahead() {
    explore("room_for_bytes_is_used_ahead", || {
        let room = 1 + below(3);
        let how = How {
            workers: 1 + below(3),
            prefetch: 6,
            pin: [Pin::No, Pin::InPlace][below(2)],
            strict: true,
            ..How::pinned()
        };
        let device = device();
        let rows = Arc::new(Rows::default());
        let dataset = Numbers {
            len: how.len,
            rows: Arc::clone(&rows),
            broken: None,
        };
        let builder = DataLoader::builder(dataset);
        let builder = builder.in_order(coin()).max_bytes_in_flight(room * SLAB);
        let loader = how.build(builder, &device);
        let mut kept = None;
        let mut epoch = loader.epoch(0).with_info();
        for taken in 0..how.batches() {
            let ahead = how.batches().min(taken + room);
            let all = (0..ahead).map(|batch| how.samples_of(batch).count() as u64);
            // (The last batch may be smaller than the others, and come before its turn.)
            let spare = (how.batches() * how.batch) as u64 - how.len;
            rows.wait_for(all.sum::<u64>() - spare);
            let (batch, _) = epoch.next().unwrap().unwrap();
            kept = coin().then_some(batch);
        }
        assert!(epoch.next().is_none());
        drop((kept, epoch));
        assert!(loader.stats().most_bytes_in_flight as usize <= room * SLAB);
        drop(loader);
        check_all_back(&device);
    });
}

/// The worker that makes a batch sends it: `depth` batches travel while the program does something else and asks for nothing, before the first is
/// asked for, at the boundary of two epochs as well, and beyond a batch that failed.
#[test]
fn batches_travel_while_the_program_is_busy() {
    explore("batches_travel_while_the_program_is_busy", || {
        let how = How {
            workers: 1 + below(3),
            ..How::pinned()
        };
        let broken = coin().then(|| below(how.len as usize) as u64);
        // Errors wait for the consumer in the window: two of them at most, one of each epoch.
        let prefetch = how.prefetch + 2 * usize::from(broken.is_some());
        let how = How { prefetch, ..how };
        let (device, depth) = (device(), 1 + below(3));
        let dataset = from_fn(how.len, move |index, _| match broken == Some(index) {
            true => Err("no sample".into()),
            false => Ok(sample(index)?),
        });
        let loader = how.loader_of(dataset, &device);
        let is_whole = |number: usize| {
            let mut samples = how.samples_of(number % how.batches());
            samples.all(|index| broken != Some(index))
        };
        let all = 2 * how.batches();
        let travelled = |on_device: Range<usize>| {
            let on_device = on_device.filter(|&at| at < all && is_whole(at));
            let held = on_device.count() * BLOCK;
            while device.memory().device_held_bytes < held {
                thread::yield_now();
            }
        };
        let mut at = 0;
        for mut epoch in loader.epochs(0..2).prefetch_to_device(&device, depth) {
            travelled(at..at + depth); // before the first is asked for
            while let Some(there) = next_and_wake(&mut epoch) {
                travelled(at..at + depth + 1);
                match there {
                    Ok(there) => check_there(&there, how.samples_of(at % how.batches())),
                    Err(error) => check_error(&error, broken.unwrap()),
                }
                at += 1;
            }
        }
        assert_eq!(at, all);
        drop(loader);
        check_all_back(&device);
    });
}

/// A batch that fails leaves its slab to the next, which waits for one while the program keeps the others.
#[test]
fn a_batch_that_fails_leaves_its_slab() {
    explore("a_batch_that_fails_leaves_its_slab", || {
        let how = How {
            len: 3,
            batch: 1,
            workers: 2,
            prefetch: 2,
            pin: Pin::InPlace,
            strict: true,
        };
        let device = device();
        device.set_pinned_budget_bytes(2 * SLAB);
        let rows = Arc::new(Rows::default());
        let dataset = Numbers {
            len: how.len,
            rows: Arc::clone(&rows),
            broken: Some(1),
        };
        let loader = how.build(DataLoader::builder(dataset), &device);
        let mut epoch = loader.epoch(0);
        let kept = epoch.next().unwrap().unwrap();
        rows.wait_for(2); // the first, and the last
        check_error(&epoch.next().unwrap().unwrap_err(), 1);
        assert_eq!(epoch.next().unwrap().unwrap().as_slice(), [2]);
        drop((kept, epoch));
        drop(loader);
        check_all_back(&device);
    });
}

/// Three samples that wait for each other are loaded by three workers: who begins to work wakes another.
#[test]
fn workers_load_together() {
    explore("workers_load_together", || {
        let how = How {
            batch: 3,
            workers: 3,
            prefetch: 1 + below(3),
            ..How::any()
        };
        let device = device();
        let begun = Arc::new(Rows::default());
        let dataset = from_fn(how.len, move |index, _| {
            if index < 3 {
                *begun.written.lock().unwrap() += 1;
                begun.changed.notify_all();
                begun.wait_for(3);
            }
            Ok(sample(index)?)
        });
        let loader = how.loader_of(dataset, &device);
        for (number, batch) in loader.epoch(0).enumerate() {
            check(&batch.unwrap(), how.samples_of(number));
        }
        drop(loader);
        check_all_back(&device);
    });
}
