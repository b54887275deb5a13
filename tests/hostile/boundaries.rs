//! Boundaries between epochs that follow each other: late copies, little memory, failures, and ends at any point.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::time::Duration;

use pinfeed::rng::RngKey;
use pinfeed::{Batch, DataLoader, Device, Error, SampleRng, from_fn};

use crate::support::{
    Pair, PairOnDevice, back, check, check_on_device, expected, late, rng, sample, samples, watched,
};

const LEN: u64 = 23;

/// Programs that leave epochs early, keep batches, hold several epochs and stop anywhere, on devices with little memory.
#[test]
fn programs_may_do_what_they_like_at_boundaries() {
    watched("programs_may_do_what_they_like_at_boundaries", |seed| {
        let mut rng = rng(seed, 11);
        for round in 0..150 {
            let device = Device::hostile(late(seed + round, Duration::from_micros(300))).unwrap();
            if rng.bool(0.4) {
                device.set_pinned_budget_bytes(4096 * rng.below(10) as usize);
            }
            if rng.bool(0.3) {
                device.cut_batches_at(4_000, 1_000);
            } else {
                device.cut_batches_at(1 << 40, 1);
            }
            let batch_size = 1 + rng.below(12) as usize;
            let workers = rng.below(4) as usize;
            let mut builder = DataLoader::builder(samples(LEN))
                .batch_size(batch_size)
                .num_workers(workers);
            if workers > 0 {
                builder = builder.prefetch(1 + rng.below(4) as usize);
            }
            let builder = match rng.below(5) {
                0 => builder,
                by_copy => builder.pin_memory(&device).pin_by_copy(by_copy == 1),
            };
            let loader: DataLoader<Pair> = builder.build().unwrap();
            let samples = |number| expected(number, batch_size, LEN);
            let mut kept: VecDeque<(usize, Pair)> = VecDeque::new();
            let mut there: VecDeque<(usize, PairOnDevice)> = VecDeque::new();
            if rng.bool(0.5) {
                let mut held = Vec::new();
                for mut epoch in loader.epochs(0..8) {
                    let mut number = 0;
                    while rng.bool(0.95) {
                        assert_eq!(epoch.len() + number, loader.len());
                        let Some(batch) = epoch.next() else {
                            assert_eq!(number, loader.len());
                            break;
                        };
                        let batch = batch.unwrap();
                        check(&batch, samples(number));
                        match rng.below(4) {
                            0 => kept.push_back((number, batch)),
                            1 => drop(batch),
                            _ => {
                                there.push_back((number, batch.to_device(&device, true).unwrap()));
                            }
                        }
                        if rng.bool(0.7) {
                            kept.pop_front();
                        }
                        if rng.bool(0.8) {
                            there.pop_front();
                        }
                        number += 1;
                    }
                    if rng.bool(0.1) {
                        held.push((number, epoch));
                    } else if rng.bool(0.1) {
                        std::mem::forget(epoch);
                    }
                }
                for (mut number, epoch) in held {
                    for batch in epoch {
                        check(&batch.unwrap(), samples(number));
                        number += 1;
                    }
                    assert_eq!(number, loader.len());
                }
            } else {
                let depth = rng.below(4) as usize;
                let mut held = Vec::new();
                for mut epoch in loader.epochs(0..8).prefetch_to_device(&device, depth) {
                    let mut number = 0;
                    while rng.bool(0.95) {
                        assert_eq!(epoch.len() + number, loader.len());
                        let Some(batch) = epoch.next() else {
                            assert_eq!(number, loader.len());
                            break;
                        };
                        there.push_back((number, batch.unwrap()));
                        if rng.bool(0.8)
                            && let Some((number, batch)) = there.pop_front()
                        {
                            check_on_device(&batch, samples(number));
                        }
                        number += 1;
                    }
                    if rng.bool(0.1) {
                        held.push((number, epoch));
                    }
                }
                for (mut number, epoch) in held {
                    for batch in epoch {
                        check_on_device(&batch.unwrap(), samples(number));
                        number += 1;
                    }
                    assert_eq!(number, loader.len());
                }
            }
            if rng.bool(0.5) {
                drop(loader);
            }
            kept.iter().for_each(|(n, batch)| check(batch, samples(*n)));
            let batches = there.iter();
            batches.for_each(|(n, batch)| check_on_device(batch, samples(*n)));
            assert_eq!(device.memory().leaked, 0);
        }
    });
}

/// A device that breaks at any call: each batch comes, or its error, in each epoch.
#[test]
fn epochs_outlive_their_device() {
    watched("epochs_outlive_their_device", |seed| {
        const BATCH: usize = 4;
        for call in 0..90 {
            for (sticky, in_parts) in [(false, false), (true, false), (false, true), (true, true)] {
                let mut options = late(seed, Duration::from_micros(30));
                options.fail_call = Some(call);
                options.sticky = sticky;
                let Ok(device) = Device::hostile(options) else {
                    continue;
                };
                if in_parts {
                    device.cut_batches_at(2_000, 600);
                }
                let loader: DataLoader<Pair> = DataLoader::builder(samples(LEN))
                    .batch_size(BATCH)
                    .num_workers(2)
                    .pin_memory(&device)
                    .build()
                    .unwrap();
                let mut errors = 0;
                for epoch in loader.epochs(0..4).prefetch_to_device(&device, 2) {
                    let mut number = 0;
                    for there in epoch {
                        match there.and_then(|there| back(&there)) {
                            Ok(pair) => check(&pair, expected(number, BATCH, LEN)),
                            Err(_) => errors += 1,
                        }
                        number += 1;
                    }
                    assert_eq!(number, loader.len());
                }
                // One call failed: one batch is missing, or none.
                assert!(sticky || errors <= 1, "call {call}: {errors} errors");
            }
        }
    });
}

/// Shares of the ring come back, however epochs and their iterators end: whoever comes after needs no more slabs.
#[test]
fn shares_of_epochs_come_back() {
    watched("shares_of_epochs_come_back", |seed| {
        let mut rng = rng(seed, 12);
        let device = Device::hostile(late(seed, Duration::from_millis(1))).unwrap();
        device.cut_batches_at(1 << 40, 1);
        for round in 0..30 {
            let loader = DataLoader::builder(from_fn(16, |index, _| Ok([index as u8; 900])))
                .batch_size(4)
                .num_workers(2)
                .prefetch(2)
                .pin_memory(&device)
                .build()
                .unwrap();
            let mut epochs = loader.epochs(0..6);
            for _ in 0..rng.below(6) {
                let Some(epoch) = epochs.next() else { break };
                for batch in epoch.take(rng.below(6) as usize) {
                    drop(batch.unwrap().to_device(&device, true).unwrap());
                }
            }
            drop(epochs);
            drop(loader);
            // Five, and what workers still hold of an epoch that was left.
            let memory = device.memory();
            assert!(memory.slabs_made <= 5 + 3, "round {round}: {memory:?}");
        }
        // Behind this copy, all are done: nothing of the ring is out.
        let last = pinfeed::Tensor::from(vec![1u8]).to_device(&device, false);
        drop(last.unwrap());
        let memory = device.memory();
        assert_eq!(memory.pinned_bytes, memory.pinned_idle_bytes, "{memory:?}");
        assert_eq!(memory.slabs_missed, 0, "{memory:?}");
    });
}

/// Strict pinning, with as many slabs as there are batches ahead: what is loaded of the next epoch takes none from this one.
#[test]
fn strict_pinning_holds_across_boundaries() {
    watched("strict_pinning_holds_across_boundaries", |seed| {
        for (workers, prefetch, slabs) in [(1, 1, 1), (2, 1, 1), (3, 2, 2), (2, 4, 4)] {
            let device = Device::hostile(late(seed, Duration::from_micros(50))).unwrap();
            device.cut_batches_at(1 << 40, 1);
            device.set_pinned_budget_bytes(4096 * slabs);
            for batch_size in [4, LEN as usize] {
                let loader: DataLoader<Pair> = DataLoader::builder(from_fn(LEN, |index, _| {
                    Ok(sample(index % 3)?) // not larger than a slab
                }))
                .batch_size(batch_size.min(12))
                .num_workers(workers)
                .prefetch(prefetch)
                .pin_memory(&device)
                .strict_pinning(true)
                .build()
                .unwrap();
                for epoch in loader.epochs(0..20) {
                    for batch in epoch {
                        drop(batch.unwrap().to_device(&device, true).unwrap());
                    }
                }
                for epoch in loader.epochs(0..20).prefetch_to_device(&device, 2) {
                    epoch.for_each(|batch| drop(batch.unwrap()));
                }
            }
        }
    });
}

/// A data set that panics wherever an epoch begins, and numbers that panic: what was begun ends, and nothing hangs.
#[test]
fn panics_at_boundaries_end_nothing_else() {
    watched("panics_at_boundaries_end_nothing_else", |_| {
        for workers in [0, 1, 3] {
            let dataset = from_fn(LEN, |index, _| {
                assert!(index > 0, "the first sample panics");
                Ok(sample(index)?)
            });
            let loader = DataLoader::builder(dataset)
                .batch_size(5)
                .num_workers(workers)
                .build()
                .unwrap();
            let numbers = (0..4).inspect(|number| assert!(*number < 3, "the numbers end badly"));
            let mut epochs = loader.epochs(numbers);
            let rounds = if workers == 0 { 3 } else { 2 };
            for number in 0..rounds {
                let outcomes: Vec<_> = epochs.next().unwrap().collect();
                assert!(matches!(
                    &outcomes[0],
                    Err(Error::SamplePanicked(id, _)) if (id.epoch, id.index) == (number, 0)
                ));
                assert!(outcomes.len() == 5 && outcomes[1..].iter().all(Result::is_ok));
            }
            let asked = std::panic::AssertUnwindSafe(|| drop(epochs.next()));
            assert!(std::panic::catch_unwind(asked).is_err());
            drop(epochs);
            assert_eq!(loader.epoch(9).filter(Result::is_ok).count(), 4);
        }
    });
}

/// The iterator moves on, or goes, on one thread while the epoch that it gave out comes to its end on another.
#[test]
fn an_epoch_and_its_iterator_may_part() {
    watched("an_epoch_and_its_iterator_may_part", |seed| {
        let mut rng = rng(seed, 13);
        let device = Device::hostile(late(seed, Duration::from_micros(100))).unwrap();
        let loader: Arc<DataLoader<Pair>> = Arc::new(
            DataLoader::builder(samples(LEN))
                .batch_size(5)
                .num_workers(2)
                .pin_memory(&device)
                .build()
                .unwrap(),
        );
        for round in 0..60 {
            let (go_on, pause) = (rng.bool(0.5), Duration::from_micros(rng.below(400)));
            if round % 2 == 0 {
                let mut epochs = loader.owned_epochs(round..round + 3);
                let epoch = epochs.next().unwrap();
                let other = std::thread::spawn(move || {
                    std::thread::sleep(pause);
                    go_on.then(|| epochs.next().unwrap().map(Result::unwrap).count())
                });
                for (number, batch) in epoch.enumerate() {
                    check(&batch.unwrap(), expected(number, 5, LEN));
                }
                assert_eq!(other.join().unwrap(), go_on.then_some(5));
            } else {
                let mut epochs = loader
                    .owned_epochs(round..round + 3)
                    .prefetch_to_device(&device, 1);
                let epoch = epochs.next().unwrap();
                let other = std::thread::spawn(move || {
                    std::thread::sleep(pause);
                    go_on.then(|| epochs.next().unwrap().map(Result::unwrap).count())
                });
                for (number, batch) in epoch.enumerate() {
                    check_on_device(&batch.unwrap(), expected(number, 5, LEN));
                }
                assert_eq!(other.join().unwrap(), go_on.then_some(5));
            }
        }
    });
}

/// Another epoch of the loader, which has a consumer, does not wait for what is loaded ahead.
#[test]
fn what_is_ahead_comes_last() {
    watched("what_is_ahead_comes_last", |_| {
        // What each sample drew tells which epoch it is of. The first of epoch 1 waits.
        let draws = |epoch: u64| {
            (0..8).map(move |position| {
                SampleRng::for_sample(RngKey {
                    seed: 0,
                    epoch,
                    position,
                })
                .next_u32()
            })
        };
        let first_ahead = draws(1).next().unwrap();
        let (entered, is_entered) = mpsc::channel();
        let (go, may_go) = mpsc::channel::<()>();
        let may_go = Mutex::new(may_go);
        let (loaded, is_loaded) = mpsc::channel();
        let dataset = from_fn(8, move |index, rng: &mut SampleRng| {
            let draw = rng.next_u32();
            loaded.send(draw)?;
            if draw == first_ahead {
                entered.send(())?;
                may_go.lock().unwrap().recv()?;
            }
            Ok(index as i64)
        });
        let loader = DataLoader::builder(dataset)
            .batch_size(2)
            .num_workers(1)
            .prefetch(3)
            .build()
            .unwrap();
        let mut epochs = loader.epochs(0..2);
        let epoch = epochs.next().unwrap();
        assert_eq!(epoch.map(Result::unwrap).count(), 4);
        is_entered.recv().unwrap();
        let other = loader.epoch(7);
        go.send(()).unwrap();
        let order: Vec<u32> = is_loaded.iter().take(8 + 2 + 5).collect();
        // The worker may have claimed the sample after it, too.
        let second_ahead = draws(1).nth(1).unwrap();
        let order = order.into_iter().filter(|draw| *draw != second_ahead);
        let expected = draws(0).chain([first_ahead]).chain(draws(7).take(5));
        assert!(order.take(8 + 1 + 5).eq(expected));
        assert_eq!(other.map(Result::unwrap).count(), 4);
        assert_eq!(epochs.next().unwrap().map(Result::unwrap).count(), 4);
    });
}

/// Batches that were taken together count as ahead until the consumer asks for more. The last time that it asks, it gets nothing,
/// and may keep the epoch for as long as it likes: the next is loaded meanwhile.
#[test]
fn an_epoch_that_is_used_up_leaves_its_room() {
    watched("an_epoch_that_is_used_up_leaves_its_room", |_| {
        for _ in 0..50 {
            let loaded = Arc::new(AtomicU64::new(0));
            let of_get = Arc::clone(&loaded);
            let dataset = from_fn(4, move |index, _| {
                of_get.fetch_add(1, Ordering::SeqCst);
                Ok(index as i64)
            });
            let builder = DataLoader::builder(dataset).batch_size(1).num_workers(1);
            let loader = builder.build().unwrap();
            let mut epochs = loader.epochs(0..2);
            let mut epoch = epochs.next().unwrap();
            // So that several batches are ready at once, most often: no more than two are sure to be loaded ahead.
            for _ in 0..1_000 {
                if loaded.load(Ordering::SeqCst) == 4 {
                    break;
                }
                std::thread::yield_now();
            }
            assert_eq!(epoch.by_ref().count(), 4);
            while loaded.load(Ordering::SeqCst) == 4 {
                std::thread::yield_now();
            }
            drop(epoch);
        }
    });
}
