//! Bytes, whatever they are, are a compressed tar shard whose samples come, or an error; as a state, they are refused, or a place to go on.

#![no_main]

use std::ops::Range;

use libfuzzer_sys::fuzz_target;
use pinfeed::BoxError;
use pinfeed::iterable::{ItemIter, IterableDataset, Left, Shard};
use pinfeed::store::{Object, Store};
use pinfeed::webdataset::{WebDataset, WebStream, WebStreamIter};

struct Memory(Vec<u8>);

impl Store for Memory {
    fn list(&self, _: &str) -> Result<Vec<Object>, BoxError> {
        Ok(vec![self.object("a.tar")?, self.object("b.tar")?])
    }

    fn object(&self, key: &str) -> Result<Object, BoxError> {
        Ok(Object {
            key: key.to_owned(),
            bytes: self.0.len() as u64,
            version: None,
        })
    }

    fn read(&self, _: &Object, range: Range<u64>) -> Result<Vec<u8>, BoxError> {
        // A panic where it would read beyond the shard.
        Ok(self.0[range.start as usize..range.end as usize].to_vec())
    }
}

/// How much of what is decompressed is looked at: a few bytes may be gigabytes.
const MOST: usize = 64 << 20;

fn read(mut items: WebStreamIter) {
    let mut bytes = 0;
    // (Two shards have at most as many samples and errors as they have blocks.)
    while let Some(item) = items.next() {
        match item {
            Ok(sample) => bytes += format!("{sample:?}").len() + 512,
            Err(error) => assert!(error.to_string().contains(".tar: "), "{error}"),
        }
        if bytes > MOST {
            return;
        }
        assert!(items.state().is_some_and(|state| !state.is_empty()));
    }
}

fn stream(bytes: &[u8]) -> WebStream<()> {
    let builder = WebDataset::builder(Memory(bytes.to_vec()), "{a,b}.tar").extent_bytes(1_000);
    builder.stream(|_, _| Ok(())).unwrap()
}

fuzz_target!(|bytes: &[u8]| {
    let shard = Shard::new(0, 1, 7);
    read(stream(bytes).open(0, shard).unwrap());
    let empty = stream(&[]);
    let mut items = empty.open(0, shard).unwrap();
    if items.seek(bytes).is_ok() {
        read(items);
    }
    let left = [Left::new(shard, Some(bytes.to_vec()))];
    let to = [0, 1].map(|rank| Shard::new(rank, 2, 7));
    for (state, shard) in empty
        .hand_over(0, &left, &to)
        .unwrap_or_default()
        .iter()
        .zip(to)
    {
        let mut items = empty.open(0, shard).unwrap();
        items.seek(state).unwrap();
        read(items);
    }
});
