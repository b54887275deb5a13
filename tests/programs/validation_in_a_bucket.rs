//! Evaluates on two ranks with a bucket's pictures, which lack a class of the training set: each picture once, with its label.

use std::collections::BTreeMap;

use pinfeed::image::{ImageTransform, StoredFolder};
use pinfeed::loader::World;
use pinfeed::store::{self};
use pinfeed::{BoxError, DataLoader};

fn draw(folder: &std::path::Path, class: &str, count: u8) -> std::io::Result<()> {
    let class = folder.join(class);
    std::fs::create_dir_all(&class)?;
    for n in 0..count {
        let mut file = b"P6 4 4 255\n".to_vec();
        file.resize(file.len() + 4 * 4 * 3, n);
        std::fs::write(class.join(format!("{n}.ppm")), file)?;
    }
    Ok(())
}

pub fn main() -> Result<(), BoxError> {
    let folder = tempfile::tempdir()?;
    for (class, count) in [("train/ant", 3), ("train/bee", 3), ("train/cat", 3), ("val/ant", 4), ("val/cat", 7)] {
        draw(folder.path(), class, count)?;
    }
    let url = folder.path().to_str().ok_or("a path that is no text")?; // or "gs://bucket"

    let train = StoredFolder::open(store::open(url)?, "train")?;
    let mut seen = BTreeMap::<i64, usize>::new();
    for rank in 0..2 {
        let val = StoredFolder::open(store::open(url)?, "val")?
            .with_classes(train.classes())?
            .with_transform(ImageTransform::eval(4));
        let loader = DataLoader::builder(val).batch_size(3).world(World::new(rank, 2)?).num_workers(1).build()?;
        for batch in loader.epoch(0) {
            for label in batch?.1.as_slice() {
                *seen.entry(*label).or_default() += 1;
            }
        }
    }
    assert_eq!(seen, BTreeMap::from([(0, 4), (2, 7)]));
    Ok(())
}
