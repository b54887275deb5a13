//! Device memory whose readers no loan names: it is used again behind all streams, whichever thread lets go of it and whichever sweeps.

#![allow(unsafe_code)] // what stands for a kernel reads memory by its address

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use pinfeed::{Batch, Device, Tensor};
use shuttle::thread;

use crate::explore::explore;
use crate::support::{below, check_all_back, coin, device};

const LEN: usize = 50;

/// Sends batches to streams that no loan names, and lets go of them; counts the kernels, and those that saw their batch.
fn steps(device: &Device, first: u8, right: &Arc<AtomicUsize>) -> usize {
    let (named, theirs) = (device.stream().unwrap(), device.stream().unwrap());
    let rounds = 2 + below(2) as u8;
    for number in first..first + rounds {
        let there = Tensor::from(vec![number; LEN]).to_device(device, true);
        let loan = there.unwrap().lend(&named).unwrap();
        theirs.wait_for(&named).unwrap();
        let adrift = loan.end_everywhere();
        let (address, right) = (adrift.address(), Arc::clone(right));
        let kernel = move || {
            // SAFETY: it is behind the upload, and the memory is not free before this is done.
            let bytes = unsafe { std::slice::from_raw_parts(address as *const u8, LEN) };
            right.fetch_add(usize::from(bytes == [number; LEN]), Ordering::Relaxed);
        };
        theirs.host_fn(kernel).unwrap();
        match below(3) {
            0 => drop(adrift),
            1 => theirs.host_fn(move || drop(adrift)).unwrap(),
            _ => thread::spawn(move || drop(adrift)).join().unwrap(),
        }
        if coin() {
            device.sweep().unwrap();
        }
    }
    usize::from(rounds) // (Streams that are dropped finish their work.)
}

#[test]
fn adrift_memory_waits_for_all_streams() {
    explore("adrift_memory_waits_for_all_streams", || {
        let device = device();
        device.sweep_with_batches(coin());
        let right = Arc::new(AtomicUsize::new(0));
        let other = {
            let (device, right) = (device.clone(), Arc::clone(&right));
            thread::spawn(move || steps(&device, 100, &right))
        };
        let guard = coin().then(|| device.capture_guard());
        let mut launched = steps(&device, 0, &right);
        drop(guard);
        launched += other.join().unwrap();
        // Callbacks may not have run; then their memory is not adrift yet. The last event is behind them.
        loop {
            device.sweep().unwrap();
            let memory = device.memory();
            if memory.device_held_bytes + memory.adrift_bytes == 0 {
                break;
            }
            thread::yield_now();
        }
        device.release_device_memory().unwrap(); // waits for it
        assert_eq!(right.load(Ordering::Relaxed), launched);
        check_all_back(&device);
    });
}
