//! Slabs that are made when the loader is built.

use std::time::{Duration, Instant};

use pinfeed::dataset::TensorDataset;
use pinfeed::{Batch, BoxError, DataLoader, Dataset, Device, SampleRng, Tensor, from_fn};

use crate::Test;
use crate::backend::Backend;

pub const TESTS: &[Test] = &[
    (
        "slabs_are_made_when_the_loader_is_built",
        slabs_are_made_when_the_loader_is_built,
    ),
    (
        "no_slabs_are_made_early_that_may_be_of_no_use",
        no_slabs_are_made_early_that_may_be_of_no_use,
    ),
    (
        "slabs_are_made_early_of_min_slab_bytes",
        slabs_are_made_early_of_min_slab_bytes,
    ),
    (
        "no_more_slabs_are_made_early_than_the_budget_has_room_for",
        no_more_slabs_are_made_early_than_the_budget_has_room_for,
    ),
    (
        "loaders_that_take_turns_have_the_same_early_slabs",
        loaders_that_take_turns_have_the_same_early_slabs,
    ),
    (
        "what_is_given_back_is_not_made_again",
        what_is_given_back_is_not_made_again,
    ),
    (
        "a_loader_that_is_dropped_at_once_leaves_idle_slabs_at_most",
        a_loader_that_is_dropped_at_once_leaves_idle_slabs_at_most,
    ),
    (
        "a_size_that_is_not_true_costs_memory_only",
        a_size_that_is_not_true_costs_memory_only,
    ),
];

const LEN: usize = 100;
const ROW: usize = 300;
const PAGE: usize = 4096;

/// Its samples' size is known.
fn dataset() -> TensorDataset<(Tensor<u8>, Tensor<i64>)> {
    let rows = (0..LEN * ROW).map(|at| (at / ROW) as u8).collect();
    let rows = Tensor::from_vec(rows, &[LEN, ROW]).unwrap();
    let labels = Tensor::from((0..LEN as i64).collect::<Vec<_>>());
    TensorDataset::new((rows, labels)).unwrap()
}

/// Its batches are small, and so travel whole.
fn loader(batch_size: usize, device: &Device) -> DataLoader<(Tensor<u8>, Tensor<i64>)> {
    device.cut_batches_at(1 << 30, 1 << 30);
    loader_of(batch_size, device)
}

fn loader_of(batch_size: usize, device: &Device) -> DataLoader<(Tensor<u8>, Tensor<i64>)> {
    let builder = DataLoader::builder(dataset()).batch_size(batch_size);
    let builder = builder.num_workers(2).prefetch(2);
    builder.pin_memory(device).build().unwrap()
}

/// Waits until there are so many. (The pin thread makes them, and tells nobody.)
fn wait_for(device: &Device, slabs: u64) {
    let end = Instant::now() + Duration::from_secs(20);
    while device.memory().slabs_made < slabs {
        assert!(Instant::now() < end, "{:?}", device.memory());
        std::thread::sleep(Duration::from_millis(1));
    }
}

fn check(batch: &(Tensor<u8>, Tensor<i64>), batch_size: usize, number: usize) {
    let samples = (number * batch_size..LEN.min((number + 1) * batch_size)).collect::<Vec<_>>();
    assert!(batch.0.is_pinned());
    for (row, &sample) in batch.0.as_slice().chunks_exact(ROW).zip(&samples) {
        assert!(row.iter().all(|&byte| byte == sample as u8));
    }
    assert!(
        batch
            .1
            .as_slice()
            .iter()
            .map(|&label| label as usize)
            .eq(samples)
    );
}

/// As many as the first epoch needs: neither it nor a later one makes another.
fn slabs_are_made_when_the_loader_is_built(backend: &Backend) {
    let device = &backend.device;
    // Of ten batches two open, the consumer's, one being copied, one on its way; of one batch no more than two.
    for (batch_size, slabs) in [(10, 5), (100, 2)] {
        let before = device.memory().slabs_made;
        let loader = loader(batch_size, device);
        wait_for(device, before + slabs);
        for epoch in 0..3 {
            for (number, batch) in loader.epoch(epoch).enumerate() {
                let batch = batch.unwrap();
                check(&batch, batch_size, number);
                batch.to_device(device, true).unwrap();
            }
        }
        let memory = device.memory();
        assert_eq!(memory.slabs_made, before + slabs, "{memory:?}");
        assert_eq!(memory.slabs_missed, 0);
        drop(loader);
        // Behind this copy, all are done.
        let last = Tensor::from_vec(vec![1u8], &[1]).unwrap();
        drop(last.to_device(device, false).unwrap());
        device.release_pinned();
        assert_eq!(device.memory().pinned_bytes, 0);
    }
}

/// Whether they are for batches or for parts of them is not known before the program says where its batches go.
fn no_slabs_are_made_early_that_may_be_of_no_use(backend: &Backend) {
    let device = &backend.device;
    device.cut_batches_at(8_000, 2_000);
    for epoch in 0..2 {
        let loader = loader_of(50, device);
        std::thread::sleep(Duration::from_millis(5));
        let made = device.memory().slabs_made;
        assert!(epoch > 0 || made == 0, "{made}");
        for (number, batch) in loader.epoch(0).enumerate() {
            check(&batch.unwrap(), 50, number);
        }
        let memory = device.memory();
        assert!(memory.slabs_made <= 4, "{memory:?}");
    }
}

/// Nothing but the option tells the size.
fn slabs_are_made_early_of_min_slab_bytes(backend: &Backend) {
    let device = &backend.device;
    let samples = from_fn(60, |index, _| Ok(Tensor::from(vec![index as u8; 100])));
    let builder = DataLoader::builder(samples)
        .batch_size(10)
        .prefetch(2) // no runs of batches, which share larger slabs
        .min_slab_bytes(3 * PAGE);
    let loader = builder.num_workers(1).pin_memory(device).build().unwrap();
    wait_for(device, 5);
    for batch in loader.epochs(0..2).flatten() {
        batch.unwrap().to_device(device, true).unwrap();
    }
    let memory = device.memory();
    assert_eq!((memory.slabs_made, memory.pinned_bytes), (5, 5 * 3 * PAGE));
}

fn no_more_slabs_are_made_early_than_the_budget_has_room_for(backend: &Backend) {
    let device = &backend.device;
    device.set_pinned_budget_bytes(5 * PAGE);
    let loader = loader(10, device); // a page and a half, with room for alignment
    wait_for(device, 2);
    for (number, batch) in loader.epoch(0).enumerate() {
        check(&batch.unwrap(), 10, number);
    }
    let memory = device.memory();
    assert!(memory.pinned_bytes <= 5 * PAGE, "{memory:?}");
    assert_eq!(memory.slabs_missed, 0);
}

/// A training epoch and an evaluation, one after the other.
fn loaders_that_take_turns_have_the_same_early_slabs(backend: &Backend) {
    let device = &backend.device;
    let loaders = [10, 10].map(|batch_size| loader(batch_size, device));
    for epoch in 0..3 {
        for loader in &loaders {
            for (number, batch) in loader.epoch(epoch).enumerate() {
                check(&batch.unwrap(), 10, number);
            }
        }
    }
    let memory = device.memory();
    assert_eq!(memory.slabs_made, 5, "{memory:?}");
}

fn what_is_given_back_is_not_made_again(backend: &Backend) {
    let device = &backend.device;
    let loader = loader(10, device);
    wait_for(device, 5);
    let end = Instant::now() + Duration::from_secs(10);
    loop {
        device.release_pinned();
        // The pin thread is told of news, which is none.
        device.set_pinned_budget_bytes(100 * PAGE);
        std::thread::sleep(Duration::from_millis(20));
        if device.memory().pinned_bytes == 0 {
            break;
        }
        // (It may have been about to make the last one.)
        assert!(Instant::now() < end, "{:?}", device.memory());
    }
    drop(loader);
}

fn a_loader_that_is_dropped_at_once_leaves_idle_slabs_at_most(backend: &Backend) {
    let device = &backend.device;
    for round in 0..20 {
        let loader = loader(10, device);
        if round % 2 == 0 {
            drop(loader.epoch(0).next());
        }
        drop(loader);
        let memory = device.memory();
        assert!(memory.slabs_made <= 5, "{memory:?}");
        assert_eq!(memory.pinned_idle_bytes, memory.pinned_bytes);
    }
    device.release_pinned();
    assert_eq!(device.memory().pinned_bytes, 0);
}

/// Says that its samples have other sizes than they have.
struct Liar(usize);

impl Dataset for Liar {
    type Sample = Tensor<u8>;

    fn len(&self) -> u64 {
        40
    }

    fn get(&self, index: u64, _: &mut SampleRng) -> Result<Tensor<u8>, BoxError> {
        Ok(Tensor::from(vec![index as u8; 2_000]))
    }

    fn sample_bytes(&self) -> Option<usize> {
        Some(self.0)
    }
}

fn a_size_that_is_not_true_costs_memory_only(backend: &Backend) {
    let device = &backend.device;
    for told in [1, 20_000, usize::MAX / 4, usize::MAX] {
        let before = device.memory().slabs_made;
        let builder = DataLoader::builder(Liar(told)).batch_size(4).num_workers(2);
        let builder = builder.prefetch(2).pin_memory(device).strict_pinning(true);
        let loader = builder.build().unwrap();
        for epoch in 0..8 {
            for (number, batch) in loader.epoch(epoch).enumerate() {
                let batch = batch.unwrap();
                assert_eq!(batch.as_slice()[0] as usize, 4 * number);
            }
        }
        // Those of the wrong size are replaced, one by one.
        let memory = device.memory();
        assert!(memory.slabs_made <= before + 2 * 5, "{told}: {memory:?}");
    }
}
