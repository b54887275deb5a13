//! Data sets that are fetched ahead: the same batches as without, each sample fetched once, and nothing for an epoch that is gone.

use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

use pinfeed::dataset::{Pass, Staged, StagedDataset, StagedStats, Subset};
use pinfeed::error::Temporary;
use pinfeed::loader::OnError;
use pinfeed::rng::RngKey;
use pinfeed::sampler::{RandomSampler, Sampler};
use pinfeed::{BoxError, DataLoader, Dataset, Device, Error, SampleRng, from_fn};

const LEN: u64 = 120;

/// A store whose requests can be held up, and that counts them.
#[derive(Default)]
struct Store {
    /// How often each sample was fetched.
    fetched: Mutex<HashMap<u64, u64>>,
    /// Requests wait while this is true, but for those of these samples.
    is_shut: Mutex<bool>,
    spared: Mutex<HashSet<u64>>,
    opened: Condvar,
    /// How many requests run, and the most that did.
    running: AtomicUsize,
    most_running: AtomicUsize,
    /// How many values are alive.
    alive: Arc<AtomicUsize>,
    fails: Option<fn(u64, u64) -> Option<BoxError>>,
}

struct Raw {
    index: u64,
    bytes: usize,
    alive: Arc<AtomicUsize>,
}

impl Drop for Raw {
    fn drop(&mut self) {
        self.alive.fetch_sub(1, Ordering::SeqCst);
    }
}

impl Store {
    fn shut(&self, is_shut: bool) {
        *self.is_shut.lock().unwrap() = is_shut;
        self.opened.notify_all();
    }

    fn counts(&self) -> HashMap<u64, u64> {
        self.fetched.lock().unwrap().clone()
    }

    fn total(&self) -> u64 {
        self.counts().values().sum()
    }

    fn alive(&self) -> usize {
        self.alive.load(Ordering::SeqCst)
    }

    fn running(&self) -> usize {
        self.running.load(Ordering::SeqCst)
    }

    /// One more request, which waits while the store is shut.
    fn request(&self, index: u64) -> Result<Raw, BoxError> {
        let before = {
            let mut fetched = self.fetched.lock().unwrap();
            let count = fetched.entry(index).or_default();
            *count += 1;
            *count - 1
        };
        let running = self.running.fetch_add(1, Ordering::SeqCst) + 1;
        self.most_running.fetch_max(running, Ordering::SeqCst);
        let mut is_shut = self.is_shut.lock().unwrap();
        while *is_shut && !self.spared.lock().unwrap().contains(&index) {
            is_shut = self.opened.wait(is_shut).unwrap();
        }
        drop(is_shut);
        self.running.fetch_sub(1, Ordering::SeqCst);
        if let Some(error) = self.fails.and_then(|fails| fails(index, before)) {
            return Err(error);
        }
        self.alive.fetch_add(1, Ordering::SeqCst);
        Ok(Raw {
            index,
            bytes: 100,
            alive: Arc::clone(&self.alive),
        })
    }
}

#[derive(Clone)]
struct Source(Arc<Store>);

impl StagedDataset for Source {
    type Raw = Raw;
    type Sample = (i64, f32);

    fn len(&self) -> u64 {
        LEN
    }

    fn fetch(&self, index: u64) -> Result<Raw, BoxError> {
        self.0.request(index)
    }

    fn decode(&self, index: u64, raw: Raw, rng: &mut SampleRng) -> Result<(i64, f32), BoxError> {
        assert_eq!(raw.index, index);
        Ok((index as i64, rng.f32()))
    }

    fn raw_bytes(&self, raw: &Raw) -> usize {
        raw.bytes
    }

    fn describe(&self, index: u64) -> Option<String> {
        Some(format!("object {index}"))
    }
}

fn store() -> (Arc<Store>, Staged<Source>) {
    store_that(|_, _| None)
}

fn store_that(fails: fn(u64, u64) -> Option<BoxError>) -> (Arc<Store>, Staged<Source>) {
    let store = Arc::new(Store {
        fails: Some(fails),
        ..Store::default()
    });
    let staged = Staged::new(Source(Arc::clone(&store)));
    (store, staged)
}

/// The same samples, fetched and decoded in `get`.
fn plain() -> impl Dataset<Sample = (i64, f32)> {
    from_fn(LEN, |index, rng| Ok((index as i64, rng.f32())))
}

type Rows = Vec<(Vec<i64>, Vec<f32>)>;

fn loader<D: Dataset<Sample = (i64, f32)>>(
    dataset: D,
    workers: usize,
) -> DataLoader<(pinfeed::Tensor<i64>, pinfeed::Tensor<f32>)> {
    DataLoader::builder(dataset)
        .batch_size(7)
        .shuffle(true)
        .seed(5)
        .num_workers(workers)
        .build()
        .unwrap()
}

fn rows<D: Dataset<Sample = (i64, f32)>>(dataset: D, workers: usize) -> Rows {
    let loader = loader(dataset, workers);
    let batches = loader.epochs(0..3).flatten();
    let rows = batches.map(|batch| {
        let (indices, drawn) = batch.unwrap();
        (indices.to_vec(), drawn.to_vec())
    });
    rows.collect()
}

#[test]
fn batches_are_those_of_a_plain_data_set_and_each_sample_is_fetched_once() {
    let expected = rows(plain(), 0);
    for workers in [0, 1, 3] {
        for in_flight in [1, 4, 64] {
            for (ahead, max_bytes) in [(None, 1 << 30), (Some(1), 1 << 30), (None, 250), (None, 1)]
            {
                let what = format!("{workers} {in_flight} {ahead:?} {max_bytes}");
                let (store, staged) = store();
                let staged = staged.with_in_flight(in_flight).with_max_bytes(max_bytes);
                let staged = Arc::new(match ahead {
                    Some(ahead) => staged.with_lookahead(ahead),
                    None => staged,
                });
                assert_eq!(rows(Arc::clone(&staged), workers), expected, "{what}");
                let counts = store.counts();
                let odd: Vec<_> = counts.iter().filter(|(_, count)| **count != 3).collect();
                assert!(odd.is_empty(), "{what}: {odd:?} {:?}", staged.stats());
                let stats = staged.stats();
                assert_eq!(
                    (stats.fetched, stats.cancelled, stats.running),
                    (3 * LEN, 0, 0),
                    "{what}"
                );
                assert_eq!((stats.held_bytes, store.alive()), (0, 0), "{what}");
                assert!(
                    store.most_running.load(Ordering::SeqCst) <= in_flight,
                    "{what}"
                );
                // One more, if somebody waits for it.
                assert!(
                    stats.most_bytes <= max_bytes.max(100) + 100,
                    "{what}: {stats:?}"
                );
            }
        }
    }
}

/// Through whatever wraps it; and where the same sample comes several times.
#[test]
fn wrapped_and_with_replacement() {
    let (store, staged) = store();
    let subset = Subset::new(staged.with_in_flight(8), (0..LEN).rev()).unwrap();
    let mapped = subset.map(|(index, drawn), _| Ok((index + 1, drawn)));
    let sampler = RandomSampler::with_seed(LEN, 3)
        .with_replacement()
        .with_num_samples(500);
    let loader = DataLoader::builder(mapped.zip(vec![0u8; LEN as usize]).unwrap())
        .batch_size(9)
        .sampler(sampler)
        .num_workers(3)
        .build()
        .unwrap();
    let mut seen = HashMap::new();
    for batch in loader.epochs(0..2).flatten() {
        let ((indices, _), _) = batch.unwrap();
        let indices = indices.as_slice().iter();
        indices.for_each(|index| *seen.entry(*index as u64 - 1).or_insert(0) += 1);
    }
    assert_eq!(store.counts(), seen);
    assert_eq!(store.total(), 1000);
}

/// What is queued never starts, what runs is dropped when it comes, and what came is freed.
#[test]
fn an_epoch_that_is_dropped_leaves_nothing_behind() {
    for workers in [1, 3] {
        let (store, staged) = store();
        let staged = Arc::new(staged.with_in_flight(10).with_lookahead(100));
        let loader = loader(Arc::clone(&staged), workers);
        // Requests hang behind the first twenty samples: ten of them, and whatever else is queued.
        let order = RandomSampler::with_seed(LEN, 5);
        let first = (0..20).map(|position| order.index(0, position));
        store.spared.lock().unwrap().extend(first);
        store.shut(true);
        let mut epoch = loader.epoch(0);
        assert!(epoch.next().unwrap().is_ok());
        while store.running() < 10 {
            std::thread::yield_now();
        }
        drop(epoch);
        // A worker that was telling the data set what comes may have to end the pass: nobody waits for it.
        while staged.stats().cancelled == 0 {
            std::thread::yield_now();
        }
        let begun = store.total();
        store.shut(false);
        drop(loader);
        // Each worker loads what it was at to the end: a batch of seven at most. Dozens of others were queued.
        assert!(store.total() <= begun + 7 * workers as u64);
        let stats = wait_for_rest(&staged);
        assert!(stats.cancelled > 0);
        assert_eq!((stats.held_bytes, stats.running), (0, 0));
        drop(staged);
        assert_eq!((store.alive(), Arc::strong_count(&store)), (0, 1));
    }
}

/// Requests that nobody needs run on; they end when the store lets them.
fn wait_for_rest(staged: &Staged<Source>) -> StagedStats {
    loop {
        let stats = staged.stats();
        if stats.running == 0 {
            return stats;
        }
        std::thread::yield_now();
    }
}

#[test]
fn epochs_after_one_that_was_dropped_are_whole() {
    let expected = rows(plain(), 0);
    let (store, staged) = store();
    let staged = Arc::new(staged.with_in_flight(16));
    let loader = loader(Arc::clone(&staged), 2);
    let mut all = Rows::new();
    for mut epoch in loader.epochs(0..3) {
        let take = if epoch.number() == 1 { 4 } else { 100 };
        let batches = epoch.by_ref().take(take).map(|batch| {
            let (indices, drawn) = batch.unwrap();
            (indices.to_vec(), drawn.to_vec())
        });
        all.extend(batches);
    }
    assert_eq!(all[..18], expected[..18]);
    assert_eq!(all[18..22], expected[18..22]);
    assert_eq!(all[22..], expected[36..]);
    // The second resume goes on where the first stood, and fetches what is left.
    let mut epoch = loader.epoch(7);
    epoch
        .by_ref()
        .take(5)
        .for_each(|batch| drop(batch.unwrap()));
    let state = epoch.state();
    drop(epoch);
    drop(loader);
    drop(staged);
    assert_eq!(store.alive(), 0);
    for _ in 0..2 {
        let (store, staged) = super_store();
        let loader = self::loader(staged, 3);
        let left: usize = loader
            .resume(7..8, &state)
            .unwrap()
            .flatten()
            .map(|batch| batch.unwrap().0.len())
            .sum();
        assert_eq!((left as u64, store.total()), (LEN - 35, LEN - 35));
    }
}

fn super_store() -> (Arc<Store>, Staged<Source>) {
    let (store, staged) = store();
    (store, staged.with_in_flight(8))
}

#[test]
fn several_epochs_at_once_share_the_requests() {
    let expected = rows(plain(), 0);
    let (store, staged) = store();
    let loader = loader(staged.with_in_flight(6), 3);
    let (mut a, mut b) = (loader.epoch(0), loader.epoch(0));
    let mut c = loader.epoch(1);
    for at in 0..18 {
        for epoch in [&mut a, &mut b, &mut c] {
            let shift = 18 * epoch.number() as usize;
            let (indices, drawn) = epoch.next().unwrap().unwrap();
            assert_eq!((indices.to_vec(), drawn.to_vec()), expected[at + shift]);
        }
    }
    assert!(store.counts().values().all(|count| *count == 3));
}

#[test]
fn errors_and_panics_keep_their_places() {
    for workers in [0, 3] {
        let (store, staged) = store_that(|index, _| match index {
            11 => Some("404 Not Found".into()),
            50 => panic!("the client has a bug"),
            _ => None,
        });
        let staged = Arc::new(staged.with_in_flight(16));
        let loader = DataLoader::builder(Arc::clone(&staged))
            .batch_size(10)
            .num_workers(workers)
            .build()
            .unwrap();
        for epoch in loader.epochs(0..2) {
            for (number, batch) in epoch.enumerate() {
                let text = batch.map_err(|error| error.to_string());
                match number {
                    1 => {
                        let error = text.unwrap_err();
                        assert!(error.contains("sample 11 (object 11), row 1"), "{error}");
                        assert!(error.contains("404 Not Found"), "{error}");
                    }
                    5 => {
                        let error = text.unwrap_err();
                        assert!(error.contains("sample 50 (object 50)"), "{error}");
                        assert!(error.contains("the client has a bug"), "{error}");
                    }
                    _ => assert!(text.is_ok()),
                }
            }
        }
        // What stood behind them in their batches is freed at the latest with the epoch.
        assert_eq!(wait_for_rest(&staged).held_bytes, 0);
        drop(loader);
        drop(staged);
        assert_eq!(store.alive(), 0);
    }
}

/// A batch that fails leaves samples that were fetched for it and that nobody takes. They are freed while the epoch goes on.
#[test]
fn the_rest_of_a_batch_that_failed_is_freed_within_the_epoch() {
    for workers in [0, 2] {
        let (_, staged) = store_that(|index, _| (index % 10 == 0).then(|| "broken".into()));
        let staged = Arc::new(staged.with_in_flight(10).with_lookahead(20));
        let loader = DataLoader::builder(Arc::clone(&staged))
            .batch_size(10)
            .num_workers(workers)
            .build()
            .unwrap();
        let mut epoch = loader.epoch(0);
        assert!(epoch.by_ref().take(11).all(|batch| batch.is_err()));
        let stats = staged.stats();
        // Of eleven batches with nine others each; those of a few may still be there.
        assert!(stats.held_bytes <= 50 * 100, "{stats:?}");
    }
}

#[test]
fn what_is_temporary_is_fetched_again_and_what_is_bad_is_replaced_or_left_out() {
    for workers in [0, 2] {
        let (store, staged) =
            store_that(|_, before| (before == 0).then(|| Temporary::new("503").into()));
        let loader = DataLoader::builder(staged.with_in_flight(8))
            .batch_size(10)
            .num_workers(workers)
            .retry(2, Duration::from_nanos(1))
            .build()
            .unwrap();
        assert!(loader.epoch(0).all(|batch| batch.is_ok()));
        assert!(store.counts().values().all(|count| *count == 2));
        assert_eq!(loader.stats().bad.retried, LEN);

        for on_error in [
            OnError::Replace { at_most: 99 },
            OnError::Skip { at_most: 99 },
        ] {
            let bad = |index: u64| index % 13 == 5;
            let fails: fn(u64, u64) -> Option<BoxError> =
                |index, _| (index % 13 == 5).then(|| "broken".into());
            let results: Vec<Vec<i64>> = [true, false]
                .into_iter()
                .map(|is_staged| {
                    let (_, staged) = store_that(fails);
                    let builder = |dataset: Box<dyn Dataset<Sample = (i64, f32)>>| {
                        DataLoader::builder(dataset)
                            .batch_size(10)
                            .num_workers(workers)
                            .on_error(on_error)
                            .build()
                            .unwrap()
                    };
                    let loader = match is_staged {
                        true => builder(Box::new(staged.with_in_flight(8))),
                        false => {
                            builder(Box::new(from_fn(LEN, move |index, rng| match bad(index) {
                                true => Err("broken".into()),
                                false => Ok((index as i64, rng.f32())),
                            })))
                        }
                    };
                    let batches = loader.epochs(0..2).flatten();
                    batches
                        .flat_map(|batch| batch.unwrap().0.to_vec())
                        .collect()
                })
                .collect();
            assert_eq!(results[0], results[1], "{on_error:?}, {workers} workers");
        }
    }
}

/// A request that hangs is its sample's error when its time is over; dropping the loader does not wait for it.
#[test]
fn requests_that_hang() {
    let (store, staged) = store();
    store.shut(true);
    let loader = DataLoader::builder(staged.with_in_flight(4))
        .batch_size(60)
        .num_workers(2)
        .timeout(Duration::from_millis(20))
        .build()
        .unwrap();
    let batches: Vec<_> = loader.epoch(0).collect();
    assert_eq!(batches.len(), 2);
    for batch in batches {
        assert!(matches!(batch, Err(Error::TimedOut(_))));
    }
    drop(loader);
    assert!(store.running() > 0);
    store.shut(false);
    // Everything comes back in the end.
    while Arc::strong_count(&store) > 1 {
        std::thread::yield_now();
    }
    assert_eq!(store.alive(), 0);
}

#[test]
fn to_a_device_and_in_batches_that_are_listed() {
    let device = Device::cpu();
    let (store, staged) = store();
    let lists: Vec<Vec<u64>> = (0..30).map(|list| vec![list; 3]).collect();
    let loader = DataLoader::builder(staged.with_in_flight(8))
        .batch_sampler(lists)
        .num_workers(2)
        .pin_memory(&device)
        .build()
        .unwrap();
    for epoch in loader.epochs(0..2).prefetch_to_device(&device, 1) {
        for (number, batch) in epoch.enumerate() {
            let (indices, _) = batch.unwrap();
            let back = indices.to_host(false).unwrap().wait().unwrap();
            assert_eq!(back.as_slice(), [number as i64; 3]);
        }
    }
    assert_eq!(store.total(), 180);
    assert!(store.counts().values().all(|count| *count == 6));
}

/// Without a loader: what was not announced is fetched when it is asked for.
#[test]
fn by_hand() {
    let (store, staged) = store();
    let rng = &mut SampleRng::for_sample(RngKey {
        seed: 0,
        epoch: 0,
        position: 0,
    });
    assert_eq!(staged.get(7, rng).unwrap().0, 7);
    staged.will_need(&[3, 3, 4], Pass::new(1, 0));
    staged.will_need(&[3, 5], Pass::new(2, 0));
    for _ in 0..3 {
        assert_eq!(staged.get(3, rng).unwrap().0, 3);
    }
    staged.pass_ended(Pass::new(1, 0));
    staged.pass_ended(Pass::new(2, 0));
    wait_for_rest(&staged);
    assert_eq!(store.counts()[&3], 3);
    assert_eq!((staged.stats().held_bytes, store.alive()), (0, 0));
    assert_eq!(staged.describe(4).as_deref(), Some("object 4"));
    drop(staged);
    assert_eq!(Arc::strong_count(&store), 1);
}

/// Each device has samples of its own, and asks for them once, across the boundary too.
#[test]
fn devices_fetch_their_own_samples() {
    let (store, staged) = store();
    let devices = [Device::cpu(), Device::cpu()];
    let loader = DataLoader::builder(staged.with_in_flight(8))
        .batch_size(5)
        .shuffle(true)
        .num_workers(2)
        .pin_memory(&devices)
        .build()
        .unwrap();
    let steps: Vec<usize> = std::thread::scope(|scope| {
        let epochs = loader.epochs(0..3).split(&devices, 1).into_iter();
        let threads: Vec<_> = epochs
            .map(|epochs| scope.spawn(|| epochs.flatten().filter(|batch| batch.is_ok()).count()))
            .collect();
        let threads = threads.into_iter();
        threads.map(|thread| thread.join().unwrap()).collect()
    });
    assert_eq!(steps, [36, 36]);
    let counts = store.counts();
    assert_eq!(counts.len() as u64, LEN);
    assert!(counts.values().all(|count| *count == 3), "{counts:?}");
}

/// Batches that come before their turn are not fetched again, nor are those that a run had before it was resumed.
#[test]
fn in_any_order_each_sample_is_fetched_once() {
    let loader = |staged: Staged<Source>| {
        // Under a limit in bytes, the first of all is fetched alone, and here it may be the one that is late.
        DataLoader::builder(staged.with_in_flight(8).with_max_bytes(usize::MAX))
            .batch_size(5)
            .num_workers(3)
            .prefetch(4)
            .in_order(false)
            .build()
            .unwrap()
    };
    let (store, staged) = store();
    // The first sample is late.
    store.shut(true);
    store.spared.lock().unwrap().extend(1..LEN);
    let first = loader(staged);
    let mut seen: Vec<i64> = Vec::new();
    let mut epoch = first.epoch(0);
    for batch in epoch.by_ref().take(6) {
        seen.extend_from_slice(batch.unwrap().0.as_slice());
    }
    assert!(seen.iter().all(|index| *index >= 5));
    let state = first.state();
    store.shut(false);
    for batch in epoch {
        seen.extend_from_slice(batch.unwrap().0.as_slice());
    }
    assert_eq!(seen.iter().collect::<HashSet<_>>().len() as u64, LEN);
    assert!(store.counts().values().all(|count| *count == 1));

    let (store, staged) = self::store();
    let resumed = loader(staged);
    let batches = resumed.resume(0..1, &state).unwrap().flatten();
    let rest: HashSet<i64> = batches
        .flat_map(|batch| batch.unwrap().0.to_vec())
        .collect();
    assert_eq!(rest.len(), LEN as usize - 30);
    assert!(rest.is_disjoint(&seen[..30].iter().copied().collect()));
    let counts = store.counts();
    assert_eq!(counts.len(), rest.len(), "{counts:?}");
    assert!(counts.values().all(|count| *count == 1), "{counts:?}");
}
