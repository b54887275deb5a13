//! Files of records, one behind the other, each with its length before it: the files are shuffled, and a file is read as its records are
//! asked for. One of them was cut off, and one is away: that costs what is missing, and the statistics say which.

use std::error::Error;
use std::fs::{self, File};
use std::io::{BufReader, Read};
use std::path::PathBuf;

use pinfeed::iterable::{self, IterableDataset};
use pinfeed::loader::OnError;
use pinfeed::{BoxError, DataLoader};

/// The records of a file.
fn records(path: PathBuf) -> Result<impl Iterator<Item = Result<Vec<u8>, BoxError>> + Send + 'static, BoxError> {
    let said = path.display().to_string();
    let mut file = BufReader::new(File::open(&path).map_err(|error| format!("{said}: {error}"))?);
    let mut is_over = false;
    let next = move || {
        let mut length = [0; 4];
        if is_over || file.read(&mut length[..1]).ok()? == 0 {
            return None;
        }
        let mut read = || {
            file.read_exact(&mut length[1..])?;
            let mut record = vec![0; u32::from_le_bytes(length) as usize];
            file.read_exact(&mut record)?;
            Ok::<_, std::io::Error>(record)
        };
        let record = read();
        is_over = record.is_err(); // nothing can be found behind it
        Some(record.map_err(|error| format!("{said} is cut off: {error}").into()))
    };
    Ok(std::iter::from_fn(next))
}

pub fn main() -> Result<(), Box<dyn Error>> {
    let folder = tempfile::tempdir()?;
    let mut paths: Vec<PathBuf> = Vec::new();
    for file in 0..6u32 {
        let numbers = (0..10).map(|record| 100 * file + record);
        let record = |number: u32| [4u32.to_le_bytes(), number.to_le_bytes()].concat();
        let mut bytes: Vec<u8> = numbers.flat_map(record).collect();
        if file == 3 {
            bytes.truncate(5 * 8 + 6);
        }
        let path = folder.path().join(format!("{file}.records"));
        fs::write(&path, bytes)?;
        paths.push(path);
    }
    paths.push(folder.path().join("moved.records"));
    let files = iterable::from_fn(move |_epoch, shard| {
        let own = (0..).zip(paths.clone()).filter(move |(number, _)| shard.keeps(*number));
        Ok(own.map(|(_, path)| Ok(path)))
    });
    let numbers = files
        .shuffle(100)                                                       // the order of the files
        .flat_map(|path, _| records(path))                                  // read by one worker at a time
        .map(|record, _| Ok(i64::from(u32::from_le_bytes(record[..].try_into()?)))); // parsed by all
    let loader = DataLoader::iterable(numbers)
        .batch_size(10)
        .num_workers(2)
        .seed(17)
        .on_error(OnError::Skip { at_most: 10 })
        .build()?;
    let mut orders = Vec::new();
    for epoch in loader.epochs(0..2) {
        let mut seen = Vec::new();
        for batch in epoch {
            seen.extend_from_slice(batch?.as_slice());
        }
        orders.push(seen.clone());
        seen.sort_unstable();
        let expected = (0..600).filter(|number| number % 100 < if number / 100 == 3 { 5 } else { 10 });
        assert_eq!(seen, expected.collect::<Vec<i64>>());
        let bad = loader.stats().bad;
        println!("{}", bad.listed.join("\n"));
        assert_eq!(bad.skipped, 2);
        assert!(bad.listed.iter().any(|bad| bad.contains("part 5: ") && bad.contains("3.records is cut off")));
        assert!(bad.listed.iter().any(|bad| bad.contains("moved.records")));
    }
    assert_ne!(orders[0], orders[1]);
    Ok(())
}
