//! Training and validation have a loader each: where the time of the whole run went, and of each part of it.

use std::error::Error;

use pinfeed::loader::{Limit, Stats};
use pinfeed::{DataLoader, from_fn};

pub fn main() -> Result<(), Box<dyn Error>> {
    let loader = |samples: u64| {
        DataLoader::builder(from_fn(samples, |index, _| Ok([index as f32; 4])))
            .batch_size(8)
            .num_workers(1)
            .build()
    };
    let (train, validation) = (loader(80)?, loader(16)?);
    for number in 0..2 {
        let mut epoch = train.epoch(number);
        for (step, batch) in epoch.by_ref().enumerate() {
            batch?;
            if step == 4 {
                // In the middle of an epoch, while its next batches are loaded.
                let mut check = validation.epoch(number);
                check.by_ref().try_for_each(|batch| batch.map(drop))?;
                println!("validation took {:?}", check.stats().wall_time());
            }
        }
        assert_eq!(epoch.stats().batches, 10);
    }
    let all: Stats = [&train, &validation].map(|loader| loader.total_stats()).into_iter().sum();
    assert_eq!((all.epochs, all.batches, all.samples), (4, 24, 192));
    match all.limit() {
        Limit::Consumer => println!("the steps take the time"),
        limit => println!("the loop waits for the loader: {limit:?}"),
    }
    Ok(())
}
