//! A table of numbers, split into training and validation: linear regression by gradient descent, on the CPU.

use std::error::Error;

use pinfeed::rng::RngKey;
use pinfeed::{DataLoader, SampleRng, Tensor};

const FEATURES: usize = 4;
const TRUTH: [f32; FEATURES] = [1.5, -2.0, 0.5, 3.0];

pub fn main() -> Result<(), Box<dyn Error>> {
    // A program with a CSV file parses it here. A `Vec` of samples is a data set.
    let mut rng = SampleRng::for_sample(RngKey { seed: 1, epoch: 0, position: 0 });
    let mut table: Vec<(Vec<f32>, f32)> = (0..1_000).map(|_| row(&mut rng)).collect();
    let validation = table.split_off(800);

    let train = DataLoader::builder(table)
        .batch_size(50)
        .shuffle(true)
        .seed(17)
        .num_workers(2)
        .build()?;
    let validation = DataLoader::builder(validation).batch_size(64).build()?;

    let mut model = [0.0; FEATURES];
    let before = mean_squared_error(&model, &validation)?;
    for epoch in train.epochs(0..10) {
        for batch in epoch {
            let (features, targets) = batch?; // [50, 4] and [50]
            step(&mut model, &features, &targets);
        }
    }
    let after = mean_squared_error(&model, &validation)?;
    println!("validation error: {before:.3} before, {after:.6} after");
    assert!(after < before / 1_000.0);
    assert_eq!((train.len(), validation.len()), (16, 4)); // the last one of 200 / 64 is smaller
    Ok(())
}

fn row(rng: &mut SampleRng) -> (Vec<f32>, f32) {
    let features: Vec<f32> = (0..FEATURES).map(|_| rng.f32() - 0.5).collect();
    let target = predict(&TRUTH, &features);
    (features, target)
}

fn predict(model: &[f32; FEATURES], features: &[f32]) -> f32 {
    model.iter().zip(features).map(|(w, x)| w * x).sum()
}

fn step(model: &mut [f32; FEATURES], features: &Tensor<f32>, targets: &Tensor<f32>) {
    let rate = 2.0 / targets.len() as f32;
    let mut change = [0.0; FEATURES];
    for (x, y) in features.as_slice().chunks_exact(FEATURES).zip(targets.as_slice()) {
        let error = predict(model, x) - y;
        for (change, x) in change.iter_mut().zip(x) {
            *change += rate * error * x;
        }
    }
    for (weight, change) in model.iter_mut().zip(change) {
        *weight -= change;
    }
}

fn mean_squared_error(
    model: &[f32; FEATURES],
    loader: &DataLoader<(Tensor<f32>, Tensor<f32>)>,
) -> Result<f32, pinfeed::Error> {
    let (mut sum, mut rows) = (0.0, 0);
    for batch in loader {
        let (features, targets) = batch?;
        for (x, y) in features.as_slice().chunks_exact(FEATURES).zip(targets.as_slice()) {
            sum += (predict(model, x) - y).powi(2);
        }
        rows += targets.len();
    }
    Ok(sum / rows as f32)
}
