//! Records on a server that fails now and then: a client that blocks, requests that are tried again, and a run that is resumed.

use std::error::Error;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use pinfeed::dataset::{Staged, StagedDataset};
use pinfeed::error::Temporary;
use pinfeed::loader::OnError;
use pinfeed::{BoxError, DataLoader, SampleRng, Tensor};

/// Stands for a server with a client that blocks.
struct Server {
    requests: Arc<AtomicU64>,
}

impl StagedDataset for Server {
    type Raw = String;
    type Sample = (f32, i64);

    fn len(&self) -> u64 {
        120
    }

    fn fetch(&self, index: u64) -> Result<String, BoxError> {
        match self.requests.fetch_add(1, Ordering::Relaxed) {
            busy if busy % 40 == 39 => Err(Temporary::new("503 Service Unavailable").into()),
            _ if index == 77 => Err("404 Not Found".into()),
            _ => Ok(format!("{};{index}", index as f32 / 2.0)),
        }
    }

    fn decode(&self, _: u64, raw: String, _: &mut SampleRng) -> Result<(f32, i64), BoxError> {
        let (value, label) = raw.split_once(';').ok_or("not a record")?;
        Ok((value.parse()?, label.parse()?))
    }

    fn raw_bytes(&self, raw: &String) -> usize {
        raw.capacity()
    }

    fn describe(&self, index: u64) -> Option<String> {
        Some(format!("record {index}"))
    }
}

type Batch = (Tensor<f32>, Tensor<i64>);

fn loader(requests: &Arc<AtomicU64>) -> pinfeed::Result<DataLoader<Batch>> {
    let server = Server {
        requests: Arc::clone(requests),
    };
    DataLoader::builder(Staged::new(server).with_in_flight(16))
        .batch_size(10)
        .shuffle(true)
        .seed(3)
        .num_workers(2)
        .retry(3, Duration::from_millis(1))
        .on_error(OnError::Replace { at_most: 5 })
        .build()
}

pub fn main() -> Result<(), Box<dyn Error>> {
    let requests = Arc::new(AtomicU64::new(0));
    let first = loader(&requests)?;
    let mut labels: Vec<i64> = Vec::new();
    let mut epoch = first.epoch(0);
    for batch in epoch.by_ref().take(4) {
        labels.extend(batch?.1.as_slice());
    }
    let state = epoch.state();
    drop(epoch); // what is in flight is not needed
    drop(first);

    let second = loader(&requests)?;
    for epoch in second.resume(0..1, &state)? {
        for batch in epoch {
            labels.extend(batch?.1.as_slice());
        }
    }
    assert_eq!(labels.len(), 120);
    assert!(!labels.contains(&77)); // another took its place
    labels.sort_unstable();
    labels.dedup();
    assert!(labels.len() >= 118);
    Ok(())
}
