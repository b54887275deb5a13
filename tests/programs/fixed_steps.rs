//! Epochs of 50 steps each, however many samples there are: validation comes at the same pace for all data sets.

use std::error::Error;

use pinfeed::DataLoader;
use pinfeed::sampler::{RandomSampler, SubsetRandomSampler};

const BATCH: usize = 16;
const STEPS: u64 = 50;

pub fn main() -> Result<(), Box<dyn Error>> {
    for len in [120u64, 10_000] {
        let samples: Vec<i64> = (0..len as i64).collect();
        let loader = DataLoader::builder(samples.clone())
            .batch_size(BATCH)
            .sampler(RandomSampler::with_seed(len, 17).with_num_samples(STEPS * BATCH as u64))
            .num_workers(1)
            .build()?;
        // A tenth of them to validate with, in random order.
        let held_out = (0..len).filter(|index| index % 10 == 0);
        let validation = DataLoader::builder(samples)
            .batch_size(BATCH)
            .sampler(SubsetRandomSampler::new(held_out, 17)?)
            .build()?;

        let mut counts = vec![0u32; len as usize];
        for epoch in loader.epochs(0..2) {
            assert_eq!(epoch.len() as u64, STEPS);
            for batch in epoch {
                batch?.as_slice().iter().for_each(|number| counts[*number as usize] += 1);
            }
            let mut validated = 0;
            for batch in &validation {
                let batch = batch?;
                assert!(batch.as_slice().iter().all(|number| number % 10 == 0));
                validated += batch.len() as u64;
            }
            assert_eq!(validated, len / 10);
        }
        let (most, least) = (counts.iter().max(), counts.iter().min());
        println!("{len} samples: each came up {least:?} to {most:?} times");
        // 800 of 120 are six or seven passes in an epoch; 800 of 10,000 are different ones.
        let expected = if len == 120 { 12..=14 } else { 0..=2 };
        assert!(counts.iter().all(|count| expected.contains(count)));
    }
    Ok(())
}
