//! Pictures in a folder or a bucket, by the URL on the command line: listed once, fetched ahead, their class from the folder they are in.

use std::collections::BTreeSet;
use std::sync::Arc;

use pinfeed::dataset::{Staged, StagedDataset};
use pinfeed::image::{ImageTransform, LazyImage};
use pinfeed::store::{self, Object, Store};
use pinfeed::{BoxError, DataLoader, SampleRng};

struct Pictures {
    store: Arc<dyn Store>,
    objects: Vec<Object>,
    classes: Vec<String>,
    transform: ImageTransform,
}

impl Pictures {
    fn open(url: &str) -> Result<Pictures, BoxError> {
        let store = store::open(url)?;
        let mut objects = store.list("")?;
        objects.retain(|object| object.key.ends_with(".ppm"));
        let classes: BTreeSet<String> = objects.iter().map(class).collect();
        let classes = classes.into_iter().collect();
        Ok(Pictures { store, objects, classes, transform: ImageTransform::eval(16) })
    }
}

fn class(object: &Object) -> String {
    object.key.split('/').next().unwrap_or_default().to_owned()
}

impl StagedDataset for Pictures {
    type Raw = Vec<u8>;
    type Sample = (LazyImage, i64);

    fn len(&self) -> u64 {
        self.objects.len() as u64
    }

    fn fetch(&self, index: u64) -> Result<Vec<u8>, BoxError> {
        let object = &self.objects[index as usize];
        self.store.read(object, 0..object.bytes)
    }

    fn decode(&self, index: u64, raw: Vec<u8>, rng: &mut SampleRng) -> Result<Self::Sample, BoxError> {
        let class = class(&self.objects[index as usize]);
        let label = self.classes.binary_search(&class).map_err(|_| "a class that was not listed")?;
        Ok((LazyImage::encoded(raw).transform(&self.transform, rng), label as i64))
    }

    fn raw_bytes(&self, raw: &Vec<u8>) -> usize {
        raw.capacity()
    }

    fn describe(&self, index: u64) -> Option<String> {
        Some(self.store.locate(&self.objects[index as usize].key))
    }
}

pub fn main() -> Result<(), BoxError> {
    // Instead of the command line's, a folder of two classes.
    let folder = tempfile::tempdir()?;
    for n in 0..24u8 {
        let class = folder.path().join(if n % 3 == 0 { "cat" } else { "dog" });
        std::fs::create_dir_all(&class)?;
        let mut file = b"P6 20 16 255\n".to_vec();
        file.resize(file.len() + 20 * 16 * 3, if n % 3 == 0 { 50 } else { 200 });
        std::fs::write(class.join(format!("{n}.ppm")), file)?;
    }
    let url = folder.path().to_str().ok_or("a path that is no text")?; // or "s3://bucket/pictures"

    let pictures = Staged::new(Pictures::open(url)?).with_in_flight(16);
    let loader = DataLoader::builder(pictures).batch_size(8).shuffle(true).num_workers(2).build()?;
    for epoch in 0..2 {
        for batch in loader.epoch(epoch) {
            let (images, labels) = batch?;
            for (row, label) in labels.as_slice().iter().enumerate() {
                let value = if *label == 0 { 50 } else { 200 };
                assert!(images.row(row).as_slice().iter().all(|pixel| *pixel == value));
            }
        }
    }

    // A file that was written again meanwhile is an error that names it.
    let path = folder.path().join("cat/0.ppm");
    std::fs::write(&path, b"P6 1 1 255\n...")?;
    let error = loader.epoch(2).find_map(Result::err).ok_or("it was not noticed")?.to_string();
    assert!(error.contains("0.ppm") && error.contains("was changed after it was listed"), "{error}");
    Ok(())
}
