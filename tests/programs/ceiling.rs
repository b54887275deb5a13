//! What would a faster loader bring? The same loop over one batch again and again says how fast the steps could be.

use std::error::Error;
use std::thread::sleep;
use std::time::{Duration, Instant};

use pinfeed::{DataLoader, Device, DeviceTensor, Result, from_fn};

/// A step is whatever is done with a batch: the loop does not know where batches come from.
fn train(batches: impl Iterator<Item = Result<(DeviceTensor<f32>, DeviceTensor<i64>)>>) -> Result<(usize, Duration)> {
    let (start, mut steps) = (Instant::now(), 0);
    for batch in batches {
        let (images, labels) = batch?;
        assert_eq!(images.shape()[0], labels.len());
        sleep(Duration::from_micros(200));
        steps += 1;
    }
    Ok((steps, start.elapsed()))
}

pub fn main() -> std::result::Result<(), Box<dyn Error>> {
    let device = Device::cpu();
    let samples = from_fn(64, |index, _| {
        sleep(Duration::from_micros(300)); // a slow disk
        Ok((vec![index as f32; 32], index as i64))
    });
    let loader = DataLoader::builder(samples)
        .batch_size(8)
        .shuffle(true)
        .num_workers(2)
        .pin_memory(&device)
        .build()?;
    let (steps, took) = train(loader.epoch(0).prefetch_to_device(&device, 2))?;
    let (same, at_best) = train(loader.replay(0)?.prefetch_to_device(&device, 2))?;
    assert_eq!((steps, same), (8, 8));
    println!("an epoch takes {took:?}, and {at_best:?} if loading costs nothing");
    println!("{}", loader.stats()); // of the epoch, and not of the replay
    assert_eq!(loader.stats().batches, 8);
    Ok(())
}
