//! Large batches go to the device in parts: what comes is what would have come in one piece.

use std::time::Duration;

use pinfeed::collate::{Relocation, Tensors, Upload};
use pinfeed::error::CollateError;
use pinfeed::loader::OnError;
use pinfeed::sample::{Field, Filled, Layout, Row};
use pinfeed::sampler::{RandomSampler, Sampler};
use pinfeed::{
    Batch, DataLoader, Dataset, Device, DeviceTensor, Error, Sample, Tensor, TensorDataset, from_fn,
};

use crate::Test;
use crate::backend::Backend;

pub const TESTS: &[Test] = &[
    ("parts_make_up_their_batches", parts_make_up_their_batches),
    (
        "parts_are_cut_once_samples_were_seen",
        parts_are_cut_once_samples_were_seen,
    ),
    ("parts_use_their_slabs_again", parts_use_their_slabs_again),
    (
        "parts_are_sent_while_the_program_is_busy",
        parts_are_sent_while_the_program_is_busy,
    ),
    (
        "a_part_that_fails_fails_its_batch",
        a_part_that_fails_fails_its_batch,
    ),
    (
        "parts_of_unlike_samples_are_refused",
        parts_of_unlike_samples_are_refused,
    ),
    (
        "parts_of_another_kind_are_refused",
        parts_of_another_kind_are_refused,
    ),
    (
        "parts_wait_for_memory_that_was_given_back",
        parts_wait_for_memory_that_was_given_back,
    ),
    (
        "parts_stop_where_the_memory_ends",
        parts_stop_where_the_memory_ends,
    ),
    ("parts_end_with_their_epoch", parts_end_with_their_epoch),
    (
        "a_later_batch_takes_no_memory_from_an_earlier",
        a_later_batch_takes_no_memory_from_an_earlier,
    ),
    ("any_number_may_be_ahead", any_number_may_be_ahead),
    (
        "no_more_slabs_than_there_are_parts",
        no_more_slabs_than_there_are_parts,
    ),
    ("later_epochs_are_cut_alike", later_epochs_are_cut_alike),
    (
        "what_parts_are_unlike_is_told",
        what_parts_are_unlike_is_told,
    ),
    (
        "who_waits_for_memory_keeps_no_worker",
        who_waits_for_memory_keeps_no_worker,
    ),
    (
        "slabs_of_parts_are_not_made_as_large_as_batches",
        slabs_of_parts_are_not_made_as_large_as_batches,
    ),
    (
        "parts_leave_large_slabs_to_batches",
        parts_leave_large_slabs_to_batches,
    ),
    (
        "bad_samples_in_parts_are_replaced",
        bad_samples_in_parts_are_replaced,
    ),
    (
        "an_epoch_that_may_be_cut_locks_nothing_before",
        an_epoch_that_may_be_cut_locks_nothing_before,
    ),
];

const LEN: usize = 103;
const ROW: usize = 1_000;

fn byte(sample: u64, place: usize) -> u8 {
    (sample as usize * 29 + place * 3 + place / 256) as u8
}

fn image(sample: u64) -> Vec<u8> {
    (0..ROW).map(|place| byte(sample, place)).collect()
}

fn dataset() -> TensorDataset<(Tensor<u8>, Tensor<i64>)> {
    let images = (0..LEN as u64).flat_map(image).collect();
    let images = Tensor::from_vec(images, &[LEN, 10, ROW / 10]).unwrap();
    let labels = Tensor::from((0..LEN as i64).collect::<Vec<_>>());
    TensorDataset::new((images, labels)).unwrap()
}

fn loader<D>(
    dataset: D,
    batch_size: usize,
    workers: usize,
    device: &Device,
) -> DataLoader<<D::Sample as Sample>::Batch>
where
    D: Dataset<Sample: Sample<Batch: Batch>>,
{
    DataLoader::builder(dataset)
        .batch_size(batch_size)
        .num_workers(workers)
        .pin_memory(device)
        .build()
        .unwrap()
}

/// Parts of about 2 KB, four of which are filled in turn.
fn cut(backend: &Backend) {
    backend.device.cut_batches_at(8_000, 2_000);
}

fn check((images, labels): &(DeviceTensor<u8>, DeviceTensor<i64>), samples: &[u64]) {
    assert_eq!(images.shape()[..], [samples.len(), 10, ROW / 10]);
    let images = images.to_host(true).unwrap().wait().unwrap();
    let labels = labels.to_host(true).unwrap().wait().unwrap();
    assert_eq!(labels.len(), samples.len());
    let rows = images.as_slice().chunks_exact(ROW);
    for ((row, label), &sample) in rows.zip(labels.as_slice()).zip(samples) {
        assert_eq!(*label as u64, sample);
        assert!(row == image(sample), "sample {sample} is torn");
    }
}

fn order(epoch: u64) -> Vec<u64> {
    let sampler = RandomSampler::with_seed(LEN as u64, 5);
    let positions = 0..LEN as u64;
    positions
        .map(|position| sampler.index(epoch, position))
        .collect()
}

fn parts_make_up_their_batches(backend: &Backend) {
    cut(backend);
    let device = &backend.device;
    for (workers, batch_size, drop_last, depth) in [
        (0, 16, false, 1),
        (0, 40, true, 0),
        (1, 33, false, 2),
        (3, 7, false, 0),
        (3, 16, true, 1),
        (4, 50, false, 3),
        (4, LEN, false, 2),
        (2, 1_000, false, 1),
    ] {
        let loader = DataLoader::builder(dataset())
            .batch_size(batch_size)
            .drop_last(drop_last)
            .shuffle(true)
            .seed(5)
            .num_workers(workers)
            .pin_memory(device)
            .build()
            .unwrap();
        for epoch in 0..3 {
            let order = order(epoch);
            let mut expected: Vec<_> = order.chunks(batch_size).collect();
            if drop_last {
                expected.retain(|samples| samples.len() == batch_size);
            }
            let mut batches = loader.epoch(epoch).prefetch_to_device(device, depth);
            for (number, samples) in expected.iter().enumerate() {
                assert_eq!(batches.len(), expected.len() - number);
                check(&batches.next().unwrap().unwrap(), samples);
            }
            assert!(batches.next().is_none() && batches.len() == 0);
            let stats = loader.stats();
            assert_eq!(stats.batches, expected.len() as u64);
            assert_eq!(stats.unpinned.count, 0);
            // Images and labels of each part.
            let parts = expected
                .iter()
                .map(|samples| parts_of(samples.len(), batch_size));
            let parts: usize = parts.sum();
            assert_eq!(stats.transfers.count as usize, 2 * parts, "{batch_size}");
        }
    }
}

/// How many parts a batch of so many samples has, where a full one has `batch_size`.
fn parts_of(samples: usize, batch_size: usize) -> usize {
    let full = batch_size.min(LEN);
    let parts = (full * (ROW + 8)).div_ceil(2_000);
    samples.div_ceil(full.div_ceil(parts))
}

/// Where nobody knows how large samples are, the first epoch tells.
fn parts_are_cut_once_samples_were_seen(backend: &Backend) {
    cut(backend);
    let device = &backend.device;
    let dataset = from_fn(60, |index, _| Ok((image(index), index as i64)));
    let loader = loader(dataset, 20, 2, device);
    for epoch in 0..3 {
        for (number, batch) in loader
            .epoch(epoch)
            .prefetch_to_device(device, 1)
            .enumerate()
        {
            let (images, labels) = batch.unwrap();
            let images = images.to_host(true).unwrap().wait().unwrap();
            let labels = labels.to_host(true).unwrap().wait().unwrap();
            for (row, sample) in images.as_slice().chunks_exact(ROW).zip(labels.as_slice()) {
                assert!(row == image(*sample as u64));
            }
            assert_eq!(labels.as_slice()[0], 20 * number as i64);
        }
        // A batch in one piece takes one copy; ten parts of two rows each take two copies a part.
        let copies = if epoch == 0 { 1 } else { 2 * 10 };
        assert_eq!(loader.stats().transfers.count, 3 * copies, "epoch {epoch}");
    }
    // On the host, a batch is one piece.
    for batch in loader.epoch(3) {
        assert_eq!(batch.unwrap().0.shape()[..], [20, ROW]);
    }
}

fn parts_use_their_slabs_again(backend: &Backend) {
    cut(backend);
    let device = &backend.device;
    let loader = loader(dataset(), 50, 3, device);
    let made = |epochs: std::ops::Range<u64>| {
        for epoch in epochs {
            let batches = loader.epoch(epoch).prefetch_to_device(device, 2);
            batches.for_each(|batch| drop(batch.unwrap()));
        }
        device.memory().slabs_made
    };
    let warm = made(0..6);
    // The parts of two open batches, and of one that is on its way.
    assert!(warm <= 3 * parts_of(50, 50) as u64, "{warm}");
    assert_eq!(made(6..16), warm);
    assert_eq!(device.memory().leaked, 0);
}

/// The program gets one batch and does something else: meanwhile the next ones arrive.
fn parts_are_sent_while_the_program_is_busy(backend: &Backend) {
    cut(backend);
    let device = &backend.device;
    let loader = loader(dataset(), 30, 2, device);
    let mut epoch = loader.epoch(0).prefetch_to_device(device, 2);
    let first = epoch.next().unwrap().unwrap();
    let mut waited = Duration::ZERO;
    // Three batches of 15 parts each, of images and of labels: far more than the slabs hold.
    while loader.stats().transfers.count < 3 * 2 * 15 {
        assert!(waited < Duration::from_secs(20), "{}", loader.stats());
        std::thread::sleep(Duration::from_millis(1));
        waited += Duration::from_millis(1);
    }
    std::thread::sleep(Duration::from_millis(5));
    assert_eq!(loader.stats().transfers.count, 3 * 2 * 15, "and not more");
    let all: Vec<u64> = (0..LEN as u64).collect();
    let mut expected = all.chunks(30);
    check(&first, expected.next().unwrap());
    for (batch, samples) in epoch.zip(expected) {
        check(&batch.unwrap(), samples);
    }
}

fn a_part_that_fails_fails_its_batch(backend: &Backend) {
    cut(backend);
    let device = &backend.device;
    for workers in [0, 3] {
        // Batch 1 fails in two of its parts, and in one of them a sample panics.
        let dataset = dataset().map(|sample, _| match sample.1.as_slice()[0] {
            47 => Err("not this one".into()),
            55 => watch::provoked("nor this one"),
            _ => Ok((sample.0.view(), sample.1)),
        });
        let loader = loader(dataset, 30, workers, device);
        for epoch in 0..3 {
            let outcomes: Vec<_> = loader.epoch(epoch).prefetch_to_device(device, 2).collect();
            assert_eq!(outcomes.len(), 4);
            assert_eq!(loader.stats().batches, 3);
            for (number, outcome) in outcomes.iter().enumerate() {
                match (number, outcome) {
                    (1, Err(Error::Sample(id, _))) => {
                        assert_eq!((id.index, id.row, id.batch, id.epoch), (47, 17, 1, epoch));
                    }
                    (1, _) => panic!("batch 1 is an error"),
                    (_, Ok(batch)) => {
                        let first = 30 * number as u64;
                        let samples: Vec<u64> = (first..LEN as u64).take(30).collect();
                        check(batch, &samples);
                    }
                    (_, Err(error)) => panic!("{error}"),
                }
            }
        }
    }
    assert_eq!(device.memory().leaked, 0);
}

/// Samples of another shape are refused, also where each part by itself would do.
fn parts_of_unlike_samples_are_refused(backend: &Backend) {
    cut(backend);
    let device = &backend.device;
    let dataset = from_fn(60, |index, _| {
        let shape = if index < 50 { [20, 50] } else { [50, 20] };
        Ok(Tensor::from_vec(vec![index as u8; 1_000], &shape)?)
    });
    let loader = loader(dataset, 20, 1, device);
    for epoch in 0..3 {
        let outcomes: Vec<_> = loader.epoch(epoch).prefetch_to_device(device, 1).collect();
        assert!(outcomes[0].is_ok() && outcomes[1].is_ok());
        let Err(Error::Collate(misfit)) = &outcomes[2] else {
            panic!("{:?}", outcomes[2]);
        };
        // The first part that came told the shape.
        let planned_from = misfit.planned_from.as_ref().unwrap();
        let (found, expected) = (&misfit.sample, planned_from);
        assert_ne!(found.index < 50, expected.index < 50);
        assert_eq!(found.row as u64, found.index - 40);
        assert_eq!(expected.row as u64, expected.index - 40);
        let reason = misfit.source.to_string();
        let shape = if found.index < 50 { [20, 50] } else { [50, 20] };
        let its_shape = format!("its shape is {shape:?}");
        assert!(reason.contains(&its_shape), "{reason}");
    }
}

/// A sample that claims to be dense and is not: batches of samples 30 to 39 are of another kind.
struct Liar<const KIND: u8>(u8);

/// A batch of any number of tensors, of two element types.
struct Anything {
    bytes: Vec<Tensor<u8>>,
    signed: Vec<Tensor<i8>>,
}

impl<const KIND: u8> Sample for Liar<KIND> {
    type Batch = Anything;
    type Plan = Field<u8>;
    type Rest = ();
    const DENSE: bool = true;

    fn plan<'a>(
        _: impl Iterator<Item = &'a Self> + Clone,
        layout: &mut Layout,
    ) -> Result<Field<u8>, CollateError> {
        layout.field(&[100])
    }

    fn fill(self, plan: &Field<u8>, row: &mut Row<'_>) -> Result<(), CollateError> {
        row.slice_mut(plan)?.fill(self.0);
        Ok(())
    }

    fn finish(plan: Field<u8>, _: Vec<()>, filled: &mut Filled) -> Anything {
        let honest: Tensor<u8> = filled.take(plan);
        let (rows, first) = (honest.shape()[0], honest.as_slice()[0]);
        let mut batch = Anything {
            bytes: vec![honest],
            signed: Vec::new(),
        };
        if !(30..40).contains(&first) {
            return batch;
        }
        let zeros = Tensor::<u8>::zeros;
        match KIND {
            0 => batch.bytes.clear(),
            1 => batch.bytes.push(zeros(&[rows, 100])),
            2 => batch.bytes = vec![zeros(&[rows, 100_000])],
            3 => batch.bytes = vec![zeros(&[1_000 * rows, 100])],
            4 => batch.bytes = vec![zeros(&[1, 100])],
            5 => batch.bytes = vec![zeros(&[])],
            _ => {
                batch.bytes.clear();
                batch.signed.push(Tensor::zeros(&[rows, 100]));
            }
        }
        batch
    }
}

impl Batch for Anything {
    type OnDevice = (Vec<DeviceTensor<u8>>, Vec<DeviceTensor<i8>>);

    fn tensors(&self, visit: &mut Tensors<'_>) {
        self.bytes.iter().for_each(|tensor| visit.add(tensor));
        self.signed.iter().for_each(|tensor| visit.add(tensor));
    }

    fn relocate(self, slab: &mut Relocation) -> Self {
        let bytes = self.bytes.into_iter().map(|tensor| slab.tensor(tensor));
        Anything {
            bytes: bytes.collect(),
            signed: self
                .signed
                .into_iter()
                .map(|tensor| slab.tensor(tensor))
                .collect(),
        }
    }

    fn upload(self, upload: &mut Upload) -> Self::OnDevice {
        let bytes = self.bytes.into_iter().map(|tensor| upload.tensor(tensor));
        let bytes = bytes.collect();
        (
            bytes,
            self.signed
                .into_iter()
                .map(|tensor| upload.tensor(tensor))
                .collect(),
        )
    }
}

/// Parts that do not fit together are an error of their batch, in every build, and write nowhere.
fn parts_of_another_kind_are_refused(backend: &Backend) {
    fn refused<const KIND: u8>(backend: &Backend, expected: &str) {
        let device = &backend.device;
        for workers in [0, 2] {
            let dataset = from_fn(60, |index, _| Ok(Liar::<KIND>(index as u8)));
            let loader = loader(dataset, 20, workers, device);
            // The first epoch finds out how large samples are, and its batches are whole.
            loader
                .epoch(0)
                .prefetch_to_device(device, 1)
                .for_each(|batch| drop(batch.unwrap()));
            for epoch in 1..3 {
                let outcomes: Vec<_> = loader.epoch(epoch).prefetch_to_device(device, 1).collect();
                assert_eq!(outcomes.len(), 3);
                for (number, outcome) in outcomes.into_iter().enumerate() {
                    match (number, outcome) {
                        (1, Err(Error::Collate(misfit))) => {
                            let reason = misfit.source.to_string();
                            assert!(reason.contains(expected), "{KIND}: {reason}");
                            assert_eq!((misfit.sample.epoch, misfit.sample.batch), (epoch, 1));
                        }
                        (0 | 2, Ok((bytes, _))) => {
                            let bytes = bytes[0].to_host(true).unwrap().wait().unwrap();
                            assert_eq!(bytes.shape()[..], [20, 100]);
                            for (row, bytes) in bytes.as_slice().chunks_exact(100).enumerate() {
                                assert_eq!(*bytes, [(20 * number + row) as u8; 100]);
                            }
                        }
                        (_, outcome) => panic!("batch {number}, kind {KIND}: {:?}", outcome.err()),
                    }
                }
            }
        }
        assert_eq!(device.memory().leaked, 0);
    }
    backend.device.cut_batches_at(4_000, 500); // parts of five rows
    refused::<0>(backend, "tensors, and that of the samples before has");
    refused::<1>(backend, "tensors, and that of the samples before has");
    refused::<2>(backend, "shape is [");
    refused::<3>(backend, "rows, of");
    refused::<4>(backend, "rows, of");
    refused::<5>(backend, "scalar");
    refused::<6>(backend, "its elements are");
}

/// The budget holds two batches, and kernels take their time: parts wait for them, and nothing fails.
fn parts_wait_for_memory_that_was_given_back(backend: &Backend) {
    cut(backend);
    let device = &backend.device;
    let stream = device.stream().unwrap();
    let loader = loader(dataset(), 20, 3, device);
    device.set_device_budget_bytes(2 * 21_000);
    for epoch in 0..3 {
        let mut seen = 0;
        for batch in loader.epoch(epoch).prefetch_to_device(device, 3) {
            let (mut images, labels) = batch.unwrap();
            let labels = labels.to_host(true).unwrap().wait().unwrap();
            assert_eq!(labels.as_slice()[0], 20 * seen);
            let loan = images.on_mut(&stream).unwrap();
            let pause = Duration::from_millis(3);
            backend.fill_slowly(&stream, loan.address(), 5_000, 7, pause);
            seen += 1;
        }
        assert_eq!(seen, 6);
    }
    assert!(device.memory().device_bytes <= 2 * 21_000);
}

/// The program holds all device memory: what is asked for is an error, and what is not is no error ahead of time.
fn parts_stop_where_the_memory_ends(backend: &Backend) {
    cut(backend);
    let device = &backend.device;
    let loader = loader(dataset(), 20, 2, device);
    device.set_device_budget_bytes(2 * 21_000);
    let mut epoch = loader.epoch(0).prefetch_to_device(device, 4);
    let mut held = vec![
        epoch.next().unwrap().unwrap(),
        epoch.next().unwrap().unwrap(),
    ];
    let error = epoch.next().unwrap().unwrap_err();
    assert!(matches!(error, Error::DeviceBudget { .. }), "{error}");
    held.clear();
    let rest: Vec<_> = epoch.by_ref().take(1).collect();
    let samples: Vec<u64> = (60..80).collect();
    check(rest[0].as_ref().unwrap(), &samples);
    drop(rest);
    assert_eq!(epoch.len(), 2);
    assert!(epoch.all(|batch| batch.is_ok()));
}

/// Epochs end early, with parts on their way; the memory of all of them comes back.
fn parts_end_with_their_epoch(backend: &Backend) {
    cut(backend);
    let device = &backend.device;
    let loader = loader(dataset(), 25, 3, device);
    for epoch in 0..40 {
        let mut batches = loader
            .epoch(epoch)
            .prefetch_to_device(device, epoch as usize % 4);
        let taken: Vec<_> = batches.by_ref().take(epoch as usize % 3).collect();
        drop(batches);
        let samples: Vec<u64> = (0..25).collect();
        if let Some(Ok(batch)) = taken.first() {
            check(batch, &samples);
        }
    }
    drop(loader);
    device.release_device_memory().unwrap();
    device.release_pinned();
    let memory = device.memory();
    assert_eq!((memory.device_bytes, memory.leaked), (0, 0), "{memory:?}");
}

/// The samples of batch 1 come later than those of batch 2, and the device has memory for one batch at a time.
fn a_later_batch_takes_no_memory_from_an_earlier(backend: &Backend) {
    cut(backend);
    let device = &backend.device;
    let dataset = dataset().map(|sample, _| {
        if (4..8).contains(&sample.1.as_slice()[0]) {
            std::thread::sleep(Duration::from_millis(30));
        }
        Ok((sample.0.view(), sample.1))
    });
    let loader = loader(dataset, 4, 4, device);
    drop(loader.epoch(0).prefetch_to_device(device, 1).next());
    device.release_device_memory().unwrap();
    device.set_device_budget_bytes(5_000);
    for epoch in 1..4 {
        let mut batches = loader.epoch(epoch).prefetch_to_device(device, 3);
        let samples: Vec<u64> = (0..LEN as u64).collect();
        for samples in samples.chunks(4) {
            let batch = batches.next().unwrap();
            check(&batch.unwrap(), samples);
        }
    }
}

fn any_number_may_be_ahead(backend: &Backend) {
    cut(backend);
    let device = &backend.device;
    let loader = loader(dataset(), 20, 2, device);
    let all: Vec<u64> = (0..LEN as u64).collect();
    let batches = loader.epoch(0).prefetch_to_device(device, usize::MAX);
    for (batch, samples) in batches.zip(all.chunks(20)) {
        check(&batch.unwrap(), samples);
    }
}

/// Loading is far from copying, so more slabs are of use; but not more than there are parts.
fn no_more_slabs_than_there_are_parts(backend: &Backend) {
    cut(backend);
    let device = &backend.device;
    let dataset = dataset().map(|sample, _| {
        std::thread::sleep(Duration::from_micros(100));
        Ok((sample.0.view(), sample.1))
    });
    let loader = DataLoader::builder(dataset)
        .batch_size(20)
        .num_workers(2)
        .prefetch(100)
        .pin_memory(device)
        .build()
        .unwrap();
    for epoch in 0..2 {
        let mut batches = loader.epoch(epoch).prefetch_to_device(device, 1);
        for batch in &mut batches {
            drop(batch.unwrap());
        }
        std::thread::sleep(Duration::from_millis(50));
    }
    let parts = 5 * parts_of(20, 20) + parts_of(3, 20);
    let memory = device.memory();
    assert!(memory.slabs_made <= parts as u64, "{memory:?}");
}

/// How large samples are does not depend on the parts that they were in.
fn later_epochs_are_cut_alike(backend: &Backend) {
    cut(backend);
    let device = &backend.device;
    let dataset = from_fn(101, |index, _| {
        Ok((
            vec![index as u8; 90],
            index as u8,
            index as u16,
            index as i64,
        ))
    });
    let loader = loader(dataset, 100, 2, device);
    let mut transfers = Vec::new();
    for epoch in 0..6 {
        let batches = loader.epoch(epoch).prefetch_to_device(device, 1);
        batches.for_each(|batch| drop(batch.unwrap()));
        transfers.push(loader.stats().transfers.count);
    }
    // 101 bytes a sample: six parts of 17 rows, and the one of the last batch; four fields each.
    assert_eq!(transfers[1..], [4 * 7; 5], "{transfers:?}");
}

/// The first part comes last, most often, and is unlike the others.
fn what_parts_are_unlike_is_told(backend: &Backend) {
    cut(backend);
    let device = &backend.device;
    let dataset = from_fn(20, |index, _| {
        if index < 2 {
            std::thread::sleep(Duration::from_millis(50));
        }
        let shape = if index < 2 { [20, 50] } else { [50, 20] };
        Ok(Tensor::from_vec(vec![index as u8; 1_000], &shape)?)
    });
    let loader = loader(dataset, 20, 3, device);
    let _ = loader.epoch(0).prefetch_to_device(device, 1).next();
    for epoch in 1..3 {
        let Err(Error::Collate(misfit)) = loader
            .epoch(epoch)
            .prefetch_to_device(device, 1)
            .next()
            .unwrap()
        else {
            panic!("the samples are not alike");
        };
        let planned_from = misfit.planned_from.as_ref().unwrap();
        let reason = misfit.to_string();
        let (found, expected) = (misfit.sample.index, planned_from.index);
        assert_ne!(found < 2, expected < 2, "{reason}");
        assert_eq!(planned_from.row as u64, planned_from.index);
    }
}

/// Two epochs of one loader: while one waits for device memory behind a kernel, the other goes on.
fn who_waits_for_memory_keeps_no_worker(backend: &Backend) {
    cut(backend);
    let device = &backend.device;
    let stream = device.stream().unwrap();
    let loader = loader(dataset(), 20, 1, device);
    device.set_device_budget_bytes(21_000);
    let mut there = loader.epoch(0).prefetch_to_device(device, 1);
    let (mut images, _) = there.next().unwrap().unwrap();
    let loan = images.on_mut(&stream).unwrap();
    let pause = Duration::from_millis(600);
    backend.fill_slowly(&stream, loan.address(), 5_000, 7, pause);
    drop(loan);
    drop(images);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let samples: Vec<u64> = (20..40).collect();
            check(&there.next().unwrap().unwrap(), &samples);
        });
        std::thread::sleep(Duration::from_millis(50));
        let start = std::time::Instant::now();
        assert_eq!(loader.epoch(1).map(Result::unwrap).count(), 6);
        let took = start.elapsed();
        assert!(took < pause / 2, "{took:?}");
    });
}

/// An epoch whose batches come in one piece, beside one whose batches are cut.
fn slabs_of_parts_are_not_made_as_large_as_batches(backend: &Backend) {
    let device = &backend.device;
    // Parts of 20 KB, of batches of 1 MB.
    device.cut_batches_at(120_000, 20_000);
    let dataset = from_fn(4_000, |index, _| {
        std::thread::sleep(Duration::from_micros(20));
        Ok(vec![index as u8; 10_000])
    });
    let loader = loader(dataset, 100, 2, device);
    let mut whole = loader.epoch(0);
    drop(whole.next().unwrap().unwrap());
    for epoch in 1..3 {
        let mut batches = loader.epoch(epoch).prefetch_to_device(device, 1);
        drop(batches.next().unwrap().unwrap());
        drop(batches.next().unwrap().unwrap());
        std::thread::sleep(Duration::from_millis(100));
    }
    // Six slabs of batches, and three batches in parts.
    let memory = device.memory();
    assert!(memory.pinned_bytes <= 12 << 20, "{memory:?}");
}

/// Two loaders on one device, of which one cuts: page-locked memory stands still all the same.
fn parts_leave_large_slabs_to_batches(backend: &Backend) {
    let device = &backend.device;
    // Parts of 80 KB, of batches of 4 MB.
    device.cut_batches_at(480_000, 80_000);
    let build = || {
        let dataset = from_fn(1_000, |index, _| {
            std::thread::sleep(Duration::from_micros(100));
            Ok(vec![index as u8; 40_000])
        });
        loader(dataset, 100, 1, device)
    };
    let (cut, whole) = (build(), build());
    cut.epoch(0)
        .prefetch_to_device(device, 1)
        .take(1)
        .for_each(drop);
    let mut pinned = Vec::new();
    for epoch in 1..8 {
        let mut parts = cut.epoch(epoch).prefetch_to_device(device, 1);
        for batch in whole.epoch(epoch) {
            drop(batch.unwrap().to_device(device, true).unwrap());
            drop(parts.next());
        }
        pinned.push(device.memory().pinned_bytes >> 20);
    }
    // Five whole batches for each loader (the first epoch of the one that cuts is not), and parts that make up three.
    assert!(pinned[6] <= (5 + 5 + 3) * 4, "{pinned:?} MiB");
    assert_eq!(pinned[6], pinned[4], "{pinned:?} MiB");
}

/// Until it is known whether an epoch's batches go to the device in parts, nobody makes slabs for it, of either size; then
/// each way has its own.
fn an_epoch_that_may_be_cut_locks_nothing_before(backend: &Backend) {
    cut(backend);
    let device = &backend.device;
    for workers in [0, 2] {
        let loader = loader(dataset(), 20, workers, device);
        for batch in loader.epoch(0) {
            assert!(batch.unwrap().0.is_pinned());
        }
        for on_device in [false, true] {
            device.release_pinned();
            let mut epoch = loader.epoch(1);
            // Who makes slabs ahead looks about.
            device.set_pinned_budget_bytes(1 << 28);
            std::thread::sleep(Duration::from_millis(20));
            assert_eq!(device.memory().pinned_bytes, 0, "{workers} workers");
            if on_device {
                check(
                    &epoch.prefetch_to_device(device, 1).next().unwrap().unwrap(),
                    &(0..20).collect::<Vec<u64>>(),
                );
            } else {
                assert!(epoch.next().unwrap().unwrap().0.is_pinned());
                assert!(epoch.all(|batch| batch.unwrap().0.is_pinned()));
            }
        }
        assert_eq!(loader.stats().unpinned.count, 0);
    }
}

/// Another sample takes the row, in whatever part; and where samples are left out, batches do not travel in parts.
fn bad_samples_in_parts_are_replaced(backend: &Backend) {
    cut(backend);
    let is_bad = |index: u64| index % 17 == 3;
    for on_error in [
        OnError::Replace { at_most: 100 },
        OnError::Skip { at_most: 100 },
    ] {
        let samples = from_fn(LEN as u64, move |index, _| match is_bad(index) {
            true => Err("it is broken".into()),
            false => Ok((
                Tensor::from_vec(image(index), &[10, ROW / 10])?,
                index as i64,
            )),
        });
        let loader = DataLoader::builder(samples)
            .batch_size(20)
            .num_workers(3)
            .pin_memory(&backend.device)
            .on_error(on_error)
            .build()
            .unwrap();
        // The first epoch finds out how large samples are, and the others travel in parts.
        for epoch in 0..3 {
            let mut rows = 0;
            for batch in loader
                .epoch(epoch)
                .prefetch_to_device(&backend.device, 2)
                .with_info()
            {
                let (batch, info) = batch.unwrap();
                let (first, indices) = (info.position(), info.indices());
                check(&batch, &indices);
                rows += indices.len();
                assert_eq!(indices.len(), info.rows());
                if let OnError::Replace { .. } = on_error {
                    for (index, position) in indices.iter().zip(first..) {
                        assert!(!is_bad(*index) && (is_bad(position) || *index == position));
                    }
                }
            }
            let stats = loader.stats();
            match on_error {
                OnError::Skip { .. } => assert_eq!((rows, stats.bad.skipped), (LEN - 6, 6)),
                _ => assert!(rows == LEN && stats.bad.replaced >= 6, "{stats:?}"),
            }
        }
    }
}
