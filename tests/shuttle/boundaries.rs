//! Epochs that follow each other: the next is loaded behind the last batches of one.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use pinfeed::loader::{DeviceEpoch, Epoch};
use pinfeed::sampler::{BatchSampler, Batches};
use pinfeed::{Batch, Device, Error, Result};
use shuttle::sync::mpsc;
use shuttle::thread;

use crate::explore::explore;
use crate::support::{
    BLOCK, How, Pair, Pin, SLAB, back, below, check, check_all_back, check_made, check_there, coin,
    device, panic_quietly,
};

const EPOCHS: u64 = 3;

/// Nothing is missing at a boundary, and nothing is made for it: two epochs have the slabs of one.
#[test]
fn a_boundary_is_like_any_batch() {
    explore("a_boundary_is_like_any_batch", || {
        let how = How {
            strict: coin(),
            ..How::any()
        };
        let device = device();
        let loader = how.loader(&device);
        let mut numbers = 0..EPOCHS;
        for mut epoch in loader.epochs(0..EPOCHS) {
            assert_eq!(Some(epoch.number()), numbers.next());
            for number in 0..how.batches() {
                assert_eq!(epoch.len(), how.batches() - number);
                let batch = epoch.next().unwrap().unwrap();
                assert_eq!(batch.0.is_pinned(), how.pin != Pin::No);
                check(&batch, how.samples_of(number));
                if coin() {
                    drop(batch.to_device(&device, true).unwrap());
                }
            }
            assert!(epoch.next().is_none());
            assert_eq!(loader.stats().unpinned.count, 0);
        }
        assert!(numbers.next().is_none());
        check_made(&device, how.made_for_all(1));
        drop(loader);
        check_all_back(&device);
    });
}

/// The same on the device: in parts or not, with little memory or as much as there is.
#[test]
fn boundaries_on_the_device() {
    explore("boundaries_on_the_device", || {
        let how = How {
            batch: 1 + below(6),
            ..How::any()
        };
        let device = device();
        if coin() {
            device.cut_batches_at(1, 100);
        }
        let ahead = how.prefetch + 1;
        if coin() {
            device.set_pinned_budget_bytes((ahead + 2 + below(4)) * SLAB);
        }
        let loader = how.loader(&device);
        let mut numbers = 0..EPOCHS;
        for mut epoch in loader
            .epochs(0..EPOCHS)
            .prefetch_to_device(&device, below(4))
        {
            numbers.next();
            for number in 0..how.batches() {
                assert_eq!(epoch.len(), how.batches() - number);
                check_there(&epoch.next().unwrap().unwrap(), how.samples_of(number));
            }
            assert!(epoch.next().is_none());
        }
        assert!(numbers.next().is_none());
        let memory = device.memory();
        assert!(
            memory.pinned_bytes <= memory.pinned_budget_bytes,
            "{memory:?}"
        );
        drop(loader);
        check_all_back(&device);
    });
}

/// What is sent ahead of the next epoch is not missing to this one's last batches.
#[test]
fn a_boundary_takes_no_device_memory() {
    explore("a_boundary_takes_no_device_memory", || {
        let how = How::any();
        let device = device();
        if coin() {
            device.cut_batches_at(1, 100);
        }
        let depth = 2 + below(2);
        device.set_device_budget_bytes((1 + below(depth)) * BLOCK);
        let loader = how.loader(&device);
        for epoch in loader.epochs(0..EPOCHS).prefetch_to_device(&device, depth) {
            for (number, there) in epoch.enumerate() {
                check_there(&there.unwrap(), how.samples_of(number));
            }
        }
        drop(loader);
        check_all_back(&device);
    });
}

/// Epochs are left early, taken out together, forgotten, or outlive the iterator.
#[test]
fn programs_do_what_they_like_at_boundaries() {
    explore("programs_do_what_they_like_at_boundaries", || {
        let how = How::any();
        let device = device();
        if coin() {
            device.cut_batches_at(1, 100);
        }
        if coin() {
            device.set_pinned_budget_bytes(below(8) * SLAB);
        }
        let loader = how.loader(&device);
        if coin() {
            let mut epochs = loader.epochs(0..EPOCHS);
            let mut held = Vec::new();
            for mut epoch in epochs.by_ref() {
                let last = below(how.batches() + 2);
                let mut number = 0;
                for batch in epoch.by_ref().take(last) {
                    check(&batch.unwrap(), how.samples_of(number));
                    number += 1;
                }
                if below(3) == 0 {
                    held.push((number, epoch));
                }
                if below(6) == 0 {
                    break;
                }
            }
            if coin() {
                drop(epochs);
            }
            for (first, epoch) in held {
                assert_eq!(epoch.len(), how.batches() - first);
                for (number, batch) in (first..).zip(epoch) {
                    check(&batch.unwrap(), how.samples_of(number));
                }
            }
        } else {
            let mut epochs = loader
                .epochs(0..EPOCHS)
                .prefetch_to_device(&device, below(3));
            let mut held = Vec::new();
            for mut epoch in epochs.by_ref() {
                let last = below(how.batches() + 2);
                let mut number = 0;
                for there in epoch.by_ref().take(last) {
                    check_there(&there.unwrap(), how.samples_of(number));
                    number += 1;
                }
                if below(3) == 0 {
                    held.push((number, epoch));
                }
                if below(6) == 0 {
                    break;
                }
            }
            if coin() {
                drop(epochs);
            }
            for (first, epoch) in held {
                assert_eq!(epoch.len(), how.batches() - first);
                for (number, there) in (first..).zip(epoch) {
                    check_there(&there.unwrap(), how.samples_of(number));
                }
            }
        }
        drop(loader);
        check_all_back(&device);
    });
}

/// Each of several that are alive together has slabs enough: who drops each batch finds the next page-locked.
#[test]
fn epochs_may_be_taken_out_together() {
    explore("epochs_may_be_taken_out_together", || {
        let how = How::any();
        let device = device();
        let loader = how.loader(&device);
        let mut epochs = loader.epochs(0..EPOCHS);
        let mut alive: Vec<_> = epochs.next().map(|epoch| (epoch, 0)).into_iter().collect();
        while !alive.is_empty() {
            if below(4) == 0 {
                alive.extend(epochs.next().map(|epoch| (epoch, 0)));
            }
            let chosen = below(alive.len());
            let (epoch, number) = &mut alive[chosen];
            let Some(batch) = epoch.next() else {
                assert_eq!(*number, how.batches());
                drop(alive.swap_remove(chosen));
                continue;
            };
            let batch = batch.unwrap();
            assert_eq!(batch.0.is_pinned(), how.pin != Pin::No);
            check(&batch, how.samples_of(*number));
            *number += 1;
        }
        drop((alive, epochs));
        drop(loader);
        check_all_back(&device);
    });
}

type Here = Epoch<'static, Pair>;
type There = DeviceEpoch<'static, Pair>;

/// One thread takes the epochs out, and hands them to others that iterate them: the next is asked for, or given up, while one is
/// at its last batches.
#[test]
fn epochs_are_iterated_elsewhere() {
    explore("epochs_are_iterated_elsewhere", || {
        let how = How::any();
        let device = device();
        if coin() {
            device.cut_batches_at(1, 100);
        }
        let loader = Arc::new(how.loader(&device));
        let sends = coin();
        let iterate = |device: &Device| {
            let device = device.clone();
            let (sender, epochs) = mpsc::channel::<Result<Here, There>>();
            let thread = thread::spawn(move || {
                for epoch in epochs {
                    let batches = below(how.batches() + 2);
                    match epoch {
                        Ok(epoch) => {
                            for (number, batch) in Iterator::take(epoch, batches).enumerate() {
                                let batch = batch.unwrap();
                                check(&batch, how.samples_of(number));
                                if coin() {
                                    drop(batch.to_device(&device, true).unwrap());
                                }
                            }
                        }
                        Err(epoch) => {
                            for (number, there) in Iterator::take(epoch, batches).enumerate() {
                                check_there(&there.unwrap(), how.samples_of(number));
                            }
                        }
                    }
                }
            });
            (sender, thread)
        };
        let iterators: Vec<_> = (0..2).map(|_| iterate(&device)).collect();
        let wanted = 1 + below(EPOCHS as usize);
        let epochs = loader.owned_epochs(0..EPOCHS);
        drop(loader);
        if sends {
            let mut epochs = epochs.prefetch_to_device(&device, below(3));
            for epoch in epochs.by_ref().take(wanted) {
                iterators[below(2)].0.send(Err(epoch)).unwrap();
            }
        } else {
            let mut epochs = epochs;
            for epoch in epochs.by_ref().take(wanted) {
                iterators[below(2)].0.send(Ok(epoch)).unwrap();
            }
        }
        for (sender, thread) in iterators {
            drop(sender);
            thread.join().unwrap();
        }
        check_all_back(&device);
    });
}

/// Epochs whose lists are made while others load them, or want to: each is made once, and fails for itself alone.
#[test]
fn lists_are_made_at_a_boundary() {
    struct Lists {
        how: How,
        fails: Option<u64>,
        asked: Arc<[AtomicUsize; EPOCHS as usize]>,
    }

    impl BatchSampler for Lists {
        fn batches(&self, epoch: u64) -> Batches {
            self.asked[epoch as usize].fetch_add(1, Ordering::SeqCst);
            thread::yield_now(); // it takes its time
            if self.fails == Some(epoch) {
                panic_quietly("no lists");
            }
            (0..self.how.batches())
                .map(|number| self.how.samples_of(number))
                .collect()
        }
    }

    explore("lists_are_made_at_a_boundary", || {
        let how = How::any();
        let device = device();
        let fails = coin().then(|| below(EPOCHS as usize) as u64);
        let asked = Arc::<[AtomicUsize; EPOCHS as usize]>::default();
        let lists = Lists {
            how,
            fails,
            asked: Arc::clone(&asked),
        };
        let loader = how.listed(lists, &device);
        let check_epoch = |epoch: u64, outcomes: &mut dyn Iterator<Item = Result<Pair>>| {
            if fails == Some(epoch) {
                let error = outcomes.next().unwrap().unwrap_err();
                assert!(matches!(error, Error::BatchSampler { .. }), "{error}");
                return assert!(outcomes.next().is_none());
            }
            for number in 0..how.batches() {
                if coin() && coin() {
                    return; // in the middle of it
                }
                check(&outcomes.next().unwrap().unwrap(), how.samples_of(number));
            }
            assert!(outcomes.next().is_none());
        };
        if coin() {
            let epochs = loader
                .epochs(0..EPOCHS)
                .prefetch_to_device(&device, below(3));
            for epoch in epochs {
                let number = epoch.number();
                check_epoch(number, &mut epoch.map(|batch| back(&batch?)));
            }
        } else {
            for epoch in loader.epochs(0..EPOCHS) {
                check_epoch(epoch.number(), &mut epoch.into_iter());
            }
        }
        let asked = asked.iter().map(|asked| asked.load(Ordering::SeqCst));
        assert!(asked.into_iter().all(|times| times == 1));
        drop(loader);
        check_all_back(&device);
    });
}
