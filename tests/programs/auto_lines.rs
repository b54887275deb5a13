//! Lines of a log, as a stream, with as many workers as it takes: stopped in the middle, and resumed.

use std::error::Error;
use std::fs;
use std::io::{BufRead, BufReader};

use pinfeed::loader::{IterableState, Workers};
use pinfeed::{BoxError, DataLoader, iterable};

pub fn main() -> Result<(), Box<dyn Error>> {
    let folder = tempfile::tempdir()?;
    let path = folder.path().join("requests.log");
    let text: String = (0..90).map(|number| format!("{} ms\n", number * 3)).collect();
    fs::write(&path, text)?;
    let open = || {
        let path = path.clone();
        let lines = iterable::from_fn(move |_epoch, _shard| {
            let lines = BufReader::new(fs::File::open(&path)?).lines();
            let times = lines.map(|line| -> Result<i64, BoxError> {
                let line = line?;
                Ok(line.strip_suffix(" ms").ok_or("no time")?.parse()?)
            });
            Ok(times)
        });
        DataLoader::iterable(lines).batch_size(8).num_workers(Workers::Auto).build()
    };
    let mut seen = Vec::new();
    let loader = open()?;
    for batch in loader.epoch(0).take(5) {
        seen.extend(batch?.to_vec());
    }
    let saved = loader.state().to_string();
    drop(loader);

    let state: IterableState = saved.parse()?;
    let loader = open()?;
    for epoch in loader.resume(0..1, &state)? {
        for batch in epoch {
            seen.extend(batch?.to_vec());
        }
    }
    assert_eq!(seen, (0..90).map(|number| number * 3).collect::<Vec<i64>>());
    println!("{}", loader.stats());
    Ok(())
}
