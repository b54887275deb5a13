//! Sources that are read in blocks.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use pinfeed::dataset::{BlockSource, Blocked, Table, TensorDataset};
use pinfeed::error::Temporary;
use pinfeed::loader::OnError;
use pinfeed::sampler::{BlockSampler, Blocks, Sampler};
use pinfeed::{BoxError, DataLoader, SampleRng, Tensor};
use shuttle::thread;

use crate::explore::explore;
use crate::support::{BYTES, How, Pair, below, check_all_back, check_error, coin, device, sample};

const EPOCHS: u64 = 3;

/// Blocks that take their time, one of which cannot be had, or one sample.
struct Shards {
    blocks: Arc<Blocks>,
    fetched: Arc<Mutex<BTreeMap<u64, u64>>>,
    held: Arc<Mutex<(usize, usize)>>,
    broken: Option<u64>,
    bad: Option<u64>,
    /// How often a block cannot be had, for the time being.
    busy: Mutex<BTreeMap<u64, u64>>,
    /// Batches copy rows of a block, unless a sample of it is bad.
    has_tables: bool,
}

struct Held {
    samples: Range<u64>,
    rows: Option<Rows>,
    held: Arc<Mutex<(usize, usize)>>,
}

impl Drop for Held {
    fn drop(&mut self) {
        self.held.lock().unwrap().0 -= bytes(&self.samples);
    }
}

fn bytes(samples: &Range<u64>) -> usize {
    (samples.end - samples.start) as usize * BYTES
}

impl BlockSource for Shards {
    type Block = Held;
    type Sample = (Tensor<u8>, i64);

    fn blocks(&self) -> Arc<Blocks> {
        Arc::clone(&self.blocks)
    }

    fn block_bytes(&self, _: u64, samples: Range<u64>) -> usize {
        bytes(&samples)
    }

    fn fetch(&self, block: u64, samples: Range<u64>) -> Result<Held, BoxError> {
        {
            let mut held = self.held.lock().unwrap();
            held.0 += bytes(&samples);
            held.1 = held.1.max(held.0);
        }
        let is_bad = self.bad.is_some_and(|bad| samples.contains(&bad));
        let rows = (self.has_tables && !is_bad).then(|| rows(&samples));
        let fetched = Held {
            samples: samples.clone(),
            rows: rows.transpose()?,
            held: Arc::clone(&self.held),
        };
        for _ in 0..below(4) {
            thread::yield_now();
        }
        for index in samples {
            *self.fetched.lock().unwrap().entry(index).or_default() += 1;
        }
        if let Some(times @ 1..) = self.busy.lock().unwrap().get_mut(&block) {
            *times -= 1;
            return Err(Temporary::new("it is busy").into());
        }
        match self.broken == Some(block) {
            true => Err("it is broken".into()),
            false => Ok(fetched),
        }
    }

    fn decode(
        &self,
        block: &Held,
        index: u64,
        _: &mut SampleRng,
    ) -> Result<(Tensor<u8>, i64), BoxError> {
        assert!(block.samples.contains(&index));
        match self.bad == Some(index) {
            true => Err("it is bad".into()),
            false => Ok(sample(index)?),
        }
    }

    fn has_tables(&self) -> bool {
        self.has_tables
    }

    fn table<'a>(&self, block: &'a Held) -> Option<Table<'a>> {
        Some(block.rows.as_ref()?.table())
    }
}

type Rows = TensorDataset<(Tensor<u8>, Tensor<i64>)>;

/// Samples as a table.
fn rows(samples: &Range<u64>) -> Result<Rows, BoxError> {
    let (mut content, mut labels, mut shape) = (Vec::new(), Vec::new(), vec![0]);
    for index in samples.clone() {
        let (bytes, label) = sample(index)?;
        shape = [&[labels.len() + 1][..], &bytes.shape()[..]].concat();
        content.extend_from_slice(bytes.as_slice());
        labels.push(label);
    }
    let labels = Tensor::from_slice(&labels, &[labels.len()])?;
    Ok(TensorDataset::new((
        Tensor::from_vec(content, &shape)?,
        labels,
    ))?)
}

/// Whatever the room: all samples come that can be had, each block is read once an epoch, and the bound holds. Epochs that are left, and
/// batches that fail, hold up nothing.
#[test]
fn blocks_are_read_once() {
    explore("blocks_are_read_once", || {
        let how = How::any();
        let mut sizes = Vec::new();
        let mut left = how.len;
        while left > 0 {
            sizes.push((1 + below(3) as u64).min(left));
            left -= sizes[sizes.len() - 1];
        }
        let largest = sizes.iter().copied().max().unwrap() as usize;
        let blocks = Arc::new(Blocks::from_sizes(sizes).unwrap());
        let tracks = 1 + below(3);
        let sampler = BlockSampler::new(Arc::clone(&blocks)).with_seed(below(100) as u64);
        let sampler = sampler.with_tracks(tracks as u64).unwrap();
        let is_whole = coin();
        let broken = (below(4) == 0).then(|| below(blocks.len() as usize) as u64);
        let bad = (below(4) == 0).then(|| below(how.len as usize) as u64);
        let fetched = Arc::<Mutex<BTreeMap<u64, u64>>>::default();
        let held = Arc::<Mutex<(usize, usize)>>::default();
        let least = (tracks + 1) * largest * BYTES;
        let max_bytes = [least, least, 100 * BYTES][below(3)];
        let blocked = Blocked::new(Shards {
            blocks: Arc::clone(&blocks),
            fetched: Arc::clone(&fetched),
            held: Arc::clone(&held),
            broken,
            bad,
            busy: Mutex::default(),
            has_tables: coin(),
        });
        let blocked = blocked
            .with_in_flight(1 + below(3))
            .with_max_bytes(max_bytes);
        let blocked = Arc::new(blocked.with_blocks_ahead(below(5)));
        let device = device();
        let builder = DataLoader::builder(Arc::clone(&blocked)).sampler(sampler.clone());
        let loader: DataLoader<Pair> = how.build(builder, &device);
        for (number, epoch) in (0..EPOCHS).zip(loader.epochs(0..EPOCHS)) {
            let most = match is_whole {
                true => how.batches(),
                false => below(2 * how.batches()),
            };
            for (batch, pair) in epoch.take(most).enumerate() {
                let indices = how
                    .samples_of(batch)
                    .map(|position| sampler.index(number, position));
                let indices: Vec<u64> = indices.collect();
                let fails =
                    |index: &&u64| bad == Some(**index) || broken == blocks.block_of(**index);
                match (pair, indices.iter().find(fails)) {
                    (Ok((_, found)), None) => {
                        assert!(
                            found
                                .as_slice()
                                .iter()
                                .map(|index| *index as u64)
                                .eq(indices)
                        );
                    }
                    // (Of several, the one whose row comes first.)
                    (Err(error), Some(first)) => check_error(&error, *first),
                    (Ok(_), Some(index)) => panic!("sample {index} came"),
                    (Err(error), None) => panic!("{error}"),
                }
            }
        }
        drop(loader);
        let stats = blocked.stats();
        assert_eq!((stats.open, stats.held_bytes), (0, 0), "{stats:?}");
        // (What a worker needs when its epoch was left is read alone.)
        let beyond = if is_whole { 0 } else { BYTES };
        assert!(
            stats.most_bytes <= max_bytes + beyond,
            "{max_bytes}: {stats:?}"
        );
        drop(blocked);
        let held = held.lock().unwrap();
        assert_eq!(held.0, 0);
        // (A request that is given up while it runs brings what is not counted.)
        if is_whole && stats.cancelled == 0 {
            assert!(held.1 <= max_bytes, "{max_bytes}: {}", held.1);
        }
        if is_whole && broken.is_none() && bad.is_none() {
            assert_eq!(stats.singles, 0, "{stats:?}");
            // (What two epochs need at a time may be read for both.)
            let fetched = fetched.lock().unwrap();
            assert!(
                fetched.values().all(|count| (1..=EPOCHS).contains(count)),
                "{fetched:?}"
            );
        }
        check_all_back(&device);
    });
}

/// Batches of many rows of small tables, with no more room than a few of these take: what a worker has copied makes room for the rest.
#[test]
fn batches_are_larger_than_the_room() {
    explore("batches_are_larger_than_the_room", || {
        let (len, tracks) = (6 + below(8) as u64, 1 + below(2));
        let blocks = Arc::new(Blocks::even(len, 1 + below(2) as u64).unwrap());
        let sampler = BlockSampler::new(Arc::clone(&blocks)).with_seed(below(100) as u64);
        let sampler = sampler.with_tracks(tracks as u64).unwrap();
        let blocked = Blocked::new(Shards {
            blocks: Arc::clone(&blocks),
            fetched: Arc::default(),
            held: Arc::default(),
            broken: None,
            bad: (below(6) == 0).then(|| below(len as usize) as u64),
            busy: Mutex::default(),
            has_tables: true,
        });
        let blocked = blocked
            .with_in_flight(1 + below(2))
            .with_max_bytes((tracks + 1) * 2 * BYTES);
        let blocked = Arc::new(blocked);
        let loader = DataLoader::builder(Arc::clone(&blocked))
            .sampler(sampler)
            .batch_size(4 + below(6))
            .num_workers(below(3))
            .on_error(OnError::Skip { at_most: 10 })
            .build()
            .unwrap();
        let bad = blocked.source().bad;
        for epoch in loader.epochs(0..2) {
            let mut indices: Vec<i64> = Vec::new();
            for batch in epoch {
                match batch {
                    Ok((_, found)) => indices.extend(found.as_slice()),
                    Err(error) => check_error(&error, bad.unwrap()), // of a batch that has no other
                }
            }
            indices.sort_unstable();
            let all = (0..len).filter(|index| bad != Some(*index));
            assert!(indices.into_iter().eq(all.map(|index| index as i64)));
        }
        drop(loader);
        let stats = blocked.stats();
        assert_eq!((stats.open, stats.held_bytes), (0, 0), "{stats:?}");
        if bad.is_none() {
            assert_eq!(stats.singles, 0, "{stats:?}");
        }
    });
}

/// Blocks that cannot be had for the time being are fetched again, for all of their samples: each comes, also one that still waits when the
/// others of its block are done.
#[test]
fn blocks_are_tried_again() {
    explore("blocks_are_tried_again", || {
        let len = 4 + below(6) as u64;
        let blocks = Arc::new(Blocks::even(len, 2 + below(3) as u64).unwrap());
        let busy = (0..blocks.len()).map(|block| (block, below(3) as u64));
        let blocked = Blocked::new(Shards {
            blocks: Arc::clone(&blocks),
            fetched: Arc::default(),
            held: Arc::default(),
            broken: None,
            bad: None,
            busy: Mutex::new(busy.collect()),
            has_tables: coin(),
        });
        let blocked = blocked.with_in_flight(1 + below(3));
        let blocked = Arc::new(blocked.with_blocks_ahead(below(3)));
        let builder = DataLoader::builder(Arc::clone(&blocked)).batch_size(1 + below(3));
        let loader = builder
            .num_workers(below(4))
            .retry(3, Duration::ZERO)
            .build()
            .unwrap();
        for epoch in loader.epochs(0..2) {
            let mut indices: Vec<i64> = Vec::new();
            for batch in epoch {
                indices.extend(batch.unwrap().1.as_slice());
            }
            assert!(indices.into_iter().eq(0..len as i64));
        }
        drop(loader);
        let stats = blocked.stats();
        assert_eq!((stats.open, stats.held_bytes), (0, 0), "{stats:?}");
    });
}
