//! A replay buffer that lies on the device: each step draws transitions with replacement, together with a weight that the host knows.

use std::error::Error;

use pinfeed::sampler::WeightedRandomSampler;
use pinfeed::{Batch, DataLoader, Dataset, Device, Tensor, TensorDataset};

pub fn main() -> Result<(), Box<dyn Error>> {
    let device = Device::cpu();
    let transitions = 1_000;
    let states = (0..transitions * 4).map(|at| at as f32).collect();
    let states = Tensor::from_vec(states, &[transitions, 4])?;
    let rewards = Tensor::from((0..transitions).map(|n| (n % 10) as f32).collect::<Vec<_>>());
    let buffer = TensorDataset::new((states, rewards))?.to_device(&device)?;

    // Rewards of 9 are drawn nine times as often as those of 1, and weighted as much less.
    let priorities: Vec<f64> = (0..transitions).map(|n| (n % 10) as f64).collect();
    let weights: Vec<f32> = priorities.iter().map(|priority| 1.0 / priority.max(1.0) as f32).collect();
    let sampler = WeightedRandomSampler::new(&priorities, 64 * 200, 7)?;
    let weighted = buffer.map(move |row, _| {
        let weight = weights[row.index()];
        Ok((row, weight))
    });
    let loader = DataLoader::builder(weighted)
        .batch_size(64)
        .sampler(sampler)
        .num_workers(2)
        .pin_memory(&device)
        .build()?;

    let mut drawn = [0.0f32; 10];
    for batch in &loader {
        let ((states, rewards), weights) = batch?.to_device(&device, true)?;
        let states = states.to_host(true)?.wait()?;
        let rewards = rewards.to_host(true)?.wait()?;
        let weights = weights.to_host(true)?.wait()?;
        for (row, (reward, weight)) in rewards.as_slice().iter().zip(weights.as_slice()).enumerate() {
            assert_eq!((states.row(row).as_slice()[0] / 4.0) % 10.0, *reward);
            drawn[*reward as usize] += weight;
        }
    }
    println!("{drawn:.0?}");
    // Weighted, all rewards but none come up equally often.
    let mean = drawn.iter().sum::<f32>() / 9.0;
    assert!(drawn[0] == 0.0 && drawn[1..].iter().all(|sum| (sum / mean - 1.0).abs() < 0.25));
    Ok(())
}
