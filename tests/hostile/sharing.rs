//! Epochs, loaders, threads and thread pools that share: none is starved, none waits for another for good.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use pinfeed::{Batch, DataLoader, Device, Tensor, from_fn};
use rayon::prelude::*;

use crate::support::{
    Pair, check, check_on_device, expected, late, late_device, rng, samples, there_and_back,
    watched,
};

const LEN: u64 = 50;
const BATCH: usize = 4;
const BATCHES: usize = 13;

fn loader(device: &Device, workers: usize, by_copy: bool) -> DataLoader<Pair> {
    DataLoader::builder(samples(LEN))
        .batch_size(BATCH)
        .num_workers(workers)
        .pin_memory(device)
        .pin_by_copy(by_copy)
        .build()
        .unwrap()
}

/// Epochs of two loaders on one device, taken from at random; some batches are kept, and some epochs dropped early.
#[test]
fn epochs_interleave_at_random() {
    watched("epochs_interleave_at_random", |seed| {
        let mut rng = rng(seed, 9);
        for round in 0..12 {
            let device = late_device(seed + round);
            if rng.bool(0.5) {
                device.set_pinned_budget_bytes(4096 * rng.below(12) as usize);
            }
            let loaders = [
                loader(&device, 2, rng.bool(0.3)),
                loader(&device, rng.below(2) as usize, false),
            ];
            let mut epochs: Vec<_> = (0..4)
                .map(|number| (0, loaders[number % 2].epoch(number as u64)))
                .collect();
            let mut kept = Vec::new();
            while !epochs.is_empty() {
                let which = rng.below(epochs.len() as u64) as usize;
                let (number, epoch) = &mut epochs[which];
                assert_eq!(epoch.len(), BATCHES - *number);
                let Some(batch) = epoch.next() else {
                    assert_eq!(*number, BATCHES);
                    drop(epochs.swap_remove(which));
                    continue;
                };
                let (batch, samples) = (batch.unwrap(), expected(*number, BATCH, LEN));
                *number += 1;
                match rng.below(4) {
                    0 => kept.push((batch, samples)),
                    1 => check(&batch, samples),
                    _ => check_on_device(&batch.to_device(&device, true).unwrap(), samples),
                }
                if rng.bool(0.02) {
                    drop(epochs.swap_remove(which));
                }
                if rng.bool(0.2) {
                    kept.pop();
                }
            }
            drop(epochs);
            drop(loaders);
            kept.into_iter()
                .for_each(|(batch, samples)| check(&batch, samples));
        }
    });
}

/// Several threads iterate epochs of one loader.
#[test]
fn threads_share_a_loader() {
    watched("threads_share_a_loader", |seed| {
        for workers in [0, 2] {
            let device = late_device(seed);
            device.set_pinned_budget_bytes(6 * 4096);
            let loader = loader(&device, workers, false);
            std::thread::scope(|scope| {
                for epoch in 0..4 {
                    let (loader, device) = (&loader, &device);
                    scope.spawn(move || {
                        for (number, batch) in loader.epoch(epoch).enumerate() {
                            let pair = there_and_back(batch.unwrap(), device).unwrap();
                            check(&pair, expected(number, BATCH, LEN));
                        }
                    });
                }
            });
        }
    });
}

/// Beside an epoch whose consumer always waits and which never ends, another comes to its end.
#[test]
fn no_epoch_starves_another() {
    watched("no_epoch_starves_another", |seed| {
        for (pinned, slabs) in [(false, 0), (true, 100), (true, 1)] {
            let device = Device::hostile(late(seed, Duration::from_micros(300))).unwrap();
            device.set_pinned_budget_bytes(slabs * 4096);
            let dataset = from_fn(1u64 << 40, |index, _| {
                std::thread::sleep(Duration::from_micros(50));
                Ok(index as i64)
            });
            let builder = DataLoader::builder(dataset).batch_size(8).num_workers(1);
            let builder = match pinned {
                true => builder.pin_memory(&device),
                false => builder,
            };
            let loader = builder.build().unwrap();
            let (over, endless) = (AtomicBool::new(false), AtomicU64::new(0));
            std::thread::scope(|scope| {
                scope.spawn(|| {
                    for batch in loader.epoch(0) {
                        let there = batch.unwrap().to_device(&device, true).unwrap();
                        endless.fetch_add(1, Ordering::Relaxed);
                        if over.load(Ordering::Relaxed) {
                            break;
                        }
                        drop(there);
                    }
                });
                while endless.load(Ordering::Relaxed) < 3 {
                    std::thread::yield_now();
                }
                for batch in loader.epoch(1).take(20) {
                    batch.unwrap().to_device(&device, true).unwrap();
                }
                over.store(true, Ordering::Relaxed);
                // They take turns, as far as the system lets both of them run.
                let other = endless.load(Ordering::Relaxed);
                assert!(other < 400, "20 batches beside {other}");
            });
        }
    });
}

/// The tensor that a download gives out is its holder's alone, whoever else looks after the device's copies.
#[test]
fn a_download_is_unshared_at_once() {
    watched("a_download_is_unshared_at_once", |seed| {
        let device = Device::hostile(late(seed, Duration::ZERO)).unwrap();
        let over = AtomicBool::new(false);
        std::thread::scope(|scope| {
            for _ in 0..2 {
                scope.spawn(|| {
                    while !over.load(Ordering::Relaxed) {
                        device.memory();
                    }
                });
            }
            let there = Tensor::from_vec(vec![5u8; 100], &[100]).unwrap();
            let there = there.to_device(&device, true).unwrap();
            let mut outcome = Ok(());
            for round in 0..4_000 {
                let mut back = there.to_host(true).unwrap().wait().unwrap();
                if back.as_mut_slice().is_none() {
                    outcome = Err(format!("shared in round {round}"));
                    break;
                }
            }
            over.store(true, Ordering::Relaxed);
            outcome.unwrap();
        });
    });
}

/// Strict pinning fails only where nothing comes back: not because another thread looked after the copies just then.
#[test]
fn strict_pinning_waits_for_copies() {
    watched("strict_pinning_waits_for_copies", |seed| {
        let device = Device::hostile(late(seed, Duration::from_micros(20))).unwrap();
        device.set_pinned_budget_bytes(4096);
        for workers in [0, 1] {
            let dataset = from_fn(3_000, |index, _| Ok(index as i64));
            let mut builder = DataLoader::builder(dataset)
                .batch_size(4)
                .num_workers(workers);
            if workers > 0 {
                builder = builder.prefetch(1);
            }
            let builder = builder.pin_memory(&device).strict_pinning(true);
            let loader = builder.build().unwrap();
            let over = AtomicBool::new(false);
            std::thread::scope(|scope| {
                scope.spawn(|| {
                    while !over.load(Ordering::Relaxed) {
                        device.memory();
                    }
                });
                let failed = loader.epoch(0).find_map(|batch| match batch {
                    Ok(batch) => batch.to_device(&device, true).err(),
                    Err(error) => Some(error),
                });
                over.store(true, Ordering::Relaxed);
                assert!(failed.is_none(), "{workers} workers: {failed:?}");
            });
        }
    });
}

/// A loader's iterator as a source of rayon's.
#[test]
fn a_par_bridge_may_drive_a_loader() {
    watched("a_par_bridge_may_drive_a_loader", |seed| {
        for workers in [0, 2] {
            let device = late_device(seed);
            let loader = loader(&device, workers, false);
            for epoch in 0..4 {
                let count = AtomicU64::new(0);
                let bridge = loader.epoch(epoch).enumerate().par_bridge();
                bridge.for_each(|(number, batch)| {
                    let pair = there_and_back(batch.unwrap(), &device).unwrap();
                    check(&pair, expected(number, BATCH, LEN));
                    count.fetch_add(1, Ordering::Relaxed);
                });
                assert_eq!(count.into_inner(), BATCHES as u64);
            }
        }
    });
}

/// A thread of rayon's that takes a large batch under a lock must not run another task meanwhile, which takes the same.
#[test]
fn a_lock_may_be_held_over_large_batches() {
    watched("a_lock_may_be_held_over_large_batches", |_| {
        let rows = 6 << 20; // large enough to be touched by several threads
        for workers in [0, 1] {
            let device = Device::cpu();
            let dataset = from_fn(24, move |index, _| {
                Ok(Tensor::from(vec![index as u8; rows]))
            });
            let loader = DataLoader::builder(dataset)
                .num_workers(workers)
                .pin_memory(&device)
                .build()
                .unwrap();
            let epoch = Mutex::new(loader.epoch(0));
            let kept = Mutex::new(Vec::new());
            let pool = rayon::ThreadPoolBuilder::new()
                .num_threads(3)
                .build()
                .unwrap();
            pool.install(|| {
                (0..12).into_par_iter().for_each(|_| {
                    let mut epoch = epoch.lock().unwrap();
                    let batch = epoch.next().unwrap().unwrap();
                    // Held, so that each takes a new slab; pinned under the same lock, as well.
                    kept.lock().unwrap().push(batch);
                    let pinned = Tensor::from(vec![1u8; rows]).pin(&device).unwrap();
                    assert!(pinned.is_pinned());
                });
            });
            assert_eq!(kept.into_inner().unwrap().len(), 12);
        }
    });
}

/// The user's own parallel work inside of `get`, under the user's own lock.
#[test]
fn get_may_use_rayon_under_a_lock() {
    watched("get_may_use_rayon_under_a_lock", |seed| {
        for workers in [0, 1, 3] {
            let lock = Arc::new(Mutex::new(0u64));
            let dataset = from_fn(200, move |index, _| {
                let mut count = lock.lock().unwrap();
                *count += 1;
                let sum: u64 = (0..1_000u64).into_par_iter().map(|i| i ^ index).sum();
                Ok(sum as i64)
            });
            let loader = DataLoader::builder(dataset)
                .batch_size(8)
                .num_workers(workers)
                .pin_memory(&late_device(seed))
                .build()
                .unwrap();
            let sums: Vec<i64> = loader
                .epoch(0)
                .flat_map(|batch| batch.unwrap().to_vec())
                .collect();
            let expected = (0..200).map(|index| (0..1_000).map(|i| i ^ index).sum::<u64>() as i64);
            assert!(sums.into_iter().eq(expected));
        }
    });
}

/// A data set that is itself a loader's epoch on the same device.
#[test]
fn loaders_nest() {
    watched("loaders_nest", |seed| {
        let device = late_device(seed);
        let inner = Arc::new(loader(&device, 1, false));
        let of_get = (Arc::clone(&inner), device.clone());
        let dataset = from_fn(6, move |index, _| {
            let (inner, device) = &of_get;
            let mut sum = 0;
            for (number, batch) in inner.epoch(index).enumerate() {
                let pair = there_and_back(batch?, device)?;
                check(&pair, expected(number, BATCH, LEN));
                sum += pair.1.as_slice().iter().sum::<i64>();
            }
            Ok(sum)
        });
        let outer = DataLoader::builder(dataset)
            .batch_size(2)
            .num_workers(2)
            .pin_memory(&device)
            .build()
            .unwrap();
        for batch in &outer {
            assert_eq!(batch.unwrap().as_slice(), [(0..50).sum::<i64>(); 2]);
        }
    });
}

/// Without workers: when a batch has its slab, pageable memory is staged again, also by the samples of that very batch.
#[test]
fn copies_are_staged_while_a_batch_is_loaded() {
    const PIECE: usize = 16 << 10;
    watched("copies_are_staged_while_a_batch_is_loaded", |seed| {
        let device = Device::hostile(late(seed, Duration::from_millis(20))).unwrap();
        let of_get = device.clone();
        let dataset = from_fn(4, move |index, _| {
            if index == 3 {
                let before = of_get.memory().unstaged;
                of_get.set_pinned_budget_bytes(64 * PIECE);
                drop(Tensor::from(vec![1u8; 6 * PIECE]).to_device(&of_get, true)?);
                assert_eq!(of_get.memory().unstaged, before);
            }
            Ok(index as i64)
        });
        let builder = DataLoader::builder(dataset).batch_size(4).num_workers(0);
        let loader = builder.pin_memory(&device).build().unwrap();
        // The batch waits for what a copy that is on its way was staged through: all that there is.
        device.set_pinned_budget_bytes(2 * PIECE);
        let there = Tensor::from(vec![1u8; 8 * PIECE]).to_device(&device, true);
        assert!(loader.epoch(0).next().unwrap().unwrap().is_pinned());
        drop(there);
    });
}
