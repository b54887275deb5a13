//! Files on a slow disk: the first epoch reads them, the others have them in memory. What is random happens after the cache.

use std::error::Error;
use std::fs;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use pinfeed::{DataLoader, Dataset, from_fn};

pub fn main() -> Result<(), Box<dyn Error>> {
    let folder = tempfile::tempdir()?;
    let paths: Vec<_> = (0..40).map(|n| folder.path().join(format!("{n}.raw"))).collect();
    for (n, path) in paths.iter().enumerate() {
        fs::write(path, [n as u8; 256])?;
    }

    let reads = Arc::new(AtomicUsize::new(0));
    let counter = Arc::clone(&reads);
    let files = from_fn(40, move |index, _| {
        counter.fetch_add(1, Ordering::Relaxed);
        Ok(fs::read(&paths[index as usize])?)
    });
    let augmented = files.cached(100 << 20).map(|mut bytes, rng| {
        let start = rng.range(0..bytes.len());
        bytes.rotate_left(start);
        bytes[0] = bytes[0].wrapping_add(rng.range(0..=1));
        Ok(bytes)
    });
    let loader = DataLoader::builder(augmented).batch_size(8).shuffle(true).num_workers(2).build()?;
    for epoch in 0..5 {
        for batch in loader.epoch(epoch) {
            assert_eq!(batch?.shape()[..], [8, 256]);
        }
    }
    println!("200 samples, {} reads", reads.load(Ordering::Relaxed));
    assert_eq!(reads.load(Ordering::Relaxed), 40);
    Ok(())
}
