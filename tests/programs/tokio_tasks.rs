//! An async program: a blocking task drives the loader, and a channel brings its batches to async tasks.

use std::error::Error;
use std::sync::Arc;

use pinfeed::{DataLoader, Result, Tensor, from_fn};
use tokio::sync::mpsc;

type Batch = (Tensor<f32>, Tensor<i64>);

pub fn main() -> Result<(), Box<dyn Error>> {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .build()?;
    runtime.block_on(run())
}

async fn run() -> Result<(), Box<dyn Error>> {
    let samples = from_fn(1_000, |index, _| Ok(([index as f32; 8], index as i64)));
    let loader = DataLoader::builder(samples)
        .batch_size(100)
        .shuffle(true)
        .num_workers(2)
        .build()?;
    let loader = Arc::new(loader);

    // Waiting for a batch blocks its thread, which async tasks must not: so a blocking task does.
    let (sender, mut receiver) = mpsc::channel(2);
    let feeding = Arc::clone(&loader);
    let feeder = tokio::task::spawn_blocking(move || feed(&feeding, &sender));

    let mut seen = vec![0; 1_000];
    while let Some(batch) = receiver.recv().await {
        let (_x, y) = batch?;
        y.as_slice().iter().for_each(|index| seen[*index as usize] += 1);
    }
    feeder.await?;
    assert!(seen.iter().all(|times| *times == 3));

    // Who has enough drops the receiver: the feeder ends, and the loader stays usable.
    let (sender, mut receiver) = mpsc::channel(2);
    let feeding = Arc::clone(&loader);
    let feeder = tokio::task::spawn_blocking(move || feed(&feeding, &sender));
    assert!(receiver.recv().await.is_some());
    drop(receiver);
    feeder.await?;
    println!("{}", loader.stats());
    Ok(())
}

fn feed(loader: &DataLoader<Batch>, sender: &mpsc::Sender<Result<Batch>>) {
    for epoch in loader.epochs(0..3) {
        for batch in epoch {
            if sender.blocking_send(batch).is_err() {
                return;
            }
        }
    }
}
