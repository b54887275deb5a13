//! Epochs that follow each other: what each gives is what it gives alone, and the boundary between two is not seen.

use std::collections::HashSet;
use std::sync::mpsc;
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

use pinfeed::{
    Batch, DataLoader, Dataset, Device, DeviceTensor, Error, Tensor, TensorDataset, from_fn,
};

use crate::Test;
use crate::backend::Backend;

pub const TESTS: &[Test] = &[
    (
        "each_epoch_gives_what_it_gives_alone",
        each_epoch_gives_what_it_gives_alone,
    ),
    (
        "epochs_in_parts_give_the_same",
        epochs_in_parts_give_the_same,
    ),
    (
        "the_next_epoch_is_loaded_behind_the_last_batches",
        the_next_epoch_is_loaded_behind_the_last_batches,
    ),
    (
        "as_many_batches_are_ahead_as_prefetch_says",
        as_many_batches_are_ahead_as_prefetch_says,
    ),
    (
        "an_epoch_alone_loads_no_other",
        an_epoch_alone_loads_no_other,
    ),
    (
        "batches_of_the_next_epoch_are_sent_ahead",
        batches_of_the_next_epoch_are_sent_ahead,
    ),
    (
        "nothing_is_page_locked_at_a_boundary",
        nothing_is_page_locked_at_a_boundary,
    ),
    (
        "parts_lock_nothing_at_a_boundary",
        parts_lock_nothing_at_a_boundary,
    ),
    (
        "an_epoch_may_be_left_at_every_batch",
        an_epoch_may_be_left_at_every_batch,
    ),
    (
        "epochs_may_be_taken_out_together",
        epochs_may_be_taken_out_together,
    ),
    (
        "dropped_epochs_wait_for_nobody",
        dropped_epochs_wait_for_nobody,
    ),
    (
        "failures_at_the_boundary_take_their_place",
        failures_at_the_boundary_take_their_place,
    ),
    (
        "statistics_are_of_the_epoch_in_hand",
        statistics_are_of_the_epoch_in_hand,
    ),
];

const LEN: u64 = 47;
const ROW: usize = 500;

type Batches = (Tensor<u8>, Tensor<i64>, Tensor<u32>);
type Arrived = (DeviceTensor<u8>, DeviceTensor<i64>, DeviceTensor<u32>);

/// Samples that tell their index, and what they drew from their generator.
fn samples() -> impl Dataset<Sample = (Vec<u8>, i64, u32)> {
    from_fn(LEN, |index, rng| {
        Ok((vec![index as u8; ROW], index as i64, rng.next_u32()))
    })
}

struct How {
    workers: usize,
    prefetch: usize,
    pin: Option<bool>,
    batch_size: usize,
}

fn loader<D>(dataset: D, how: &How, device: &Device) -> DataLoader<Batches>
where
    D: Dataset<Sample = (Vec<u8>, i64, u32)>,
{
    let mut builder = DataLoader::builder(dataset)
        .batch_size(how.batch_size)
        .shuffle(true)
        .seed(3)
        .num_workers(how.workers);
    if how.workers > 0 {
        builder = builder.prefetch(how.prefetch);
    }
    if let Some(by_copy) = how.pin {
        builder = builder.pin_memory(device).pin_by_copy(by_copy);
    }
    builder.build().unwrap()
}

/// A batch's indices and draws; its bytes are checked.
fn contents((bytes, indices, draws): &Batches) -> (Vec<i64>, Vec<u32>) {
    for (row, index) in bytes.as_slice().chunks_exact(ROW).zip(indices.as_slice()) {
        assert!(row.iter().all(|byte| *byte == *index as u8), "{index}");
    }
    (indices.to_vec(), draws.to_vec())
}

fn back((bytes, indices, draws): &Arrived) -> Batches {
    let bytes = bytes.to_host(true).unwrap();
    let (indices, draws) = (indices.to_host(true).unwrap(), draws.to_host(true).unwrap());
    (
        bytes.wait().unwrap(),
        indices.wait().unwrap(),
        draws.wait().unwrap(),
    )
}

/// What an epoch gives, loaded without workers.
fn alone(number: u64, batch_size: usize) -> Vec<(Vec<i64>, Vec<u32>)> {
    let how = How {
        workers: 0,
        prefetch: 1,
        pin: None,
        batch_size,
    };
    let loader = loader(samples(), &how, &Device::cpu());
    let batches = loader.epoch(number).map(|batch| contents(&batch.unwrap()));
    batches.collect()
}

fn each_epoch_gives_what_it_gives_alone(backend: &Backend) {
    let device = &backend.device;
    let numbers = [3u64, 4, 5, 0, 5];
    // From epochs of one batch to epochs of many more than are loaded ahead.
    for (size, batch_size) in [5, 16, 100].into_iter().enumerate() {
        let expected: Vec<_> = numbers.map(|number| alone(number, batch_size)).into();
        for (crew, (workers, prefetch)) in [(0, 1), (1, 1), (3, 2), (2, 8)].into_iter().enumerate()
        {
            // Each way to pin meets each size, and each number of workers. All combinations would take a minute.
            let pin = [None, Some(false), Some(true)][(size + crew) % 3];
            let how = How {
                workers,
                prefetch,
                pin,
                batch_size,
            };
            let loader = loader(samples(), &how, device);
            let mut epochs = loader.epochs(numbers);
            for (number, expected) in numbers.iter().zip(&expected) {
                let mut epoch = epochs.next().unwrap();
                assert_eq!((epoch.number(), epoch.len()), (*number, expected.len()));
                for expected in expected {
                    let batch = epoch.next().unwrap().unwrap();
                    assert_eq!(batch.0.is_pinned(), pin.is_some());
                    assert_eq!(&contents(&batch), expected);
                }
                assert!(epoch.next().is_none());
            }
            assert!(epochs.next().is_none() && epochs.next().is_none());
            for depth in [0, 1, 3] {
                let mut epochs = loader.epochs(numbers).prefetch_to_device(device, depth);
                for expected in &expected {
                    let mut epoch = epochs.next().unwrap();
                    for (come, expected) in expected.iter().enumerate() {
                        assert_eq!(epoch.len(), self::alone_len(batch_size) - come);
                        let batch = epoch.next().unwrap().unwrap();
                        assert_eq!(&contents(&back(&batch)), expected);
                    }
                    assert!(epoch.next().is_none());
                }
                assert!(epochs.next().is_none());
            }
            // Each epoch sent by itself.
            for (epoch, expected) in loader.epochs(numbers).zip(&expected) {
                let batches = epoch.prefetch_to_device(device, 2);
                let batches: Vec<_> = batches
                    .map(|batch| contents(&back(&batch.unwrap())))
                    .collect();
                assert_eq!(&batches, expected);
            }
        }
    }
    assert_eq!(device.memory().leaked, 0);
}

fn alone_len(batch_size: usize) -> usize {
    LEN.div_ceil(batch_size as u64) as usize
}

/// A data set whose samples' size is known, so that its batches may be cut from the first epoch on; and one whose is not.
fn epochs_in_parts_give_the_same(backend: &Backend) {
    let device = &backend.device;
    device.cut_batches_at(6_000, 1_500);
    let bytes = (0..LEN).flat_map(|index| vec![index as u8; ROW]).collect();
    let bytes = Tensor::from_vec(bytes, &[LEN as usize, ROW]).unwrap();
    let indices = Tensor::from((0..LEN as i64).collect::<Vec<_>>());
    let draws = Tensor::<u32>::zeros(&[LEN as usize]);
    for known in [false, true] {
        for (workers, prefetch, batch_size) in
            [(0, 1, 20), (1, 2, 20), (3, 1, 11), (3, 4, 47), (2, 3, 12)]
        {
            for depth in [0, 1, 3] {
                let how = How {
                    workers,
                    prefetch,
                    pin: Some(false),
                    batch_size,
                };
                let rows = (bytes.view(), indices.view(), draws.view());
                let tensors = TensorDataset::new(rows).unwrap();
                let known_samples = tensors.map(|(bytes, index, draw), _| {
                    Ok((
                        bytes.as_slice().to_vec(),
                        index.as_slice()[0],
                        draw.as_slice()[0],
                    ))
                });
                let loader = match known {
                    true => loader(known_samples, &how, device),
                    false => loader(samples(), &how, device),
                };
                let mut epochs = loader.epochs(2..6).prefetch_to_device(device, depth);
                for number in 2..6 {
                    let epoch = epochs.next().unwrap();
                    let indices: Vec<_> = epoch
                        .map(|batch| contents(&back(&batch.unwrap())).0)
                        .collect();
                    let expected = alone(number, batch_size);
                    let expected: Vec<_> =
                        expected.into_iter().map(|(indices, _)| indices).collect();
                    assert_eq!(indices, expected, "{workers} workers, depth {depth}");
                    assert_eq!(loader.stats().unpinned.count, 0);
                }
            }
        }
    }
    assert_eq!(device.memory().leaked, 0);
}

/// How many samples were loaded, for who waits for that.
#[derive(Default)]
struct Count(Mutex<u64>, Condvar);

impl Count {
    fn one_more(&self) {
        *self.0.lock().unwrap() += 1;
        self.1.notify_all();
    }

    fn get(&self) -> u64 {
        *self.0.lock().unwrap()
    }

    /// Waits until so many were loaded.
    fn wait_for(&self, samples: u64) {
        let waited =
            self.1
                .wait_timeout_while(self.0.lock().unwrap(), Duration::from_secs(20), |loaded| {
                    *loaded < samples
                });
        let (loaded, _) = waited.unwrap();
        assert!(*loaded >= samples, "{loaded} samples of {samples}");
    }
}

/// 40 samples that are counted.
fn counted() -> (Arc<Count>, impl Dataset<Sample = (Vec<u8>, i64, u32)>) {
    let count = Arc::new(Count::default());
    let loaded = Arc::clone(&count);
    let dataset = from_fn(40, move |index, _| {
        loaded.one_more();
        Ok((vec![index as u8; ROW], index as i64, 0))
    });
    (count, dataset)
}

fn four_batches(pin: Option<bool>, prefetch: usize) -> How {
    How {
        workers: 2,
        prefetch,
        pin,
        batch_size: 10,
    }
}

/// With the last batch not yet asked for, samples of the next epoch are there; and no more than `prefetch` allows.
fn the_next_epoch_is_loaded_behind_the_last_batches(backend: &Backend) {
    for pin in [None, Some(false), Some(true)] {
        let (count, dataset) = counted();
        let loader = loader(dataset, &four_batches(pin, 2), &backend.device);
        let mut epochs = loader.epochs(0..2);
        let mut epoch = epochs.next().unwrap();
        for _ in 0..2 {
            drop(epoch.next().unwrap().unwrap());
        }
        count.wait_for(40);
        std::thread::sleep(Duration::from_millis(10));
        assert_eq!(count.get(), 40, "two batches are ahead");
        drop(epoch.next().unwrap().unwrap());
        count.wait_for(50);
        drop(epoch.next().unwrap().unwrap());
        count.wait_for(60);
        assert!(epoch.next().is_none());
        std::thread::sleep(Duration::from_millis(10));
        assert_eq!(count.get(), 60, "two batches are ahead");
        drop(epoch);
        assert_eq!(epochs.next().unwrap().count(), 4);
        assert_eq!(count.get(), 80);
    }
}

/// After each batch that the program takes, `prefetch` are ahead or on their way: not fewer, because it took some that were
/// ready at once, and not more.
fn as_many_batches_are_ahead_as_prefetch_says(backend: &Backend) {
    for pin in [None, Some(false), Some(true)] {
        let count = Arc::new(Count::default());
        let loaded = Arc::clone(&count);
        // Batches that take no time are taken several at once.
        let dataset = from_fn(30, move |index, _| {
            std::thread::sleep(Duration::from_millis(1));
            loaded.one_more();
            Ok((vec![index as u8; ROW], index as i64, 0))
        });
        let how = How {
            workers: 3,
            prefetch: 8,
            pin,
            batch_size: 1,
        };
        let loader = loader(dataset, &how, &backend.device);
        let mut epoch = loader.epoch(0);
        for taken in 1..=30 {
            drop(epoch.next().unwrap().unwrap());
            let ahead = u64::min(taken + 8, 30);
            count.wait_for(ahead);
            std::thread::sleep(Duration::from_millis(3));
            assert_eq!(count.get(), ahead, "{taken} taken");
        }
    }
}

fn an_epoch_alone_loads_no_other(backend: &Backend) {
    let (count, dataset) = counted();
    let loader = loader(dataset, &four_batches(Some(false), 2), &backend.device);
    for number in 0..2 {
        assert_eq!(loader.epoch(number).count(), 4);
        std::thread::sleep(Duration::from_millis(20));
        assert_eq!(count.get(), 40 * (number + 1));
    }
    // Nor is there one behind the last.
    assert_eq!(loader.epochs(2..3).map(Iterator::count).sum::<usize>(), 4);
    std::thread::sleep(Duration::from_millis(20));
    assert_eq!(count.get(), 120);
}

/// Two batches ahead on the device, two more on the host: behind the last batch of an epoch too, while the program is busy
/// with it. In parts as well, of which the slabs hold few.
fn batches_of_the_next_epoch_are_sent_ahead(backend: &Backend) {
    let device = &backend.device;
    // The last of them holds what five batches take and not what six do, and so the slabs of a smaller depth than this one.
    for (resident_bytes, least_part_bytes, ahead) in
        [(1 << 40, 1, 40), (6_000, 1_500, 20), (28_000, 1_500, 40)]
    {
        device.cut_batches_at(resident_bytes, least_part_bytes);
        // What is sent is what is ready when a batch is asked for, and nobody hears when it is: so a program that is in less
        // and less of a hurry finds at last that all of it was.
        let mut pause = Duration::from_millis(20);
        let mut loaded = vec![next_epoch_loaded(device, pause)];
        while *loaded.last().unwrap() < ahead {
            pause *= 2;
            assert!(
                pause < Duration::from_secs(4),
                "{resident_bytes} bytes stay: {loaded:?} of {ahead}, {:?}",
                device.memory()
            );
            loaded.push(next_epoch_loaded(device, pause));
        }
    }
}

/// How many samples of the next epoch are loaded when an epoch's last batch was given out, by a program that pauses that
/// long before and after each batch.
fn next_epoch_loaded(device: &Device, pause: Duration) -> u64 {
    let (count, dataset) = counted();
    let loader = loader(dataset, &four_batches(Some(false), 2), device);
    // Samples are known then.
    drop(loader.epoch(9).next());
    count.wait_for(10);
    std::thread::sleep(Duration::from_millis(20));
    let before = count.get();
    let mut epochs = loader.epochs(0..2).prefetch_to_device(device, 2);
    let mut epoch = epochs.next().unwrap();
    let mut batch = epoch.next().unwrap().unwrap();
    for _ in 2..=4 {
        std::thread::sleep(pause);
        batch = epoch.next().unwrap().unwrap();
    }
    assert_eq!(back(&batch).1.len(), 10);
    std::thread::sleep(pause);
    let loaded = count.get() - before - 40;
    assert_eq!(epoch.len(), 0);
    drop(epoch);
    let epoch = epochs.next().unwrap();
    let seen = epoch.flat_map(|batch| contents(&back(&batch.unwrap())).0);
    let mut seen: Vec<i64> = seen.collect();
    seen.sort_unstable();
    assert!(seen.into_iter().eq(0..40));
    loaded
}

/// Epochs of one batch and of many, now fast, now slow: an epoch and the next have no more slabs than one has.
fn nothing_is_page_locked_at_a_boundary(backend: &Backend) {
    let device = &backend.device;
    device.cut_batches_at(1 << 40, 1); // in one piece
    for (prefetch, batch_size) in [(2, 5), (3, 16), (2, 47), (1, 24)] {
        for by_epoch in [false, true] {
            device.release_pinned();
            let (made_before, missed) = (device.memory().slabs_made, device.memory().slabs_missed);
            // Slabs of one size, also if the last batch of an epoch is the first that asks: none is made twice.
            let loader = DataLoader::builder(samples())
                .batch_size(batch_size)
                .shuffle(true)
                .num_workers(3)
                .prefetch(prefetch)
                .pin_memory(device)
                .min_slab_bytes((batch_size + 1) * (ROW + 256))
                .build()
                .unwrap();
            // Of the batches ahead, the consumer's, one that is copied and one on its way.
            let most = prefetch as u64 + 3;
            let after = |seen: usize| {
                assert_eq!(seen, alone_len(batch_size));
                let memory = device.memory();
                let made = memory.slabs_made - made_before;
                assert!(
                    made <= most,
                    "{batch_size}, by epoch {by_epoch}: {memory:?}"
                );
            };
            let busy = |epoch: usize, number: usize| {
                if (number + epoch).is_multiple_of(3) {
                    std::thread::sleep(Duration::from_micros(200));
                }
            };
            if by_epoch {
                for (number, epoch) in loader
                    .epochs(0..)
                    .prefetch_to_device(device, 1)
                    .take(40)
                    .enumerate()
                {
                    let batches = epoch.enumerate();
                    let batches = batches.map(|(batch, there)| {
                        busy(number, batch);
                        drop(there.unwrap());
                    });
                    after(batches.count());
                }
            } else {
                for (number, epoch) in loader.epochs(0..40).enumerate() {
                    let batches = epoch.enumerate();
                    let batches = batches.map(|(batch, here)| {
                        let there = here.unwrap().to_device(device, true).unwrap();
                        busy(number, batch);
                        drop(there);
                    });
                    after(batches.count());
                }
            }
            assert_eq!(device.memory().slabs_missed, missed);
        }
    }
}

fn parts_lock_nothing_at_a_boundary(backend: &Backend) {
    let device = &backend.device;
    device.cut_batches_at(6_000, 1_500);
    let how = How {
        workers: 3,
        prefetch: 2,
        pin: Some(false),
        batch_size: 20,
    };
    let loader = loader(samples(), &how, device);
    // Of the first epoch, whose samples' size nobody knew, six. Of those that follow, the parts of two batches ahead and of
    // one that is on its way.
    let parts = (20 * (ROW + 12)).div_ceil(1_500);
    let most = 6 + 3 * parts as u64;
    for epoch in loader.epochs(0..30).prefetch_to_device(device, 2) {
        assert_eq!(epoch.map(Result::unwrap).count(), 3);
        let memory = device.memory();
        assert!(memory.slabs_made <= most, "{memory:?}");
        assert_eq!(loader.stats().unpinned.count, 0);
    }
}

fn an_epoch_may_be_left_at_every_batch(backend: &Backend) {
    let device = &backend.device;
    for workers in [0, 1, 3] {
        let how = How {
            workers,
            prefetch: 2,
            pin: Some(false),
            batch_size: 10,
        };
        let loader = loader(samples(), &how, device);
        let expected: Vec<_> = (0..18).map(|number| alone(number, 10)).collect();
        let mut epochs = loader.epochs(0..18);
        for (number, expected) in expected.iter().enumerate() {
            let mut epoch = epochs.next().unwrap();
            for expected in expected.iter().take(number % 6) {
                assert_eq!(&contents(&epoch.next().unwrap().unwrap()), expected);
            }
        }
        let mut epochs = loader.epochs(0..18).prefetch_to_device(device, 2);
        for (number, expected) in expected.iter().enumerate() {
            let mut epoch = epochs.next().unwrap();
            for expected in expected.iter().take(number % 6) {
                let batch = epoch.next().unwrap().unwrap();
                assert_eq!(&contents(&back(&batch)), expected);
            }
        }
    }
    assert_eq!(device.memory().slabs_missed, 0);
}

/// Several epochs in hand: none waits for another.
fn epochs_may_be_taken_out_together(backend: &Backend) {
    let device = &backend.device;
    let how = How {
        workers: 2,
        prefetch: 2,
        pin: Some(false),
        batch_size: 10,
    };
    let loader = loader(samples(), &how, device);
    let mut epochs: Vec<_> = loader.epochs(0..3).collect();
    for (number, epoch) in epochs.iter_mut().enumerate().rev() {
        let batches: Vec<_> = epoch.map(|batch| contents(&batch.unwrap())).collect();
        assert_eq!(batches, alone(number as u64, 10));
    }
    drop(epochs);
    // One is taken out when its first batches were loaded, and the one before has batches to come.
    let mut epochs = loader.epochs(0..2);
    let mut first = epochs.next().unwrap();
    let mut firsts: Vec<_> = first.by_ref().take(4).map(Result::unwrap).collect();
    std::thread::sleep(Duration::from_millis(20));
    let second: Vec<_> = epochs.next().unwrap().map(Result::unwrap).collect();
    firsts.extend(first.map(Result::unwrap));
    for (number, batches) in [firsts, second].iter().enumerate() {
        let batches: Vec<_> = batches.iter().map(contents).collect();
        assert_eq!(batches, alone(number as u64, 10));
    }
    // And when that one is at its end, but is still held.
    let mut epochs = loader.epochs(0..3);
    let mut epoch = epochs.next().unwrap();
    let mut batches = Vec::new();
    loop {
        match epoch.next() {
            Some(batch) => batches.push(contents(&batch.unwrap())),
            None => match epochs.next() {
                Some(next) => epoch = next,
                None => break,
            },
        }
    }
    let expected: Vec<_> = (0..3).flat_map(|number| alone(number, 10)).collect();
    assert_eq!(batches, expected);
}

/// The iterator, and an epoch, go while a worker is at a sample of the next epoch.
fn dropped_epochs_wait_for_nobody(backend: &Backend) {
    let device = &backend.device;
    for drops_iterator in [false, true] {
        let (entered, is_entered) = mpsc::channel();
        let (go, may_go) = mpsc::channel::<()>();
        let may_go = Mutex::new(may_go);
        let seen = Mutex::new((HashSet::new(), false));
        let dataset = from_fn(40, move |index, _| {
            let waits = {
                let (indices, waited) = &mut *seen.lock().unwrap();
                // What comes a second time is the next epoch's.
                let is_next = !indices.insert(index);
                is_next && !std::mem::replace(waited, *waited || is_next)
            };
            if waits {
                entered.send(())?;
                let _ = may_go.lock().unwrap().recv(); // until it is told to, or nobody can tell it
            }
            Ok((vec![index as u8; ROW], index as i64, 0))
        });
        let loader = loader(dataset, &four_batches(Some(false), 2), device);
        let mut epochs = loader.epochs(0..3);
        let mut epoch = epochs.next().unwrap();
        epoch
            .by_ref()
            .take(3)
            .for_each(|batch| drop(batch.unwrap()));
        is_entered.recv().unwrap();
        if drops_iterator {
            drop(epochs);
            assert_eq!(epoch.by_ref().map(Result::unwrap).count(), 1);
            drop(epoch);
        } else {
            drop(epoch);
            drop(epochs);
        }
        // The worker is still there; the other one does all the work.
        assert_eq!(loader.epoch(7).map(Result::unwrap).count(), 4);
        drop(go);
    }
}

/// The last sample of an epoch fails, and the first of the next panics, or the other way round.
fn failures_at_the_boundary_take_their_place(backend: &Backend) {
    let device = &backend.device;
    for (fails, panics) in [(LEN - 1, 0), (0, LEN - 1)] {
        for workers in [0, 1, 3] {
            let dataset = samples().map(move |sample, _| {
                if sample.1 as u64 == panics {
                    watch::provoked("this sample panics");
                }
                match sample.1 as u64 == fails {
                    true => Err("this sample fails".into()),
                    false => Ok(sample),
                }
            });
            let builder = DataLoader::builder(dataset)
                .batch_size(10)
                .num_workers(workers);
            let loader = builder.pin_memory(device).build().unwrap();
            let judge = |epoch: u64, number: usize, error: Option<&Error>| match (number, error) {
                (0 | 4, Some(Error::Sample(id, _))) => {
                    assert_eq!(
                        (id.index, id.epoch, id.batch),
                        (fails, epoch, number as u64)
                    );
                }
                (0 | 4, Some(Error::SamplePanicked(id, _))) => {
                    assert_eq!(
                        (id.index, id.epoch, id.batch),
                        (panics, epoch, number as u64)
                    );
                }
                (1..=3, None) => {}
                other => panic!("{other:?}"),
            };
            for epoch in loader.epochs(0..5) {
                let epoch_number = epoch.number();
                let mut seen = 0;
                for (number, batch) in epoch.enumerate() {
                    judge(epoch_number, number, batch.as_ref().err());
                    seen += 1;
                }
                assert_eq!(seen, 5);
            }
            for (epoch_number, epoch) in
                (0..).zip(loader.epochs(0..5).prefetch_to_device(device, 2))
            {
                let outcomes: Vec<_> = epoch.collect();
                assert_eq!(outcomes.len(), 5);
                for (number, batch) in outcomes.iter().enumerate() {
                    judge(epoch_number, number, batch.as_ref().err());
                }
            }
        }
    }
    assert_eq!(device.memory().leaked, 0);
}

fn statistics_are_of_the_epoch_in_hand(backend: &Backend) {
    let (count, dataset) = counted();
    let loader = loader(dataset, &four_batches(Some(false), 2), &backend.device);
    let mut epochs = loader.epochs(5..7);
    let mut epoch = epochs.next().unwrap();
    epoch.by_ref().for_each(|batch| drop(batch.unwrap()));
    count.wait_for(60);
    let stats = loader.stats();
    assert_eq!((stats.epoch, stats.batches, stats.samples), (5, 4, 40));
    drop(epoch);
    assert_eq!(loader.stats().epoch, 5);
    // What was loaded ahead is counted where it belongs.
    let mut epoch = epochs.next().unwrap();
    assert_eq!(loader.stats().epoch, 6);
    epoch.by_ref().for_each(|batch| drop(batch.unwrap()));
    let stats = loader.stats();
    assert_eq!((stats.epoch, stats.batches, stats.samples), (6, 4, 40));
}
