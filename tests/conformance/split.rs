//! One loader for several devices. They are handles of one device here, each with a consumer of its own; where there are two GPUs, the second
//! is one of them.

use std::thread;
use std::time::Duration;

use pinfeed::device::DeviceBuffers;
use pinfeed::{BoxError, DataLoader, Device, DeviceTensor, Tensor, TensorDataset, from_fn};

use crate::Test;
use crate::backend::Backend;

pub const TESTS: &[Test] = &[
    ("devices_share_an_epoch", devices_share_an_epoch),
    (
        "devices_share_batches_in_parts",
        devices_share_batches_in_parts,
    ),
    (
        "devices_have_buffers_of_their_own",
        devices_have_buffers_of_their_own,
    ),
    (
        "a_device_that_is_slow_or_gone_holds_nobody_up",
        a_device_that_is_slow_or_gone_holds_nobody_up,
    ),
];

const LEN: usize = 203;
const BATCH: usize = 10;
const ROW: usize = 1_000;

type Batch = (Tensor<u8>, Tensor<i64>);
type OnDevice = (DeviceTensor<u8>, DeviceTensor<i64>);

fn image(sample: usize) -> Vec<u8> {
    (0..ROW)
        .map(|place| (sample * 29 + place * 3) as u8)
        .collect()
}

fn loader(devices: &[Device]) -> DataLoader<Batch> {
    let images = (0..LEN).flat_map(image).collect();
    let images = Tensor::from_vec(images, &[LEN, 10, ROW / 10]).unwrap();
    let labels = Tensor::from((0..LEN as i64).collect::<Vec<_>>());
    DataLoader::builder(TensorDataset::new((images, labels)).unwrap())
        .batch_size(BATCH)
        .drop_last(true)
        .num_workers(3)
        .pin_memory(devices)
        .build()
        .unwrap()
}

/// The batch at a step of device `number` of two: each row is the sample that its label names.
fn check((images, labels): &OnDevice, step: usize, number: usize) {
    let images = images.to_host(true).unwrap().wait().unwrap();
    let labels = labels.to_host(true).unwrap().wait().unwrap();
    let first = (step * 2 + number) * BATCH;
    for (row, (pixels, label)) in images
        .as_slice()
        .chunks_exact(ROW)
        .zip(labels.as_slice())
        .enumerate()
    {
        assert_eq!(*label as usize, first + row);
        assert!(pixels == image(first + row), "sample {label} is torn");
    }
    assert_eq!(labels.len(), BATCH);
}

/// Three epochs on each device, one after the other.
fn share(backend: &Backend) {
    let devices = backend.devices();
    let loader = loader(&devices);
    thread::scope(|scope| {
        for (number, epochs) in loader
            .epochs(0..3)
            .split(&devices, 2)
            .into_iter()
            .enumerate()
        {
            scope.spawn(move || {
                for epoch in epochs {
                    let mut steps = 0;
                    for (step, batch) in epoch.enumerate() {
                        check(&batch.unwrap(), step, number);
                        steps += 1;
                    }
                    assert_eq!(steps, LEN / (2 * BATCH));
                }
            });
        }
    });
    assert_eq!(loader.stats().unpinned.count, 0);
    assert_eq!(backend.device.memory().leaked, 0);
}

fn devices_share_an_epoch(backend: &Backend) {
    share(backend);
}

fn devices_share_batches_in_parts(backend: &Backend) {
    for device in backend.devices() {
        device.cut_batches_at(8_000, 2_000);
    }
    share(backend);
}

fn devices_have_buffers_of_their_own(backend: &Backend) {
    let devices = backend.devices();
    let loader = loader(&devices);
    let buffers = devices
        .each_ref()
        .map(|device| DeviceBuffers::new(device, 2).unwrap());
    thread::scope(|scope| {
        for (number, epochs) in loader
            .epochs(0..2)
            .split(&buffers, 1)
            .into_iter()
            .enumerate()
        {
            let device = &devices[number];
            scope.spawn(move || {
                let stream = device.stream().unwrap();
                let mut addresses = std::collections::BTreeSet::new();
                for epoch in epochs {
                    for (step, batch) in epoch.enumerate() {
                        let batch = batch.unwrap();
                        addresses.insert(batch.0.on(&stream).unwrap().address());
                        check(&batch, step, number);
                    }
                }
                assert_eq!(addresses.len(), 2);
            });
        }
    });
}

/// One consumer takes its time, one leaves in the middle, and a sample fails: the others get all of their batches.
fn a_device_that_is_slow_or_gone_holds_nobody_up(backend: &Backend) {
    let [first, second] = backend.devices();
    let devices = [first.clone(), second.clone(), first, second];
    let samples = from_fn(400, |index, _| match index {
        117 => Err(BoxError::from("broken")),
        _ => Ok([index as u32; 64]),
    });
    let loader = DataLoader::builder(samples)
        .batch_size(10)
        .num_workers(2)
        .pin_memory(&devices)
        .build()
        .unwrap();
    for epoch in 0..3 {
        let epochs = loader.epoch(epoch).split(&devices, 1);
        let good: Vec<usize> = thread::scope(|scope| {
            let threads = epochs.into_iter().enumerate().map(|(number, epoch)| {
                scope.spawn(move || {
                    let steps = if number == 1 { 2 } else { usize::MAX };
                    let slow = epoch.take(steps).inspect(|_| {
                        if number == 2 {
                            thread::sleep(Duration::from_millis(2));
                        }
                    });
                    slow.filter(Result::is_ok).count()
                })
            });
            let threads: Vec<_> = threads.collect();
            let threads = threads.into_iter();
            threads.map(|thread| thread.join().unwrap()).collect()
        });
        // (Sample 117 is in batch 11, the third of the last.)
        assert_eq!(good, [10, 2, 10, 9]);
    }
}
