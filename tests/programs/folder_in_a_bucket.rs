//! Trains on class folders of a bucket, which a disk of this machine keeps: the second epoch, and the next run, read no object.

use std::sync::Arc;

use pinfeed::image::{ImageTransform, StoredFolder};
use pinfeed::store::{self, DiskCache};
use pinfeed::{BoxError, DataLoader};

pub fn main() -> Result<(), BoxError> {
    // Instead of "s3://bucket/flowers", a folder of three classes.
    let folder = tempfile::tempdir()?;
    for n in 0..30u8 {
        let class = folder.path().join("flowers/train").join(["daisy", "rose", "tulip"][n as usize % 3]);
        std::fs::create_dir_all(&class)?;
        let mut file = b"P6 20 16 255\n".to_vec();
        file.resize(file.len() + 20 * 16 * 3, 40 * (n % 3) + 40);
        std::fs::write(class.join(format!("{n}.ppm")), file)?;
    }
    let url = folder.path().join("flowers");
    let url = url.to_str().ok_or("a path that is no text")?;

    for run in 0..2 {
        let bucket = store::open(url)?;
        let cache = Arc::new(DiskCache::open(bucket, folder.path().join("cache"), 64 << 20)?);
        let train = StoredFolder::open(Arc::clone(&cache), "train")?.with_transform(ImageTransform::train(8));
        assert_eq!(train.classes(), ["daisy", "rose", "tulip"]);
        let loader = DataLoader::builder(train).batch_size(10).shuffle(true).num_workers(2).build()?;
        for epoch in loader.epochs(0..2) {
            let is_first = run == 0 && epoch.number() == 0;
            for batch in epoch {
                let (pictures, labels) = batch?;
                for (row, label) in labels.as_slice().iter().enumerate() {
                    assert!(pictures.row(row).as_slice().iter().all(|pixel| i64::from(*pixel) == 40 * label + 40));
                }
            }
            if is_first {
                assert_eq!(cache.stats().requests, 30);
            }
        }
        assert_eq!(cache.stats().requests, if run == 0 { 30 } else { 0 });
    }
    Ok(())
}
