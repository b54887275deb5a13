//! Learns from a table: the order is shuffled, a fifth of the rows is kept for validation. It needs no data and no GPU.
//!
//!     cargo run --release --example tabular

use pinfeed::Tensor;
use pinfeed::prelude::*;
use pinfeed::rng::RngKey;
use pinfeed::sampler::{RandomSampler, SubsetRandomSampler};

const ROWS: usize = 50_000;
/// What is to be found: the weight of each column, and the constant.
const TRUE: [f32; 5] = [1.5, -2.0, 0.5, 3.0, -0.25];

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut rng = SampleRng::for_sample(RngKey {
        seed: 1,
        epoch: 0,
        position: 0,
    });
    let inputs: Vec<f32> = (0..4 * ROWS).map(|_| rng.f32() - 0.5).collect();
    let noisy = |row: &[f32]| predict(&TRUE, row) + 0.02 * (rng.f32() - 0.5);
    let targets: Vec<f32> = inputs.chunks(4).map(noisy).collect();
    let (inputs, targets) = (
        Tensor::from_vec(inputs, &[ROWS, 4])?,
        Tensor::from_vec(targets, &[ROWS])?,
    );

    let builder = || -> pinfeed::Result<_> {
        let table = TensorDataset::new((inputs.view(), targets.view()))?; // shares the table's memory
        Ok(DataLoader::builder(table).batch_size(100).num_workers(2))
    };
    let train = builder()?
        .seed(17)
        .sampler(RandomSampler::new(ROWS * 4 / 5))
        .build()?;
    let val = builder()?
        .sampler(SubsetRandomSampler::new(40_000..50_000, 17)?)
        .build()?;

    let mut weights = [0.0; 5];
    for epoch in train.epochs(0..5) {
        let number = epoch.number();
        for batch in epoch {
            let (inputs, targets) = batch?; // [100, 4] and [100]
            let mut gradient = [0.0; 5];
            for (row, target) in inputs.as_slice().chunks(4).zip(targets.as_slice()) {
                let error = predict(&weights, row) - target;
                let row = row.iter().chain(&[1.0]);
                gradient
                    .iter_mut()
                    .zip(row)
                    .for_each(|(sum, x)| *sum += error * x / 100.0);
            }
            weights
                .iter_mut()
                .zip(gradient)
                .for_each(|(weight, slope)| *weight -= 0.05 * slope);
        }
        let mut squares = 0.0;
        for batch in &val {
            let (inputs, targets) = batch?;
            let rows = inputs.as_slice().chunks(4).zip(targets.as_slice());
            squares += rows
                .map(|(row, target)| (predict(&weights, row) - target).powi(2))
                .sum::<f32>();
        }
        println!(
            "epoch {number}: validation error {:.4}, weights {weights:.2?}",
            (squares / 10_000.0).sqrt()
        );
    }
    println!("                                  the table's {TRUE:.2?}");
    Ok(())
}

fn predict(weights: &[f32; 5], row: &[f32]) -> f32 {
    row.iter()
        .zip(weights)
        .map(|(x, weight)| x * weight)
        .sum::<f32>()
        + weights[4]
}
