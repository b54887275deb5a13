//! A device that fails at any call: what comes is right, or an error, and the iteration goes on.

use std::time::Duration;

use pinfeed::device::Hostile;
use pinfeed::{Batch, DataLoader, Device, Result, Tensor};

use crate::support::{
    BYTES, Pair, PairOnDevice, back, check, expected, late, rng, samples, watched,
};

/// How many samples and how large batches: seven batches.
const LEN: u64 = 27;
const BATCH: usize = 4;
const BATCHES: usize = 7;

/// The calls that a program's loop makes, by their names in the driver.
const OPERATIONS: &[&str] = &[
    "copy",
    "record_event",
    "stream_wait_event",
    "alloc_device",
    "lock_pages",
    "alloc_host",
    "create_stream",
    "host_fn",
];

/// What a training program does with a batch; each of its calls may fail.
fn train(device: &Device, batch: Pair, number: usize) -> Result<()> {
    let stream = device.stream()?;
    let mut there: PairOnDevice = batch.to_device(device, !number.is_multiple_of(3))?;
    {
        let loan = there.0.on(&stream)?;
        if let Some(bytes) = loan.host_slice()? {
            let sum: u64 = bytes.iter().map(|&byte| u64::from(byte)).sum();
            let own = there.1.on_mut(&stream)?;
            stream.host_fn(move || assert!(sum < u64::MAX))?;
            drop(own);
        }
    }
    check(&back(&there)?, expected(number, BATCH, LEN));
    // Into memory that exists, and back.
    let other = Tensor::from_vec(vec![number as u8; there.0.len()], there.0.shape())?;
    let other = match other.pin(device) {
        Ok(pinned) => pinned,
        Err(_) => Tensor::from_vec(vec![number as u8; there.0.len()], there.0.shape())?,
    };
    there.0.copy_from_host(&other, number.is_multiple_of(2))?;
    let target = there.0.to_host(true)?.wait()?;
    assert!(target.as_slice().iter().all(|&byte| byte == number as u8));
    let again = there.0.copy_to_host(Tensor::zeros(there.0.shape()), true)?;
    assert!(
        again
            .wait()?
            .as_slice()
            .iter()
            .all(|&byte| byte == number as u8)
    );
    Ok(())
}

/// Two epochs on a device that fails; says how many errors there were.
fn epochs(options: Hostile, workers: usize, by_copy: bool) -> usize {
    let sticky = options.sticky;
    let context = format!("{options:?}, {workers} workers, by_copy {by_copy}");
    let Ok(device) = Device::hostile(options) else {
        return 1;
    };
    let loader: DataLoader<Pair> = DataLoader::builder(samples(LEN))
        .batch_size(BATCH)
        .num_workers(workers)
        .pin_memory(&device)
        .pin_by_copy(by_copy)
        .build()
        .unwrap();
    let mut errors = 0;
    for epoch in 0..2 {
        let mut seen = 0;
        for (number, batch) in loader.epoch(epoch).enumerate() {
            seen += 1;
            let batch = batch.inspect(|batch| check(batch, expected(number, BATCH, LEN)));
            let outcome = batch.and_then(|batch| train(&device, batch, number));
            errors += usize::from(outcome.is_err());
        }
        assert_eq!(seen, BATCHES, "{context}: a short epoch");
    }
    // One call failed: one batch is missing, or none.
    assert!(sticky || errors <= 1, "{context}: {errors} errors");
    errors
}

fn failing(seed: u64, call: u64, operation: Option<&'static str>, sticky: bool) -> Hostile {
    let mut options = late(seed, Duration::from_micros(30));
    options.fail_call = Some(call);
    options.fail_operation = operation;
    options.sticky = sticky;
    options
}

#[test]
fn any_call_may_fail() {
    watched("any_call_may_fail", |seed| {
        let mut rng = rng(seed, 3);
        let mut errors = 0;
        for call in 0..120 {
            for sticky in [false, true] {
                let workers = rng.below(3) as usize;
                let options = failing(seed, call, None, sticky);
                errors += epochs(options, workers, rng.bool(0.3));
            }
        }
        assert!(errors > 60, "{errors}: the device is to fail");
    });
}

#[test]
fn any_call_of_any_kind_may_fail() {
    watched("any_call_of_any_kind_may_fail", |seed| {
        let mut rng = rng(seed, 4);
        for &operation in OPERATIONS {
            for call in (0..40).step_by(2) {
                let call = call + rng.below(2);
                let (sticky, workers) = (rng.bool(0.3), rng.below(3) as usize);
                let options = failing(seed, call, Some(operation), sticky);
                epochs(options, workers, rng.bool(0.3));
            }
        }
    });
}

/// A device that breaks while batches are sent ahead: each batch comes, or its error.
#[test]
fn a_device_epoch_outlives_its_device() {
    watched("a_device_epoch_outlives_its_device", |seed| {
        for call in 0..80 {
            for sticky in [false, true] {
                let Ok(device) = Device::hostile(failing(seed, call, None, sticky)) else {
                    continue;
                };
                let loader: DataLoader<Pair> = DataLoader::builder(samples(LEN))
                    .batch_size(BATCH)
                    .num_workers(2)
                    .pin_memory(&device)
                    .build()
                    .unwrap();
                let mut epoch = loader.epoch(0).prefetch_to_device(&device, 2);
                for number in 0..BATCHES {
                    assert_eq!(epoch.len(), BATCHES - number);
                    if let Ok(pair) = epoch.next().unwrap().and_then(|there| back(&there)) {
                        check(&pair, expected(number, BATCH, LEN));
                    }
                }
                assert!(epoch.next().is_none() && epoch.len() == 0);
            }
        }
    });
}

/// What failed keeps its memory for good, counted; what did not fail gives it back.
#[test]
fn failures_leak_and_free_nothing_in_use() {
    watched("failures_leak_and_free_nothing_in_use", |seed| {
        for call in 0..60 {
            let options = failing(seed, call, Some("record_event"), false);
            let Ok(device) = Device::hostile(options) else {
                continue;
            };
            let host = || Tensor::from_vec(vec![call as u8; 10 * BYTES], &[10 * BYTES]).unwrap();
            for _ in 0..8 {
                let Ok(there) = host().to_device(&device, true) else {
                    continue;
                };
                let there = [
                    there,
                    host()
                        .to_device(&device, true)
                        .unwrap_or_else(|_| host().to_device(&device, true).unwrap()),
                ];
                for there in &there {
                    let Ok(back) = there.to_host(true).and_then(|download| download.wait()) else {
                        continue;
                    };
                    assert!(back.as_slice().iter().all(|&byte| byte == call as u8));
                }
            }
            let _ = device.release_device_memory();
            let memory = device.memory();
            assert_eq!(memory.device_held_bytes, 0, "{memory:?}");
            assert!(memory.device_bytes == 0 || memory.leaked > 0, "{memory:?}");
            assert!(memory.leaked <= 3, "{memory:?}");
        }
    });
}

/// The budget is used up by blocks whose kernels run. One of their events cannot be asked, or waited for: its block is given up,
/// and the others serve, as soon as their kernels are done.
#[test]
fn an_event_that_is_lost_costs_one_block() {
    watched("an_event_that_is_lost_costs_one_block", |seed| {
        const BLOCKS: usize = 3;
        let block = || Tensor::from(vec![5u8; 4096]);
        let mut lost = 0;
        for query in 0..40 {
            let options = failing(seed, query, Some("event_query"), false);
            let device = Device::hostile(options).unwrap();
            device.set_device_budget_bytes(BLOCKS * 4096);
            let sent: Vec<_> = (0..BLOCKS)
                .map(|_| block().to_device(&device, true).unwrap())
                .collect();
            let (started, running) = std::sync::mpsc::channel::<()>();
            let mut kernels = Vec::new();
            for there in &sent {
                let stream = device.stream().unwrap();
                let loan = there.on(&stream).unwrap();
                let (release, held) = std::sync::mpsc::channel::<()>();
                let started = started.clone();
                stream
                    .host_fn(move || {
                        started.send(()).unwrap();
                        let _ = held.recv();
                    })
                    .unwrap();
                drop(loan);
                kernels.push((stream, release));
            }
            running.iter().take(BLOCKS).for_each(drop);
            drop(sent);
            // They end while it is waited for.
            let kernels = std::thread::spawn(move || {
                for (_, release) in kernels {
                    std::thread::sleep(Duration::from_millis(1));
                    drop(release);
                }
            });
            let context = format!("query {query}");
            for _ in 0..2 {
                let there = block().to_device(&device, true);
                let there = there.unwrap_or_else(|error| panic!("{context}: {error}"));
                drop(there);
            }
            kernels.join().unwrap();
            let memory = device.memory();
            assert!(memory.leaked <= 3, "{context}: {memory:?}");
            lost += memory.leaked;
            let _ = device.release_device_memory();
            let left = device.memory().device_bytes;
            assert!(left <= 4096, "{context}: {left} bytes were not freed");
        }
        assert!(lost > 20, "{lost}: events are to fail");
    });
}
