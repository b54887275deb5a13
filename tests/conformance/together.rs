//! Small batches that are ready at the same time are sent together. Each is itself all the same: its rows, its errors, its end.

use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

use pinfeed::collate::{Arena, Relocation, Tensors, Upload};
use pinfeed::error::CollateError;
use pinfeed::sample::{Field, Filled, Layout, Row};
use pinfeed::{
    Batch, DataLoader, Dataset, Device, DeviceTensor, Error, Sample, Tensor, TensorDataset, from_fn,
};

use crate::Test;
use crate::backend::Backend;

pub const TESTS: &[Test] = &[
    (
        "batches_that_are_sent_together_are_themselves",
        batches_that_are_sent_together_are_themselves,
    ),
    (
        "a_batch_of_those_sent_together_is_kept",
        a_batch_of_those_sent_together_is_kept,
    ),
    (
        "batches_sent_together_are_read_on_several_streams",
        batches_sent_together_are_read_on_several_streams,
    ),
    (
        "there_is_no_memory_to_send_them_together",
        there_is_no_memory_to_send_them_together,
    ),
    (
        "one_of_those_sent_together_panics",
        one_of_those_sent_together_panics,
    ),
    (
        "depth_batches_travel_while_the_program_is_busy",
        depth_batches_travel_while_the_program_is_busy,
    ),
    (
        "what_was_sent_together_is_left",
        what_was_sent_together_is_left,
    ),
];

type Rows = (Tensor<f32>, Tensor<i64>);
type There = (DeviceTensor<f32>, DeviceTensor<i64>);
type Contents = (Vec<f32>, Vec<i64>);

const ROWS: usize = 1_200;
const BATCH: usize = 8;

fn table() -> TensorDataset<Rows> {
    let x = (0..ROWS * 5).map(|x| x as f32).collect();
    let y: Vec<i64> = (0..ROWS as i64).collect();
    let x = Tensor::from_vec(x, &[ROWS, 5]).unwrap();
    TensorDataset::new((x, Tensor::from(y))).unwrap()
}

fn loader<D>(table: D, device: &Device, workers: usize) -> DataLoader<Rows>
where
    D: Dataset,
    D::Sample: Sample<Batch = Rows>,
{
    let builder = DataLoader::builder(table).batch_size(BATCH).shuffle(true);
    let builder = builder.num_workers(workers).pin_memory(device);
    builder.build().unwrap()
}

/// Of a table in host memory, and of the same on the device.
fn loaders(device: &Device, workers: usize) -> [DataLoader<Rows>; 2] {
    let there = table().to_device(device).unwrap();
    [
        loader(table(), device, workers),
        loader(there, device, workers),
    ]
}

fn expected(epoch: u64) -> Vec<Contents> {
    let builder = DataLoader::builder(table()).batch_size(BATCH).shuffle(true);
    let loader = builder.num_workers(0).build::<Rows>().unwrap();
    let batches = loader.epoch(epoch);
    batches.map(|batch| contents(&batch.unwrap())).collect()
}

fn contents((x, y): &Rows) -> Contents {
    (x.to_vec(), y.to_vec())
}

fn fetched((x, y): &There) -> Contents {
    let (x, y) = (x.to_host(true).unwrap(), y.to_host(true).unwrap());
    contents(&(x.wait().unwrap(), y.wait().unwrap()))
}

/// A pause now and then, in which workers get ahead, so that batches are ready at the same time.
fn pause(number: usize) {
    if number % 37 == 5 {
        std::thread::sleep(Duration::from_millis(2));
    }
}

#[track_caller]
fn check_all_back(device: &Device) {
    let memory = device.memory();
    assert_eq!((memory.device_held_bytes, memory.leaked), (0, 0));
}

/// With any depth, in this epoch and in the next.
fn batches_that_are_sent_together_are_themselves(backend: &Backend) {
    let expected = [expected(0), expected(1)];
    for workers in [0, 1, 3] {
        for loader in loaders(&backend.device, workers) {
            for depth in [1, 40] {
                for epoch in loader
                    .epochs(0..2)
                    .prefetch_to_device(&backend.device, depth)
                {
                    let of_epoch = &expected[epoch.number() as usize];
                    assert_eq!(epoch.len(), of_epoch.len());
                    for (number, batch) in epoch.enumerate() {
                        pause(number);
                        let batch = fetched(&batch.unwrap());
                        assert!(batch == of_epoch[number], "batch {number}");
                    }
                }
            }
            assert_eq!(loader.stats().unpinned.count, 0);
        }
    }
}

/// Its memory is that of others, too: nobody writes it while one of them lives, and all of it comes back.
fn a_batch_of_those_sent_together_is_kept(backend: &Backend) {
    let expected = expected(0);
    let here = loader(table(), &backend.device, 2);
    let mut kept: Vec<(usize, There)> = Vec::new();
    let mut parts: Vec<(usize, DeviceTensor<i64>)> = Vec::new();
    for (number, batch) in here
        .epoch(0)
        .prefetch_to_device(&backend.device, 4)
        .enumerate()
    {
        pause(number);
        let batch = batch.unwrap();
        match number % 23 {
            7 => kept.push((number, batch)),
            11 => parts.push((number, batch.1)),
            _ => {}
        }
    }
    for (number, batch) in &kept {
        assert!(fetched(batch) == expected[*number], "batch {number}");
    }
    for (number, part) in &parts {
        let part = part.to_host(true).unwrap().wait().unwrap();
        assert!(part.to_vec() == expected[*number].1, "batch {number}");
    }
    drop((kept, parts, here));
    check_all_back(&backend.device);
}

/// Each stream waits for the copy of all, whichever of the batches it reads first; and the memory is free when all have been read.
fn batches_sent_together_are_read_on_several_streams(backend: &Backend) {
    let device = &backend.device;
    let streams: Vec<_> = (0..3).map(|_| device.stream().unwrap()).collect();
    let late = Duration::from_millis(1);
    for loader in loaders(device, 2) {
        let expected = expected(0);
        let mut sums: Vec<DeviceTensor<i64>> = Vec::new();
        for (number, batch) in loader.epoch(0).prefetch_to_device(device, 40).enumerate() {
            let batch = batch.unwrap();
            if !number.is_multiple_of(11) {
                pause(number);
                continue; // dropped unread, while others of the same memory are read
            }
            // A kernel that is late reads it; the loop goes on, and the batch is dropped.
            let stream = &streams[number % 3];
            let mut sum = Tensor::from(vec![0i64]).to_device(device, true).unwrap();
            {
                let read = batch.1.on(stream).unwrap();
                let written = sum.on_mut(stream).unwrap();
                backend.sum_slowly(stream, read.address(), 2 * BATCH, written.address(), late);
            }
            sums.push(sum);
        }
        for (sum, expected) in sums.iter().zip(expected.iter().step_by(11)) {
            let sum = sum.to_host(true).unwrap().wait().unwrap();
            let expected: i64 = expected.1.iter().sum(); // of small numbers: the upper words are 0
            assert_eq!(sum.to_vec(), [expected]);
        }
    }
}

/// What has no room together has room one by one; and what the program holds is an error only of the batch that finds no room.
fn there_is_no_memory_to_send_them_together(backend: &Backend) {
    let expected = expected(0);
    let device = &backend.device;
    let before = device.memory().device_budget_bytes;
    device.set_device_budget_bytes(2 * 512);
    for depth in [2, 40] {
        let here = loader(table(), device, 2);
        for (number, batch) in here.epoch(0).prefetch_to_device(device, depth).enumerate() {
            pause(number);
            assert!(
                fetched(&batch.unwrap()) == expected[number],
                "batch {number}"
            );
        }
    }
    device.set_device_budget_bytes(before);
}

/// A batch whose `upload` or `tensors` panics now and then.
struct Moody {
    rows: Tensor<i64>,
}

struct MoodyThere(DeviceTensor<i64>);

impl Batch for Moody {
    type OnDevice = MoodyThere;

    fn tensors(&self, visit: &mut Tensors<'_>) {
        if self.rows.as_slice()[0] % 200 == 40 {
            watch::provoked("it shows nothing");
        }
        visit.add(&self.rows);
    }

    fn relocate(self, slab: &mut Relocation) -> Moody {
        Moody {
            rows: slab.tensor(self.rows),
        }
    }

    fn upload(self, upload: &mut Upload) -> MoodyThere {
        if self.rows.as_slice()[0] % 200 == 120 {
            watch::provoked("it does not go");
        }
        MoodyThere(upload.tensor(self.rows))
    }
}

/// It is an error of its own, and costs no other batch anything.
fn one_of_those_sent_together_panics(backend: &Backend) {
    let samples = from_fn(ROWS as u64, |index, _| Ok(index as i64));
    let collate = |samples: Vec<i64>, _: &mut Arena| {
        Ok(Moody {
            rows: Tensor::from(samples),
        })
    };
    let builder = DataLoader::builder(samples);
    let builder = builder.batch_size(BATCH).num_workers(2).prefetch(24);
    let builder = builder.pin_memory(&backend.device);
    let loader = builder.collate_fn(collate).build().unwrap();
    for depth in [1, 24] {
        for (number, batch) in loader
            .epoch(0)
            .prefetch_to_device(&backend.device, depth)
            .enumerate()
        {
            pause(number);
            let first = (number * BATCH) as i64;
            match batch {
                Ok(there) => {
                    let there = there.0.to_host(true).unwrap().wait().unwrap();
                    assert!(there.to_vec().into_iter().eq(first..first + BATCH as i64));
                    assert!(![40, 120].contains(&(first % 200)), "batch {number}");
                }
                Err(Error::CollatePanicked { batch, message, .. }) => {
                    assert_eq!(batch, number as u64);
                    let why = match first % 200 {
                        40 => "it shows nothing",
                        120 => "it does not go",
                        _ => panic!("batch {number} is in order: {message}"),
                    };
                    assert!(message.contains(why), "{message}");
                }
                Err(error) => panic!("batch {number}: {error}"),
            }
        }
    }
}

/// The epoch is dropped with batches on their way, of which the program holds some; the next epoch is as ever.
fn what_was_sent_together_is_left(backend: &Backend) {
    let device = &backend.device;
    for loader in loaders(device, 2) {
        for (epoch, wanted) in [(0, 1), (1, 3), (0, 70), (1, 140)] {
            let expected = expected(epoch);
            let mut held = Vec::new();
            let mut batches = loader.epoch(epoch).prefetch_to_device(device, 40);
            for (number, batch) in batches.by_ref().take(wanted).enumerate() {
                pause(number);
                held.push(batch.unwrap());
                if held.len() > 9 {
                    held.remove(number % 9);
                }
            }
            std::thread::sleep(Duration::from_millis(1));
            drop(batches);
            let last = held.last().unwrap();
            assert!(fetched(last) == expected[wanted - 1], "epoch {epoch}");
        }
    }
    check_all_back(device);
}

/// Counts the batches that were made, and those that were sent.
#[derive(Default)]
struct Counts {
    made_and_sent: Mutex<(usize, usize)>,
    changed: Condvar,
}

struct Number(i64, Arc<Counts>);

struct Numbers(Tensor<i64>, Arc<Counts>);

impl Sample for Number {
    type Batch = Numbers;
    type Plan = (Field<i64>, Arc<Counts>);
    type Rest = ();
    const DENSE: bool = true;

    fn plan<'a>(
        mut samples: impl Iterator<Item = &'a Self> + Clone,
        layout: &mut Layout,
    ) -> Result<Self::Plan, CollateError> {
        let first = samples.next().unwrap();
        Ok((layout.field(&[])?, Arc::clone(&first.1)))
    }

    fn fill(self, plan: &Self::Plan, row: &mut Row<'_>) -> Result<(), CollateError> {
        row.write(&plan.0, &[self.0])
    }

    fn finish(plan: Self::Plan, _: Vec<()>, filled: &mut Filled) -> Numbers {
        plan.1.made_and_sent.lock().unwrap().0 += 1;
        Numbers(filled.take(plan.0), plan.1)
    }
}

impl Batch for Numbers {
    type OnDevice = DeviceTensor<i64>;

    fn tensors(&self, visit: &mut Tensors<'_>) {
        visit.add(&self.0);
    }

    fn relocate(self, slab: &mut Relocation) -> Numbers {
        Numbers(slab.tensor(self.0), self.1)
    }

    fn upload(self, upload: &mut Upload) -> DeviceTensor<i64> {
        self.1.made_and_sent.lock().unwrap().1 += 1;
        self.1.changed.notify_all();
        upload.tensor(self.0)
    }
}

/// More of them may be on their way, and nobody hurries with those. But what was made of the next `depth` is sent while the program does something
/// else and asks for nothing.
fn depth_batches_travel_while_the_program_is_busy(backend: &Backend) {
    const BATCHES: usize = 300;
    for (workers, depth) in [(1, 1), (1, 5), (3, 40)] {
        let counts = Arc::new(Counts::default());
        let samples = from_fn((BATCHES * BATCH) as u64, {
            let counts = Arc::clone(&counts);
            move |index, _| Ok(Number(index as i64, Arc::clone(&counts)))
        });
        let builder = DataLoader::builder(samples).batch_size(BATCH);
        let builder = builder.num_workers(workers).pin_memory(&backend.device);
        let loader = builder.build().unwrap();
        let epoch = loader.epoch(0).prefetch_to_device(&backend.device, depth);
        for (number, batch) in epoch.enumerate() {
            let batch = batch.unwrap();
            pause(number);
            let is_late =
                |&mut (made, sent): &mut (usize, usize)| sent < made.min(number + 1 + depth);
            let now = counts.made_and_sent.lock().unwrap();
            drop(counts.changed.wait_while(now, is_late).unwrap());
            let first = (number * BATCH) as i64;
            let rows = batch.to_host(true).unwrap().wait().unwrap();
            assert!(rows.to_vec().into_iter().eq(first..first + BATCH as i64));
        }
    }
}
