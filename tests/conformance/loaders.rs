//! Loaders on a device: every byte of every batch, whatever the path, the threads and the memory.

use std::time::Duration;

use pinfeed::collate::Arena;
use pinfeed::{Batch, BoxError, DataLoader, Dataset, Device, Error, Tensor, from_fn};

use crate::Test;
use crate::backend::Backend;

pub const TESTS: &[Test] = &[
    (
        "every_path_gives_the_same_bytes",
        every_path_gives_the_same_bytes,
    ),
    (
        "two_epochs_and_two_loaders_share_a_device",
        two_epochs_and_two_loaders_share_a_device,
    ),
    ("batches_outlive_their_loader", batches_outlive_their_loader),
    ("hoarded_batches_all_come", hoarded_batches_all_come),
    (
        "strict_pinning_reports_what_others_hide",
        strict_pinning_reports_what_others_hide,
    ),
    ("pinned_memory_does_not_grow", pinned_memory_does_not_grow),
    (
        "batches_far_ahead_take_little_memory",
        batches_far_ahead_take_little_memory,
    ),
    (
        "nothing_is_page_locked_after_warm_up",
        nothing_is_page_locked_after_warm_up,
    ),
    ("a_device_epoch_sends_ahead", a_device_epoch_sends_ahead),
    ("one_copy_for_a_slab", one_copy_for_a_slab),
    ("a_custom_collate_is_pinned", a_custom_collate_is_pinned),
    (
        "sending_ahead_stops_where_the_memory_ends",
        sending_ahead_stops_where_the_memory_ends,
    ),
    (
        "processing_is_measured_on_the_consumers_stream",
        processing_is_measured_on_the_consumers_stream,
    ),
    (
        "samples_as_large_as_an_image_fit_the_workers_stack",
        samples_as_large_as_an_image_fit_the_workers_stack,
    ),
];

type Images = (Tensor<u8>, Tensor<i64>);

/// Samples whose bytes follow from their index.
fn samples(len: u64) -> impl Dataset<Sample = (Tensor<u8>, i64)> {
    from_fn(len, |index, _| {
        Ok((
            Tensor::from_vec(vec![index as u8; 3_000], &[10, 300])?,
            index as i64,
        ))
    })
}

/// Checks a batch on the device, whose samples must be these.
fn check(
    there: (pinfeed::DeviceTensor<u8>, pinfeed::DeviceTensor<i64>),
    expected: impl Iterator<Item = u64>,
) {
    let labels = there.1.to_host(true).unwrap();
    let images = there.0.to_host(true).unwrap().wait().unwrap();
    let labels = labels.wait().unwrap();
    let expected: Vec<i64> = expected.map(|index| index as i64).collect();
    assert_eq!(labels.as_slice(), expected);
    for (row, label) in images.as_slice().chunks_exact(3_000).zip(labels.as_slice()) {
        assert!(
            row.iter().all(|byte| *byte == *label as u8),
            "sample {label}"
        );
    }
}

fn every_path_gives_the_same_bytes(backend: &Backend) {
    let device = &backend.device;
    for workers in [0, 1, 4] {
        for (pin, by_copy) in [(false, false), (true, false), (true, true)] {
            let mut builder = DataLoader::builder(samples(203))
                .batch_size(16)
                .num_workers(workers);
            if pin {
                builder = builder.pin_memory(device).pin_by_copy(by_copy);
            }
            let loader = builder.build().unwrap();
            assert_eq!(loader.len(), 13);
            for (number, batch) in loader.epoch(0).enumerate() {
                let batch: Images = batch.unwrap();
                assert_eq!(
                    batch.0.is_pinned(),
                    pin,
                    "workers {workers}, by_copy {by_copy}"
                );
                let start = number as u64 * 16;
                check(
                    batch.to_device(device, number % 2 == 0).unwrap(),
                    start..(start + 16).min(203),
                );
            }
        }
    }
}

fn two_epochs_and_two_loaders_share_a_device(backend: &Backend) {
    let device = &backend.device;
    let build = |workers| {
        DataLoader::builder(samples(120))
            .batch_size(10)
            .num_workers(workers)
            .pin_memory(device)
            .build()
            .unwrap()
    };
    let (train, validation): (DataLoader<Images>, DataLoader<Images>) = (build(3), build(2));
    let (mut one, mut other, mut third) = (train.epoch(0), train.epoch(1), validation.epoch(0));
    for number in 0..12u64 {
        for epoch in [&mut one, &mut other, &mut third] {
            let batch = epoch.next().unwrap().unwrap();
            check(
                batch.to_device(device, true).unwrap(),
                10 * number..10 * number + 10,
            );
        }
    }
    assert!(one.next().is_none() && other.next().is_none() && third.next().is_none());
}

fn batches_outlive_their_loader(backend: &Backend) {
    let device = &backend.device;
    let loader = DataLoader::builder(samples(30))
        .batch_size(10)
        .num_workers(2)
        .pin_memory(device)
        .build()
        .unwrap();
    let batches: Vec<Images> = loader.epoch(0).map(Result::unwrap).collect();
    drop(loader);
    let there: Vec<_> = batches
        .into_iter()
        .map(|batch| batch.to_device(device, true).unwrap())
        .collect();
    for (number, batch) in there.into_iter().enumerate() {
        check(batch, 10 * number as u64..10 * number as u64 + 10);
    }
}

/// Somebody who keeps every batch gets every batch: pinned as long as there are slabs, pageable then.
fn hoarded_batches_all_come(backend: &Backend) {
    for workers in [0, 3] {
        let mut builder = DataLoader::builder(samples(200))
            .batch_size(10)
            .num_workers(workers);
        if workers > 0 {
            builder = builder.prefetch(2);
        }
        let loader: DataLoader<Images> = builder.pin_memory(&backend.device).build().unwrap();
        let batches: Vec<Images> = loader.epoch(0).map(Result::unwrap).collect();
        assert_eq!(batches.len(), 20);
        let pinned = batches.iter().filter(|batch| batch.0.is_pinned()).count();
        assert!((1..20).contains(&pinned), "{pinned} of 20 are pinned");
        assert!(batches[0].0.is_pinned() && !batches[19].0.is_pinned());
        assert_eq!(loader.stats().unpinned.count, 20 - pinned as u64);
        for (number, (images, labels)) in batches.iter().enumerate() {
            assert_eq!(labels.as_slice()[0], 10 * number as i64);
            assert!(
                images
                    .as_slice()
                    .chunks_exact(3_000)
                    .zip(labels.as_slice())
                    .all(|(row, label)| { row.iter().all(|byte| *byte == *label as u8) })
            );
        }
    }
}

fn strict_pinning_reports_what_others_hide(backend: &Backend) {
    let loader: DataLoader<Images> = DataLoader::builder(samples(200))
        .batch_size(10)
        .num_workers(2)
        .prefetch(2) // or batches that take no time share slabs, and there are enough
        .pin_memory(&backend.device)
        .strict_pinning(true)
        .build()
        .unwrap();
    let (batches, errors): (Vec<_>, Vec<_>) = loader.epoch(0).partition(Result::is_ok);
    assert!(!batches.is_empty() && !errors.is_empty());
    assert_eq!(batches.len() + errors.len(), 20);
    assert!(
        errors
            .iter()
            .all(|error| matches!(error, Err(Error::Pinned { .. })))
    );
}

fn pinned_memory_does_not_grow(backend: &Backend) {
    let device = &backend.device;
    let epochs = if backend.is_cuda() { 160 } else { 16 };
    // Two open batches, the consumer's, one being copied and one on its way: five, from the first epoch to the last. If the program does not
    // say that two may be open, batches that take no time lie 16 to a slab: four such slabs may be ahead, and as many behind. Each of these 11
    // may have been made for a single batch before.
    for (prefetch, slabs, bytes) in [(Some(2), 5, 5 * 4096), (None, 2 * 11, 11 * 16 * 2048)] {
        let dataset = from_fn(512, |index, _| Ok([index as u32; 64]));
        let mut builder = DataLoader::builder(dataset)
            .batch_size(8)
            .num_workers(2)
            .pin_memory(device);
        if let Some(prefetch) = prefetch {
            builder = builder.prefetch(prefetch);
        }
        let loader = builder.build().unwrap();
        let made_before = device.memory().slabs_made;
        for epoch in 0..epochs {
            for batch in loader.epoch(epoch) {
                let there = batch.unwrap().to_device(device, true).unwrap();
                drop(there);
            }
            let memory = device.memory();
            assert!(
                memory.slabs_made - made_before <= slabs && memory.pinned_bytes <= bytes,
                "epoch {epoch}, prefetch {prefetch:?}: {memory:?}"
            );
            assert_eq!(memory.slabs_missed, 0);
        }
        // Behind this copy, all are done.
        drop(
            Tensor::from_vec(vec![1u8], &[1])
                .unwrap()
                .to_device(device, false)
                .unwrap(),
        );
        let idle = device.memory().pinned_idle_bytes;
        assert!(idle > 0);
        assert_eq!(device.release_pinned(), idle);
        assert_eq!(device.memory().pinned_bytes, 0);
    }
}

/// However many batches the program wants ahead, and although each of their slabs has room for several.
fn batches_far_ahead_take_little_memory(backend: &Backend) {
    let device = &backend.device;
    let dataset = from_fn(4_096, |index, _| Ok([index as u32; 64]));
    let loader = DataLoader::builder(dataset)
        .batch_size(8)
        .num_workers(1)
        .prefetch(256)
        .pin_memory(device)
        .build()
        .unwrap();
    for epoch in 0..3 {
        for batch in loader.epoch(epoch) {
            assert!(batch.unwrap().is_pinned());
        }
        let bytes = device.memory().pinned_bytes;
        assert!(bytes < 5 << 20, "{bytes} bytes");
    }
}

/// What an epoch may need is made in the first, also what it did not come to need.
fn nothing_is_page_locked_after_warm_up(backend: &Backend) {
    let device = &backend.device;
    let loader = DataLoader::builder(samples(400))
        .batch_size(8)
        .num_workers(3)
        .prefetch(3)
        .pin_memory(device)
        .build()
        .unwrap();
    let mut made = 0;
    for epoch in 0..8 {
        for (number, batch) in loader.epoch(epoch).enumerate() {
            let there = batch.unwrap().to_device(device, true).unwrap();
            // Now fast, now slow: now all slabs are under way, and now none.
            if (number as u64 / 7 + epoch).is_multiple_of(2) {
                std::thread::sleep(Duration::from_micros(300));
            }
            drop(there);
        }
        let memory = device.memory();
        assert!(epoch == 0 || memory.slabs_made == made, "{memory:?}");
        made = memory.slabs_made;
    }
    assert_eq!(made, 3 + 1 + 2);
}

fn a_device_epoch_sends_ahead(backend: &Backend) {
    let device = &backend.device;
    let loader = DataLoader::builder(samples(205))
        .batch_size(10)
        .num_workers(3)
        .pin_memory(device)
        .build()
        .unwrap();
    for depth in [0, 1, 3] {
        let epoch = loader.epoch(0).prefetch_to_device(device, depth);
        assert_eq!(epoch.len(), 21);
        for (number, batch) in epoch.enumerate() {
            let start = 10 * number as u64;
            check(batch.unwrap(), start..(start + 10).min(205));
        }
    }
    let stats = loader.stats();
    assert_eq!((stats.batches, stats.unpinned.count), (21, 0));
}

fn one_copy_for_a_slab(backend: &Backend) {
    let device = &backend.device;
    let loader = DataLoader::builder(samples(100))
        .batch_size(20)
        .num_workers(2)
        .pin_memory(device)
        .build()
        .unwrap();
    for batch in loader.epoch(0) {
        let batch: Images = batch.unwrap();
        drop(batch.to_device(device, false).unwrap());
    }
    let stats = loader.stats();
    assert_eq!(
        stats.transfers.count, 5,
        "both fields of a batch travel in one copy"
    );
    assert!(stats.transfers.bytes >= 100 * 3_008);
    assert!(!stats.transfers.total.is_zero());
    // Of the slab, one field alone is copied alone.
    for batch in loader.epoch(1) {
        let (images, labels): Images = batch.unwrap();
        let labels = labels.to_device(device, true).unwrap();
        assert!(images.is_pinned());
        drop(labels);
    }
    assert!(loader.stats().transfers.bytes < 100 * 3_008);
}

fn a_custom_collate_is_pinned(backend: &Backend) {
    fn collate(
        samples: Vec<i64>,
        arena: &mut Arena,
    ) -> Result<(Tensor<i64>, Tensor<f32>), BoxError> {
        let mut doubled = arena.zeros(&[samples.len()])?;
        let all = doubled.as_mut_slice().ok_or("a new tensor is not shared")?;
        all.iter_mut()
            .zip(&samples)
            .for_each(|(double, sample)| *double = 2 * sample);
        // Built elsewhere: the pin thread copies it.
        let halves = samples.iter().map(|sample| *sample as f32 / 2.0).collect();
        Ok((doubled, Tensor::from_vec(halves, &[samples.len()])?))
    }
    let device: &Device = &backend.device;
    for workers in [0, 2] {
        let samples: Vec<i64> = (0..100).collect();
        let loader = DataLoader::builder(samples)
            .batch_size(10)
            .num_workers(workers)
            .pin_memory(device);
        let loader = loader.collate_fn(collate).build().unwrap();
        for (number, batch) in loader.epoch(0).enumerate() {
            let (doubled, halves) = batch.unwrap();
            assert!(doubled.is_pinned() && halves.is_pinned());
            let (doubled, halves) = (doubled, halves).to_device(device, true).unwrap();
            let first = 10 * number as i64;
            let expected: Vec<i64> = (first..first + 10).map(|sample| 2 * sample).collect();
            assert_eq!(
                doubled.to_host(true).unwrap().wait().unwrap().as_slice(),
                expected
            );
            assert_eq!(
                halves.to_host(true).unwrap().wait().unwrap().as_slice()[9],
                (first + 9) as f32 / 2.0
            );
        }
    }
}

fn samples_as_large_as_an_image_fit_the_workers_stack(backend: &Backend) {
    let dataset = from_fn(6, |index, _| Ok([index as f32; 3 * 224 * 224]));
    let loader = DataLoader::builder(dataset)
        .batch_size(2)
        .num_workers(2)
        .pin_memory(&backend.device)
        .build()
        .unwrap();
    for (number, batch) in loader.epoch(0).enumerate() {
        let there = batch.unwrap().to_device(&backend.device, true).unwrap();
        let back = there.to_host(true).unwrap().wait().unwrap();
        assert!(
            back.as_slice()[..3 * 224 * 224]
                .iter()
                .all(|x| *x == 2.0 * number as f32)
        );
    }
}

fn processing_is_measured_on_the_consumers_stream(backend: &Backend) {
    let device = &backend.device;
    let stream = device.stream().unwrap();
    let loader = DataLoader::builder(from_fn(10, |index, _| Ok([index as u32; 1000])))
        .batch_size(2)
        .num_workers(1)
        .pin_memory(device)
        .build()
        .unwrap();
    for batch in loader.epoch(0) {
        let mut there = batch.unwrap().to_device(device, true).unwrap();
        let loan = there.on_mut(&stream).unwrap();
        backend.fill_slowly(&stream, loan.address(), 2000, 1, Duration::from_millis(10));
    }
    stream.synchronize().unwrap();
    let stats = loader.stats();
    assert_eq!(
        (
            stats.batches,
            stats.samples,
            stats.processing.count,
            stats.transfers.count
        ),
        (5, 10, 5, 5)
    );
    assert!(
        stats.processing.total >= Duration::from_millis(45),
        "five kernels of 10 ms: {stats:?}"
    );
    assert!(
        !stats.wall_time().is_zero() && !(stats.loading.total + stats.collating.total).is_zero()
    );
    let table = stats.to_string();
    assert!(
        table.contains("processing (on the device)")
            && table.lines().last().unwrap().ends_with('.'),
        "{table}"
    );
}

/// What a device epoch sends ahead does not fail for memory that is there when the batch is asked for.
fn sending_ahead_stops_where_the_memory_ends(backend: &Backend) {
    let device = &backend.device;
    let loader = DataLoader::builder(samples(100))
        .batch_size(10)
        .num_workers(2)
        .pin_memory(device)
        .build()
        .unwrap();
    device.set_device_budget_bytes(2 * 32 * 1024);
    let mut epoch = loader.epoch(0).prefetch_to_device(device, 3);
    for number in 0..10u64 {
        assert_eq!(epoch.len(), 10 - number as usize);
        let batch = epoch.next().unwrap().unwrap();
        check(batch, 10 * number..10 * number + 10);
    }
    assert!(epoch.next().is_none());
}
