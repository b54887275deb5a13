//! A training that is interrupted in the middle of an epoch, and goes on where it stopped, with another number of workers.

use std::error::Error;
use std::fs;
use std::path::Path;

use pinfeed::loader::LoaderState;
use pinfeed::{DataLoader, Device, from_fn};

const SAMPLES: u64 = 1_000;

/// Trains for three epochs; the power goes off after `steps` steps. Returns the samples that it has seen.
fn train(folder: &Path, workers: usize, steps: usize) -> Result<Vec<i64>, Box<dyn Error>> {
    let device = Device::cpu();
    let samples = from_fn(SAMPLES, |index, rng| Ok((index as i64, [rng.f32(); 8])));
    let loader = DataLoader::builder(samples)
        .batch_size(30)
        .shuffle(true)
        .seed(17)
        .num_workers(workers)
        .pin_memory(&device)
        .build()?;
    let state = match fs::read_to_string(folder.join("loader.state")) {
        Ok(saved) => saved.parse()?,
        Err(_) => LoaderState::default(),
    };
    let mut seen = Vec::new();
    let mut step = 0;
    for epoch in loader.resume(0..3, &state)?.prefetch_to_device(&device, 2) {
        for batch in epoch {
            let (indices, _numbers) = batch?;
            seen.extend_from_slice(indices.to_host(false)?.wait()?.as_slice());
            // The model's weights are saved here, too.
            fs::write(folder.join("loader.state"), loader.state().to_string())?;
            step += 1;
            if step == steps {
                return Ok(seen);
            }
        }
    }
    Ok(seen)
}

pub fn main() -> Result<(), Box<dyn Error>> {
    let [folder, other] = [tempfile::tempdir()?, tempfile::tempdir()?];
    let whole = train(folder.path(), 0, usize::MAX)?;
    // 34 batches to an epoch: the third run ends one, and the fourth begins the next.
    let mut seen = Vec::new();
    for (workers, steps) in [(2, 7), (4, 1), (1, 26), (0, 20), (3, usize::MAX)] {
        seen.extend(train(other.path(), workers, steps)?);
    }
    assert_eq!(seen, whole);
    println!("{} samples in five runs, as in one", seen.len());
    Ok(())
}
