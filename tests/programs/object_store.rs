//! Pictures in an object store: an asynchronous client, a hundred requests in flight, two workers that decode.

use std::error::Error;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use pinfeed::dataset::{AsyncStagedDataset, Staged};
use pinfeed::{BoxError, DataLoader, Device, SampleRng, Tensor};

/// Stands for a client such as object_store's.
#[derive(Default)]
struct Bucket {
    open: AtomicUsize,
    most_open: AtomicUsize,
}

impl Bucket {
    async fn get(&self, key: &str) -> Result<Vec<u8>, BoxError> {
        let open = self.open.fetch_add(1, Ordering::Relaxed) + 1;
        self.most_open.fetch_max(open, Ordering::Relaxed);
        tokio::time::sleep(Duration::from_millis(5)).await;
        self.open.fetch_sub(1, Ordering::Relaxed);
        let number: u8 = key.trim_matches(|c: char| !c.is_numeric()).parse()?;
        Ok(vec![number; 64 * 3])
    }
}

struct Pictures {
    bucket: Arc<Bucket>,
    keys: Vec<String>,
}

impl AsyncStagedDataset for Pictures {
    type Raw = Vec<u8>;
    type Sample = (Tensor<u8>, i64);

    fn len(&self) -> u64 {
        self.keys.len() as u64
    }

    async fn fetch(&self, index: u64) -> Result<Vec<u8>, BoxError> {
        self.bucket.get(&self.keys[index as usize]).await
    }

    fn decode(
        &self,
        index: u64,
        mut raw: Vec<u8>,
        rng: &mut SampleRng,
    ) -> Result<(Tensor<u8>, i64), BoxError> {
        if rng.bool(0.5) {
            raw.reverse();
        }
        Ok((Tensor::from_vec(raw, &[8, 8, 3])?, index as i64))
    }

    fn raw_bytes(&self, raw: &Vec<u8>) -> usize {
        raw.len()
    }

    fn describe(&self, index: u64) -> Option<String> {
        self.keys.get(index as usize).cloned()
    }
}

pub fn main() -> Result<(), Box<dyn Error>> {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .enable_time()
        .build()?;
    let bucket = Arc::new(Bucket::default());
    let pictures = Pictures {
        bucket: Arc::clone(&bucket),
        keys: (0..250).map(|number| format!("train/{number}.png")).collect(),
    };
    let pictures = Staged::on_runtime(pictures, runtime.handle().clone())
        .with_in_flight(100)
        .with_max_bytes(64 << 20);
    let pictures = Arc::new(pictures);
    let device = Device::cpu();
    let loader = DataLoader::builder(Arc::clone(&pictures))
        .batch_size(50)
        .shuffle(true)
        .num_workers(2)
        .pin_memory(&device)
        .build()?;
    for epoch in loader.epochs(0..3).prefetch_to_device(&device, 1) {
        let mut seen = 0;
        for batch in epoch {
            let (images, labels) = batch?;
            assert_eq!(images.shape()[..], [50, 8, 8, 3]);
            seen += labels.shape()[0];
        }
        assert_eq!(seen, 250);
    }
    let stats = pictures.stats();
    println!("{} requests, {} were waited for", stats.fetched, stats.waited);
    assert_eq!(stats.fetched, 750);
    assert!(bucket.most_open.load(Ordering::Relaxed) <= 100);
    Ok(())
}
