//! A batch sampler of one's own, for a contrastive loss: each batch has two samples each of four classes.

use std::error::Error;

use pinfeed::sampler::{BatchSampler, Batches, RandomSampler, Sampler};
use pinfeed::rng::RngKey;
use pinfeed::{DataLoader, SampleRng, from_fn};

const CLASSES: u64 = 12;
const LEN: u64 = 360;

struct Pairs {
    seed: u64,
    batches: u64,
}

impl BatchSampler for Pairs {
    fn batches(&self, epoch: u64) -> Batches {
        let batch = |number| {
            let mut rng = SampleRng::for_sampler(RngKey { seed: self.seed, epoch, position: number });
            let classes = RandomSampler::with_seed(CLASSES, rng.next_u64());
            let mut batch = Vec::new();
            for class in (0..4).map(|at| classes.index(0, at)) {
                let first = rng.below(LEN / CLASSES);
                let second = (first + rng.range(1..LEN / CLASSES)) % (LEN / CLASSES);
                batch.extend([first, second].map(|sample| sample * CLASSES + class));
            }
            batch
        };
        (0..self.batches).map(batch).collect()
    }
}

pub fn main() -> Result<(), Box<dyn Error>> {
    let samples = from_fn(LEN, |index, _| Ok((index as f32, (index % CLASSES) as i64)));
    let loader = DataLoader::builder(samples)
        .batch_sampler(Pairs { seed: 17, batches: 50 })
        .num_workers(2)
        .build()?;
    for batch in &loader {
        let (numbers, classes) = batch?;
        let pairs = numbers.as_slice().chunks(2).zip(classes.as_slice().chunks(2));
        let mut seen = Vec::new();
        for (numbers, classes) in pairs {
            assert!(numbers[0] != numbers[1] && classes[0] == classes[1]);
            seen.push(classes[0]);
        }
        seen.sort();
        seen.dedup();
        assert_eq!(seen.len(), 4, "four different classes");
    }
    assert_eq!(loader.len(), 50);
    Ok(())
}
