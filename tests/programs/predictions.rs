//! Predictions for a whole data set, made as the batches come, and written where they belong.

use std::error::Error;

use pinfeed::{DataLoader, from_fn};

/// What stands for a model.
fn predict(inputs: &[f32]) -> f32 {
    inputs.iter().sum()
}

pub fn main() -> Result<(), Box<dyn Error>> {
    let samples = from_fn(250, |index, _| Ok([index as f32, 1.0, 0.5]));
    let len = 250;
    let loader = DataLoader::builder(samples)
        .batch_size(16)
        .num_workers(3)
        .prefetch(6)
        .in_order(false) // nothing here depends on the order
        .build()?;
    let mut predictions = vec![None; len];
    for batch in loader.epoch(0).with_info() {
        let (inputs, info) = batch?;
        let rows = inputs.as_slice().chunks(3).take(info.real_rows());
        for (row, index) in rows.zip(info.indices()) {
            predictions[index as usize] = Some(predict(row));
        }
    }
    let expected = (0..len).map(|index| Some(index as f32 + 1.5));
    assert!(predictions.into_iter().eq(expected));
    Ok(())
}
