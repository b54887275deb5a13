//! A table of numbers in folders by year: the last year is for validation, rows without a price are left out, and a line is fitted.

use std::error::Error;
use std::fs::{self, File};
use std::path::Path;
use std::sync::Arc;

use arrow_array::{ArrayRef, Float64Array, Int32Array, RecordBatch};
use parquet::arrow::ArrowWriter;
use pinfeed::{DataLoader, Tensor};
use pinfeed_parquet::{Filter, Parquet};

/// As `pandas.DataFrame.to_parquet(partition_cols=["year"])` does.
fn write(folder: &Path) -> Result<(), Box<dyn Error>> {
    for year in 2020..2025 {
        let rows = 0..200;
        let size: Float64Array = rows.clone().map(|at| Some(50.0 + f64::from(at % 100))).collect();
        let rooms: Int32Array = rows.clone().map(|at| Some(1 + at % 5)).collect();
        let price = |at: i32| 2.0 * (50.0 + f64::from(at % 100)) + 10.0 * f64::from(1 + at % 5) + 5.0;
        let price: Float64Array = rows.map(|at| (at % 7 != 0).then(|| price(at))).collect();
        let columns: [(&str, ArrayRef); 3] = [("size", Arc::new(size)), ("rooms", Arc::new(rooms)), ("price", Arc::new(price))];
        let batch = RecordBatch::try_from_iter(columns)?;
        let folder = folder.join(format!("year={year}"));
        fs::create_dir_all(&folder)?;
        let mut writer = ArrowWriter::try_new(File::create(folder.join("part-0.parquet"))?, batch.schema(), None)?;
        writer.write(&batch)?;
        writer.close()?;
    }
    Ok(())
}

/// Features, of shape `[n, 2]`, and prices.
fn prices(folder: &Path, years: Filter) -> pinfeed::Result<Parquet<(Vec<f32>, f32)>> {
    Parquet::open(&folder.display().to_string())?
        .filter(years)
        .filter(Filter::present("price"))
        .columns(["size", "rooms", "price"])
        .build(|row, _rng| Ok((row.all(&["size", "rooms"])?, row.get("price")?)))
}

pub fn main() -> Result<(), Box<dyn Error>> {
    let folder = tempfile::tempdir()?;
    write(folder.path())?;
    let train = prices(folder.path(), Filter::within("year", ..2024))?;
    let valid = prices(folder.path(), Filter::equals("year", 2024))?;
    assert_eq!((train.len(), valid.len()), (4 * 171, 171));

    let train = DataLoader::builder(train).batch_size(32).shuffle(true).seed(1).num_workers(2).build()?;
    let mut weights = [0.0; 3];
    for epoch in train.epochs(0..300) {
        for batch in epoch {
            step(&mut weights, &batch?);
        }
    }
    let valid = DataLoader::builder(valid).batch_size(171).build()?;
    let mut worst = 0f32;
    for batch in valid.epoch(0) {
        let (features, prices) = batch?;
        for (row, price) in features.as_slice().chunks(2).zip(prices.as_slice()) {
            worst = worst.max((predict(&weights, row) - price).abs());
        }
    }
    assert!(worst < 5.0, "{weights:?}: {worst}");
    Ok(())
}

fn predict(weights: &[f32; 3], row: &[f32]) -> f32 {
    weights[0] * row[0] / 100.0 + weights[1] * row[1] + weights[2]
}

fn step(weights: &mut [f32; 3], (features, prices): &(Tensor<f32>, Tensor<f32>)) {
    let rate = 0.05 / prices.len() as f32;
    let mut change = [0.0; 3];
    for (row, price) in features.as_slice().chunks(2).zip(prices.as_slice()) {
        let error = predict(weights, row) - price;
        [row[0] / 100.0, row[1], 1.0].into_iter().zip(&mut change).for_each(|(of, change)| *change += error * of);
    }
    weights.iter_mut().zip(change).for_each(|(weight, change)| *weight -= rate * change);
}
