//! Real and simulated frames, half and half, on two ranks: each rank's batches are half and half, and no frame is on both.

use std::collections::BTreeSet;
use std::error::Error;

use pinfeed::dataset::{ConcatDataset, VecDataset};
use pinfeed::loader::World;
use pinfeed::sampler::MixtureSampler;
use pinfeed::{DataLoader, Dataset, from_fn};

/// A frame's number; simulated ones are negative.
type Frames = Box<dyn Dataset<Sample = i64>>;

fn rank(rank: usize) -> Result<BTreeSet<i64>, Box<dyn Error>> {
    let real: Frames = Box::new(VecDataset::new((0..300i64).collect()));
    let simulated: Frames = Box::new(from_fn(10_000, |index, _| Ok(-1 - index as i64)));
    let frames = ConcatDataset::new(vec![real, simulated])?;
    let mixture = MixtureSampler::new(&frames.lengths(), &[1.0, 1.0], 17)?.with_num_samples(600);
    let loader = DataLoader::builder(frames)
        .batch_size(10)
        .sampler(mixture)
        .drop_last(true)
        .num_workers(2)
        .world(World::new(rank, 2)?) // `World::from_env()` under torchrun
        .build()?;

    let mut seen = BTreeSet::new();
    for batch in &loader {
        let batch = batch?;
        assert_eq!(batch.as_slice().iter().filter(|frame| **frame < 0).count(), 5);
        seen.extend(batch.as_slice());
    }
    Ok(seen)
}

pub fn main() -> Result<(), Box<dyn Error>> {
    let (one, other) = (rank(0)?, rank(1)?);
    assert!(one.is_disjoint(&other));
    let real = one.union(&other).filter(|frame| **frame >= 0).count();
    println!("{} frames on each rank, {real} real ones in all", one.len());
    assert_eq!((one.len(), other.len(), real), (300, 300, 300));
    Ok(())
}
