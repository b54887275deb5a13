//! Four GPUs, played by threads, train together; then two of them go on with what is left of the epoch. (Ranks are processes, most
//! often: then `World::from_env()` says which one this is.)

use std::error::Error;
use std::sync::Mutex;
use std::thread;

use pinfeed::loader::{LoaderState, World};
use pinfeed::{DataLoader, Device, Result, from_fn};

const SAMPLES: u64 = 1_000;
const GLOBAL_BATCH: usize = 40;

/// Returns the samples that this rank saw, step by step, and where it stopped.
fn train(world: World, state: &LoaderState, steps: usize) -> Result<(Vec<Vec<i64>>, LoaderState)> {
    let device = Device::cpu(); // Device::cuda(world.local_rank())?
    let loader = DataLoader::builder(from_fn(SAMPLES, |index, _| Ok(index as i64)))
        .global_batch_size(GLOBAL_BATCH)
        .shuffle(true)
        .seed(17)
        .drop_last(true)
        .world(world)
        .num_workers(2)
        .pin_memory(&device)
        .build()?;
    let mut seen = Vec::new();
    for epoch in loader.resume(0..1, state)?.prefetch_to_device(&device, 1) {
        for batch in epoch.take(steps) {
            // A step; then all ranks average their gradients.
            seen.push(batch?.to_host(false)?.wait()?.to_vec());
        }
    }
    Ok((seen, loader.state()))
}

/// Runs all ranks at once. Returns what all of them saw together, step by step.
fn run(ranks: usize, state: &LoaderState, steps: usize) -> Result<(Vec<Vec<i64>>, LoaderState)> {
    let results = Mutex::new(Vec::new());
    thread::scope(|scope| {
        for rank in 0..ranks {
            let results = &results;
            scope.spawn(move || {
                let world = World::new(rank, ranks);
                let result = world.and_then(|world| train(world, state, steps));
                results.lock().unwrap_or_else(|error| error.into_inner()).push((rank, result));
            });
        }
    });
    let mut results = results.into_inner().unwrap_or_else(|error| error.into_inner());
    results.sort_by_key(|(rank, _)| *rank);
    let mut together: Vec<Vec<i64>> = Vec::new();
    let mut left = *state;
    for (_, result) in results {
        let (seen, state) = result?;
        together.resize(seen.len(), Vec::new());
        together.iter_mut().zip(seen).for_each(|(global, own)| global.extend(own));
        left = state; // the same on each rank
    }
    Ok((together, left))
}

pub fn main() -> std::result::Result<(), Box<dyn Error>> {
    let start = LoaderState::default();
    let (alone, _) = run(1, &start, usize::MAX)?;
    let (mut seen, state) = run(4, &start, 11)?;
    println!("{state}");
    assert_eq!((state.epoch(), state.position()), (0, 440));
    let (rest, _) = run(2, &state, usize::MAX)?;
    seen.extend(rest);
    assert_eq!(seen, alone);
    Ok(())
}
