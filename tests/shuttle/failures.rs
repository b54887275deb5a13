//! Broken samples, broken devices, and systems that page-lock nothing: each costs its batch's place and nothing else.

use pinfeed::collate::Arena;
use pinfeed::loader::OnError;
use pinfeed::ragged::RaggedTensor;
use pinfeed::{Batch, DataLoader, Dataset, Device, Error, Ragged, Result, Tensor, from_fn};

use crate::explore::explore;
use crate::support::{
    How, Pair, Pin, SLAB, back, below, check, check_all_back, check_error, coin, device, hostile,
    panic_quietly, sample,
};

/// Samples of which some fail, and some panic.
fn broken(len: u64, faults: [u64; 2]) -> impl Dataset<Sample = (Tensor<u8>, i64)> {
    from_fn(len, move |index, _| {
        if index == faults[0] {
            return Err("no sample".into());
        }
        if index == faults[1] {
            panic_quietly("no sample");
        }
        Ok(sample(index)?)
    })
}

/// Iterates an epoch: each batch with a broken sample is the error of the first of them, by row or by time.
fn check_epoch(how: How, faults: [u64; 2], batches: impl ExactSizeIterator<Item = Result<Pair>>) {
    assert_eq!(batches.len(), how.batches());
    let mut seen = 0;
    for (number, batch) in batches.enumerate() {
        seen += 1;
        let samples = how.samples_of(number);
        let of_batch: Vec<u64> = faults.into_iter().filter(|i| samples.contains(i)).collect();
        match batch {
            Ok(batch) => {
                assert!(of_batch.is_empty());
                check(&batch, samples);
            }
            Err(error) => match of_batch[..] {
                [index] => check_error(&error, index),
                [] => panic!("{error}"),
                _ => {}
            },
        }
    }
    assert_eq!(seen, how.batches());
}

#[test]
fn broken_samples_cost_their_batch() {
    explore("broken_samples_cost_their_batch", || {
        let how = How::any();
        let device = device();
        if coin() {
            device.set_pinned_budget_bytes((how.prefetch + 1) * SLAB);
        }
        let any = |_| below(how.len as usize) as u64;
        let faults = [0, 1].map(any);
        let loader = how.loader_of(broken(how.len, faults), &device);
        for epoch in 0..2 {
            check_epoch(how, faults, loader.epoch(epoch));
            assert_eq!(loader.stats().unpinned.count, 0);
        }
        let batches = loader.epoch(2).prefetch_to_device(&device, below(3));
        check_epoch(how, faults, batches.map(|there| back(&there?)));
        drop(loader);
        check_all_back(&device);
    });
}

/// The same where a batch is planned from all of its samples, and where a function collates it and may fail as well.
#[test]
fn broken_batches_take_their_place() {
    explore("broken_batches_take_their_place", || {
        let how = How::any();
        let device = device();
        let broken = below(how.len as usize) as i64;
        let way = below(4);
        if coin() {
            let dataset = from_fn(how.len, move |index, _| {
                if index as i64 == broken {
                    panic_quietly("no sample");
                }
                Ok(Ragged::from(vec![index as i64; index as usize % 3]))
            });
            let loader: DataLoader<RaggedTensor<i64>> =
                how.build(DataLoader::builder(dataset), &device);
            for (number, batch) in loader.epoch(0).enumerate() {
                let samples = how.samples_of(number);
                assert_eq!(batch.is_err(), samples.contains(&(broken as u64)));
            }
        } else {
            let dataset = from_fn(how.len, |index, _| Ok(index as i64));
            let builder = DataLoader::builder(dataset).collate_fn(
                move |samples: Vec<i64>, arena: &mut Arena| {
                    let fails = samples.contains(&broken);
                    if fails && way == 0 {
                        return Err("no batch".into());
                    }
                    let mut batch = arena.zeros(&[samples.len()])?;
                    if fails && way == 1 {
                        panic_quietly("no batch");
                    }
                    let rows = batch.as_mut_slice().ok_or("shared")?;
                    rows.copy_from_slice(&samples);
                    Ok(batch)
                },
            );
            let loader: DataLoader<Tensor<i64>> = how.build(builder, &device);
            for (number, batch) in loader.epoch(0).enumerate() {
                let mut samples = how.samples_of(number).map(|index| index as i64);
                match batch {
                    Ok(batch) => assert!(batch.as_slice().iter().copied().eq(samples)),
                    Err(_) => assert!(way < 2 && samples.any(|index| index == broken)),
                }
            }
        }
        check_all_back(&device);
    });
}

/// What of a device fails.
const OPERATIONS: &[&str] = &[
    "alloc_device",
    "alloc_host",
    "copy",
    "create_stream",
    "event_query",
    "lock_pages",
    "record_event",
    "stream_wait_event",
];

fn failing_device() -> Option<Device> {
    let mut options = hostile();
    options.fail_call = Some(below(30) as u64);
    if coin() {
        options.fail_operation = Some(OPERATIONS[below(OPERATIONS.len())]);
        options.fail_call = Some(below(8) as u64);
    }
    options.sticky = coin();
    Device::hostile(options).ok()
}

/// A device that breaks at any call, for once or for good: each batch comes, or its error, and nothing is blocked.
#[test]
fn epochs_outlive_their_device() {
    explore("epochs_outlive_their_device", || {
        let Some(device) = failing_device() else {
            return;
        };
        if coin() {
            device.cut_batches_at(1, 100);
        }
        if coin() {
            device.set_pinned_budget_bytes((1 + below(4)) * SLAB);
        }
        let how = How {
            strict: coin(),
            ..How::any()
        };
        let loader = how.loader(&device);
        for epoch in 0..3 {
            let mut batches = 0;
            if coin() {
                for (number, there) in loader
                    .epoch(epoch)
                    .prefetch_to_device(&device, 1)
                    .enumerate()
                {
                    batches += 1;
                    if let Ok(batch) = there.and_then(|there| back(&there)) {
                        check(&batch, how.samples_of(number));
                    }
                }
            } else {
                for (number, batch) in loader.epoch(epoch).enumerate() {
                    batches += 1;
                    let Ok(batch) = batch else { continue };
                    check(&batch, how.samples_of(number));
                    let there = batch.to_device(&device, coin());
                    if let Ok(batch) = there.and_then(|there| back(&there)) {
                        check(&batch, how.samples_of(number));
                    }
                }
            }
            assert_eq!(batches, how.batches());
        }
        drop(loader);
        let memory = device.memory();
        assert_eq!(memory.device_held_bytes, 0, "{memory:?}");
    });
}

/// The system page-locks little, or nothing: batches come all the same, or say so where that is an error.
#[test]
fn a_system_that_locks_nothing() {
    explore("a_system_that_locks_nothing", || {
        let mut options = hostile();
        let slabs = below(4);
        options.pinned_capacity_bytes = Some(slabs * SLAB);
        let device = Device::hostile(options).unwrap();
        let how = How {
            strict: coin(),
            ..How::any()
        };
        let loader = how.loader(&device);
        for epoch in 0..2 {
            for (number, batch) in loader.epoch(epoch).enumerate() {
                match batch {
                    Ok(batch) => check(&batch, how.samples_of(number)),
                    Err(Error::Pinned { .. }) => assert!(how.strict && how.pin != Pin::No),
                    Err(error) => panic!("{error}"),
                }
            }
        }
        drop(loader);
        assert!(device.memory().pinned_bytes <= slabs * SLAB);
        check_all_back(&device);
    });
}

/// A loader of how many of what, of which one sample is bad.
#[derive(Clone, Copy)]
struct Bad {
    how: How,
    index: u64,
    on_error: OnError,
}

impl Bad {
    /// Checks an epoch's batches, as lists of their indices.
    fn check(self, batches: impl Iterator<Item = Result<Vec<i64>>>) {
        let mut seen = 0;
        for (number, batch) in batches.enumerate() {
            seen += 1;
            let samples = self.how.samples_of(number);
            let kept = samples.clone().filter(|sample| *sample != self.index);
            let kept: Vec<i64> = kept.map(|sample| sample as i64).collect();
            match (self.on_error, batch) {
                (OnError::Skip { .. }, Err(_)) => assert!(kept.is_empty()),
                (OnError::Skip { .. }, Ok(batch)) => assert_eq!(batch, kept),
                (_, batch) => {
                    let batch = batch.unwrap();
                    assert_eq!(batch.len(), (samples.end - samples.start) as usize);
                    let others = batch.iter().zip(samples);
                    for (found, sample) in others {
                        let is_its_own = *found as u64 == sample;
                        assert_eq!(is_its_own, sample != self.index);
                        assert!(*found as u64 != self.index);
                    }
                }
            }
        }
        assert_eq!(seen, self.how.batches());
    }
}

/// One sample is bad: another takes its row, or it is left out; nothing else changes, and no slab is lost.
#[test]
fn bad_samples_are_replaced_or_left_out() {
    explore("bad_samples_are_replaced_or_left_out", || {
        let how = How::any();
        let device = device();
        if coin() {
            device.set_pinned_budget_bytes((how.prefetch + 2) * SLAB);
        }
        let bad = Bad {
            how,
            index: below(how.len as usize) as u64,
            on_error: match coin() {
                true => OnError::Replace { at_most: 50 },
                false => OnError::Skip { at_most: 50 },
            },
        };
        let index = bad.index;
        let (epochs, depth) = (1 + below(2) as u64, below(3));
        if coin() {
            // Planned from all samples: no other fits the layout.
            let dataset = from_fn(how.len, move |at, _| match at == index {
                true => Err("no sample".into()),
                false => Ok((at as i64, Ragged::from(vec![at as i64; at as usize % 3]))),
            });
            let builder = DataLoader::builder(dataset).on_error(bad.on_error);
            let loader: DataLoader<(Tensor<i64>, RaggedTensor<i64>)> = how.build(builder, &device);
            for epoch in loader.epochs(0..epochs) {
                bad.check(epoch.map(|batch| {
                    let (indices, others) = batch?;
                    for (index, others) in indices.as_slice().iter().zip(others.rows()) {
                        assert_eq!(others, vec![*index; *index as usize % 3]);
                    }
                    Ok(indices.to_vec())
                }));
            }
        } else {
            let dataset = broken(how.len, [index, how.len]);
            let builder = DataLoader::builder(dataset).on_error(bad.on_error);
            let loader: DataLoader<Pair> = how.build(builder, &device);
            match coin() {
                true => loader.epochs(0..epochs).for_each(|epoch| {
                    bad.check(epoch.map(|batch| Ok(batch?.1.to_vec())));
                }),
                false => {
                    let epochs = loader.epochs(0..epochs).prefetch_to_device(&device, depth);
                    epochs.for_each(|epoch| {
                        bad.check(epoch.map(|batch| Ok(back(&batch?)?.1.to_vec())));
                    });
                }
            }
        }
        check_all_back(&device);
    });
}

/// The consumer leaves while a batch is made again.
#[test]
fn a_batch_that_is_made_again_may_be_left() {
    explore("a_batch_that_is_made_again_may_be_left", || {
        let how = How::any();
        let device = device();
        let on_error = OnError::Skip { at_most: 50 };
        let index = below(how.len as usize) as u64;
        let dataset = broken(how.len, [index, how.len]);
        let builder = DataLoader::builder(dataset).on_error(on_error);
        let loader: DataLoader<Pair> = how.build(builder, &device);
        for epoch in 0..2 {
            let some = below(how.batches() + 1);
            loader.epoch(epoch).take(some).for_each(drop);
        }
        let bad = Bad {
            how,
            index,
            on_error,
        };
        bad.check(loader.epoch(2).map(|batch| Ok(batch?.1.to_vec())));
        drop(loader);
        check_all_back(&device);
    });
}

/// A batch is made again for a bad sample while somebody gets it its slab, or finds that there is none: it comes, or its error.
#[test]
fn a_batch_is_made_again_while_its_slab_comes() {
    explore("a_batch_is_made_again_while_its_slab_comes", || {
        let how = How {
            len: 12,
            batch: 2,
            workers: 2 + below(2),
            prefetch: 1 + below(2),
            pin: [Pin::InPlace, Pin::ByCopy][below(2)],
            strict: coin(),
        };
        let device = device();
        let index = below(how.len as usize) as u64;
        let dataset = broken(how.len, [index, how.len]);
        let mut builder = DataLoader::builder(dataset).on_error(OnError::Skip { at_most: 50 });
        if coin() {
            builder = builder.max_bytes_in_flight(1);
        }
        let loader: DataLoader<Pair> = how.build(builder, &device);
        // Who holds all slabs, and waits for one more, may get an error.
        let (mut came, holds, mut held) = (0, coin(), Vec::new());
        for batch in loader.epoch(0) {
            came += 1;
            held.extend(holds.then_some(batch));
        }
        assert_eq!(came, how.batches());
        drop((held, loader));
        check_all_back(&device);
    });
}
