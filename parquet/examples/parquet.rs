//! Learns from Parquet files of pictures and classes: writes some as the Hugging Face hub has them, trains on all but one of them, is
//! interrupted, goes on where it stopped, and validates on the last.
//!
//!     cargo run --release -p pinfeed-parquet --example parquet
//!
//! Files of your own are only read, and counted: a file, folder or pattern, and columns.
//!
//!     cargo run --release -p pinfeed-parquet --example parquet -- "fineweb/*.parquet" text

#[path = "../../examples/colours/mod.rs"]
mod colours;

use std::fs::File;
use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use arrow_array::{ArrayRef, BinaryArray, Int64Array, RecordBatch, StringArray, StructArray};
use arrow_schema::{DataType, Field};
use colours::{Batch, Model, Noise};
use parquet::arrow::ArrowWriter;
use pinfeed::dataset::Blocked;
use pinfeed::image::{ImageTransform, LazyImage};
use pinfeed::prelude::*;
use pinfeed_parquet::Parquet;

/// Pictures of 28 by 28 pixels, and classes, of the files that a pattern names.
fn pictures(
    pattern: &str,
    transform: ImageTransform,
) -> pinfeed::Result<Parquet<(LazyImage, i64)>> {
    Parquet::open(pattern)?
        .columns(["image", "label"]) // nothing else is read
        .build(move |row, rng| {
            let picture = row.image("image")?.transform(&transform, rng);
            Ok((picture, row.get("label")?))
        })
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args().skip(1);
    if let Some(pattern) = arguments.next() {
        return count(&pattern, &arguments.collect::<Vec<_>>());
    }
    let folder = std::env::temp_dir().join(format!("pinfeed-parquet-{}", std::process::id()));
    write_files(&folder)?;
    let place = folder.display();

    let train = pictures(
        &format!("{place}/train-*.parquet"),
        ImageTransform::new().random_crop(28),
    )?;
    println!("{train:?}");
    let loader = || -> pinfeed::Result<DataLoader<Batch>> {
        let data = Blocked::new(train.clone()).with_in_flight(8);
        DataLoader::builder(data)
            .batch_size(32)
            .shuffle(true)
            .seed(17)
            .num_workers(2)
            .build()
    };
    let mut model = Model::default();
    let first = loader()?;
    for batch in first.epoch(0).take(10) {
        model.learn(&batch?);
    }
    let state = first.state(); // a line of text, for a checkpoint
    drop(first);
    println!("interrupted after 10 batches, in the state {state}");
    for epoch in loader()?.resume(0..3, &state)? {
        let (number, mut rows) = (epoch.number(), 0);
        for batch in epoch {
            let batch = batch?;
            model.learn(&batch);
            rows += batch.1.len();
        }
        println!("epoch {number}: {rows} rows");
    }

    let valid = pictures(
        &format!("{place}/validation.parquet"),
        ImageTransform::new().center_crop(28),
    )?;
    let (mut right, all) = (0, valid.len());
    for batch in DataLoader::builder(valid).batch_size(50).build()?.epoch(0) {
        right += model.right(&batch?);
    }
    println!("{right} of {all} pictures of the last file are recognised");
    std::fs::remove_dir_all(&folder)?;
    Ok(())
}

/// Reads an epoch of other files, and takes nothing out of their rows.
fn count(pattern: &str, columns: &[String]) -> Result<(), Box<dyn std::error::Error>> {
    let began = Instant::now();
    let mut files = Parquet::open(pattern)?;
    if !columns.is_empty() {
        files = files.columns(columns.iter().cloned());
    }
    let data = files.build(|row, _| Ok(row.number()))?;
    println!("{data:?}, opened in {:.1?}", began.elapsed());
    for (column, of) in data.columns() {
        println!("    {column}: {of}");
    }
    let loader = DataLoader::builder(data)
        .batch_size(256)
        .shuffle(true)
        .num_workers(2)
        .build()?;
    let (began, mut rows) = (Instant::now(), 0);
    for batch in loader.epoch(0) {
        rows += batch?.len();
    }
    println!("{rows} rows in {:.1?}", began.elapsed());
    println!("{}", loader.stats());
    Ok(())
}

/// Eight files of 100 pictures each: red, green and blue ones, with noise. A picture is a structure of its file's bytes and path.
fn write_files(folder: &Path) -> Result<(), Box<dyn std::error::Error>> {
    std::fs::create_dir_all(folder)?;
    let mut noise = Noise::new();
    for file in 0..8 {
        let (mut pictures, mut classes) = (Vec::new(), Vec::new());
        for row in 0..100 {
            let class = row % 3;
            pictures.push(noise.picture(class));
            classes.push(class as i64);
        }
        let bytes: ArrayRef = Arc::new(BinaryArray::from_iter_values(pictures));
        let paths: ArrayRef = Arc::new(StringArray::from_iter_values(
            (0..100).map(|row| format!("{file}/{row}.ppm")),
        ));
        let image = StructArray::from(vec![
            (Arc::new(Field::new("bytes", DataType::Binary, true)), bytes),
            (Arc::new(Field::new("path", DataType::Utf8, true)), paths),
        ]);
        let label: ArrayRef = Arc::new(Int64Array::from(classes));
        let image: ArrayRef = Arc::new(image);
        let batch = RecordBatch::try_from_iter([("image", image), ("label", label)])?;
        let name = match file {
            7 => "validation.parquet".to_owned(),
            file => format!("train-{file:05}-of-00007.parquet"),
        };
        let mut writer =
            ArrowWriter::try_new(File::create(folder.join(name))?, batch.schema(), None)?;
        writer.write(&batch)?;
        writer.close()?;
    }
    Ok(())
}
