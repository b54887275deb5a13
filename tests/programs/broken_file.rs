//! Files of which one is broken and one is gone: the program logs which and why, and goes on with the other batches.

use std::error::Error;
use std::fs;
use std::path::PathBuf;

use pinfeed::{DataLoader, from_fn};

pub fn main() -> Result<(), Box<dyn Error>> {
    let folder = tempfile::tempdir()?;
    let mut paths: Vec<PathBuf> = Vec::new();
    for number in 0..20 {
        let path = folder.path().join(format!("{number}.csv"));
        fs::write(&path, format!("{number},1.5,2.5"))?;
        paths.push(path);
    }
    fs::write(&paths[9], "9,1.5,oops")?;
    fs::remove_file(&paths[14])?;

    let names = paths.clone();
    let files = from_fn(paths.len(), move |index, _| {
        let text = fs::read_to_string(&paths[index as usize])?;
        let numbers = text.split(',').map(str::parse);
        Ok(numbers.collect::<Result<Vec<f32>, _>>()?)
    });
    let loader = DataLoader::builder(files.describe(move |index| {
        let name = names[index as usize].file_name().unwrap_or_default();
        name.display().to_string()
    }))
    .batch_size(4)
    .num_workers(2)
    .build()?;

    let (mut rows, mut log) = (0, Vec::new());
    for batch in &loader {
        match batch {
            Ok(batch) => rows += batch.shape()[0],
            Err(error) => log.push(format!("skipped a batch: {error}")),
        }
    }
    println!("{}", log.join("\n"));
    assert_eq!(rows, 20 - 2 * 4);
    let [broken, gone] = &log[..] else {
        return Err(format!("two batches failed: {log:?}").into());
    };
    assert!(broken.contains("sample 9 (9.csv)"), "{broken}");
    assert!(broken.contains("invalid float literal"), "{broken}");
    assert!(gone.contains("sample 14 (14.csv)"), "{gone}");
    assert!(gone.contains("No such file") || gone.contains("cannot find"), "{gone}");

    // Who wants to know more than the words looks at what `get` returned.
    for error in loader.epoch(1).filter_map(Result::err) {
        let pinfeed::Error::Sample(sample, cause) = &error else {
            return Err(error.into());
        };
        let is_gone = cause.downcast_ref::<std::io::Error>().is_some();
        assert_eq!(is_gone, sample.index == 14);
    }
    Ok(())
}
