//! A program that says what it waits for, and lets its user stop: it never waits longer than a tenth of a second.

use std::error::Error;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use pinfeed::loader::TryNext;
use pinfeed::{DataLoader, from_fn};

pub fn main() -> Result<(), Box<dyn Error>> {
    let stopped = Arc::new(AtomicBool::new(false)); // by a signal handler, say
    let user = Arc::clone(&stopped);
    let samples = from_fn(1_000, move |index, _| {
        if index >= 50 {
            // The rest takes until the user has had enough.
            while !user.load(Ordering::Relaxed) {
                thread::yield_now();
            }
        }
        Ok(index as f32)
    });
    let loader = DataLoader::builder(samples)
        .batch_size(10)
        .num_workers(2)
        .build()?;
    let (mut epoch, mut steps, mut waited) = (loader.epoch(0), 0, 0);
    while !stopped.load(Ordering::Relaxed) {
        match epoch.next_timeout(Duration::from_millis(100)) {
            TryNext::Batch(batch) => steps += usize::from(!batch?.is_empty()),
            TryNext::End => break,
            TryNext::NotYet => {
                println!("step {steps} waits for its batch");
                waited += 1;
                stopped.store(waited == 2, Ordering::Relaxed);
            }
        }
    }
    assert_eq!((steps, epoch.state().position()), (5, 50)); // where to go on the next time
    Ok(())
}
