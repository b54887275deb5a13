//! Data sets that are read in blocks: the same batches as without, each block read once, and never more of them than there is room for.
//!
//! Nothing here asserts a time. What hangs waits for a gate that the test opens at its end.
//!
//! All of it is tested twice: as `blocks`, and as `block_tables`, where blocks are tables, of which batches copy rows.

use std::collections::{BTreeMap, HashSet};
use std::num::NonZeroU64;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

use pinfeed::dataset::{BlockSource, Blocked, Pass, Subset, Table, TensorDataset};
use pinfeed::error::Temporary;
use pinfeed::loader::{LoaderState, OnError, World};
use pinfeed::rng::RngKey;
use pinfeed::sampler::{BlockSampler, Blocks, Opening, Openings, RandomSampler, Sampler};
use pinfeed::{BoxError, DataLoader, Dataset, Error, SampleRng, Tensor, from_fn};

/// How many bytes a sample has.
const BYTES: usize = 10;

/// Whether blocks are tables.
fn are_tables() -> bool {
    module_path!().ends_with("tables")
}

/// What a sample has beside its index: a random number, unless it is a row of a table.
fn value(index: u64, rng: &mut SampleRng) -> f32 {
    match are_tables() {
        true => index as f32 / 2.0,
        false => rng.f32(),
    }
}

/// Not so short that a sample is late by chance.
const TIMEOUT: Duration = Duration::from_millis(400);

/// Fetches that hang wait here.
#[derive(Default)]
struct Gate {
    is_open: Mutex<bool>,
    changed: Condvar,
}

impl Gate {
    fn hang(&self) {
        let mut is_open = self.is_open.lock().unwrap();
        while !*is_open {
            is_open = self.changed.wait(is_open).unwrap();
        }
    }

    fn open(&self) {
        *self.is_open.lock().unwrap() = true;
        self.changed.notify_all();
    }
}

type Fails = fn(block: u64, before: u64) -> Result<(), BoxError>;

/// A store of blocks, which counts what is fetched of them.
struct Store {
    blocks: Arc<Blocks>,
    /// How often each sample was fetched, and how often each block was asked for.
    samples: Mutex<BTreeMap<u64, u64>>,
    requests: Mutex<BTreeMap<u64, u64>>,
    /// How much memory there is of what was fetched or is being fetched, and the most there was.
    alive: Arc<AtomicUsize>,
    most: AtomicUsize,
    fails: Fails,
    hang: HashSet<u64>,
    gate: Gate,
    /// This sample cannot be decoded.
    bad: Option<u64>,
    /// Samples do not draw random numbers.
    is_plain: bool,
}

struct Block {
    samples: Range<u64>,
    rows: TensorDataset<(Tensor<i64>, Tensor<f32>)>,
    alive: Arc<AtomicUsize>,
}

impl Drop for Block {
    fn drop(&mut self) {
        let bytes = BYTES * (self.samples.end - self.samples.start) as usize;
        self.alive.fetch_sub(bytes, Ordering::SeqCst);
    }
}

impl Store {
    fn of(sizes: impl IntoIterator<Item = u64>) -> Store {
        Store {
            blocks: Arc::new(Blocks::from_sizes(sizes).unwrap()),
            samples: Mutex::default(),
            requests: Mutex::default(),
            alive: Arc::default(),
            most: AtomicUsize::new(0),
            fails: |_, _| Ok(()),
            hang: HashSet::new(),
            gate: Gate::default(),
            bad: None,
            is_plain: false,
        }
    }

    /// How often each sample was fetched.
    fn counts(&self) -> Vec<u64> {
        let samples = self.samples.lock().unwrap();
        let all = 0..self.blocks.samples();
        all.map(|index| samples.get(&index).copied().unwrap_or(0))
            .collect()
    }

    fn requests_of(&self, block: u64) -> u64 {
        self.requests
            .lock()
            .unwrap()
            .get(&block)
            .copied()
            .unwrap_or(0)
    }

    #[track_caller]
    fn assert_each_fetched(&self, times: u64) {
        assert!(
            self.counts().iter().all(|count| *count == times),
            "{:?}",
            self.counts()
        );
    }

    #[track_caller]
    fn assert_nothing_is_left(&self) {
        assert_eq!(self.alive.load(Ordering::SeqCst), 0);
    }
}

#[derive(Clone)]
struct Source(Arc<Store>);

impl BlockSource for Source {
    type Block = Block;
    type Sample = (i64, f32);

    fn blocks(&self) -> Arc<Blocks> {
        Arc::clone(&self.0.blocks)
    }

    fn block_bytes(&self, block: u64, samples: Range<u64>) -> usize {
        let range = self.0.blocks.range(block);
        assert!(range.start <= samples.start && samples.end <= range.end);
        BYTES * (samples.end - samples.start) as usize
    }

    fn fetch(&self, block: u64, samples: Range<u64>) -> Result<Block, BoxError> {
        let store = &self.0;
        let bytes = self.block_bytes(block, samples.clone());
        let alive = store.alive.fetch_add(bytes, Ordering::SeqCst) + bytes;
        store.most.fetch_max(alive, Ordering::SeqCst);
        let indices: Vec<i64> = samples.clone().map(|index| index as i64).collect();
        let values: Vec<f32> = indices.iter().map(|index| *index as f32 / 2.0).collect();
        let rows = (
            Tensor::from_slice(&indices, &[indices.len()]).unwrap(),
            Tensor::from_slice(&values, &[values.len()]).unwrap(),
        );
        let fetched = Block {
            samples: samples.clone(),
            rows: TensorDataset::new(rows).unwrap(),
            alive: Arc::clone(&store.alive),
        };
        let before = {
            let mut requests = store.requests.lock().unwrap();
            let count = requests.entry(block).or_default();
            *count += 1;
            *count - 1
        };
        {
            let mut fetched = store.samples.lock().unwrap();
            samples.for_each(|index| *fetched.entry(index).or_default() += 1);
        }
        if store.hang.contains(&block) {
            store.gate.hang();
        }
        (store.fails)(block, before)?;
        Ok(fetched)
    }

    fn decode(
        &self,
        block: &Block,
        index: u64,
        rng: &mut SampleRng,
    ) -> Result<(i64, f32), BoxError> {
        assert!(block.samples.contains(&index));
        if self.0.bad == Some(index) {
            return Err("it is damaged".into());
        }
        let drawn = match self.0.is_plain {
            true => 0.0,
            false => value(index, rng),
        };
        Ok((index as i64, drawn))
    }

    fn has_tables(&self) -> bool {
        are_tables()
    }

    fn table<'a>(&self, block: &'a Block) -> Option<Table<'a>> {
        let is_bad = self.0.bad.is_some_and(|bad| block.samples.contains(&bad));
        (!is_bad && !self.0.is_plain).then(|| block.rows.table())
    }

    fn describe(&self, index: u64) -> Option<String> {
        let block = self.0.blocks.block_of(index)?;
        Some(format!("shard-{block}.tar, key {index}"))
    }
}

fn blocked(store: Store) -> (Arc<Store>, Blocked<Source>) {
    let store = Arc::new(store);
    let blocked = Blocked::new(Source(Arc::clone(&store)));
    (store, blocked)
}

/// Blocks of some sizes; a few of them are empty.
fn sizes(blocks: u64) -> Vec<u64> {
    (0..blocks)
        .map(|block| [5, 9, 1, 0, 12, 7][block as usize % 6])
        .collect()
}

fn order(store: &Store, tracks: u64) -> BlockSampler {
    let order = BlockSampler::new(Arc::clone(&store.blocks));
    order.with_tracks(tracks).unwrap()
}

/// The bytes of the largest blocks, as many as there are tracks, and one more.
fn tight(store: &Store, tracks: u64) -> usize {
    let largest = (0..store.blocks.len()).map(|block| {
        let range = store.blocks.range(block);
        range.end - range.start
    });
    (tracks as usize + 1) * BYTES * largest.max().unwrap() as usize
}

/// The same samples, got one by one.
fn plain(store: &Store) -> impl Dataset<Sample = (i64, f32)> + use<> {
    let len = store.blocks.samples();
    from_fn(len, |index, rng| Ok((index as i64, value(index, rng))))
}

type Batches = Vec<(Vec<i64>, Vec<f32>)>;

fn epoch(loader: &DataLoader<(pinfeed::Tensor<i64>, pinfeed::Tensor<f32>)>, epoch: u64) -> Batches {
    let batches = loader.epoch(epoch).map(|batch| {
        let (indices, drawn) = batch.unwrap();
        (indices.to_vec(), drawn.to_vec())
    });
    batches.collect()
}

fn indices(batches: &Batches) -> Vec<i64> {
    let mut all: Vec<i64> = batches
        .iter()
        .flat_map(|(indices, _)| indices.clone())
        .collect();
    all.sort_unstable();
    all
}

/// Each block is read once an epoch, whatever the number of workers, and the batches are those of any data set in that order; also if
/// there is no more room than for the blocks that are open, and one.
#[test]
fn each_block_is_read_once() {
    // (In the larger batches, a block is over long before its batch is.)
    for (workers, tracks, rows) in [
        (0, 1, 7),
        (0, 4, 7),
        (0, 4, 100),
        (1, 4, 7),
        (3, 4, 7),
        (3, 4, 100),
        (3, 8, 7),
    ] {
        for is_tight in [false, true] {
            let (store, data) = blocked(Store::of(sizes(40)));
            let max_bytes = match is_tight {
                true => tight(&store, tracks),
                false => usize::MAX,
            };
            let data = Arc::new(data.with_in_flight(4).with_max_bytes(max_bytes));
            let builder = DataLoader::builder(Arc::clone(&data))
                .batch_size(rows)
                .seed(3);
            let loader = builder
                .num_workers(workers)
                .sampler(order(&store, tracks))
                .build()
                .unwrap();
            let same = DataLoader::builder(plain(&store)).batch_size(rows).seed(3);
            let same = same.sampler(order(&store, tracks)).build().unwrap();
            for number in 0..2 {
                assert_eq!(epoch(&loader, number), epoch(&same, number));
                store.assert_each_fetched(number + 1);
            }
            // As epochs that follow each other.
            for (number, batches) in (2..5).zip(loader.epochs(2..5)) {
                let batches = batches.map(|batch| {
                    let (indices, drawn) = batch.unwrap();
                    (indices.to_vec(), drawn.to_vec())
                });
                assert_eq!(batches.collect::<Batches>(), epoch(&same, number));
            }
            drop(loader);
            let stats = data.stats();
            assert_eq!(
                (stats.singles, stats.open, stats.held_bytes),
                (0, 0, 0),
                "{stats:?}"
            );
            assert!(stats.most_bytes <= max_bytes, "{stats:?}");
            assert!(store.most.load(Ordering::SeqCst) <= max_bytes);
            store.assert_nothing_is_left();
            drop(data);
            // (What an epoch has in common with the one before it is read once for both.)
            assert!(store.counts().iter().all(|count| (3..=5).contains(count)));
        }
    }
}

/// Room follows the uneven sizes of blocks: however the bound is chosen, it holds, and the epoch goes on.
#[test]
fn the_bound_holds() {
    let (store, data) = blocked(Store::of(sizes(60)));
    let loader = DataLoader::builder(data.with_max_bytes(1)).sampler(order(&store, 4));
    let refused = loader.build().unwrap_err().to_string();
    assert!(
        refused.contains("`Blocked::with_max_bytes`: is 1 bytes, and the 4 blocks that are open at a time take up to"),
        "{refused}"
    );
    // It says what to set.
    let (_, least) = refused.split_once("set at least ").unwrap();
    let least: usize = least.split_once(',').unwrap().0.parse().unwrap();
    for bound in [least, least + 30, 2 * least] {
        let (store, data) = blocked(Store::of(sizes(60)));
        let data = Arc::new(data.with_max_bytes(bound).with_blocks_ahead(20));
        let builder = DataLoader::builder(Arc::clone(&data))
            .batch_size(5)
            .num_workers(3);
        let loader = builder.sampler(order(&store, 4)).build().unwrap();
        for number in 0..3 {
            assert_eq!(
                epoch(&loader, number).len() as u64,
                store.blocks.samples().div_ceil(5)
            );
            store.assert_each_fetched(number + 1);
        }
        let most = store.most.load(Ordering::SeqCst);
        assert!(most <= bound, "{most} bytes, and {bound} allowed");
        assert_eq!(data.stats().singles, 0);
    }
}

/// Ranks read blocks of their own: together each once.
#[test]
fn ranks_share_the_blocks() {
    for ranks in [1, 2, 4, 8] {
        let (store, _) = blocked(Store::of(vec![6; 64]));
        let mut seen = Vec::new();
        for rank in 0..ranks {
            let data = Blocked::new(Source(Arc::clone(&store)));
            let builder = DataLoader::builder(data)
                .batch_size(64 / ranks)
                .seed(5)
                .num_workers(2);
            let builder = builder.world(World::new(rank, ranks).unwrap());
            let loader = builder.sampler(order(&store, 16)).build().unwrap();
            seen.extend(
                epoch(&loader, 1)
                    .into_iter()
                    .flat_map(|(indices, _)| indices),
            );
        }
        seen.sort_unstable();
        assert!(seen.into_iter().eq(0..384), "{ranks} ranks");
        store.assert_each_fetched(1);
    }
}

/// An epoch that is resumed on other ranks: each sample comes once, and what was open is read again, once.
#[test]
fn resumed_on_other_ranks() {
    let run = |store: &Arc<Store>, ranks: usize, state: &LoaderState, batches: usize| {
        let (mut seen, mut states) = (Vec::new(), Vec::new());
        for rank in 0..ranks {
            let data = Blocked::new(Source(Arc::clone(store)));
            let builder = DataLoader::builder(data)
                .global_batch_size(32)
                .seed(5)
                .num_workers(2);
            let builder = builder.world(World::new(rank, ranks).unwrap());
            let loader = builder.sampler(order(store, 16)).build().unwrap();
            let mut epochs = loader.resume(0..1, state).unwrap();
            let mut current = epochs.next().unwrap();
            for _ in 0..batches {
                let Some(batch) = current.next() else {
                    break;
                };
                seen.extend(batch.unwrap().0.to_vec());
            }
            drop(current);
            states.push(loader.state());
        }
        (seen, states.swap_remove(0))
    };
    for [first, second, third] in [[8, 2, 8], [1, 4, 2], [2, 1, 8]] {
        let (store, _) = blocked(Store::of(vec![6; 64]));
        let builder = DataLoader::builder(Blocked::new(Source(Arc::clone(&store))));
        let builder = builder.global_batch_size(32).seed(5);
        let state = builder.sampler(order(&store, 16)).build().unwrap().state();
        let (mut seen, state) = run(&store, first, &state, 5);
        store.samples.lock().unwrap().clear();
        let (more, state) = run(&store, second, &state, 3);
        seen.extend(more);
        store.samples.lock().unwrap().clear();
        let (more, _) = run(&store, third, &state, usize::MAX);
        seen.extend(more);
        seen.sort_unstable();
        assert!(
            seen.into_iter().eq(0..384),
            "{first}, {second}, {third} ranks"
        );
        // What comes behind the batches that were taken: each once, and with it what else is in the open blocks.
        assert!(
            store.counts().iter().all(|count| *count <= 1),
            "{:?}",
            store.counts()
        );
    }
}

/// Which samples of a run failed, and with what.
fn failures(
    loader: &DataLoader<(pinfeed::Tensor<i64>, pinfeed::Tensor<f32>)>,
    number: u64,
) -> (Vec<i64>, Vec<Error>) {
    let (mut seen, mut errors) = (Vec::new(), Vec::new());
    for batch in loader.epoch(number) {
        match batch {
            Ok((indices, _)) => seen.extend(indices.to_vec()),
            Err(error) => errors.push(error),
        }
    }
    seen.sort_unstable();
    (seen, errors)
}

/// A block that fails is one error, of each of its samples. It is asked for once, and others come.
#[test]
fn a_block_that_fails() {
    for (workers, max_bytes) in [(0, usize::MAX), (3, usize::MAX), (3, 0)] {
        let mut store = Store::of(vec![6; 30]);
        store.fails = |block, _| match block {
            7 => Err("404 Not Found".into()),
            _ => Ok(()),
        };
        let (store, data) = blocked(store);
        let max_bytes = max_bytes.max(tight(&store, 4));
        let builder = DataLoader::builder(data.with_max_bytes(max_bytes)).num_workers(workers);
        let loader = builder.sampler(order(&store, 4)).build().unwrap();
        for number in 0..2 {
            let (seen, errors) = failures(&loader, number);
            assert!(
                seen.into_iter()
                    .eq((0..180).filter(|index| !(42..48).contains(index)))
            );
            assert_eq!(errors.len(), 6);
            for error in errors {
                let Error::Sample(sample, _) = &error else {
                    panic!("{error}");
                };
                let index = sample.index;
                let text = error.to_string();
                assert!(
                    text.starts_with(&format!(
                        "sample {index} (shard-7.tar, key {index}), row 0 of batch"
                    )),
                    "{text}"
                );
                // (Its track may have cut it in two.)
                assert!(
                    text.contains("block 7 (samples 4") || text.contains("of block 7 was not"),
                    "{text}"
                );
                assert!(text.ends_with("was not fetched: 404 Not Found"), "{text}");
            }
            assert!(store.requests_of(7) <= 2 * (number + 1));
        }
    }
}

/// A batch of which a sample fails: what was read for the rest of it does not hold up what comes, however little room there is.
#[test]
fn what_a_failed_batch_leaves() {
    for workers in [0, 1, 3] {
        for in_order in [true, false] {
            let mut store = Store::of(vec![6; 40]);
            store.fails = |block, _| match block % 5 {
                0 => Err("404 Not Found".into()),
                _ => Ok(()),
            };
            let (store, data) = blocked(store);
            let data = Arc::new(data.with_max_bytes(tight(&store, 4)));
            let builder = DataLoader::builder(Arc::clone(&data))
                .batch_size(8)
                .num_workers(workers);
            let builder = builder.in_order(in_order).sampler(order(&store, 4));
            let loader = builder.build().unwrap();
            for number in 0..3 {
                assert_eq!(loader.epoch(number).count(), 30);
            }
            assert_eq!(data.stats().held_bytes, 0);
        }
    }
}

/// With `retry`, a block whose error is temporary is asked for again, once for all of its samples.
#[test]
fn a_block_is_tried_again() {
    let mut store = Store::of(vec![6; 30]);
    store.fails = |block, before| match (block, before) {
        (3 | 20, 0) => Err(Temporary::new("503 Slow Down").into()),
        _ => Ok(()),
    };
    let (store, data) = blocked(store);
    let builder = DataLoader::builder(data).batch_size(9).num_workers(2);
    let builder = builder
        .retry(2, Duration::from_millis(1))
        .sampler(order(&store, 4));
    let loader = builder.build().unwrap();
    assert!(indices(&epoch(&loader, 0)).into_iter().eq(0..180));
    // (A track may have cut one of them in two; the last sample of a block may be read alone.)
    assert!(
        (2..=4).contains(&store.requests_of(3)),
        "{}",
        store.requests_of(3)
    );
    assert!(
        (2..=4).contains(&store.requests_of(20)),
        "{}",
        store.requests_of(20)
    );
    assert_eq!(store.requests_of(4).min(2), store.requests_of(4));
}

#[test]
fn a_block_that_panics() {
    let mut store = Store::of(vec![6; 30]);
    store.fails = |block, _| match block {
        7 => watch::provoked("the index is damaged"),
        _ => Ok(()),
    };
    let (store, data) = blocked(store);
    let loader = DataLoader::builder(data)
        .num_workers(2)
        .sampler(order(&store, 4));
    let loader = loader.build().unwrap();
    for number in 0..2 {
        let (seen, errors) = failures(&loader, number);
        assert_eq!((seen.len(), errors.len()), (174, 6));
        for error in errors {
            let Error::SamplePanicked(sample, message) = &error else {
                panic!("{error}");
            };
            assert_eq!(store.blocks.block_of(sample.index), Some(7));
            assert!(
                message.contains("block 7") && message.contains("the index is damaged"),
                "{message}"
            );
        }
    }
}

/// A block that hangs costs its samples, and nothing else: others come, in this epoch and the next.
#[test]
fn a_block_that_hangs() {
    let mut store = Store::of(vec![6; 30]);
    store.hang = HashSet::from([7]);
    let (store, data) = blocked(store);
    let max_bytes = tight(&store, 4);
    let data = Arc::new(data.with_in_flight(1).with_max_bytes(max_bytes));
    let builder = DataLoader::builder(Arc::clone(&data))
        .num_workers(2)
        .timeout(TIMEOUT);
    let loader = builder.sampler(order(&store, 4)).build().unwrap();
    let (seen, errors) = failures(&loader, 0);
    // (On a busy machine, another may be late.)
    assert!(seen.iter().all(|index| !(42..48).contains(index)));
    assert!(errors.len() >= 6);
    for error in &errors {
        assert!(matches!(error, Error::TimedOut(_)), "{error}");
    }
    assert!(data.stats().given_up >= 1);
    drop(loader);
    store.gate.open();
    let loader = DataLoader::builder(Arc::clone(&data)).num_workers(2);
    let loader = loader.sampler(order(&store, 4)).build().unwrap();
    assert!(indices(&epoch(&loader, 1)).into_iter().eq(0..180));
    drop(loader);
    assert_eq!(data.stats().held_bytes, 0);
}

/// An epoch is left in the middle: what was read for it is freed, and the next one reads its own.
#[test]
fn an_epoch_that_is_left() {
    for workers in [0, 3] {
        let (store, data) = blocked(Store::of(sizes(60)));
        let data = Arc::new(data.with_max_bytes(tight(&store, 4)));
        let builder = DataLoader::builder(Arc::clone(&data))
            .batch_size(5)
            .num_workers(workers);
        let loader = builder.sampler(order(&store, 4)).build().unwrap();
        for taken in [0, 1, 4, 20] {
            loader
                .epoch(0)
                .take(taken)
                .for_each(|batch| _ = batch.unwrap());
            for epoch in loader.epochs(1..3) {
                epoch.take(taken).for_each(|batch| _ = batch.unwrap());
            }
        }
        let all = (0..store.blocks.samples() as i64).collect::<Vec<_>>();
        assert_eq!(indices(&epoch(&loader, 5)), all);
        drop(loader);
        let stats = data.stats();
        assert_eq!((stats.open, stats.held_bytes), (0, 0), "{stats:?}");
        drop(data);
        store.assert_nothing_is_left();
    }
}

/// Two loaders read one data set in step: what they need at the same time is read once.
#[test]
fn two_loaders_share_blocks() {
    let (store, data) = blocked(Store::of(vec![6; 40]));
    let data = Arc::new(data);
    let loader = || {
        let builder = DataLoader::builder(Arc::clone(&data)).batch_size(8).seed(1);
        builder
            .num_workers(1)
            .sampler(order(&store, 4))
            .build()
            .unwrap()
    };
    let (first, second) = (loader(), loader());
    for (one, other) in first.epoch(0).zip(second.epoch(0)) {
        assert_eq!(one.unwrap().0.to_vec(), other.unwrap().0.to_vec());
    }
    let total: u64 = store.counts().iter().sum();
    assert!(total < 2 * 240, "nothing was shared");
    assert_eq!(data.stats().held_bytes, 0);
}

/// One pass has all the room, and stands still: another goes on all the same, one sample at a time.
#[test]
fn no_room_is_left() {
    let (store, data) = blocked(Store::of(vec![6; 40]));
    let max_bytes = tight(&store, 4);
    let data = Arc::new(data.with_max_bytes(max_bytes));
    let loader = |workers| {
        let builder = DataLoader::builder(Arc::clone(&data)).batch_size(8).seed(1);
        builder
            .num_workers(workers)
            .sampler(order(&store, 4))
            .build()
            .unwrap()
    };
    let (first, second) = (loader(1), loader(2));
    let mut stands = first.epoch(0);
    let mut seen = stands.next().unwrap().unwrap().0.to_vec();
    assert!(indices(&epoch(&second, 1)).into_iter().eq(0..240));
    assert!(data.stats().most_bytes <= max_bytes + BYTES);
    for batch in stands {
        seen.extend(batch.unwrap().0.to_vec());
    }
    seen.sort_unstable();
    assert!(seen.into_iter().eq(0..240));
    assert_eq!(data.stats().held_bytes, 0);
}

/// In an order that knows nothing of blocks, samples are fetched one by one, ahead.
#[test]
fn other_orders() {
    let (store, data) = blocked(Store::of(sizes(12)));
    let len = store.blocks.samples();
    let data = Arc::new(data.with_max_bytes(3 * BYTES));
    let builder = DataLoader::builder(Arc::clone(&data))
        .batch_size(4)
        .num_workers(3);
    let loader = builder.sampler(RandomSampler::new(len)).build().unwrap();
    assert!(indices(&epoch(&loader, 0)).into_iter().eq(0..len as i64));
    store.assert_each_fetched(1);
    let stats = data.stats();
    assert_eq!((stats.singles, stats.held_bytes), (len, 0), "{stats:?}");
    assert!(stats.most_bytes <= 4 * BYTES, "{stats:?}");

    // A part of the data set has no blocks.
    let part = Subset::new(Arc::clone(&data), (0..len).step_by(2)).unwrap();
    assert!(part.blocks().is_none());
    let loader = DataLoader::builder(part)
        .batch_size(4)
        .shuffle(true)
        .num_workers(2);
    let seen = indices(&epoch(&loader.build().unwrap(), 0));
    assert!(seen.into_iter().eq((0..len as i64).step_by(2)));
    assert_eq!(data.stats().held_bytes, 0);
}

/// A bad sample is replaced, or left out: its block is read once all the same.
#[test]
fn bad_samples() {
    for on_error in [
        OnError::Skip { at_most: u64::MAX },
        OnError::Replace { at_most: u64::MAX },
    ] {
        let mut store = Store::of(vec![6; 30]);
        store.bad = Some(100);
        let (store, data) = blocked(store);
        let builder = DataLoader::builder(data).batch_size(9).num_workers(2);
        let builder = builder.on_error(on_error).sampler(order(&store, 4));
        let loader = builder.build().unwrap();
        let seen = indices(&epoch(&loader, 0));
        let mut seen_once: Vec<i64> = seen.clone();
        seen_once.dedup();
        assert!(
            seen_once
                .into_iter()
                .eq((0..180).filter(|index| *index != 100))
        );
        // What takes its place may be read alone; and a batch that is made again needs samples whose blocks are done with.
        let extra: u64 = store.counts().iter().sum::<u64>() - 180;
        assert!(extra < 9, "{on_error:?}: {:?}", store.counts());
    }
}

/// What wraps a data set of blocks passes on that it is one; a cache that has everything reads nothing.
#[test]
fn blocks_within_other_data_sets() {
    let mut store = Store::of(vec![6; 30]);
    store.is_plain = true;
    let (store, data) = blocked(store);
    let cached = Arc::new(
        data.map(|(index, _), _| Ok((index, 0.0f32)))
            .cached(1 << 20),
    );
    let mapped = Arc::clone(&cached).map(|(index, _), rng| Ok((index, rng.f32())));
    let both = mapped.zip(vec![1i64; 180]).unwrap();
    assert_eq!(both.blocks().unwrap().len(), 30);
    let builder = DataLoader::builder(both).batch_size(9).num_workers(2);
    let loader = builder.sampler(order(&store, 4)).build().unwrap();
    for number in 0..3 {
        let batches = loader
            .epoch(number)
            .map(|batch| batch.unwrap().0.0.to_vec());
        let mut seen: Vec<i64> = batches.flatten().collect();
        seen.sort_unstable();
        assert!(seen.into_iter().eq(0..180));
        store.assert_each_fetched(1);
    }
    assert_eq!(cached.stats().samples, 180);
}

/// By hand, without a loader: samples that no pass announces are read alone, and openings that make no sense do no harm.
#[test]
fn by_hand() {
    let (store, data) = blocked(Store::of(vec![6; 4]));
    let mut rng = SampleRng::for_sample(RngKey {
        seed: 0,
        epoch: 0,
        position: 0,
    });
    assert_eq!(data.get(7, &mut rng).unwrap().0, 7);
    let opening = |block, samples, first, until, uses| Opening {
        block,
        samples,
        first,
        until,
        uses,
    };
    let (pass, other) = (Pass::new(1, 0), Pass::new(2, 0));
    let wrong = [
        opening(99, 0..6, 0, 6, 6),
        opening(1, 0..6, 0, 6, 6),
        opening(0, 3..3, 0, 6, 6),
        opening(0, 0..u64::MAX, 0, 6, 6),
        opening(2, 12..18, 0, 0, 0),
        opening(3, 18..24, 0, 6, 1),
        opening(3, 18..24, 0, 6, 1),
    ];
    data.pass_began(Openings::new(wrong), pass);
    data.will_need(&[18, 19, 3], pass);
    data.will_need(&[], other);
    data.pass_ended(other);
    for index in [18, 19, 3] {
        assert_eq!(data.get(index, &mut rng).unwrap().0, index as i64);
    }
    data.pass_ended(pass);
    data.pass_ended(pass);
    let stats = data.stats();
    assert_eq!((stats.open, stats.held_bytes), (0, 0), "{stats:?}");
    drop(data);
    store.assert_nothing_is_left();
}

/// Openings that panic are an error of a batch; the others come, their samples read alone.
#[test]
fn openings_that_panic() {
    struct Panics(BlockSampler);

    impl Sampler for Panics {
        fn len(&self) -> u64 {
            self.0.len()
        }

        fn index(&self, epoch: u64, position: u64) -> u64 {
            self.0.index(epoch, position)
        }

        fn tracks(&self) -> Option<NonZeroU64> {
            self.0.tracks()
        }

        fn openings(&self, epoch: u64, from: u64, lane: u64, lanes: u64) -> Option<Openings> {
            let openings = self.0.openings(epoch, from, lane, lanes)?;
            // (The loader looks at them, too, when it is built.)
            static IS_BUILT: AtomicBool = AtomicBool::new(false);
            if !IS_BUILT.swap(true, Ordering::SeqCst) {
                return Some(openings);
            }
            Some(Openings::new(openings.enumerate().map(
                |(number, opening)| match number {
                    9 => watch::provoked("the tenth"),
                    _ => opening,
                },
            )))
        }
    }

    let (store, data) = blocked(Store::of(vec![6; 30]));
    let data = Arc::new(data.with_max_bytes(tight(&store, 4)));
    let builder = DataLoader::builder(Arc::clone(&data))
        .batch_size(9)
        .num_workers(2);
    let loader = builder.sampler(Panics(order(&store, 4))).build().unwrap();
    let (seen, errors) = failures(&loader, 0);
    assert_eq!((seen.len(), errors.len()), (180 - 9, 1), "{errors:?}");
    assert!(errors[0].to_string().contains("the tenth"), "{}", errors[0]);
    drop(loader);
    assert_eq!(data.stats().held_bytes, 0);
}

/// What gets several samples in a call, and nothing else.
struct Several(u64, usize);

impl Dataset for Several {
    type Sample = i64;

    fn len(&self) -> u64 {
        self.0
    }

    fn get(&self, index: u64, _: &mut SampleRng) -> Result<i64, BoxError> {
        Ok(index as i64)
    }

    fn at_once(&self) -> usize {
        self.1
    }
}

/// Blocks beside a data set that gets several samples in a call, in no more room than `build` asks for. A call may hold the room that its next
/// sample needs; it goes on all the same, by reading that alone: each sample comes once, no more room is taken, and what was read alone is counted.
#[test]
fn several_samples_in_a_call_and_no_room() {
    for (workers, tracks, rows, at_once) in [
        (0, 1, 7, 3),
        (0, 4, 7, 64),
        (0, 4, 100, 64),
        (1, 4, 100, 10),
        (1, 8, 40, 1_000),
        (3, 1, 100, 64),
        (3, 4, 7, 3),
        (3, 4, 40, 7),
        (3, 4, 100, 64),
        (3, 8, 100, 1_000),
    ] {
        let case = format!("{workers} workers, {tracks} tracks, {rows} rows, {at_once} at once");
        let len = sizes(60).into_iter().sum();
        let build = |max_bytes| {
            let (store, data) = blocked(Store::of(sizes(60)));
            let data = data.with_in_flight(4).with_blocks_ahead(20);
            let data = Arc::new(data.with_max_bytes(max_bytes));
            let both = Arc::clone(&data).zip(Several(len, at_once)).unwrap();
            let builder = DataLoader::builder(both).batch_size(rows).seed(3);
            let builder = builder.num_workers(workers).sampler(order(&store, tracks));
            (store, data, builder.build())
        };
        let refused = build(1).2.unwrap_err().to_string();
        let (_, least) = refused.split_once("set at least ").unwrap();
        let least: usize = least.split_once(',').unwrap().0.parse().unwrap();
        let (store, data, loader) = build(least);
        let loader = loader.unwrap();
        let same = DataLoader::builder(plain(&store)).batch_size(rows).seed(3);
        let same = same.sampler(order(&store, tracks)).build().unwrap();
        let two = |((indices, values), _): ((Tensor<i64>, Tensor<f32>), Tensor<i64>)| {
            (indices.to_vec(), values.to_vec())
        };
        for number in 0..2 {
            let batches = loader.epoch(number).map(|batch| two(batch.unwrap()));
            assert_eq!(batches.collect::<Batches>(), epoch(&same, number), "{case}");
        }
        // One that is left in the middle, and epochs that follow each other.
        loader
            .epoch(2)
            .take(2)
            .for_each(|batch| drop(batch.unwrap()));
        for (number, batches) in (3..5).zip(loader.epochs(3..5)) {
            let batches = batches.map(|batch| two(batch.unwrap()));
            assert_eq!(batches.collect::<Batches>(), epoch(&same, number), "{case}");
        }
        drop(loader);
        let stats = data.stats();
        assert_eq!((stats.open, stats.held_bytes), (0, 0), "{case}: {stats:?}");
        // (One sample at a time is beyond the bound.)
        assert!(stats.most_bytes <= least + BYTES, "{case}: {stats:?}");
        let fetched: u64 = store.counts().iter().sum();
        println!(
            "{case}: {fetched} samples fetched for {} {stats:?}",
            4 * len
        );
        store.assert_nothing_is_left();
    }
}
