//! Records of one size in several files: a data set over all of them, which reads records that lie near each other at once.

use std::ops::Range;

use pinfeed::store::{LocalFiles, Object, Store};
use pinfeed::{BoxError, DataLoader, Dataset, SampleRng};

const RECORD: u64 = 4 * 8;
const EACH: u64 = 100;

struct Records<S> {
    store: S,
    shards: Vec<Object>,
}

fn place(record: u64) -> Range<u64> {
    let from = record % EACH * RECORD;
    from..from + RECORD
}

fn numbers(bytes: &[u8]) -> Vec<f32> {
    bytes.chunks_exact(4).map(|word| f32::from_le_bytes([word[0], word[1], word[2], word[3]])).collect()
}

impl<S: Store> Dataset for Records<S> {
    type Sample = Vec<f32>;

    fn len(&self) -> u64 {
        self.shards.iter().map(|shard| shard.bytes / RECORD).sum()
    }

    fn get(&self, index: u64, _: &mut SampleRng) -> Result<Vec<f32>, BoxError> {
        let shard = &self.shards[(index / EACH) as usize];
        Ok(numbers(&self.store.read(shard, place(index))?))
    }

    fn get_many(&self, indices: &[u64], rngs: &mut [SampleRng]) -> Vec<Result<Vec<f32>, BoxError>> {
        let shard = indices[0] / EACH;
        if indices.iter().any(|index| index / EACH != shard) {
            return indices.iter().zip(rngs).map(|(index, rng)| self.get(*index, rng)).collect();
        }
        let places: Vec<Range<u64>> = indices.iter().map(|index| place(*index)).collect();
        match self.store.read_many(&self.shards[shard as usize], &places) {
            Ok(parts) => parts.iter().map(|part| Ok(numbers(part))).collect(),
            Err(_) => indices.iter().zip(rngs).map(|(index, rng)| self.get(*index, rng)).collect(),
        }
    }

    fn at_once(&self) -> usize {
        25
    }
}

pub fn main() -> Result<(), BoxError> {
    let folder = tempfile::tempdir()?;
    for shard in 0..4u64 {
        let records = (shard * EACH..(shard + 1) * EACH).flat_map(|record| [record as f32; 8]);
        let bytes: Vec<u8> = records.flat_map(f32::to_le_bytes).collect();
        std::fs::write(folder.path().join(format!("{shard}.bin")), bytes)?;
    }
    let store = LocalFiles::open(folder.path())?;
    let shards = store.list("")?;
    let loader = DataLoader::builder(Records { store, shards }).batch_size(50).num_workers(2).build()?;
    let mut next = 0.0;
    for batch in loader.epoch(0) {
        for row in batch?.as_slice().chunks_exact(8) {
            assert_eq!(row, [next; 8]);
            next += 1.0;
        }
    }
    assert_eq!(next, 400.0);
    Ok(())
}
