//! A disk begins to fail in the middle of the night. A few broken files are left out, as always; when it is one in twenty, training stops
//! with an error instead of going on with what is left, and goes on in the morning where it was.

use std::error::Error;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use pinfeed::loader::{LoaderState, OnError};
use pinfeed::{DataLoader, Tensor, from_fn};

fn loader(is_failing: &Arc<AtomicBool>) -> pinfeed::Result<DataLoader<Tensor<i64>>> {
    let is_failing = Arc::clone(is_failing);
    let samples = from_fn(5_000, move |index, _| match index {
        77 | 1_234 => Err("the file was broken all along".into()),
        _ if is_failing.load(Ordering::Relaxed) && index % 3 == 0 => Err("Input/output error".into()),
        _ => Ok(index as i64),
    });
    DataLoader::builder(samples)
        .batch_size(50)
        .shuffle(true)
        .seed(17)
        .num_workers(2)
        .on_error(OnError::Skip { at_most: u64::MAX })
        .bad_share_at_most(0.05, 500)
        .build()
}

pub fn main() -> Result<(), Box<dyn Error>> {
    let is_failing = Arc::new(AtomicBool::new(false));
    let mut seen = Vec::new();
    let checkpoint = {
        let loader = loader(&is_failing)?;
        let mut epoch = loader.epoch(0);
        let stopped = loop {
            match epoch.next().ok_or("the epoch ended as if nothing were wrong")? {
                Ok(batch) => seen.extend_from_slice(batch.as_slice()),
                Err(error) => break error,
            }
            if seen.len() > 1_500 {
                is_failing.store(true, Ordering::Relaxed);
            }
        };
        println!("{stopped}");
        assert!(matches!(stopped, pinfeed::Error::TooManyBad { .. }));
        assert!(loader.stats().bad.listed.iter().any(|bad| bad.contains("Input/output error")));
        epoch.state().to_string()
    };
    assert!(seen.len() < 2_500);

    is_failing.store(false, Ordering::Relaxed); // a new disk
    let (loader, state) = (loader(&is_failing)?, checkpoint.parse::<LoaderState>()?);
    let before = seen.len();
    for epoch in loader.resume(0..1, &state)? {
        for batch in epoch {
            seen.extend_from_slice(batch?.as_slice());
        }
    }
    assert!(seen.len() > before);
    let all = seen.len();
    seen.sort_unstable();
    seen.dedup();
    assert_eq!(seen.len(), all); // nothing came twice
    Ok(())
}
