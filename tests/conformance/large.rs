//! Batches of 4 MiB and more, which a sleeping worker sends in the program's place: in programs that are busy, that leave epochs where they please, and whose samples fail.

use std::time::Duration;

use pinfeed::loader::TryNext;
use pinfeed::{DataLoader, Dataset, Device, DeviceTensor, Tensor, from_fn};

use crate::Test;
use crate::backend::Backend;

pub const TESTS: &[Test] = &[
    (
        "large_batches_arrive_behind_busy_steps",
        large_batches_arrive_behind_busy_steps,
    ),
    (
        "epochs_of_large_batches_are_left_anywhere",
        epochs_of_large_batches_are_left_anywhere,
    ),
    (
        "a_large_batch_that_fails_takes_its_place",
        a_large_batch_that_fails_takes_its_place,
    ),
    (
        "large_and_small_batches_take_turns",
        large_and_small_batches_take_turns,
    ),
    (
        "a_loop_wakes_workers_itself_or_never",
        a_loop_wakes_workers_itself_or_never,
    ),
];

const LEN: u64 = 44;
/// How many words a row has: 1.1 MiB.
const ROW: usize = 294_144;
/// Eleven batches of 4.5 MiB.
const BATCH_SIZE: usize = 4;
const BATCHES: usize = LEN as usize / BATCH_SIZE;

type Batches = (Tensor<u32>, Tensor<i64>);
type Arrived = (DeviceTensor<u32>, DeviceTensor<i64>);

/// Rows that tell their index, a word in four of which differs by its place.
fn row(index: u64) -> Vec<u32> {
    let mut words = vec![index as u32; ROW];
    for (place, word) in words.iter_mut().enumerate().step_by(4) {
        *word = place as u32 ^ (index as u32) << 20;
    }
    words
}

fn samples() -> impl Dataset<Sample = (Vec<u32>, i64)> {
    from_fn(LEN, |index, _| Ok((row(index), index as i64)))
}

fn loader<D>(dataset: D, workers: usize, device: &Device) -> DataLoader<Batches>
where
    D: Dataset<Sample = (Vec<u32>, i64)>,
{
    let builder = DataLoader::builder(dataset)
        .batch_size(BATCH_SIZE)
        .num_workers(workers);
    let builder = match workers {
        0 => builder,
        _ => builder.prefetch(2),
    };
    builder.pin_memory(device).build().unwrap()
}

/// Copies it back, and compares each byte with what the samples of batch `number` are.
fn check((rows, indices): &Arrived, number: usize) {
    let (rows, indices) = (rows.to_host(true).unwrap(), indices.to_host(true).unwrap());
    let (rows, indices): Batches = (rows.wait().unwrap(), indices.wait().unwrap());
    let first = (number * BATCH_SIZE) as i64;
    let expected: Vec<i64> = (first..first + BATCH_SIZE as i64).collect();
    assert_eq!(indices.as_slice(), expected);
    assert_eq!(rows.len(), expected.len() * ROW);
    for (got, index) in rows.as_slice().chunks_exact(ROW).zip(expected) {
        assert!(got == row(index as u64), "sample {index} has other bytes");
    }
}

/// The workers have made all that there is room for and sleep, when a batch is taken: whole batches, and in parts.
fn large_batches_arrive_behind_busy_steps(backend: &Backend) {
    let device = &backend.device;
    for in_parts in [false, true] {
        match in_parts {
            true => device.cut_batches_at(9 << 20, 1 << 20),
            false => device.cut_batches_at(1 << 40, 1),
        }
        for workers in [1, 3] {
            let loader = loader(samples(), workers, device);
            for depth in [0, 1, 3] {
                let mut seen = 0;
                for epoch in loader.epochs(0..2).prefetch_to_device(device, depth) {
                    for (number, batch) in epoch.enumerate() {
                        check(&batch.unwrap(), number);
                        std::thread::sleep(Duration::from_millis(3));
                        seen += 1;
                    }
                }
                assert_eq!(seen, 2 * BATCHES);
            }
        }
    }
    assert_eq!(device.memory().leaked, 0);
}

/// After each number of batches, at once or when workers sleep; the last batch is kept while the next epoch begins.
fn epochs_of_large_batches_are_left_anywhere(backend: &Backend) {
    let device = &backend.device;
    for busy in [false, true] {
        let loader = loader(samples(), 2, device);
        let mut kept: Option<(usize, Arrived)> = None;
        for left_after in 0..BATCHES {
            let mut epoch = loader.epoch(0).prefetch_to_device(device, 2);
            for number in 0..left_after {
                if busy && number + 2 >= left_after {
                    std::thread::sleep(Duration::from_millis(4));
                }
                let batch = epoch.next().unwrap().unwrap();
                if let Some((number, batch)) = kept.replace((number, batch)) {
                    check(&batch, number);
                }
            }
        }
        // The loader goes, with copies on their way.
        let mut epoch = loader.epoch(0).prefetch_to_device(device, 3);
        let first = epoch.next().unwrap().unwrap();
        drop(epoch);
        drop(loader);
        check(&first, 0);
        let (number, batch) = kept.unwrap();
        check(&batch, number);
    }
    let memory = device.memory();
    assert_eq!(memory.leaked, 0, "{memory:?}");
}

/// An error and a panic, each in the middle of an epoch; all other batches come, and so does the epoch behind it.
fn a_large_batch_that_fails_takes_its_place(backend: &Backend) {
    let device = &backend.device;
    for depth in [0, 2] {
        let failing = from_fn(LEN, |index, _| match index {
            17 => Err("this sample is broken".into()),
            30 => watch::provoked("this sample panics"),
            _ => Ok((row(index), index as i64)),
        });
        let loader = loader(failing, 2, device);
        for epoch in loader.epochs(0..2).prefetch_to_device(device, depth) {
            let mut failed = vec![];
            for (number, batch) in epoch.enumerate() {
                match batch {
                    Ok(batch) => check(&batch, number),
                    Err(error) => failed.push((number, error.to_string())),
                }
                std::thread::sleep(Duration::from_millis(2));
            }
            assert_eq!(failed.len(), 2, "{failed:?}");
            assert_eq!((failed[0].0, failed[1].0), (4, 7));
            assert!(failed[0].1.contains("sample 17"), "{}", failed[0].1);
            assert!(
                failed[1].1.contains("this sample panics"),
                "{}",
                failed[1].1
            );
        }
    }
    assert_eq!(device.memory().leaked, 0);
}

/// Two loaders of one device, each in the other's steps: what one leaves to its workers is not the other's.
fn large_and_small_batches_take_turns(backend: &Backend) {
    let device = &backend.device;
    let small = from_fn(1_000, |index, _| Ok((vec![index as u32; 3], index as i64)));
    let small = DataLoader::builder(small).batch_size(7).num_workers(2);
    let small: DataLoader<Batches> = small.pin_memory(device).build().unwrap();
    let large = loader(samples(), 2, device);
    let mut steps = small.epochs(0..).prefetch_to_device(device, 3);
    let mut small = steps.next().unwrap();
    let (mut at, mut seen) = (0, 0);
    for epoch in large.epochs(0..2).prefetch_to_device(device, 2) {
        for (number, batch) in epoch.enumerate() {
            for _ in 0..20 {
                let (rows, indices) = match small.next() {
                    Some(batch) => batch.unwrap(),
                    None => {
                        drop(small);
                        (small, at) = (steps.next().unwrap(), 0);
                        continue;
                    }
                };
                let indices = indices.to_host(false).unwrap().wait().unwrap();
                let rows = rows.to_host(false).unwrap().wait().unwrap();
                for (row, index) in rows.as_slice().chunks_exact(3).zip(indices.as_slice()) {
                    assert_eq!((*index, row), (at, [at as u32; 3].as_slice()));
                    at += 1;
                    seen += 1;
                }
            }
            check(&batch.unwrap(), number);
        }
    }
    drop(small);
    assert!(seen > 2_000, "{seen} small samples"); // more than two epochs of them
    assert_eq!(device.memory().leaked, 0);
}

/// Behind each batch, behind some, or behind none: each batch comes, with and without workers; and where an epoch is left, it comes again.
fn a_loop_wakes_workers_itself_or_never(backend: &Backend) {
    let device = &backend.device;
    for workers in [0, 1, 3] {
        let loader = loader(samples(), workers, device);
        for (wakes_one_in, depth) in [(1, 2), (3, 0), (usize::MAX, 0), (usize::MAX, 3)] {
            for most in [2, usize::MAX] {
                let mut epoch = loader.epoch(0).prefetch_to_device(device, depth);
                let mut number = 0;
                while number < most {
                    match epoch.next_without_waking(Duration::from_secs(1)) {
                        TryNext::Batch(batch) => check(&batch.unwrap(), number),
                        TryNext::NotYet => continue,
                        TryNext::End => break,
                    }
                    number += 1;
                    if number.is_multiple_of(wakes_one_in) {
                        epoch.wake_workers();
                    }
                    std::thread::sleep(Duration::from_millis(1));
                }
                assert_eq!(number, most.min(BATCHES));
            }
        }
    }
    assert_eq!(device.memory().leaked, 0);
}
