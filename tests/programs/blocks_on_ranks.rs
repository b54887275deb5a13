//! A run over shards that goes on with other ranks: four machines, then two, which read what is left.

use std::error::Error;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use pinfeed::dataset::{BlockSource, Blocked};
use pinfeed::loader::{LoaderState, World};
use pinfeed::sampler::{BlockSampler, Blocks};
use pinfeed::{BoxError, DataLoader, SampleRng, Tensor};

/// Stands for shards in a bucket.
#[derive(Clone)]
struct Bucket {
    blocks: Arc<Blocks>,
    /// How many samples were downloaded.
    downloaded: Arc<AtomicU64>,
}

impl BlockSource for Bucket {
    type Block = Vec<u8>;
    type Sample = i64;

    fn blocks(&self) -> Arc<Blocks> {
        Arc::clone(&self.blocks)
    }

    fn block_bytes(&self, _: u64, samples: Range<u64>) -> usize {
        100 * (samples.end - samples.start) as usize
    }

    fn fetch(&self, block: u64, samples: Range<u64>) -> Result<Vec<u8>, BoxError> {
        let count = samples.end - samples.start;
        self.downloaded.fetch_add(count, Ordering::Relaxed);
        Ok(vec![block as u8; self.block_bytes(block, samples)])
    }

    fn decode(&self, block: &Vec<u8>, index: u64, _: &mut SampleRng) -> Result<i64, BoxError> {
        assert_eq!(Some(u64::from(block[0])), self.blocks.block_of(index));
        Ok(index as i64)
    }
}

fn loader(bucket: &Bucket, rank: usize, ranks: usize) -> pinfeed::Result<DataLoader<Tensor<i64>>> {
    let tracks = BlockSampler::new(bucket.blocks()).with_tracks(16)?; // a multiple of both numbers of ranks
    DataLoader::builder(Blocked::new(bucket.clone()).with_max_bytes(1 << 20))
        .global_batch_size(64)
        .sampler(tracks)
        .seed(9)
        .num_workers(1)
        .world(World::new(rank, ranks)?)
        .build()
}

pub fn main() -> Result<(), Box<dyn Error>> {
    let bucket = Bucket {
        blocks: Arc::new(Blocks::even(3_200, 25)?),
        downloaded: Arc::default(),
    };
    // Four ranks take twenty batches each. (Here one after the other: none waits for another.)
    let (mut seen, mut state) = (Vec::new(), LoaderState::default());
    for rank in 0..4 {
        let loader = loader(&bucket, rank, 4)?;
        let mut epoch = loader.epoch(0);
        for batch in epoch.by_ref().take(20) {
            seen.extend(batch?.to_vec());
        }
        state = epoch.state();
    }
    // Two go on.
    bucket.downloaded.store(0, Ordering::Relaxed);
    for rank in 0..2 {
        for epoch in loader(&bucket, rank, 2)?.resume(0..1, &state)? {
            for batch in epoch {
                seen.extend(batch?.to_vec());
            }
        }
    }
    seen.sort_unstable();
    assert!(seen.into_iter().eq(0..3_200));
    // What is left, and of the 16 blocks that were open the samples that had been taken.
    let downloaded = bucket.downloaded.load(Ordering::Relaxed);
    assert!((1_920..=1_920 + 16 * 25).contains(&downloaded), "{downloaded}");
    Ok(())
}
