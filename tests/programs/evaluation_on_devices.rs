//! An evaluation that three devices share: each sample counts once, and all take as many steps.
#![allow(clippy::unwrap_used)] // a panic of one thread ends the program

use std::error::Error;
use std::thread;

use pinfeed::loader::LastBatch;
use pinfeed::{DataLoader, Device, from_fn};

pub fn main() -> Result<(), Box<dyn Error>> {
    let devices: Vec<Device> = (0..3).map(|_| Device::cpu()).collect(); // Device::cuda(number)
    let loader = DataLoader::builder(from_fn(100, |index, _| Ok((index as i64, index as i64 % 10))))
        .batch_size(8)
        .last_batch(LastBatch::Fill)
        .num_workers(2)
        .pin_memory(&devices)
        .build()?;

    let found: Vec<(usize, usize)> = thread::scope(|scope| {
        let epochs = loader.epoch(0).split(&devices, 1).into_iter();
        let threads: Vec<_> = epochs
            .map(|epoch| {
                scope.spawn(move || -> pinfeed::Result<(usize, usize)> {
                    let (mut steps, mut right) = (0, 0);
                    for batch in epoch.with_info() {
                        let ((inputs, labels), info) = batch?;
                        let predictions = inputs.to_host(true)?.wait()?; // here, the network's
                        let labels = labels.to_host(true)?.wait()?;
                        let pairs = predictions.as_slice().iter().zip(labels.as_slice());
                        let real = pairs.zip(info.mask()).filter(|(_, is_real)| *is_real);
                        right += real.filter(|((prediction, label), _)| *prediction % 10 == **label).count();
                        steps += 1;
                    }
                    Ok((steps, right))
                })
            })
            .collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect::<pinfeed::Result<_>>()
    })?;

    let right: usize = found.iter().map(|(_, right)| right).sum();
    println!("{right} of 100 are right, after {} steps on each device", found[0].0);
    assert!(right == 100 && found.iter().all(|(steps, _)| *steps == 5));
    Ok(())
}
