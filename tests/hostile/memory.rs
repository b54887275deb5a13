//! Little memory, or none: all batches come, and what they say of themselves is true.

use std::collections::VecDeque;
use std::time::Duration;

use pinfeed::{Batch, DataLoader, Device, Error};

use crate::support::{
    BYTES, Pair, PairOnDevice, back, check, check_on_device, expected, late, rng, samples,
    there_and_back, watched,
};

const LEN: u64 = 100;
const BATCH: usize = 10;

/// How many bytes of device memory a batch takes: its bytes and labels, at 256 bytes, and the pool's own grain.
const BLOCK: usize = (BATCH * BYTES).next_multiple_of(512) + 512;

fn loader(device: &Device, workers: usize, by_copy: bool) -> DataLoader<Pair> {
    DataLoader::builder(samples(LEN))
        .batch_size(BATCH)
        .num_workers(workers)
        .pin_memory(device)
        .pin_by_copy(by_copy)
        .build()
        .unwrap()
}

/// With less and less memory that can be locked, down to none.
#[test]
fn unlockable_memory_is_honestly_pageable() {
    watched("unlockable_memory_is_honestly_pageable", |seed| {
        for capacity in [0, 1, 4096, 8192, 20_000, 1 << 20] {
            for (workers, by_copy) in [(0, false), (0, true), (2, false), (2, true)] {
                let context = format!("{capacity} bytes, {workers} workers, by_copy {by_copy}");
                let mut options = late(seed, Duration::from_micros(200));
                options.pinned_capacity_bytes = Some(capacity);
                let device = Device::hostile(options).unwrap();
                let loader = loader(&device, workers, by_copy);
                for epoch in 0..2 {
                    let mut unpinned = 0;
                    for (number, batch) in loader.epoch(epoch).enumerate() {
                        let batch = batch.unwrap();
                        assert_eq!(batch.0.is_pinned(), batch.1.is_pinned(), "{context}");
                        unpinned += u64::from(!batch.0.is_pinned());
                        let pair = there_and_back(batch, &device).unwrap();
                        check(&pair, expected(number, BATCH, LEN));
                    }
                    assert_eq!(loader.stats().unpinned.count, unpinned, "{context}");
                    assert!(capacity >= 4096 || unpinned == 10, "{context}");
                    assert!(capacity < 1 << 20 || unpinned == 0, "{context}");
                }
                assert!(device.memory().pinned_bytes <= capacity, "{context}");
            }
        }
    });
}

/// Strict pinning tells of what is not page-locked, whatever the reason.
#[test]
fn strict_pinning_accepts_no_pageable_slab() {
    watched("strict_pinning_accepts_no_pageable_slab", |seed| {
        for capacity in [0, 9_000] {
            for (workers, by_copy) in [(0, false), (0, true), (2, false), (2, true)] {
                let mut options = late(seed, Duration::from_micros(200));
                options.pinned_capacity_bytes = Some(capacity);
                let device = Device::hostile(options).unwrap();
                let loader: DataLoader<Pair> = DataLoader::builder(samples(LEN))
                    .batch_size(BATCH)
                    .num_workers(workers)
                    .pin_memory(&device)
                    .pin_by_copy(by_copy)
                    .strict_pinning(true)
                    .build()
                    .unwrap();
                let (batches, errors): (Vec<_>, Vec<_>) = loader
                    .epoch(0)
                    .map(|batch| batch.map(|batch| batch.0.is_pinned()))
                    .partition(Result::is_ok);
                assert_eq!(batches.len() + errors.len(), 10);
                assert!(batches.into_iter().all(|pinned| pinned.unwrap()));
                assert!(capacity > 0 || errors.len() == 10);
                for error in errors {
                    assert!(matches!(error, Err(Error::Pinned { .. })), "{error:?}");
                }
            }
        }
    });
}

/// With a budget of less and less slabs, for a program that keeps some, sends some and drops some.
#[test]
fn a_small_budget_loses_nothing() {
    watched("a_small_budget_loses_nothing", |seed| {
        let mut rng = rng(seed, 5);
        for slabs in 0..6 {
            for (workers, by_copy) in [(0, false), (0, true), (2, false), (2, true)] {
                let context = format!("{slabs} slabs, {workers} workers, by_copy {by_copy}");
                let device = Device::hostile(late(seed, Duration::from_micros(300))).unwrap();
                device.set_pinned_budget_bytes(slabs * 4096);
                let loader = loader(&device, workers, by_copy);
                let mut kept: Vec<(usize, Pair)> = Vec::new();
                let mut sent: Vec<(usize, PairOnDevice)> = Vec::new();
                let mut unpinned = 0;
                for (number, batch) in loader.epoch(0).enumerate() {
                    let batch = batch.unwrap();
                    unpinned += u64::from(!batch.0.is_pinned());
                    check(&batch, expected(number, BATCH, LEN));
                    match rng.below(3) {
                        0 => kept.push((number, batch)),
                        1 => sent.push((number, batch.to_device(&device, true).unwrap())),
                        _ => drop(batch),
                    }
                    if rng.bool(0.3) {
                        kept.pop();
                    }
                }
                assert_eq!(loader.stats().unpinned.count, unpinned, "{context}");
                assert!(slabs > 0 || unpinned == 10, "{context}");
                drop(loader);
                for (number, batch) in &kept {
                    check(batch, expected(*number, BATCH, LEN));
                }
                for (number, there) in &sent {
                    check_on_device(there, expected(*number, BATCH, LEN));
                }
                assert!(device.memory().pinned_bytes <= slabs * 4096, "{context}");
            }
        }
    });
}

/// A program that holds one batch on the device while it sends the next: as much device memory is enough, whether it
/// is the budget or the device that ends.
#[test]
fn little_device_memory_is_waited_for() {
    watched("little_device_memory_is_waited_for", |seed| {
        for by_budget in [false, true] {
            for workers in [0, 2] {
                let mut options = late(seed, Duration::from_micros(500));
                options.device_capacity_bytes = (!by_budget).then_some(2 * BLOCK);
                let device = Device::hostile(options).unwrap();
                if by_budget {
                    device.set_device_budget_bytes(2 * BLOCK);
                }
                let loader = loader(&device, workers, false);
                let mut last: Option<PairOnDevice> = None;
                for (number, batch) in loader.epoch(0).enumerate() {
                    let there = batch.unwrap().to_device(&device, true).unwrap();
                    if let Some(last) = last.replace(there).filter(|_| number % 2 == 0) {
                        check_on_device(&last, expected(number - 1, BATCH, LEN));
                    }
                }
            }
        }
    });
}

/// Takes the batches of three epochs, of which the program keeps the last `held`. The others are being read when it lets go of them.
fn on_device(device: &Device, workers: usize, depth: usize, held: usize) -> Vec<Error> {
    let loader = loader(device, workers, false);
    let mut kept = VecDeque::new();
    let (mut read, mut errors) = (Vec::new(), Vec::new());
    for mut epoch in loader.epochs(0..3).prefetch_to_device(device, depth) {
        for number in 0..10 {
            while kept.len() > held {
                let (number, (bytes, labels)): (_, PairOnDevice) = kept.pop_front().unwrap();
                let (bytes, labels) = (bytes.to_host(true), labels.to_host(true));
                read.push((number, bytes.unwrap(), labels.unwrap()));
            }
            assert_eq!(epoch.len(), 10 - number);
            match epoch.next().unwrap() {
                Ok(there) => kept.push_back((number, there)),
                Err(error) => errors.push(error),
            }
        }
    }
    for (number, bytes, labels) in read {
        let pair = (bytes.wait().unwrap(), labels.wait().unwrap());
        check(&pair, expected(number, BATCH, LEN));
    }
    for (number, there) in kept {
        check_on_device(&there, expected(number, BATCH, LEN));
    }
    errors
}

/// The driver has less memory than the budget allows: what is refused ahead of time is sent when the program asks for it.
#[test]
fn what_the_driver_refuses_ahead_of_time_comes_later() {
    watched(
        "what_the_driver_refuses_ahead_of_time_comes_later",
        |seed| {
            for (workers, depth) in [(0, 2), (2, 2), (2, 5), (3, usize::MAX)] {
                for is_cut in [false, true] {
                    for held in 0..3 {
                        let mut options = late(seed, Duration::from_micros(200));
                        options.device_capacity_bytes = Some((held + 1) * BLOCK);
                        let device = Device::hostile(options).unwrap();
                        device.cut_batches_at(if is_cut { 1_000 } else { usize::MAX }, 1_000);
                        let errors = on_device(&device, workers, depth, held);
                        let context = format!("{workers} workers, depth {depth}, {held} held");
                        assert!(errors.is_empty(), "{context}, cut {is_cut}: {errors:?}");
                    }
                }
            }
        },
    );
}

/// The driver refuses once. If that is ahead of time, as it is but for a race, it costs no batch.
#[test]
fn a_refusal_ahead_of_time_costs_nothing() {
    watched("a_refusal_ahead_of_time_costs_nothing", |seed| {
        let (mut runs, mut failed) = (0, 0);
        for call in 0..8 {
            for (workers, depth) in [(0, 2), (2, 2), (3, 5)] {
                for (is_cut, held) in [(false, 0), (false, 2), (true, 0), (true, 2)] {
                    let mut options = late(seed, Duration::from_micros(200));
                    options.fail_operation = Some("alloc_device");
                    options.fail_call = Some(call);
                    let device = Device::hostile(options).unwrap();
                    device.cut_batches_at(if is_cut { 1_000 } else { usize::MAX }, 1_000);
                    let errors = on_device(&device, workers, depth, held);
                    assert!(errors.len() <= 1, "call {call}: {errors:?}");
                    runs += 1;
                    failed += errors.len();
                }
            }
        }
        assert!(failed * 10 < runs, "{failed} errors in {runs} runs");
    });
}

/// If the user holds all of the device's memory, that is an error, and what is held stays right.
#[test]
fn held_device_memory_is_an_error() {
    watched("held_device_memory_is_an_error", |seed| {
        let mut options = late(seed, Duration::from_micros(200));
        options.device_capacity_bytes = Some(20_000);
        let device = Device::hostile(options).unwrap();
        let loader = loader(&device, 2, false);
        let outcomes: Vec<_> = loader.epoch(0).prefetch_to_device(&device, 1).collect();
        assert_eq!(outcomes.len(), 10);
        for (number, there) in outcomes.iter().enumerate() {
            match there {
                Ok(there) => check(&back(there).unwrap(), expected(number, BATCH, LEN)),
                Err(error) => assert!(number >= 5, "{error}"),
            }
        }
        assert!(outcomes[9].is_err());
    });
}

/// A request that the budget can never serve does not cost the ring what it has.
#[test]
fn an_impossible_request_evicts_nothing() {
    watched("an_impossible_request_evicts_nothing", |seed| {
        let device = Device::hostile(late(seed, Duration::ZERO)).unwrap();
        device.set_pinned_budget_bytes(8 * 4096);
        let large = pinfeed::Tensor::<u8>::zeros(&[20 * 4096]);
        let there = large.to_device(&device, true).unwrap();
        let loader = DataLoader::builder(samples(LEN))
            .batch_size(BATCH)
            .num_workers(2)
            .prefetch(2)
            .pin_memory(&device)
            .build()
            .unwrap();
        for epoch in 0..20 {
            for batch in loader.epoch(epoch) {
                drop(batch.unwrap().to_device(&device, true).unwrap());
                assert!(!there.to_host(true).unwrap().wait().unwrap().is_pinned());
            }
            // Two open batches, the consumer's, one being copied and one on its way.
            let memory = device.memory();
            assert!(memory.slabs_made <= 5, "epoch {epoch}: {memory:?}");
        }
    });
}
