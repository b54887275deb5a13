//! Little page-locked memory: who drops batches never misses any, and who keeps them is told.

use std::sync::Arc;

use pinfeed::{Batch, Error, Tensor};
use shuttle::sync::atomic::{AtomicUsize, Ordering};
use shuttle::sync::mpsc;
use shuttle::thread;

use crate::explore::explore;
use crate::support::{
    How, Pair, Pin, SLAB, back, below, check, check_all_back, check_made, coin, device,
};

/// How many slabs each of so many batches ahead can do with. Those that are copied into their slabs are so when they are made:
/// a later batch may take a slab first, and no budget is left for an earlier one.
fn least_slabs(how: How, ahead: usize) -> usize {
    match how.pin {
        Pin::ByCopy if how.workers > 0 => ahead,
        _ => 1,
    }
}

/// Any budget that holds a slab is enough for who has one batch at a time, or sends them: nothing is free, but it will be.
fn wait_for_memory(how: How, least: usize) {
    let device = device();
    device.set_pinned_budget_bytes((least + below(3)) * SLAB);
    let loader = how.loader(&device);
    for epoch in 0..2 {
        let mut there = Vec::new();
        for (number, batch) in loader.epoch(epoch).enumerate() {
            let batch = batch.unwrap();
            check(&batch, how.samples_of(number));
            match coin() {
                true => drop(batch),
                false => there.push((number, batch.to_device(&device, true).unwrap())),
            }
        }
        assert_eq!(loader.stats().unpinned.count, 0);
        for (number, there) in there {
            check(&back(&there).unwrap(), how.samples_of(number));
        }
    }
    drop(loader);
    check_all_back(&device);
}

#[test]
fn little_memory_is_waited_for() {
    explore("little_memory_is_waited_for", || {
        let how = How {
            strict: coin(),
            ..How::pinned()
        };
        wait_for_memory(how, least_slabs(how, how.batches()));
    });
}

#[test]
fn little_memory_is_waited_for_by_copies() {
    explore("little_memory_is_waited_for_by_copies", || {
        let how = How {
            pin: Pin::ByCopy,
            strict: coin(),
            ..How::pinned()
        };
        wait_for_memory(how, 1);
    });
}

/// Who keeps all batches has as many of them page-locked as there are slabs, exactly (or more, if batches that take no time share some); then
/// each is an error, or is not.
#[test]
fn who_keeps_batches_does_without() {
    explore("who_keeps_batches_does_without", || {
        let how = How {
            strict: coin(),
            ..How::pinned()
        };
        let device = device();
        let slabs = match coin() {
            true => below(5),
            false => usize::MAX,
        };
        device.set_pinned_budget_bytes(slabs.saturating_mul(SLAB));
        let slabs = slabs.min(how.share(1)).min(how.batches());
        let in_order = how.pin == Pin::InPlace || how.workers == 0;
        let loader = how.loader(&device);
        let mut kept = Vec::new();
        for (number, batch) in loader.epoch(0).enumerate() {
            let is_pinned = match batch {
                Ok(batch) => {
                    let is_pinned = batch.0.is_pinned();
                    kept.push((number, batch));
                    is_pinned
                }
                Err(Error::Pinned { .. }) if how.strict => false,
                Err(error) => panic!("{error}"),
            };
            if how.may_share_slabs() {
                assert!(
                    is_pinned || number >= slabs,
                    "batch {number}, {slabs} slabs: {how:?}"
                );
            } else if in_order {
                assert_eq!(
                    is_pinned,
                    number < slabs,
                    "batch {number}, {slabs} slabs: {how:?}"
                );
            }
        }
        let missed = how.batches() - slabs;
        let unpinned = loader.stats().unpinned.count as usize;
        let is_as_many = unpinned == missed || how.may_share_slabs() && unpinned < missed;
        assert!(is_as_many, "{unpinned}, {slabs} slabs: {how:?}");
        check_made(&device, slabs.max(how.made(1)));
        drop(loader);
        kept.iter()
            .for_each(|(number, batch)| check(batch, how.samples_of(*number)));
        drop(kept);
        check_all_back(&device);
    });
}

/// Another thread has the batches, and drops them on the host or sends them. A batch goes without a slab only while the program
/// has as many as there are.
#[test]
fn batches_are_dropped_elsewhere() {
    explore("batches_are_dropped_elsewhere", || {
        let how = How {
            strict: coin(),
            ..How::pinned()
        };
        let device = device();
        let budget = match coin() {
            true => least_slabs(how, how.prefetch + 1) + below(5),
            false => 100,
        };
        device.set_pinned_budget_bytes(budget * SLAB);
        let slabs = budget.min(how.share(1));
        let loader = how.loader(&device);
        // How many the program has: counted before one is given out, and after one is dropped.
        let held = Arc::new(AtomicUsize::new(0));
        let (sender, received) = mpsc::channel();
        let sends = coin();
        let dropper = thread::spawn({
            let (device, held) = (device.clone(), Arc::clone(&held));
            move || {
                let mut there = Vec::new();
                for (number, batch) in received {
                    check(&batch, how.samples_of(number));
                    let is_pinned = batch.0.is_pinned();
                    if sends && coin() {
                        there.push((number, batch.to_device(&device, true).unwrap()));
                    } else {
                        drop(batch);
                    }
                    if is_pinned {
                        held.fetch_sub(1, Ordering::SeqCst);
                    }
                    if coin() && !there.is_empty() {
                        drop(there.swap_remove(below(there.len())));
                    }
                }
                for (number, there) in there {
                    check(&back(&there).unwrap(), how.samples_of(number));
                }
            }
        });
        let mut epoch = loader.epoch(0);
        for number in 0..how.batches() {
            let before = held.load(Ordering::SeqCst);
            match epoch.next().unwrap() {
                Ok(batch) if batch.0.is_pinned() => {
                    held.fetch_add(1, Ordering::SeqCst);
                    sender.send((number, batch)).unwrap();
                }
                Ok(batch) => {
                    assert!(!how.strict);
                    // (Downloads take slabs too, but only when no batch is to come.)
                    assert!(before >= slabs, "{before} of {slabs} are held: {how:?}");
                    sender.send((number, batch)).unwrap();
                }
                Err(Error::Pinned { .. }) if how.strict => {
                    assert!(before >= slabs, "{before} of {slabs} are held: {how:?}");
                }
                Err(error) => panic!("{error}"),
            }
        }
        drop((epoch, sender));
        dropper.join().unwrap();
        check_made(&device, how.made(1) + if sends { 2 } else { 0 }); // (two downloads)
        drop(loader);
        check_all_back(&device);
    });
}

/// The program has all slabs of its epoch, and drops one: that one is used again, and none is made.
#[test]
fn a_slab_on_its_way_home_is_used_again() {
    explore("a_slab_on_its_way_home_is_used_again", || {
        let how = How {
            len: 10,
            batch: 1,
            workers: 1,
            prefetch: 1,
            pin: Pin::InPlace,
            strict: false,
        };
        let device = device();
        let loader = how.loader(&device);
        let (sender, received) = mpsc::channel();
        let dropper = thread::spawn(move || received.into_iter().for_each(drop::<Pair>));
        let mut kept = Vec::new();
        for (number, batch) in loader.epoch(0).enumerate() {
            let batch = batch.unwrap();
            check(&batch, how.samples_of(number));
            kept.push(batch);
            if kept.len() == how.share(1) - 1 {
                sender.send(kept.swap_remove(0)).unwrap();
            }
        }
        drop((kept, sender));
        dropper.join().unwrap();
        check_made(&device, how.share(1));
        drop(loader);
        check_all_back(&device);
    });
}

/// Somebody gives idle memory back, changes the budget, pins tensors and reads others back, all the while.
#[test]
fn the_ring_is_used_by_others() {
    explore("the_ring_is_used_by_others", || {
        let how = How::pinned();
        let device = device();
        let loader = how.loader(&device);
        let other = thread::spawn({
            let device = device.clone();
            move || {
                for _ in 0..4 {
                    match below(5) {
                        0 => drop(device.release_pinned()),
                        1 => device.set_pinned_budget_bytes(below(6) * SLAB),
                        2 => drop(Tensor::from(vec![1u8; 50]).pin(&device)),
                        3 => {
                            let sent = Tensor::from(vec![3u8; 50]).to_device(&device, coin());
                            let back = sent.unwrap().to_host(true).unwrap().wait().unwrap();
                            assert!(back.as_slice() == [3; 50]);
                        }
                        _ => drop(device.memory()),
                    }
                }
                device.set_pinned_budget_bytes(16 * SLAB);
            }
        });
        for epoch in 0..2 {
            for (number, batch) in loader.epoch(epoch).enumerate() {
                let batch = batch.unwrap();
                check(&batch, how.samples_of(number));
                if coin() {
                    drop(batch.to_device(&device, true).unwrap());
                }
            }
        }
        other.join().unwrap();
        let mut epoch = loader.epoch(2);
        assert!(epoch.all(|batch| batch.unwrap().0.is_pinned()));
        drop(epoch);
        drop(loader);
        check_all_back(&device);
    });
}

/// Somebody else looks after copies that are over: what these held is never nowhere, so that a batch would do without.
#[test]
fn others_look_after_copies() {
    explore("others_look_after_copies", || {
        let how = How {
            len: 8,
            batch: 1,
            workers: below(2),
            prefetch: 1,
            pin: Pin::InPlace,
            strict: true,
        };
        let device = device();
        device.set_pinned_budget_bytes(SLAB);
        let loader = how.loader(&device);
        let other = thread::spawn({
            let device = device.clone();
            move || {
                for _ in 0..40 {
                    let memory = device.memory();
                    assert!(
                        memory.pinned_bytes <= memory.pinned_budget_bytes,
                        "{memory:?}"
                    );
                    thread::yield_now();
                }
            }
        });
        for (number, batch) in loader.epoch(0).enumerate() {
            let batch = batch.unwrap();
            check(&batch, how.samples_of(number));
            drop(batch.to_device(&device, true).unwrap());
        }
        other.join().unwrap();
        drop(loader);
        check_all_back(&device);
    });
}

/// Somebody sends what is not page-locked, by way of the ring's slabs: those come home, and are waited for.
#[test]
fn staged_copies_take_slabs_too() {
    explore("staged_copies_take_slabs_too", || {
        let how = How {
            strict: coin(),
            pin: Pin::InPlace,
            ..How::pinned()
        };
        let device = device();
        // Two or three pieces' slabs at the least, each as large as those of four batches.
        device.set_pinned_budget_bytes((8 + below(6)) * SLAB);
        let loader = how.loader(&device);
        let other = thread::spawn({
            let device = device.clone();
            move || {
                for _ in 0..2 {
                    let sent = Tensor::from(vec![9u8; 40_000]);
                    let there = sent.to_device(&device, true).unwrap();
                    if coin() {
                        there.synchronize().unwrap();
                    }
                }
            }
        });
        for (number, batch) in loader.epoch(0).enumerate() {
            let batch = batch.unwrap();
            check(&batch, how.samples_of(number));
            if coin() {
                drop(batch.to_device(&device, true).unwrap());
            }
        }
        assert_eq!(loader.stats().unpinned.count, 0);
        other.join().unwrap();
        drop(loader);
        check_all_back(&device);
    });
}

/// The budget shrinks and grows under what is out: what comes home beyond it is given back when its room is needed, or at the
/// end.
#[test]
fn the_budget_changes_under_what_is_out() {
    explore("the_budget_changes_under_what_is_out", || {
        let how = How::pinned();
        let device = device();
        let loader = how.loader(&device);
        for (number, batch) in loader.epoch(0).enumerate() {
            let batch = batch.unwrap();
            device.set_pinned_budget_bytes((1 + below(3)) * SLAB);
            check(&batch, how.samples_of(number));
            if coin() {
                drop(batch.to_device(&device, true).unwrap());
            }
        }
        drop(loader);
        check_all_back(&device);
    });
}
