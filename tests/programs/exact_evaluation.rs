//! An evaluation on three ranks that counts each of the validation set's samples once, although every rank takes as many steps, each
//! with a batch of the same size.

use std::error::Error;

use pinfeed::loader::{LastBatch, World};
use pinfeed::{DataLoader, Device, from_fn};

const RANKS: usize = 3;

/// Returns how many samples this rank counted, how many predictions were right, and how many steps it took.
fn evaluate(rank: usize) -> pinfeed::Result<[usize; 3]> {
    let device = Device::cpu();
    let samples = from_fn(100, |index, _| Ok((index as i64, index as i64 % 10)));
    let loader = DataLoader::builder(samples)
        .batch_size(8)
        .last_batch(LastBatch::Fill)
        .num_workers(1)
        .pin_memory(&device)
        .world(World::new(rank, RANKS)?)
        .build()?;
    let [mut counted, mut right, mut steps] = [0; 3];
    for batch in loader.epoch(0).prefetch_to_device(&device, 1).with_info() {
        let ((inputs, labels), info) = batch?;
        assert_eq!(inputs.len(), 8); // a captured graph can be launched
        let predictions = inputs.to_host(true)?; // here, the network's
        let (predictions, labels) = (predictions.wait()?, labels.to_host(true)?.wait()?);
        let mask = info.mask();
        for ((prediction, label), is_real) in predictions.as_slice().iter().zip(labels.as_slice()).zip(mask) {
            if is_real {
                counted += 1;
                right += usize::from(prediction % 10 == *label);
            }
        }
        steps += 1;
    }
    Ok([counted, right, steps])
}

pub fn main() -> Result<(), Box<dyn Error>> {
    let ranks = (0..RANKS).map(evaluate).collect::<pinfeed::Result<Vec<_>>>()?;
    let sum = |what: usize| ranks.iter().map(|rank| rank[what]).sum::<usize>(); // all-reduce
    println!("{} of {} are right", sum(1), sum(0));
    assert_eq!((sum(0), sum(1)), (100, 100));
    assert!(ranks.iter().all(|rank| rank[2] == 5)); // 100 / (3 * 8), rounded up
    Ok(())
}
