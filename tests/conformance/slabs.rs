//! Slabs that are missing: what a batch waits for, and what it does not.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc;
use std::time::Duration;

use pinfeed::{Batch, DataLoader, Device, DeviceTensor, Stream, Tensor, from_fn};

use crate::Test;
use crate::backend::Backend;
use crate::staging::piece;

pub const TESTS: &[Test] = &[
    (
        "a_batch_waits_for_no_copy_into_a_tensor",
        a_batch_waits_for_no_copy_into_a_tensor,
    ),
    (
        "a_batch_waits_for_no_other_epochs_copy_into_a_tensor",
        a_batch_waits_for_no_other_epochs_copy_into_a_tensor,
    ),
    (
        "a_staged_download_has_no_slabs_before_its_kernels_ran",
        a_staged_download_has_no_slabs_before_its_kernels_ran,
    ),
    (
        "a_batch_waits_for_staged_uploads",
        a_batch_waits_for_staged_uploads,
    ),
    (
        "a_batch_waits_for_uploads_of_pinned_tensors",
        a_batch_waits_for_uploads_of_pinned_tensors,
    ),
];

const PAGE: usize = 4096;

/// A stream that is held up that long has held up the test.
const PATIENCE: Duration = Duration::from_secs(20);

fn loader(device: &Device, bytes: usize, workers: usize, strict: bool) -> DataLoader<Tensor<u8>> {
    let dataset = from_fn(60, move |index, _| {
        Ok(Tensor::from(vec![index as u8; bytes]))
    });
    let builder = DataLoader::builder(dataset).num_workers(workers);
    let builder = builder.pin_memory(device).strict_pinning(strict);
    // One at a time: the ring has fewer slabs than an epoch may have.
    let builder = match workers {
        0 => builder,
        _ => builder.prefetch(1),
    };
    builder.build().unwrap()
}

fn check(batch: &Tensor<u8>, number: usize) {
    assert!(batch.as_slice().iter().all(|&byte| byte == number as u8));
}

/// Waits until all slabs are home.
fn settle(device: &Device) {
    while device.memory().pinned_idle_bytes < device.memory().pinned_bytes {
        std::thread::yield_now();
    }
}

/// Holds the stream up: a kernel that waits for the program.
struct HeldUp(mpsc::Sender<()>);

impl HeldUp {
    fn new(stream: &Stream) -> HeldUp {
        let (release, held) = mpsc::channel::<()>();
        let hold = move || _ = held.recv_timeout(PATIENCE);
        stream.host_fn(hold).unwrap();
        HeldUp(release)
    }

    /// Ends it; fails if it ended by itself, because the program did not come so far.
    fn release(self) {
        self.0.send(()).expect("the program waited for the kernel");
    }
}

/// A tensor on the device that a kernel writes which waits for the program.
fn written_by_held_up(
    device: &Device,
    bytes: usize,
    stream: &Stream,
) -> (DeviceTensor<u8>, HeldUp) {
    let zeros = Tensor::zeros(&[1, bytes]);
    let mut there = zeros.to_device(device, false).unwrap();
    let loan = there.on_mut(stream).unwrap();
    let held_up = HeldUp::new(stream);
    drop(loan);
    (there, held_up)
}

/// Copies between a batch and a tensor on the device, behind its kernels.
type InPlace = fn(&mut DeviceTensor<u8>, Tensor<u8>);

const IN_PLACE: [InPlace; 2] = [
    |there, batch| there.copy_from_host(&batch, true).unwrap(),
    |there, batch| drop(there.copy_to_host(batch, true).unwrap()),
];

/// The ring has one slab, which a copy uses that waits for a kernel, which waits for the program, which waits for a batch.
fn a_batch_waits_for_no_copy_into_a_tensor(backend: &Backend) {
    let device = &backend.device;
    device.set_pinned_budget_bytes(PAGE);
    let stream = device.stream().unwrap();
    for copy in IN_PLACE {
        for workers in [0, 2] {
            let (mut there, held_up) = written_by_held_up(device, PAGE, &stream);
            let loader = loader(device, PAGE, workers, false);
            let mut epoch = loader.epoch(0);
            let first = epoch.next().unwrap().unwrap();
            assert!(first.is_pinned());
            copy(&mut there, first);
            let second = epoch.next().unwrap().unwrap();
            assert!(!second.is_pinned());
            check(&second, 1);
            drop(second);
            held_up.release();
            for (number, batch) in (2..).zip(epoch) {
                check(&batch.unwrap(), number);
            }
            settle(device);
        }
    }
}

/// The same, where the copy uses the slab of another loader.
fn a_batch_waits_for_no_other_epochs_copy_into_a_tensor(backend: &Backend) {
    let device = &backend.device;
    device.set_pinned_budget_bytes(PAGE);
    let stream = device.stream().unwrap();
    for copy in IN_PLACE {
        for workers in [0, 2] {
            let (mut there, held_up) = written_by_held_up(device, PAGE, &stream);
            {
                let other = loader(device, PAGE, 0, true);
                let batch = other.epoch(0).next().unwrap().unwrap();
                copy(&mut there, batch);
            }
            let loader = loader(device, PAGE, workers, false);
            for (number, batch) in loader.epoch(0).enumerate() {
                let batch = batch.unwrap();
                assert!(!batch.is_pinned());
                check(&batch, number);
            }
            held_up.release();
            settle(device);
        }
    }
}

/// It waits for a kernel that waits for the program; meanwhile batches have the ring for themselves.
fn a_staged_download_has_no_slabs_before_its_kernels_ran(backend: &Backend) {
    let device = &backend.device;
    let bytes = 5 * piece(backend);
    device.set_pinned_budget_bytes(2 * piece(backend));
    let stream = device.stream().unwrap();
    for workers in [0, 2] {
        let (there, held_up) = written_by_held_up(device, bytes, &stream);
        let loader = loader(device, PAGE, workers, true);
        std::thread::scope(|scope| {
            let (begins, begun) = mpsc::channel();
            let there = &there;
            scope.spawn(move || {
                let target = Tensor::zeros(&[1, bytes]);
                begins.send(()).unwrap();
                let download = there.copy_to_host(target, true).unwrap();
                assert!(
                    download
                        .wait()
                        .unwrap()
                        .as_slice()
                        .iter()
                        .all(|&byte| byte == 0)
                );
            });
            begun.recv().unwrap();
            for epoch in 0..5 {
                for (number, batch) in loader.epoch(epoch).enumerate() {
                    check(&batch.unwrap(), number);
                }
            }
            held_up.release();
        });
    }
}

/// Another thread stages uploads without end, through all slabs that the budget allows: each batch gets its slab, of any size.
fn a_batch_waits_for_staged_uploads(backend: &Backend) {
    let device = &backend.device;
    let budget = 2 * piece(backend) + PAGE;
    device.set_pinned_budget_bytes(budget);
    for workers in [0, 2] {
        for bytes in [PAGE, budget] {
            let over = AtomicBool::new(false);
            std::thread::scope(|scope| {
                let (begins, begun) = mpsc::channel();
                let over = &over;
                scope.spawn(move || {
                    let source = Tensor::from(vec![7u8; 7 * piece(backend)]);
                    // A few at a time: a device that is slow would have copied them for minutes after the test.
                    let mut sent = VecDeque::new();
                    while !over.load(Ordering::Relaxed) {
                        sent.push_back(source.view().to_device(device, true).unwrap());
                        let _ = begins.send(());
                        if sent.len() == 4 {
                            sent.pop_front().unwrap().synchronize().unwrap();
                        }
                    }
                });
                begun.recv().unwrap();
                let loader = loader(device, bytes, workers, true);
                let failed = loader.epoch(0).enumerate().find_map(|(number, batch)| {
                    let batch = batch.map(|batch| {
                        check(&batch, number);
                        assert!(batch.is_pinned());
                    });
                    batch.err()
                });
                over.store(true, Ordering::Relaxed);
                assert!(
                    failed.is_none(),
                    "{bytes} bytes, {workers} workers: {failed:?}"
                );
            });
        }
    }
    assert!(device.memory().pinned_bytes <= budget);
}

/// The program's own page-locked tensors are the ring's memory as well.
fn a_batch_waits_for_uploads_of_pinned_tensors(backend: &Backend) {
    let device = &backend.device;
    let bytes = 16 * PAGE;
    device.set_pinned_budget_bytes(bytes);
    for workers in [0, 2] {
        let loader = loader(device, bytes, workers, true);
        for epoch in 0..10 {
            let own = Tensor::from(vec![1u8; bytes]).pin(device).unwrap();
            drop(own.to_device(device, true).unwrap());
            check(&loader.epoch(epoch).next().unwrap().unwrap(), 0);
            settle(device);
        }
    }
}
