//! How many workers does this loop need? The program doubles them as long as the loader says that loading is what limits it, and
//! stops when the training step does.

use std::error::Error;
use std::thread::sleep;
use std::time::Duration;

use pinfeed::loader::{Limit, Stats};
use pinfeed::{DataLoader, from_fn};

/// One epoch: a sample waits 2 ms for its file, and a step takes 12 ms for ten of them.
fn epoch_with(workers: usize) -> pinfeed::Result<Stats> {
    let files = from_fn(300, |index, _| {
        sleep(Duration::from_millis(2));
        Ok(index as f32)
    });
    let loader = DataLoader::builder(files).batch_size(10).num_workers(workers).build()?;
    for batch in &loader {
        assert_eq!(batch?.len(), 10);
        sleep(Duration::from_millis(12));
    }
    Ok(loader.stats())
}

pub fn main() -> Result<(), Box<dyn Error>> {
    let mut workers = 1;
    let mut tried = Vec::new();
    let fed = loop {
        let stats = epoch_with(workers)?;
        let verdict = stats.to_string();
        println!("{workers} workers: {:.0} samples/s; {}", stats.samples_per_second(), verdict.lines().last().unwrap_or_default());
        tried.push(stats.limit());
        match stats.limit() {
            Limit::Loading if workers < 64 => workers *= 2,
            Limit::Consumer => break stats,
            other => return Err(format!("with {workers} workers, {other:?} limits the loop").into()),
        }
    };
    println!("{workers} workers are enough");

    assert_eq!(tried[0], Limit::Loading); // 20 ms for a batch, by one worker
    assert!(fed.to_string().contains("The training step limits the loop"), "{fed}");
    assert!(fed.starvation() < 0.1, "{fed}");
    // The table alone, for a program with words of its own.
    let table = fed.table().to_string();
    assert!(table.contains("loading (all workers)") && !table.contains("limits the loop"), "{table}");
    Ok(())
}
