//! The mean and the deviation of each column, in one pass in order; then the same numbers, normalized, mapped on the workers.

use std::error::Error;
use std::fs::File;
use std::sync::Arc;

use arrow_array::{ArrayRef, Float32Array, RecordBatch};
use parquet::arrow::ArrowWriter;
use pinfeed::dataset::IntoDataset;
use pinfeed::{DataLoader, Dataset, Tensor};
use pinfeed_parquet::{Numbers, Parquet};

const COLUMNS: [&str; 3] = ["temperature", "pressure", "humidity"];

pub fn main() -> Result<(), Box<dyn Error>> {
    let folder = tempfile::tempdir()?;
    let file = folder.path().join("sensors.parquet");
    let column = |scale: f32| -> ArrayRef {
        let values: Float32Array = (0..10_000).map(|at| Some(scale * (1.0 + (at % 11) as f32))).collect();
        Arc::new(values)
    };
    let columns = COLUMNS.into_iter().zip([1.0, 100.0, 0.01].map(column));
    let batch = RecordBatch::try_from_iter(columns)?;
    let mut writer = ArrowWriter::try_new(File::create(&file)?, batch.schema(), None)?;
    writer.write(&batch)?;
    writer.close()?;

    let sensors = Parquet::open(&file.display().to_string())?.build_numbers(Numbers::<f32>::of(COLUMNS))?;
    let (mut sums, mut squares) = ([0f64; 3], [0f64; 3]);
    let loader = DataLoader::builder(sensors.clone()).batch_size(1_000).num_workers(1).build()?;
    for batch in &loader {
        for row in batch?.as_slice().chunks(3) {
            for (at, value) in row.iter().enumerate() {
                sums[at] += f64::from(*value);
                squares[at] += f64::from(*value) * f64::from(*value);
            }
        }
    }
    let rows = sensors.len() as f64;
    let norm = [0, 1, 2].map(|at| {
        let mean = sums[at] / rows;
        (mean as f32, (squares[at] / rows - mean * mean).sqrt() as f32)
    });

    let normalized = sensors.into_dataset().map(move |row: Tensor<f32>, _rng| {
        let row = row.as_slice().iter().zip(norm);
        Ok(row.map(|(value, (mean, deviation))| (value - mean) / deviation).collect::<Vec<f32>>())
    });
    let loader = DataLoader::builder(normalized).batch_size(500).shuffle(true).num_workers(2).build()?;
    let mut sums = [0f64; 3];
    for batch in loader.epoch(0) {
        for row in batch?.as_slice().chunks(3) {
            row.iter().zip(&mut sums).for_each(|(value, sum)| *sum += f64::from(*value));
        }
    }
    assert!(sums.iter().all(|sum| (sum / rows).abs() < 1e-3), "{sums:?}");
    Ok(())
}
