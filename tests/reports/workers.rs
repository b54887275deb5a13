//! `Workers::Auto`: as many workers as the loop needs, and the same batches as with any other number.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::thread;
use std::time::Duration;

use pinfeed::loader::{LoaderState, WorkerSizing, Workers};
use pinfeed::{DataLoader, Device, Error, SampleRng, Tensor, from_fn, iterable};

type Pair = (Tensor<i64>, Tensor<i64>);

/// How many cores there are, as `Auto` is told.
const CORES: [usize; 4] = [1, 2, 5, 16];

/// Each sample is its index, and a number that it draws. Some are bad.
fn builder_of(
    workers: Workers,
    cores: usize,
) -> pinfeed::loader::Builder<impl pinfeed::Dataset<Sample = (i64, i64)>, pinfeed::collate::Stack> {
    let samples = from_fn(203, |index, rng: &mut SampleRng| match index % 67 {
        66 => Err(format!("{index} is bad").into()),
        _ => Ok((index as i64, rng.range(0..1_000_000i64))),
    });
    DataLoader::builder(samples)
        .batch_size(4)
        .shuffle(true)
        .seed(17)
        .num_workers(workers)
        .cores(cores)
}

fn rows(batch: Result<Pair, Error>) -> Result<(Vec<i64>, Vec<i64>), String> {
    match batch {
        Ok((indices, drawn)) => Ok((indices.to_vec(), drawn.to_vec())),
        Err(error) => Err(error.to_string()),
    }
}

#[test]
fn batches_do_not_depend_on_the_choice() {
    let alone = builder_of(Workers::Fixed(0), 1).build().unwrap();
    let expected: Vec<Vec<_>> = (0..3).map(|n| alone.epoch(n).map(rows).collect()).collect();
    assert!(expected[0].iter().any(Result::is_err));
    let device = Device::cpu();
    for cores in CORES {
        for pins in [false, true] {
            let builder = builder_of(Workers::Auto, cores);
            let builder = if pins {
                builder.pin_memory(&device)
            } else {
                builder
            };
            let loader = builder.build().unwrap();
            // A consumer that is slow enough for workers to go off duty, and one that is not; epochs one by one, and in a row.
            for (epoch, expected) in expected.iter().enumerate().take(2) {
                let batches = loader.epoch(epoch as u64).enumerate();
                let batches = batches.map(|(number, batch)| {
                    if epoch == 0 && number < 12 {
                        thread::sleep(Duration::from_millis(1));
                    }
                    rows(batch)
                });
                assert_eq!(&batches.collect::<Vec<_>>(), expected, "{cores} {pins}");
            }
            let epochs = loader.epochs(0..3);
            let seen: Vec<Vec<_>> = epochs.map(|epoch| epoch.map(rows).collect()).collect();
            assert_eq!(seen, expected, "{cores} {pins}");
        }
    }
}

#[test]
fn batches_on_a_device_do_not_depend_on_the_choice() {
    let alone = builder_of(Workers::Fixed(0), 1).build().unwrap();
    let device = Device::cpu();
    for cores in CORES {
        let loader = builder_of(Workers::Auto, cores)
            .pin_memory(&device)
            .build()
            .unwrap();
        for (number, epoch) in loader
            .epochs(0..3)
            .prefetch_to_device(&device, 2)
            .enumerate()
        {
            let expected: Vec<_> = alone.epoch(number as u64).map(rows).collect();
            let seen = epoch.map(|batch| {
                thread::sleep(Duration::from_micros(300));
                let (indices, drawn) = batch?;
                Ok((indices.to_host(true)?.wait()?, drawn.to_host(true)?.wait()?))
            });
            assert_eq!(seen.map(rows).collect::<Vec<_>>(), expected, "{cores}");
        }
    }
}

/// A run that is interrupted twice within an epoch goes on with a number of its own each time.
#[test]
fn a_run_is_resumed_by_another_choice() {
    let alone = builder_of(Workers::Fixed(0), 1).build().unwrap();
    // (A batch is numbered from where its run began, and its error names it.)
    let rows = |batch| rows(batch).map_err(|_| "bad");
    let expected: Vec<_> = (0..2).flat_map(|n| alone.epoch(n)).map(rows).collect();
    let mut state = LoaderState::default();
    let mut seen = Vec::new();
    for (cores, stop) in [(16, 13), (1, 20), (5, usize::MAX)] {
        let loader = builder_of(Workers::Auto, cores).build().unwrap();
        let epochs = loader.resume(0..2, &state).unwrap();
        seen.extend(epochs.flatten().take(stop).map(rows));
        state = loader.state();
    }
    assert_eq!(seen, expected);
}

#[test]
fn a_stream_does_not_depend_on_the_choice() {
    for cores in CORES {
        let numbers = iterable::from_fn(|_, _| Ok((0..101i64).map(Ok)));
        let builder = DataLoader::iterable(numbers)
            .batch_size(4)
            .num_workers(Workers::Auto);
        let loader = builder.cores(cores).build().unwrap();
        for epoch in 0..2 {
            let batches = loader
                .epoch(epoch)
                .inspect(|_| thread::sleep(Duration::from_micros(500)));
            let seen: Vec<i64> = batches.flat_map(|batch| batch.unwrap().to_vec()).collect();
            assert_eq!(seen, (0..101).collect::<Vec<_>>(), "{cores}");
        }
    }
}

/// On a machine that is busy with something else, a slow loop may have to wait now and then: one of so many epochs shows what is asserted.
const TRIES: u64 = 50;

/// Where the loop takes much longer than loading, few workers load, and the statistics say so.
#[test]
fn a_slow_loop_needs_few_workers() {
    let samples = from_fn(400, |index, _| Ok(index as i64));
    let builder = DataLoader::builder(samples).batch_size(10);
    let builder = builder.num_workers(Workers::Auto);
    let loader = builder.cores(16).build().unwrap();
    let enough = (0..TRIES).find(|&epoch| {
        for (number, batch) in loader.epoch(epoch).enumerate() {
            batch.unwrap();
            if number == 0 {
                let first = loader.stats();
                assert_eq!((first.workers, first.sizing), (16, WorkerSizing::Starting));
            }
            thread::sleep(Duration::from_millis(5));
        }
        loader.stats().sizing == WorkerSizing::Enough
    });
    let stats = loader.stats();
    assert!(enough.is_some(), "{stats}");
    assert!((1..16).contains(&stats.workers), "{stats}");
    let words = "workers: as many as keep up with the loop)";
    assert!(stats.to_string().contains(words), "{stats}");
}

/// Where the loop waits for samples, all load.
#[test]
fn a_fast_loop_needs_all_workers() {
    let samples = from_fn(400, |index, _| {
        thread::sleep(Duration::from_millis(2));
        Ok(index as i64)
    });
    let builder = DataLoader::builder(samples)
        .batch_size(10)
        .num_workers(Workers::Auto);
    let loader = builder.cores(4).build().unwrap();
    assert_eq!(loader.epoch(0).filter(Result::is_ok).count(), 40);
    let stats = loader.stats();
    assert_eq!(
        (stats.workers, stats.sizing),
        (4, WorkerSizing::AllCores),
        "{stats}"
    );
}

/// Where batches take microseconds, more than a few workers would only wait for each other. (A build without optimization takes 20 of the 50 us
/// that still count as such, and a worker that loses its core takes more. So it is asked now and then whether few have been chosen.)
#[test]
fn tiny_batches_need_few_workers() {
    let samples = from_fn(10_000, |index, _| Ok(index as i64));
    let builder = DataLoader::builder(samples).batch_size(2);
    let builder = builder.num_workers(Workers::Auto);
    let loader = builder.cores(16).build().unwrap();
    let few = (0..TRIES).find_map(|epoch| {
        let mut batches = loader.epoch(epoch);
        let few = std::iter::from_fn(|| {
            assert_eq!(
                batches.by_ref().take(100).filter(Result::is_ok).count(),
                100
            );
            let stats = batches.stats();
            (stats.samples < 10_000).then_some(stats)
        });
        let mut few = few.filter(|stats| stats.workers <= 4);
        few.next()
    });
    let Some(few) = few else {
        panic!("{}", loader.stats())
    };
    assert!(
        matches!(few.sizing, WorkerSizing::Tiny | WorkerSizing::Enough),
        "{few}"
    );
}

/// One worker is enough, until it has to wait for what only another one can bring: a sample waits for the next one to begin.
#[test]
fn more_workers_load_when_the_loop_has_to_wait() {
    let (begins, begun) = mpsc::channel::<()>();
    let (begins, begun) = (Mutex::new(begins), Mutex::new(begun));
    let waits = Arc::new(AtomicU64::new(u64::MAX - 1));
    let own = Arc::clone(&waits);
    let samples = from_fn(60, move |index, _| {
        let waits = own.load(Ordering::SeqCst);
        if index == waits {
            let begun = begun.lock().unwrap();
            begun.recv_timeout(Duration::from_secs(20))?;
        } else if index == waits + 1 {
            begins.lock().unwrap().send(())?;
        }
        Ok(index as i64)
    });
    let builder = DataLoader::builder(samples).batch_size(1).prefetch(2);
    let builder = builder.num_workers(Workers::Auto).cores(8);
    let loader = builder.build().unwrap();
    let enough = (0..TRIES).find(|&epoch| {
        for (number, batch) in loader.epoch(epoch).enumerate() {
            batch.unwrap();
            match number {
                20 if loader.stats().workers > 1 => return false,
                // What comes before may be ahead already.
                20 => waits.store(30, Ordering::SeqCst),
                0..20 => thread::sleep(Duration::from_millis(5)),
                _ => {}
            }
        }
        true
    });
    let stats = loader.stats();
    assert!(enough.is_some() && stats.workers > 1, "{stats}");
}

/// Each epoch's first batch is loaded by all workers, also after an epoch for which few were enough.
#[test]
fn an_epoch_begins_with_all_workers() {
    const AT_ONCE: usize = 4;
    let met = Arc::new((Mutex::new(0), std::sync::Condvar::new()));
    let own = Arc::clone(&met);
    let samples = from_fn(80, move |index, _| {
        if index < AT_ONCE as u64 {
            // It takes as many threads at once.
            let mut here = own.0.lock().unwrap();
            *here += 1;
            let epochs = (*here - 1) / AT_ONCE + 1;
            own.1.notify_all();
            let all_here = |here: &mut usize| *here < epochs * AT_ONCE;
            let waited = own
                .1
                .wait_timeout_while(here, Duration::from_secs(20), all_here);
            if waited.unwrap().1.timed_out() {
                return Err("others did not come".into());
            }
        }
        Ok(index as i64)
    });
    let builder = DataLoader::builder(samples).batch_size(4).prefetch(2);
    let loader = builder
        .num_workers(Workers::Auto)
        .cores(AT_ONCE)
        .build()
        .unwrap();
    let enough = (0..TRIES).filter(|&epoch| {
        for batch in loader.epoch(epoch) {
            batch.unwrap();
            thread::sleep(Duration::from_millis(2));
        }
        loader.stats().sizing == WorkerSizing::Enough
    });
    assert_eq!(enough.take(3).count(), 3, "{}", loader.stats());
}

/// `Auto` is as many as the process may use, and no more than the system lets it have.
#[cfg(target_os = "linux")]
#[test]
#[cfg_attr(miri, ignore = "it starts a process")]
fn cores_are_those_that_the_process_may_use() {
    const NAME: &str = "workers::cores_are_those_that_the_process_may_use";
    const EXPECTED: &str = "PINFEED_TEST_WORKERS";
    if let Ok(expected) = std::env::var(EXPECTED) {
        let samples = from_fn(10, |index, _| Ok(index as i64));
        let builder = DataLoader::builder(samples).num_workers(Workers::Auto);
        let builder = match expected.is_empty() {
            true => builder.cores(100_000), // too many for its addresses
            false => builder,
        };
        let loader = builder.build().unwrap();
        assert_eq!(loader.epoch(0).filter(Result::is_ok).count(), 10);
        let workers = loader.stats().workers;
        assert!(expected.is_empty() && workers < 1_000 || workers.to_string() == expected);
        return;
    }
    let all = std::thread::available_parallelism().unwrap().to_string();
    let cases = [
        (all.as_str(), "exec"),
        // (The first of those that this process may use.)
        (
            "1",
            "exec taskset -c $(taskset -cp $$ | sed 's/.*: *//; s/[,-].*//')",
        ),
        ("", "ulimit -v 4194304 && exec"),
    ];
    for (expected, prefix) in cases {
        let mut shell = std::process::Command::new("sh");
        shell.args(["-c", &format!("{prefix} \"$0\" --exact {NAME}")]);
        let program = std::env::current_exe().unwrap();
        let ended = shell.arg(program).env(EXPECTED, expected).output().unwrap();
        let said = String::from_utf8_lossy(&ended.stdout);
        assert!(ended.status.success(), "{prefix}: {ended:?}");
        assert!(said.contains("1 passed"), "there is no test {NAME}: {said}");
    }
}

/// A worker that hangs is replaced, whether others are on duty or not.
#[test]
fn a_sample_that_hangs_costs_its_batch() {
    for cores in [1, 4] {
        let samples = from_fn(60, |index, _| {
            if index == 40 {
                thread::sleep(Duration::from_secs(2));
            }
            Ok(index as i64)
        });
        let builder = DataLoader::builder(samples).num_workers(Workers::Auto);
        let builder = builder.cores(cores).timeout(Duration::from_millis(300));
        let loader = builder.build().unwrap();
        let batches = loader.epoch(0).inspect(|batch| match batch {
            Ok(batch) if batch.as_slice()[0] < 20 => thread::sleep(Duration::from_millis(3)),
            _ => {}
        });
        let failed: Vec<_> = batches.filter_map(Result::err).collect();
        assert!(matches!(failed[..], [Error::TimedOut(_)]), "{failed:?}");
    }
}

/// Several epochs that are taken at once have all workers, and the statistics say so; the one that is left decides for itself.
#[test]
fn several_consumers_have_all_workers() {
    let devices = [Device::cpu(), Device::cpu()];
    let loader = builder_of(Workers::Auto, 5)
        .pin_memory(&devices)
        .build()
        .unwrap();
    let mut epochs = loader.epoch(0).split(&devices, 1);
    let mut last = epochs.pop().unwrap();
    for epoch in &mut epochs {
        for _ in 0..9 {
            assert!(epoch.next().is_some());
            let stats = loader.stats();
            assert_eq!(
                (stats.workers, stats.sizing),
                (5, WorkerSizing::Several),
                "{stats}"
            );
        }
    }
    let stats = loader.stats().to_string();
    assert!(
        stats.contains("several epochs are taken at once"),
        "{stats}"
    );
    drop(epochs);
    assert!(last.next().is_some());
    assert_ne!(loader.stats().sizing, WorkerSizing::Several);
    // A training and an evaluation.
    let mut other = loader.epoch(1);
    assert!(other.next().is_some());
    assert_eq!(loader.stats().sizing, WorkerSizing::Several);
}
