//! A program with a loop of its own (a window, a game, a server) that trains when a batch is there, and never waits for one.

use std::error::Error;

use pinfeed::loader::TryNext;
use pinfeed::{DataLoader, Device, from_fn};

pub fn main() -> Result<(), Box<dyn Error>> {
    let device = Device::cpu();
    let stream = device.stream()?;
    let samples = from_fn(120, |index, rng| Ok(([rng.f32(); 8], index as i64)));
    let loader = DataLoader::builder(samples)
        .batch_size(16)
        .shuffle(true)
        .num_workers(2)
        .pin_memory(&device)
        .build()?;
    let mut epoch = loader.epoch(0).prefetch_to_device(&device, 2).with_info();
    let (mut frames, mut steps, mut labels) = (0, 0, Vec::new());
    loop {
        frames += 1; // draws, answers, ...
        match epoch.try_next() {
            TryNext::Batch(batch) => {
                let ((x, y), info) = batch?;
                assert_eq!((info.batch(), x.on(&stream)?.shape()[0]), (steps, y.shape()[0]));
                labels.extend(y.to_host(true)?.wait()?.to_vec());
                steps += 1;
            }
            TryNext::End => break,
            TryNext::NotYet => std::thread::yield_now(),
        }
    }
    assert!(frames > steps);
    labels.sort_unstable();
    assert!(labels.into_iter().eq(0..120));
    Ok(())
}
