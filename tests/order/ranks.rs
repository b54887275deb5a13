//! Ranks share one global order: together they see what one rank sees whose batches are as large as all of theirs.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};

use serde_json::Value;

use pinfeed::dataset::Pass;
use pinfeed::loader::{LastBatch, Sharding, World};
use pinfeed::{BoxError, DataLoader, Dataset, Device, SampleRng, Tensor, from_fn};

const LEN: u64 = 100;
const GLOBAL_BATCH: usize = 24;

type Pair = (Tensor<i64>, Tensor<i64>);

/// Each sample is its index, and a number that it draws.
fn loader(world: World, workers: usize) -> DataLoader<Pair> {
    let samples = from_fn(LEN, |index, rng: &mut SampleRng| {
        Ok((index as i64, rng.range(0..1_000_000i64)))
    });
    DataLoader::builder(samples)
        .batch_size(GLOBAL_BATCH / world.data_ranks())
        .shuffle(true)
        .seed(17)
        .drop_last(true)
        .num_workers(workers)
        .world(world)
        .build()
        .unwrap()
}

fn rows((indices, drawn): &Pair) -> Vec<(i64, i64)> {
    let indices = indices.as_slice().iter().copied();
    indices.zip(drawn.as_slice().iter().copied()).collect()
}

fn batches(world: World, workers: usize, epoch: u64) -> Vec<Vec<(i64, i64)>> {
    let loader = loader(world, workers);
    let epoch = loader.epoch(epoch);
    assert_eq!(epoch.len(), LEN as usize / GLOBAL_BATCH);
    epoch.map(|batch| rows(&batch.unwrap())).collect()
}

#[test]
fn all_ranks_together_see_what_one_sees() {
    for epoch in [0, 5] {
        let alone = batches(World::single(), 2, epoch);
        assert_eq!(
            alone.concat().into_iter().collect::<BTreeSet<_>>().len(),
            96
        );
        for size in [2, 3, 8] {
            for workers in [0, 3] {
                let ranks = (0..size).map(|rank| World::new(rank, size).unwrap());
                let seen: Vec<_> = ranks.map(|world| batches(world, workers, epoch)).collect();
                for (number, whole) in alone.iter().enumerate() {
                    let shares = seen.iter().flat_map(|rank| rank[number].clone());
                    assert!(
                        shares.eq(whole.iter().copied()),
                        "{size} ranks, batch {number}"
                    );
                }
            }
        }
    }
}

#[test]
fn replicas_see_the_same() {
    let of = |rank| batches(World::new(rank, 4).unwrap().replicated(2).unwrap(), 2, 1);
    assert_eq!(of(0), of(1));
    assert_eq!(of(2), of(3));
    assert_ne!(of(0), of(2));
}

/// On the way to a device, across epochs, and for the second half of the ranks as for the first.
#[test]
fn ranks_send_to_their_devices() {
    let device = Device::cpu();
    for rank in 0..3 {
        let world = World::new(rank, 3).unwrap();
        let samples = from_fn(LEN, |index, _| Ok([index as f32; 16]));
        let loader = DataLoader::builder(samples)
            .batch_size(8)
            .drop_last(true)
            .num_workers(2)
            .world(world)
            .pin_memory(&device)
            .build()
            .unwrap();
        for epoch in loader.epochs(0..3).prefetch_to_device(&device, 2) {
            assert_eq!(epoch.len(), 4);
            for (number, batch) in epoch.enumerate() {
                let batch = batch.unwrap().to_host(false).unwrap().wait().unwrap();
                let first = (number * 3 + rank) * 8;
                let expected = (first..first + 8).flat_map(|index| [index as f32; 16]);
                assert!(batch.as_slice().iter().copied().eq(expected));
            }
        }
    }
}

/// Remembers what it is told of, and what it is asked for.
#[derive(Default)]
struct Told {
    told: Mutex<Vec<u64>>,
    got: Mutex<Vec<u64>>,
}

struct Telling(Arc<Told>);

impl Dataset for Telling {
    type Sample = i64;

    fn len(&self) -> u64 {
        LEN
    }

    fn get(&self, index: u64, _: &mut SampleRng) -> Result<i64, BoxError> {
        self.0.got.lock().unwrap().push(index);
        Ok(index as i64)
    }

    fn lookahead(&self) -> usize {
        5
    }

    fn will_need(&self, indices: &[u64], _: Pass) {
        self.0.told.lock().unwrap().extend(indices);
    }
}

/// A rank is told of its own samples, and not of those that other ranks load.
#[test]
fn ranks_are_told_of_their_own_samples() {
    for workers in [0, 2] {
        for rank in 0..2 {
            let told = Arc::<Told>::default();
            let loader = DataLoader::builder(Telling(Arc::clone(&told)))
                .batch_size(7)
                .shuffle(true)
                .seed(3)
                .drop_last(true)
                .num_workers(workers)
                .world(World::new(rank, 2).unwrap())
                .build()
                .unwrap();
            loader.epoch(0).for_each(|batch| drop(batch.unwrap()));
            drop(loader);
            let sorted = |indices: &Mutex<Vec<u64>>| {
                let mut indices = indices.lock().unwrap().clone();
                indices.sort_unstable();
                indices
            };
            let got = sorted(&told.got);
            assert_eq!(got.len(), 49);
            assert_eq!(got, sorted(&told.told), "rank {rank}, {workers} workers");
        }
    }
}

fn list(value: &Value) -> Vec<Vec<i64>> {
    let batch = |batch: &Value| {
        batch
            .as_array()
            .unwrap()
            .iter()
            .map(|n| n.as_i64().unwrap())
            .collect()
    };
    value.as_array().unwrap().iter().map(batch).collect()
}

/// The table that `fixtures/ranks.py` made with PyTorch's own sampler and loader.
#[test]
fn strided_ranks_have_pytorchs_batches() {
    let table: Value = serde_json::from_str(include_str!("../fixtures/ranks.json")).unwrap();
    let cases = table["distributed"].as_array().unwrap();
    assert_eq!(cases.len(), 216);
    for case in cases {
        let number = |name: &str| case[name].as_u64().unwrap();
        let flag = |name: &str| case[name].as_bool().unwrap();
        let ranks = number("ranks") as usize;
        for rank in 0..ranks {
            let loader =
                DataLoader::builder(from_fn(number("samples"), |index, _| Ok(index as i64)))
                    .batch_size(number("batch_size") as usize)
                    .drop_last(flag("loader_drops"))
                    .sharding(Sharding::Strided {
                        drop_last: flag("sampler_drops"),
                    })
                    .world(World::new(rank, ranks).unwrap())
                    .build()
                    .unwrap();
            let batches: Vec<_> = loader
                .epoch(0)
                .map(|batch| batch.unwrap().to_vec())
                .collect();
            assert_eq!(batches, list(&case["batches"][rank]), "{case}, rank {rank}");
        }
    }
}

#[test]
fn what_makes_no_sense_is_refused() {
    let world = World::new(1, 2).unwrap();
    let refused = |global, own| {
        let mut builder = DataLoader::builder(vec![1i64; 10]).world(world);
        if let Some(own) = own {
            builder = builder.batch_size(own);
        }
        let built = builder.global_batch_size(global).build::<Tensor<i64>>();
        built.unwrap_err().to_string()
    };
    assert!(refused(5, None).contains("5, which 2 ranks cannot share evenly"));
    assert!(refused(0, None).contains("is 0"));
    assert!(refused(4, Some(2)).contains("excludes batch_size"));
    // More ranks than samples: no rank has a batch, and all agree on that.
    for rank in 0..16 {
        let loader = DataLoader::builder(vec![1i64; 10])
            .drop_last(true)
            .world(World::new(rank, 16).unwrap())
            .build()
            .unwrap();
        assert!(loader.is_empty());
        assert_eq!(loader.epoch(0).count(), 0);
    }
}

/// DALI's own table of its policies (`DALIGenericIterator`, of the pages that document it): samples 1 to 7, batches of 2. What `padded`
/// decides there is always so here: each epoch begins at its beginning. A filler is another sample of the epoch, and not the last again;
/// which rows are real, the batch says.
#[test]
fn last_batches_are_those_of_dali() {
    // Policy, the last batch with `last_batch_padded`, and without, and the next epoch's first batch with it.
    type Row = (LastBatch, &'static [i64], &'static [i64], [i64; 2]);
    let table: [Row; 3] = [
        (LastBatch::Partial, &[7], &[7], [1, 2]),
        (LastBatch::Fill, &[7, 7], &[7, 1], [1, 2]),
        (LastBatch::Drop, &[5, 6], &[5, 6], [1, 2]),
    ];
    for (policy, padded, unpadded, next) in table {
        let samples: Vec<i64> = (1..=7).collect();
        let loader = DataLoader::builder(samples)
            .batch_size(2)
            .last_batch(policy)
            .build()
            .unwrap();
        let mut epochs = loader.epochs(0..2);
        let first = epochs.next().unwrap().with_info();
        let (last, info) = first.last().unwrap().unwrap();
        assert_eq!(last.as_slice(), unpadded);
        let real = last.as_slice().iter().zip(info.mask());
        let real: Vec<i64> = real
            .filter(|(_, is_real)| *is_real)
            .map(|(row, _)| *row)
            .collect();
        let mut expected = padded.to_vec();
        expected.dedup();
        assert_eq!(real, expected);
        let second = epochs.next().unwrap().next().unwrap().unwrap();
        assert_eq!(second.as_slice(), next);
    }
}

/// Shards as DALI's documentation computes them: shard `id` of `R` has `floor((id + 1) * n / R) - floor(id * n / R)` samples, and with
/// `pad_last_batch` all are padded to one size, a multiple of the batch size, that holds the largest
/// (DALI's `docs/advanced_topics_sharding.rst`). An evaluation has as many steps here, and as many rows that are no padding.
#[test]
fn an_evaluation_has_as_many_steps_as_with_dalis_padded_shards() {
    for samples in [1, 2, 7, 10, 23, 24, 25] {
        for (ranks, batch_size) in [(1, 2), (2, 2), (3, 4), (4, 3), (8, 1)] {
            let shard = |id: u64| (id + 1) * samples / ranks - id * samples / ranks;
            let largest = (0..ranks).map(shard).max().unwrap();
            let padded = largest.next_multiple_of(batch_size);
            let mut real_rows = 0;
            for rank in 0..ranks {
                let loader = DataLoader::builder(from_fn(samples, |index, _| Ok(index as i64)))
                    .batch_size(batch_size as usize)
                    .last_batch(LastBatch::Fill)
                    .world(World::new(rank as usize, ranks as usize).unwrap())
                    .build()
                    .unwrap();
                let mut rows = 0;
                for batch in loader.epoch(0).with_info() {
                    let (batch, info) = batch.unwrap();
                    rows += batch.len() as u64;
                    real_rows += info.real_rows() as u64;
                }
                assert_eq!(rows, padded, "{samples} samples, rank {rank} of {ranks}");
            }
            assert_eq!(real_rows, (0..ranks).map(shard).sum::<u64>());
        }
    }
}
