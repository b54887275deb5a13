//! A table that need not fit into memory: fares by distance and time, shuffled over all files, on a device.

use std::error::Error;
use std::fs::File;
use std::path::Path;
use std::sync::Arc;

use arrow_array::{ArrayRef, Float32Array, Int64Array, RecordBatch};
use parquet::arrow::ArrowWriter;
use pinfeed::{DataLoader, Device};
use pinfeed_parquet::{Numbers, Parquet};

fn write(folder: &Path) -> Result<(), Box<dyn Error>> {
    for month in 1..=4 {
        let rows = 0..5_000;
        let distance: Float32Array = rows.clone().map(|at| Some(0.1 * (at % 97) as f32)).collect();
        let minutes: Int64Array = rows.clone().map(|at| Some(3 + at % 41)).collect();
        let fare: Float32Array = rows.map(|at| Some(2.5 + 0.2 * (at % 97) as f32 + 0.5 * (3 + at % 41) as f32)).collect();
        let columns: [(&str, ArrayRef); 3] =
            [("trip_distance", Arc::new(distance)), ("minutes", Arc::new(minutes)), ("fare", Arc::new(fare))];
        let batch = RecordBatch::try_from_iter(columns)?;
        let mut writer = ArrowWriter::try_new(File::create(folder.join(format!("2024-{month:02}.parquet")))?, batch.schema(), None)?;
        writer.write(&batch)?;
        writer.close()?;
    }
    Ok(())
}

pub fn main() -> Result<(), Box<dyn Error>> {
    let folder = tempfile::tempdir()?;
    write(folder.path())?;
    let table = |files: &str| {
        Parquet::open(&format!("{}/{files}", folder.path().display()))?
            .build_numbers((Numbers::<f32>::of(["trip_distance", "minutes"]), Numbers::<f32>::of(["fare"])))
    };
    let device = Device::cpu(); // Device::cuda(0)?
    let train = DataLoader::builder(table("2024-*.parquet")?)
        .batch_size(500)
        .shuffle(true)
        .seed(1)
        .num_workers(2)
        .pin_memory(&device)
        .build()?;
    let mut weights = [0f32; 3];
    for epoch in train.epochs(0..40) {
        for batch in epoch.prefetch_to_device(&device, 2) {
            let (features, fares) = batch?;
            let (features, fares) = (features.to_host(false)?.wait()?, fares.to_host(false)?.wait()?); // (in truth, a kernel)
            let mut change = [0f32; 3];
            for (row, fare) in features.as_slice().chunks(2).zip(fares.as_slice()) {
                let error = predict(&weights, row) - fare;
                [row[0] / 5.0, row[1] / 20.0, 1.0].into_iter().zip(&mut change).for_each(|(of, change)| *change += error * of);
            }
            weights.iter_mut().zip(change).for_each(|(weight, change)| *weight -= 0.3 * change / fares.len() as f32);
        }
    }
    // The first month, in order.
    let valid = DataLoader::builder(table("2024-01.parquet")?).batch_size(5_000).build()?;
    for batch in &valid {
        let (features, fares) = batch?;
        let off = features.as_slice().chunks(2).zip(fares.as_slice()).map(|(row, fare)| (predict(&weights, row) - fare).abs());
        let worst = off.fold(0f32, f32::max);
        assert!(worst < 0.5, "{weights:?}: {worst}");
    }
    Ok(())
}

fn predict(weights: &[f32; 3], row: &[f32]) -> f32 {
    weights[0] * row[0] / 5.0 + weights[1] * row[1] / 20.0 + weights[2]
}
