//! Page-locked memory stands still after warm-up, whatever the batches' sizes and what is done with them.

use std::time::Duration;

use pinfeed::collate::Arena;
use pinfeed::sampler::{BatchSampler, Batches};
use pinfeed::{Batch, BoxError, DataLoader, Device, Tensor, from_fn};

use crate::support::{late, late_device, rng, watched};

/// Ten thousand batches that are sent, kept for a while, or dropped.
#[test]
fn ten_thousand_batches_need_no_more_than_the_first() {
    watched("ten_thousand_batches_need_no_more_than_the_first", |seed| {
        let device = Device::hostile(late(seed, Duration::from_micros(5))).unwrap();
        let loader = DataLoader::builder(from_fn(4_000, |index, _| Ok([index as u16; 40])))
            .batch_size(4)
            .num_workers(2)
            .prefetch(3)
            .pin_memory(&device)
            .build()
            .unwrap();
        let mut rng = rng(seed, 10);
        for epoch in 0..10 {
            let mut kept: Option<Tensor<u16>> = None;
            for (number, batch) in loader.epoch(epoch).enumerate() {
                let batch = batch.unwrap();
                assert_eq!(batch.as_slice()[40], 4 * number as u16 + 1);
                match rng.below(4) {
                    0 => kept = Some(batch),
                    1 => drop(batch),
                    _ => drop(batch.to_device(&device, rng.bool(0.9)).unwrap()),
                }
            }
            drop(kept);
            let memory = device.memory();
            // Three open batches, the consumer's, the one that it keeps, and one on its way.
            assert!(memory.slabs_made <= 6, "epoch {epoch}: {memory:?}");
            assert!(memory.pinned_bytes <= 6 * 4096, "epoch {epoch}: {memory:?}");
            assert_eq!((memory.slabs_missed, memory.leaked), (0, 0), "{memory:?}");
        }
    });
}

/// Batches that grow and shrink, in the arena or built elsewhere.
#[test]
fn batches_of_any_size_come_to_rest() {
    fn collate(
        samples: Vec<u64>,
        arena: &mut Arena,
    ) -> Result<(Tensor<u8>, Tensor<i64>), BoxError> {
        let number = samples[0] / 4;
        // From 1 to 40 kB and back.
        let size = 1_000 * (1 + (number % 80).min(79 - number % 80) as usize);
        let mut bytes = arena.zeros(&[size])?;
        bytes.as_mut_slice().ok_or("shared")?.fill(number as u8);
        let numbers: Vec<i64> = samples.iter().map(|&sample| sample as i64).collect();
        let numbers = match number % 3 {
            0 => Tensor::from(numbers),
            _ => arena.stack(&[Tensor::from(numbers)])?.reshape(&[4])?,
        };
        Ok((bytes, numbers))
    }

    watched("batches_of_any_size_come_to_rest", |seed| {
        for (max, by_copy) in [
            (None, false),
            (None, true),
            (Some(64 << 10), false),
            (Some(64 << 10), true),
        ] {
            let device = late_device(seed);
            let mut builder = DataLoader::builder((0..400u64).collect::<Vec<_>>())
                .batch_size(4)
                .num_workers(2)
                .pin_memory(&device)
                .pin_by_copy(by_copy);
            if let Some(bytes) = max {
                builder = builder.min_slab_bytes(bytes);
            }
            let loader = builder.collate_fn(collate).build().unwrap();
            let mut made = Vec::new();
            for epoch in 0..12 {
                for (number, batch) in loader.epoch(epoch).enumerate() {
                    let (bytes, numbers) = batch.unwrap();
                    assert!(bytes.is_pinned() && numbers.is_pinned());
                    assert!(bytes.as_slice().iter().all(|&byte| byte == number as u8));
                    assert_eq!(numbers.as_slice()[3], 4 * number as i64 + 3);
                    drop((bytes, numbers).to_device(&device, true).unwrap());
                }
                made.push(device.memory().slabs_made);
            }
            let context = format!("max {max:?}, by_copy {by_copy}: {made:?}");
            // The largest batch was seen in the first epoch; as many slabs as may be out at once are yet to reach it.
            assert!(made[11] - made[0] <= 5, "{context}");
            assert!(max.is_none() || made[11] <= 6, "{context}");
        }
    });
}

/// Batches of two loaders and downloads share the ring; none drives the others' slabs out for good.
#[test]
fn a_shared_ring_comes_to_rest() {
    watched("a_shared_ring_comes_to_rest", |seed| {
        let device = late_device(seed);
        let build = |len: usize| {
            DataLoader::builder(from_fn(64, move |index, _| Ok(vec![index as u8; len])))
                .batch_size(4)
                .num_workers(1)
                .pin_memory(&device)
                .build()
                .unwrap()
        };
        let (small, large) = (build(900), build(9_000));
        let mut made = Vec::new();
        for epoch in 0..12 {
            for (one, other) in small.epoch(epoch).zip(large.epoch(epoch)) {
                let one = one.unwrap().to_device(&device, true).unwrap();
                let other = other.unwrap().to_device(&device, true).unwrap();
                assert!(one.to_host(true).unwrap().wait().unwrap().is_pinned());
                assert!(other.to_host(true).unwrap().wait().unwrap().is_pinned());
            }
            made.push(device.memory().slabs_made);
        }
        // Five for each epoch and one for each download; a small one may have to give way to a large one, once or twice. After the first
        // epochs it has come to rest: which of them meet depends on the threads, so one or two may be made late.
        assert!(made[11] <= 3 * (5 + 5 + 2), "{made:?}");
        assert!(made[11] - made[5] <= 2, "{made:?}");
        let memory = device.memory();
        assert_eq!(memory.slabs_missed, 0, "{memory:?}");
    });
}

/// Epochs that are dropped early, or forgotten, give their share of the ring back, at the latest with their loader:
/// whoever comes after waits for their copies, rather than page-lock more.
#[test]
fn shares_come_back() {
    watched("shares_come_back", |seed| {
        let device = Device::hostile(late(seed, Duration::from_millis(2))).unwrap();
        for round in 0..20 {
            let loader = DataLoader::builder(from_fn(16, |index, _| Ok([index as u8; 900])))
                .batch_size(4)
                .num_workers(1)
                .prefetch(2)
                .pin_memory(&device)
                .build()
                .unwrap();
            let mut dropped = loader.epoch(0);
            drop(dropped.next());
            drop(dropped);
            std::mem::forget(loader.epoch(1));
            for batch in loader.epoch(2) {
                drop(batch.unwrap().to_device(&device, true).unwrap());
            }
            drop(loader);
            // Two epochs at once may have five each; what a worker still holds of the dropped one comes on top.
            let memory = device.memory();
            assert!(memory.slabs_made <= 12, "round {round}: {memory:?}");
        }
        // Behind this copy, all are done: nothing of the ring is out.
        let last = Tensor::from(vec![1u8]).to_device(&device, false).unwrap();
        drop(last);
        let memory = device.memory();
        assert_eq!(memory.pinned_bytes, memory.pinned_idle_bytes, "{memory:?}");
        assert_eq!(device.release_pinned(), memory.pinned_bytes);
        assert_eq!(device.memory().pinned_bytes, 0);
    });
}

/// Samples of which each batch has another number, from `first` to `last` of them.
struct Lists {
    first: u64,
    last: u64,
}

impl BatchSampler for Lists {
    fn batches(&self, _: u64) -> Batches {
        let lists = (self.first..=self.last).map(|count| (0..count).collect::<Vec<u64>>());
        lists.collect::<Vec<_>>().into()
    }
}

const ROW_BYTES: usize = 1024;

/// Batches that become larger and larger, as those of a curriculum do: slabs of few sizes are made for them, however many there are, and no
/// more of them than the budget has room for.
#[test]
fn batches_that_grow_slowly_take_few_slabs() {
    let (first, last) = (100, 700);
    // Each size is a quarter larger than the one before, apart from the first two.
    let sizes = 3.0 + (last as f64 / first as f64).ln() / 1.25f64.ln();
    let largest = last as usize * ROW_BYTES;
    for (workers, by_copy, slabs_in_budget) in [
        (0, false, None),
        (2, false, None),
        (2, true, None),
        (2, false, Some(20)),
        (2, false, Some(5)),
    ] {
        let context = format!("{workers} workers, by_copy {by_copy}, budget {slabs_in_budget:?}");
        let _watch = watch::on(context.clone());
        let device = Device::cpu();
        if let Some(slabs) = slabs_in_budget {
            device.set_pinned_budget_bytes(slabs * largest);
        }
        let loader = DataLoader::builder(from_fn(last, |index, _| Ok([index as u8; ROW_BYTES])))
            .batch_sampler(Lists { first, last })
            .num_workers(workers)
            .pin_memory(&device)
            .pin_by_copy(by_copy)
            .build()
            .unwrap();
        let mut most = 0;
        for batch in loader.epoch(0).prefetch_to_device(&device, 1) {
            batch.unwrap();
            most = most.max(device.memory().pinned_bytes);
        }
        let (memory, stats) = (device.memory(), loader.stats());
        assert!(most <= memory.pinned_budget_bytes, "{context}: {memory:?}");
        assert_eq!(stats.unpinned.count, 0, "{context}: {memory:?}");
        // Each of the slabs of an epoch is made anew for each size: seven, and those that are being made or are on their way home while the
        // next size comes. (If each batch had slabs of its own size, there would be six hundred.)
        let slabs = 10.0 * sizes;
        match slabs_in_budget {
            // Where there is no room for all slabs of a larger size, they are as large as batches.
            Some(5) => {}
            _ => assert!((memory.slabs_made as f64) < slabs, "{context}: {memory:?}"),
        }
    }
}

/// Where batches have one size, slabs have it, too, even if an epoch begins with the short rest of another, or ends with one.
#[test]
fn batches_of_one_size_take_not_a_byte_more() {
    // (Smaller batches would share slabs.)
    const WIDE: usize = 32 << 10;
    for workers in [0, 2] {
        let device = Device::cpu();
        let loader = DataLoader::builder(from_fn(90, |index, _| Ok([index as u8; WIDE])))
            .batch_size(20)
            .num_workers(workers)
            .pin_memory(&device)
            .build()
            .unwrap();
        let rest = loader.state_at(0, 80);
        for epoch in loader.resume(0..4, &rest).unwrap() {
            for batch in epoch.prefetch_to_device(&device, 1) {
                batch.unwrap();
            }
        }
        let memory = device.memory();
        // Some may still be as short as the rest: ten rows.
        let (full, short) = (20 * WIDE, 10 * WIDE);
        let is_exact = (0..=5).any(|shorts| {
            let (rest, is_less) = memory.pinned_bytes.overflowing_sub(shorts * short);
            !is_less && rest % full == 0 && rest / full + shorts <= 5
        });
        assert!(is_exact, "{memory:?}");
    }
}
