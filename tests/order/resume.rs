//! A run that stops anywhere goes on as if it had not stopped: with other workers, on other ranks, any number of times.

use proptest::prelude::*;
use serde_json::Value;

use pinfeed::loader::{BatchInfo, LastBatch, LoaderState, Sharding, World};
use pinfeed::sampler::SequentialSampler;
use pinfeed::{DataLoader, Device, Error, SampleRng, Tensor, from_fn};

type Pair = (Tensor<i64>, Tensor<i64>);

/// How one process loads.
#[derive(Debug, Clone, Copy)]
struct Run {
    ranks: usize,
    workers: usize,
    prefetch: usize,
    /// Where its batches go, and how far ahead.
    depth: Option<usize>,
    /// After how many batches it is stopped.
    stops_after: usize,
}

#[derive(Debug, Clone, Copy)]
struct Job {
    samples: u64,
    global_batch: usize,
    last: LastBatch,
    sharding: Sharding,
}

/// Each sample is its index, and a number that it draws.
fn loader(job: Job, run: Run, rank: usize) -> DataLoader<Pair> {
    let samples = from_fn(job.samples, |index, rng: &mut SampleRng| {
        Ok((index as i64, rng.range(0..1_000_000i64)))
    });
    let mut builder = DataLoader::builder(samples)
        .global_batch_size(job.global_batch)
        .shuffle(true)
        .seed(17)
        .last_batch(job.last)
        .sharding(job.sharding)
        .num_workers(run.workers)
        .world(World::new(rank, run.ranks).unwrap());
    if run.workers > 0 {
        builder = builder.prefetch(run.prefetch);
    }
    if run.depth.is_some() {
        builder = builder.pin_memory(&Device::cpu());
    }
    builder.build().unwrap()
}

fn rows((indices, drawn): &Pair) -> Vec<(i64, i64)> {
    let indices = indices.as_slice().iter().copied();
    indices.zip(drawn.as_slice().iter().copied()).collect()
}

/// The whole epoch, in order.
fn epoch(job: Job, number: u64) -> Vec<(i64, i64)> {
    let alone = Run {
        ranks: 1,
        workers: 0,
        prefetch: 1,
        depth: None,
        stops_after: usize::MAX,
    };
    let job = Job {
        last: LastBatch::Partial,
        ..job
    };
    let loader = loader(job, alone, 0);
    let batches = loader.epoch(number).map(|batch| rows(&batch.unwrap()));
    batches.collect::<Vec<_>>().concat()
}

type Seen = Vec<(Vec<(i64, i64)>, BatchInfo)>;

/// What a rank sees of epoch `number` from a state on; and the state in which it leaves.
fn part(job: Job, run: Run, rank: usize, number: u64, state: &LoaderState) -> (Seen, LoaderState) {
    let loader = loader(job, run, rank);
    let mut epochs = loader.resume(number..number + 1, state).unwrap();
    assert_eq!(loader.state().position(), state.position());
    let seen = match run.depth {
        None => {
            let epoch = epochs.next().unwrap().with_info();
            let batches = epoch.take(run.stops_after);
            batches
                .map(|batch| batch.unwrap())
                .map(|(batch, info)| (rows(&batch), info))
                .collect()
        }
        Some(depth) => {
            let epoch = epochs
                .prefetch_to_device(&Device::cpu(), depth)
                .next()
                .unwrap()
                .with_info();
            let batches = epoch.take(run.stops_after).map(|batch| batch.unwrap());
            let on_host =
                |tensor: pinfeed::DeviceTensor<i64>| tensor.to_host(false).unwrap().wait().unwrap();
            batches
                .map(|((indices, drawn), info)| (rows(&(on_host(indices), on_host(drawn))), info))
                .collect()
        }
    };
    (seen, loader.state())
}

/// Runs one after the other, each from the state in which the one before was stopped. Returns the real rows, global batch by global batch.
fn interrupted(job: Job, runs: &[Run], number: u64) -> Vec<(i64, i64)> {
    let mut state: Option<LoaderState> = None;
    let mut seen = Vec::new();
    for (at, run) in runs.iter().enumerate() {
        let run = Run {
            stops_after: if at + 1 == runs.len() {
                usize::MAX
            } else {
                run.stops_after
            },
            ..*run
        };
        let from = state.unwrap_or_default();
        let ranks: Vec<_> = (0..run.ranks)
            .map(|rank| part(job, run, rank, number, &from))
            .collect();
        let (batches, left) = (ranks[0].0.len(), ranks[0].1);
        for (rank, state) in &ranks {
            assert_eq!(
                (rank.len(), state),
                (batches, &left),
                "all ranks stand at the same place"
            );
        }
        for batch in 0..batches {
            let mut global = Vec::new();
            for (rank, _) in &ranks {
                let (rows, info) = &rank[batch];
                assert_eq!(
                    (info.rows(), info.batch(), info.epoch()),
                    (rows.len(), batch as u64, number)
                );
                let indices: Vec<i64> = rows.iter().map(|row| row.0).collect();
                assert_eq!(
                    info.indices(),
                    indices
                        .iter()
                        .map(|index| *index as u64)
                        .collect::<Vec<_>>()
                );
                assert_eq!(
                    info.mask().iter().filter(|is_real| **is_real).count(),
                    info.real_rows()
                );
                let step = if job.sharding == Sharding::Slices {
                    1
                } else {
                    run.ranks as u64
                };
                let positions = (info.position()..).step_by(step as usize);
                global.extend(positions.zip(rows.iter().copied()).take(info.real_rows()));
            }
            global.sort_unstable();
            seen.extend(global.into_iter().map(|(_, row)| row));
        }
        // Through a file.
        let saved = left.to_string();
        state = Some(saved.parse().unwrap());
        if left.epoch() > number {
            assert_eq!((left.epoch(), left.position()), (number + 1, 0));
            break;
        }
        assert_eq!(left.position(), seen.len() as u64);
    }
    seen
}

fn run() -> impl Strategy<Value = Run> {
    let ranks = prop::sample::select(vec![1usize, 2, 3, 4, 6, 12]);
    let depth = prop::option::of(0usize..4);
    (ranks, 0usize..4, 1usize..6, depth, 0usize..9).prop_map(
        |(ranks, workers, prefetch, depth, stops_after)| Run {
            ranks,
            workers,
            prefetch,
            depth,
            stops_after,
        },
    )
}

fn sharding() -> impl Strategy<Value = Sharding> {
    let strided = Sharding::Strided { drop_last: false };
    prop::sample::select(vec![Sharding::Slices, strided, Sharding::Interleaved])
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 60, ..ProptestConfig::default() })]

    /// The union is the epoch, in order per global batch, each sample with its own random numbers.
    #[test]
    fn stopped_anywhere_and_resumed_anyhow_it_is_the_epoch(
        samples in 1u64..300, slices in 1usize..4, runs in prop::collection::vec(run(), 1..5), number in 0u64..3, fills: bool, sharding in sharding()
    ) {
        let job = Job {
            samples,
            global_batch: 12 * slices,
            last: if fills { LastBatch::Fill } else { LastBatch::Partial },
            sharding,
        };
        prop_assert_eq!(interrupted(job, &runs, number), epoch(job, number));
    }
}

const ALONE: Run = Run {
    ranks: 1,
    workers: 2,
    prefetch: 4,
    depth: None,
    stops_after: usize::MAX,
};

fn numbers(job: Job) -> DataLoader<Pair> {
    loader(job, ALONE, 0)
}

const JOB: Job = Job {
    samples: 100,
    global_batch: 12,
    last: LastBatch::Drop,
    sharding: Sharding::Slices,
};

/// What is loaded ahead, or sent ahead, is not counted; what the program was given is.
#[test]
fn what_was_given_out_counts() {
    let (device, loader) = (Device::cpu(), numbers(JOB));
    assert_eq!((loader.state().epoch(), loader.state().position()), (0, 0));
    let mut epoch = loader.epoch(2);
    for given in 1..=3 {
        epoch.next().unwrap().unwrap();
        assert_eq!(
            (epoch.state().epoch(), epoch.state().position()),
            (2, given * 12)
        );
        assert_eq!(loader.state(), epoch.state());
    }
    let mut epoch = epoch.prefetch_to_device(&device, 3);
    assert_eq!(epoch.state().position(), 36);
    epoch.next().unwrap().unwrap();
    assert_eq!(epoch.state().position(), 48);
    // The epoch is over with the last batch in hand, and nothing that follows changes that.
    assert_eq!(epoch.by_ref().count(), 4);
    assert_eq!((epoch.state().epoch(), epoch.state().position()), (3, 0));
    assert!(epoch.next().is_none());
    drop(epoch);
    assert_eq!((loader.state().epoch(), loader.state().position()), (3, 0));
}

/// The epoch that was begun last is the loader's; each other knows its own place.
#[test]
fn several_epochs_have_states_of_their_own() {
    let loader = numbers(JOB);
    let (mut one, mut other) = (loader.epoch(0), loader.epoch(5));
    one.next().unwrap().unwrap();
    assert_eq!((one.state().epoch(), one.state().position()), (0, 12));
    assert_eq!((other.state().epoch(), other.state().position()), (5, 0));
    assert_eq!(loader.state(), other.state());
    other.next().unwrap().unwrap();
    one.next().unwrap().unwrap();
    drop(other);
    assert_eq!((loader.state().epoch(), loader.state().position()), (5, 12));
    // An epoch that follows another is begun when the program takes it, not when workers load it.
    let mut epochs = loader.epochs(7..9);
    epochs
        .next()
        .unwrap()
        .take(3)
        .for_each(|batch| drop(batch.unwrap()));
    assert_eq!((loader.state().epoch(), loader.state().position()), (7, 36));
    let next = epochs.next().unwrap();
    assert_eq!((loader.state().epoch(), loader.state().position()), (8, 0));
    drop(next);
}

/// Epochs after the resumed one are whole; those before it are left out; and a range that is over stays over.
#[test]
fn later_epochs_follow_the_resumed_one() {
    let loader = numbers(JOB);
    let whole = |number| epoch(JOB, number)[..96].to_vec();
    let mut epoch = loader.epoch(1);
    epoch.nth(4).unwrap().unwrap();
    let state = epoch.state();
    let other = numbers(JOB);
    let resumed: Vec<_> = other
        .resume(0..4, &state)
        .unwrap()
        .map(|epoch| {
            let (number, len) = (epoch.number(), epoch.len());
            let batches = epoch.map(|batch| rows(&batch.unwrap())).collect::<Vec<_>>();
            assert_eq!(batches.len(), len);
            (number, batches.concat())
        })
        .collect();
    assert_eq!(
        resumed,
        [(1, whole(1)[60..].to_vec()), (2, whole(2)), (3, whole(3))]
    );
    assert_eq!((other.state().epoch(), other.state().position()), (4, 0));
    assert_eq!(
        numbers(JOB).resume(0..4, &other.state()).unwrap().count(),
        0
    );
    assert_eq!(
        numbers(JOB).resume(0..4, &state).unwrap().size_hint(),
        (3, Some(3))
    );
    // Epochs beyond the state's begin at their beginning.
    let late: Vec<_> = numbers(JOB)
        .resume([3, 8], &state)
        .unwrap()
        .map(|epoch| (epoch.number(), epoch.len()))
        .collect();
    assert_eq!(late, [(3, 8), (8, 8)]);
}

/// The state is known before the first batch: a program may save at once.
#[test]
fn a_resumed_loader_knows_where_it_is() {
    let loader = numbers(JOB);
    loader.epoch(3).nth(1).unwrap().unwrap();
    let state = loader.state();
    let other = numbers(JOB);
    let epochs = other.resume(0..9, &state).unwrap();
    assert_eq!(other.state(), state);
    drop(epochs);
    assert_eq!(other.state(), state);
    // Also in a loader that is used already.
    loader.epoch(0).next().unwrap().unwrap();
    assert_ne!(loader.state(), state);
    let mut epochs = loader.resume(0..9, &state).unwrap();
    assert_eq!(loader.state(), state);
    let mut epoch = epochs.next().unwrap();
    assert_eq!(epoch.state(), state);
    epoch.next().unwrap().unwrap();
    assert_eq!(loader.state().position(), 36);
}

/// A batch that failed was given out, too: the run goes on behind it.
#[test]
fn a_failed_batch_is_not_loaded_again() {
    let build = || {
        let samples = from_fn(40, |index, _| match index {
            13 => Err("it is broken".into()),
            index => Ok(index as i64),
        });
        DataLoader::builder(samples)
            .batch_size(10)
            .num_workers(2)
            .build()
            .unwrap()
    };
    let loader = build();
    let mut epoch = loader.epoch(0);
    epoch.next().unwrap().unwrap();
    assert!(epoch.next().unwrap().is_err());
    let state = epoch.state();
    let other = build();
    let first = other
        .resume(0..1, &state)
        .unwrap()
        .next()
        .unwrap()
        .next()
        .unwrap();
    assert_eq!(first.unwrap().as_slice()[0], 20);
}

#[test]
fn another_run_is_refused_and_told_apart() {
    let saved = {
        let loader = DataLoader::builder(vec![1i64; 50])
            .batch_size(8)
            .shuffle(true)
            .seed(3)
            .build()
            .unwrap();
        loader.epoch(0).next().unwrap().unwrap();
        loader.state()
    };
    let refused = |loader: pinfeed::Result<DataLoader<Tensor<i64>>>| -> String {
        let loader = loader.unwrap();
        match loader.resume(0..9, &saved) {
            Err(error @ Error::State { .. }) => error.to_string(),
            other => panic!("{other:?}"),
        }
    };
    let builder = || DataLoader::builder(vec![1i64; 50]).batch_size(8);
    let shuffled = || builder().shuffle(true).seed(3);
    assert!(shuffled().build().unwrap().resume(0..9, &saved).is_ok());
    assert!(
        shuffled()
            .num_workers(2)
            .drop_last(true)
            .build()
            .unwrap()
            .resume(0..9, &saved)
            .is_ok()
    );
    let said = refused(builder().shuffle(true).seed(4).build());
    assert!(said.contains("seed is 3, the loader's 4"), "{said}");
    let said = refused(builder().seed(3).build());
    assert!(said.contains("sampler"), "{said}");
    let said = refused(
        builder()
            .seed(3)
            .sampler(SequentialSampler::new(40))
            .build(),
    );
    assert!(said.contains("sampler"), "{said}");
    let said = refused(
        DataLoader::builder(vec![1i64; 51])
            .batch_size(8)
            .shuffle(true)
            .seed(3)
            .build(),
    );
    assert!(said.contains("50 samples, the loader's 51"), "{said}");
    let named = from_fn(50, |_, _| Ok(1i64)).describe(|index| format!("other/{index}"));
    let said = refused(
        DataLoader::builder(named)
            .batch_size(8)
            .shuffle(true)
            .seed(3)
            .build(),
    );
    assert!(said.contains("data set is another one"), "{said}");
    let said = refused(shuffled().batch_size(16).build());
    assert!(
        said.contains("batch size is 8") && said.contains("16"),
        "{said}"
    );
    // Half the batch size on twice as many ranks is the same global batch.
    let half = shuffled()
        .batch_size(4)
        .world(World::new(1, 2).unwrap())
        .build()
        .unwrap();
    assert!(half.resume(0..9, &saved).is_ok());
    // Refused, a loader stands where it stood.
    let loader = shuffled().seed(4).build().unwrap();
    assert!(loader.resume(0..9, &saved).is_err());
    assert_eq!((loader.state().epoch(), loader.state().position()), (0, 0));
}

/// More ranks than samples, evaluated: as many batches on each, and each sample once.
#[test]
fn an_evaluation_counts_each_sample_once() {
    for last in [LastBatch::Partial, LastBatch::Fill] {
        for (samples, ranks, batch_size) in [
            (1, 4, 3),
            (3, 8, 1),
            (10, 4, 2),
            (17, 4, 2),
            (16, 4, 4),
            (5, 1, 8),
        ] {
            let (mut seen, mut lens) = (Vec::new(), Vec::new());
            for rank in 0..ranks {
                let loader = DataLoader::builder(from_fn(samples, |index, _| Ok(index as i64)))
                    .batch_size(batch_size)
                    .last_batch(last)
                    .num_workers(2)
                    .world(World::new(rank, ranks).unwrap())
                    .build()
                    .unwrap();
                lens.push(loader.len());
                for batch in loader.epoch(0).with_info() {
                    let (numbers, info) = batch.unwrap();
                    assert!(last == LastBatch::Partial || numbers.len() == batch_size);
                    assert!(!numbers.is_empty());
                    seen.extend_from_slice(&numbers.as_slice()[..info.real_rows()]);
                }
            }
            seen.sort_unstable();
            assert!(
                seen.iter().copied().eq(0..samples as i64),
                "{last:?}: {seen:?}"
            );
            lens.dedup();
            assert_eq!(lens.len(), 1);
        }
    }
}

/// Filler rows draw numbers of their own: an augmented sample does not come twice.
#[test]
fn filler_rows_have_their_own_random_numbers() {
    let job = Job {
        samples: 10,
        global_batch: 12,
        last: LastBatch::Fill,
        ..JOB
    };
    let batch = rows(&numbers(job).epoch(0).next().unwrap().unwrap());
    assert_eq!((batch[10].0, batch[11].0), (batch[0].0, batch[1].0));
    assert_ne!((batch[10].1, batch[11].1), (batch[0].1, batch[1].1));
}

/// What is drawn once for a batch is drawn anew after a resume, and is the same again in a run that was not stopped.
#[test]
fn batches_draw_their_own_numbers() {
    let drawn = |infos: Vec<BatchInfo>| -> Vec<u64> {
        infos.iter().map(|info| info.rng().next_u64()).collect()
    };
    let alone = part(JOB, ALONE, 0, 0, &LoaderState::default()).0;
    let alone = drawn(alone.into_iter().map(|(_, info)| info).collect());
    let first = part(
        JOB,
        Run {
            stops_after: 3,
            ..ALONE
        },
        0,
        0,
        &LoaderState::default(),
    );
    let rest = part(JOB, ALONE, 0, 0, &first.1);
    let both = first
        .0
        .into_iter()
        .chain(rest.0)
        .map(|(_, info)| info)
        .collect();
    assert_eq!(drawn(both), alone);
    let mut distinct = alone.clone();
    distinct.sort_unstable();
    distinct.dedup();
    assert_eq!(distinct.len(), alone.len());
}

/// What torchdata's `StatefulDataLoader` gives (`fixtures/ranks.py`). One difference is wanted: saved with an epoch's last batch in
/// hand, its state gives an empty epoch, and ours begins the next one. Where both shuffle, the orders differ, and the batches' sizes and
/// all samples together are compared.
#[test]
fn runs_are_resumed_as_with_a_stateful_data_loader() {
    let table: Value = serde_json::from_str(include_str!("../fixtures/ranks.json")).unwrap();
    let cases = table["resumed"].as_array().unwrap();
    assert_eq!(cases.len(), 84);
    let mut empty_epochs = 0;
    for case in cases {
        let number = |name: &str| case[name].as_u64().unwrap();
        let flag = |name: &str| case[name].as_bool().unwrap();
        let (shuffles, drops) = (flag("shuffle"), flag("drop_last"));
        let loader = || {
            let samples = from_fn(number("samples"), |index, _| Ok(index as i64));
            DataLoader::builder(samples)
                .batch_size(number("batch_size") as usize)
                .drop_last(drops)
                .shuffle(shuffles)
                .num_workers(number("workers") as usize)
                .build()
                .unwrap()
        };
        let (mut state, mut ours, mut theirs) = (LoaderState::default(), Vec::new(), Vec::new());
        for (at, run) in case["runs"].as_array().unwrap().iter().enumerate() {
            let stop = case["stops"][at]
                .as_u64()
                .map_or(usize::MAX, |stop| stop as usize);
            let loader = loader();
            let mut epoch = loader.resume(0.., &state).unwrap().next().unwrap();
            let batches = epoch.by_ref().take(stop);
            let batches: Vec<Vec<i64>> = batches.map(|batch| batch.unwrap().to_vec()).collect();
            let given: Vec<Vec<i64>> = serde_json::from_value(run.clone()).unwrap();
            if given.is_empty() && state.epoch() > 0 {
                assert_eq!(batches.len(), loader.len(), "{case}");
                empty_epochs += 1;
            } else {
                let sizes = |batches: &[Vec<i64>]| batches.iter().map(Vec::len).collect::<Vec<_>>();
                assert_eq!(sizes(&batches), sizes(&given), "{case}");
                ours.extend(batches.into_iter().flatten());
                theirs.extend(given.into_iter().flatten());
            }
            state = epoch.state();
        }
        match (shuffles, drops) {
            (false, _) => {}
            // Other samples are left out.
            (true, true) => continue,
            (true, false) => {
                ours.sort_unstable();
                theirs.sort_unstable();
            }
        }
        assert_eq!(ours, theirs, "{case}");
    }
    assert_eq!(empty_epochs, 12);
}
