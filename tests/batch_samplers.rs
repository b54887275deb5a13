//! Batch samplers: batches are the lists that they give, on any number of workers and ranks, and in resumed runs.
#![allow(clippy::unwrap_used)]

use pinfeed::sampler::BatchSampler;
use pinfeed::{DataLoader, SampleRng, Tensor, from_fn};

type Pair = (Tensor<i64>, Tensor<i64>);
type Builder = pinfeed::loader::Builder<
    pinfeed::dataset::FromFn<fn(u64, &mut SampleRng) -> Result<(i64, i64), pinfeed::BoxError>>,
    pinfeed::collate::Stack,
>;

const LEN: u64 = 100;

fn sample(index: u64, rng: &mut SampleRng) -> Result<(i64, i64), pinfeed::BoxError> {
    Ok((index as i64, rng.range(0..1_000_000)))
}

/// Each sample is its index, and a number that it draws.
fn builder(lists: impl BatchSampler) -> Builder {
    let sample: fn(u64, &mut SampleRng) -> _ = sample;
    DataLoader::builder(from_fn(LEN, sample))
        .seed(17)
        .batch_sampler(lists)
}

fn rows((indices, drawn): Pair) -> Vec<(i64, i64)> {
    let drawn = drawn.as_slice().iter().copied();
    indices.as_slice().iter().copied().zip(drawn).collect()
}

fn indices(batch: Pair) -> Vec<i64> {
    batch.0.to_vec()
}

#[test]
fn lists_become_batches() {
    let lists = vec![vec![5, 2, 9], vec![1], vec![5, 99, 0, 3]];
    for workers in [0, 1, 3] {
        let loader = builder(lists.clone()).num_workers(workers).build().unwrap();
        assert_eq!((loader.len(), loader.batch_size()), (3, 4));
        for epoch in loader.epochs(0..2) {
            assert_eq!(epoch.len(), 3);
            let seen: Vec<_> = epoch.map(|batch| indices(batch.unwrap())).collect();
            assert_eq!(seen, [&[5, 2, 9][..], &[1], &[5, 99, 0, 3]]);
        }
        let drawn =
            |epoch| -> Vec<_> { loader.epoch(epoch).flat_map(|b| rows(b.unwrap())).collect() };
        assert_ne!(
            drawn(0)[0].1,
            drawn(0)[4].1,
            "positions have their own numbers"
        );
        assert_ne!(drawn(0), drawn(1));
    }
}
