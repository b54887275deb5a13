//! Streams of tar shards: threads read them ahead, of a store that is busy now and then.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::{Arc, Mutex};

use pinfeed::error::Temporary;
use pinfeed::iterable::IterableDataset;
use pinfeed::store::{Object, Store};
use pinfeed::webdataset::WebDataset;
use pinfeed::{BoxError, DataLoader};
use shuttle::thread;

use crate::explore::explore;
use crate::support::{below, coin};

/// Objects in memory, whose reads take their time. So many of them are refused.
struct Objects {
    objects: BTreeMap<String, Vec<u8>>,
    refused: Mutex<u64>,
}

impl Store for Objects {
    fn list(&self, _: &str) -> Result<Vec<Object>, BoxError> {
        self.objects.keys().map(|key| self.object(key)).collect()
    }

    fn object(&self, key: &str) -> Result<Object, BoxError> {
        let bytes = self.objects.get(key).ok_or("there is no such object")?;
        Ok(Object {
            key: key.to_owned(),
            bytes: bytes.len() as u64,
            version: Some("1".to_owned()),
        })
    }

    fn read(&self, object: &Object, range: Range<u64>) -> Result<Vec<u8>, BoxError> {
        for _ in 0..below(3) {
            thread::yield_now();
        }
        {
            let mut refused = self.refused.lock().unwrap();
            if *refused > 0 && coin() {
                *refused -= 1;
                return Err(Temporary::new("it is busy").into());
            }
        }
        Ok(self.objects[&object.key][range.start as usize..range.end as usize].to_vec())
    }
}

/// A shard of samples that are called by these numbers, and hold them.
fn shard(numbers: Range<u64>) -> Vec<u8> {
    let mut builder = tar::Builder::new(Vec::new());
    for number in numbers {
        let contents = number.to_string();
        let mut header = tar::Header::new_ustar();
        header.set_size(contents.len() as u64);
        let name = format!("{number:04}.txt");
        builder
            .append_data(&mut header, name, contents.as_bytes())
            .unwrap();
    }
    builder.into_inner().unwrap()
}

/// Each sample comes once, whatever the store refuses for a while: an error in place of a batch costs none. Epochs that are left in the middle
/// hold up nothing.
#[test]
fn shards_come_whole() {
    explore("shards_come_whole", || {
        let (shards, each) = (1 + below(3) as u64, 1 + below(4) as u64);
        let objects = (0..shards).map(|at| {
            let samples = at * each..(at + 1) * each;
            (format!("{at:03}.tar"), shard(samples))
        });
        let store = Arc::new(Objects {
            objects: objects.collect(),
            refused: Mutex::new(0),
        });
        let stream = WebDataset::builder(
            Arc::clone(&store),
            &format!("{{000..{:03}}}.tar", shards - 1),
        )
        .field("txt")
        .stream(|sample, _| Ok(sample.number::<i64>("txt")?))
        .unwrap()
        .with_open_shards(1 + below(2));
        let window = 1 + below(5);
        let builder = DataLoader::iterable(stream.shuffle(window)).batch_size(1 + below(3));
        let loader = builder.num_workers(below(3)).build().unwrap();
        for epoch in loader.epochs(0..3) {
            *store.refused.lock().unwrap() = below(4) as u64;
            let most = if coin() { usize::MAX } else { below(4) };
            let (mut numbers, mut is_whole) = (Vec::<i64>::new(), true);
            for (at, batch) in epoch.enumerate() {
                if at == most {
                    is_whole = false;
                    break;
                }
                match batch {
                    Ok(batch) => numbers.extend(batch.as_slice()),
                    Err(error) => assert!(error.to_string().contains("it is busy"), "{error}"),
                }
            }
            let count = numbers.len() as i64;
            numbers.sort();
            match is_whole {
                true => assert!(numbers.into_iter().eq(0..(shards * each) as i64)),
                false => {
                    numbers.dedup();
                    assert_eq!(numbers.len() as i64, count, "a sample came twice");
                }
            }
        }
        drop(loader);
    });
}
