//! Pictures in a folder or a bucket, by the URL on the command line: listed once, fetched ahead, their class from the folder they are in.

use pinfeed::dataset::{IntoDataset, StagedDataset};
use pinfeed::image::{ImageTransform, StoredFolder};
use pinfeed::store;
use pinfeed::{BoxError, DataLoader};

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

    let pictures = StoredFolder::open(store::open(url)?, "")?.with_transform(ImageTransform::eval(16));
    assert_eq!(pictures.describe(0).as_deref(), Some("cat/0.ppm"));
    let pictures = pictures.into_dataset().with_in_flight(16); // (a bucket has 256 requests at a time, if nothing is said)
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
