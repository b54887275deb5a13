//! Tables in memory: their rows are copied without being made samples, and nobody can tell.

use pinfeed::dataset::{Subset, TensorRows, random_split};
use pinfeed::loader::{LastBatch, World};
use pinfeed::{
    Batch, BoxError, DataLoader, Dataset, Device, Error, SampleRng, Tensor, TensorDataset,
};
use proptest::prelude::*;

type Rows = (Tensor<u8>, (Tensor<f32>, Tensor<i64>));
type Table = TensorDataset<Rows>;

/// A table whose rows have these many elements. Its tensors are views into larger ones, so rows lie at odd addresses.
fn table(rows: usize, bytes: usize, floats: usize) -> Table {
    let of = |width: usize, count: usize| (0..(rows + 2) * width).map(move |at| at * 31 + count);
    let x = Tensor::from_vec(of(bytes, 1).map(|x| x as u8).collect(), &[rows + 2, bytes]).unwrap();
    let y = of(floats, 2).map(|y| y as f32).collect();
    let y = Tensor::from_vec(y, &[rows + 2, floats]).unwrap();
    let z = Tensor::from(of(1, 3).map(|z| z as i64).collect::<Vec<_>>());
    let part = 1..rows + 1;
    TensorDataset::new((
        x.slice(part.clone()),
        (y.slice(part.clone()), z.slice(part)),
    ))
    .unwrap()
}

/// The same samples, of which the loader knows nothing but `get`.
struct One<D>(D);

impl<D: Dataset> Dataset for One<D> {
    type Sample = D::Sample;

    fn len(&self) -> u64 {
        self.0.len()
    }

    fn get(&self, index: u64, rng: &mut SampleRng) -> Result<D::Sample, BoxError> {
        self.0.get(index, rng)
    }
}

/// What a batch holds.
type Contents = (Vec<usize>, Vec<u8>, Vec<f32>, Vec<i64>);

fn contents((x, (y, z)): Rows) -> Contents {
    (x.shape().to_vec(), x.to_vec(), y.to_vec(), z.to_vec())
}

#[derive(Debug, Clone)]
struct How {
    batch_size: usize,
    workers: usize,
    pin: bool,
    last: LastBatch,
    world: (usize, usize),
    shuffle: bool,
}

fn loader(table: impl Dataset<Sample = Rows>, how: &How, device: &Device) -> DataLoader<Rows> {
    let mut builder = DataLoader::builder(table)
        .batch_size(how.batch_size)
        .num_workers(how.workers)
        .shuffle(how.shuffle)
        .last_batch(how.last)
        .world(World::new(how.world.0, how.world.1).unwrap())
        .seed(5);
    if how.pin {
        builder = builder.pin_memory(device);
    }
    builder.build().unwrap()
}

fn how() -> impl Strategy<Value = How> {
    let last = prop_oneof![
        Just(LastBatch::Drop),
        Just(LastBatch::Partial),
        Just(LastBatch::Fill)
    ];
    let world = (1..4usize).prop_flat_map(|ranks| (0..ranks, Just(ranks)));
    (
        1..150usize,
        0..4usize,
        any::<bool>(),
        last,
        world,
        any::<bool>(),
    )
        .prop_map(|(batch_size, workers, pin, last, world, shuffle)| How {
            batch_size,
            workers,
            pin,
            last,
            world,
            shuffle,
        })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(60))]

    #[test]
    fn copied_rows_are_those_that_samples_give(
        rows in 1..300usize,
        bytes in 0..70usize,
        floats in prop_oneof![Just(1usize), Just(2), Just(4), Just(5), 0..40usize],
        how in how(),
    ) {
        let device = Device::cpu();
        let copied = loader(table(rows, bytes, floats), &how, &device);
        let got = loader(One(table(rows, bytes, floats)), &how, &device);
        for epoch in 0..2 {
            let copied: Vec<_> = copied.epoch(epoch).map(|batch| contents(batch.unwrap())).collect();
            let got: Vec<_> = got.epoch(epoch).map(|batch| contents(batch.unwrap())).collect();
            prop_assert_eq!(copied, got);
        }
    }

    #[test]
    fn rows_of_a_part_are_its_own(rows in 2..300usize, how in how()) {
        let device = Device::cpu();
        let parts = |seed| random_split(table(rows, 3, 4), &[0.5, 0.5], seed).unwrap();
        for (copied, got) in parts(1).into_iter().zip(parts(1)) {
            let copied = loader(Subset::new(copied, 0..1).unwrap(), &how, &device);
            let got = loader(One(Subset::new(got, 0..1).unwrap()), &how, &device);
            let copied: Vec<_> = copied.epoch(0).map(|batch| contents(batch.unwrap())).collect();
            let got: Vec<_> = got.epoch(0).map(|batch| contents(batch.unwrap())).collect();
            prop_assert_eq!(copied, got);
        }
    }
}

#[test]
fn a_device_gets_the_same_rows() {
    let device = Device::cpu();
    let how = How {
        batch_size: 48,
        workers: 2,
        pin: true,
        last: LastBatch::Partial,
        world: (0, 1),
        shuffle: true,
    };
    let copied = loader(table(500, 7, 4), &how, &device);
    let got = loader(One(table(500, 7, 4)), &how, &device);
    for epoch in 0..2 {
        let sent = copied.epoch(epoch).prefetch_to_device(&device, 2);
        for (sent, got) in sent.zip(got.epoch(epoch)) {
            let (x, (y, z)) = sent.unwrap();
            let back = |pending: pinfeed::device::Download<u8>| pending.wait().unwrap();
            let x = back(x.to_host(true).unwrap());
            let y = y.to_host(true).unwrap().wait().unwrap();
            let z = z.to_host(true).unwrap().wait().unwrap();
            assert_eq!(contents((x, (y, z))), contents(got.unwrap()));
        }
    }
}

/// An index that a table does not have is an error in its batch's place, as for any other data set.
#[test]
fn a_sampler_beyond_the_table_is_an_error_of_its_batch() {
    let order: Vec<u64> = (0..30).chain([99]).chain(30..59).collect();
    let loader = DataLoader::builder(table(60, 2, 3))
        .sampler(order)
        .batch_size(20)
        .num_workers(2)
        .build()
        .unwrap();
    let batches: Vec<_> = loader.epoch(0).collect();
    let error = batches[1].as_ref().unwrap_err().to_string();
    assert!(
        error.contains("index 99") && error.contains("60 samples"),
        "{error}"
    );
    assert!(batches[0].is_ok() && batches[2].is_ok());
}

/// The same table, copied as it is and changed on the way, in one program.
#[test]
fn a_table_that_is_mapped_is_got_row_by_row() {
    let x = Tensor::from((0..100).map(|x| x as f32).collect::<Vec<_>>());
    let table = TensorDataset::new(x).unwrap();
    let doubled = table.map(|x, _| Ok(x.as_slice()[0] * 2.0));
    let loader = DataLoader::builder(doubled).batch_size(10).build().unwrap();
    for (number, batch) in loader.epoch(0).enumerate() {
        let first = number as f32 * 20.0;
        assert_eq!(batch.unwrap().as_slice()[..2], [first, first + 2.0]);
    }
}

#[test]
fn a_batch_larger_than_the_table_has_all_of_it() {
    let loader = DataLoader::builder(table(3, 1, 1))
        .batch_size(1000)
        .build()
        .unwrap();
    let batches: Result<Vec<Rows>, Error> = loader.epoch(0).collect();
    let batches = batches.unwrap();
    assert_eq!((batches.len(), batches[0].0.shape()[0]), (1, 3));
    let on_device = batches
        .into_iter()
        .next()
        .unwrap()
        .to_device(&Device::cpu(), false)
        .unwrap();
    assert_eq!(on_device.0.shape()[0], 3);
}

/// Page-locked batches that take no time share slabs, so that not each of them is handed from thread to thread.
#[test]
fn small_batches_share_slabs() {
    const BATCHES: u64 = 5_000;
    let device = Device::cpu();
    let how = How {
        batch_size: 4,
        workers: 2,
        pin: true,
        last: LastBatch::Drop,
        world: (0, 1),
        shuffle: true,
    };
    let loader = loader(table(4 * BATCHES as usize, 3, 5), &how, &device);
    let handed = || device.memory().slabs_made + device.memory().slabs_reused;
    // (How many share one follows from how long they take, so that on a busy machine few do, or for an epoch none.)
    let share = |epoch: u64| {
        let before = handed();
        let pinned = loader
            .epoch(epoch)
            .filter(|batch| batch.as_ref().unwrap().0.is_pinned());
        assert_eq!(pinned.count() as u64, BATCHES);
        handed() - before < BATCHES
    };
    assert!((0..10).any(share), "{:?}", device.memory());
    let memory = device.memory();
    assert_eq!(memory.pinned_idle_bytes, memory.pinned_bytes, "{memory:?}");
}

/// What the program keeps is not written to while others of the same slab come and go, and costs no batch its page-locked memory as long as
/// slabs are left.
#[test]
fn a_small_batch_may_be_kept() {
    let device = Device::cpu();
    let how = How {
        batch_size: 4,
        workers: 2,
        pin: true,
        last: LastBatch::Drop,
        world: (0, 1),
        shuffle: true,
    };
    let table = || table(8_000, 3, 5);
    let expected: Vec<Contents> = loader(
        table(),
        &How {
            pin: false,
            ..how.clone()
        },
        &device,
    )
    .epoch(0)
    .map(|batch| contents(batch.unwrap()))
    .collect();
    let loader = loader(table(), &how, &device);
    let mut kept = Vec::new();
    for (number, batch) in loader.epoch(0).enumerate() {
        let batch = batch.unwrap();
        match number % 600 {
            // (Four, and there are five slabs.)
            7 => kept.push((number, batch)),
            // The device reads some while workers fill the rest of their slab.
            0..400 => drop(batch.to_device(&device, true).unwrap()),
            _ => assert_eq!(contents(batch), expected[number]),
        }
    }
    assert_eq!((kept.len(), loader.stats().unpinned.count), (4, 0));
    for (number, batch) in kept {
        assert_eq!(contents(batch), expected[number]);
    }
}

/// What a table trusts it asks itself: `TensorDataset::new` is not the only way to one.
#[test]
fn a_table_on_a_device_has_as_many_rows_of_each_tensor() {
    let device = Device::cpu();
    let there = |rows| Tensor::<i64>::zeros(&[rows]).to_device(&device, false);
    let stored = |one, other| (there(one).unwrap(), there(other).unwrap()).stored();
    assert!(stored(10, 10).is_ok());
    for (one, other) in [(10, 3), (3, 10)] {
        let error = stored(one, other).unwrap_err().to_string();
        assert!(
            error.contains(&format!("tensor 0 has {one} rows")),
            "{error}"
        );
    }
}
