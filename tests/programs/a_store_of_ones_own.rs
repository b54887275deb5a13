//! Objects of a server that this library does not know: a store of the program's own, whose errors may go away.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use pinfeed::error::Temporary;
use pinfeed::store::{Object, Store};
use pinfeed::{BoxError, DataLoader, from_fn};

/// Stands for a client: each third request is refused.
struct Client {
    objects: BTreeMap<String, Vec<u8>>,
    requests: AtomicU64,
}

impl Store for Client {
    fn list(&self, prefix: &str) -> Result<Vec<Object>, BoxError> {
        let folder = if prefix.is_empty() { String::new() } else { format!("{}/", prefix.trim_end_matches('/')) };
        let keys = self.objects.keys().filter(|key| key.starts_with(&folder));
        keys.map(|key| self.object(key)).collect()
    }

    fn object(&self, key: &str) -> Result<Object, BoxError> {
        let bytes = self.objects.get(key).ok_or_else(|| format!("there is no {key}"))?;
        Ok(Object { key: key.to_owned(), bytes: bytes.len() as u64, version: None })
    }

    fn read(&self, object: &Object, range: Range<u64>) -> Result<Vec<u8>, BoxError> {
        if self.requests.fetch_add(1, Ordering::Relaxed) % 3 == 2 {
            return Err(Temporary::new("busy").into());
        }
        let bytes = self.objects.get(&object.key).and_then(|bytes| bytes.get(range.start as usize..range.end as usize));
        Ok(bytes.ok_or_else(|| format!("{} has no bytes {range:?}", object.key))?.to_vec())
    }

    fn locate(&self, key: &str) -> String {
        format!("ours://{key}")
    }
}

pub fn main() -> Result<(), BoxError> {
    let objects = (0..30u8).map(|n| (format!("train/{n:02}"), vec![n; 16])).collect();
    let store = Client { objects, requests: AtomicU64::new(0) };
    let objects = store.list("train")?;
    assert_eq!(objects.len(), 30);
    let samples = from_fn(30, move |index, _| {
        let object = &objects[index as usize];
        let place = store.locate(&object.key);
        assert_eq!(place, format!("ours://train/{index:02}"));
        store.read(object, 4..12)
    });
    let loader = DataLoader::builder(samples).batch_size(10).num_workers(2).retry(5, Duration::from_millis(1)).build()?;
    for batch in loader.epoch(0) {
        assert_eq!(batch?.shape()[..], [10, 8]);
    }
    Ok(())
}
