//! Pictures of a data set of the hub, in the layout in which `datasets` writes them, some of which are broken: those are left out and counted.

use std::error::Error;
use std::fs::File;
use std::path::Path;
use std::sync::Arc;

use arrow_array::{ArrayRef, BinaryArray, Int64Array, RecordBatch, StringArray, StructArray};
use arrow_schema::{DataType, Field};
use parquet::arrow::ArrowWriter;
use pinfeed::image::ImageTransform;
use pinfeed::loader::OnError;
use pinfeed::DataLoader;
use pinfeed_parquet::Parquet;

fn write(folder: &Path) -> Result<(), Box<dyn Error>> {
    for file in 0..3u8 {
        let pictures = (0..40u8).map(|row| match row {
            7 => b"no picture".to_vec(),
            row => [&b"P6 16 16 255\n"[..], &[file * 40 + row; 3 * 16 * 16]].concat(),
        });
        let bytes: ArrayRef = Arc::new(BinaryArray::from_iter_values(pictures));
        let paths: ArrayRef = Arc::new(StringArray::from_iter_values((0..40).map(|row| format!("pet-{file}-{row}.ppm"))));
        let image: ArrayRef = Arc::new(StructArray::from(vec![
            (Arc::new(Field::new("bytes", DataType::Binary, true)), bytes),
            (Arc::new(Field::new("path", DataType::Utf8, true)), paths),
        ]));
        let label: ArrayRef = Arc::new(Int64Array::from_iter_values((0..40).map(|row| row % 2)));
        let batch = RecordBatch::try_from_iter([("image", image), ("label", label)])?;
        let place = folder.join(format!("train-{file:05}-of-00003.parquet"));
        let mut writer = ArrowWriter::try_new(File::create(place)?, batch.schema(), None)?;
        writer.write(&batch)?;
        writer.close()?;
    }
    Ok(())
}

pub fn main() -> Result<(), Box<dyn Error>> {
    let folder = tempfile::tempdir()?;
    write(folder.path())?;

    let train = ImageTransform::train(8);
    let data = Parquet::open(&format!("{}/", folder.path().display()))? // or Parquet::hub("org/pets", "train")
        .columns(["image", "label"])
        .build(move |row, rng| Ok((row.image("image")?.transform(&train, rng), row.get::<i64>("label")?)))?;
    assert_eq!(data.len(), 120);
    let loader = DataLoader::builder(data)
        .batch_size(10)
        .shuffle(true)
        .seed(2)
        .num_workers(2)
        .on_error(OnError::Skip { at_most: 5 })
        .build()?;
    for epoch in loader.epochs(0..2) {
        let mut seen = 0;
        for batch in epoch {
            let (pictures, labels) = batch?;
            assert_eq!(pictures.shape()[1..], [8, 8, 3]);
            seen += labels.len();
        }
        assert_eq!(seen, 117, "three are broken");
    }
    Ok(())
}
