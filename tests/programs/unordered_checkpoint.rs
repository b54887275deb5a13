//! A training that takes batches as they are ready, is interrupted again and again, and leaves no sample out.

use std::error::Error;
use std::fs;
use std::path::Path;
use std::thread;
use std::time::Duration;

use pinfeed::loader::LoaderState;
use pinfeed::{DataLoader, from_fn};

/// Trains until the power goes off, after `steps` steps. Returns the samples that it has seen.
fn train(checkpoint: &Path, workers: usize, steps: usize) -> Result<Vec<i64>, Box<dyn Error>> {
    let samples = from_fn(900, |index, _| {
        thread::sleep(Duration::from_micros(if index % 50 == 7 { 3_000 } else { 10 }));
        Ok(index as i64)
    });
    let loader = DataLoader::builder(samples)
        .batch_size(15)
        .shuffle(true)
        .num_workers(workers)
        .prefetch(6)
        .in_order(false)
        .build()?;
    let state = match fs::read_to_string(checkpoint) {
        Ok(saved) => saved.parse()?,
        Err(_) => LoaderState::default(),
    };
    let mut seen = Vec::new();
    for batch in loader.resume(0..2, &state)?.flatten().take(steps) {
        seen.extend_from_slice(batch?.as_slice());
        // It says which batches came before their turn.
        fs::write(checkpoint, loader.state().to_string())?;
    }
    Ok(seen)
}

pub fn main() -> Result<(), Box<dyn Error>> {
    let folder = tempfile::tempdir()?;
    let checkpoint = folder.path().join("loader.state");
    let mut seen = Vec::new();
    for (workers, steps) in [(3, 11), (2, 1), (4, 60), (1, 9), (3, usize::MAX)] {
        seen.extend(train(&checkpoint, workers, steps)?);
        println!("{}", fs::read_to_string(&checkpoint)?);
    }
    // Two epochs.
    seen.sort_unstable();
    assert!(seen.into_iter().eq((0..1_800).map(|number| number / 2)));
    Ok(())
}
