//! One table on the device, for training and for validation; and a run that is interrupted goes on with the table on the host.

use std::error::Error;
use std::sync::Arc;

use pinfeed::dataset::random_split;
use pinfeed::{Batch, DataLoader, Device, DeviceTensor, Tensor, TensorDataset};

type Table = TensorDataset<(Tensor<f32>, Tensor<i64>)>;

fn table() -> Result<Table, Box<dyn Error>> {
    let embeddings = (0..300 * 8).map(|at| at as f32 / 8.0).collect();
    let embeddings = Tensor::from_vec(embeddings, &[300, 8])?;
    let labels = Tensor::from((0..300i64).collect::<Vec<_>>());
    Ok(TensorDataset::new((embeddings, labels))?)
}

fn labels(batch: &(DeviceTensor<f32>, DeviceTensor<i64>)) -> Result<Vec<i64>, Box<dyn Error>> {
    let (embeddings, labels) = (batch.0.to_host(true)?.wait()?, batch.1.to_host(true)?.wait()?);
    for (row, label) in labels.as_slice().iter().enumerate() {
        assert_eq!(embeddings.row(row).as_slice()[0], *label as f32);
    }
    Ok(labels.to_vec())
}

pub fn main() -> Result<(), Box<dyn Error>> {
    let device = Device::cpu();
    let table_there = Arc::new(table()?.to_device(&device)?);
    let parts = random_split(Arc::clone(&table_there), &[0.8, 0.2], 3)?;
    let mut seen = Vec::new();
    for (part, rows) in parts.into_iter().zip([240, 60]) {
        let loader = DataLoader::builder(part).batch_size(32).shuffle(true).pin_memory(&device).build()?;
        let before = seen.len();
        for batch in loader.epoch(0).prefetch_to_device(&device, 1) {
            seen.extend(labels(&batch?)?);
        }
        assert_eq!(seen.len() - before, rows);
    }
    seen.sort_unstable();
    assert!(seen.into_iter().eq(0..300));

    // The run stops after three batches. Where it goes on, the table does not fit the device.
    let there = DataLoader::builder(table_there).batch_size(32).shuffle(true).seed(5).pin_memory(&device).build()?;
    let mut epoch = there.epoch(0).prefetch_to_device(&device, 1);
    let mut seen = Vec::new();
    for batch in epoch.by_ref().take(3) {
        seen.extend(labels(&batch?)?);
    }
    let state = epoch.state();
    let here = DataLoader::builder(table()?).batch_size(32).shuffle(true).seed(5).num_workers(2).build()?;
    for epoch in here.resume(0..1, &state)? {
        for batch in epoch {
            seen.extend(labels(&batch?.to_device(&device, true)?)?);
        }
    }
    seen.sort_unstable();
    assert!(seen.into_iter().eq(0..300));
    println!("all 300 rows, once each");
    Ok(())
}
