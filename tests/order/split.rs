//! One loader for several devices: together they get what as many ranks get.

use std::thread;

use pinfeed::loader::{DeviceEpoch, LastBatch, LoaderState, World};
use pinfeed::{BoxError, DataLoader, Device, SampleRng, Tensor, from_fn};

const LEN: u64 = 203;
const BATCH: usize = 8;

type Pair = (Tensor<i64>, Tensor<i64>);
type Rows = Vec<(i64, i64)>;

struct Setting {
    world: World,
    workers: usize,
    last_batch: LastBatch,
    lists: bool,
}

const ALONE: Setting = Setting {
    world: World::single(),
    workers: 3,
    last_batch: LastBatch::Drop,
    lists: false,
};

/// Each sample is its index, and a number that it draws.
fn loader(setting: &Setting, devices: &[Device]) -> DataLoader<Pair> {
    let samples = from_fn(LEN, |index, rng: &mut SampleRng| {
        Ok((index as i64, rng.range(0..1_000_000i64)))
    });
    let builder = DataLoader::builder(samples)
        .seed(17)
        .last_batch(setting.last_batch)
        .num_workers(setting.workers)
        .world(setting.world);
    let builder = match devices {
        [] => builder,
        _ => builder.pin_memory(devices),
    };
    let builder = match setting.lists {
        true => {
            let lists =
                (0..23u64).map(|list| (0..1 + list % 4).map(|row| list * 5 + row).collect());
            builder.batch_sampler(lists.collect::<Vec<Vec<u64>>>())
        }
        false => builder.batch_size(BATCH).shuffle(true),
    };
    builder.build().unwrap()
}

fn devices(count: usize) -> Vec<Device> {
    (0..count).map(|_| Device::cpu()).collect()
}

fn rows((indices, drawn): &(pinfeed::DeviceTensor<i64>, pinfeed::DeviceTensor<i64>)) -> Rows {
    let host = |tensor: &pinfeed::DeviceTensor<i64>| {
        let tensor = tensor.to_host(false).unwrap().wait().unwrap();
        tensor.to_vec()
    };
    host(indices).into_iter().zip(host(drawn)).collect()
}

fn batches(epoch: DeviceEpoch<'_, Pair>) -> Vec<Rows> {
    let steps = epoch.len();
    let batches: Vec<_> = epoch.map(|batch| rows(&batch.unwrap())).collect();
    assert_eq!(batches.len(), steps);
    batches
}

/// Each epoch on a thread of its own.
fn each(epochs: Vec<DeviceEpoch<'_, Pair>>) -> Vec<Vec<Rows>> {
    thread::scope(|scope| {
        let threads = epochs
            .into_iter()
            .map(|epoch| scope.spawn(|| batches(epoch)));
        let threads: Vec<_> = threads.collect();
        threads
            .into_iter()
            .map(|thread| thread.join().unwrap())
            .collect()
    })
}

/// Of one rank and of several, with even batches and with lists, with each way to treat the last ones, with and without workers.
#[test]
fn devices_get_what_as_many_ranks_would() {
    for last_batch in [LastBatch::Drop, LastBatch::Partial, LastBatch::Fill] {
        for (ranks, count, lists, workers) in [
            (1, 2, false, 3),
            (1, 3, true, 2),
            (2, 2, false, 0),
            (2, 3, false, 2),
            (3, 2, true, 0),
            (1, 1, false, 2),
        ] {
            for rank in 0..ranks {
                let setting = Setting {
                    world: World::new(rank, ranks).unwrap(),
                    workers,
                    last_batch,
                    lists,
                };
                let own = devices(count);
                let loader = loader(&setting, &own);
                for epoch in [0, 4] {
                    let found = each(loader.epoch(epoch).split(&own, 2));
                    for (device, found) in found.iter().enumerate() {
                        let setting = Setting {
                            world: World::new(rank * count + device, ranks * count).unwrap(),
                            ..setting
                        };
                        let alone = devices(1);
                        let other = self::loader(&setting, &alone);
                        let expected = batches(other.epoch(epoch).prefetch_to_device(&alone[0], 1));
                        assert_eq!(
                            *found, expected,
                            "{last_batch:?}, rank {rank} of {ranks}, device {device} of {count}"
                        );
                    }
                }
            }
        }
    }
}

/// The next epochs are loaded across the boundary; devices come to it at different times.
#[test]
fn epochs_follow_each_other_on_each_device() {
    let own = devices(2);
    let loader = loader(&ALONE, &own);
    let expected: Vec<Vec<Vec<Rows>>> = (0..4)
        .map(|epoch| each(loader.epoch(epoch).split(&own, 1)))
        .collect();
    let found = thread::scope(|scope| {
        let epochs = loader.epochs(0..4).split(&own, 2).into_iter();
        let threads: Vec<_> = epochs
            .map(|epochs| scope.spawn(|| epochs.map(batches).collect::<Vec<_>>()))
            .collect();
        let threads = threads.into_iter();
        threads
            .map(|thread| thread.join().unwrap())
            .collect::<Vec<_>>()
    });
    for (epoch, expected) in expected.iter().enumerate() {
        for (device, expected) in expected.iter().enumerate() {
            assert_eq!(
                found[device][epoch], *expected,
                "epoch {epoch}, device {device}"
            );
        }
    }
    assert_eq!((loader.state().epoch(), loader.state().position()), (4, 0));
}

/// Stopped after some steps, and resumed by one device, by three, and by a rank of its own for each.
#[test]
fn a_state_goes_on_with_any_number_of_devices() {
    let own = devices(3);
    let loader = loader(&ALONE, &own);
    let whole = each(loader.epoch(1).split(&own, 2));
    let global = |step: usize| -> Rows {
        whole
            .iter()
            .flat_map(|device| device[step].clone())
            .collect()
    };
    let all: Rows = (0..whole[0].len()).flat_map(global).collect();
    for steps in 0..=whole[0].len() {
        let state: LoaderState = {
            let mut epochs = loader.epoch(1).split(&own, 2);
            for epoch in &mut epochs {
                assert_eq!(
                    epoch
                        .by_ref()
                        .take(steps)
                        .filter(|batch| batch.is_ok())
                        .count(),
                    steps
                );
            }
            let state = loader.state();
            assert!(epochs.iter().all(|epoch| epoch.state() == state));
            state.to_string().parse().unwrap()
        };
        let done = steps * 3 * BATCH;
        let position = if steps == whole[0].len() {
            0
        } else {
            done as u64
        };
        assert_eq!(
            (state.epoch(), state.position()),
            (1 + u64::from(position == 0 && steps > 0), position)
        );

        // The same devices, in a new loader.
        let again = devices(3);
        let other = self::loader(&ALONE, &again);
        let resumed = other.resume(1..2, &state).unwrap().split(&again, 1);
        let resumed: Vec<Vec<Rows>> = resumed
            .into_iter()
            .map(|epochs| epochs.flat_map(batches).collect())
            .collect();
        for (device, found) in resumed.iter().enumerate() {
            assert_eq!(*found, whole[device][steps..], "device {device}");
        }

        // One device, of batches of the same size: the rest of the order, in order.
        let alone = devices(1);
        let setting = Setting {
            last_batch: LastBatch::Partial,
            ..ALONE
        };
        let other = self::loader(&setting, &alone);
        let rest: Rows = other
            .resume(1..2, &state)
            .unwrap()
            .flat_map(|epoch| {
                epoch
                    .prefetch_to_device(&alone[0], 1)
                    .flat_map(|batch| rows(&batch.unwrap()))
            })
            .collect();
        let left = if position == 0 && steps > 0 {
            0
        } else {
            LEN as usize - done
        };
        assert_eq!(rest.len(), left);
        assert!(left == 0 || rest.starts_with(&all[done..]));
    }
}

/// What one device took alone comes again: nothing is left out.
#[test]
fn the_state_is_that_of_the_device_furthest_behind() {
    let own = devices(2);
    let loader = loader(&ALONE, &own);
    let mut epochs = loader.epoch(0).split(&own, 2);
    for _ in 0..3 {
        epochs[0].next().unwrap().unwrap();
    }
    assert_eq!(loader.state().position(), 0);
    epochs[1].next().unwrap().unwrap();
    assert_eq!(loader.state().position(), 2 * BATCH as u64);
    assert_eq!(epochs[0].state().position(), 3 * 2 * BATCH as u64);
    drop(epochs);
    // An epoch of another kind counts for itself.
    let mut whole = loader.epoch(5);
    whole.next().unwrap().unwrap();
    assert_eq!(
        (loader.state().epoch(), loader.state().position()),
        (5, BATCH as u64)
    );
}

/// A device whose program is slow, or gone, holds nobody up.
#[test]
fn a_device_that_is_left_does_not_stop_the_others() {
    let own = devices(3);
    let loader = loader(&ALONE, &own);
    for round in 0..3 {
        let mut epochs = loader.epoch(round).split(&own, 2);
        let last = epochs.pop().unwrap();
        let mut first = epochs.remove(0);
        let steps = first.len();
        first.next().unwrap().unwrap();
        drop(first); // midway
        assert_eq!(batches(last).len(), steps); // while nobody iterates the second
        assert_eq!(batches(epochs.pop().unwrap()).len(), steps);
    }
}

/// A sample that fails is an error on its device alone, and the steps stay equal.
#[test]
fn an_error_is_that_of_its_device() {
    let samples = from_fn(64, |index, _| match index {
        20 => Err(BoxError::from("broken")),
        _ => Ok(index as i64),
    });
    let own = devices(2);
    let loader = DataLoader::builder(samples)
        .batch_size(8)
        .num_workers(2)
        .pin_memory(&own)
        .build()
        .unwrap();
    for epoch in 0..2 {
        let found: Vec<Vec<bool>> = thread::scope(|scope| {
            let epochs = loader.epoch(epoch).split(&own, 2).into_iter();
            let threads: Vec<_> = epochs
                .map(|epoch| scope.spawn(|| epoch.map(|batch| batch.is_ok()).collect()))
                .collect();
            threads
                .into_iter()
                .map(|thread| thread.join().unwrap())
                .collect()
        });
        assert_eq!(found, [[true, false, true, true], [true; 4]]);
    }
}

/// Each device has page-locked memory of its own: as much as a loader's for one device, however many epochs there are.
#[test]
fn each_device_has_a_ring_of_its_own() {
    let own = devices(2);
    let samples = from_fn(64, |index, _| Ok([index as f32; 1000]));
    let loader = DataLoader::builder(samples)
        .batch_size(8)
        .num_workers(2)
        .prefetch(2)
        .strict_pinning(true)
        .pin_memory(&own)
        .build()
        .unwrap();
    let epochs = 30;
    for epoch in 0..epochs {
        thread::scope(|scope| {
            for batches in loader.epoch(epoch).split(&own, 1) {
                scope.spawn(move || batches.for_each(|batch| drop(batch.unwrap())));
            }
        });
    }
    assert_eq!(loader.stats().unpinned.count, 0);
    for device in &own {
        let made = device.memory().slabs_made;
        assert!(
            (1..=8).contains(&made),
            "{made} slabs for {} batches",
            epochs * 4
        );
    }
}

#[test]
fn a_global_batch_is_shared_by_all_devices_of_all_ranks() {
    let own = devices(2);
    let samples = || from_fn(100, |index, _| Ok(index as i64));
    let of = |global| {
        DataLoader::builder(samples())
            .global_batch_size(global)
            .world(World::new(0, 2).unwrap())
            .pin_memory(&own)
            .build()
    };
    assert_eq!(of(40).unwrap().batch_size(), 10);
    let error = of(30).unwrap_err().to_string();
    assert!(
        error.contains("30") && error.contains("4 devices"),
        "{error}"
    );
}

/// Nothing was said of the devices before, or another number, or one of them twice.
#[test]
fn devices_need_not_be_those_that_are_pinned_for() {
    let own = devices(2);
    let pinned: [&[Device]; 4] = [
        &[],
        &own[..1],
        &own,
        &[own[1].clone(), own[0].clone(), own[1].clone()],
    ];
    let mut expected = None;
    for pinned in pinned {
        let loader = loader(&ALONE, pinned);
        let found = each(loader.epoch(2).split(&own, 2));
        assert_eq!(*expected.get_or_insert_with(|| found.clone()), found);
        let twice = [own[0].clone(), own[0].clone()];
        assert_eq!(each(loader.epoch(2).split(&twice, 2)), found);
        assert!(loader.epoch(2).split::<Device>(&[], 2).is_empty());
        // Without a split, the rank's batches come one after the other.
        let whole: Vec<Rows> = batches(loader.epoch(2).prefetch_to_device(&own[0], 1));
        for (step, batch) in whole.iter().take(found[0].len() * 2).enumerate() {
            assert_eq!(*batch, found[step % 2][step / 2]);
        }
    }
}

/// An epoch that was begun already: what is left of it is shared.
#[test]
fn what_is_left_of_an_epoch_is_shared() {
    let own = devices(2);
    let loader = loader(&ALONE, &own);
    let whole = batches(loader.epoch(3).prefetch_to_device(&own[0], 1));
    let mut epoch = loader.epoch(3);
    epoch.next().unwrap().unwrap();
    let found = each(epoch.split(&own, 2));
    for (step, batch) in whole[1..].iter().take(found[0].len() * 2).enumerate() {
        assert_eq!(*batch, found[step % 2][step / 2]);
    }
    // The same for several epochs, the first of which is half done.
    let mut epochs = loader.epochs(3..6);
    drop(epochs.next());
    let steps: Vec<Vec<u64>> = epochs
        .split(&own, 2)
        .into_iter()
        .map(|epochs| epochs.map(|epoch| epoch.number()).collect())
        .collect();
    assert_eq!(steps, [[4, 5], [4, 5]]);
}

/// In any order, each device gets its own batches, each once; and whatever the state does not count comes again, so nothing is lost.
#[test]
fn in_any_order_nothing_is_lost() {
    let own = devices(2);
    let build = |own: &[Device]| {
        let samples = from_fn(160, |index, rng| {
            let slow = rng.bool(0.1);
            thread::sleep(std::time::Duration::from_micros(if slow {
                3_000
            } else {
                10
            }));
            Ok(index as i64)
        });
        DataLoader::builder(samples)
            .batch_size(4)
            .shuffle(true)
            .num_workers(3)
            .prefetch(4)
            .in_order(false)
            .pin_memory(own)
            .build()
            .unwrap()
    };
    let numbers = |batch: pinfeed::Result<pinfeed::DeviceTensor<i64>>| {
        let batch = batch.unwrap().to_host(false).unwrap().wait().unwrap();
        batch.to_vec()
    };
    let loader = build(&own);
    for steps in [0, 1, 7, 20] {
        let mut epochs = loader.epoch(0).split(&own, 2);
        let mut seen = Vec::new();
        for epoch in &mut epochs {
            seen.extend(epoch.by_ref().take(steps).flat_map(numbers));
        }
        let different = |seen: &[i64]| seen.iter().collect::<std::collections::BTreeSet<_>>().len();
        assert_eq!((seen.len(), different(&seen)), (steps * 8, steps * 8));
        let state: LoaderState = loader.state().to_string().parse().unwrap();
        drop(epochs);
        let again = devices(2);
        let other = build(&again);
        for epochs in other.resume(0..1, &state).unwrap().split(&again, 2) {
            seen.extend(epochs.flatten().flat_map(numbers));
        }
        assert_eq!(different(&seen), 160);
    }
}

/// An epoch that devices share is one epoch, whether it was begun only to be shared or before.
#[test]
fn statistics_count_the_epochs_of_devices() {
    let own = devices(2);
    for (shares, steps) in [(1, 25), (2, 12)] {
        let loader = loader(&ALONE, &own);
        for _ in 0..2 {
            each(loader.epoch(0).split(&own[..shares], 1));
        }
        let (stats, total, shares) = (loader.stats(), loader.total_stats(), shares as u64);
        assert_eq!((stats.epochs, stats.batches), (1, shares * steps));
        assert_eq!((total.epochs, total.batches), (2, 2 * shares * steps));
        // Of this one, a batch was taken before.
        let mut epoch = loader.epoch(1);
        epoch.next().unwrap().unwrap();
        each(epoch.split(&own[..shares as usize], 1));
        assert_eq!(loader.total_stats().epochs, 3);
        // Each device has epochs of its own pace.
        for epochs in loader.epochs(0..5).split(&own[..shares as usize], 1) {
            epochs.for_each(drop);
        }
        assert_eq!((loader.total_stats().epochs, loader.stats().epochs), (8, 1));
    }
}
