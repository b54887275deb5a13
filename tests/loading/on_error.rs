//! Samples that fail are replaced, or left out, and nothing else changes.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use pinfeed::dataset::Pass;
use pinfeed::error::{CollateError, Temporary};
use pinfeed::loader::{BatchInfo, LoaderState, OnError, World};
use pinfeed::sample::{Field, Filled, Layout, Row};
use pinfeed::{
    BoxError, DataLoader, Dataset, Device, Error, Ragged, Sample, SampleRng, Tensor, from_fn,
};

const LEN: u64 = 200;

/// How a bad sample fails.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Way {
    Get,
    Panic,
    Fill,
    FillPanics,
}

const WAYS: [Way; 4] = [Way::Get, Way::Panic, Way::Fill, Way::FillPanics];

/// A sample that is decoded late, and may fail then.
struct Late {
    index: i64,
    drawn: i64,
    fails: Option<Way>,
}

impl Sample for Late {
    type Batch = (Tensor<i64>, Tensor<i64>);
    type Plan = (Field<i64>, Field<i64>);
    type Rest = ();
    const DENSE: bool = true;

    fn plan<'a>(
        _: impl Iterator<Item = &'a Self> + Clone,
        layout: &mut Layout,
    ) -> Result<Self::Plan, CollateError> {
        Ok((layout.field(&[])?, layout.field(&[])?))
    }

    fn fill(self, plan: &Self::Plan, row: &mut Row<'_>) -> Result<(), CollateError> {
        row.write(&plan.0, &[self.index])?;
        match self.fails {
            Some(Way::Fill) => Err(CollateError::Load("it cannot be decoded".into())),
            Some(Way::FillPanics) => watch::provoked("it cannot be decoded at all"),
            _ => row.write(&plan.1, &[self.drawn]),
        }
    }

    fn finish(plan: Self::Plan, _: Vec<()>, filled: &mut Filled) -> Self::Batch {
        (filled.take(plan.0), filled.take(plan.1))
    }
}

fn is_bad(index: u64) -> bool {
    index % 23 == 7
}

fn samples(way: Way) -> impl Dataset<Sample = Late> {
    from_fn(LEN, move |index, rng: &mut SampleRng| {
        let fails = is_bad(index).then_some(way);
        match fails {
            Some(Way::Get) => return Err("it is broken".into()),
            Some(Way::Panic) => watch::provoked("it is broken beyond repair"),
            _ => {}
        }
        Ok(Late {
            index: index as i64,
            drawn: rng.range(0..1_000_000),
            fails,
        })
    })
    .describe(|index| format!("shelf/{index}.jpg"))
}

#[derive(Debug, Clone, Copy)]
struct How {
    workers: usize,
    pinned: bool,
    /// To a device, so far ahead.
    depth: Option<usize>,
}

fn ways_to_load() -> impl Iterator<Item = How> {
    let workers = [0, 1, 4].into_iter();
    workers.flat_map(|workers| {
        [
            (false, None),
            (true, None),
            (true, Some(2)),
            (false, Some(1)),
        ]
        .map(|(pinned, depth)| How {
            workers,
            pinned,
            depth,
        })
    })
}

type Rows = (Vec<(i64, i64)>, BatchInfo);

fn loader(
    way: Way,
    how: How,
    on_error: OnError,
    device: &Device,
) -> DataLoader<(Tensor<i64>, Tensor<i64>)> {
    let mut builder = DataLoader::builder(samples(way))
        .batch_size(16)
        .shuffle(true)
        .seed(5)
        .num_workers(how.workers)
        .on_error(on_error);
    if how.pinned {
        builder = builder.pin_memory(device);
    }
    builder.build().unwrap()
}

fn load(
    loader: &DataLoader<(Tensor<i64>, Tensor<i64>)>,
    how: How,
    epoch: u64,
    device: &Device,
) -> Vec<pinfeed::Result<Rows>> {
    let rows = |(indices, drawn): (Tensor<i64>, Tensor<i64>)| -> Vec<(i64, i64)> {
        indices
            .as_slice()
            .iter()
            .copied()
            .zip(drawn.as_slice().iter().copied())
            .collect()
    };
    let epoch = loader.epoch(epoch);
    match how.depth {
        None => epoch
            .with_info()
            .map(|batch| batch.map(|(batch, info)| (rows(batch), info)))
            .collect(),
        Some(depth) => epoch
            .prefetch_to_device(device, depth)
            .with_info()
            .map(|batch| {
                let ((indices, drawn), info) = batch?;
                let host = |tensor: pinfeed::DeviceTensor<i64>| tensor.to_host(true)?.wait();
                Ok((rows((host(indices)?, host(drawn)?)), info))
            })
            .collect(),
    }
}

fn all(batches: Vec<pinfeed::Result<Rows>>) -> Vec<Rows> {
    batches.into_iter().map(|batch| batch.unwrap()).collect()
}

/// The epoch's order and draws, as if nothing failed.
fn sound(epoch: u64) -> Vec<(i64, i64)> {
    let samples = from_fn(LEN, |index, rng: &mut SampleRng| {
        Ok((index as i64, rng.range(0..1_000_000i64)))
    });
    let loader = DataLoader::builder(samples)
        .batch_size(LEN as usize)
        .shuffle(true)
        .seed(5)
        .build()
        .unwrap();
    let (indices, drawn) = loader.epoch(epoch).next().unwrap().unwrap();
    indices
        .as_slice()
        .iter()
        .copied()
        .zip(drawn.as_slice().iter().copied())
        .collect()
}

const BAD: u64 = 9; // 7, 30, .. 191

#[test]
fn bad_samples_are_replaced_and_nothing_else_changes() {
    for way in WAYS {
        let mut first: Option<Vec<Vec<(i64, i64)>>> = None;
        for how in ways_to_load() {
            let device = Device::cpu();
            let loader = loader(way, how, OnError::Replace { at_most: 100 }, &device);
            for epoch in [0, 1] {
                let sound = sound(epoch);
                let batches = all(load(&loader, how, epoch, &device));
                let what = format!("{way:?}, {how:?}, epoch {epoch}");
                let rows: Vec<_> = batches.iter().flat_map(|(rows, _)| rows.clone()).collect();
                assert_eq!(rows.len() as u64, LEN, "{what}");
                for (position, (row, sound)) in rows.iter().zip(&sound).enumerate() {
                    match is_bad(sound.0 as u64) {
                        false => assert_eq!(row, sound, "{what}, position {position}"),
                        true => assert!(
                            !is_bad(row.0 as u64) && row.1 == sound.1,
                            "{what}, position {position}"
                        ),
                    }
                }
                for (rows, info) in &batches {
                    let indices: Vec<u64> = rows.iter().map(|row| row.0 as u64).collect();
                    assert_eq!(
                        (info.indices(), info.rows()),
                        (indices, rows.len()),
                        "{what}"
                    );
                    assert_eq!(info.real_rows(), rows.len());
                }
                let stats = loader.stats();
                assert!(
                    stats.bad.replaced >= BAD && stats.bad.skipped == 0,
                    "{what}: {stats:?}"
                );
                assert_eq!(stats.bad.listed.len() as u64, stats.bad.replaced);
                assert_eq!(stats.samples, LEN, "{what}");
                assert!(
                    stats
                        .bad
                        .listed
                        .iter()
                        .any(|bad| bad.contains("shelf/30.jpg")),
                    "{what}: {stats:?}"
                );
                if epoch == 0 {
                    // Whichever worker loads, the same samples take the same rows.
                    let batches: Vec<_> = batches.into_iter().map(|(rows, _)| rows).collect();
                    assert_eq!(
                        first.get_or_insert_with(|| batches.clone()),
                        &batches,
                        "{what}"
                    );
                }
            }
        }
    }
}

#[test]
fn bad_samples_are_left_out_and_rows_move_up() {
    for way in WAYS {
        for how in ways_to_load() {
            let device = Device::cpu();
            let loader = loader(way, how, OnError::Skip { at_most: 100 }, &device);
            for epoch in [0, 1] {
                let sound = sound(epoch);
                let batches = all(load(&loader, how, epoch, &device));
                let what = format!("{way:?}, {how:?}, epoch {epoch}");
                assert_eq!(batches.len(), 13, "{what}");
                for ((rows, info), whole) in batches.iter().zip(sound.chunks(16)) {
                    let kept: Vec<_> = whole
                        .iter()
                        .copied()
                        .filter(|row| !is_bad(row.0 as u64))
                        .collect();
                    assert_eq!(rows, &kept, "{what}");
                    let indices: Vec<u64> = rows.iter().map(|row| row.0 as u64).collect();
                    assert_eq!(
                        (info.indices(), info.rows(), info.real_rows()),
                        (indices, rows.len(), rows.len()),
                        "{what}"
                    );
                    assert_eq!(info.mask(), vec![true; rows.len()]);
                }
                let stats = loader.stats();
                assert_eq!((stats.bad.skipped, stats.bad.replaced), (BAD, 0), "{what}");
                assert_eq!(stats.samples, LEN - BAD, "{what}");
                assert_eq!(stats.bad.listed.len() as u64, BAD, "{what}");
            }
        }
    }
}

/// Behind the quota, samples fail as they do without a policy; and each epoch has a quota of its own.
#[test]
fn a_quota_is_for_each_epoch() {
    for on_error in [
        OnError::Replace { at_most: 3 },
        OnError::Skip { at_most: 3 },
    ] {
        for how in ways_to_load() {
            let device = Device::cpu();
            let loader = loader(Way::Fill, how, on_error, &device);
            for epoch in [0, 1] {
                let batches = load(&loader, how, epoch, &device);
                assert_eq!(batches.len(), 13);
                let failed: Vec<_> = batches.into_iter().filter_map(Result::err).collect();
                let stats = loader.stats();
                assert_eq!(
                    stats.bad.replaced + stats.bad.skipped,
                    3,
                    "{on_error:?}, {how:?}"
                );
                assert!(
                    !failed.is_empty() && failed.len() <= 6,
                    "{on_error:?}, {how:?}: {failed:?}"
                );
                for error in failed {
                    assert!(
                        matches!(&error, Error::Sample(sample, _) if is_bad(sample.index)),
                        "{error}"
                    );
                    assert!(error.to_string().contains(".jpg"), "{error}");
                }
            }
        }
    }
}

/// A batch of nothing but bad samples is an error in its place; those around it come.
#[test]
fn a_batch_of_bad_samples_is_an_error() {
    for workers in [0, 3] {
        for (on_error, pinned) in [
            (OnError::Skip { at_most: 100 }, false),
            (OnError::Skip { at_most: 100 }, true),
        ] {
            let device = Device::cpu();
            let samples = from_fn(40, |index, _| match index {
                10..20 => Err("it is broken".into()),
                index => Ok(index as i64),
            });
            let mut builder = DataLoader::builder(samples)
                .batch_size(10)
                .num_workers(workers)
                .on_error(on_error);
            if pinned {
                builder = builder.pin_memory(&device);
            }
            let loader = builder.build().unwrap();
            for _ in 0..2 {
                let batches: Vec<_> = loader.into_iter().collect();
                let lens: Vec<_> = batches
                    .iter()
                    .map(|batch| batch.as_ref().ok().map(|batch| batch.len()))
                    .collect();
                assert_eq!(lens, [Some(10), None, Some(10), Some(10)]);
                let error = batches.into_iter().find_map(Result::err).unwrap();
                assert!(
                    matches!(&error, Error::Sample(sample, _) if (10..20).contains(&sample.index)),
                    "{error}"
                );
            }
        }
    }
}

/// If nothing can be loaded, epochs end all the same.
#[test]
fn a_data_set_of_bad_samples_ends() {
    for workers in [0, 3] {
        for on_error in [
            OnError::Replace { at_most: u64::MAX },
            OnError::Skip { at_most: u64::MAX },
        ] {
            let samples = from_fn(40, |_, _| -> Result<i64, BoxError> {
                Err("the disk is gone".into())
            });
            let loader = DataLoader::builder(samples)
                .batch_size(10)
                .num_workers(workers)
                .on_error(on_error)
                .build()
                .unwrap();
            let batches: Vec<_> = loader.epoch(0).collect();
            assert_eq!(batches.len(), 4);
            assert!(
                batches
                    .iter()
                    .all(|batch| matches!(batch, Err(Error::Sample(..))))
            );
        }
    }
}

/// What is wrong with the batch, or the order, is no sample's fault.
#[test]
fn other_errors_stay_errors() {
    for on_error in [
        OnError::Replace { at_most: 9 },
        OnError::Skip { at_most: 9 },
    ] {
        for workers in [0, 2] {
            // A sampler that names samples that are not there.
            let samples = DataLoader::builder(vec![1i64; 10])
                .sampler(vec![1u64, 2, 30, 4])
                .batch_size(2)
                .num_workers(workers);
            let loader = samples.on_error(on_error).build().unwrap();
            let batches: Vec<_> = loader.epoch(0).collect();
            assert!(
                batches[0].is_ok()
                    && batches[1]
                        .as_ref()
                        .unwrap_err()
                        .to_string()
                        .contains("index 30")
            );
            // A sample of another shape.
            let shapes = from_fn(4, |index, _| Ok(vec![1f32; 2 + usize::from(index == 3)]));
            let loader = DataLoader::builder(shapes)
                .batch_size(2)
                .num_workers(workers)
                .on_error(on_error)
                .build()
                .unwrap();
            let batches: Vec<_> = loader.epoch(0).collect();
            assert!(
                batches[0].is_ok() && matches!(batches[1], Err(Error::Collate(_))),
                "{batches:?}"
            );
            // A function that fails.
            let loader = DataLoader::builder(vec![1i64; 4])
                .batch_size(2)
                .num_workers(workers)
                .on_error(on_error)
                .collate_fn(|_, _| -> Result<Tensor<i64>, BoxError> { Err("no".into()) })
                .build()
                .unwrap();
            assert!(
                loader
                    .epoch(0)
                    .all(|batch| matches!(batch, Err(Error::CollateFn { .. })))
            );
            assert_eq!(loader.stats().bad.replaced + loader.stats().bad.skipped, 0);
        }
    }
}

/// Samples that are not alike: a batch is planned from all of them, so another one does not fit the layout.
#[test]
fn batches_of_unlike_samples_are_made_again() {
    for way in WAYS {
        for on_error in [
            OnError::Replace { at_most: 100 },
            OnError::Skip { at_most: 100 },
        ] {
            for workers in [0, 1, 4] {
                for pinned in [false, true] {
                    let device = Device::cpu();
                    // A late number, and as many others as it says.
                    let pairs = samples(way).map(|late, _| {
                        let others = vec![late.index; late.index as usize % 5];
                        Ok((late, Ragged::from(others)))
                    });
                    let mut builder = DataLoader::builder(pairs)
                        .batch_size(16)
                        .num_workers(workers)
                        .on_error(on_error);
                    if pinned {
                        builder = builder.pin_memory(&device);
                    }
                    let loader = builder.build().unwrap();
                    let what = format!("{way:?}, {on_error:?}, {workers} workers, pinned {pinned}");
                    for _ in 0..2 {
                        let mut seen = BTreeSet::new();
                        let mut rows = 0;
                        for batch in &loader {
                            let ((indices, _), all_others) = batch.unwrap();
                            rows += indices.len();
                            for (index, others) in indices.as_slice().iter().zip(all_others.rows())
                            {
                                assert!(!is_bad(*index as u64), "{what}");
                                assert_eq!(others, vec![*index; *index as usize % 5], "{what}");
                                seen.insert(*index);
                            }
                            assert!(indices.is_pinned() == pinned, "{what}");
                        }
                        assert_eq!(seen.len() as u64, LEN - BAD, "{what}");
                        let stats = loader.stats();
                        match on_error {
                            OnError::Skip { .. } => {
                                assert_eq!(
                                    (rows as u64, stats.bad.skipped),
                                    (LEN - BAD, BAD),
                                    "{what}"
                                )
                            }
                            _ => assert!(
                                rows as u64 == LEN && stats.bad.replaced >= BAD,
                                "{what}: {stats:?}"
                            ),
                        }
                    }
                }
            }
        }
    }
}

/// Announcements that panic: no sample is to blame. Their batches are errors or whole, and the epoch ends.
#[test]
fn announcements_that_panic_end_no_epoch() {
    struct Panicking(usize);
    impl Dataset for Panicking {
        type Sample = i64;

        fn len(&self) -> u64 {
            40
        }

        fn get(&self, index: u64, _: &mut SampleRng) -> Result<i64, BoxError> {
            Ok(index as i64)
        }

        fn at_once(&self) -> usize {
            self.0
        }

        fn lookahead(&self) -> usize {
            4
        }

        fn will_need(&self, indices: &[u64], _: Pass) {
            assert!(!indices.contains(&25), "the hint panics");
        }
    }
    for on_error in [
        OnError::Replace { at_most: 99 },
        OnError::Skip { at_most: 99 },
        OnError::Fail,
    ] {
        for (workers, at_once) in [(0, 1), (3, 1), (0, 4), (3, 4)] {
            for pinned in [false, true] {
                let device = Device::cpu();
                let mut builder = DataLoader::builder(Panicking(at_once))
                    .batch_size(10)
                    .num_workers(workers)
                    .on_error(on_error);
                if pinned {
                    builder = builder.pin_memory(&device);
                }
                let loader = builder.build().unwrap();
                for _ in 0..2 {
                    let batches: Vec<_> = loader.epoch(0).with_info().collect();
                    assert_eq!(batches.len(), 4);
                    for batch in batches {
                        match batch {
                            Err(error) => {
                                assert!(error.to_string().contains("the hint panics"), "{error}")
                            }
                            Ok((batch, info)) => {
                                let indices = info.indices().into_iter().map(|index| index as i64);
                                assert!(batch.as_slice().iter().copied().eq(indices));
                            }
                        }
                    }
                }
            }
        }
    }
}

/// A collate function gets the samples that are left.
#[test]
fn a_collate_function_gets_what_is_left() {
    for workers in [0, 3] {
        let samples = from_fn(20, |index, _| match index {
            13 => Err("it is broken".into()),
            index => Ok(index as i64),
        });
        let loader = DataLoader::builder(samples)
            .batch_size(10)
            .num_workers(workers)
            .on_error(OnError::Skip { at_most: 1 })
            .collate_fn(|samples: Vec<i64>, _| Ok(samples))
            .build()
            .unwrap();
        let batches: Vec<_> = loader.epoch(0).map(|batch| batch.unwrap()).collect();
        assert_eq!(batches[1], [10, 11, 12, 14, 15, 16, 17, 18, 19]);
    }
}

/// A sample that fails now and then: what comes is whole, and is what the run says it is.
#[test]
fn samples_may_fail_now_and_then() {
    for on_error in [
        OnError::Replace { at_most: 1_000 },
        OnError::Skip { at_most: 1_000 },
    ] {
        let count = Arc::new(AtomicU64::new(0));
        let samples = from_fn(300, move |index, _| {
            match count.fetch_add(1, Ordering::Relaxed) % 7 {
                0 => Err("not this time".into()),
                _ => Ok([index as i64; 3]),
            }
        });
        let loader = DataLoader::builder(samples)
            .batch_size(20)
            .num_workers(4)
            .on_error(on_error)
            .build()
            .unwrap();
        for batch in loader.epoch(0).with_info() {
            let (numbers, info) = batch.unwrap();
            assert_eq!(numbers.len(), info.rows() * 3);
            let expected = info
                .indices()
                .into_iter()
                .flat_map(|index| [index as i64; 3]);
            assert!(numbers.as_slice().iter().copied().eq(expected));
        }
    }
}

/// Ranks and resumed runs replace alike.
#[test]
fn ranks_and_resumed_runs_replace_alike() {
    let run = |world: World, state: &LoaderState| {
        let loader = DataLoader::builder(samples(Way::Fill))
            .global_batch_size(20)
            .shuffle(true)
            .seed(5)
            .num_workers(2)
            .world(world)
            .on_error(OnError::Replace { at_most: 50 })
            .build()
            .unwrap();
        let epoch = loader.resume(0..1, state).unwrap().next().unwrap();
        let batches: Vec<Vec<i64>> = epoch.map(|batch| batch.unwrap().0.to_vec()).collect();
        (batches, loader)
    };
    let (alone, loader) = run(World::single(), &LoaderState::default());
    let ranks = [0, 1].map(|rank| run(World::new(rank, 2).unwrap(), &LoaderState::default()).0);
    for (batch, whole) in alone.iter().enumerate() {
        assert_eq!(&[&ranks[0][batch][..], &ranks[1][batch]].concat(), whole);
    }
    let mut epoch = loader.epoch(0);
    epoch.nth(3).unwrap().unwrap();
    assert_eq!(run(World::single(), &epoch.state()).0, alone[4..]);
}

/// Nothing of a sample that was replaced stays behind, and each is dropped once.
#[test]
fn every_sample_is_dropped() {
    struct Counted(i64, Arc<AtomicU64>);
    impl Drop for Counted {
        fn drop(&mut self) {
            self.1.fetch_sub(1, Ordering::Relaxed);
        }
    }
    for on_error in [
        OnError::Replace { at_most: 99 },
        OnError::Skip { at_most: 99 },
        OnError::Fail,
    ] {
        for workers in [0, 3] {
            let alive = Arc::new(AtomicU64::new(0));
            let counter = Arc::clone(&alive);
            let samples = from_fn(60, move |index, _| {
                if index % 9 == 4 {
                    return Err("it is broken".into());
                }
                counter.fetch_add(1, Ordering::Relaxed);
                Ok(pinfeed::Host(Counted(index as i64, Arc::clone(&counter))))
            });
            let loader = DataLoader::builder(samples)
                .batch_size(7)
                .num_workers(workers)
                .on_error(on_error)
                .build()
                .unwrap();
            let mut seen = Mutex::new(Vec::new());
            loader.epoch(0).flatten().for_each(|batch| {
                seen.get_mut()
                    .unwrap()
                    .extend(batch.iter().map(|counted| counted.0))
            });
            drop(loader);
            assert_eq!(
                alive.load(Ordering::Relaxed),
                0,
                "{on_error:?}, {workers} workers"
            );
        }
    }
}

/// Every third call fails, and says that it may go away.
#[test]
fn what_is_temporary_is_tried_again() {
    for workers in [0, 3] {
        let calls = Arc::new(AtomicU64::new(0));
        let counted = Arc::clone(&calls);
        let samples = from_fn(90, move |index, rng: &mut SampleRng| {
            let drawn = rng.range(0..1_000_000i64);
            match counted.fetch_add(1, Ordering::Relaxed) % 3 {
                1 => Err(Temporary::new("503").into()),
                _ => Ok((index as i64, drawn)),
            }
        })
        .describe(|index| format!("https://example.org/{index}"));
        let loader = DataLoader::builder(samples)
            .batch_size(10)
            .seed(5)
            .num_workers(workers)
            .retry(20, Duration::from_micros(10))
            .build()
            .unwrap();
        let sound = from_fn(90, |index, rng: &mut SampleRng| {
            Ok((index as i64, rng.range(0..1_000_000i64)))
        });
        let sound = DataLoader::builder(sound)
            .batch_size(10)
            .seed(5)
            .build()
            .unwrap();
        for epoch in 0..2 {
            for (batch, sound) in loader.epoch(epoch).zip(sound.epoch(epoch)) {
                let (batch, sound) = (batch.unwrap(), sound.unwrap());
                assert_eq!(batch.0.as_slice(), sound.0.as_slice());
                assert_eq!(batch.1.as_slice(), sound.1.as_slice());
            }
            let stats = loader.stats();
            assert!(stats.bad.retried >= 40 && stats.bad.replaced + stats.bad.skipped == 0);
            assert!(stats.bad.listed[0].contains("https://example.org/"));
        }
    }
}

/// What stays wrong is asked for once; what is temporary, as often as the loader was told; then the policy has its say.
#[test]
fn in_the_end_a_sample_fails() {
    for workers in [0, 2] {
        let calls = Arc::new(Mutex::new(Vec::new()));
        let counted = Arc::clone(&calls);
        let samples = from_fn(12, move |index, _| {
            counted.lock().unwrap().push(index);
            match index {
                4 => Err("404".into()),
                7 => Err(std::io::Error::from(std::io::ErrorKind::TimedOut).into()),
                index => Ok(index as i64),
            }
        });
        let loader = DataLoader::builder(samples)
            .batch_size(3)
            .num_workers(workers)
            .retry(2, Duration::from_micros(10))
            .on_error(OnError::Skip { at_most: 2 })
            .build()
            .unwrap();
        let batches: Vec<_> = loader
            .epoch(0)
            .map(|batch| batch.unwrap().to_vec())
            .collect();
        assert_eq!(
            batches,
            [vec![0, 1, 2], vec![3, 5], vec![6, 8], vec![9, 10, 11]]
        );
        let count = |index| {
            calls
                .lock()
                .unwrap()
                .iter()
                .filter(|call| **call == index)
                .count()
        };
        // Both were found bad twice where several workers share a batch: by the first, and by the one that made it again.
        let (once, thrice) = (count(4), count(7));
        assert!((1..=2).contains(&once), "{once}");
        assert!([3, 6].contains(&thrice), "{thrice}");
    }
}

/// A worker that waits to try again does not keep the loader from being dropped.
#[test]
fn dropping_the_loader_ends_the_wait() {
    let (told, hears) = std::sync::mpsc::channel();
    let samples = from_fn(4, move |_, _| -> Result<i64, BoxError> {
        told.send(()).unwrap();
        Err(Temporary::new("503").into())
    });
    let loader = DataLoader::builder(samples)
        .num_workers(1)
        .retry(u32::MAX, Duration::from_secs(600))
        .build()
        .unwrap();
    drop(loader.epoch(0));
    let epoch = loader.epoch(1);
    hears.recv().unwrap();
    drop(epoch);
    drop(loader);
}

/// Behind the quota of retries, samples fail at once: as errors, or for others to take their places. Each epoch has its own.
#[test]
fn retries_have_a_quota() {
    for workers in [0, 3] {
        for on_error in [OnError::Fail, OnError::Skip { at_most: 100 }] {
            let samples = from_fn(40, |index, _| match index % 4 {
                1 => Err(Temporary::new("503").into()),
                _ => Ok(index as i64),
            });
            let loader = DataLoader::builder(samples)
                .batch_size(4)
                .num_workers(workers)
                .on_error(on_error)
                .retry(3, Duration::from_micros(10))
                .retry_at_most(7)
                .build()
                .unwrap();
            for epoch in 0..2 {
                let failed = loader.epoch(epoch).filter(Result::is_err).count();
                let stats = loader.stats();
                let expected = if on_error == OnError::Fail { 10 } else { 0 };
                assert_eq!(
                    (failed, stats.bad.retried),
                    (expected, 7),
                    "{workers} workers"
                );
            }
        }
    }
}

/// An epoch that is resumed has a whole quota, whatever was used of it before.
#[test]
fn a_quota_begins_anew_when_an_epoch_is_resumed() {
    let build = || {
        let samples = from_fn(40, |index, _| match index % 10 {
            3 => Err("it is broken".into()),
            _ => Ok(index as i64),
        });
        DataLoader::builder(samples)
            .batch_size(10)
            .on_error(OnError::Skip { at_most: 2 })
            .build::<Tensor<i64>>()
            .unwrap()
    };
    let loader = build();
    let whole: Vec<bool> = loader.epoch(0).map(|batch| batch.is_ok()).collect();
    assert_eq!(whole, [true, true, false, false]);
    let mut epoch = loader.epoch(0);
    assert!(epoch.by_ref().take(2).all(|batch| batch.is_ok()));
    let resumed = build();
    let rest = resumed
        .resume(0..1, &epoch.state())
        .unwrap()
        .flatten()
        .map(|batch| batch.is_ok());
    assert!(rest.eq([true, true]));
}

/// By one worker or by several: the bad sample is tried once, and the others of its batch are loaded once more.
#[test]
fn a_batch_is_loaded_again_once() {
    for (workers, slow) in [(0, false), (1, false), (3, false), (3, true)] {
        let loads: Arc<Vec<AtomicUsize>> = Arc::new((0..60).map(|_| AtomicUsize::new(0)).collect());
        let counted = Arc::clone(&loads);
        let samples = from_fn(60, move |index, _| {
            counted[index as usize].fetch_add(1, Ordering::SeqCst);
            if slow {
                std::thread::sleep(Duration::from_millis(2)); // several workers share a batch
            }
            match index {
                13 | 17 => Err("bad".into()),
                _ => Ok(index as i64),
            }
        });
        let builder = DataLoader::builder(samples).batch_size(20);
        let builder = builder
            .num_workers(workers)
            .on_error(OnError::Skip { at_most: 2 });
        let loader = builder.build().unwrap();
        let batches: Vec<_> = loader
            .epoch(0)
            .map(|batch| batch.unwrap().to_vec())
            .collect();
        assert!(
            batches
                .concat()
                .into_iter()
                .eq((0..60).filter(|index| ![13, 17].contains(index)))
        );
        let loads: Vec<usize> = loads
            .iter()
            .map(|loads| loads.load(Ordering::SeqCst))
            .collect();
        // (The second may be found only when the batch is made again.)
        let most = |index: usize| if index < 20 { 3 } else { 1 };
        assert!(
            loads
                .iter()
                .enumerate()
                .all(|(index, loads)| *loads <= most(index)),
            "{loads:?}"
        );
        assert_eq!(
            (loads[13], loads[17]),
            (1, 1),
            "{workers} workers, slow: {slow}: {loads:?}"
        );
    }
}
