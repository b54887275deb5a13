//! A thread has an epoch of its own while the program trains on another: the timeline has both consumers, by their threads' names.

use std::error::Error;
use std::sync::Arc;
use std::thread;

use pinfeed::{DataLoader, from_fn};

pub fn main() -> Result<(), Box<dyn Error>> {
    let samples = from_fn(100, |index, _| Ok(index as i64));
    let loader = Arc::new(DataLoader::builder(samples).batch_size(10).num_workers(2).build()?);
    let recording = loader.record();
    let epoch = loader.owned_epoch(1);
    let evaluation = thread::Builder::new().name("evaluation".to_owned()).spawn(move || {
        let batches = epoch.map(|batch| batch.map(|numbers| numbers.as_slice().iter().sum::<i64>()));
        batches.sum::<pinfeed::Result<i64>>()
    })?;
    for batch in loader.epoch(0) {
        batch?;
    }
    let sum = evaluation.join().map_err(|_| "it panicked")??;
    assert_eq!(sum, 4950);
    let timeline = recording.finish();
    assert!(timeline.to_html().contains("consumer (evaluation)"));
    assert_eq!(timeline.dropped(), 0);
    Ok(())
}
