//! Nothing is left of loaders that were dropped, whatever they did: no thread, no memory, and nothing of a device that is in use. The only
//! test of its process, for it counts what the process has.
#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used)]

#[macro_use]
extern crate watch;

use std::fs;
use std::sync::mpsc::channel;
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use pinfeed::dataset::{Staged, StagedDataset};
use pinfeed::device::{DeviceBuffers, Hostile};
use pinfeed::iterable::{self, IterableDataset};
use pinfeed::loader::{LoaderState, OnError, Workers, World};
use pinfeed::{
    Batch, BoxError, DataLoader, Dataset, Device, Error, SampleRng, Tensor, TensorDataset, from_fn,
};

/// The names of the library's threads, but for its helpers: those belong to the process.
fn threads() -> Vec<String> {
    let tasks = fs::read_dir("/proc/self/task").unwrap().flatten();
    let names = tasks.filter_map(|task| fs::read_to_string(task.path().join("comm")).ok());
    let own = |name: &String| name.starts_with("pinfeed-") && !name.contains("helper");
    names.filter(own).collect()
}

fn resident_bytes() -> usize {
    let pages = fs::read_to_string("/proc/self/statm").unwrap();
    pages.split(' ').nth(1).unwrap().parse::<usize>().unwrap() * 4096
}

/// Samples of 4 KB; some are bad, and some panic.
fn samples(len: u64) -> impl Dataset<Sample = Tensor<u8>> {
    from_fn(len, |index, rng: &mut SampleRng| match index % 97 {
        13 => Err(BoxError::from("bad")),
        14 => watch::provoked("worse"),
        _ => Ok(Tensor::from(vec![rng.range(0..256i64) as u8; 4096])),
    })
}

struct Remote;

impl StagedDataset for Remote {
    type Raw = Vec<u8>;
    type Sample = Tensor<u8>;

    fn len(&self) -> u64 {
        500
    }

    fn fetch(&self, index: u64) -> Result<Vec<u8>, BoxError> {
        thread::sleep(Duration::from_micros(100));
        Ok(vec![index as u8; 4096])
    }

    fn decode(&self, _: u64, raw: Vec<u8>, _: &mut SampleRng) -> Result<Tensor<u8>, BoxError> {
        Ok(Tensor::from(raw))
    }

    fn raw_bytes(&self, raw: &Vec<u8>) -> usize {
        raw.len()
    }
}

/// Each kind of loader, used for a while, and left in the middle of something.
fn round(number: usize, devices: &[Device; 2]) {
    let device = &devices[0];
    let plain = DataLoader::builder(samples(400))
        .batch_size(8)
        .shuffle(true)
        .num_workers(Workers::Auto)
        .on_error(OnError::Skip { at_most: 1_000 })
        .in_order(number.is_multiple_of(2))
        .max_bytes_in_flight(100_000)
        .build()
        .unwrap();
    let recording = plain.record();
    for epoch in plain.epochs(0..2) {
        assert!(epoch.take(20 + number % 9).all(|batch| batch.is_ok()));
    }
    drop(recording.finish());

    let pinned = DataLoader::builder(samples(400))
        .batch_size(8)
        .num_workers(2)
        .on_error(OnError::Replace { at_most: 1_000 })
        .timeout(Duration::from_secs(60))
        .pin_memory(device)
        .build()
        .unwrap();
    let buffers = DeviceBuffers::new(device, 2).unwrap();
    for epoch in pinned.epochs(0..3).prefetch_to_device(&buffers, 1) {
        epoch
            .take(5 + number % 9)
            .for_each(|batch| drop(batch.unwrap()));
    }
    let mut replay = pinned.replay(0).unwrap();
    assert!(replay.by_ref().take(3).all(|batch| batch.is_ok()));

    let shared = DataLoader::builder(Staged::new(Remote).with_in_flight(4))
        .batch_size(8)
        .num_workers(2)
        .pin_memory(devices)
        .build()
        .unwrap();
    thread::scope(|scope| {
        for epochs in shared.epochs(0..2).split(devices, 1) {
            scope.spawn(|| assert!(epochs.flatten().take(9).all(|batch| batch.is_ok())));
        }
    });

    let numbers = iterable::from_fn(|_, _| Ok((0..10_000i64).map(Ok))).shuffle(100);
    let streamed = DataLoader::iterable(numbers)
        .batch_size(8)
        .num_workers(2)
        .build()
        .unwrap();
    assert!(streamed.epoch(0).take(30).all(|batch| batch.is_ok()));
    hangs(number, device);
    goes_on_elsewhere(number, device);
}

/// A sample that hangs, and is given up. Its worker ends before the loader does, or after.
fn hangs(number: usize, device: &Device) {
    let (open, gate) = channel::<()>();
    let gate = Mutex::new(gate);
    let samples = from_fn(80, move |index, _| {
        if index == 21 {
            let gate = gate.lock().unwrap_or_else(PoisonError::into_inner);
            gate.recv().unwrap_err(); // it is open once its sender is gone
        }
        Ok(Tensor::from(vec![index as u8; 4096]))
    });
    let loader = DataLoader::builder(samples)
        .batch_size(8)
        .num_workers(2)
        .timeout(Duration::from_millis(20))
        .pin_memory(device)
        .build()
        .unwrap();
    let mut epoch = loader.epoch(0).prefetch_to_device(device, 1);
    let is_late = |batch: &pinfeed::Result<_>| matches!(batch, Err(Error::TimedOut(_)));
    assert!(epoch.by_ref().any(|batch| is_late(&batch)));
    let mut open = Some(open);
    if number.is_multiple_of(2) {
        open.take();
    }
    epoch.next();
    drop(epoch);
    drop(loader);
    drop(open);
}

/// Ranks stop in the middle of an epoch, and fewer of them go on, in buffers of their own.
fn goes_on_elsewhere(number: usize, device: &Device) {
    let mut state = LoaderState::default();
    for (ranks, most) in [(3, 2 + number % 3), (2, 3), (1, 20)] {
        let mut left = state;
        for rank in 0..ranks {
            let samples = from_fn(100, |index, _| Ok(Tensor::from(vec![index as u8; 4096])));
            let loader = DataLoader::builder(samples)
                .global_batch_size(6)
                .shuffle(true)
                .num_workers(2)
                .world(World::new(rank, ranks).unwrap())
                .pin_memory(device)
                .build()
                .unwrap();
            let buffers = DeviceBuffers::new(device, 2).unwrap();
            let epochs = loader.resume(0..2, &state).unwrap();
            let batches = epochs.prefetch_to_device(&buffers, 1).flatten();
            assert!(batches.take(most).all(|batch| batch.is_ok()));
            left = loader.state();
        }
        state = left;
    }
    assert_eq!(state.epoch(), 1);
}

/// A table on a device, which nobody uses any more while batches are on their way, and others were read on the host.
fn table(number: usize) {
    let mut options = Hostile::default();
    options.seed = number as u64;
    options.max_delay = Duration::from_millis(1);
    let device = Device::hostile(options).unwrap();
    let table = Tensor::<u8>::zeros(&[1_000, 128]);
    let table = TensorDataset::new(table)
        .unwrap()
        .to_device(&device)
        .unwrap();
    let loader = DataLoader::builder(table)
        .batch_size(50)
        .num_workers(number % 3)
        .pin_memory(&device)
        .build()
        .unwrap();
    let mut batches = loader.epoch(0).prefetch_to_device(&device, 3);
    assert!(batches.by_ref().take(2).all(|batch| batch.is_ok()));
    for batch in loader.epoch(1).take(3) {
        let batch = batch.unwrap();
        assert_eq!(batch.as_slice()[128 * (number % 50)], 0);
        drop(batch.to_device(&device, true).unwrap()); // what was read is on its way
    }
    for batch in loader.epoch(2).take(2) {
        drop(batch.unwrap().to_device(&device, true).unwrap());
    }
}

/// Late copies, now and then.
fn devices(number: usize) -> [Device; 2] {
    let mut options = Hostile::default();
    options.seed = number as u64;
    options.max_delay = Duration::from_micros(300);
    let first = match number % 4 {
        3 => Device::hostile(options).unwrap(),
        _ => Device::cpu(),
    };
    [first, Device::cpu()]
}

/// Nothing of the device is in use, and all that it keeps can be given back.
fn check(device: &Device) {
    // It comes after all other copies.
    let last = Tensor::from(vec![0u8; 8]).to_device(device, false);
    drop(last.unwrap());
    let memory = device.memory();
    assert_eq!(memory.pinned_bytes, memory.pinned_idle_bytes, "{memory:?}");
    assert_eq!(memory.device_held_bytes, 0, "{memory:?}");
    assert_eq!((memory.parked_bytes, memory.leaked), (0, 0), "{memory:?}");
    device.release_pinned();
    device.release_device_memory().unwrap();
    let memory = device.memory();
    assert_eq!((memory.pinned_bytes, memory.device_bytes), (0, 0));
}

/// Waits for the end of threads that have such a name. (Those that hung are joined by nobody, and of others the system may list one for a
/// moment longer.)
fn wait_for(name: &str) {
    let end = Instant::now() + Duration::from_secs(20);
    while threads().iter().any(|thread| thread.contains(name)) {
        assert!(Instant::now() < end, "{:?}", threads());
        thread::sleep(Duration::from_millis(1));
    }
}

fn whole_round(number: usize) {
    let devices = devices(number);
    round(number, &devices);
    table(number);
    wait_for("worker");
    devices.iter().for_each(check);
}

#[test]
fn nothing_is_left_of_loaders_that_were_dropped() {
    (0..25).for_each(whole_round);
    let before = resident_bytes();
    (25..65).for_each(whole_round);
    let grown = resident_bytes().saturating_sub(before);
    // (With one loader forgotten in each round, it was 20 MB.)
    assert!(grown < 8 << 20, "{grown} bytes more");
    wait_for("pinfeed-");
}
