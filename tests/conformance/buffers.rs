//! Batches at fixed addresses: in turn in the same few buffers, which are written again when nobody uses them any more.

use std::sync::mpsc::channel;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::{self, ThreadId};
use std::time::Duration;

use pinfeed::collate::{Relocation, Tensors, Upload};
use pinfeed::device::DeviceBuffers;
use pinfeed::error::CollateError;
use pinfeed::loader::{OnError, World};
use pinfeed::ragged::Ragged;
use pinfeed::sample::{Filled, Layout, Row};
use pinfeed::{
    Batch, BoxError, DataLoader, DeviceTensor, Error, Host, Sample, Tensor, TensorDataset, from_fn,
    iterable,
};

use crate::Test;
use crate::backend::Backend;

pub const TESTS: &[Test] = &[
    (
        "batches_lie_at_the_same_addresses_in_turn",
        batches_lie_at_the_same_addresses_in_turn,
    ),
    (
        "parts_lie_at_the_same_addresses_in_turn",
        parts_lie_at_the_same_addresses_in_turn,
    ),
    (
        "a_buffer_is_written_when_its_kernels_are_done",
        a_buffer_is_written_when_its_kernels_are_done,
    ),
    (
        "a_batch_that_is_held_is_not_overwritten",
        a_batch_that_is_held_is_not_overwritten,
    ),
    (
        "a_batch_that_outgrows_its_buffer_is_an_error",
        a_batch_that_outgrows_its_buffer_is_an_error,
    ),
    (
        "a_run_goes_on_at_a_short_last_batch",
        a_run_goes_on_at_a_short_last_batch,
    ),
    (
        "ranks_go_on_at_a_short_last_batch",
        ranks_go_on_at_a_short_last_batch,
    ),
    (
        "the_first_batch_lacks_bad_samples",
        the_first_batch_lacks_bad_samples,
    ),
    (
        "the_short_last_batch_comes_first",
        the_short_last_batch_comes_first,
    ),
    (
        "a_batch_that_is_slow_to_be_sent_holds_one_buffer",
        a_batch_that_is_slow_to_be_sent_holds_one_buffer,
    ),
    ("a_short_list_comes_first", a_short_list_comes_first),
    (
        "a_stream_goes_on_at_its_short_end",
        a_stream_goes_on_at_its_short_end,
    ),
    (
        "values_on_the_host_do_not_matter",
        values_on_the_host_do_not_matter,
    ),
    (
        "buffers_go_with_their_last_holder",
        buffers_go_with_their_last_holder,
    ),
    (
        "an_epoch_that_is_left_leaves_its_buffers",
        an_epoch_that_is_left_leaves_its_buffers,
    ),
    (
        "buffers_without_memory_say_so_and_go_on",
        buffers_without_memory_say_so_and_go_on,
    ),
];

type Pair = (DeviceTensor<u8>, DeviceTensor<i64>);

const LEN: usize = 103;
const ROW: usize = 1_000;

fn image(sample: usize) -> Vec<u8> {
    (0..ROW)
        .map(|place| (sample * 29 + place * 3) as u8)
        .collect()
}

fn loader(backend: &Backend, workers: usize) -> DataLoader<(Tensor<u8>, Tensor<i64>)> {
    let images =
        Tensor::from_vec((0..LEN).flat_map(image).collect(), &[LEN, 10, ROW / 10]).unwrap();
    let labels = Tensor::from((0..LEN as i64).collect::<Vec<_>>());
    DataLoader::builder(TensorDataset::new((images, labels)).unwrap())
        .batch_size(10)
        .num_workers(workers)
        .pin_memory(&backend.device)
        .build()
        .unwrap()
}

fn check((images, labels): &Pair, batch: usize) {
    let images = images.to_host(true).unwrap().wait().unwrap();
    let labels = labels.to_host(true).unwrap().wait().unwrap();
    let samples = batch * 10..LEN.min(batch * 10 + 10);
    assert_eq!(images.shape()[..], [samples.len(), 10, ROW / 10]);
    for ((row, label), sample) in images
        .as_slice()
        .chunks_exact(ROW)
        .zip(labels.as_slice())
        .zip(samples)
    {
        assert_eq!(*label as usize, sample);
        assert!(row == image(sample), "sample {sample} is torn");
    }
}

fn addresses(backend: &Backend, (images, labels): &Pair) -> [u64; 2] {
    let stream = backend.device.stream().unwrap();
    [
        images.on(&stream).unwrap().address(),
        labels.on(&stream).unwrap().address(),
    ]
}

/// Several epochs, the last batches of which have fewer rows, with any number of buffers.
fn in_turn(backend: &Backend, workers: usize, count: usize) {
    let loader = loader(backend, workers);
    let buffers = DeviceBuffers::new(&backend.device, count).unwrap();
    assert_eq!(buffers.count(), count);
    let mut seen = Vec::new();
    for epoch in loader.epochs(0..3).prefetch_to_device(&buffers, 2) {
        for (number, batch) in epoch.enumerate() {
            let batch = batch.unwrap();
            seen.push(addresses(backend, &batch));
            check(&batch, number);
        }
    }
    // One epoch alone goes on with the next buffer.
    for (number, batch) in loader.epoch(3).prefetch_to_device(&buffers, 2).enumerate() {
        let batch = batch.unwrap();
        seen.push(addresses(backend, &batch));
        check(&batch, number);
    }
    assert_eq!(seen.len(), 44);
    for (step, found) in seen.iter().enumerate() {
        assert_eq!(*found, seen[step % count], "step {step}");
    }
    let mut first = seen[..count].concat();
    first.sort_unstable();
    first.dedup();
    assert_eq!(first.len(), 2 * count);
}

fn batches_lie_at_the_same_addresses_in_turn(backend: &Backend) {
    for (workers, count) in [(2, 1), (2, 2), (3, 3), (0, 2), (2, 5)] {
        in_turn(backend, workers, count);
    }
}

fn parts_lie_at_the_same_addresses_in_turn(backend: &Backend) {
    backend.device.cut_batches_at(8_000, 2_000);
    for (workers, count) in [(2, 1), (3, 2), (2, 3)] {
        in_turn(backend, workers, count);
    }
}

/// The program runs ahead of its kernels, which read late.
fn a_buffer_is_written_when_its_kernels_are_done(backend: &Backend) {
    let device = &backend.device;
    let samples = from_fn(60, |index, _| Ok([index as u32 + 1; 500]));
    let loader = DataLoader::builder(samples)
        .batch_size(1)
        .num_workers(2)
        .pin_memory(device)
        .build()
        .unwrap();
    let stream = device.stream().unwrap();
    for count in [1, 2, 3] {
        let buffers = DeviceBuffers::new(device, count).unwrap();
        let mut sums = Tensor::from(vec![0u32; 60])
            .to_device(device, false)
            .unwrap();
        for (step, batch) in loader.epoch(0).prefetch_to_device(&buffers, 2).enumerate() {
            let batch = batch.unwrap();
            let words = batch.on(&stream).unwrap();
            let sum = sums.on_mut(&stream).unwrap();
            let late = Duration::from_millis(u64::from(step % 3 == 0) * 4);
            backend.sum_slowly(
                &stream,
                words.address(),
                500,
                sum.address() + 4 * step as u64,
                late,
            );
        }
        let sums = sums.to_host(false).unwrap().wait().unwrap();
        let expected: Vec<u32> = (0..60).map(|index| (index + 1) * 500).collect();
        assert_eq!(sums.to_vec(), expected);
    }
}

/// It is an error, which says so, and the loop goes on when the batch is dropped.
fn a_batch_that_is_held_is_not_overwritten(backend: &Backend) {
    for workers in [0, 2] {
        let loader = loader(backend, workers);
        let buffers = DeviceBuffers::new(&backend.device, 2).unwrap();
        let mut epoch = loader.epoch(0).prefetch_to_device(&buffers, 2);
        let first = epoch.next().unwrap().unwrap();
        let second = epoch.next().unwrap().unwrap();
        match epoch.next().unwrap() {
            Err(Error::Buffers { reason }) => assert!(reason.contains("drop a batch"), "{reason}"),
            other => panic!("{other:?}"),
        }
        check(&first, 0);
        check(&second, 1);
        drop(first);
        check(&epoch.next().unwrap().unwrap(), 3);
        check(&second, 1);
        drop(second);
        for number in 4..11 {
            check(&epoch.next().unwrap().unwrap(), number);
        }
        assert!(epoch.next().is_none());
    }
}

fn a_batch_that_outgrows_its_buffer_is_an_error(backend: &Backend) {
    // Batches of 2 rows, of so many words together.
    let words = |batch: u64| [6, 4, 8, 6, 2][batch as usize];
    let samples = from_fn(10, move |index, _| {
        let words = vec![index as u32; words(index / 2) / 2];
        Ok(Ragged::from(words))
    });
    let loader = DataLoader::builder(samples)
        .batch_size(2)
        .num_workers(2)
        .pin_memory(&backend.device)
        .build()
        .unwrap();
    for epoch in 0..2 {
        let buffers = DeviceBuffers::new(&backend.device, 2).unwrap();
        let found: Vec<_> = loader
            .epoch(epoch)
            .prefetch_to_device(&buffers, 1)
            .map(|batch| match batch {
                Ok(_) => None,
                Err(error) => Some(error.to_string()),
            })
            .collect();
        let too_large = found[2].as_ref().unwrap();
        assert!(
            too_large.contains("32 bytes") && too_large.contains("room for 24"),
            "{too_large}"
        );
        assert!(
            too_large.contains("pad samples to one length"),
            "{too_large}"
        );
        assert!(
            [0, 1, 3, 4].iter().all(|&batch| found[batch].is_none()),
            "{found:?}"
        );
    }
}

/// What a sample is: as many numbers as make a row that no other has.
fn numbers(index: u64) -> [i32; 40] {
    std::array::from_fn(|place| (index * 1_000) as i32 + place as i32)
}

/// A batch's samples, by all of their bytes.
fn samples_of(batch: &DeviceTensor<i32>) -> Vec<u64> {
    let rows = batch.to_host(true).unwrap().wait().unwrap();
    let rows = rows.as_slice().chunks_exact(40);
    rows.map(|row| {
        let index = row[0] as u64 / 1_000;
        assert_eq!(*row, numbers(index), "sample {index} is torn");
        index
    })
    .collect()
}

fn address(backend: &Backend, batch: &DeviceTensor<i32>) -> u64 {
    let stream = backend.device.stream().unwrap();
    batch.on(&stream).unwrap().address()
}

/// The first batch that the buffers see has three rows, and those of the next epoch have ten.
fn a_run_goes_on_at_a_short_last_batch(backend: &Backend) {
    for (workers, in_parts) in [(0, false), (2, false), (2, true)] {
        if in_parts {
            backend.device.cut_batches_at(8_000, 2_000);
        }
        let loader = loader(backend, workers);
        let buffers = DeviceBuffers::new(&backend.device, 2).unwrap();
        let state = loader.state_at(0, 100);
        let mut seen = Vec::new();
        for epoch in loader
            .resume(0..3, &state)
            .unwrap()
            .prefetch_to_device(&buffers, 1)
        {
            let first = 11 - epoch.len();
            for (number, batch) in epoch.enumerate() {
                let batch = batch.unwrap();
                check(&batch, first + number);
                seen.push(addresses(backend, &batch));
            }
        }
        assert_eq!(seen.len(), 1 + 11 + 11);
        for (step, found) in seen.iter().enumerate() {
            assert_eq!(*found, seen[step % 2], "step {step}");
        }
    }
}

/// On three ranks, the last global batch is shared: each has a row of it, or two.
fn ranks_go_on_at_a_short_last_batch(backend: &Backend) {
    for rank in 0..3 {
        let loader = DataLoader::builder(from_fn(34, |index, _| Ok(numbers(index))))
            .batch_size(10)
            .world(World::new(rank, 3).unwrap())
            .num_workers(2)
            .pin_memory(&backend.device)
            .build::<Tensor<i32>>()
            .unwrap();
        let buffers = DeviceBuffers::new(&backend.device, 2).unwrap();
        let rows: Vec<usize> = loader
            .resume(0..2, &loader.state_at(0, 30))
            .unwrap()
            .prefetch_to_device(&buffers, 1)
            .flatten()
            .map(|batch| samples_of(&batch.unwrap()).len())
            .collect();
        let rest = if rank == 0 { 2 } else { 1 };
        assert_eq!(rows, [rest, 10, rest]);
    }
}

fn the_first_batch_lacks_bad_samples(backend: &Backend) {
    for workers in [0, 3] {
        let samples = from_fn(100, |index, _| match index {
            0 | 3 | 55 => Err(BoxError::from("bad")),
            _ => Ok(numbers(index)),
        });
        let loader = DataLoader::builder(samples)
            .batch_size(10)
            .drop_last(true)
            .num_workers(workers)
            .on_error(OnError::Skip { at_most: 10 })
            .pin_memory(&backend.device)
            .build::<Tensor<i32>>()
            .unwrap();
        let buffers = DeviceBuffers::new(&backend.device, 2).unwrap();
        let batches = loader.epoch(0).prefetch_to_device(&buffers, 1);
        let found: Vec<u64> = batches
            .flat_map(|batch| samples_of(&batch.unwrap()))
            .collect();
        let good: Vec<u64> = (0..100).filter(|n| ![0, 3, 55].contains(n)).collect();
        assert_eq!(found, good);
    }
}

/// The samples of the full batches are not there before the program has the last batch, which is a single row.
fn the_short_last_batch_comes_first(backend: &Backend) {
    let (open, gate) = channel::<()>();
    let gate = Arc::new(Mutex::new(gate));
    let samples = from_fn(5, move |index, _| {
        if index < 4 {
            // It is open once its sender is gone.
            let gate = gate.lock().unwrap_or_else(PoisonError::into_inner);
            gate.recv().unwrap_err();
        }
        Ok(numbers(index))
    });
    let loader = DataLoader::builder(samples)
        .batch_size(2)
        .num_workers(5) // one for each sample
        .prefetch(3)
        .in_order(false)
        .pin_memory(&backend.device)
        .build::<Tensor<i32>>()
        .unwrap();
    let buffers = DeviceBuffers::new(&backend.device, 2).unwrap();
    let mut epoch = loader.epoch(0).prefetch_to_device(&buffers, 1);
    let last = epoch.next().unwrap().unwrap();
    assert_eq!(samples_of(&last), [4]);
    let first_address = address(backend, &last);
    drop((last, open));
    let mut rest: Vec<(u64, u64)> = Vec::new();
    for batch in epoch {
        let batch = batch.unwrap();
        let to = address(backend, &batch);
        rest.extend(samples_of(&batch).into_iter().map(|index| (index, to)));
    }
    // (Both may be sent before one of them is given out, so either may lie where the first one lay.)
    let [one, other] = [rest[0].1, rest[2].1];
    assert!(one != other && [one, other].contains(&first_address));
    rest.sort_unstable();
    assert!(rest.iter().map(|(index, _)| *index).eq(0..4));
}

/// The first batch that a worker sends waits here: it has its buffer then, and the program has not got it.
struct Gate {
    consumer: ThreadId,
    state: Mutex<AtGate>,
    changed: Condvar,
}

#[derive(Default)]
struct AtGate {
    first_sample: Option<u64>,
    is_open: bool,
}

impl Gate {
    fn pass(&self, first_sample: u64) {
        let mut state = self.state.lock().unwrap();
        if thread::current().id() == self.consumer || state.first_sample.is_some() {
            return;
        }
        state.first_sample = Some(first_sample);
        drop(self.changed.wait_while(state, |state| !state.is_open));
    }

    fn open(&self) {
        self.state.lock().unwrap().is_open = true;
        self.changed.notify_all();
    }
}

/// Lets the loader end, whatever became of the test.
struct Opens(Arc<Gate>);

impl Drop for Opens {
    fn drop(&mut self) {
        self.0.open();
    }
}

struct HesitantSample([i32; 40], Arc<Gate>);

impl Sample for HesitantSample {
    type Batch = Hesitant;
    type Plan = <[i32; 40] as Sample>::Plan;
    type Rest = Arc<Gate>;

    fn plan<'a>(
        samples: impl Iterator<Item = &'a Self> + Clone,
        layout: &mut Layout,
    ) -> Result<Self::Plan, CollateError> {
        Sample::plan(samples.map(|HesitantSample(numbers, _)| numbers), layout)
    }

    fn fill(self, plan: &Self::Plan, row: &mut Row<'_>) -> Result<Arc<Gate>, CollateError> {
        self.0.fill(plan, row)?;
        Ok(self.1)
    }

    fn finish(plan: Self::Plan, mut rest: Vec<Arc<Gate>>, filled: &mut Filled) -> Hesitant {
        let gate = rest.swap_remove(0);
        Hesitant(<[i32; 40]>::finish(plan, vec![(); 2], filled), gate)
    }
}

struct Hesitant(Tensor<i32>, Arc<Gate>);

impl Batch for Hesitant {
    type OnDevice = DeviceTensor<i32>;

    fn tensors(&self, visit: &mut Tensors<'_>) {
        visit.add(&self.0);
    }

    fn relocate(self, slab: &mut Relocation) -> Self {
        Hesitant(slab.tensor(self.0), self.1)
    }

    fn upload(self, upload: &mut Upload) -> DeviceTensor<i32> {
        let first_sample = self.0.as_slice()[0] as u64 / 1_000;
        let there = upload.tensor(self.0);
        self.1.pass(first_sample);
        there
    }
}

/// It has taken its buffer and does not arrive: all others arrive before it, in the other one.
fn a_batch_that_is_slow_to_be_sent_holds_one_buffer(backend: &Backend) {
    let gate = Arc::new(Gate {
        consumer: thread::current().id(),
        state: Mutex::default(),
        changed: Condvar::new(),
    });
    let way = Arc::clone(&gate);
    let samples = from_fn(20, move |index, _| {
        Ok(HesitantSample(numbers(index), Arc::clone(&way)))
    });
    let loader = DataLoader::builder(samples)
        .batch_size(2)
        .num_workers(3)
        .prefetch(3)
        .in_order(false)
        .pin_memory(&backend.device)
        .build()
        .unwrap();
    let _opens = Opens(Arc::clone(&gate));
    let buffers = DeviceBuffers::new(&backend.device, 2).unwrap();
    let mut found = Vec::new();
    for batch in loader.epoch(0).prefetch_to_device(&buffers, 1) {
        found.extend(samples_of(&batch.unwrap()));
        if found.len() == 18 {
            gate.open();
        }
    }
    // (It may be that the program sent them all.)
    if let Some(first_sample) = gate.state.lock().unwrap().first_sample {
        assert!(found[18..].iter().eq(&[first_sample, first_sample + 1]));
    }
    found.sort_unstable();
    assert!(found.into_iter().eq(0..20));
}

fn a_short_list_comes_first(backend: &Backend) {
    let lists = vec![vec![7], vec![1, 2, 3, 4], vec![5, 6], vec![0, 9, 8]];
    for workers in [0, 2] {
        let loader = DataLoader::builder(from_fn(10, |index, _| Ok(numbers(index))))
            .batch_sampler(lists.clone())
            .num_workers(workers)
            .pin_memory(&backend.device)
            .build::<Tensor<i32>>()
            .unwrap();
        let buffers = DeviceBuffers::new(&backend.device, 2).unwrap();
        for epoch in loader.epochs(0..2).prefetch_to_device(&buffers, 1) {
            let found: Vec<_> = epoch.map(|batch| samples_of(&batch.unwrap())).collect();
            assert_eq!(found, lists);
        }
    }
}

fn a_stream_goes_on_at_its_short_end(backend: &Backend) {
    let loader = DataLoader::iterable(iterable::from_fn(
        |_, _| Ok((0..23).map(|n| Ok(numbers(n)))),
    ))
    .batch_size(10)
    .num_workers(2)
    .pin_memory(&backend.device)
    .build::<Tensor<i32>>()
    .unwrap();
    let mut epoch = loader.epoch(0);
    assert_eq!(epoch.by_ref().take(2).count(), 2);
    let state = epoch.state();
    drop(epoch);
    let buffers = DeviceBuffers::new(&backend.device, 2).unwrap();
    let epochs = loader.resume(0..2, &state).unwrap();
    let found: Vec<u64> = epochs
        .prefetch_to_device(&buffers, 1)
        .flatten()
        .flat_map(|batch| samples_of(&batch.unwrap()))
        .collect();
    assert!(found.into_iter().eq((20..23).chain(0..23)));
}

/// Names beside the numbers: their batches do not travel in parts.
fn values_on_the_host_do_not_matter(backend: &Backend) {
    let samples = from_fn(23, |index, _| {
        Ok((numbers(index), Host(format!("sample {index}"))))
    });
    let loader = DataLoader::builder(samples)
        .batch_size(10)
        .num_workers(2)
        .pin_memory(&backend.device)
        .build::<(Tensor<i32>, Vec<String>)>()
        .unwrap();
    let buffers = DeviceBuffers::new(&backend.device, 2).unwrap();
    let epochs = loader.resume(0..2, &loader.state_at(0, 20)).unwrap();
    let mut found = Vec::new();
    for batch in epochs.prefetch_to_device(&buffers, 1).flatten() {
        let (rows, names) = batch.unwrap();
        let rows = samples_of(&rows);
        assert!(
            names
                .into_iter()
                .eq(rows.iter().map(|index| format!("sample {index}")))
        );
        found.extend(rows);
    }
    assert!(found.into_iter().eq((20..23).chain(0..23)));
}

fn buffers_go_with_their_last_holder(backend: &Backend) {
    let device = &backend.device;
    let loader = loader(backend, 2);
    let buffers = DeviceBuffers::new(device, 2).unwrap();
    assert_eq!(device.memory().device_held_bytes, 0);
    let mut epoch = loader.epoch(0).prefetch_to_device(&buffers, 1);
    let batch = epoch.next().unwrap().unwrap();
    epoch.next().unwrap().unwrap();
    drop(epoch);
    drop(buffers);
    drop(loader); // a worker may still have been sending
    assert!(device.memory().device_held_bytes > 0);
    check(&batch, 0);
    drop(batch);
    assert_eq!(device.memory().device_held_bytes, 0);
    device.release_device_memory().unwrap();
    assert_eq!(device.memory().device_bytes, 0);
}

fn an_epoch_that_is_left_leaves_its_buffers(backend: &Backend) {
    let loader = loader(backend, 3);
    let buffers = DeviceBuffers::new(&backend.device, 3).unwrap();
    for left in 0..11 {
        let mut epoch = loader.epoch(0).prefetch_to_device(&buffers, 2);
        for number in 0..left {
            check(&epoch.next().unwrap().unwrap(), number);
        }
        drop(epoch);
    }
    for (number, batch) in loader.epoch(1).prefetch_to_device(&buffers, 2).enumerate() {
        check(&batch.unwrap(), number);
    }
}

fn buffers_without_memory_say_so_and_go_on(backend: &Backend) {
    let device = &backend.device;
    let loader = loader(backend, 2);
    let buffers = DeviceBuffers::new(device, 2).unwrap();
    device.set_device_budget_bytes(16 << 10); // for one buffer
    let mut epoch = loader.epoch(0).prefetch_to_device(&buffers, 1);
    check(&epoch.next().unwrap().unwrap(), 0);
    assert!(matches!(
        epoch.next().unwrap(),
        Err(Error::DeviceBudget { .. })
    ));
    device.set_device_budget_bytes(64 << 10);
    for number in 2..11 {
        check(&epoch.next().unwrap().unwrap(), number);
    }
}
