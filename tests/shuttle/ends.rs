//! Ends: epochs that are left, several at once, batches that outlive their loader.

use std::sync::Arc;

use pinfeed::{Batch, DataLoader, Device};
use shuttle::thread;

use crate::explore::explore;
use crate::support::{
    How, Pair, PairOnDevice, Pin, SLAB, below, check, check_all_back, check_there, coin, device,
};

/// Batches that a program keeps, on the host and on the device.
#[derive(Default)]
struct Kept {
    here: Vec<(usize, Pair)>,
    there: Vec<(usize, PairOnDevice)>,
}

impl Kept {
    fn keep(&mut self, number: usize, batch: Pair, device: &Device) {
        match below(4) {
            0 => self.here.push((number, batch)),
            1 => self
                .there
                .push((number, batch.to_device(device, true).unwrap())),
            2 => drop(batch.to_device(device, true).unwrap()),
            _ => drop(batch),
        }
    }

    fn check(self, how: How) {
        let here = self.here.iter();
        here.for_each(|(number, batch)| check(batch, how.samples_of(*number)));
        drop(self.here);
        for (number, there) in self.there {
            check_there(&there, how.samples_of(number));
        }
    }
}

#[test]
fn epochs_may_be_left_at_any_batch() {
    explore("epochs_may_be_left_at_any_batch", || {
        let how = How::any();
        let device = device();
        if coin() {
            device.set_pinned_budget_bytes(below(6) * SLAB);
        }
        let loader = how.loader(&device);
        let mut kept = Kept::default();
        for epoch in 0..3 {
            let mut batches = loader.epoch(epoch);
            let last = below(how.batches() + 1);
            for number in 0..last {
                let batch = batches.next().unwrap().unwrap();
                check(&batch, how.samples_of(number));
                kept.keep(number, batch, &device);
            }
            assert_eq!(batches.len(), how.batches() - last);
        }
        // The loader may go before its batches.
        let loader = coin().then_some(loader);
        kept.check(how);
        drop(loader);
        check_all_back(&device);
    });
}

/// Epochs of one loader, in turn on one thread: each has slabs of its own.
#[test]
fn epochs_are_alive_together() {
    explore("epochs_are_alive_together", || {
        let how = How::any();
        let device = device();
        let loader = how.loader(&device);
        let mut epochs: Vec<_> = (0..2).map(|epoch| (loader.epoch(epoch), 0)).collect();
        while !epochs.is_empty() {
            let chosen = below(epochs.len());
            let (epoch, number) = &mut epochs[chosen];
            match epoch.next() {
                Some(batch) => {
                    let batch = batch.unwrap();
                    assert_eq!(batch.0.is_pinned(), how.pin != Pin::No);
                    check(&batch, how.samples_of(*number));
                    *number += 1;
                    if coin() {
                        drop(batch.to_device(&device, true).unwrap());
                    }
                }
                None => {
                    assert_eq!(*number, how.batches());
                    drop(epochs.swap_remove(chosen));
                }
            }
            if !epochs.is_empty() && below(12) == 0 {
                drop(epochs.swap_remove(below(epochs.len())));
            }
        }
        drop(epochs);
        drop(loader);
        check_all_back(&device);
    });
}

/// Two threads, each with an epoch of its own; the loader goes with the last of them.
#[test]
fn epochs_on_threads() {
    explore("epochs_on_threads", || {
        let how = How::any();
        let device = device();
        if coin() {
            device.cut_batches_at(1, 100);
        }
        if coin() {
            device.set_pinned_budget_bytes((1 + below(8)) * SLAB);
        }
        let loader = Arc::new(how.loader(&device));
        let run = move |loader: Arc<DataLoader<Pair>>, device: Device| {
            let (batches, sends) = (below(how.batches() + 1), coin());
            let epoch = loader.owned_epoch(below(5) as u64);
            drop(loader);
            if sends {
                for (number, there) in epoch
                    .prefetch_to_device(&device, 1)
                    .take(batches)
                    .enumerate()
                {
                    check_there(&there.unwrap(), how.samples_of(number));
                }
                return;
            }
            for (number, batch) in epoch.take(batches).enumerate() {
                let batch = batch.unwrap();
                check(&batch, how.samples_of(number));
                if coin() {
                    drop(batch.to_device(&device, true).unwrap());
                }
            }
        };
        let threads: Vec<_> = (0..2)
            .map(|_| {
                let (loader, device) = (Arc::clone(&loader), device.clone());
                thread::spawn(move || run(loader, device))
            })
            .collect();
        drop(loader);
        threads
            .into_iter()
            .for_each(|thread| thread.join().unwrap());
        check_all_back(&device);
    });
}

/// Who forgets an epoch loses its batches, and no more: the loader ends, and what is out comes home.
#[test]
fn epochs_may_be_forgotten() {
    explore("epochs_may_be_forgotten", || {
        // So few ahead that the consumer takes one at a time: what it took in advance is forgotten with the epoch. (Not the default,
        // by which batches that take no time may be further ahead.)
        let how = How {
            prefetch: [1, 3][below(2)],
            ..How::pinned()
        };
        let device = device();
        let loader = how.loader(&device);
        let mut kept = Kept::default();
        for epoch in 0..2 {
            let mut batches = loader.epoch(epoch);
            for number in 0..below(how.batches() + 1) {
                let batch = batches.next().unwrap().unwrap();
                check(&batch, how.samples_of(number));
                kept.keep(number, batch, &device);
            }
            match coin() {
                true => std::mem::forget(batches),
                false => drop(batches),
            }
        }
        for (number, batch) in loader.epoch(2).enumerate() {
            check(&batch.unwrap(), how.samples_of(number));
        }
        drop(loader);
        kept.check(how);
        check_all_back(&device);
    });
}
