//! Least squares on a table that lies on the device: a line through many noisy points, fitted by gradient descent.

use std::error::Error;

use pinfeed::{DataLoader, Device, DeviceTensor, Tensor, TensorDataset};

/// What a kernel would do: adds up the gradient of the batch's squared errors.
fn gradient(inputs: &[f32], targets: &[f32], weights: [f32; 3]) -> [f32; 3] {
    let mut sum = [0.0; 3];
    for (input, target) in inputs.chunks_exact(2).zip(targets) {
        let error = weights[0] * input[0] + weights[1] * input[1] + weights[2] - target;
        let parts = [input[0] * error, input[1] * error, error];
        sum.iter_mut().zip(parts).for_each(|(sum, part)| *sum += part);
    }
    sum.map(|sum| sum / targets.len() as f32)
}

pub fn main() -> Result<(), Box<dyn Error>> {
    let device = Device::cpu(); // Device::cuda(0)? in earnest
    let noise = |row: usize| ((row * 7919) % 101) as f32 / 1_000.0 - 0.05;
    let inputs: Vec<f32> = (0..2 * 5_000).map(|at| ((at * 31) % 997) as f32 / 997.0).collect();
    let targets = inputs.chunks_exact(2).enumerate();
    let targets: Vec<f32> = targets.map(|(row, x)| 3.0 * x[0] - 2.0 * x[1] + 0.5 + noise(row)).collect();

    let table = TensorDataset::new((Tensor::from_vec(inputs, &[5_000, 2])?, Tensor::from(targets)))?;
    let loader = DataLoader::builder(table.to_device(&device)?)
        .batch_size(100)
        .shuffle(true)
        .pin_memory(&device)
        .build()?;

    let stream = device.stream()?;
    let mut weights = [0.0f32; 3];
    for epoch in loader.epochs(0..40).prefetch_to_device(&device, 2) {
        for batch in epoch {
            let (inputs, targets): (DeviceTensor<f32>, DeviceTensor<f32>) = batch?;
            let (inputs, targets) = (inputs.on(&stream)?, targets.on(&stream)?);
            let (Some(inputs), Some(targets)) = (inputs.host_slice()?, targets.host_slice()?) else {
                return Err("kernels read it where it lies".into());
            };
            let gradient = gradient(inputs, targets, weights);
            weights.iter_mut().zip(gradient).for_each(|(weight, slope)| *weight -= 0.5 * slope);
        }
    }
    println!("{weights:.2?}");
    for (found, right) in weights.iter().zip([3.0, -2.0, 0.5]) {
        assert!((found - right).abs() < 0.05, "{weights:?}");
    }
    Ok(())
}
