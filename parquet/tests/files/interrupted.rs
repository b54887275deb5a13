//! Epochs that are left, or whose loop, store or disk fails in the middle, and what comes behind.

use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};

use pinfeed::loader::{LoaderState, OnError};
use pinfeed::store::{Object, Store};
use pinfeed::{BoxError, DataLoader, Tensor};
use pinfeed_parquet::{Numbers, Parquet};

use crate::common::{Memory, fixture};

/// A store whose client panics at one read.
struct Panics {
    inner: Memory,
    /// How many reads come before it: none, if there is none.
    before: AtomicI64,
}

impl Store for Panics {
    fn list(&self, prefix: &str) -> Result<Vec<Object>, BoxError> {
        self.inner.list(prefix)
    }

    fn object(&self, key: &str) -> Result<Object, BoxError> {
        self.inner.object(key)
    }

    fn read(&self, object: &Object, range: Range<u64>) -> Result<Vec<u8>, BoxError> {
        if self.before.fetch_sub(1, Ordering::SeqCst) == 1 {
            watch::provoked("the client panics");
        }
        self.inner.read(object, range)
    }
}

fn store() -> Arc<Panics> {
    let file = || fixture("paged.parquet");
    Arc::new(Panics {
        inner: Memory::of([("a.parquet", file()), ("b.parquet", file())]),
        before: AtomicI64::new(0),
    })
}

/// Of both ways to have numbers: rows of tensors, or what a function makes of a row.
fn loader(
    store: &Arc<Panics>,
    by_function: bool,
    workers: usize,
    on_error: OnError,
) -> DataLoader<Tensor<i64>> {
    let builder = Parquet::builder(Arc::clone(store), "").block_bytes(3_000);
    if by_function {
        let rows = builder
            .columns(["x"])
            .build(|row, _| row.get::<i64>("x").map_err(Into::into));
        let builder = DataLoader::builder(rows.unwrap());
        let builder = builder.batch_size(400).shuffle(true).seed(9);
        return builder
            .num_workers(workers)
            .on_error(on_error)
            .build()
            .unwrap();
    }
    let numbers = builder.build_numbers(Numbers::<i64>::of(["x"])).unwrap();
    let builder = DataLoader::builder(numbers);
    let builder = builder.batch_size(400).shuffle(true).seed(9);
    builder
        .num_workers(workers)
        .on_error(on_error)
        .build()
        .unwrap()
}

fn rest(loader: &DataLoader<Tensor<i64>>, state: &LoaderState) -> Vec<Vec<i64>> {
    let mut epochs = loader.resume(0..1, state).unwrap();
    let epoch = epochs.next().unwrap();
    epoch.map(|batch| batch.unwrap().to_vec()).collect()
}

/// The loop ends, or panics, behind some batch: the state is that of the batch, and the next epoch has all of its rows.
#[test]
fn an_epoch_may_be_left_behind_a_batch() {
    for (by_function, workers) in [(false, 0), (false, 2), (true, 0), (true, 2)] {
        let store = store();
        let loader = loader(&store, by_function, workers, OnError::Fail);
        let start = loader.state();
        let whole = rest(&loader, &start);
        assert!(whole.len() > 8, "{}", whole.len());
        for behind in (0..whole.len()).step_by(whole.len() / 5) {
            for panics in [false, true] {
                let mut seen = Vec::new();
                // Unwind safety: the loader is what is tested, and what was seen is a list.
                let left = catch_unwind(AssertUnwindSafe(|| {
                    let mut epochs = loader.resume(0..1, &start).unwrap();
                    for batch in epochs.next().unwrap().take(behind) {
                        seen.push(batch.unwrap().to_vec());
                    }
                    if panics {
                        watch::provoked("the step panics");
                    }
                    loader.state()
                }));
                assert_eq!(left.is_err(), panics);
                let state = left.unwrap_or_else(|_| loader.state());
                assert_eq!(seen, whole[..behind]);
                assert_eq!(rest(&loader, &state), whole[behind..], "{behind} {panics}");
            }
        }
        assert_eq!(rest(&loader, &start), whole);
    }
}

/// A client that panics at some read: rows of that block are errors or are left out, all others come, and so do all rows of the next epoch.
#[test]
fn a_store_that_panics_takes_the_rows_that_it_read() {
    for (by_function, workers) in [(false, 0), (false, 2), (true, 0), (true, 2)] {
        let store = store();
        let loader = loader(
            &store,
            by_function,
            workers,
            OnError::Skip { at_most: u64::MAX },
        );
        store.inner.restart();
        let start = loader.state();
        let mut all = rest(&loader, &start).concat();
        all.sort_unstable();
        let reads = store.inner.reads.load(Ordering::SeqCst);
        assert!(reads > 4, "{reads}");
        let mut skipped = 0;
        for at in (1..=reads).step_by(reads as usize / 4) {
            store.before.store(at as i64, Ordering::SeqCst);
            let mut left = rest(&loader, &start).concat();
            store.before.store(0, Ordering::SeqCst);
            left.sort_unstable();
            assert!(left.len() < all.len(), "read {at}");
            // Those that came are among all, each as often.
            let mut others = all.iter();
            assert!(left.iter().all(|row| others.any(|other| other == row)));
            let missing = (all.len() - left.len()) as u64;
            assert_eq!(loader.total_stats().bad.skipped - skipped, missing);
            skipped += missing;
        }
        let mut again = rest(&loader, &start).concat();
        again.sort_unstable();
        assert_eq!(again, all);
    }
}

/// The first row's error names what panicked.
#[test]
fn a_panic_is_said_with_the_file_and_the_row() {
    for by_function in [false, true] {
        let store = store();
        let loader = loader(&store, by_function, 2, OnError::Fail);
        store.before.store(1, Ordering::SeqCst);
        let errors = loader.epoch(0).filter_map(Result::err);
        let errors: Vec<String> = errors.map(|error| format!("{error:#} {error:?}")).collect();
        assert!(!errors.is_empty());
        assert!(errors[0].contains("the client panics"), "{}", errors[0]);
        assert!(errors[0].contains(".parquet"), "{}", errors[0]);
    }
}
