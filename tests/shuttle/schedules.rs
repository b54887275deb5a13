//! The whole pipeline (workers, pin thread, consumer, the streams of a CPU device) under schedules that shuttle chooses: at each
//! lock, condition, atomic and clock another thread may go on. shuttle finds what is blocked for good; the scenarios assert the
//! rest, through what the crate's users have. How to run it: ci/shuttle.sh.
#![cfg(shuttle)]
#![allow(clippy::unwrap_used, unreachable_pub)] // a panic is how a test fails

mod explore;
mod support;

use pinfeed::device::Hostile;
use pinfeed::{Batch, DataLoader, Device};

use self::explore::explore;
use self::support::{check, samples};

/// Pinned, and sent to the device.
#[test]
fn batches_come_in_order() {
    explore("batches_come_in_order", || {
        let device = Device::hostile(Hostile::default()).unwrap();
        let loader = DataLoader::builder(samples(7))
            .batch_size(2)
            .num_workers(2)
            .prefetch(1)
            .pin_memory(&device)
            .build()
            .unwrap();
        for epoch in 0..2 {
            let mut first = 0;
            for batch in loader.epoch(epoch) {
                let batch = batch.unwrap();
                let rows = batch.shape()[0] as u64;
                let there = batch.to_device(&device, true).unwrap();
                let back = there.to_host(true).unwrap().wait().unwrap();
                check(&back, first..first + rows);
                first += rows;
            }
            assert_eq!(first, 7);
        }
    });
}
