//! Devices: budgets, faults and ends.

use std::time::Duration;

use pinfeed::{Batch, Device, Error, Tensor};

use crate::Test;
use crate::backend::Backend;

pub const TESTS: &[Test] = &[
    (
        "a_held_budget_is_an_error_and_a_dropped_one_is_not",
        a_held_budget_is_an_error_and_a_dropped_one_is_not,
    ),
    (
        "a_budget_in_use_by_kernels_is_waited_for",
        a_budget_in_use_by_kernels_is_waited_for,
    ),
    (
        "pinning_beyond_the_budget_is_refused",
        pinning_beyond_the_budget_is_refused,
    ),
    (
        "downloads_beyond_the_budget_are_pageable",
        downloads_beyond_the_budget_are_pageable,
    ),
    (
        "devices_and_streams_do_not_mix",
        devices_and_streams_do_not_mix,
    ),
    (
        "tensors_outlive_their_device_handle",
        tensors_outlive_their_device_handle,
    ),
    ("a_device_describes_itself", a_device_describes_itself),
];

const BYTES: usize = 1 << 20;

fn ones() -> Tensor<u8> {
    Tensor::from_vec(vec![1; BYTES], &[BYTES]).unwrap()
}

fn a_held_budget_is_an_error_and_a_dropped_one_is_not(backend: &Backend) {
    let device = &backend.device;
    device.set_device_budget_bytes(3 * BYTES);
    let mut held: Vec<_> = (0..3)
        .map(|_| ones().to_device(device, true).unwrap())
        .collect();
    match ones().to_device(device, true) {
        Err(Error::DeviceBudget {
            held_bytes,
            held_blocks,
            ..
        }) => assert_eq!((held_bytes, held_blocks), (3 * BYTES, 3)),
        other => panic!("{other:?}"),
    }
    held.pop();
    let again = ones().to_device(device, true).unwrap();
    assert_eq!(
        again.to_host(true).unwrap().wait().unwrap().as_slice(),
        ones().as_slice()
    );
    drop((held, again));
    assert_eq!(device.release_device_memory().unwrap(), 3 * BYTES);
    assert_eq!(device.memory().device_bytes, 0);
}

/// A program that runs ahead of its kernels waits for the oldest; it neither fails nor grows.
fn a_budget_in_use_by_kernels_is_waited_for(backend: &Backend) {
    let device = &backend.device;
    let stream = device.stream().unwrap();
    device.set_device_budget_bytes(2 * BYTES);
    for round in 0..6 {
        let mut there = ones().to_device(device, true).unwrap();
        let loan = there.on_mut(&stream).unwrap();
        backend.fill_slowly(
            &stream,
            loan.address(),
            BYTES / 4,
            round,
            Duration::from_millis(10),
        );
    }
    assert!(device.memory().device_bytes <= 2 * BYTES);
}

fn pinning_beyond_the_budget_is_refused(backend: &Backend) {
    let device = &backend.device;
    device.set_pinned_budget_bytes(2 * BYTES);
    let held = [ones().pin(device).unwrap(), ones().pin(device).unwrap()];
    let error = ones().pin(device).unwrap_err();
    assert!(
        matches!(error, Error::Pinned { .. })
            && error.to_string().contains("set_pinned_budget_bytes"),
        "{error}"
    );
    drop(held);
    assert!(ones().pin(device).unwrap().is_pinned());
}

fn downloads_beyond_the_budget_are_pageable(backend: &Backend) {
    let device = &backend.device;
    // Blocking: then the slabs that the copy was staged through are home, and can make room.
    let there = ones().to_device(device, false).unwrap();
    device.set_pinned_budget_bytes(BYTES);
    let first = there.to_host(true).unwrap().wait().unwrap();
    let second = there.to_host(true).unwrap().wait().unwrap();
    assert!(first.is_pinned() && !second.is_pinned());
    assert_eq!(
        (first.as_slice(), second.as_slice()),
        (ones().as_slice(), ones().as_slice())
    );
    assert_eq!(device.memory().slabs_missed, 1);
}

fn devices_and_streams_do_not_mix(backend: &Backend) {
    let elsewhere = Device::cpu().stream().unwrap();
    let there = ones().to_device(&backend.device, true).unwrap();
    assert!(matches!(
        there.on(&elsewhere),
        Err(Error::WrongDevice { .. })
    ));
    // Two of one name are told apart.
    let there = ones().to_device(&Device::cpu(), true).unwrap();
    match there.on(&elsewhere).unwrap_err() {
        Error::WrongDevice {
            found, expected, ..
        } => assert!(
            found != expected && found.contains("cpu") && expected.contains("cpu"),
            "{found} and {expected}"
        ),
        other => panic!("{other}"),
    }
}

fn tensors_outlive_their_device_handle(backend: &Backend) {
    let device = if backend.is_cuda() {
        Device::cuda(0).unwrap()
    } else {
        Device::cpu()
    };
    let stream = device.stream().unwrap();
    let there = ones()
        .pin(&device)
        .unwrap()
        .to_device(&device, true)
        .unwrap();
    let download = there.to_host(true).unwrap();
    drop((device, stream, there));
    assert_eq!(download.wait().unwrap().as_slice(), ones().as_slice());
}

fn a_device_describes_itself(backend: &Backend) {
    let info = backend.device.info().unwrap();
    assert!(!info.name.is_empty() && info.total_memory_bytes > 0);
    assert_eq!(info.compute_capability.is_some(), backend.is_cuda());
}
