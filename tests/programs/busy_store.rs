//! Blocks from a store that is busy now and then, and has lost one of them: requests are tried again, and the epoch goes on.

#![allow(clippy::expect_used)] // the sizes are written below

use std::error::Error;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use pinfeed::dataset::{BlockSource, Blocked};
use pinfeed::error::Temporary;
use pinfeed::sampler::Blocks;
use pinfeed::{BoxError, DataLoader, Dataset, Error as LoaderError, SampleRng};

/// Stands for a store.
struct Store {
    requests: AtomicU64,
}

impl BlockSource for Store {
    type Block = Range<u64>;
    type Sample = f32;

    fn blocks(&self) -> Arc<Blocks> {
        let shards = (0..60).map(|shard| 10 + shard % 7);
        Arc::new(Blocks::from_sizes(shards).expect("they are few"))
    }

    fn block_bytes(&self, _: u64, samples: Range<u64>) -> usize {
        1_000 * (samples.end - samples.start) as usize
    }

    fn fetch(&self, block: u64, samples: Range<u64>) -> Result<Range<u64>, BoxError> {
        match self.requests.fetch_add(1, Ordering::Relaxed) % 10 {
            _ if block == 33 => Err("404 Not Found".into()),
            9 => Err(Temporary::new("503 Slow Down").into()),
            _ => Ok(samples),
        }
    }

    fn decode(&self, block: &Range<u64>, index: u64, _: &mut SampleRng) -> Result<f32, BoxError> {
        match block.contains(&index) {
            true => Ok(index as f32),
            false => Err("it is not in its block".into()),
        }
    }

    fn describe(&self, index: u64) -> Option<String> {
        Some(format!("shard-{}", self.blocks().block_of(index)?))
    }
}

pub fn main() -> Result<(), Box<dyn Error>> {
    let requests = AtomicU64::new(0);
    let data = Arc::new(Blocked::new(Store { requests }).with_in_flight(8).with_max_bytes(1 << 20));
    let halves = Arc::clone(&data).map(|value, _| Ok(value / 2.0));
    let loader = DataLoader::builder(halves)
        .shuffle(true)
        .num_workers(3)
        .retry(5, Duration::from_millis(1))
        .build()?;
    let (mut values, mut lost) = (Vec::new(), 0);
    for batch in loader.epoch(0) {
        match batch {
            Ok(batch) => values.push(batch.as_slice()[0]),
            Err(LoaderError::Sample(sample, cause)) => {
                assert_eq!(sample.description.as_deref(), Some("shard-33"));
                assert!(cause.to_string().ends_with("was not fetched: 404 Not Found"), "{cause}");
                lost += 1;
            }
            Err(error) => return Err(error.into()),
        }
    }
    assert_eq!(lost, 10 + 33 % 7);
    assert_eq!(values.len() as u64, data.len() - lost);
    values.sort_unstable_by(f32::total_cmp);
    values.dedup();
    assert_eq!(values.len() as u64, data.len() - lost);
    let stats = data.stats();
    assert!(stats.fetched >= 60 && stats.most_bytes <= 1 << 20, "{stats:?}");
    assert!(loader.stats().bad.retried >= 1);
    Ok(())
}
