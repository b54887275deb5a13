//! The "after" of the changelog's section on renamed items: a struct literal, a `match`, statistics, and a `for` loop.

use std::error::Error;

use pinfeed::prelude::*;
use pinfeed::{Device, iterable};

pub fn main() -> Result<(), Box<dyn Error>> {
    let device = Device::cpu();
    literal();
    matched()?;
    read()?;
    looped(&device)
}

fn literal() {
    use pinfeed::rng::RngKey;

    let (seed, epoch, position) = (17, 0, 3);
    let mut rng = SampleRng::for_sample(RngKey { seed, epoch, position });
    assert!((0.0..1.0).contains(&rng.f32()));
}

fn matched() -> Result<(), pinfeed::Error> {
    use pinfeed::loader::TryNext;

    let samples = from_fn(20, |index, _| Ok(index as i64));
    let loader = DataLoader::builder(samples).batch_size(10).num_workers(1).build()?;
    let (mut epoch, mut rows) = (loader.epoch(0), 0);
    loop {
        match epoch.try_next() {
            TryNext::Batch(batch) => rows += batch?.len(),
            TryNext::NotYet => std::thread::yield_now(),
            TryNext::End => break,
        }
    }
    assert_eq!(rows, 20);
    Ok(())
}

fn read() -> Result<(), pinfeed::Error> {
    use std::time::Duration;

    let samples = from_fn(20, |index, _| Ok(index as i64));
    let loader = DataLoader::builder(samples).batch_size(10).build()?;
    loader.epoch(0).try_for_each(|batch| batch.map(drop))?;
    let stats = loader.stats();
    let (loading, step): (Duration, Duration) = (stats.loading.total, stats.step);
    println!("{loading:?} of {:?}, p99 {:?}, step {step:?}", stats.wall_time(), stats.loading.each.p99());
    assert_eq!((stats.made.batches, stats.transfers.count, stats.unpinned.count, stats.bad.skipped), (2, 0, 0, 0));
    Ok(())
}

fn looped(device: &Device) -> Result<(), Box<dyn Error>> {
    let numbers = iterable::from_fn(|_, _| Ok((0..20i64).map(Ok)));
    let loader = DataLoader::iterable(numbers).batch_size(10).pin_memory(device).build()?;
    let mut rows = 0;
    for epoch in loader.epochs(0..2).prefetch_to_device(device, 2) {
        for batch in epoch {
            rows += batch?.len();
        }
    }
    assert_eq!(rows, 40);
    Ok(())
}
