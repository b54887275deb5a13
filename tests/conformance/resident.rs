//! Tables in device memory: batches are those of the same table on the host, in the same order, however they are sent and read.

use std::sync::Arc;
use std::thread;
use std::time::Duration;

use pinfeed::dataset::{ConcatDataset, Dataset, Subset};
use pinfeed::device::DeviceBuffers;
use pinfeed::loader::{LastBatch, World};
use pinfeed::{Batch, DataLoader, Device, DeviceTensor, Error, Tensor, TensorDataset};

use crate::Test;
use crate::backend::Backend;

pub const TESTS: &[Test] = &[
    (
        "a_table_on_the_device_gives_the_same_batches",
        a_table_on_the_device_gives_the_same_batches,
    ),
    (
        "rows_of_any_size_are_gathered",
        rows_of_any_size_are_gathered,
    ),
    (
        "batches_of_a_table_lie_in_buffers",
        batches_of_a_table_lie_in_buffers,
    ),
    (
        "large_batches_of_a_table_come_in_parts",
        large_batches_of_a_table_come_in_parts,
    ),
    (
        "a_batch_of_a_table_is_read_on_the_host",
        a_batch_of_a_table_is_read_on_the_host,
    ),
    ("only_numbers_cross_the_link", only_numbers_cross_the_link),
    (
        "rows_of_a_table_go_with_others",
        rows_of_a_table_go_with_others,
    ),
    (
        "a_table_goes_behind_its_last_batch",
        a_table_goes_behind_its_last_batch,
    ),
    (
        "a_tensor_that_is_being_written_becomes_a_table",
        a_tensor_that_is_being_written_becomes_a_table,
    ),
    (
        "a_table_that_does_not_fit_says_so",
        a_table_that_does_not_fit_says_so,
    ),
    ("a_table_stays_on_its_device", a_table_stays_on_its_device),
];

type Rows = (Tensor<f32>, Tensor<u8>, Tensor<i64>);
type There = (DeviceTensor<f32>, DeviceTensor<u8>, DeviceTensor<i64>);
type Contents = (Vec<usize>, Vec<f32>, Vec<u8>, Vec<i64>);

/// Without showing all of it.
#[track_caller]
fn same<T: PartialEq + ?Sized>(found: &T, expected: &T) {
    assert!(found == expected, "another batch");
}

/// A table of rows of 20, 7 and 1 elements.
fn tensors(rows: usize) -> Rows {
    let of = |width: usize| 0..rows * width;
    (
        Tensor::from_vec(of(20).map(|x| x as f32 / 8.0).collect(), &[rows, 4, 5]).unwrap(),
        Tensor::from_vec(of(7).map(|y| (y * 31) as u8).collect(), &[rows, 7]).unwrap(),
        Tensor::from_vec(of(1).map(|z| z as i64 * 3).collect(), &[rows]).unwrap(),
    )
}

fn host(rows: usize) -> TensorDataset<Rows> {
    TensorDataset::new(tensors(rows)).unwrap()
}

fn on(backend: &Backend, rows: usize) -> TensorDataset<There> {
    host(rows).to_device(&backend.device).unwrap()
}

fn contents((x, y, z): Rows) -> Contents {
    (x.shape().to_vec(), x.to_vec(), y.to_vec(), z.to_vec())
}

fn fetched((x, y, z): &There) -> Contents {
    let x = x.to_host(true).unwrap();
    let y = y.to_host(true).unwrap();
    let z = z.to_host(true).unwrap();
    contents((x.wait().unwrap(), y.wait().unwrap(), z.wait().unwrap()))
}

/// With workers and without, page-locked or not, on several ranks, in the second epoch, and resumed.
fn a_table_on_the_device_gives_the_same_batches(backend: &Backend) {
    for (rows, batch_size, workers, pins, last) in [
        (203, 32, 0, true, LastBatch::Partial),
        (203, 32, 2, true, LastBatch::Drop),
        (50, 1, 3, true, LastBatch::Partial),
        (5_000, 1_024, 2, true, LastBatch::Fill),
        (5_000, 1_024, 2, false, LastBatch::Partial), // more numbers than a kernel takes as arguments
        (90, 40, 0, false, LastBatch::Partial),
        (1, 1, 1, true, LastBatch::Partial),
        (10, 64, 2, true, LastBatch::Partial), // a batch larger than the table
    ] {
        for (rank, ranks) in [(0, 1), (1, 3)] {
            macro_rules! loader {
                ($table:expr) => {{
                    let mut builder = DataLoader::builder($table)
                        .batch_size(batch_size)
                        .shuffle(true)
                        .seed(9)
                        .num_workers(workers)
                        .last_batch(last)
                        .world(World::new(rank, ranks).unwrap());
                    if pins {
                        builder = builder.pin_memory(&backend.device);
                    }
                    builder.build::<Rows>().unwrap()
                }};
            }
            let (here, there) = (loader!(host(rows)), loader!(on(backend, rows)));
            let expected: Vec<Vec<Contents>> = (0..2)
                .map(|epoch| {
                    here.epoch(epoch)
                        .map(|batch| contents(batch.unwrap()))
                        .collect()
                })
                .collect();
            for depth in [0, 2] {
                for epoch in there
                    .epochs(0..2)
                    .prefetch_to_device(&backend.device, depth)
                {
                    let number = epoch.number() as usize;
                    let found: Vec<Contents> =
                        epoch.map(|batch| fetched(&batch.unwrap())).collect();
                    same(&found, &expected[number]);
                }
            }
            // Each sent by the program.
            for (batch, expected) in there.epoch(1).zip(&expected[1]) {
                let batch = batch.unwrap().to_device(&backend.device, true).unwrap();
                same(&fetched(&batch), expected);
            }
            // A run goes on where the same run on the host's table stopped.
            let mut epoch = here.epoch(0);
            let taken = epoch.by_ref().take(2).count();
            let state = epoch.state();
            let rest = there
                .resume(0..1, &state)
                .unwrap()
                .prefetch_to_device(&backend.device, 1);
            let rest: Vec<Contents> = rest
                .flatten()
                .map(|batch| fetched(&batch.unwrap()))
                .collect();
            same(&rest[..], &expected[0][taken..]);
        }
    }
}

/// One after the other in one process, and all at once in columns beside each other.
fn rows_of_any_size_are_gathered(backend: &Backend) {
    for width in [
        0, 1, 2, 3, 4, 6, 8, 12, 16, 24, 80, 255, 256, 4_096, 4_099, 16_384, 40_000,
    ] {
        let rows = if width > 10_000 { 20 } else { 300 };
        let table: Vec<u8> = (0..rows * width)
            .map(|at| (at / 7 * 13 + at) as u8)
            .collect();
        let one = |part: std::ops::Range<usize>| {
            // (A view: its copy on the device is a tensor of its own.)
            let all = Tensor::from_vec(table.clone(), &[rows, width]).unwrap();
            all.slice(part)
        };
        let columns = (one(1..rows - 1), one(2..rows));
        let loader = DataLoader::builder(
            TensorDataset::new(columns)
                .unwrap()
                .to_device(&backend.device)
                .unwrap(),
        )
        .batch_size(rows / 3)
        .shuffle(true)
        .seed(3)
        .num_workers(1)
        .pin_memory(&backend.device)
        .build::<(Tensor<u8>, Tensor<u8>)>()
        .unwrap();
        let order = DataLoader::builder((0..rows as i64 - 2).collect::<Vec<i64>>())
            .batch_size(rows / 3)
            .shuffle(true)
            .seed(3)
            .build()
            .unwrap();
        let batches = loader.epoch(0).prefetch_to_device(&backend.device, 1);
        for (batch, numbers) in batches.zip(&order) {
            let (one, other) = batch.unwrap();
            let (one, other) = (one.to_host(false).unwrap(), other.to_host(false).unwrap());
            let (one, other) = (one.wait().unwrap(), other.wait().unwrap());
            for (at, number) in numbers.unwrap().as_slice().iter().enumerate() {
                let row = |first: usize| {
                    let start = (*number as usize + first) * width;
                    &table[start..start + width]
                };
                let place = at * width..(at + 1) * width;
                assert_eq!(one.as_slice()[place.clone()], *row(1), "{width} bytes");
                assert_eq!(other.as_slice()[place], *row(2), "{width} bytes");
            }
        }
    }
    // Eight columns of as many sizes.
    let rows = 500;
    let column = |width: usize| {
        let values = (0..rows * width)
            .map(|at| (at * 7 + width) as i16)
            .collect();
        Tensor::<i16>::from_vec(values, &[rows, width]).unwrap()
    };
    macro_rules! columns {
        ($($width:literal)*) => { ($(column($width),)*) };
    }
    let all = || TensorDataset::new(columns!(1 2 3 5 8 40 129 1_000)).unwrap();
    let here = DataLoader::builder(all()).batch_size(64).build().unwrap();
    let there = all().to_device(&backend.device).unwrap();
    let there = DataLoader::builder(there)
        .batch_size(64)
        .pin_memory(&backend.device)
        .build()
        .unwrap();
    for (batch, expected) in there
        .epoch(0)
        .prefetch_to_device(&backend.device, 2)
        .zip(&here)
    {
        let (batch, expected) = (batch.unwrap(), expected.unwrap());
        macro_rules! compare {
            ($($index:tt)*) => {$(
                let found = batch.$index.to_host(true).unwrap().wait().unwrap();
                assert_eq!(found, expected.$index);
            )*};
        }
        compare!(0 1 2 3 4 5 6 7);
    }
}

fn batches_of_a_table_lie_in_buffers(backend: &Backend) {
    let here = DataLoader::builder(host(95))
        .batch_size(10)
        .build::<Rows>()
        .unwrap();
    let there = DataLoader::builder(on(backend, 95))
        .batch_size(10)
        .num_workers(2)
        .pin_memory(&backend.device)
        .build::<Rows>()
        .unwrap();
    let buffers = DeviceBuffers::new(&backend.device, 2).unwrap();
    let stream = backend.device.stream().unwrap();
    let mut seen = Vec::new();
    // The first batch that the buffers see is short.
    let epochs = there.resume(0..3, &there.state_at(0, 90)).unwrap();
    for epoch in epochs.prefetch_to_device(&buffers, 1) {
        let skipped = if epoch.number() == 0 { 9 } else { 0 };
        for (batch, expected) in epoch.zip(here.epoch(0).skip(skipped)) {
            let batch = batch.unwrap();
            seen.push(batch.0.on(&stream).unwrap().address());
            same(&fetched(&batch), &contents(expected.unwrap()));
        }
    }
    assert_eq!(seen.len(), 1 + 10 + 10);
    for (step, found) in seen.iter().enumerate() {
        assert_eq!(*found, seen[step % 2], "step {step}");
    }
}

fn large_batches_of_a_table_come_in_parts(backend: &Backend) {
    backend.device.cut_batches_at(4_000, 1_000);
    let rows = 3_000;
    let here = DataLoader::builder(host(rows))
        .batch_size(900)
        .shuffle(true)
        .build::<Rows>()
        .unwrap();
    let there = DataLoader::builder(on(backend, rows))
        .batch_size(900)
        .shuffle(true)
        .num_workers(3)
        .pin_memory(&backend.device)
        .build::<Rows>()
        .unwrap();
    for epoch in 0..2 {
        let batches = there.epoch(epoch).prefetch_to_device(&backend.device, 2);
        for (batch, expected) in batches.zip(here.epoch(epoch)) {
            same(&fetched(&batch.unwrap()), &contents(expected.unwrap()));
        }
    }
}

/// In any order: read, sent, written; and in the next batch.
fn a_batch_of_a_table_is_read_on_the_host(backend: &Backend) {
    let device = &backend.device;
    let here = DataLoader::builder(host(100))
        .batch_size(30)
        .shuffle(true)
        .build::<Rows>()
        .unwrap();
    for workers in [0, 2] {
        let there = DataLoader::builder(on(backend, 100))
            .batch_size(30)
            .shuffle(true)
            .num_workers(workers)
            .pin_memory(device)
            .build::<Rows>()
            .unwrap();
        for (number, (batch, expected)) in there.epoch(0).zip(here.epoch(0)).enumerate() {
            let batch = batch.unwrap();
            let expected = contents(expected.unwrap());
            match number {
                0 => same(&contents(batch), &expected),
                1 => {
                    same(batch.0.as_slice(), &expected.1);
                    assert!(!batch.0.is_empty() && batch.1.shape()[..] == [30, 7]);
                    assert_eq!(batch.1.row(3).as_slice(), &expected.2[21..28]);
                    same(&fetched(&batch.to_device(device, true).unwrap()), &expected);
                }
                2 => {
                    let view = batch.0.view();
                    let first = view.slice(0..1).to_device(device, true).unwrap();
                    let sent = batch.to_device(device, true).unwrap();
                    drop(view);
                    let row = first.to_host(true).unwrap().wait().unwrap();
                    same(row.as_slice(), &expected.1[..20]);
                    same(&fetched(&sent), &expected);
                }
                _ => same(
                    &fetched(&batch.to_device(device, false).unwrap()),
                    &expected,
                ),
            }
        }
    }
}

/// Whether there is page-locked memory for them or not: rows do not go to the host and back.
fn only_numbers_cross_the_link(backend: &Backend) {
    let device = &backend.device;
    let here = DataLoader::builder(host(90)).batch_size(30);
    let here = here.build::<Rows>().unwrap();
    for (pins, by_copy) in [(true, false), (true, true), (false, false)] {
        let mut builder = DataLoader::builder(on(backend, 90))
            .batch_size(30)
            .num_workers(2)
            .pin_by_copy(by_copy);
        if pins {
            builder = builder.pin_memory(device);
        }
        let there = builder.build::<Rows>().unwrap();
        let batches = there.epoch(0).prefetch_to_device(device, 1);
        for (batch, expected) in batches.zip(here.epoch(0)) {
            same(&fetched(&batch.unwrap()), &contents(expected.unwrap()));
        }
        let stats = there.stats();
        assert_eq!(
            (stats.transfers.bytes, stats.unpinned.count),
            (90 * 8, 0),
            "pins {pins}, by copy {by_copy}"
        );
    }
}

/// In one sample: two rows of one table, one of another, and what is made on the host. And in subsets.
fn rows_of_a_table_go_with_others(backend: &Backend) {
    let device = &backend.device;
    let table = Arc::new(on(backend, 50));
    let other = TensorDataset::new(Tensor::from((0..50i32).map(|x| -x).collect::<Vec<_>>()));
    let other = Arc::new(other.unwrap().to_device(device).unwrap());
    let pairs = {
        let (table, other) = (Arc::clone(&table), Arc::clone(&other));
        pinfeed::from_fn(50, move |index, rng| {
            let one = table.get(index, rng)?;
            let next = table.get((index + 1) % 50, rng)?;
            let minus = other.get(49 - index, rng)?;
            Ok((one, (next, minus), [index as i64; 3]))
        })
    };
    let expected: Vec<Contents> = (0..50)
        .map(|index| {
            let (x, y, z) = tensors(50);
            contents((
                x.slice(index..index + 1),
                y.slice(index..index + 1),
                z.slice(index..index + 1),
            ))
        })
        .collect();
    for workers in [0, 2] {
        let loader =
            DataLoader::builder(Arc::clone(&table).map(|row, _| Ok((row.index() as i64, row))))
                .batch_size(1)
                .num_workers(workers)
                .pin_memory(device)
                .build::<(Tensor<i64>, Rows)>()
                .unwrap();
        for (index, batch) in loader.epoch(0).prefetch_to_device(device, 2).enumerate() {
            let (numbers, rows) = batch.unwrap();
            assert_eq!(
                numbers.to_host(false).unwrap().wait().unwrap().as_slice(),
                [index as i64]
            );
            same(&fetched(&rows), &expected[index]);
        }
        let subset = Subset::new(Arc::clone(&table), vec![7, 7, 49, 0]).unwrap();
        let loader = DataLoader::builder(subset)
            .num_workers(workers)
            .pin_memory(device)
            .build::<Rows>()
            .unwrap();
        let found: Vec<Contents> = loader
            .epoch(0)
            .prefetch_to_device(device, 2)
            .map(|batch| fetched(&batch.unwrap()))
            .collect();
        assert!(
            found
                .iter()
                .eq([7, 7, 49, 0].map(|index: usize| &expected[index]))
        );
    }
    let loader = DataLoader::builder(pairs)
        .batch_size(8)
        .num_workers(2)
        .pin_memory(device)
        .build::<(Rows, (Rows, Tensor<i32>), Tensor<i64>)>()
        .unwrap();
    let mut index = 0;
    for batch in loader.epoch(0).prefetch_to_device(device, 1) {
        let (one, (next, minus), made) = batch.unwrap();
        let count = minus.len();
        let labels = |rows: &There| rows.2.to_host(false).unwrap().wait().unwrap().to_vec();
        let numbers = || (index..index + count).map(|index| index as i64);
        assert!(
            labels(&one)
                .into_iter()
                .eq(numbers().map(|index| index * 3))
        );
        assert!(
            labels(&next)
                .into_iter()
                .eq(numbers().map(|index| (index + 1) % 50 * 3))
        );
        let minus = minus.to_host(false).unwrap().wait().unwrap();
        assert!(
            minus
                .as_slice()
                .iter()
                .copied()
                .eq(numbers().map(|index| index as i32 - 49))
        );
        let made = made.to_host(false).unwrap().wait().unwrap();
        assert!(made.as_slice().chunks(3).map(|row| row[1]).eq(numbers()));
        index += count;
    }
    assert_eq!(index, 50);
    // Rows of two tables are no batch, and the next batch comes all the same.
    let both = ConcatDataset::new(vec![on(backend, 5), on(backend, 20)]).unwrap();
    let loader = DataLoader::builder(both)
        .batch_size(10)
        .pin_memory(device)
        .build::<Rows>()
        .unwrap();
    let batches: Vec<_> = loader.epoch(0).prefetch_to_device(device, 1).collect();
    let error = batches[0].as_ref().unwrap_err().to_string();
    assert!(error.contains("two tables"), "{error}");
    assert_eq!(fetched(batches[1].as_ref().unwrap()).3[0], 15);
}

/// The loader and the table are dropped while batches are being gathered, and other tensors take the memory.
fn a_table_goes_behind_its_last_batch(backend: &Backend) {
    let device = &backend.device;
    for round in 0..if backend.is_cuda() { 20 } else { 5 } {
        let held = device.memory().device_held_bytes;
        let here = DataLoader::builder(host(2_000))
            .batch_size(500)
            .shuffle(true)
            .build::<Rows>()
            .unwrap();
        let there = DataLoader::builder(on(backend, 2_000))
            .batch_size(500)
            .shuffle(true)
            .num_workers(round % 3)
            .pin_memory(device)
            .build::<Rows>()
            .unwrap();
        let batches: Vec<There> = there
            .epoch(0)
            .prefetch_to_device(device, 3)
            .map(|batch| batch.unwrap())
            .collect();
        drop(there);
        let noise: Vec<DeviceTensor<u8>> = (0..8)
            .map(|_| {
                Tensor::from_vec(vec![0xEE; 200_000], &[200_000])
                    .unwrap()
                    .to_device(device, true)
                    .unwrap()
            })
            .collect();
        for (batch, expected) in batches.iter().zip(&here) {
            same(&fetched(batch), &contents(expected.unwrap()));
        }
        drop((batches, noise));
        assert_eq!(device.memory().device_held_bytes, held);
    }
    assert_eq!(device.memory().leaked, 0);
}

fn a_tensor_that_is_being_written_becomes_a_table(backend: &Backend) {
    let device = &backend.device;
    let stream = device.stream().unwrap();
    let mut table = Tensor::from_vec(vec![1u8; 4_096], &[4_096])
        .unwrap()
        .to_device(device, true)
        .unwrap();
    let loan = table.on_mut(&stream).unwrap();
    let kernel = Duration::from_millis(50);
    backend.fill_slowly(&stream, loan.address(), 1_024, 0x0707_0707, kernel);
    drop(loan);
    let table = TensorDataset::new(table).unwrap();
    assert_eq!(table.len(), 4_096);
    let loader = DataLoader::builder(table)
        .batch_size(512)
        .pin_memory(device)
        .build()
        .unwrap();
    for batch in loader.epoch(0).prefetch_to_device(device, 1) {
        let batch = batch.unwrap().to_host(false).unwrap().wait().unwrap();
        assert!(batch.as_slice().iter().all(|value| *value == 7));
    }
}

fn a_table_that_does_not_fit_says_so(backend: &Backend) {
    let device = &backend.device;
    device.set_device_budget_bytes(1 << 20);
    let rows = 20_000; // of 95 bytes
    match host(rows).to_device(device) {
        Err(Error::DeviceBudget {
            requested_bytes,
            budget_bytes,
            ..
        }) => {
            assert_eq!(budget_bytes, 1 << 20);
            assert!(requested_bytes > 1 << 20);
        }
        other => panic!("{other:?}"),
    }
    // A smaller one does.
    let loader = DataLoader::builder(on(backend, 1_000))
        .batch_size(100)
        .pin_memory(device)
        .build::<Rows>()
        .unwrap();
    assert_eq!(
        loader
            .epoch(0)
            .prefetch_to_device(device, 1)
            .filter(Result::is_ok)
            .count(),
        10
    );
}

fn a_table_stays_on_its_device(backend: &Backend) {
    let other = Device::cpu();
    if backend.is_cuda() {
        let table = host(10).to_device(&other).unwrap();
        let loader = DataLoader::builder(table)
            .batch_size(5)
            .build::<Rows>()
            .unwrap();
        let error = loader
            .epoch(0)
            .prefetch_to_device(&backend.device, 1)
            .next()
            .unwrap()
            .unwrap_err();
        assert!(matches!(error, Error::WrongDevice { .. }), "{error}");
    }
    let loader = DataLoader::builder(on(backend, 10))
        .batch_size(5)
        .build::<Rows>()
        .unwrap();
    if !backend.device.name().starts_with("cpu") {
        let error = loader
            .epoch(0)
            .prefetch_to_device(&other, 1)
            .next()
            .unwrap()
            .unwrap_err();
        assert!(matches!(error, Error::WrongDevice { .. }), "{error}");
    }
    // Two threads send batches of one table at once.
    let table = Arc::new(on(backend, 3_000));
    thread::scope(|scope| {
        for seed in 0..3 {
            let (table, device) = (Arc::clone(&table), backend.device.clone());
            scope.spawn(move || {
                let here = DataLoader::builder(host(3_000))
                    .batch_size(70)
                    .shuffle(true)
                    .seed(seed)
                    .build::<Rows>();
                let there = DataLoader::builder(table)
                    .batch_size(70)
                    .shuffle(true)
                    .seed(seed)
                    .num_workers(1)
                    .pin_memory(&device)
                    .build::<Rows>();
                let (here, there) = (here.unwrap(), there.unwrap());
                for (batch, expected) in there.epoch(0).prefetch_to_device(&device, 2).zip(&here) {
                    same(&fetched(&batch.unwrap()), &contents(expected.unwrap()));
                }
            });
        }
    });
}
