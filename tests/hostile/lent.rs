//! Loans that own their tensor, dropped wherever a program may drop them: on other threads, in callbacks, after the loader and the device,
//! or never; on devices that fail.

use std::mem::forget;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use pinfeed::device::{Adrift, OwnedLoan, OwnedLoanMut};
use pinfeed::tensor::Element;
use pinfeed::{Batch, DataLoader, Device, DeviceTensor, Error, Stream, Tensor};

use crate::support::{BYTES, Pair, bytes_of, expected, late, rng, samples, watched};

const LEN: u64 = 120;
const BATCH: usize = 5;

/// What stands for a kernel: it compares the bytes of a batch when the stream comes to it, and counts.
struct Kernels {
    launched: usize,
    right: Arc<AtomicUsize>,
}

impl Kernels {
    fn read(&mut self, stream: &Stream, address: u64, number: usize) {
        let bytes: Vec<u8> = expected(number, BATCH, LEN).flat_map(bytes_of).collect();
        let right = Arc::clone(&self.right);
        self.launched += 1;
        stream
            .host_fn(move || {
                // SAFETY: a loan keeps the batch, which has as many bytes, for this stream.
                let there =
                    unsafe { std::slice::from_raw_parts(address as *const u8, BATCH * BYTES) };
                _ = right.fetch_add(usize::from(there == bytes), Ordering::Relaxed);
            })
            .unwrap();
    }
}

/// A loan of any kind.
enum Held {
    Reading(OwnedLoan<u8>),
    Writing(OwnedLoanMut<u8>),
    Adrift(Adrift<u8>),
}

#[test]
fn wherever_owned_loans_end_each_kernel_sees_its_batch() {
    watched(
        "wherever_owned_loans_end_each_kernel_sees_its_batch",
        |seed| {
            let mut rng = rng(seed, 33);
            for round in 0..12 {
                let device =
                    Device::hostile(late(seed + round, Duration::from_micros(400))).unwrap();
                // Little enough that memory is reused all the time.
                device.set_device_budget_bytes(40 * 2048);
                device.sweep_with_batches(rng.bool(0.5));
                let loader: DataLoader<Pair> = DataLoader::builder(samples(LEN))
                    .batch_size(BATCH)
                    .num_workers(rng.below(3) as usize)
                    .pin_memory(&device)
                    .build()
                    .unwrap();
                let streams: Vec<Stream> = (0..4).map(|_| device.stream().unwrap()).collect();
                let mut kernels = Kernels {
                    launched: 0,
                    right: Arc::default(),
                };
                let mut kept: Vec<Held> = Vec::new();
                let (mut dropping, mut forgotten) = (Vec::new(), 0);
                let depth = rng.below(3) as usize;
                let batches = loader.epoch(0).prefetch_to_device(&device, depth);
                for (number, batch) in batches.enumerate() {
                    let (bytes, labels) = batch.unwrap();
                    let [first, second] = [(); 2].map(|()| &streams[rng.below(4) as usize]);
                    let held = match rng.below(6) {
                        0 | 1 => {
                            let mut loan = bytes.lend(first).unwrap();
                            kernels.read(first, loan.address(), number);
                            match rng.bool(0.5) {
                                true => loan.also_on(second).unwrap(),
                                false => loan.move_to(second).unwrap(),
                            }
                            kernels.read(second, loan.address(), number);
                            Held::Reading(loan)
                        }
                        2 => {
                            let mut loan = bytes.lend_mut(first).unwrap();
                            kernels.read(first, loan.address(), number);
                            loan.move_to(second).unwrap();
                            kernels.read(second, loan.address(), number);
                            Held::Writing(loan)
                        }
                        3 => {
                            let loan = bytes.lend(first).unwrap();
                            kernels.read(first, loan.address(), number);
                            let again = loan.into_tensor().lend(second).unwrap();
                            kernels.read(second, again.address(), number);
                            Held::Reading(again)
                        }
                        _ => {
                            let theirs = bytes.lend(first).unwrap().end_everywhere();
                            second.wait_for(first).unwrap();
                            kernels.read(second, theirs.address(), number);
                            Held::Adrift(theirs)
                        }
                    };
                    if rng.bool(0.3) {
                        drop(labels.lend(second).unwrap());
                    }
                    match rng.below(8) {
                        0 | 1 => kept.push(held),
                        2 if forgotten < 3 => {
                            forgotten += 1;
                            match held {
                                Held::Reading(loan) => forget(loan),
                                Held::Writing(loan) => forget(loan),
                                Held::Adrift(loan) => forget(loan),
                            }
                        }
                        3 => dropping.push(thread::spawn(move || drop(held))),
                        // (On the CPU device, any loan may be dropped there.)
                        4 | 5 => second.host_fn(move || drop(held)).unwrap(),
                        _ => drop(held),
                    }
                    while kept.len() > 4 {
                        drop(kept.swap_remove(rng.below(4) as usize));
                    }
                    if rng.bool(0.4) {
                        device.sweep().unwrap();
                    }
                }
                drop(loader);
                dropping
                    .into_iter()
                    .for_each(|thread| thread.join().unwrap());
                for stream in &streams {
                    stream.synchronize().unwrap();
                }
                let right = kernels.right.load(Ordering::Relaxed);
                assert_eq!(right, kernels.launched, "round {round}");
                assert_eq!(device.memory().leaked, 0);
                if forgotten == 0 {
                    drop(kept);
                    device.sweep().unwrap();
                    assert_eq!(device.memory().device_held_bytes, 0);
                    device.release_device_memory().unwrap();
                    assert_eq!(device.memory().device_bytes, 0);
                } else {
                    drop((streams, device));
                    drop(kept); // the device's last holders, or the ones before those that were forgotten
                }
            }
        },
    );
}

fn upload<T: Element>(device: &Device, values: Vec<T>) -> DeviceTensor<T> {
    Tensor::from(values).to_device(device, true).unwrap()
}

/// What a device that is lost cannot end is leaked, and counted; and no drop panics.
#[test]
fn a_lost_device_leaks_what_was_lent() {
    // The calls that record events: of the upload, of the end, and of what comes after it.
    for fail_call in 0..4 {
        let mut options = late(fail_call, Duration::from_micros(200));
        options.fail_operation = Some("record_event");
        options.fail_call = Some(fail_call);
        options.sticky = true;
        let device = Device::hostile(options).unwrap();
        let streams = [device.stream(), device.stream()];
        let [Ok(first), Ok(second)] = streams else {
            panic!("{fail_call}: {streams:?}");
        };
        let Ok(there) = Tensor::from(vec![1u8; 100]).to_device(&device, true) else {
            continue;
        };
        let Ok(mut loan) = there.lend(&first) else {
            continue;
        };
        _ = loan.also_on(&second);
        thread::spawn(move || drop(loan)).join().unwrap();
        if fail_call == 1 || fail_call == 2 {
            // (The upload's host memory may be leaked as well: its event cannot be asked, either.)
            let memory = device.memory();
            assert!(memory.leaked >= 1, "call {fail_call}");
            assert_eq!(memory.device_held_bytes, 0, "call {fail_call}");
        }
    }
    // What is adrift calls no driver, so it is not leaked when it is dropped. It stays adrift, for the device cannot be asked.
    let mut options = late(9, Duration::ZERO);
    options.fail_operation = Some("record_everywhere");
    options.fail_call = Some(0);
    options.sticky = true;
    let device = Device::hostile(options).unwrap();
    let stream = device.stream().unwrap();
    let theirs = upload(&device, vec![1u8; 100]).lend(&stream).unwrap();
    let theirs = theirs.end_everywhere();
    thread::spawn(move || drop(theirs)).join().unwrap();
    for _ in 0..2 {
        let error = device.sweep().unwrap_err();
        assert!(matches!(error, Error::Device { .. }), "{error}");
    }
    let memory = device.memory();
    assert_eq!((memory.adrift_bytes, memory.device_held_bytes), (512, 0));
}

/// A sweep that fails leaves the memory adrift, and the next one has it.
#[test]
fn a_sweep_that_fails_is_made_again() {
    let failing = || {
        let mut options = late(4, Duration::from_micros(200));
        options.fail_operation = Some("record_everywhere");
        options.fail_call = Some(0);
        let device = Device::hostile(options).unwrap();
        let stream = device.stream().unwrap();
        (device, stream)
    };
    let (device, stream) = failing();
    for value in 0..3u8 {
        let loan = upload(&device, vec![value; 1000]).lend(&stream).unwrap();
        drop(loan.end_everywhere());
    }
    let error = device.sweep().unwrap_err();
    assert!(matches!(error, Error::Device { .. }), "{error}");
    assert_eq!(device.memory().adrift_bytes, 3 * 1024);
    assert_eq!(device.sweep().unwrap(), 3 * 1024);
    assert_eq!(device.memory().adrift_bytes, 0);
    // With batches: the failure is logged, and costs no batch.
    let (device, stream) = failing();
    device.sweep_with_batches(true);
    device.set_device_budget_bytes(2 * 1024);
    for value in 0..8u8 {
        let loan = upload(&device, vec![value; 1000]).lend(&stream).unwrap();
        let slice = loan.host_slice().unwrap().unwrap();
        assert_eq!(slice, [value; 1000]);
        drop(loan.end_everywhere());
    }
    assert_eq!(device.memory().adrift_bytes, 1024);
}

/// A handover that fails at any call leaves the tensor as it was, or says that it is lost.
#[test]
fn a_failed_hand_over_is_an_error() {
    use pinfeed::interop::raw;
    for (operation, calls) in [("stream_wait_event", 1), ("copy", 2), ("record_event", 3)] {
        for fail_call in 0..calls {
            let mut options = late(fail_call, Duration::from_millis(1));
            options.fail_operation = Some(operation);
            options.fail_call = Some(fail_call);
            let device = Device::hostile(options).unwrap();
            let stream = device.stream().unwrap();
            let Ok(there) = Tensor::from(vec![3u8; 5000]).to_device(&device, true) else {
                continue;
            };
            let mut theirs = vec![0u8; 5000];
            // SAFETY: there are as many bytes, and nothing uses them before the stream was waited for.
            let copied = unsafe { raw::copy_to(&there, theirs.as_mut_ptr() as u64, &stream) };
            drop(there);
            while stream.synchronize().is_err() {}
            if copied.is_ok() {
                assert_eq!(theirs, [3; 5000], "{operation} {fail_call}");
            }
            // Its memory is used again. (If the upload was done, the copy waited for nothing, and the call that fails comes here.)
            let again = || {
                let there = Tensor::from(vec![4u8; 5000]).to_device(&device, true)?;
                there.to_host(false)?.wait()
            };
            let again = again().or_else(|_| again()).unwrap();
            assert_eq!(again.as_slice(), [4; 5000]);
        }
    }
}
