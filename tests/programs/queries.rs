//! A store that answers a request for many keys as fast as for one: batches are asked for in a few requests.

use std::collections::HashMap;
use std::error::Error;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use pinfeed::{BoxError, DataLoader, Dataset, Device, SampleRng};

/// Stands for a key-value store behind a network.
struct Store {
    values: HashMap<u64, Vec<f32>>,
    requests: Arc<AtomicU64>,
}

impl Store {
    fn multi_get(&self, keys: &[u64]) -> Vec<Option<Vec<f32>>> {
        self.requests.fetch_add(1, Ordering::Relaxed);
        keys.iter().map(|key| self.values.get(key).cloned()).collect()
    }
}

impl Dataset for Store {
    type Sample = Vec<f32>;

    fn len(&self) -> u64 {
        1_000
    }

    fn get(&self, index: u64, rng: &mut SampleRng) -> Result<Vec<f32>, BoxError> {
        let one = self.get_many(&[index], std::slice::from_mut(rng)).pop();
        one.ok_or("no answer")?
    }

    fn get_many(&self, indices: &[u64], _: &mut [SampleRng]) -> Vec<Result<Vec<f32>, BoxError>> {
        let found = self.multi_get(indices).into_iter();
        found.map(|value| value.ok_or("the key is gone".into())).collect()
    }

    fn at_once(&self) -> usize {
        50
    }

    fn describe(&self, index: u64) -> Option<String> {
        Some(format!("key {index}"))
    }
}

pub fn main() -> Result<(), Box<dyn Error>> {
    let device = Device::cpu();
    let requests = Arc::new(AtomicU64::new(0));
    let store = Store {
        values: (0..1_000).map(|key| (key, vec![key as f32; 16])).collect(),
        requests: Arc::clone(&requests),
    };
    let loader = DataLoader::builder(store)
        .batch_size(200)
        .shuffle(true)
        .num_workers(4)
        .pin_memory(&device)
        .build()?;
    let mut sum = 0.0;
    for batch in loader.epoch(0).prefetch_to_device(&device, 1) {
        let values = batch?.to_host(false)?.wait()?;
        assert_eq!(values.shape()[..], [200, 16]);
        sum += values.as_slice().iter().map(|value| f64::from(*value)).sum::<f64>();
    }
    let requests = requests.load(Ordering::Relaxed);
    println!("{requests} requests for 1000 samples");
    assert_eq!((sum, requests), (999.0 * 1_000.0 / 2.0 * 16.0, 20));
    Ok(())
}
