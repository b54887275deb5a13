//! `mem::forget` is safe code: whatever is forgotten may leak, and must not be freed early, nor stop the rest.

use std::mem::forget;
use std::time::Duration;

use pinfeed::{Batch, DataLoader, Device, Stream, Tensor};

use crate::support::{
    Pair, PairOnDevice, check, check_on_device, expected, late_device, rng, samples,
    there_and_back, watched,
};

const LEN: u64 = 60;
const BATCH: usize = 5;

fn loader(device: &Device, workers: usize) -> DataLoader<Pair> {
    DataLoader::builder(samples(LEN))
        .batch_size(BATCH)
        .num_workers(workers)
        .pin_memory(device)
        .build()
        .unwrap()
}

#[test]
fn whatever_is_forgotten_all_batches_come() {
    watched("whatever_is_forgotten_all_batches_come", |seed| {
        let mut rng = rng(seed, 6);
        for round in 0..40 {
            let device = late_device(seed + round);
            let stream = device.stream().unwrap();
            let loader = loader(&device, rng.below(3) as usize);
            for number in 0..rng.below(4) {
                let mut epoch = loader.epoch(100 + number);
                epoch.by_ref().take(rng.below(4) as usize).for_each(drop);
                forget(epoch);
            }
            for (number, batch) in loader.epoch(0).enumerate() {
                let batch = batch.unwrap();
                check(&batch, expected(number, BATCH, LEN));
                match rng.below(9) {
                    0 => forget(batch),
                    1 => forget(batch.0.view()),
                    2 => forget(batch.to_device(&device, true).unwrap()),
                    _ => {
                        let there = batch.to_device(&device, true).unwrap();
                        forget_parts(there, rng.below(6), &stream, number);
                    }
                }
            }
            if rng.bool(0.3) {
                forget(stream);
            }
            if rng.bool(0.3) {
                forget(loader);
            }
        }
    });
}

fn forget_parts(mut there: PairOnDevice, what: u64, stream: &Stream, number: usize) {
    let expected = expected(number, BATCH, LEN);
    match what {
        0 => forget(there.0.to_host(true).unwrap()),
        1 => forget(there.0.on(stream).unwrap()),
        2 => forget(there.0.on_mut(stream).unwrap()),
        3 => {
            forget((there.0.on(stream).unwrap(), there.0.on(stream).unwrap()));
            forget(there.1.on_mut(stream).unwrap());
            let labels = there.1.to_host(true).unwrap();
            drop(there);
            assert_eq!(labels.wait().unwrap().len(), expected.count());
            return;
        }
        4 => {
            let (bytes, labels) = there;
            forget(bytes);
            assert_eq!(
                labels.to_host(false).unwrap().wait().unwrap().as_slice()[0],
                expected.start as i64
            );
            return;
        }
        _ => {}
    }
    check_on_device(&there, expected);
}

/// Forgotten loans of a slow writer: what is behind it waits for it, and its memory is nobody else's meanwhile.
#[test]
fn a_forgotten_writer_keeps_its_memory() {
    watched("a_forgotten_writer_keeps_its_memory", |seed| {
        let device = late_device(seed);
        device.set_device_budget_bytes(8 << 10);
        let stream = device.stream().unwrap();
        for round in 0..30u8 {
            let host = |value| Tensor::from_vec(vec![value; 1_000], &[1_000]).unwrap();
            let mut there = host(0).to_device(&device, true).unwrap();
            let loan = there.on_mut(&stream).unwrap();
            let address = loan.address();
            stream
                .host_fn(move || {
                    std::thread::sleep(Duration::from_millis(1));
                    // SAFETY: the loan keeps the memory for this stream.
                    let bytes =
                        unsafe { std::slice::from_raw_parts_mut(address as *mut u8, 1_000) };
                    bytes.fill(round);
                })
                .unwrap();
            forget(loan);
            let download = (round % 2 == 0).then(|| there.to_host(true).unwrap());
            drop(there);
            let next = host(99).to_device(&device, true).unwrap();
            if let Some(download) = download {
                assert_eq!(download.wait().unwrap().as_slice(), [round; 1_000]);
            }
            let next = next.to_host(true).unwrap().wait().unwrap();
            assert_eq!(next.as_slice(), [99; 1_000]);
        }
    });
}

/// A program that forgets every batch has forgotten all slabs at some point; the others still come.
#[test]
fn forgotten_batches_use_up_the_slabs_and_no_more() {
    watched("forgotten_batches_use_up_the_slabs_and_no_more", |seed| {
        let device = late_device(seed);
        for workers in [0, 2] {
            let loader = loader(&device, workers);
            let unpinned = loader.epoch(0).filter(|batch| {
                let batch = batch.as_ref().unwrap();
                forget((batch.0.view(), batch.1.view()));
                !batch.0.is_pinned()
            });
            let unpinned = unpinned.count();
            assert!((1..12).contains(&unpinned), "{unpinned} of 12 are unpinned");
            // The next epoch has slabs of its own.
            for (number, batch) in loader.epoch(1).enumerate() {
                let batch = batch.unwrap();
                assert!(batch.0.is_pinned());
                let pair = there_and_back(batch, &device).unwrap();
                check(&pair, expected(number, BATCH, LEN));
            }
        }
    });
}
