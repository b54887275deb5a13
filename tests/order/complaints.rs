//! What users of other loaders complained of, each with its thread: it must not happen here.

use std::collections::HashSet;

use pinfeed::loader::{LastBatch, LoaderState, World};
use pinfeed::{DataLoader, Dataset, Device, SampleRng, Tensor, from_fn};

const LEN: u64 = 60;

/// Each sample is its index, and what it draws.
fn samples() -> impl Dataset<Sample = (i64, i64)> {
    from_fn(LEN, |index, rng: &mut SampleRng| {
        Ok((index as i64, rng.range(0..1_000_000_000i64)))
    })
}

fn rows((indices, drawn): &(Tensor<i64>, Tensor<i64>)) -> Vec<(i64, i64)> {
    let indices = indices.as_slice().iter().copied();
    indices.zip(drawn.as_slice().iter().copied()).collect()
}

fn training(workers: usize) -> DataLoader<(Tensor<i64>, Tensor<i64>)> {
    let builder = DataLoader::builder(samples()).batch_size(7).shuffle(true);
    builder.num_workers(workers).build().unwrap()
}

/// tracel-ai/burn#3282: with more workers, the same order epoch after epoch. NVIDIA/DALI#4134, pytorch#5059: each epoch augments alike.
#[test]
fn epochs_differ_with_any_number_of_workers() {
    let mut orders = Vec::new();
    for workers in [1, 8] {
        let loader = training(workers);
        let epochs = (0..50).map(|_| {
            loader
                .into_iter()
                .flat_map(|batch| rows(&batch.unwrap()))
                .collect()
        });
        let epochs: Vec<Vec<(i64, i64)>> = epochs.collect();
        let distinct: HashSet<Vec<i64>> = epochs
            .iter()
            .map(|rows| rows.iter().map(|row| row.0).collect())
            .collect();
        assert_eq!(distinct.len(), 50);
        // Sample 5 is augmented in another way each time.
        let crops = epochs
            .iter()
            .flatten()
            .filter(|row| row.0 == 5)
            .map(|row| row.1);
        assert_eq!(crops.collect::<HashSet<_>>().len(), 50);
        orders.push(epochs);
    }
    assert_eq!(orders[0], orders[1]);
}

/// The same behind a cache, and after a resume: augmentation goes on, and does not begin again.
#[test]
fn augmentation_goes_on_behind_a_cache_and_after_a_resume() {
    let build = || {
        let plain = from_fn(LEN, |index, _| Ok(index as i64));
        let augmented = plain
            .cached(1 << 20)
            .map(|index, rng| Ok((index, rng.range(0..1_000_000_000i64))));
        DataLoader::builder(augmented)
            .batch_size(7)
            .shuffle(true)
            .num_workers(2)
            .build()
            .unwrap()
    };
    let loader = build();
    let mut seen = HashSet::new();
    let mut count = 0;
    let mut state = LoaderState::default();
    for epoch in loader.epochs(0..3) {
        let stops = if epoch.number() == 2 { 4 } else { usize::MAX };
        epoch.take(stops).for_each(|batch| {
            let rows = rows(&batch.unwrap());
            count += rows.len();
            seen.extend(rows);
        });
        state = loader.state();
    }
    for epoch in build().resume(0..4, &state).unwrap() {
        epoch.for_each(|batch| {
            let rows = rows(&batch.unwrap());
            count += rows.len();
            seen.extend(rows);
        });
    }
    assert_eq!((seen.len(), count), (4 * LEN as usize, 4 * LEN as usize));
}

/// NVIDIA/DALI#1581: an evaluation gives other results in each run. huggingface/datasets#7447, accelerate#2016: epochs after a resume
/// are shortened, or in another order.
#[test]
fn evaluations_and_later_epochs_repeat() {
    let evaluate = |workers, ranks| -> Vec<(i64, i64)> {
        let mut seen = Vec::new();
        for rank in 0..ranks {
            let loader = DataLoader::builder(samples())
                .batch_size(7)
                .last_batch(LastBatch::Fill)
                .num_workers(workers)
                .world(World::new(rank, ranks).unwrap())
                .build()
                .unwrap();
            for _ in 0..rank {
                loader.epoch(9).take(2).for_each(drop); // something else before
            }
            for batch in loader.epoch(0).with_info() {
                let (batch, info) = batch.unwrap();
                seen.extend_from_slice(&rows(&batch)[..info.real_rows()]);
            }
        }
        seen.sort_unstable();
        seen
    };
    let first = evaluate(0, 1);
    assert_eq!(first.len(), LEN as usize);
    for (workers, ranks) in [(8, 1), (1, 3), (3, 3), (2, 4)] {
        assert_eq!(evaluate(workers, ranks), first);
    }

    let whole = |number| {
        training(2)
            .epoch(number)
            .map(|batch| rows(&batch.unwrap()))
            .collect::<Vec<_>>()
            .concat()
    };
    let loader = training(2);
    let mut epoch = loader.epoch(1);
    epoch.nth(2).unwrap().unwrap();
    let state = epoch.state();
    let resumed = training(3);
    let later = resumed.resume(0..5, &state).unwrap().skip(1);
    for (number, epoch) in (2..5).zip(later) {
        let seen: Vec<_> = epoch.map(|batch| rows(&batch.unwrap())).collect();
        assert_eq!(seen.concat(), whole(number));
    }
}

/// mosaicml/streaming#617: it hangs when the second epoch begins, if ranks left the first at different batches.
#[test]
fn ranks_may_leave_an_epoch_anywhere() {
    let device = Device::cpu();
    let loaders: Vec<_> = (0..3)
        .map(|rank| {
            DataLoader::builder(samples())
                .batch_size(4)
                .shuffle(true)
                .num_workers(2)
                .pin_memory(&device)
                .world(World::new(rank, 3).unwrap())
                .build()
                .unwrap()
        })
        .collect();
    for (rank, loader) in loaders.iter().enumerate() {
        let mut epochs = loader.epochs(0..2).prefetch_to_device(&device, 2);
        let first = epochs.next().unwrap();
        first.take(rank + 1).for_each(|batch| drop(batch.unwrap()));
        assert_eq!(epochs.next().unwrap().count(), 5);
    }
}

/// mosaicml/streaming#417: a cache, or a budget, that is smaller than one item deadlocks.
#[test]
fn a_budget_below_one_batch_is_no_deadlock() {
    let device = Device::cpu();
    device.set_pinned_budget_bytes(100);
    let large = from_fn(20, |index, _| Ok(vec![index as u8; 1_000])).cached(999);
    let builder = DataLoader::builder(large)
        .batch_size(5)
        .num_workers(2)
        .pin_memory(&device);
    let loader = builder.build().unwrap();
    for epoch in loader.epochs(0..2).prefetch_to_device(&device, 1) {
        assert_eq!(epoch.filter(Result::is_ok).count(), 4);
    }
    assert_eq!(loader.stats().unpinned.count, 4);
    let strict = DataLoader::builder(from_fn(20, |index, _| Ok(vec![index as u8; 1_000])))
        .batch_size(5)
        .num_workers(2)
        .pin_memory(&device)
        .strict_pinning(true)
        .build()
        .unwrap();
    assert_eq!(strict.epoch(0).filter(Result::is_err).count(), 4);
}

/// huggingface/pytorch-image-models#2784: something is left over from each epoch.
#[test]
fn nothing_is_left_over_from_an_epoch() {
    // Where `prefetch` is not set, small batches share slabs, of which there are 35 at most, and device memory.
    for (prefetch, most_slabs, most_blocks) in [(Some(2), 6, 8), (None, 64, 64)] {
        let device = Device::cpu();
        let rows = from_fn(40, |index, _| Ok([index as f32; 256]));
        let mut builder = DataLoader::builder(rows).batch_size(8).num_workers(3);
        if let Some(prefetch) = prefetch {
            builder = builder.prefetch(prefetch);
        }
        let loader = builder.pin_memory(&device).build().unwrap();
        for (number, epoch) in loader
            .epochs(0..100)
            .prefetch_to_device(&device, 2)
            .enumerate()
        {
            // Some are left by break.
            let some = if number % 3 == 1 { 2 } else { usize::MAX };
            epoch.take(some).for_each(|batch| drop(batch.unwrap()));
            let memory = device.memory();
            let (slabs, blocks) = (memory.pinned_bytes >> 16, memory.device_bytes >> 16);
            assert!(
                slabs <= most_slabs && blocks <= most_blocks,
                "after {number} epochs, prefetch({prefetch:?}): {memory:?}"
            );
        }
    }
}

/// Iterating a large set runs out of memory (tensorflow#44176, mosaicml/streaming#264).
#[test]
fn a_million_millions_of_samples_are_begun_at_once() {
    let loader = DataLoader::builder(from_fn(1_000_000_000_000u64, |index, _| Ok(index as i64)))
        .batch_size(100)
        .shuffle(true)
        .num_workers(2)
        .build()
        .unwrap();
    let mut epoch = loader.epoch(3);
    assert_eq!(epoch.len(), 10_000_000_000);
    let mut seen = HashSet::new();
    for batch in epoch.by_ref().take(50) {
        seen.extend(batch.unwrap().to_vec());
    }
    assert_eq!(seen.len(), 5_000);
    let state = loader.state_at(3, 999_999_999_900);
    let last: Vec<_> = loader.resume(0..4, &state).unwrap().flatten().collect();
    assert_eq!(last.len(), 1);
}
