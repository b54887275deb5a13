//! What the library says of itself: in the log, in errors, and in the statistics.

use std::cell::RefCell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use pinfeed::device::Hostile;
use pinfeed::error::CollateError;
use pinfeed::loader::{Limit, Sharding, Stats, World};
use pinfeed::sample::{Field, Filled, Layout, Row};
use pinfeed::sampler::{BatchSampler, Batches, BlockSampler, Blocks, SequentialSampler};
use pinfeed::{BoxError, DataLoader, Device, Error, Sample, Tensor, TensorDataset, from_fn};

thread_local! {
    static LOG: RefCell<Vec<String>> = const { RefCell::new(Vec::new()) };
}

/// Keeps what each thread was warned of. But it panics on a pin thread that finds out that memory cannot be page-locked: nothing of the
/// program's is called there.
struct Log;

static HAS_PANICKED: AtomicBool = AtomicBool::new(false);

impl log::Log for Log {
    fn enabled(&self, metadata: &log::Metadata<'_>) -> bool {
        metadata.level() <= log::Level::Warn
    }

    fn log(&self, record: &log::Record<'_>) {
        if self.enabled(record.metadata()) {
            let text = record.args().to_string();
            if text.contains("cannot be page-locked")
                && thread::current().name() == Some("pinfeed-pin")
            {
                HAS_PANICKED.store(true, Ordering::SeqCst);
                panic!("the logger panics");
            }
            LOG.with_borrow_mut(|log| log.push(text));
        }
    }

    fn flush(&self) {}
}

/// What was logged on this thread.
fn logged<R>(what: impl FnOnce() -> R) -> (Vec<String>, R) {
    static LOGGER: Log = Log;
    // Each test sets it, and the first succeeds.
    let _ = log::set_logger(&LOGGER);
    log::set_max_level(log::LevelFilter::Warn);
    LOG.take();
    let result = what();
    (LOG.take(), result)
}

/// What nobody reckons with ends a thread of the library: whoever waits for its work is told, and does not wait for ever.
#[test]
fn a_thread_that_is_lost_is_not_waited_for() {
    let mut options = Hostile::default();
    options.pinned_capacity_bytes = Some(0);
    let device = Device::hostile(options).unwrap();
    let rows = Tensor::from_vec(vec![1u8; 4 << 20], &[4, 1 << 20]).unwrap();
    let table = TensorDataset::new(rows).unwrap();
    let (_, panicked) = logged(|| {
        let builder = DataLoader::builder(table)
            .num_workers(1)
            .pin_memory(&device);
        let loader = builder.build::<Tensor<u8>>().unwrap();
        while !HAS_PANICKED.load(Ordering::SeqCst) {
            thread::sleep(Duration::from_millis(1));
        }
        let epochs = loader.epochs(0..1_000_000);
        let run = || epochs.flatten().for_each(drop);
        catch_unwind(AssertUnwindSafe(run)).unwrap_err()
    });
    let message = panicked.downcast::<String>().unwrap();
    assert!(message.contains("the logger panics"), "{message}");
}

/// What is logged within a batch sampler is said at once: it may take long.
#[test]
fn a_batch_sampler_logs_at_once() {
    struct Nested;
    impl BatchSampler for Nested {
        fn batches(&self, _: u64) -> Batches {
            let before = LOG.with_borrow(Vec::len);
            let empty = DataLoader::builder(from_fn(0, |index, _| Ok(index as i64)));
            drop(empty.build::<Tensor<i64>>().unwrap());
            assert_eq!(LOG.with_borrow(Vec::len), before + 1);
            vec![vec![0]].into()
        }
    }
    let samples = from_fn(8, |index, _| Ok(index as i64));
    let loader = DataLoader::builder(samples).batch_sampler(Nested);
    let loader = loader.build::<Tensor<i64>>().unwrap();
    let (log, first) = logged(|| loader.epoch(0).next().unwrap().map(drop));
    first.unwrap();
    assert_eq!(log.len(), 1, "{log:?}");
    let (log, state) = logged(|| loader.state());
    assert_eq!((log.len(), state.epoch()), (2, 1));
}

/// Ranks that read the same blocks, or that have few of their own, are told of a better number of tracks.
#[test]
fn ranks_without_tracks_of_their_own_are_warned_of() {
    let said = |tracks: Option<u64>, ranks, sharding| {
        let (log, _) = logged(|| {
            let blocks = Arc::new(Blocks::even(10_000, 2).unwrap());
            let sampler = match tracks {
                Some(tracks) => BlockSampler::new(blocks).with_tracks(tracks).unwrap(),
                None => BlockSampler::in_order(blocks),
            };
            let builder = DataLoader::builder(from_fn(10_000, |index, _| Ok(index as i64)))
                .sampler(sampler)
                .sharding(sharding)
                .world(World::new(0, ranks).unwrap());
            builder.build::<Tensor<i64>>().unwrap()
        });
        assert!(log.len() <= 1, "{log:?}");
        log.into_iter().next().unwrap_or_default()
    };
    let interleaved = Sharding::Interleaved;
    assert_eq!(said(Some(384), 8, interleaved), "");
    assert_eq!(said(None, 1, Sharding::Slices), "");
    let uneven = said(Some(384), 7, interleaved);
    assert!(
        uneven.contains("384 tracks")
            && uneven.contains("with_tracks a multiple of 7, such as 385"),
        "{uneven}"
    );
    assert!(said(Some(16), 8, interleaved).contains("with_tracks 32"));
    assert!(said(None, 8, interleaved).contains("reads all blocks"));
    assert!(said(Some(384), 8, Sharding::Slices).contains("Interleaved"));
}

/// An epoch without batches trains nothing: whoever builds a loader of such is told so, once.
#[test]
fn empty_epochs_are_warned_of_once() {
    let run = |samples: u64, sampled: Option<u64>, batch_size, drop_last| {
        let (log, batches) = logged(|| {
            let mut builder = DataLoader::builder(from_fn(samples, |index, _| Ok(index as i64)))
                .batch_size(batch_size)
                .drop_last(drop_last);
            if let Some(sampled) = sampled {
                builder = builder.sampler(SequentialSampler::new(sampled));
            }
            let loader = builder.build().unwrap();
            (0..3)
                .map(|epoch| loader.epoch(epoch).count())
                .sum::<usize>()
        });
        assert_eq!(log.is_empty(), batches > 0, "{log:?}");
        assert!(log.len() <= 1, "{log:?}");
        log.into_iter().next().unwrap_or_default()
    };
    let short = run(7, None, 8, true);
    assert!(
        short.contains("7 of 8 samples") && short.contains("drop_last"),
        "{short}"
    );
    assert!(run(100, Some(7), 8, true).contains("7 of 8 samples"));
    for drop_last in [false, true] {
        assert!(run(0, None, 8, drop_last).contains("no samples"));
        assert!(run(100, Some(0), 8, drop_last).contains("no samples"));
        assert_eq!(run(8, None, 8, drop_last), "");
    }
    assert_eq!(run(7, None, 8, false), "");
}

const BATCH_BYTES: usize = 10_000;
/// Whole pages.
const SLAB_BYTES: usize = 12_288;

fn pinned(budget: usize, workers: usize, by_copy: bool, strict: bool) -> DataLoader<Tensor<u8>> {
    let device = Device::cpu();
    device.set_pinned_budget_bytes(budget);
    DataLoader::builder(from_fn(100, |index, _| Ok([index as u8; BATCH_BYTES / 10])))
        .batch_size(10)
        .num_workers(workers)
        .pin_memory(&device)
        .pin_by_copy(by_copy)
        .strict_pinning(strict)
        .build()
        .unwrap()
}

/// Holds all batches of an epoch. Gives what was logged, how many are page-locked, and the errors.
fn hold_all(loader: &DataLoader<Tensor<u8>>) -> (Vec<String>, usize, Vec<Error>) {
    let (log, (batches, errors)) = logged(|| {
        let (batches, errors): (Vec<_>, Vec<_>) = loader.epoch(0).partition(Result::is_ok);
        (batches, errors)
    });
    let pinned = batches.iter().flatten().filter(|batch| batch.is_pinned());
    (
        log,
        pinned.count(),
        errors.into_iter().filter_map(Result::err).collect(),
    )
}

fn pinned_reason(error: &Error) -> &str {
    match error {
        Error::Pinned { reason, .. } => reason,
        error => panic!("{error}"),
    }
}

/// It is not the program that holds anything.
#[test]
fn a_budget_below_one_batch_is_named_with_both_numbers() {
    for (workers, by_copy) in [(0, false), (0, true), (2, false), (2, true)] {
        let loader = pinned(4096, workers, by_copy, false);
        let (log, pinned_batches, errors) = hold_all(&loader);
        assert_eq!((pinned_batches, errors.len()), (0, 0));
        let expected = "needs 12288 bytes, and the budget is 4096. Raise the budget (Device::set_pinned_budget_bytes), or lower batch_size";
        if workers == 0 {
            assert_eq!(log.len(), 1, "{log:?}");
            assert!(log[0].contains(expected), "{log:?}");
        }
        let stats = loader.stats();
        assert_eq!(
            (
                stats.unpinned.count,
                stats.unpinned.over_budget,
                stats.unpinned.unlockable
            ),
            (10, 10, 0)
        );
        assert_eq!(
            (stats.unpinned.over_budget_bytes, stats.pinned_budget_bytes),
            (10_000, 4096)
        );
        let table = stats.to_string();
        assert!(
            table.contains("10 batches went unpinned: a batch is 10000 bytes, and the budget of 4096 had no room (Device::set_pinned_budget_bytes"),
            "{table}"
        );
        assert!(!table.contains("the program held"), "{table}");

        let loader = pinned(4096, workers, by_copy, true);
        let (_, _, errors) = hold_all(&loader);
        assert_eq!(errors.len(), 10);
        let reasons = errors.iter().map(pinned_reason);
        reasons.for_each(|reason| assert!(reason.contains(expected), "{reason}"));
        assert_eq!(loader.stats().unpinned.over_budget, 10);
    }
}

/// One batch has its slab, and the budget has none for the next.
#[test]
fn a_budget_of_one_batch_is_named_too() {
    for workers in [0, 2] {
        let loader = pinned(SLAB_BYTES, workers, false, false);
        let (log, pinned_batches, _) = hold_all(&loader);
        assert_eq!(pinned_batches, 1);
        if workers == 0 {
            assert!(
                log[0].contains("a budget of 12288, which holds 1 of 12288 bytes"),
                "{log:?}"
            );
        }
        let stats = loader.stats();
        assert_eq!((stats.unpinned.count, stats.unpinned.over_budget), (9, 9));

        let loader = pinned(SLAB_BYTES, workers, false, true);
        let (_, pinned_batches, errors) = hold_all(&loader);
        assert_eq!((pinned_batches, errors.len()), (1, 9));
        assert!(pinned_reason(&errors[0]).contains("set_pinned_budget_bytes"));
    }
}

/// Here it is the program.
#[test]
fn a_program_that_holds_all_slabs_is_told_so() {
    let loader = pinned(1 << 20, 0, false, false);
    let (log, pinned_batches, _) = hold_all(&loader);
    assert_eq!(pinned_batches, 4);
    assert!(
        log[0].contains("the program holds all page-locked slabs of its epoch (4)"),
        "{log:?}"
    );
    assert!(
        log[0].contains("(with workers) raise prefetch") && !log[0].contains("budget"),
        "{log:?}"
    );
    let stats = loader.stats();
    assert_eq!(
        (
            stats.unpinned.count,
            stats.unpinned.over_budget,
            stats.unpinned.unlockable
        ),
        (6, 0, 0)
    );
    let table = stats.to_string();
    assert!(
        table.contains("6 batches went unpinned: the program held all slabs"),
        "{table}"
    );
    assert!(!table.contains("budget of"), "{table}");

    let (_, pinned_batches, errors) = hold_all(&pinned(1 << 20, 0, false, true));
    assert_eq!((pinned_batches, errors.len()), (4, 6));
    assert!(pinned_reason(&errors[5]).contains("holds all page-locked slabs of its epoch (4)"));
}

/// How long a lazy sample computes, at least.
const DECODING: Duration = Duration::from_micros(300);

/// A sample that computes its row while it is filled.
struct Lazy(u8);

impl Sample for Lazy {
    type Batch = Tensor<u8>;
    type Plan = Field<u8>;
    type Rest = ();

    fn plan<'a>(
        _: impl Iterator<Item = &'a Self> + Clone,
        layout: &mut Layout,
    ) -> Result<Field<u8>, CollateError> {
        layout.field(&[16])
    }

    fn fill(self, plan: &Field<u8>, row: &mut Row<'_>) -> Result<(), CollateError> {
        row.decoding(|row| {
            let start = Instant::now();
            while start.elapsed() < DECODING {}
            row.slice_mut(plan)?.fill(self.0);
            Ok(())
        })
    }

    fn finish(plan: Field<u8>, _: Vec<()>, filled: &mut Filled) -> Tensor<u8> {
        filled.take(plan)
    }
}

fn check_sums(stats: &Stats, start: Instant) {
    let elapsed = start.elapsed() * stats.workers.max(1) as u32;
    let sum = stats.loading.total + stats.decoding.total + stats.collating.total;
    assert!(sum <= elapsed, "{stats:?}");
}

/// What lazy samples compute is no collating, whatever they are beside, and whoever fills their rows when.
#[test]
fn decoding_is_a_stage_of_its_own() {
    let device = Device::cpu();
    for (workers, pin) in [(0, false), (2, false), (0, true), (2, true)] {
        let samples = from_fn(100, |index, _| {
            Ok((Lazy(index as u8), index as i64, [0f32; 8]))
        });
        let mut builder = DataLoader::builder(samples)
            .batch_size(10)
            .num_workers(workers);
        if pin {
            builder = builder.pin_memory(&device);
        }
        let loader = builder.build().unwrap();
        for epoch in 0..2 {
            let start = Instant::now();
            for (number, batch) in loader.epoch(epoch).enumerate() {
                let (lazy, ..) = batch.unwrap();
                assert_eq!(lazy.as_slice()[16], 10 * number as u8 + 1);
            }
            let stats = loader.stats();
            check_sums(&stats, start);
            assert!(stats.decoding.total >= 100 * DECODING, "{stats:?}");
            assert!(stats.to_string().contains("\ndecoding (all workers) "));
        }
        if workers == 0 {
            assert_eq!(
                loader.stats().limit(),
                Limit::Decoding,
                "{}",
                loader.stats()
            );
        }
    }
    // Nothing is lazy: no such stage.
    let loader = DataLoader::builder(from_fn(100, |index, _| Ok([index as f32; 8])));
    let loader = loader.batch_size(10).build().unwrap();
    loader.epoch(0).for_each(|batch| drop(batch.unwrap()));
    assert_eq!(loader.stats().decoding.total, Duration::ZERO);
    assert!(!loader.stats().to_string().contains("decoding"));
}

/// Lazy samples that fail or panic end their decoding, and a data set may have a loader of its own.
#[test]
fn decoding_ends_with_the_sample() {
    let inner = || -> Result<Stats, BoxError> {
        let loader = DataLoader::builder(from_fn(4, |index, _| Ok(Lazy(index as u8))));
        let loader = loader.batch_size(4).build()?;
        loader.epoch(0).for_each(drop);
        Ok(loader.stats())
    };
    let samples = from_fn(10, move |index, _| {
        let inside = inner()?;
        assert!(inside.decoding.total >= 4 * DECODING);
        Ok(index as i64)
    });
    let loader = DataLoader::builder(samples).batch_size(5).build().unwrap();
    loader.epoch(0).for_each(|batch| drop(batch.unwrap()));
    let stats = loader.stats();
    assert_eq!(
        stats.decoding.total,
        Duration::ZERO,
        "it is the inner loader's"
    );
    assert!(stats.loading.total >= 40 * DECODING, "{stats:?}");
}

/// Pictures and masks are decoded while their rows are filled, in structs with other things too.
#[test]
#[cfg(all(feature = "image", feature = "derive"))]
fn pictures_are_decoded_not_collated() {
    use pinfeed::image::{ImageTransform, LazyImage, LazyMask};

    #[derive(pinfeed::Sample)]
    struct Example {
        image: LazyImage,
        label: i64,
    }
    fn decoded<S: Sample<Batch: pinfeed::Batch>>(
        sample: impl Fn(u64, &mut pinfeed::SampleRng) -> Result<S, BoxError> + Send + Sync + 'static,
    ) -> Duration {
        let loader = DataLoader::builder(from_fn(8, sample))
            .batch_size(4)
            .build()
            .unwrap();
        let start = Instant::now();
        loader.epoch(0).for_each(|batch| drop(batch.unwrap()));
        check_sums(&loader.stats(), start);
        loader.stats().decoding.total
    }
    let transform = ImageTransform::train(32);
    let pixels = || Tensor::from_vec(vec![9u8; 60 * 80 * 3], &[60, 80, 3]);
    let image = decoded(move |index, rng| {
        let image = LazyImage::rgb(pixels()?)?.transform(&transform, rng);
        Ok(Example {
            image,
            label: index as i64,
        })
    });
    let mask = decoded(|_, _| {
        Ok((
            LazyMask::labels(Tensor::from_vec(vec![1u8; 100], &[10, 10])?)?,
            1i64,
        ))
    });
    assert!(!image.is_zero() && !mask.is_zero());
    // Pixels that are there are only copied.
    let copied = decoded(move |_, _| Ok(LazyImage::rgb(pixels()?)?));
    assert_eq!(copied, Duration::ZERO);
}

/// A cache whose folder fails says so once, with what to expect; and so does one of objects that have no version.
#[test]
#[cfg(all(unix, not(miri)))] // it locks files
fn a_cache_that_cannot_keep_says_so_once() {
    use pinfeed::store::{DiskCache, LocalFiles, Object, Store};
    let home = tempfile::tempdir().unwrap();
    let (files, folder) = (home.path().join("files"), home.path().join("cache"));
    std::fs::create_dir(&files).unwrap();
    std::fs::write(files.join("a.bin"), [7; 100]).unwrap();
    let cache = DiskCache::open(LocalFiles::open(&files).unwrap(), &folder, 1 << 30).unwrap();
    let object = cache.object("a.bin").unwrap();
    let read = |object: &Object| assert_eq!(cache.read(object, 1..3).unwrap(), [7, 7]);
    std::fs::remove_dir_all(&folder).unwrap();
    let (said, ()) = logged(|| (0..5).for_each(|_| read(&object)));
    assert_eq!(said.len(), 1, "{said:?}");
    for words in [
        &*folder.to_string_lossy(),
        "No such file",
        "DiskCache::stats",
    ] {
        assert!(said[0].contains(words), "{said:?}");
    }
    let object = Object {
        version: None,
        ..object
    };
    let (said, ()) = logged(|| (0..5).for_each(|_| read(&object)));
    assert_eq!(said.len(), 1, "{said:?}");
    assert!(said[0].contains("a.bin has no version (ETag)"), "{said:?}");
}
