//! Epochs that several devices share, with what else a loader may be told: bad samples, samples that hang, epochs without batches, and
//! programs that only ask.

use std::collections::BTreeSet;
use std::sync::{Arc, Condvar, Mutex};
use std::thread;
use std::time::Duration;

use pinfeed::loader::{Builder, DeviceEpoch, LastBatch, OnError, TryNext, World};
use pinfeed::sampler::{BatchSampler, Batches};
use pinfeed::{
    BoxError, DataLoader, Dataset, Device, DeviceTensor, Error, SampleRng, Tensor, from_fn,
};

type Pair = (Tensor<i64>, Tensor<i64>);
type Rows = Vec<(i64, i64)>;

fn devices(count: usize) -> Vec<Device> {
    (0..count).map(|_| Device::cpu()).collect()
}

fn rows((indices, drawn): (DeviceTensor<i64>, DeviceTensor<i64>)) -> Rows {
    let host = |tensor: DeviceTensor<i64>| {
        let tensor = tensor.to_host(false).unwrap().wait().unwrap();
        tensor.to_vec()
    };
    host(indices).into_iter().zip(host(drawn)).collect()
}

/// The rows of each batch, or its error.
fn batches(epoch: DeviceEpoch<'_, Pair>) -> Vec<Result<Rows, String>> {
    let steps = epoch.len();
    let batches = epoch.map(|batch| batch.map(rows).map_err(|error| error.to_string()));
    let batches: Vec<_> = batches.collect();
    assert_eq!(batches.len(), steps);
    batches
}

/// Each epoch on a thread of its own.
fn each(epochs: Vec<DeviceEpoch<'_, Pair>>) -> Vec<Vec<Result<Rows, String>>> {
    thread::scope(|scope| {
        let threads = epochs.into_iter();
        let threads = threads.map(|epoch| scope.spawn(|| batches(epoch)));
        let threads: Vec<_> = threads.collect();
        let threads = threads.into_iter();
        threads.map(|thread| thread.join().unwrap()).collect()
    })
}

/// Each sample is its index, and a number that it draws; each seventh is bad.
fn with_bad() -> Builder<impl Dataset<Sample = (i64, i64)>, pinfeed::collate::Stack> {
    let samples = from_fn(100, |index, rng: &mut SampleRng| match index % 7 {
        3 => Err(BoxError::from("broken")),
        _ => Ok((index as i64, rng.range(0..1_000_000i64))),
    });
    DataLoader::builder(samples)
        .batch_size(4)
        .shuffle(true)
        .seed(17)
        .last_batch(LastBatch::Partial)
}

/// What becomes of a bad sample is the same as on as many ranks, and the steps stay equal; and so it is if the epoch is resumed.
#[test]
fn bad_samples_are_treated_as_on_ranks() {
    for on_error in [
        OnError::Fail,
        OnError::Skip { at_most: 100 },
        OnError::Replace { at_most: 100 },
    ] {
        for (ranks, count) in [(1, 2), (2, 2), (1, 3)] {
            for rank in 0..ranks {
                let own = devices(count);
                let build = |world: World, own: &[Device]| {
                    let builder = with_bad().on_error(on_error).num_workers(2);
                    builder.world(world).pin_memory(own).build().unwrap()
                };
                let loader = build(World::new(rank, ranks).unwrap(), &own);
                let found = each(loader.epoch(1).split(&own, 2));
                let failed = found
                    .iter()
                    .flatten()
                    .filter(|batch| batch.is_err())
                    .count();
                match on_error {
                    OnError::Fail => assert!(failed > 5),
                    // (All rows of a short last batch may be bad.)
                    OnError::Skip { .. } => assert!(failed < 2),
                    _ => assert_eq!(failed, 0),
                }
                for (device, found) in found.iter().enumerate() {
                    let world = World::new(rank * count + device, ranks * count).unwrap();
                    let alone = devices(1);
                    let expected = batches(
                        build(world, &alone)
                            .epoch(1)
                            .prefetch_to_device(&alone[0], 1),
                    );
                    // (An error tells the batch's number on its rank.)
                    let ok = |batch: &Result<Rows, String>| batch.clone().ok();
                    assert!(
                        found.iter().map(ok).eq(expected.iter().map(ok)),
                        "{on_error:?}, rank {rank} of {ranks}, device {device} of {count}"
                    );
                }
                // The rest of it, from the middle on.
                let position = (2 * 4 * ranks * count) as u64;
                let epochs = loader.resume(1..2, &loader.state_at(1, position)).unwrap();
                let rest: Vec<_> = epochs.split(&own, 1).into_iter().flatten().collect();
                for (rest, whole) in each(rest).iter().zip(&found) {
                    let ok = |rows: &Result<Rows, String>| rows.clone().ok();
                    assert!(rest.iter().map(ok).eq(whole[2..].iter().map(ok)));
                }
            }
        }
    }
}

/// Samples that wait at a gate.
#[derive(Default)]
struct Gate {
    is_open: Mutex<bool>,
    changed: Condvar,
}

impl Gate {
    fn pass(&self) {
        let mut is_open = self.is_open.lock().unwrap();
        while !*is_open {
            is_open = self.changed.wait(is_open).unwrap();
        }
    }

    fn open(&self) {
        *self.is_open.lock().unwrap() = true;
        self.changed.notify_all();
    }
}

/// Opens the gate at the end of a test, so that the loader's threads end. (Declare it behind the loader.)
struct Opens<'a>(&'a Gate);

impl Drop for Opens<'_> {
    fn drop(&mut self) {
        self.0.open();
    }
}

/// Sample 8 waits at a gate: it is in the second batch of the first of two devices.
fn gated(gate: &Arc<Gate>) -> Builder<impl Dataset<Sample = (i64, i64)>, pinfeed::collate::Stack> {
    let gate = Arc::clone(gate);
    let samples = from_fn(48, move |index, _: &mut SampleRng| {
        if index == 8 {
            gate.pass();
        }
        Ok((index as i64, 0))
    });
    DataLoader::builder(samples).batch_size(4).num_workers(2)
}

/// A sample that hangs is an error on its device, whose later batches come; the other device has all of its own. In order and in any.
#[test]
fn a_sample_that_hangs_is_an_error_of_its_device() {
    for in_order in [true, false] {
        let (gate, own) = (Arc::new(Gate::default()), devices(2));
        let loader = gated(&gate)
            .timeout(Duration::from_millis(300))
            .in_order(in_order)
            .pin_memory(&own)
            .build()
            .unwrap();
        let _opens = Opens(&gate);
        let epochs = loader.epoch(0).split(&own, 1);
        let late: Vec<Vec<bool>> = thread::scope(|scope| {
            let threads = epochs.into_iter().map(|epoch| {
                scope.spawn(|| {
                    let is_late = |batch| matches!(batch, Err(Error::TimedOut(_)));
                    epoch.map(is_late).collect()
                })
            });
            let threads: Vec<_> = threads.collect();
            let threads = threads.into_iter();
            threads.map(|thread| thread.join().unwrap()).collect()
        });
        let count = |late: &[bool]| (late.len(), late.iter().filter(|late| **late).count());
        assert_eq!((count(&late[0]), count(&late[1])), ((6, 1), (6, 0)));
        assert!(!in_order || late[0][1]);
    }
}

/// One thread for two devices, which never waits for good: while one of them has nothing, the other goes on, and nothing is missed.
#[test]
fn who_only_asks_gets_all_batches_of_all_devices() {
    for in_order in [true, false] {
        let (gate, own) = (Arc::new(Gate::default()), devices(2));
        let loader = gated(&gate)
            .in_order(in_order)
            .pin_memory(&own)
            .build()
            .unwrap();
        let _opens = Opens(&gate);
        let mut epochs = loader.epoch(0).split(&own, 1);
        let mut seen = [Vec::new(), Vec::new()];
        let mut over = [false; 2];
        let mut asked_in_vain = 0;
        while over != [true; 2] {
            for (device, epoch) in epochs.iter_mut().enumerate() {
                let next = match device {
                    0 => epoch.next_timeout(Duration::from_millis(1)),
                    _ => epoch.try_next(),
                };
                match next {
                    TryNext::Batch(batch) => seen[device].extend(rows(batch.unwrap())),
                    TryNext::End => over[device] = true,
                    TryNext::NotYet => thread::yield_now(),
                }
            }
            if over[1] {
                // The first device is not over before its sample may come.
                assert!(!over[0] || asked_in_vain > 0);
                asked_in_vain += usize::from(!over[0]);
                if asked_in_vain == 5 {
                    gate.open();
                }
            }
        }
        assert!(asked_in_vain >= 5);
        for (device, seen) in seen.iter_mut().enumerate() {
            if in_order {
                assert!(seen.is_sorted());
            }
            seen.sort_unstable();
            let is_own = |index: &i64| (index / 4) % 2 == device as i64;
            assert!(seen.iter().map(|row| row.0).eq((0..48).filter(is_own)));
        }
        assert_eq!((loader.state().epoch(), loader.state().position()), (1, 0));
    }
}

/// Lists of batches, of which some epochs have none, and some fewer than there are devices.
struct Few;

impl BatchSampler for Few {
    fn batches(&self, epoch: u64) -> Batches {
        let lists = (0..[0, 1, 4, 0, 2][epoch as usize % 5]).map(|list| vec![list, list + 1]);
        lists.collect::<Vec<Vec<u64>>>().into()
    }
}

/// Epochs without batches are over at once on each device, wherever they are in a run, and the state goes on.
#[test]
fn epochs_without_batches_are_over_at_once() {
    for workers in [0, 2] {
        let own = devices(2);
        let builder = || {
            let samples = from_fn(7, |index, _: &mut SampleRng| Ok((index as i64, 0i64)));
            DataLoader::builder(samples)
                .num_workers(workers)
                .pin_memory(&own)
        };
        // Not as many samples as a batch of each device takes.
        let loader = builder().batch_size(4).drop_last(true).build::<Pair>();
        let loader = loader.unwrap();
        assert!(
            each(loader.epoch(0).split(&own, 1))
                .iter()
                .all(Vec::is_empty)
        );
        assert_eq!((loader.state().epoch(), loader.state().position()), (1, 0));
        for epochs in loader.epochs(0..3).split(&own, 2) {
            let steps: Vec<usize> = epochs.map(|epoch| batches(epoch).len()).collect();
            assert_eq!(steps, [0; 3]);
        }
        assert_eq!((loader.state().epoch(), loader.state().position()), (3, 0));

        for (last, expected) in [
            (LastBatch::Drop, [0, 0, 2, 0, 1, 0]),
            (LastBatch::Partial, [0, 1, 2, 0, 1, 0]),
        ] {
            let builder = builder().batch_sampler(Few).last_batch(last);
            let loader = builder.build::<Pair>().unwrap();
            let found: Vec<Vec<usize>> = thread::scope(|scope| {
                let epochs = loader.epochs(0..6).split(&own, 2).into_iter();
                let threads: Vec<_> = epochs
                    .map(|epochs| {
                        scope.spawn(|| epochs.map(|epoch| batches(epoch).len()).collect())
                    })
                    .collect();
                let threads = threads.into_iter();
                threads.map(|thread| thread.join().unwrap()).collect()
            });
            assert_eq!(found, [expected, expected], "{last:?}");
            assert_eq!((loader.state().epoch(), loader.state().position()), (6, 0));
            let resumed = loader.resume(0..6, &loader.state_at(2, 4)).unwrap();
            let firsts: BTreeSet<i64> = resumed
                .split(&own, 1)
                .into_iter()
                .flat_map(|mut epochs| batches(epochs.next().unwrap()))
                .map(|batch| batch.unwrap()[0].0)
                .collect();
            assert_eq!(firsts, BTreeSet::from([2, 3]));
        }
    }
}
