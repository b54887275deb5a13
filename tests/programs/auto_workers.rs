//! Training and validation, each with as many workers as it needs; on another machine they are others, and the batches are the same.

use std::error::Error;

use pinfeed::loader::Workers;
use pinfeed::{DataLoader, Result, SampleRng, from_fn};

fn loader(workers: Workers) -> Result<DataLoader<(pinfeed::Tensor<f32>, pinfeed::Tensor<i64>)>> {
    let samples = from_fn(600, |index, rng: &mut SampleRng| {
        let x: Vec<f32> = (0..8).map(|_| rng.f32() + index as f32).collect();
        Ok((pinfeed::Tensor::from(x), (index % 3) as i64))
    });
    let builder = DataLoader::builder(samples).batch_size(20).shuffle(true);
    builder.seed(17).num_workers(workers).build()
}

pub fn main() -> Result<(), Box<dyn Error>> {
    let (train, alone) = (loader(Workers::Auto)?, loader(Workers::Fixed(0))?);
    let validation = DataLoader::builder((0..100i64).collect::<Vec<_>>())
        .batch_size(25)
        .num_workers(Workers::Auto)
        .build()?;
    for epoch in 0..3 {
        for (batch, expected) in train.epoch(epoch).zip(alone.epoch(epoch)) {
            let ((x, y), (expected_x, expected_y)) = (batch?, expected?);
            assert_eq!(x.as_slice(), expected_x.as_slice());
            assert_eq!(y.as_slice(), expected_y.as_slice());
        }
        let mut sum = 0;
        for batch in &validation {
            sum += batch?.as_slice().iter().sum::<i64>();
        }
        assert_eq!(sum, 99 * 50);
        let stats = train.stats();
        println!("epoch {epoch}: {} workers, {}", stats.workers, stats.sizing);
        assert!(stats.workers >= 1 && stats.sizing.is_auto());
    }
    println!("{}", train.stats());
    Ok(())
}
