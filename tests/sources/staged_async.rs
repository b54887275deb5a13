//! Requests as tasks of the program's own runtime.

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use pinfeed::dataset::{AsyncStagedDataset, Staged};
use pinfeed::loader::{Epoch, TryNext};
use pinfeed::{BoxError, DataLoader, Dataset, SampleRng, Tensor, from_fn};
use tokio::runtime::{Builder, Handle, Runtime};
use tokio::sync::Semaphore;

const LEN: u64 = 100;

/// A store that answers as many requests as there are permits.
struct Store {
    permits: Semaphore,
    begun: Mutex<HashMap<u64, u64>>,
    running: AtomicUsize,
    most_running: AtomicUsize,
    broken: fn(u64) -> bool,
}

impl Store {
    fn new(permits: usize, broken: fn(u64) -> bool) -> Arc<Store> {
        Arc::new(Store {
            permits: Semaphore::new(permits),
            begun: Mutex::default(),
            running: AtomicUsize::new(0),
            most_running: AtomicUsize::new(0),
            broken,
        })
    }

    fn running(&self) -> usize {
        self.running.load(Ordering::SeqCst)
    }

    fn counts(&self) -> HashMap<u64, u64> {
        self.begun.lock().unwrap().clone()
    }
}

/// Counts a request, even if its task is aborted.
struct Running<'a>(&'a Store);

impl Drop for Running<'_> {
    fn drop(&mut self) {
        self.0.running.fetch_sub(1, Ordering::SeqCst);
    }
}

struct Source(Arc<Store>);

impl AsyncStagedDataset for Source {
    type Raw = Vec<u8>;
    type Sample = (i64, f32);

    fn len(&self) -> u64 {
        LEN
    }

    async fn fetch(&self, index: u64) -> Result<Vec<u8>, BoxError> {
        let store = &*self.0;
        *store.begun.lock().unwrap().entry(index).or_default() += 1;
        let running = store.running.fetch_add(1, Ordering::SeqCst) + 1;
        let _running = Running(store);
        store.most_running.fetch_max(running, Ordering::SeqCst);
        tokio::task::yield_now().await;
        store.permits.acquire().await?.forget();
        assert!(index != 31 || !(store.broken)(31), "the client has a bug");
        match (store.broken)(index) {
            true => Err("503".into()),
            false => Ok(index.to_le_bytes().to_vec()),
        }
    }

    fn decode(
        &self,
        index: u64,
        raw: Vec<u8>,
        rng: &mut SampleRng,
    ) -> Result<(i64, f32), BoxError> {
        assert_eq!(raw, index.to_le_bytes());
        Ok((index as i64, rng.f32()))
    }

    fn raw_bytes(&self, raw: &Vec<u8>) -> usize {
        raw.len()
    }
}

fn runtime(threads: usize) -> Runtime {
    let mut builder = Builder::new_multi_thread();
    builder.worker_threads(threads).build().unwrap()
}

fn loader<D: Dataset<Sample = (i64, f32)>>(
    dataset: D,
    workers: usize,
) -> DataLoader<(Tensor<i64>, Tensor<f32>)> {
    let builder = DataLoader::builder(dataset).batch_size(7);
    let builder = builder.shuffle(true).seed(5).num_workers(workers);
    builder.build().unwrap()
}

fn rows<D: Dataset<Sample = (i64, f32)>>(dataset: D, workers: usize) -> Vec<(Vec<i64>, Vec<f32>)> {
    let loader = loader(dataset, workers);
    let batches = loader.epochs(0..2).flatten();
    let rows = batches.map(|batch| {
        let (indices, drawn) = batch.unwrap();
        (indices.to_vec(), drawn.to_vec())
    });
    rows.collect()
}

#[test]
fn batches_are_those_of_a_plain_data_set_and_each_sample_is_fetched_once() {
    let expected = rows(from_fn(LEN, |index, rng| Ok((index as i64, rng.f32()))), 0);
    for threads in [1, 2] {
        let runtime = runtime(threads);
        for workers in [0, 3] {
            for (in_flight, max_bytes) in [(1, 1 << 20), (40, 1 << 20), (40, 20)] {
                let store = Store::new(10_000, |_| false);
                let staged = Staged::on_runtime(Source(store.clone()), runtime.handle().clone());
                let staged = Arc::new(staged.with_in_flight(in_flight).with_max_bytes(max_bytes));
                assert_eq!(rows(Arc::clone(&staged), workers), expected);
                let counts = store.counts();
                assert!(counts.len() as u64 == LEN && counts.values().all(|count| *count == 2));
                let most_running = store.most_running.load(Ordering::SeqCst);
                assert!(most_running <= in_flight, "{most_running}");
                assert!(staged.stats().most_bytes <= max_bytes + 8);
            }
        }
    }
}

/// Takes the first batch. The runtime runs tasks in whatever order, so later samples may have taken its permits.
fn first_batch(epoch: &mut Epoch<(Tensor<i64>, Tensor<f32>)>, store: &Store) {
    loop {
        match epoch.next_timeout(std::time::Duration::from_millis(100)) {
            TryNext::NotYet => store.permits.add_permits(1),
            next => return drop(next.batch().unwrap().unwrap()),
        }
    }
}

/// Tasks end at their next `await`, though nothing would ever answer them.
#[test]
fn tasks_are_aborted_when_the_epoch_goes() {
    let runtime = runtime(2);
    let store = Store::new(20, |_| false);
    let staged = Staged::on_runtime(Source(store.clone()), runtime.handle().clone());
    let loader = loader(staged.with_in_flight(10).with_lookahead(60), 1);
    let mut epoch = loader.epoch(0);
    first_batch(&mut epoch, &store);
    while store.running() < 10 {
        std::thread::yield_now();
    }
    let begun: u64 = store.counts().values().sum();
    drop(epoch);
    // All but the one that the worker waits for.
    while store.running() > 1 {
        std::thread::yield_now();
    }
    store.permits.add_permits(1_000);
    drop(loader);
    let more = store.counts().values().sum::<u64>() - begun;
    assert!(more <= 7, "{more}: the worker loads its run to the end");
    // The source is free, although the runtime lives.
    while Arc::strong_count(&store) > 1 {
        std::thread::yield_now();
    }
}

#[test]
fn errors_and_panics_keep_their_places() {
    let runtime = runtime(1);
    let store = Store::new(10_000, |index| index == 12 || index == 31);
    let staged = Staged::on_runtime(Source(store), runtime.handle().clone());
    let loader = DataLoader::builder(staged)
        .batch_size(10)
        .num_workers(2)
        .build()
        .unwrap();
    for (number, batch) in loader.epoch(0).enumerate() {
        let error = batch.err().map(|error| error.to_string());
        match number {
            1 => assert!(error.unwrap().contains("503")),
            3 => assert!(error.unwrap().contains("the client has a bug")),
            _ => assert_eq!(error, None),
        }
    }
}

#[test]
fn a_runtime_that_is_shut_down_makes_samples_errors() {
    let runtime = runtime(1);
    let handle = runtime.handle().clone();
    let store = Store::new(30, |_| false);
    let staged = Staged::on_runtime(Source(store.clone()), handle);
    let loader = loader(staged.with_in_flight(20), 2);
    let mut epoch = loader.epoch(0);
    first_batch(&mut epoch, &store);
    while store.running() < 20 {
        std::thread::yield_now();
    }
    runtime.shutdown_background();
    let failed = epoch.filter_map(Result::err);
    let failed: Vec<String> = failed.map(|error| error.to_string()).collect();
    assert!(failed.len() >= 10, "{failed:?}");
    assert!(failed.iter().all(|error| error.contains("was shut down")));
    // The next epoch, too.
    assert!(loader.epoch(1).all(|batch| batch.is_err()));
}

/// A task that hangs is aborted when its sample has become an error; and while it hangs, others run in its place.
#[test]
fn tasks_that_hang() {
    struct Hanging(Arc<AtomicUsize>);

    struct Counted<'a>(&'a AtomicUsize);

    impl Drop for Counted<'_> {
        fn drop(&mut self) {
            self.0.fetch_sub(1, Ordering::SeqCst);
        }
    }

    impl AsyncStagedDataset for Hanging {
        type Raw = u64;
        type Sample = i64;

        fn len(&self) -> u64 {
            20
        }

        async fn fetch(&self, index: u64) -> Result<u64, BoxError> {
            if [3, 4, 5, 12].contains(&index) {
                self.0.fetch_add(1, Ordering::SeqCst);
                let _counted = Counted(&self.0);
                std::future::pending::<()>().await;
            }
            Ok(index)
        }

        fn decode(&self, index: u64, _: u64, _: &mut SampleRng) -> Result<i64, BoxError> {
            Ok(index as i64)
        }

        fn raw_bytes(&self, _: &u64) -> usize {
            8
        }
    }

    let runtime = runtime(1);
    let hanging = Arc::new(AtomicUsize::new(0));
    let staged = Staged::on_runtime(Hanging(hanging.clone()), runtime.handle().clone());
    let staged = Arc::new(staged.with_in_flight(2));
    let loader = DataLoader::builder(Arc::clone(&staged))
        .batch_size(1)
        .num_workers(2)
        .timeout(std::time::Duration::from_millis(400))
        .build()
        .unwrap();
    for epoch in loader.epochs(0..2) {
        let failed = epoch.enumerate().filter_map(|(number, batch)| {
            let error = batch.err()?;
            assert!(matches!(error, pinfeed::Error::TimedOut(_)), "{error}");
            Some(number)
        });
        assert_eq!(failed.collect::<Vec<_>>(), [3, 4, 5, 12]);
    }
    while hanging.load(Ordering::SeqCst) > 0 || staged.stats().running > 0 {
        std::thread::yield_now();
    }
    assert_eq!((staged.stats().given_up, staged.stats().overdue), (8, 0));
}

/// A store that takes its time, by the runtime's clock.
struct Slow(Duration);

impl AsyncStagedDataset for Slow {
    type Raw = i64;
    type Sample = i64;

    fn len(&self) -> u64 {
        8
    }

    async fn fetch(&self, index: u64) -> Result<i64, BoxError> {
        tokio::time::sleep(self.0).await;
        Ok(index as i64)
    }

    fn decode(&self, _: u64, raw: i64, _: &mut SampleRng) -> Result<i64, BoxError> {
        Ok(raw)
    }

    fn raw_bytes(&self, _: &i64) -> usize {
        8
    }
}

/// Takes an epoch on the calling thread. Returns the first error, if there is one.
fn epoch_on(runtime: Handle, workers: usize, delay: Duration) -> Option<String> {
    let data = Staged::on_runtime(Slow(delay), runtime);
    let loader = DataLoader::builder(data).batch_size(4).num_workers(workers);
    let loader = loader.build().unwrap();
    let batches: Vec<_> = loader.epoch(0).collect();
    assert_eq!(batches.len(), 2);
    let mut errors = batches.into_iter().filter_map(Result::err);
    errors.next().map(|error| error.to_string())
}

/// A loop that blocks the only thread of its runtime is told what to do, and what it is told helps. A runtime that is slow is alive.
#[test]
fn a_loop_that_blocks_its_runtime_is_told_so() {
    let short = Duration::from_millis(5);
    std::thread::scope(|scope| {
        for workers in [0, 2] {
            scope.spawn(move || {
                let runtime = Builder::new_current_thread().enable_time().build().unwrap();
                let blocks = async { epoch_on(Handle::current(), workers, short) };
                let error = runtime.block_on(blocks).unwrap();
                assert!(
                    error.contains("multi_thread") && error.contains("spawn_blocking"),
                    "{error}"
                );
                // When the loop lets it run again, it does.
                let helps = async {
                    let own = Handle::current();
                    let on_its_own =
                        tokio::task::spawn_blocking(move || epoch_on(own, workers, short));
                    on_its_own.await.unwrap()
                };
                assert_eq!(runtime.block_on(helps), None);
            });
            scope.spawn(move || {
                let threads = Builder::new_multi_thread()
                    .worker_threads(1)
                    .enable_time()
                    .build();
                let runtime = threads.unwrap();
                let blocks = async move { epoch_on(Handle::current(), workers, short) };
                let error = runtime.block_on(runtime.spawn(blocks)).unwrap().unwrap();
                assert!(error.contains("spawn_blocking"), "{error}");
                // From elsewhere, it is there for the requests.
                assert_eq!(epoch_on(runtime.handle().clone(), workers, short), None);
            });
        }
        scope.spawn(|| {
            let runtime = Builder::new_multi_thread()
                .worker_threads(1)
                .enable_time()
                .build();
            let (runtime, long) = (runtime.unwrap(), Duration::from_millis(17_000));
            assert_eq!(epoch_on(runtime.handle().clone(), 2, long), None);
        });
    });
}
