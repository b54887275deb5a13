//! A table in three random parts: 80 % to train, the rest to validate and to test. Training rows are noisy, the others are not.

use std::error::Error;

use pinfeed::dataset::random_split;
use pinfeed::{DataLoader, Dataset};

pub fn main() -> Result<(), Box<dyn Error>> {
    let rows: Vec<([f32; 2], i64)> = (0..250).map(|n| ([n as f32, 1.0], n % 2)).collect();
    let [train, val, test] = random_split(rows, [0.8, 0.1, 0.1], 42)?;
    assert_eq!((train.len(), val.len(), test.len()), (200, 25, 25));

    let noisy = train.map(|(features, label), rng| Ok((features.map(|x| x + rng.range(-0.1..0.1)), label)));
    let train = DataLoader::builder(noisy).batch_size(32).shuffle(true).num_workers(2).build()?;
    let mut seen = Vec::new();
    for batch in &train {
        let (features, labels) = batch?;
        assert_eq!(features.shape()[..], [labels.len(), 2]);
        seen.extend(features.as_slice().iter().step_by(2).map(|x| x.round() as i64));
    }
    for part in [val, test] {
        let loader = DataLoader::builder(part).batch_size(25).build()?;
        for batch in &loader {
            let (features, _) = batch?;
            seen.extend(features.as_slice().iter().step_by(2).map(|x| *x as i64));
        }
    }
    seen.sort_unstable();
    assert!(seen.into_iter().eq(0..250)); // each row is in one part
    Ok(())
}
