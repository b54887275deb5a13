//! A loop that computes on the processor itself: the loader takes no more of it than it needs. The number of workers is an option of the
//! command line, a number or `auto`.

use std::error::Error;

use pinfeed::loader::{WorkerSizing, Workers};
use pinfeed::{DataLoader, from_fn};

/// What `--workers` says.
fn workers(text: &str) -> Result<Workers, std::num::ParseIntError> {
    match text {
        "auto" => Ok(Workers::Auto),
        number => Ok(number.parse::<usize>()?.into()),
    }
}

/// A step of a regression: `y = 2 x + 1`.
fn step(weights: &mut (f32, f32), x: &[f32], y: &[f32]) {
    for _ in 0..200 {
        for (x, y) in x.iter().zip(y) {
            let error = weights.0 * x + weights.1 - y;
            weights.0 -= 0.01 * error * x;
            weights.1 -= 0.01 * error;
        }
    }
}

pub fn main() -> Result<(), Box<dyn Error>> {
    assert!(workers("many").is_err());
    for text in ["auto", "2"] {
        let samples = from_fn(640, |_, rng| {
            let x = rng.f32();
            Ok((x, 2.0 * x + 1.0))
        });
        let loader = DataLoader::builder(samples).batch_size(16).shuffle(true);
        let loader = loader.num_workers(workers(text)?).build()?;
        let mut weights = (0.0, 0.0);
        for epoch in loader.epochs(0..3) {
            for batch in epoch {
                let (x, y) = batch?;
                step(&mut weights, x.as_slice(), y.as_slice());
            }
        }
        let stats = loader.stats();
        println!("{text}: {} workers, {}", stats.workers, stats.sizing);
        assert!((weights.0 - 2.0).abs() < 0.1 && (weights.1 - 1.0).abs() < 0.1);
        assert_eq!(text == "2", stats.sizing == WorkerSizing::Fixed);
    }
    Ok(())
}
