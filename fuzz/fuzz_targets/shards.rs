//! Bytes, whatever they are, are a tar shard or an index, whose samples lie within it, or an error.

#![no_main]

use std::collections::BTreeMap;
use std::ops::Range;

use libfuzzer_sys::fuzz_target;
use pinfeed::dataset::BlockSource;
use pinfeed::rng::RngKey;
use pinfeed::store::{Object, Store};
use pinfeed::webdataset::{WebDataset, WebDatasetBuilder};
use pinfeed::{BoxError, SampleRng};

struct Memory(BTreeMap<&'static str, Vec<u8>>);

impl Store for Memory {
    fn list(&self, _: &str) -> Result<Vec<Object>, BoxError> {
        self.0.keys().map(|key| self.object(key)).collect()
    }

    fn object(&self, key: &str) -> Result<Object, BoxError> {
        let bytes = self.0.get(key).ok_or("there is none")?.len() as u64;
        Ok(Object {
            key: key.to_owned(),
            bytes,
            version: None,
        })
    }

    fn read(&self, object: &Object, range: Range<u64>) -> Result<Vec<u8>, BoxError> {
        // A panic where it would read beyond the shard.
        Ok(self.0[&*object.key][range.start as usize..range.end as usize].to_vec())
    }
}

fn read(builder: WebDatasetBuilder, len: usize) {
    let built = builder.extent_bytes(1_000).build(|sample, _| {
        Ok(sample
            .fields()
            .map(|(name, contents)| name.len().min(1) * contents.len())
            .sum::<usize>())
    });
    let Ok(data) = built else { return };
    let mut rng = SampleRng::for_sample(RngKey {
        seed: 0,
        epoch: 0,
        position: 0,
    });
    let blocks = data.blocks();
    for block in 0..blocks.len() {
        let extent = data.fetch(block, blocks.range(block)).unwrap();
        for index in blocks.range(block) {
            match data.decode(&extent, index, &mut rng) {
                Ok(bytes) => assert!(bytes <= len * 1_000),
                Err(error) => assert!(!error.to_string().is_empty()),
            }
        }
    }
}

fuzz_target!(|bytes: &[u8]| {
    let of = |store| WebDataset::builder(Memory(BTreeMap::from(store)), "a.tar");
    read(of([("a.tar", bytes.to_vec()), ("b", vec![])]), bytes.len());
    let shard = vec![0; 1 << 16];
    read(
        of([("a.tar", shard.clone()), ("a.idx", bytes.to_vec())]).dali_index("a.idx"),
        shard.len(),
    );
    if let Ok(wids) = WebDataset::from_wids(
        Memory(BTreeMap::from([("a.json", bytes.to_vec())])),
        "a.json",
    ) {
        read(wids, 0);
    }
    if let Ok(pattern) = std::str::from_utf8(&bytes[..bytes.len().min(64)]) {
        let _ = WebDataset::builder(Memory(BTreeMap::new()), pattern).build(|_, _| Ok(()));
    }
});
