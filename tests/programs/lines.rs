//! Text files that are read line by line, each rank its own, whose lines are parsed by all workers: nothing has an index.

use std::error::Error;
use std::fs;
use std::path::PathBuf;

use pinfeed::loader::{OnError, World};
use pinfeed::iterable::{self, Line, IterableDataset};
use pinfeed::{BoxError, DataLoader, Device, SampleRng};

/// A line of numbers becomes features with some noise, and a label.
fn parse(line: Line, rng: &mut SampleRng) -> Result<([f32; 3], i64), BoxError> {
    let mut fields = line.split(',');
    let mut field = || fields.next().ok_or("a field is missing");
    let label = field()?.parse()?;
    let mut features = [0.0; 3];
    for feature in &mut features {
        *feature = field()?.trim().parse::<f32>()? + 0.01 * rng.f32();
    }
    Ok((features, label))
}

fn count(files: Vec<PathBuf>, world: World) -> Result<(usize, u64), Box<dyn Error>> {
    let device = Device::cpu();
    let loader = DataLoader::iterable(iterable::lines(files).shuffle(64).map(parse))
        .batch_size(16)
        .seed(17)
        .num_workers(3)
        .pin_memory(&device)
        .world(world)
        .on_error(OnError::Skip { at_most: 5 })
        .build()?;
    let mut seen = 0;
    for batch in loader.epoch(0).prefetch_to_device(&device, 2) {
        let (features, labels) = batch?;
        assert_eq!(features.shape()[..], [labels.len(), 3]);
        seen += labels.len();
    }
    Ok((seen, loader.stats().bad.skipped))
}

pub fn main() -> Result<(), Box<dyn Error>> {
    let folder = tempfile::tempdir()?;
    let files: Vec<PathBuf> = (0..5).map(|file| folder.path().join(format!("{file}.csv"))).collect();
    for (number, path) in files.iter().enumerate() {
        let mut text: String = (0..100).map(|line| format!("{line},0.5,1.5,{number}\n")).collect();
        if number == 3 {
            text += "a line of words\n";
        }
        fs::write(path, text)?;
    }
    // Rank 0 has files 0, 2 and 4, rank 1 the others, of which one has a bad line.
    assert_eq!(count(files.clone(), World::new(0, 2)?)?, (300, 0));
    assert_eq!(count(files, World::new(1, 2)?)?, (200, 1));
    Ok(())
}
