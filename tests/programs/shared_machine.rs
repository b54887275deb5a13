//! A job on a machine that it shares: it loads ahead as far as its part of the memory goes, whatever the batches are like.

use std::error::Error;

use pinfeed::{DataLoader, Tensor, from_fn};

/// What the job may use, as its scheduler says it.
fn memory_mb() -> usize {
    let told = std::env::var("JOB_MEMORY_MB").ok();
    told.and_then(|told| told.parse().ok()).unwrap_or(64)
}

pub fn main() -> Result<(), Box<dyn Error>> {
    let ahead = memory_mb() * (1 << 20) / 4; // the rest is the model's
    for side in [32, 256] {
        let pictures = from_fn(96, move |index, _| {
            Ok(Tensor::from_vec(vec![index as u8; 3 * side * side], &[3, side, side])?)
        });
        let loader = DataLoader::builder(pictures)
            .batch_size(8)
            .num_workers(2)
            .prefetch(64)
            .max_bytes_in_flight(ahead)
            .build()?;
        let batches = loader.epoch(0).collect::<Result<Vec<_>, _>>()?;
        assert_eq!(batches.len(), 12);
        let most = loader.stats().most_bytes_in_flight as usize;
        println!("{side}: {most} of {ahead} bytes");
        assert!(most <= ahead.max(8 * 3 * side * side + 4096));
    }
    Ok(())
}
