//! Photos from files and drawings made on the fly, in one data set, paired with captions from a table.

use std::error::Error;
use std::fs;

use pinfeed::dataset::ConcatDataset;
use pinfeed::{DataLoader, Dataset, from_fn};

pub fn main() -> Result<(), Box<dyn Error>> {
    let folder = tempfile::tempdir()?;
    let paths: Vec<_> = (0..6).map(|n| folder.path().join(format!("{n}.raw"))).collect();
    for (n, path) in paths.iter().enumerate() {
        fs::write(path, [n as u8; 12])?;
    }
    fs::write(&paths[4], "not twelve")?;

    let names = paths.clone();
    let photos = from_fn(6, move |index, _| Ok(<[u8; 12]>::try_from(fs::read(&paths[index as usize])?).map_err(|_| "it is not 12 bytes")?))
        .describe(move |index| names[index as usize].display().to_string());
    let drawings = from_fn(4, |index, _| Ok([100 + index as u8; 12]));
    let images = ConcatDataset::new(vec![
        Box::new(photos) as Box<dyn Dataset<Sample = [u8; 12]>>,
        Box::new(drawings),
    ])?;
    let captions: Vec<String> = (0..10).map(|n| format!("number {n}")).collect();
    let pairs = images.zip(captions)?;

    let loader = DataLoader::builder(pairs).batch_size(2).num_workers(2).build()?;
    let mut captions_seen = Vec::new();
    for batch in &loader {
        match batch {
            Ok((images, captions)) => {
                assert_eq!(images.shape()[..], [2, 12]);
                captions_seen.extend(captions);
            }
            Err(error) => {
                println!("{error}");
                assert!(error.to_string().contains("4.raw"), "{error}");
            }
        }
    }
    assert_eq!(captions_seen.len(), 8);
    assert_eq!(captions_seen[6], "number 8");
    Ok(())
}
