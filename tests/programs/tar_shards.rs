//! Pictures in tar shards: the last shard is for validation, the others are shuffled and augmented.

use std::error::Error;
use std::fs::File;
use std::path::Path;

use pinfeed::image::{ImageTransform, LazyImage};
use pinfeed::webdataset::WebDataset;
use pinfeed::DataLoader;

/// What `webdataset.ShardWriter` does.
fn write(folder: &Path) -> Result<(), Box<dyn Error>> {
    for shard in 0..4 {
        let mut archive = tar::Builder::new(File::create(folder.join(format!("pets-{shard:06}.tar")))?);
        for sample in 0..30 {
            let picture = [b"P6 16 16 255\n".to_vec(), vec![shard * 50 + sample; 3 * 16 * 16]].concat();
            for (field, contents) in [("cls", (sample % 2).to_string().into_bytes()), ("ppm", picture)] {
                let mut header = tar::Header::new_ustar();
                header.set_size(contents.len() as u64);
                header.set_mode(0o444);
                archive.append_data(&mut header, format!("pet{:04}.{field}", 30 * u32::from(shard) + u32::from(sample)), &contents[..])?;
            }
        }
        archive.finish()?;
    }
    Ok(())
}

fn pets(pattern: &str, transform: ImageTransform) -> pinfeed::Result<WebDataset<(LazyImage, i64)>> {
    WebDataset::open(pattern)?
        .field("jpg;jpeg;png;ppm")
        .field("cls")
        .build(move |sample, rng| {
            let picture = LazyImage::encoded(sample.shared("jpg;jpeg;png;ppm")?);
            let picture = picture.with_path(sample.key()); // for its errors
            Ok((picture.transform(&transform, rng), sample.number("cls")?))
        })
}

pub fn main() -> Result<(), Box<dyn Error>> {
    let folder = tempfile::tempdir()?;
    write(folder.path())?;
    let shards = |range: &str| format!("{}/pets-{range}.tar", folder.path().display());

    let train = pets(&shards("{000000..000002}"), ImageTransform::train(8))?;
    let valid = pets(&shards("000003"), ImageTransform::eval(8))?;
    assert_eq!((train.len(), valid.len()), (90, 30));
    let train = DataLoader::builder(train).batch_size(15).shuffle(true).seed(1).num_workers(2).build()?;
    let valid = DataLoader::builder(valid).batch_size(10).num_workers(2).build()?;

    for epoch in train.epochs(0..2) {
        let mut seen = 0;
        for batch in epoch {
            let (pictures, classes) = batch?;
            assert_eq!(pictures.shape()[..], [15, 8, 8, 3]);
            seen += classes.len();
        }
        assert_eq!(seen, 90);
    }
    let mut brightness: Vec<u8> = Vec::new();
    for batch in valid.epoch(0) {
        brightness.extend(batch?.0.as_slice().iter().step_by(3 * 8 * 8));
    }
    assert!(brightness.into_iter().eq(150..180), "in the shard's order");
    Ok(())
}
