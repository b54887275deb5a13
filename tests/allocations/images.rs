//! An image batch exists nowhere but in its slab: while an epoch runs, nothing as large as a batch is allocated.

use std::sync::atomic::Ordering;

use pinfeed::image::{ImageFolder, ImageTransform};
use pinfeed::{Batch, DataLoader, Device};

use super::{LARGEST, LIVE, PEAK, alone};

const BATCH: usize = 64;
const BATCH_BYTES: usize = BATCH * 224 * 224 * 3;

#[test]
fn a_batch_of_images_is_allocated_once_and_reused() {
    let _alone = alone();
    let folder = tempfile::tempdir().unwrap();
    for class in ["cat", "dog"] {
        std::fs::create_dir(folder.path().join(class)).unwrap();
        for number in 0..2 * BATCH {
            let image = image::RgbImage::from_fn(256, 256, |x, y| {
                image::Rgb([x as u8, y as u8, number as u8])
            });
            image
                .save(folder.path().join(class).join(format!("{number}.jpg")))
                .unwrap();
        }
    }
    let device = Device::cpu();
    let images = ImageFolder::open(folder.path())
        .unwrap()
        .with_transform(ImageTransform::train(224));
    let loader = DataLoader::builder(images)
        .batch_size(BATCH)
        .shuffle(true)
        .num_workers(2)
        .pin_memory(&device)
        .build()
        .unwrap();
    // The first epoch makes the slabs. Batches are dropped on the host: the CPU device's own memory is not the question.
    for batch in loader.epoch(0) {
        assert!(batch.unwrap().0.is_pinned());
    }
    let made = device.memory().slabs_made;
    let before = LIVE.load(Ordering::Relaxed);
    PEAK.store(before, Ordering::Relaxed);
    LARGEST.store(0, Ordering::Relaxed);
    for batch in loader.epoch(1) {
        let (images, labels) = batch.unwrap();
        assert_eq!(images.shape()[..], [BATCH, 224, 224, 3]);
        assert!(images.is_pinned() && labels.len() == BATCH);
    }
    let (peak, largest) = (
        PEAK.load(Ordering::Relaxed) - before,
        LARGEST.load(Ordering::Relaxed),
    );
    assert!(
        largest < BATCH_BYTES / 16,
        "an allocation of {largest} bytes"
    );
    assert!(peak < BATCH_BYTES / 4, "{peak} bytes more than before");
    assert_eq!(device.memory().slabs_made, made);

    // And on to the device: one copy each, straight from where the rows were decoded.
    for batch in loader.epoch(2).take(2) {
        drop(batch.unwrap().to_device(&device, false).unwrap());
    }
    let stats = loader.stats();
    assert_eq!(stats.transfers.count, 2);
    assert!(stats.pinning < stats.loading.total + stats.decoding.total);
}
