//! Pictures kept as their files' bytes, within a budget that not all fit: decoding and augmentation come after the cache.

use std::error::Error;
use std::fs;
use std::sync::Arc;

use pinfeed::image::{ImageTransform, LazyImage};
use pinfeed::{DataLoader, Dataset, from_fn};

pub fn main() -> Result<(), Box<dyn Error>> {
    let folder = tempfile::tempdir()?;
    let paths: Vec<_> = (0..24).map(|n| folder.path().join(format!("{n}.ppm"))).collect();
    for (n, path) in paths.iter().enumerate() {
        let mut file = b"P6 20 16 255\n".to_vec();
        file.resize(file.len() + 20 * 16 * 3, 10 * n as u8);
        fs::write(path, file)?;
    }

    let files = from_fn(24, move |index, _| {
        let bytes: Arc<[u8]> = fs::read(&paths[index as usize])?.into(); // shared with the cache, not copied
        Ok((bytes, index as i64))
    });
    let cached = Arc::new(files.cached(16 << 10));
    let transform = ImageTransform::train(8);
    let images = Arc::clone(&cached)
        .map(move |(bytes, label), rng| Ok((LazyImage::encoded(bytes).transform(&transform, rng), label)));
    let loader = DataLoader::builder(images).batch_size(6).shuffle(true).num_workers(2).build()?;
    for epoch in 0..3 {
        for batch in loader.epoch(epoch) {
            let (images, labels) = batch?;
            assert_eq!(images.shape()[..], [6, 8, 8, 3]);
            for (row, label) in labels.as_slice().iter().enumerate() {
                assert!(images.row(row).as_slice().iter().all(|value| i64::from(*value) == 10 * label));
            }
        }
    }
    let stats = cached.stats();
    println!("{stats:?}");
    assert!(stats.bytes <= 16 << 10 && (10..24).contains(&stats.samples));
    assert_eq!(stats.hits, 2 * stats.samples);
    Ok(())
}
