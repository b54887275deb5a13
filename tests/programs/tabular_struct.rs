//! A table of numbers, whose rows are structs, split into training and validation.

use std::error::Error;

use pinfeed::{DataLoader, Device, Tensor};

#[derive(Clone, pinfeed::Sample)]
struct Row {
    features: Vec<f32>,
    target: f32,
}

pub fn main() -> Result<(), Box<dyn Error>> {
    let mut rows: Vec<Row> = (0..100)
        .map(|number| Row {
            features: vec![number as f32; 8],
            target: number as f32 * 0.5,
        })
        .collect();
    let validation = rows.split_off(80);

    let device = Device::cpu();
    let train = DataLoader::builder(rows)
        .batch_size(20)
        .shuffle(true)
        .pin_memory(&device)
        .build()?;
    let validation = DataLoader::builder(validation).batch_size(20).build()?;

    for epoch in train.epochs(0..2) {
        for batch in epoch {
            let RowBatch { features, target } = batch?;
            assert_eq!(features.shape()[..], [20, 8]);
            check(&features, &target);
        }
    }
    for batch in &validation {
        let batch = batch?;
        check(&batch.features, &batch.target);
        assert!(batch.target.as_slice().iter().all(|target| *target >= 40.0));
    }
    Ok(())
}

/// Rows and targets still belong together.
fn check(features: &Tensor<f32>, targets: &Tensor<f32>) {
    for (features, target) in features.as_slice().chunks(8).zip(targets.as_slice()) {
        assert!(features.iter().all(|feature| feature * 0.5 == *target));
    }
}
