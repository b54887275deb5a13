//! How many samples an epoch's batches have: what comes is what `samples` said.

use pinfeed::collate::Stack;
use pinfeed::loader::{Builder, LastBatch, Sharding, World};
use pinfeed::sampler::{BatchSampler, Batches, RandomSampler};
use pinfeed::{DataLoader, Dataset, Tensor, from_fn};

/// Counts an epoch's rows, and compares.
fn check(loader: &DataLoader<Tensor<i64>>, expected: u64) {
    let rows: usize = loader.epoch(0).map(|batch| batch.unwrap().len()).sum();
    assert_eq!((loader.samples(), rows as u64), (expected, expected));
}

fn builder(samples: u64) -> Builder<impl Dataset<Sample = i64>, Stack> {
    DataLoader::builder(from_fn(samples, |index, _| Ok(index as i64))).batch_size(10)
}

#[test]
fn samples_are_those_that_come() {
    for samples in [0, 1, 9, 10, 11, 95] {
        check(&builder(samples).build().unwrap(), samples);
        check(
            &builder(samples).drop_last(true).build().unwrap(),
            samples / 10 * 10,
        );
        let filled = builder(samples).last_batch(LastBatch::Fill);
        check(&filled.build().unwrap(), samples.div_ceil(10) * 10);
    }
}

#[test]
fn of_each_rank() {
    for (samples, sharding) in [
        (95, Sharding::Slices),
        (95, Sharding::Interleaved),
        (103, Sharding::Slices),
        (101, Sharding::Strided { drop_last: false }),
        (101, Sharding::Strided { drop_last: true }),
    ] {
        for rank in 0..3 {
            let world = World::new(rank, 3).unwrap();
            let loader = builder(samples)
                .world(world)
                .sharding(sharding)
                .build()
                .unwrap();
            let rows: usize = loader.epoch(0).map(|batch| batch.unwrap().len()).sum();
            assert_eq!(
                loader.samples(),
                rows as u64,
                "{samples} {sharding:?} rank {rank}"
            );
        }
    }
}

#[test]
fn of_samplers_that_draw_another_number() {
    for drawn in [20, 45] {
        let sampler = RandomSampler::new(30)
            .with_num_samples(drawn)
            .with_replacement();
        check(&builder(30).sampler(sampler).build().unwrap(), drawn);
    }
}

#[test]
fn of_lists() {
    struct Lists;

    impl BatchSampler for Lists {
        fn batches(&self, _: u64) -> Batches {
            [vec![1, 2, 3], vec![4], vec![5, 6]].into_iter().collect()
        }
    }
    let lists = DataLoader::builder(from_fn(30, |index, _| Ok(index as i64)));
    check(&lists.batch_sampler(Lists).build().unwrap(), 6);
}
