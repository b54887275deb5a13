//! A table in several CSV files, each with the names of its columns on its first line: shuffled as it is read, with bad lines left out and
//! named.

use std::error::Error;
use std::fs;
use std::path::PathBuf;

use pinfeed::loader::OnError;
use pinfeed::iterable::{self, Line, IterableDataset};
use pinfeed::{BoxError, DataLoader, Device, SampleRng};

/// sepal length, petal length, species
fn parse(line: Line, _: &mut SampleRng) -> Result<([f32; 2], i64), BoxError> {
    let fields: Vec<&str> = line.split(',').map(str::trim).collect();
    let [sepal, petal, species] = fields[..] else {
        return Err(line.error(format!("it has {} fields, and not 3", fields.len())));
    };
    let number = |field: &str| field.parse::<f32>().map_err(|cause| line.error(cause));
    let species = ["setosa", "versicolor", "virginica"].iter().position(|name| *name == species);
    let species = species.ok_or_else(|| line.error("the species is unknown"))?;
    Ok(([number(sepal)?, number(petal)?], species as i64))
}

pub fn main() -> Result<(), Box<dyn Error>> {
    let folder = tempfile::tempdir()?;
    let files: Vec<PathBuf> = (0..3).map(|file| folder.path().join(format!("flowers-{file}.csv"))).collect();
    for (number, path) in files.iter().enumerate() {
        let mut text = "sepal,petal,species\r\n".to_owned();
        for line in 0..40 {
            text += &format!("{}.5, 1.{line}, {}\r\n", 4 + number, ["setosa", "versicolor", "virginica"][line % 3]);
        }
        if number == 1 {
            text += "5.5,n/a,setosa\r\n5.5,1.5\r\n";
        }
        fs::write(path, text)?;
    }

    let device = Device::cpu();
    let rows = iterable::lines(files).skip_lines(1).shuffle(100).map(parse);
    let loader = DataLoader::iterable(rows)
        .batch_size(16)
        .seed(17)
        .num_workers(2)
        .pin_memory(&device)
        .on_error(OnError::Skip { at_most: 10 })
        .build()?;
    let mut counts = [0; 3];
    for batch in loader.epoch(0).prefetch_to_device(&device, 2) {
        let (features, species) = batch?;
        assert_eq!(features.shape()[..], [species.len(), 2]);
        let species = species.to_host(true)?.wait()?;
        species.as_slice().iter().for_each(|species| counts[*species as usize] += 1);
    }
    assert_eq!(counts, [42, 39, 39]);
    let mut bad = loader.stats().bad.listed;
    bad.sort();
    println!("{}", bad.join("\n"));
    assert!(bad.iter().any(|bad| bad.ends_with("flowers-1.csv, line 42: invalid float literal")));
    assert!(bad.iter().any(|bad| bad.ends_with("flowers-1.csv, line 43: it has 2 fields, and not 3")));
    Ok(())
}
