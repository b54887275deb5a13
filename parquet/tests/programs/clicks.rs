//! Clicks: categories as integers for an embedding, numbers beside them, a label. Some rows lack a number, and are left out. The run is interrupted
//! in the middle of an epoch, and goes on from a line of text.

use std::error::Error;
use std::fs::File;
use std::path::Path;
use std::sync::Arc;

use arrow_array::{ArrayRef, Float64Array, Int32Array, RecordBatch};
use parquet::arrow::ArrowWriter;
use pinfeed::loader::OnError;
use pinfeed::{DataLoader, Tensor};
use pinfeed_parquet::{Numbers, Parquet};

type Batch = (Tensor<i32>, Tensor<f32>, Tensor<u8>);

fn write(file: &Path) -> Result<(), Box<dyn Error>> {
    let rows = 0..3_000;
    let shop: Int32Array = rows.clone().map(|at| Some(at % 17)).collect();
    let item: Int32Array = rows.clone().map(Some).collect();
    let price: Float64Array = rows.clone().map(|at| (at % 300 != 7).then(|| f64::from(at) / 8.0)).collect();
    let clicked: Int32Array = rows.map(|at| Some(i32::from(at % 5 == 0))).collect();
    let columns: [(&str, ArrayRef); 4] =
        [("shop", Arc::new(shop)), ("item", Arc::new(item)), ("price", Arc::new(price)), ("clicked", Arc::new(clicked))];
    let batch = RecordBatch::try_from_iter(columns)?;
    let mut writer = ArrowWriter::try_new(File::create(file)?, batch.schema(), None)?;
    writer.write(&batch)?;
    writer.close()?;
    Ok(())
}

fn loader(file: &Path) -> pinfeed::Result<DataLoader<Batch>> {
    let clicks = Parquet::open(&file.display().to_string())?.block_bytes(4_000).build_numbers((
        Numbers::<i32>::of(["shop", "item"]),
        Numbers::<f32>::of(["price"]),
        Numbers::<u8>::of(["clicked"]),
    ))?;
    DataLoader::builder(clicks)
        .batch_size(64)
        .shuffle(true)
        .seed(7)
        .num_workers(2)
        .on_error(OnError::Skip { at_most: 100 })
        .build()
}

pub fn main() -> Result<(), Box<dyn Error>> {
    let folder = tempfile::tempdir()?;
    let file = folder.path().join("clicks.parquet");
    write(&file)?;

    let mut seen = Vec::new();
    let mut take = |batch: pinfeed::Result<Batch>| -> pinfeed::Result<()> {
        let (categories, prices, clicked) = batch?;
        for ((of, price), clicked) in categories.as_slice().chunks(2).zip(prices.as_slice()).zip(clicked.as_slice()) {
            assert_eq!((of[0], *price, *clicked == 1), (of[1] % 17, of[1] as f32 / 8.0, of[1] % 5 == 0));
            seen.push(of[1]);
        }
        Ok(())
    };
    let first = loader(&file)?;
    first.epoch(0).take(20).try_for_each(&mut take)?;
    let checkpoint = first.state().to_string();
    drop(first);
    let second = loader(&file)?;
    for epoch in second.resume(0..1, &checkpoint.parse()?)? {
        epoch.into_iter().try_for_each(&mut take)?;
    }
    seen.sort_unstable();
    assert!(seen.into_iter().eq((0..3_000).filter(|at| at % 300 != 7)));
    Ok(())
}
