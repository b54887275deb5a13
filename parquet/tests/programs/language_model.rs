//! Texts as lists of tokens, read by two processes, one of which is lost: the run goes on with the other alone, and no text comes twice.

use std::error::Error;
use std::fs::File;
use std::path::Path;
use std::sync::Arc;

use arrow_array::builder::{Int32Builder, ListBuilder};
use arrow_array::{ArrayRef, RecordBatch, StringArray};
use parquet::arrow::ArrowWriter;
use parquet::file::properties::WriterProperties;
use pinfeed::dataset::Blocked;
use pinfeed::loader::{LoaderState, World};
use pinfeed::{Batch, DataLoader, Device, Ragged};
use pinfeed_parquet::Parquet;

/// A text, as it is collated: `TextBatch` has the tokens of all texts of a batch, one behind the other.
#[derive(pinfeed::Sample)]
struct Text {
    id: String,
    tokens: Ragged<i32>,
}

fn write(folder: &Path) -> Result<(), Box<dyn Error>> {
    for file in 0..4 {
        let mut tokens = ListBuilder::new(Int32Builder::new());
        for row in 0..100 {
            (0..=row % 9).for_each(|token| tokens.values().append_value(1000 * file + token));
            tokens.append(true);
        }
        let ids = StringArray::from_iter_values((0..100).map(|row| format!("{file}/{row}")));
        let columns: [(&str, ArrayRef); 2] = [("id", Arc::new(ids)), ("tokens", Arc::new(tokens.finish()))];
        let batch = RecordBatch::try_from_iter(columns)?;
        let small = WriterProperties::builder().set_max_row_group_row_count(Some(20)).build();
        let place = folder.join(format!("train-{file:05}-of-00004.parquet"));
        let mut writer = ArrowWriter::try_new(File::create(place)?, batch.schema(), Some(small))?;
        writer.write(&batch)?;
        writer.close()?;
    }
    Ok(())
}

/// The loader of a process: the batch of all together stays the same.
fn loader(folder: &Path, world: World) -> Result<DataLoader<TextBatch>, Box<dyn Error>> {
    let data = Parquet::open(&format!("{}/train-*.parquet", folder.display()))?
        .columns(["id", "tokens"])
        .build(|row, _rng| Ok(Text { id: row.get("id")?, tokens: row.get("tokens")? }))?;
    let data = Blocked::new(data).with_in_flight(4).with_max_bytes(8 << 20);
    let builder = DataLoader::builder(data).global_batch_size(16).shuffle(true).seed(4);
    Ok(builder.num_workers(2).world(world).build()?)
}

pub fn main() -> Result<(), Box<dyn Error>> {
    let folder = tempfile::tempdir()?;
    write(folder.path())?;
    let mut seen = Vec::new();

    let mut state = None;
    for rank in 0..2 {
        let loader = loader(folder.path(), World::new(rank, 2)?)?;
        for batch in loader.epoch(0).take(10) {
            let batch = batch?;
            assert_eq!(batch.id.len(), 8, "its half");
            seen.extend(batch.id);
        }
        state = Some(loader.state().to_string()); // what the checkpoint has
    }

    let state: LoaderState = state.ok_or("no rank")?.parse()?;
    let alone = loader(folder.path(), World::new(0, 1)?)?;
    let device = Device::cpu();
    let stream = device.stream()?;
    for epoch in alone.resume(0..1, &state)? {
        for batch in epoch {
            let batch = batch?;
            assert_eq!(batch.tokens.offsets.len(), batch.id.len() + 1);
            let batch: TextDeviceBatch = batch.to_device(&device, true)?;
            let tokens = batch.tokens.values.on(&stream)?;
            assert!(tokens.len() >= batch.id.len());
            seen.extend(batch.id);
        }
    }
    seen.sort();
    seen.dedup();
    assert_eq!(seen.len(), 400, "each once");
    Ok(())
}
