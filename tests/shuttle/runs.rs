//! Small batches that take no time: a worker makes a run of them, in one slab that they share.

use std::sync::Arc;

use pinfeed::loader::OnError;
use pinfeed::{Batch, DataLoader, Dataset, Device, Tensor, from_fn};
use shuttle::sync::{Condvar, Mutex};
use shuttle::thread;

use crate::explore::explore;
use crate::support::{
    BLOCK, How, Pair, Pin, SLAB, back, below, check, check_all_back, check_error, check_there,
    coin, device, sample,
};

/// A loader whose batches may share slabs.
fn shared() -> How {
    let workers = 1 + below(3);
    How {
        len: 8 + below(40) as u64,
        batch: 1 + below(3),
        workers,
        prefetch: [2, 4 * workers + below(9)][below(2)],
        pin: Pin::InPlace,
        strict: coin(),
    }
}

/// There is little page-locked memory, and somebody gives back what is idle: batches for which there is no slab wait for one. None goes
/// without.
#[test]
fn slabs_for_runs_are_missing() {
    explore("slabs_for_runs_are_missing", || {
        let how = shared();
        let device = device();
        device.set_pinned_budget_bytes((1 + below(4)) * SLAB);
        let loader = how.loader(&device);
        let other = thread::spawn({
            let device = device.clone();
            move || {
                for _ in 0..3 {
                    let _ = device.release_pinned();
                    thread::yield_now();
                }
            }
        });
        for (number, batch) in loader.epoch(0).enumerate() {
            let batch = batch.unwrap();
            assert!(batch.0.is_pinned(), "batch {number}: {how:?}");
            check(&batch, how.samples_of(number));
            if coin() {
                drop(batch.to_device(&device, true).unwrap());
            }
        }
        other.join().unwrap();
        drop(loader);
        check_all_back(&device);
    });
}

/// The program keeps some batches for long. The others of their runs come all the same, as do those after them; each slab goes home when
/// the last of its batches is dropped.
#[test]
fn a_batch_of_a_run_is_kept() {
    explore("a_batch_of_a_run_is_kept", || {
        let how = shared();
        let device = device();
        let loader = how.loader(&device);
        // One less than there are: with each, its slab is kept.
        let most = how.share(1) - 1;
        let mut kept = Vec::new();
        for (number, batch) in loader.epoch(0).enumerate() {
            let batch = batch.unwrap();
            assert!(batch.0.is_pinned(), "batch {number}: {how:?}");
            check(&batch, how.samples_of(number));
            if kept.len() < most && below(4) == 0 {
                kept.push((number, batch));
            }
        }
        assert_eq!(loader.stats().unpinned.count, 0);
        // What came after them did not write to them.
        kept.iter()
            .for_each(|(number, batch)| check(batch, how.samples_of(*number)));
        drop(loader);
        drop(kept);
        check_all_back(&device);
    });
}

/// The consumer leaves while workers are in the middle of their runs, in an epoch that stands alone or in one that others follow.
#[test]
fn runs_are_left() {
    explore("runs_are_left", || {
        let how = shared();
        let device = device();
        let loader = how.loader(&device);
        let depth = coin().then(|| 1 + below(3));
        for mut epoch in loader.epochs(0..3) {
            let wanted = below(how.batches() + 1);
            match depth {
                None => {
                    for number in 0..wanted {
                        check(&epoch.next().unwrap().unwrap(), how.samples_of(number));
                    }
                }
                Some(depth) => {
                    let mut epoch = epoch.prefetch_to_device(&device, depth);
                    for number in 0..wanted {
                        check_there(&epoch.next().unwrap().unwrap(), how.samples_of(number));
                    }
                }
            }
            if below(4) == 0 {
                break;
            }
        }
        drop(loader);
        check_all_back(&device);
    });
}

/// Batches that are ready at the same time are sent together, by workers and by the consumer; some of those are kept for long, or there is
/// little device memory. Each is itself, and comes in its turn.
#[test]
fn batches_of_runs_go_together() {
    explore("batches_of_runs_go_together", || {
        let how = shared();
        let device = device();
        let keeps = coin();
        if !keeps {
            device.set_device_budget_bytes((1 + below(4)) * BLOCK);
        }
        let loader = how.loader(&device);
        let depth = below(12);
        for epoch in loader.epochs(0..2).prefetch_to_device(&device, depth) {
            let mut kept = Vec::new();
            for (number, there) in epoch.enumerate() {
                let there = there.unwrap();
                check_there(&there, how.samples_of(number));
                if keeps && below(4) == 0 {
                    kept.push((number, there));
                }
            }
            for (number, there) in &kept {
                check_there(there, how.samples_of(*number));
            }
        }
        assert_eq!(loader.stats().unpinned.count, 0);
        drop(loader);
        check_all_back(&device);
    });
}

/// Bad samples in a run cost their batches, or are replaced or left out, and the run goes on; on the host and on the way to the device.
#[test]
fn bad_samples_are_in_runs() {
    explore("bad_samples_are_in_runs", || {
        let how = How {
            strict: true,
            ..shared()
        };
        let device = device();
        let bad = below(how.len as usize) as u64;
        let dataset = from_fn(how.len, move |index, _| match index == bad {
            true => Err("no sample".into()),
            false => Ok(sample(index)?),
        });
        let way = below(3);
        let loader = match way {
            0 => how.loader_of(dataset, &device),
            1 => leaves_out(how, dataset, OnError::Replace { at_most: 9 }, &device),
            _ => leaves_out(how, dataset, OnError::Skip { at_most: 9 }, &device),
        };
        let sees = |number: usize, batch: pinfeed::Result<Pair>| {
            let samples = how.samples_of(number);
            let batch = match batch {
                Ok(batch) => batch,
                Err(error) => {
                    assert!(samples.contains(&bad), "{error}");
                    return check_error(&error, bad);
                }
            };
            let indices: Vec<u64> = batch
                .1
                .as_slice()
                .iter()
                .map(|&index| index as u64)
                .collect();
            let others: Vec<u64> = samples.clone().filter(|&index| index != bad).collect();
            match (samples.contains(&bad), way) {
                (false, _) => check(&batch, samples),
                (true, 1) => {
                    assert_eq!(indices.len(), others.len() + 1);
                    assert!(others.iter().all(|index| indices.contains(index)));
                }
                (true, 2) => assert_eq!(indices, others),
                (true, _) => panic!("sample {bad} is bad"),
            }
        };
        match coin() {
            true => loader
                .epoch(0)
                .enumerate()
                .for_each(|(number, batch)| sees(number, batch)),
            false => loader
                .epoch(0)
                .prefetch_to_device(&device, 1 + below(3))
                .enumerate()
                .for_each(|(number, there)| sees(number, there.and_then(|there| back(&there)))),
        }
        assert_eq!(loader.stats().unpinned.count, 0);
        drop(loader);
        check_all_back(&device);
    });
}

/// Samples need that the program has got the batch before theirs. It does, also where one worker makes both in a run, and the consumer slept
/// when the first was made.
#[test]
fn a_sample_waits_for_the_batch_before_its_own() {
    explore("a_sample_waits_for_the_batch_before_its_own", || {
        let how = How {
            strict: true,
            ..shared()
        };
        let device = device();
        let given = Arc::new((Mutex::new(0), Condvar::new()));
        let every = 1 + below(4);
        let seen = Arc::clone(&given);
        let dataset = from_fn(how.len, move |index, _| {
            let batch = index as usize / how.batch;
            let mut count = seen.0.lock().unwrap();
            while batch.is_multiple_of(every) && *count < batch {
                count = seen.1.wait(count).unwrap();
            }
            drop(count);
            Ok(sample(index)?)
        });
        let loader = how.loader_of(dataset, &device);
        let epoch = loader.epoch(0).prefetch_to_device(&device, 1 + below(3));
        for (number, there) in epoch.enumerate() {
            check_there(&there.unwrap(), how.samples_of(number));
            *given.0.lock().unwrap() = number + 1;
            given.1.notify_all();
        }
        drop(loader);
        check_all_back(&device);
    });
}

fn leaves_out<D>(
    how: How,
    dataset: D,
    on_error: OnError,
    device: &Device,
) -> DataLoader<(Tensor<u8>, Tensor<i64>)>
where
    D: Dataset<Sample = (Tensor<u8>, i64)>,
{
    how.build(DataLoader::builder(dataset).on_error(on_error), device)
}
