//! A process that was forked has what its parent had, apart from the threads: it is told so, and waits for none of them.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use pinfeed::dataset::{Staged, StagedDataset};
use pinfeed::loader::{LoaderState, Stats};
use pinfeed::sampler::{BatchSampler, Batches};
use pinfeed::{BoxError, DataLoader, Device, Error, Result, SampleRng, Tensor, from_fn, iterable};

/// Runs a test of this module in a process that has no other: a child of `fork` finds the locks of the whole process as they were, and another
/// test's thread may hold the allocator's or the standard library's.
fn alone(test: &str, body: impl FnOnce()) {
    const ALONE: &str = "PINFEED_TEST_ALONE";
    if std::env::var_os(ALONE).is_some() {
        return body();
    }
    let mut process = std::process::Command::new(std::env::current_exe().unwrap());
    let process = process
        .args(["--exact", test, "--nocapture"])
        .env(ALONE, "1");
    let ended = process.output().unwrap();
    let printed = [ended.stdout, ended.stderr].concat();
    let printed = String::from_utf8_lossy(&printed);
    assert!(
        ended.status.success() && printed.contains("1 passed"),
        "{printed}"
    );
}

/// Says so when it is dropped, by a panic as well.
struct Over<'a>(&'a AtomicBool);

impl Drop for Over<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Whether a child does that without a panic, and ends within a minute.
fn in_child(what: impl FnOnce()) -> bool {
    // SAFETY: the child runs `what`, which ends by itself, and none of the parent's code after that.
    let child = unsafe { libc::fork() };
    if child == 0 {
        // SAFETY: they take numbers.
        unsafe { libc::alarm(60) };
        let is_ok = catch_unwind(AssertUnwindSafe(what)).is_ok();
        // SAFETY: likewise.
        unsafe { libc::_exit(i32::from(!is_ok)) }
    }
    assert!(child > 0, "{}", std::io::Error::last_os_error());
    let mut status = 0;
    // SAFETY: it writes one number.
    let ended = unsafe { libc::waitpid(child, &mut status, 0) };
    assert_eq!(ended, child);
    status == 0
}

/// It gives the error, once, and is over.
fn is_refused<T>(mut batches: impl Iterator<Item = Result<T>>) {
    match batches.next() {
        Some(Err(error @ Error::CannotWait { .. })) => {
            assert!(error.to_string().contains("forked"), "{error}");
        }
        Some(Err(error)) => panic!("{error}"),
        _ => panic!("a batch, or none"),
    }
    assert!(batches.next().is_none());
}

/// What a loader is asked in a child says little, and waits for nobody.
fn asks(loader: &DataLoader<Tensor<i64>>) {
    assert_eq!(loader.stats(), Stats::default());
    assert_eq!(loader.total_stats(), Stats::default());
    assert!(loader.record().finish().is_empty());
    // (Another thread of the parent may have begun an epoch at that moment.)
    let state = catch_unwind(AssertUnwindSafe(|| loader.state()));
    assert!(state.is_err() || state.unwrap() != LoaderState::default());
    let resumed = loader.resume(0..2, &LoaderState::default());
    assert!(matches!(resumed, Err(Error::CannotWait { .. })));
}

fn numbers(workers: usize, device: &Device) -> DataLoader<Tensor<i64>> {
    let numbers = from_fn(1_000, |index, _| Ok(index as i64));
    let builder = DataLoader::builder(numbers).batch_size(8);
    let builder = builder.num_workers(workers).pin_memory(device);
    builder.build().unwrap()
}

#[test]
fn a_child_is_told_that_it_has_no_workers() {
    alone("forked::a_child_is_told_that_it_has_no_workers", refused);
}

fn refused() {
    let device = Device::cpu();
    let loader = numbers(2, &device);
    let lines = iterable::from_fn(|_, _| Ok((0..1_000i64).map(Ok)));
    let lines = DataLoader::iterable(lines).batch_size(8).num_workers(2);
    let lines = lines.build().unwrap();
    // Others use the loader meanwhile, and hold its locks now and then.
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !is_over.load(Ordering::Relaxed) {
                assert_eq!(loader.epoch(9).count(), 125);
            }
        });
        let _over = Over(&is_over);
        for round in 0..10 {
            let _watch = watch::on(format!("round {round}"));
            let mut epoch = loader.epoch(0);
            epoch.next().unwrap().unwrap();
            let mut sent = loader.epoch(1).prefetch_to_device(&device, 2);
            sent.next().unwrap().unwrap();
            let mut pulled = lines.epoch(0);
            pulled.next().unwrap().unwrap();
            let mut epochs = loader.epochs(2..5);
            let mut first = epochs.next().unwrap();
            first.next().unwrap().unwrap();
            let mut across = loader.epochs(5..7).prefetch_to_device(&device, 2);
            let mut reached = across.next().unwrap();
            reached.next().unwrap().unwrap();
            let recording = loader.record();
            let child = (epoch, sent, pulled, epochs, first, across, reached);
            let child = AssertUnwindSafe((child, recording));
            let has_ended = in_child(|| {
                let AssertUnwindSafe((child, recording)) = { child };
                let (epoch, sent, pulled, epochs, first, across, reached) = child;
                asks(&loader);
                assert!(recording.finish().is_empty());
                assert_eq!(reached.stats(), Stats::default());
                is_refused(reached);
                drop(across);
                is_refused(epoch);
                is_refused(sent);
                is_refused(pulled);
                is_refused(first);
                epochs.for_each(is_refused);
                is_refused(loader.epoch(7));
                is_refused(loader.epoch(8).prefetch_to_device(&device, 1));
                is_refused(lines.epoch(7));
            });
            assert!(has_ended, "round {round}");
        }
    });
}

/// A loader that a child drops has no threads to wait for. One without workers, it may use.
#[test]
fn a_child_drops_the_loader_and_uses_one_without_workers() {
    alone(
        "forked::a_child_drops_the_loader_and_uses_one_without_workers",
        dropped,
    );
}

fn dropped() {
    let device = Device::cpu();
    let (two, none) = (numbers(2, &device), numbers(0, &device));
    let staged = |workers| {
        let builder = DataLoader::builder(Staged::new(Slow).with_in_flight(4));
        let builder = builder.batch_size(8).num_workers(workers);
        builder.build().unwrap()
    };
    let (staged_two, staged_none) = (staged(2), staged(0));
    for loader in [&staged_two, &staged_none] {
        assert_eq!(loader.epoch(0).count(), 5); // its threads are there
    }
    let child = AssertUnwindSafe((two, none, staged_two, staged_none));
    assert!(in_child(|| {
        let AssertUnwindSafe((two, none, staged_two, staged_none)) = { child };
        drop(two);
        drop(staged_two);
        let batches = none.epoch(0).map(|batch| batch.unwrap().len());
        assert_eq!(batches.sum::<usize>(), 1_000);
        let batches = staged_none.epoch(1).map(|batch| batch.unwrap().len());
        assert_eq!(batches.sum::<usize>(), 40);
        drop(none);
        drop(staged_none);
    }));
}

/// A worker is within the batch sampler, and never comes back from there in the child.
#[test]
fn a_child_waits_for_no_batch_sampler() {
    alone("forked::a_child_waits_for_no_batch_sampler", unlisted);
}

fn unlisted() {
    let (is_within, is_over) = (Arc::new(AtomicBool::new(false)), AtomicBool::new(false));
    let lists = Parked {
        is_within: Arc::clone(&is_within),
        is_over: Arc::new(is_over),
    };
    let is_over = Arc::clone(&lists.is_over);
    let samples = from_fn(100, |index, _| Ok(index as i64));
    let builder = DataLoader::builder(samples).batch_sampler(lists);
    let loader = builder.num_workers(2).build().unwrap();
    let device = Device::cpu();
    let _watch = watch::on("a worker comes into the batch sampler");
    let mut epochs = loader.epochs(0..3);
    let mut first = epochs.next().unwrap();
    first.by_ref().take(9).for_each(|batch| _ = batch.unwrap()); // so that the next is planned
    while !is_within.load(Ordering::Relaxed) {
        std::thread::yield_now();
    }
    let has_ended = {
        let _over = Over(&is_over);
        let child = AssertUnwindSafe((epochs, first));
        in_child(|| {
            is_over.store(true, Ordering::Relaxed); // its own sampler gives lists at once
            let AssertUnwindSafe((epochs, first)) = { child };
            is_refused(first);
            epochs.for_each(is_refused);
            let epoch = loader.epoch(1);
            assert_eq!((epoch.len(), epoch.state().epoch()), (1, 0));
            is_refused(epoch);
            is_refused(loader.epoch(1).prefetch_to_device(&device, 1));
            assert_eq!(loader.len(), 10);
            assert_eq!(loader.state_at(1, 20).position(), 20);
            asks(&loader);
        })
    };
    assert!(has_ended);
}

/// Lists of ten samples, which never come for epoch 1.
struct Parked {
    is_within: Arc<AtomicBool>,
    is_over: Arc<AtomicBool>,
}

impl BatchSampler for Parked {
    fn batches(&self, epoch: u64) -> Batches {
        while epoch == 1 && !self.is_over.load(Ordering::Relaxed) {
            self.is_within.store(true, Ordering::Relaxed);
            std::thread::yield_now();
        }
        let lists = (0..10).map(|list| (10 * list..10 * list + 10).collect());
        lists.collect::<Vec<Vec<u64>>>().into()
    }
}

/// A data set that is made before the fork, and used only behind it, has its threads in the child.
#[test]
fn a_child_fetches_ahead_where_its_parent_fetched_nothing() {
    alone(
        "forked::a_child_fetches_ahead_where_its_parent_fetched_nothing",
        fetched,
    );
}

fn fetched() {
    let staged = || Arc::new(Staged::new(Slow).with_in_flight(4));
    let all = |staged: &Arc<Staged<Slow>>, workers| {
        let loader = DataLoader::builder(Arc::clone(staged)).batch_size(8);
        let loader = loader.num_workers(workers).build().unwrap();
        let batches = loader.epoch(0);
        let sizes = batches.map(|batch: Result<Tensor<i64>>| batch.unwrap().len());
        assert_eq!(sizes.sum::<usize>(), 40);
    };
    let unused = AssertUnwindSafe(staged());
    assert!(in_child(|| {
        let AssertUnwindSafe(unused) = { unused };
        assert_eq!(unused.stats().fetched, 0);
        all(&unused, 2);
        assert_eq!(unused.stats().fetched, 40);
    }));
    // Where it has, the threads are the parent's: whoever needs a sample fetches it.
    let used = staged();
    all(&used, 2);
    assert_eq!(used.stats().fetched, 40);
    let used = AssertUnwindSafe(used);
    assert!(in_child(|| {
        let AssertUnwindSafe(used) = { used };
        all(&used, 0);
        assert_eq!(used.stats().fetched, 0);
        drop(used);
    }));
}

/// A source that is far away.
struct Slow;

impl StagedDataset for Slow {
    type Raw = i64;
    type Sample = i64;

    fn len(&self) -> u64 {
        40
    }

    fn fetch(&self, index: u64) -> Result<i64, BoxError> {
        Ok(index as i64)
    }

    fn decode(&self, _: u64, raw: i64, _: &mut SampleRng) -> Result<i64, BoxError> {
        Ok(raw)
    }

    fn raw_bytes(&self, _: &i64) -> usize {
        8
    }
}
