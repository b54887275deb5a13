//! Samples of blocks, and rows of blocks that are tables, on their way to the device: whole and in parts, of blocks that come late or fail, left, and resumed by other ranks.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use pinfeed::dataset::{BlockSource, Blocked, Table, TensorDataset};
use pinfeed::loader::{LoaderState, OnError, World};
use pinfeed::sampler::{BlockSampler, Blocks};
use pinfeed::{BoxError, DataLoader, Dataset, SampleRng, Tensor};

use crate::Test;
use crate::backend::Backend;

pub const TESTS: &[Test] = &[
    ("blocks_arrive_whole", blocks_arrive_whole::<false>),
    ("tables_arrive_whole", blocks_arrive_whole::<true>),
    (
        "an_epoch_of_blocks_is_left_and_the_next_one_arrives",
        an_epoch_of_blocks_is_left_and_the_next_one_arrives::<false>,
    ),
    (
        "an_epoch_of_tables_is_left_and_the_next_one_arrives",
        an_epoch_of_blocks_is_left_and_the_next_one_arrives::<true>,
    ),
    (
        "a_block_that_fails_is_missing_and_nothing_else",
        a_block_that_fails_is_missing_and_nothing_else::<false>,
    ),
    (
        "a_table_that_fails_is_missing_and_nothing_else",
        a_block_that_fails_is_missing_and_nothing_else::<true>,
    ),
    (
        "other_ranks_go_on_with_blocks",
        other_ranks_go_on_with_blocks::<false>,
    ),
    (
        "other_ranks_go_on_with_tables",
        other_ranks_go_on_with_blocks::<true>,
    ),
];

const LEN: u64 = 970;
const BLOCK: u64 = 23;
const TRACKS: u64 = 8;
const ROW: usize = 3_000;
const BATCH: usize = 32;

fn byte(sample: u64, place: usize) -> u8 {
    (sample * 31 + place as u64 * 7 + sample * place as u64 / 251) as u8
}

/// Blocks whose bytes are those of their samples, and that take their time.
#[derive(Clone)]
struct Source {
    blocks: Arc<Blocks>,
    /// This one fails always.
    bad: Option<u64>,
    /// How many samples were fetched.
    fetched: Arc<AtomicU64>,
    /// Batches copy rows of blocks.
    has_tables: bool,
}

impl Source {
    fn new(bad: Option<u64>, has_tables: bool) -> Source {
        Source {
            blocks: Arc::new(Blocks::even(LEN, BLOCK).unwrap()),
            bad,
            fetched: Arc::default(),
            has_tables,
        }
    }
}

impl BlockSource for Source {
    type Block = (u64, TensorDataset<(Tensor<u8>, Tensor<i64>)>);
    type Sample = (Tensor<u8>, i64);

    fn blocks(&self) -> Arc<Blocks> {
        Arc::clone(&self.blocks)
    }

    fn block_bytes(&self, _: u64, samples: Range<u64>) -> usize {
        (samples.end - samples.start) as usize * ROW
    }

    fn fetch(&self, block: u64, samples: Range<u64>) -> Result<Self::Block, BoxError> {
        std::thread::sleep(Duration::from_micros(block * 7_919 % 1_500));
        if self.bad == Some(block) {
            return Err("the disk is broken".into());
        }
        self.fetched
            .fetch_add(samples.end - samples.start, Ordering::Relaxed);
        let bytes = samples
            .clone()
            .flat_map(|sample| (0..ROW).map(move |place| byte(sample, place)));
        let rows = (samples.end - samples.start) as usize;
        let bytes = Tensor::from_vec(bytes.collect(), &[rows, ROW])?;
        let indices = samples.clone().map(|sample| sample as i64).collect();
        let indices = Tensor::from_vec(indices, &[rows])?;
        Ok((samples.start, TensorDataset::new((bytes, indices))?))
    }

    fn decode(
        &self,
        (first, rows): &Self::Block,
        index: u64,
        rng: &mut SampleRng,
    ) -> Result<(Tensor<u8>, i64), BoxError> {
        let (bytes, index) = rows.get(index - first, rng)?;
        Ok((bytes, index.as_slice()[0]))
    }

    fn has_tables(&self) -> bool {
        self.has_tables
    }

    fn table<'a>(&self, (_, rows): &'a Self::Block) -> Option<Table<'a>> {
        Some(rows.table())
    }
}

type Loader = DataLoader<(Tensor<u8>, Tensor<i64>)>;

fn loader(backend: &Backend, source: &Source, world: World, on_error: OnError) -> Loader {
    let tracks = BlockSampler::new(source.blocks())
        .with_tracks(TRACKS)
        .unwrap();
    DataLoader::builder(Blocked::new(source.clone()).with_in_flight(4))
        .global_batch_size(BATCH)
        .sampler(tracks)
        .seed(5)
        .num_workers(3)
        .on_error(on_error)
        .world(world)
        .pin_memory(&backend.device)
        .build()
        .unwrap()
}

fn alone() -> World {
    World::new(0, 1).unwrap()
}

/// The samples of a batch that arrived, whose bytes are right.
fn samples(batch: (pinfeed::DeviceTensor<u8>, pinfeed::DeviceTensor<i64>)) -> Vec<u64> {
    let (rows, numbers) = batch;
    let rows = rows.to_host(true).unwrap().wait().unwrap();
    let numbers = numbers.to_host(true).unwrap().wait().unwrap();
    assert_eq!(rows.shape()[..], [numbers.len(), ROW]);
    let numbers: Vec<u64> = numbers.as_slice().iter().map(|n| *n as u64).collect();
    for (row, sample) in rows.as_slice().chunks(ROW).zip(&numbers) {
        let is_right = |(place, found): (usize, &u8)| *found == byte(*sample, place);
        assert!(row.iter().enumerate().all(is_right), "sample {sample}");
    }
    numbers
}

fn sorted(mut samples: Vec<u64>) -> Vec<u64> {
    samples.sort_unstable();
    samples
}

/// Each sample once in each epoch.
fn blocks_arrive_whole<const TABLES: bool>(backend: &Backend) {
    for in_parts in [false, true] {
        if in_parts {
            backend.device.cut_batches_at(20_000, 6_000);
        }
        let source = Source::new(None, TABLES);
        let loader = loader(backend, &source, alone(), OnError::Fail);
        let epochs = loader.epochs(0..3);
        let mut orders = Vec::new();
        for epoch in epochs.prefetch_to_device(&backend.device, 2) {
            let seen: Vec<u64> = epoch.flat_map(|batch| samples(batch.unwrap())).collect();
            assert!(sorted(seen.clone()).into_iter().eq(0..LEN));
            orders.push(seen);
        }
        assert!(orders[0] != orders[1] && orders[1] != orders[2]);
        // Each once in an epoch; one that is open when the next epoch begins, and needed there too, is not fetched again.
        let fetched = source.fetched.load(Ordering::Relaxed);
        // (Rows of tables are announced so far ahead that all three epochs are, so they may share whatever there is room for.)
        let shared = match TABLES {
            true => 2 * LEN,
            false => 2 * TRACKS * BLOCK,
        };
        assert!((3 * LEN - shared..=3 * LEN).contains(&fetched), "{fetched}");
    }
}

/// Copies are under way when the epoch is dropped, and blocks are open.
fn an_epoch_of_blocks_is_left_and_the_next_one_arrives<const TABLES: bool>(backend: &Backend) {
    let source = Source::new(None, TABLES);
    let loader = loader(backend, &source, alone(), OnError::Fail);
    for left_after in [1, 29] {
        let mut epoch = loader.epoch(9).prefetch_to_device(&backend.device, 3);
        let last = epoch.by_ref().take(left_after).last();
        drop(epoch);
        // What was taken before stays what it is.
        let kept = last.map(|batch| samples(batch.unwrap()));
        assert_eq!(
            kept.map_or(left_after, |kept| kept.len() / BATCH * left_after),
            left_after
        );
        let whole = loader.epoch(10).prefetch_to_device(&backend.device, 2);
        let seen: Vec<u64> = whole.flat_map(|batch| samples(batch.unwrap())).collect();
        assert!(
            sorted(seen).into_iter().eq(0..LEN),
            "left after {left_after}"
        );
    }
}

fn a_block_that_fails_is_missing_and_nothing_else<const TABLES: bool>(backend: &Backend) {
    let source = Source::new(Some(11), TABLES);
    let loader = loader(backend, &source, alone(), OnError::Skip { at_most: 100 });
    for epoch in loader.epochs(0..2).prefetch_to_device(&backend.device, 2) {
        let seen: Vec<u64> = epoch.flat_map(|batch| samples(batch.unwrap())).collect();
        let bad = 11 * BLOCK..12 * BLOCK;
        assert!(
            sorted(seen)
                .into_iter()
                .eq((0..LEN).filter(|sample| !bad.contains(sample)))
        );
    }
}

/// Four ranks, then two, then one: each sample once in all.
fn other_ranks_go_on_with_blocks<const TABLES: bool>(backend: &Backend) {
    let source = Source::new(None, TABLES);
    let (mut seen, mut state) = (Vec::new(), LoaderState::default());
    for (ranks, stops_after) in [(4, 6), (2, 9), (1, usize::MAX)] {
        let mut states = Vec::new();
        for rank in 0..ranks {
            let world = World::new(rank, ranks).unwrap();
            let loader = loader(backend, &source, world, OnError::Fail);
            let epochs = loader.resume(0..1, &state).unwrap();
            let mut epochs = epochs.prefetch_to_device(&backend.device, 2);
            let mut epoch = epochs.next().unwrap();
            for batch in epoch.by_ref().take(stops_after) {
                seen.extend(samples(batch.unwrap()));
            }
            states.push(epoch.state());
        }
        assert!(states.iter().all(|other| other == &states[0]));
        state = states[0];
    }
    assert!(sorted(seen).into_iter().eq(0..LEN));
}
