//! Features in memory, and labels that a service gives, one request each: both as one data set, of which a subset is used.

use std::error::Error;
use std::thread::sleep;
use std::time::Duration;

use pinfeed::dataset::{Staged, StagedDataset, Subset, VecDataset};
use pinfeed::{BoxError, DataLoader, Dataset, SampleRng};

/// Stands for a service that takes its time.
struct Labels;

impl StagedDataset for Labels {
    type Raw = u8;
    type Sample = i64;

    fn len(&self) -> u64 {
        300
    }

    fn fetch(&self, index: u64) -> Result<u8, BoxError> {
        sleep(Duration::from_millis(2));
        Ok((index % 3) as u8)
    }

    fn decode(&self, _: u64, raw: u8, _: &mut SampleRng) -> Result<i64, BoxError> {
        Ok(i64::from(raw))
    }

    fn raw_bytes(&self, _: &u8) -> usize {
        1
    }
}

pub fn main() -> Result<(), Box<dyn Error>> {
    let features = VecDataset::new((0..300).map(|row| [row as f32; 4]).collect());
    // A label is asked for once: what came stays in memory.
    let labels = Staged::new(Labels).with_in_flight(50).cached(1 << 20);
    let pairs = features.zip(labels)?;
    let even = Subset::new(pairs, (0..300).filter(|row| row % 2 == 0))?;
    let loader = DataLoader::builder(even)
        .batch_size(25)
        .shuffle(true)
        .num_workers(2)
        .build()?;
    for epoch in loader.epochs(0..3) {
        let mut counts = [0; 3];
        for batch in epoch {
            let (x, y) = batch?;
            assert_eq!(x.shape()[..], [25, 4]);
            y.as_slice().iter().for_each(|label| counts[*label as usize] += 1);
        }
        assert_eq!(counts, [50; 3]);
    }
    Ok(())
}
