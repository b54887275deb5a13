//! Log files of a fleet, some lines of which were cut off: they are left out if they are few. Of a file in another format, nearly all lines
//! fail, and that is an error and no silent loss.

use std::error::Error;
use std::fs;
use std::path::PathBuf;

use pinfeed::iterable::{self, IterableDataset, Line};
use pinfeed::loader::{Iterable, OnError};
use pinfeed::{BoxError, DataLoader, SampleRng, Tensor};

fn parse(line: Line, _: &mut SampleRng) -> Result<(f32, i64), BoxError> {
    let (seconds, status) = line.split_once(' ').ok_or_else(|| line.error("it has no status"))?;
    Ok((seconds.parse().map_err(|cause| line.error(cause))?, status.parse().map_err(|cause| line.error(cause))?))
}

type Requests = (Tensor<f32>, Tensor<i64>);

fn loader(files: &[PathBuf]) -> pinfeed::Result<DataLoader<Requests, Iterable>> {
    DataLoader::iterable(iterable::lines(files).shuffle(64).map(parse))
        .batch_size(16)
        .num_workers(2)
        .on_error(OnError::Skip { at_most: u64::MAX })
        .bad_share_at_most(0.02, 200)
        .build()
}

pub fn main() -> Result<(), Box<dyn Error>> {
    let folder = tempfile::tempdir()?;
    let write = |name: &str, line: &dyn Fn(usize) -> String| {
        let path = folder.path().join(name);
        fs::write(&path, (0..300).map(line).collect::<String>()).map(|()| path)
    };
    let good = |line: usize| match line {
        123 => "0.2".to_owned() + "\n",
        line => format!("0.{line} 200\n"),
    };
    let files = [write("a.log", &good)?, write("b.log", &good)?];
    let clean = loader(&files)?;
    let mut rows = 0;
    for batch in clean.epoch(0) {
        rows += batch?.0.len();
    }
    assert_eq!((rows, clean.stats().bad.skipped), (598, 2));

    // Somebody changed the format.
    let files = [&files[..], &[write("c.log", &|line| format!("200,0.{line}\n"))?]].concat();
    let mixed = loader(&files)?;
    let batches: Vec<_> = mixed.epoch(0).collect();
    let error = batches.last().ok_or("no batches")?.as_ref().err().ok_or("nothing was noticed")?;
    println!("{error}");
    assert!(matches!(error, pinfeed::Error::TooManyBad { samples: 550.., .. }), "{error}");
    assert!(mixed.stats().bad.listed.iter().any(|bad| bad.contains("c.log")));

    // A file of 100 lines is too short for `after`, and its end is told.
    let short = folder.path().join("d.log");
    fs::write(&short, "200,0.5\n".repeat(10) + &"0.5 200\n".repeat(90))?;
    let last = loader(&[short])?.epoch(0).last().ok_or("no batches")?;
    assert!(matches!(last, Err(pinfeed::Error::TooManyBad { bad: 10, samples: 100, .. })));
    Ok(())
}
