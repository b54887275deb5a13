//! Pictures in shards that `tar czf` compressed: read as they are, shuffled, and resumed after an interruption.

use std::error::Error;
use std::fs::{self, File};
use std::path::Path;

use flate2::Compression;
use flate2::write::GzEncoder;
use pinfeed::image::{ImageTransform, LazyImage};
use pinfeed::iterable::IterableDataset;
use pinfeed::loader::{Iterable, IterableState};
use pinfeed::webdataset::WebDataset;
use pinfeed::{DataLoader, Tensor};

fn write(folder: &Path) -> Result<(), Box<dyn Error>> {
    for shard in 0..5u8 {
        let file = File::create(folder.join(format!("pets-{shard:06}.tar.gz")))?;
        let mut archive = tar::Builder::new(GzEncoder::new(file, Compression::fast()));
        for sample in 0..20u8 {
            let picture = [b"P6 12 12 255\n".to_vec(), vec![20 * shard + sample; 3 * 12 * 12]].concat();
            for (field, contents) in [("cls", (sample % 4).to_string().into_bytes()), ("ppm", picture)] {
                let mut header = tar::Header::new_ustar();
                header.set_size(contents.len() as u64);
                header.set_mode(0o444);
                archive.append_data(&mut header, format!("{shard}/pet{sample:04}.{field}"), &contents[..])?;
            }
        }
        archive.into_inner()?.finish()?;
    }
    Ok(())
}

type Loader = DataLoader<(Tensor<u8>, Tensor<i64>), Iterable>;

fn loader(folder: &Path) -> Result<Loader, Box<dyn Error>> {
    let shards = WebDataset::open(&format!("{}/pets-{{000000..000004}}.tar.gz", folder.display()))?;
    let transform = ImageTransform::train(8);
    let pets = shards.field("jpg;png;ppm").field("cls").stream(|sample, _rng| {
        let picture = LazyImage::encoded(sample.field("jpg;png;ppm")?.to_vec()).with_path(sample.key());
        Ok((picture, sample.number::<i64>("cls")?))
    })?;
    let pets = pets.shuffle(40).map(move |(picture, class), rng| Ok((picture.transform(&transform, rng), class)));
    Ok(DataLoader::iterable(pets).batch_size(10).seed(5).num_workers(2).build()?)
}

pub fn main() -> Result<(), Box<dyn Error>> {
    let folder = tempfile::tempdir()?;
    write(folder.path())?;
    let checkpoint = folder.path().join("loader.state");

    let whole: Vec<_> = loader(folder.path())?.epoch(0).collect::<Result<_, _>>()?;
    assert_eq!(whole.len(), 10);

    let first = loader(folder.path())?;
    for batch in first.epoch(0).take(4) {
        let (pictures, _classes) = batch?;
        assert_eq!(pictures.shape()[..], [10, 8, 8, 3]);
        fs::write(&checkpoint, first.state().to_string())?;
    }
    drop(first); // the machine is lost

    let second = loader(folder.path())?;
    let state: IterableState = fs::read_to_string(&checkpoint)?.parse()?;
    for epoch in second.resume(0..2, &state)? {
        let number = epoch.number();
        let batches: Vec<_> = epoch.collect::<Result<_, _>>()?;
        if number == 0 {
            assert_eq!(batches.len(), 6);
            for ((pictures, classes), (expected, labels)) in batches.iter().zip(&whole[4..]) {
                assert_eq!((pictures.as_slice(), classes.as_slice()), (expected.as_slice(), labels.as_slice()));
            }
        } else {
            assert_eq!(batches.len(), 10);
        }
    }
    Ok(())
}
