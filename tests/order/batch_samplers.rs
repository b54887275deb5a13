//! Batch samplers: batches are the lists that they give, on any number of workers and ranks, and in resumed runs.

use std::collections::{BTreeSet, HashMap};
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, Mutex};

use proptest::prelude::*;
use serde_json::Value;

use pinfeed::collate::Arena;
use pinfeed::dataset::{FromFn, Pass};
use pinfeed::device::DeviceBuffers;
use pinfeed::loader::{Builder, LastBatch, LoaderState, OnEmpty, OnError, Sharding, World};
use pinfeed::rng::RngKey;
use pinfeed::sampler::{
    BatchSampler, Batches, FixedBatchSampler, GroupedBatchSampler, RandomSampler, Sampler,
    TokenBatchSampler,
};
use pinfeed::{BoxError, DataLoader, Device, Error, Padded, Ragged, SampleRng, Tensor, from_fn};

type Pair = (Tensor<i64>, Tensor<i64>);
type Get = fn(u64, &mut SampleRng) -> Result<(i64, i64), BoxError>;

const LEN: u64 = 100;

/// Each sample is its index, and a number that it draws.
fn builder(lists: impl BatchSampler) -> Builder<FromFn<Get>, pinfeed::collate::Stack> {
    let get: Get = |index, rng| Ok((index as i64, rng.range(0..1_000_000)));
    DataLoader::builder(from_fn(LEN, get))
        .seed(17)
        .batch_sampler(lists)
}

fn rows((indices, drawn): &Pair) -> Vec<(i64, i64)> {
    let drawn = drawn.as_slice().iter().copied();
    indices.as_slice().iter().copied().zip(drawn).collect()
}

fn indices(batch: pinfeed::Result<Pair>) -> Vec<i64> {
    batch.unwrap().0.to_vec()
}

/// Makes lists by a function of the epoch, and notes for which epochs it was asked.
struct Lists<F> {
    make: F,
    asked: Arc<Mutex<Vec<u64>>>,
}

impl<F: Fn(u64) -> Vec<Vec<u64>> + Send + Sync + 'static> BatchSampler for Lists<F> {
    fn batches(&self, epoch: u64) -> Batches {
        self.asked.lock().unwrap().push(epoch);
        (self.make)(epoch).into()
    }

    fn fingerprint(&self) -> u32 {
        7
    }
}

fn lists<F: Fn(u64) -> Vec<Vec<u64>> + Send + Sync + 'static>(make: F) -> Lists<F> {
    let asked = Arc::default();
    Lists { make, asked }
}

#[test]
fn lists_become_batches() {
    let lists = vec![vec![5, 2, 9], vec![1], vec![5, 99, 0, 3]];
    for workers in [0, 1, 3] {
        let loader = builder(lists.clone()).num_workers(workers).build().unwrap();
        assert_eq!((loader.len(), loader.batch_size()), (3, 4));
        for epoch in loader.epochs(0..2) {
            assert_eq!(epoch.len(), 3);
            let seen: Vec<_> = epoch.map(indices).collect();
            assert_eq!(seen, [&[5, 2, 9][..], &[1], &[5, 99, 0, 3]]);
        }
        let drawn = |epoch| -> Vec<_> {
            let batches = loader.epoch(epoch);
            batches.flat_map(|batch| rows(&batch.unwrap())).collect()
        };
        let (first, second) = (drawn(0), drawn(1));
        assert_ne!(first[0].1, first[4].1, "each position has its own numbers");
        assert_ne!(first, second);
    }
}

/// An epoch has the lists that the batch sampler gives for it: as many, and as large, as they are.
#[test]
fn each_epoch_has_its_own_lists() {
    for workers in [0, 2] {
        let lists = lists(|epoch| {
            (0..epoch + 1)
                .map(|list| vec![list; 3 - epoch as usize])
                .collect()
        });
        let asked = Arc::clone(&lists.asked);
        let loader = builder(lists).num_workers(workers).build().unwrap();
        let mut lens = Vec::new();
        for epoch in loader.epochs(0..3) {
            lens.push((epoch.len(), epoch.map(indices).last().unwrap()));
        }
        assert_eq!(lens, [(1, vec![0; 3]), (2, vec![1; 2]), (3, vec![2; 1])]);
        // Once for each, although several threads want to know.
        assert_eq!(*asked.lock().unwrap(), [0, 1, 2], "{workers} workers");
        assert_eq!((loader.len(), loader.batch_size()), (1, 3), "of epoch 0");
    }
}

#[test]
fn a_boxed_batch_sampler_is_one() {
    let boxed: Box<dyn BatchSampler> = Box::new(vec![vec![3, 4]]);
    let shared = Arc::new(boxed);
    assert_eq!(shared.fingerprint(), vec![vec![3, 4]].fingerprint());
    let loader = builder(shared).build().unwrap();
    assert_eq!(loader.epoch(0).map(indices).collect::<Vec<_>>(), [[3, 4]]);
}

#[test]
fn batches_are_made_of_lists() {
    let expected = Batches::from(vec![vec![1, 2], vec![3]]);
    let mut batches = Batches::with_capacity(3, 2);
    batches.push([1, 2]);
    batches.extend([[3u64]]);
    assert_eq!(batches, expected);
    assert_eq!(
        [vec![1u64, 2], vec![3]].iter().collect::<Batches>(),
        expected
    );
    assert_eq!([1..3u64, 3..4].into_iter().collect::<Batches>(), expected);
    assert!(batches.iter().eq([&[1, 2][..], &[3]]));
    assert_eq!(
        (batches.len(), batches.samples(), batches.is_empty()),
        (2, 3, false)
    );
    assert_eq!((batches.get(0), batches.get(2)), (Some(&[1, 2][..]), None));
    assert_eq!(format!("{batches:?}"), "[[1, 2], [3]]");
    assert_eq!((Batches::new().len(), Batches::default().samples()), (0, 0));
}

#[test]
fn other_lists_have_another_fingerprint() {
    let print = |lists: Vec<Vec<u64>>| lists.fingerprint();
    let lists = [
        vec![vec![1, 2], vec![3]],
        vec![vec![1], vec![2, 3]],
        vec![vec![1, 2, 3]],
        vec![vec![3, 2], vec![1]],
        vec![],
    ];
    let prints: BTreeSet<u32> = lists.into_iter().map(print).collect();
    assert_eq!(prints.len(), 5);
}

fn world(rank: usize, ranks: usize) -> World {
    World::new(rank, ranks).unwrap()
}

/// A batch: its rows, how many of them are real, and the position of its first.
type Seen = (Vec<(i64, i64)>, usize, u64);

/// The batches that each rank sees of epoch 0 from a state on, at most so many; and the state then.
fn seen(
    lists: &[Vec<u64>],
    (ranks, workers, last): (usize, usize, LastBatch),
    on_empty: OnEmpty,
    (state, most): (&LoaderState, usize),
) -> (Vec<Vec<Seen>>, LoaderState) {
    let (mut seen, mut states) = (Vec::new(), Vec::new());
    for rank in 0..ranks {
        let builder = builder(lists.to_vec()).num_workers(workers);
        let builder = builder.last_batch(last).world(world(rank, ranks));
        let loader = builder.on_empty(on_empty).build().unwrap();
        let epoch = loader.resume(0..1, state).unwrap().next();
        let mut batches = Vec::new();
        for batch in epoch.unwrap().with_info().take(most) {
            let (batch, info) = batch.unwrap();
            let found: Vec<i64> = info.indices().iter().map(|index| *index as i64).collect();
            assert_eq!(found, batch.0.as_slice());
            assert_eq!(
                info.mask().iter().filter(|real| **real).count(),
                info.real_rows()
            );
            batches.push((rows(&batch), info.real_rows(), info.position()));
        }
        seen.push(batches);
        states.push(loader.state());
    }
    assert!(states.iter().all(|state| *state == states[0]), "{states:?}");
    (seen, states[0])
}

fn some_lists() -> impl Strategy<Value = Vec<Vec<u64>>> {
    prop::collection::vec(prop::collection::vec(0..LEN, 1..6), 1..25)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    /// Of so many ranks, each gets every so many-th list; runs that stop and are resumed on other ranks make up the epoch. What a row draws
    /// depends on none of it.
    #[test]
    fn ranks_and_resumed_runs_share_the_lists(
        lists in some_lists(), runs in prop::collection::vec((1..5usize, 0..4usize, 0..3usize), 0..3), last_ranks in 1..5usize,
        fills: bool, drops: bool, keeps: bool
    ) {
        // Some lists are empty.
        let lists: Vec<Vec<u64>> = lists.into_iter().map(|list| if keeps && list[0] % 3 == 0 { vec![] } else { list }).collect();
        let on_empty = if keeps { OnEmpty::Keep } else { OnEmpty::Fail };
        let filler = usize::from(!keeps);
        let positions = |lists: &[Vec<u64>]| lists.iter().map(|list| list.len().max(1) as u64).sum::<u64>();
        let kept = if fills { LastBatch::Fill } else { LastBatch::Partial };
        let (whole, end) = seen(&lists, (1, 0, kept), on_empty, (&LoaderState::default(), usize::MAX));
        let whole = &whole[0];
        prop_assert_eq!(whole.len(), lists.len());
        for (list, (rows, real, _)) in lists.iter().zip(whole) {
            prop_assert!(rows.iter().map(|row| row.0 as u64).eq(list.iter().copied()));
            prop_assert_eq!(*real, list.len());
        }
        prop_assert_eq!((end.epoch(), end.position()), (1, 0));
        let last = if drops { LastBatch::Drop } else { kept };
        let runs = runs.into_iter().map(|(ranks, workers, most)| (ranks, workers, most, kept));
        let runs: Vec<_> = runs.chain([(last_ranks, 2, usize::MAX, last)]).collect();
        let (mut first, mut state) = (0, LoaderState::default());
        for (ranks, workers, most, last) in runs {
            if state.epoch() == 1 {
                break;
            }
            let (seen, after) = seen(&lists, (ranks, workers, last), on_empty, (&state.to_string().parse().unwrap(), most));
            let left = lists.len() - first;
            let steps = if last == LastBatch::Drop { left / ranks } else { left.div_ceil(ranks) };
            for (rank, batches) in seen.iter().enumerate() {
                prop_assert_eq!(batches.len(), steps.min(most));
                for (step, batch) in batches.iter().enumerate() {
                    match whole.get(first + step * ranks + rank) {
                        Some(expected) => prop_assert_eq!(batch, expected),
                        None => {
                            prop_assert_eq!((batch.0.len(), batch.1), (filler, 0), "a filler row, or none");
                            prop_assert_eq!(batch.2, positions(&lists) + rank as u64);
                        }
                    }
                }
            }
            first = (first + most.min(steps) * ranks).min(lists.len());
            state = after;
            if most < steps {
                prop_assert_eq!((state.epoch(), state.position()), (0, positions(&lists[..first])));
            } else {
                prop_assert_eq!((state.epoch(), state.position()), (1, 0));
            }
        }
    }

    /// Any order in chunks.
    #[test]
    fn fixed_batches_are_chunks_of_an_order(samples in 0..300u64, batch_size in 1..40usize, seed: u64, epoch: u64) {
        let order = RandomSampler::with_seed(samples, seed);
        let mut indices = vec![0; samples as usize];
        order.indices(epoch, 0, &mut indices);
        let sampler = FixedBatchSampler::new(order, batch_size).unwrap();
        prop_assert!(sampler.batches(epoch).iter().eq(indices.chunks(batch_size)));
        let kept = sampler.with_drop_last(true).batches(epoch);
        prop_assert!(kept.iter().eq(indices.chunks_exact(batch_size)));
    }

    /// Each sample once; batches of one group, and at most one of each that is not full.
    #[test]
    fn groups_do_not_mix(keys in prop::collection::vec(0..7u8, 0..300), batch_size in 1..20usize, seed: u64, shuffles: bool) {
        let sampler = GroupedBatchSampler::new(&keys, batch_size, seed).unwrap().with_shuffle(shuffles);
        let batches = sampler.batches(3);
        let mut all: Vec<u64> = batches.iter().flatten().copied().collect();
        all.sort_unstable();
        prop_assert!(all.into_iter().eq(0..keys.len() as u64));
        let mut short: HashMap<u8, usize> = HashMap::new();
        for batch in batches.iter() {
            let key = keys[batch[0] as usize];
            prop_assert!(batch.iter().all(|index| keys[*index as usize] == key));
            prop_assert!((1..=batch_size).contains(&batch.len()));
            if batch.len() < batch_size {
                *short.entry(key).or_default() += 1;
            }
        }
        prop_assert!(short.values().all(|count| *count == 1));
        prop_assert_eq!(&batches, &sampler.batches(3));
        let kept = sampler.with_drop_last(true).batches(3);
        prop_assert!(kept.iter().all(|batch| batch.len() == batch_size));
        prop_assert_eq!(kept.len(), batches.len() - short.len());
    }

    /// Each sample once, and no batch above the budget, whatever lengths, windows and limits are.
    #[test]
    fn no_batch_exceeds_its_budget(
        lengths in prop::collection::vec(0..200u32, 0..300), spare in 0..2_000u64, window in 1..400usize, sets_window: bool,
        most_rows in 1..50usize, multiple in 0..70usize, seed: u64, shuffles: bool
    ) {
        let padded = |longest: u32| u64::from(longest).max(1).next_multiple_of(multiple.max(1) as u64);
        let longest = lengths.iter().copied().max().unwrap_or(0);
        let budget = padded(longest) + spare;
        let mut sampler = TokenBatchSampler::new(lengths.iter().copied(), budget, seed).unwrap().with_shuffle(shuffles);
        sampler = sampler.with_multiple_of(multiple).unwrap();
        if sets_window {
            sampler = sampler.with_window(window).unwrap().with_max_rows(most_rows).unwrap();
        }
        let batches = sampler.batches(5);
        let mut all: Vec<u64> = batches.iter().flatten().copied().collect();
        all.sort_unstable();
        prop_assert!(all.into_iter().eq(0..lengths.len() as u64));
        for batch in batches.iter() {
            let longest = batch.iter().map(|index| lengths[*index as usize]).max().unwrap();
            prop_assert!(batch.len() as u64 * padded(longest) <= budget, "{batch:?}");
            prop_assert!(!sets_window || batch.len() <= most_rows);
        }
        prop_assert_eq!(&batches, &sampler.batches(5));
    }
}

/// What a batch sampler is for: little padding, full batches, and other ones in each epoch.
#[test]
fn token_batches_are_full_and_alike() {
    // Lengths as of sentences: many short ones, few long ones.
    let mut rng = SampleRng::for_sample(RngKey {
        seed: 1,
        epoch: 2,
        position: 3,
    });
    let lengths: Vec<u32> = (0..20_000)
        .map(|_| (-60.0 * rng.range(0.001..1f64).ln()) as u32 + 3)
        .collect();
    let budget = 8_192;
    let sampler = TokenBatchSampler::new(lengths.iter().copied(), budget, 17).unwrap();
    let batches = sampler.batches(0);
    let padded = |batch: &[u64]| {
        let longest = batch
            .iter()
            .map(|index| lengths[*index as usize])
            .max()
            .unwrap();
        batch.len() as u64 * u64::from(longest)
    };
    let total: u64 = lengths.iter().copied().map(u64::from).sum();
    let with_padding: u64 = batches.iter().map(padded).sum();
    assert!(
        with_padding * 100 < total * 104,
        "{with_padding} for {total}"
    );
    assert!((batches.len() as u64 - 3) * budget < with_padding * 104 / 100);
    // Batches of short and of long samples come in any order.
    let rows: Vec<usize> = batches.iter().map(<[u64]>::len).collect();
    let rises = rows.windows(2).filter(|pair| pair[0] < pair[1]).count();
    assert!(
        (rows.len() * 3 / 10..rows.len() * 7 / 10).contains(&rises),
        "{rises} of {}",
        rows.len()
    );
    // Who shares a batch with sample 0 differs from epoch to epoch.
    let with_first = |epoch| -> BTreeSet<u64> {
        let batches = sampler.batches(epoch);
        let batch = batches.iter().find(|batch| batch.contains(&0));
        batch.unwrap().iter().copied().collect()
    };
    let (one, other) = (with_first(0), with_first(1));
    assert!(one.intersection(&other).count() < one.len() / 2);
}

#[test]
fn groups_are_shuffled_within_and_among() {
    let keys: Vec<bool> = (0..1_000).map(|index| index < 500).collect();
    let sampler = GroupedBatchSampler::new(&keys, 10, 3).unwrap();
    let batches = sampler.batches(0);
    let firsts: Vec<bool> = batches
        .iter()
        .map(|batch| keys[batch[0] as usize])
        .collect();
    let changes = firsts.windows(2).filter(|pair| pair[0] != pair[1]).count();
    assert!((30..70).contains(&changes), "{changes} of 99");
    assert!(batches.iter().all(|batch| !batch.is_sorted()));
    assert_ne!(batches, sampler.batches(1));
    // In order, if it is not shuffled.
    let in_order = GroupedBatchSampler::new(["a", "b", "a", "a", "b"], 2, 0)
        .unwrap()
        .with_shuffle(false);
    assert_eq!(
        in_order.batches(9),
        vec![vec![0, 2], vec![1, 4], vec![3]].into()
    );
}

#[test]
fn what_no_batch_holds_is_refused_when_it_is_made() {
    let error = TokenBatchSampler::new([5, 80, 90], 79, 0)
        .unwrap_err()
        .to_string();
    assert!(
        error.contains("sample 1 has length 80, and a batch may have 79 tokens"),
        "{error}"
    );
    assert!(TokenBatchSampler::new([0], 0, 0).is_err());
    let tokens = TokenBatchSampler::new([0, 0, 0], 2, 0).unwrap();
    assert_eq!(tokens.batches(0).len(), 2, "a length of 0 counts as 1");
    assert!(tokens.clone().with_window(0).is_err() && tokens.with_max_rows(0).is_err());
    let error = TokenBatchSampler::new([5, 70], 75, 0).unwrap();
    let error = error
        .with_multiple_of(8)
        .unwrap()
        .with_multiple_of(64)
        .unwrap_err();
    let said = "sample 1 has length 70 (128 with padding to a multiple of 64), and a batch may have 75 tokens";
    assert!(error.to_string().contains(said), "{error}");
    assert!(FixedBatchSampler::new(RandomSampler::with_seed(3, 0), 0).is_err());
    assert!(GroupedBatchSampler::new([1, 2], 0, 0).is_err());
}

/// Whatever makes other batches makes another fingerprint.
#[test]
fn ready_made_samplers_are_told_apart() {
    let fixed =
        |size, seed| FixedBatchSampler::new(RandomSampler::with_seed(50, seed), size).unwrap();
    let grouped = |keys: [u8; 4], seed| GroupedBatchSampler::new(keys, 2, seed).unwrap();
    let tokens = |lengths: [u32; 4], budget| TokenBatchSampler::new(lengths, budget, 0).unwrap();
    let samplers: Vec<Box<dyn BatchSampler>> = vec![
        Box::new(fixed(5, 0)),
        Box::new(fixed(6, 0)),
        Box::new(fixed(6, 1)),
        Box::new(fixed(6, 1).with_drop_last(true)),
        Box::new(grouped([0, 0, 1, 1], 0)),
        Box::new(grouped([0, 1, 1, 1], 0)),
        Box::new(grouped([0, 1, 1, 1], 1)),
        Box::new(grouped([0, 1, 1, 1], 1).with_shuffle(false)),
        Box::new(grouped([0, 1, 1, 1], 1).with_drop_last(true)),
        Box::new(tokens([3, 4, 5, 6], 10)),
        Box::new(tokens([3, 4, 6, 6], 10)),
        Box::new(tokens([3, 4, 6, 6], 12)),
        Box::new(tokens([3, 4, 6, 6], 12).with_window(2).unwrap()),
        Box::new(tokens([3, 4, 6, 6], 12).with_max_rows(1).unwrap()),
        Box::new(tokens([3, 4, 6, 6], 12).with_shuffle(false)),
        Box::new(tokens([3, 4, 6, 6], 12).with_multiple_of(3).unwrap()),
        Box::new(tokens([4, 4, 8, 8], 12)),
        Box::new(tokens([4, 4, 8, 8], 12).with_multiple_of(4).unwrap()),
    ];
    let prints: BTreeSet<u32> = samplers
        .iter()
        .map(|sampler| sampler.fingerprint())
        .collect();
    assert_eq!(prints.len(), samplers.len());
}

/// The table that `fixtures/batch_samplers.py` made with PyTorch.
#[test]
fn batches_are_pytorchs() {
    let table: Value =
        serde_json::from_str(include_str!("../fixtures/batch_samplers.json")).unwrap();
    let list = |value: &Value| -> Vec<u64> {
        let list = value.as_array().unwrap().iter();
        list.map(|number| number.as_u64().unwrap()).collect()
    };
    let lists =
        |value: &Value| -> Vec<Vec<u64>> { value.as_array().unwrap().iter().map(list).collect() };
    let listed = table["listed"].as_array().unwrap();
    assert_eq!(listed.len(), 50);
    for case in listed {
        let batch_size = case["batch_size"].as_u64().unwrap() as usize;
        let sampler = FixedBatchSampler::new(list(&case["order"]), batch_size).unwrap();
        let sampler = sampler.with_drop_last(case["drop_last"].as_bool().unwrap());
        assert_eq!(sampler.batches(0), lists(&case["batches"]).into(), "{case}");
    }
    let loaded = table["loaded"].as_array().unwrap();
    assert_eq!(loaded.len(), 4);
    for case in loaded {
        let loader = builder(lists(&case["lists"])).build().unwrap();
        let batches: Vec<Vec<i64>> = loader.epoch(0).map(indices).collect();
        let batches: Vec<Vec<u64>> = batches
            .iter()
            .map(|batch| batch.iter().map(|n| *n as u64).collect())
            .collect();
        assert_eq!(batches, lists(&case["batches"]), "{case}");
    }
}

#[test]
fn options_that_a_batch_sampler_sets_are_refused() {
    let refused = |builder: Builder<_, pinfeed::collate::Stack>| {
        let built = builder.build::<Pair>();
        built.unwrap_err().to_string()
    };
    let builder = || builder(vec![vec![0]]);
    for (name, error) in [
        ("batch_size", refused(builder().batch_size(2))),
        ("global_batch_size", refused(builder().global_batch_size(2))),
        ("shuffle", refused(builder().shuffle(true))),
        ("sampler", refused(builder().sampler(vec![1]))),
    ] {
        assert!(error.starts_with("`batch_sampler`"), "{error}");
        assert!(error.contains(&format!("excludes {name}:")), "{error}");
    }
    let strided = refused(builder().sharding(Sharding::Strided { drop_last: false }));
    assert!(
        strided.starts_with("`sharding`") && strided.contains("whole lists"),
        "{strided}"
    );
    let even = DataLoader::builder(vec![1i64]).on_empty(OnEmpty::Keep);
    let error = even.build::<Tensor<i64>>().unwrap_err().to_string();
    assert!(
        error.starts_with("`on_empty`: needs batch_sampler"),
        "{error}"
    );
    assert!(
        builder()
            .drop_last(true)
            .shuffle(false)
            .build::<Pair>()
            .is_ok()
    );
}

/// The batches of an epoch, or their errors.
fn outcomes(loader: &DataLoader<Pair>, epoch: u64) -> Vec<Result<Vec<i64>, String>> {
    let batches = loader.epoch(epoch);
    batches
        .map(|batch| {
            batch
                .map(|batch| batch.0.to_vec())
                .map_err(|error| error.to_string())
        })
        .collect()
}

#[test]
fn an_index_out_of_range_is_its_batchs_error() {
    for workers in [0, 2] {
        let loader = builder(vec![vec![1], vec![3, LEN], vec![4]]).num_workers(workers);
        let outcomes = outcomes(&loader.build().unwrap(), 0);
        assert_eq!((&outcomes[0], &outcomes[2]), (&Ok(vec![1]), &Ok(vec![4])));
        let error = outcomes[1].as_ref().unwrap_err();
        assert!(
            error.contains("index 100, and the data set has 100 samples"),
            "{error}"
        );
    }
}

/// An epoch whose lists cannot be loaded is one batch, which says why; the others are as they were. On every rank.
#[test]
fn an_epoch_without_lists_is_one_error() {
    for (workers, rank) in [(0, 0), (0, 1), (1, 0), (3, 1)] {
        let lists = lists(|epoch| match epoch {
            1 => panic!("no lists for today"),
            epoch => vec![vec![epoch], vec![epoch], vec![epoch]],
        });
        let builder = builder(lists).num_workers(workers).drop_last(true);
        let builder = builder.on_error(OnError::Replace { at_most: 100 });
        let loader = builder.world(world(rank, 2)).build().unwrap();
        let (mut errors, mut good) = (Vec::new(), Vec::new());
        for epoch in loader.epochs(0..3) {
            for batch in epoch {
                match batch {
                    Ok(batch) => good.push(batch.0.to_vec()),
                    Err(error @ Error::BatchSampler { .. }) => errors.push(error.to_string()),
                    Err(error) => panic!("{error}"),
                }
            }
        }
        assert_eq!(good, [[0], [2]]);
        assert_eq!(errors.len(), 1, "{errors:?}");
        assert!(
            errors[0].contains("epoch 1") && errors[0].contains("panicked: no lists for today")
        );
        assert_eq!(loader.state().epoch(), 3);
    }
}

#[test]
fn no_lists_are_an_empty_epoch() {
    for workers in [0, 2] {
        let lists = lists(|epoch| vec![vec![epoch]; epoch as usize % 2]);
        let loader = builder(lists).num_workers(workers).build().unwrap();
        assert!(loader.is_empty());
        assert_eq!(loader.batch_size(), 0);
        let epochs = loader.epochs(0..5);
        let counts: Vec<usize> = epochs.map(|epoch| epoch.map(indices).count()).collect();
        assert_eq!(counts, [0, 1, 0, 1, 0]);
        assert_eq!(loader.state().epoch(), 5);
    }
}

/// Lists are made without any lock: what is loading goes on, and comes, while the next epoch's take their time.
#[test]
fn slow_lists_hold_nothing_up() {
    struct Waits(Mutex<Receiver<()>>);

    impl BatchSampler for Waits {
        fn batches(&self, epoch: u64) -> Batches {
            if epoch == 1 {
                self.0.lock().unwrap().recv().unwrap();
            }
            (0..30).map(|list| [list, epoch]).collect()
        }

        fn fingerprint(&self) -> u32 {
            7
        }
    }

    let (go_on, waits) = channel();
    let loader = builder(Waits(Mutex::new(waits)))
        .num_workers(2)
        .build()
        .unwrap();
    let mut epochs = loader.epochs(0..2);
    let first = epochs.next().unwrap();
    assert_eq!(first.map(indices).count(), 30);
    assert_eq!(loader.state().epoch(), 1);
    // Nor does another epoch, nor leaving this one.
    assert_eq!(loader.epoch(7).map(indices).last().unwrap(), [29, 7]);
    go_on.send(()).unwrap();
    assert_eq!(epochs.next().unwrap().map(indices).last().unwrap(), [29, 1]);
}

/// Epochs that are dropped midway, left out or taken at once do not disturb the others.
#[test]
fn epochs_may_be_left_and_taken_in_any_way() {
    for workers in [0, 1, 3] {
        let lists = lists(|epoch| (0..20).map(|list| vec![epoch, list]).collect());
        let loader = builder(lists).num_workers(workers).build().unwrap();
        let mut epochs = loader.epochs(0..6);
        let mut first = epochs.next().unwrap();
        assert_eq!(first.next().map(indices).unwrap(), [0, 0]);
        drop(first);
        let mut second = epochs.next().unwrap();
        assert_eq!(second.next().map(indices).unwrap(), [1, 0]);
        let third = epochs.next().unwrap(); // while the second has batches to come
        assert!(second.map(indices).eq((1..20).map(|list| [1, list])));
        assert!(third.map(indices).eq((0..20).map(|list| [2, list])));
        for (epoch, number) in epochs.zip(3..) {
            assert!(epoch.map(indices).eq((0..20).map(|list| [number, list])));
        }
    }
}

#[test]
fn another_batch_sampler_is_refused() {
    let stopped = |loader: &DataLoader<Pair>| {
        let mut epoch = loader.epoch(0);
        epoch.next().unwrap().unwrap();
        loader.state()
    };
    let refused = |loader: &DataLoader<Pair>, state: &LoaderState| {
        let resumed = loader.resume(0..1, state);
        resumed.unwrap_err().to_string()
    };
    let ours = builder(vec![vec![1, 2], vec![3, 4]]).build().unwrap();
    let state = stopped(&ours);
    assert!(state.to_string().contains(" batch=0 ranks=1 "), "{state}");
    assert_eq!((state.epoch(), state.position()), (0, 2));
    let others = builder(vec![vec![1], vec![2, 3, 4]]).build().unwrap();
    assert!(refused(&others, &state).contains("gives other batches"));
    let even = DataLoader::builder(from_fn(LEN, |index, rng: &mut SampleRng| {
        Ok((index as i64, rng.range(0..9i64)))
    }));
    let even = even.seed(17).batch_size(2).build().unwrap();
    let error = refused(&even, &state);
    assert!(
        error.contains("its batches were those of a batch sampler, the loader's are of one size"),
        "{error}"
    );
    let error = refused(&ours, &stopped(&even));
    assert!(
        error.contains("its batches were of one size, the loader's are those of a batch sampler"),
        "{error}"
    );
    // Its fingerprint says that it is the same, and its lists do not.
    let changed = |sizes: [usize; 2]| {
        builder(lists(move |_| sizes.map(|size| vec![1; size]).to_vec()))
            .build()
            .unwrap()
    };
    let error = refused(&changed([3, 1]), &stopped(&changed([2, 2])));
    assert!(
        error.contains("position 2 of epoch 0, where none of the batch sampler's lists begins"),
        "{error}"
    );
    let panics = builder(lists(|_| panic!("not again"))).build().unwrap();
    assert!(refused(&panics, &stopped(&changed([2, 2]))).contains("it panicked: not again"));
}

/// Remembers what it is told of, and what it is asked for.
#[derive(Default)]
struct Told {
    told: Mutex<Vec<u64>>,
    got: Mutex<Vec<u64>>,
}

struct Telling(Arc<Told>);

impl pinfeed::Dataset for Telling {
    type Sample = i64;

    fn len(&self) -> u64 {
        LEN
    }

    fn get(&self, index: u64, _: &mut SampleRng) -> Result<i64, BoxError> {
        self.0.got.lock().unwrap().push(index);
        Ok(index as i64)
    }

    fn lookahead(&self) -> usize {
        5
    }

    fn will_need(&self, indices: &[u64], _: Pass) {
        self.0.told.lock().unwrap().extend(indices);
    }
}

/// A rank is told of the samples of its own lists, and not of those that other ranks load.
#[test]
fn ranks_are_told_of_their_own_lists() {
    let lists: Vec<Vec<u64>> = (0..25)
        .map(|list| (list * 4..list * 4 + 1 + list % 4).collect())
        .collect();
    for (workers, ranks) in [(0, 1), (2, 1), (0, 2), (2, 2), (3, 3)] {
        for rank in 0..ranks {
            let told = Arc::<Told>::default();
            let loader = DataLoader::builder(Telling(Arc::clone(&told)))
                .batch_sampler(lists.clone())
                .num_workers(workers)
                .drop_last(true)
                .world(world(rank, ranks))
                .build()
                .unwrap();
            loader.epoch(0).for_each(|batch| drop(batch.unwrap()));
            drop(loader);
            let own = lists.iter().skip(rank).step_by(ranks).take(25 / ranks);
            let own: Vec<u64> = own.flatten().copied().collect();
            let mut got = told.got.lock().unwrap().clone();
            got.sort_unstable();
            assert_eq!(got, own);
            let mut told = told.told.lock().unwrap().clone();
            told.sort_unstable();
            assert_eq!(told, own, "rank {rank} of {ranks}, {workers} workers");
        }
    }
}

/// What takes a bad sample's place goes with the rest of its batch: it is one of the same list, unless the list has no other.
#[test]
fn a_bad_sample_is_replaced_from_its_own_list() {
    let is_bad = |index: u64| index == 13 || index == 40;
    let lists: Vec<Vec<u64>> = vec![(10..20).collect(), vec![40], (50..54).collect()];
    for workers in [0, 2] {
        let samples = from_fn(LEN, move |index, _: &mut SampleRng| match is_bad(index) {
            true => Err("it is broken".into()),
            false => Ok(index as i64),
        });
        let loader = DataLoader::builder(samples)
            .batch_sampler(lists.clone())
            .on_error(OnError::Replace { at_most: 100 })
            .num_workers(workers)
            .build()
            .unwrap();
        for epoch in 0..20 {
            let seen: Vec<Vec<i64>> = loader
                .epoch(epoch)
                .with_info()
                .map(|batch| {
                    let (batch, info) = batch.unwrap();
                    let indices = info.indices();
                    assert!(
                        batch
                            .as_slice()
                            .iter()
                            .map(|index| *index as u64)
                            .eq(indices)
                    );
                    batch.to_vec()
                })
                .collect();
            assert!((10..20).contains(&seen[0][3]) && seen[0][3] != 13);
            assert_eq!(seen[0][4..], [14, 15, 16, 17, 18, 19]);
            let any = lists.concat();
            assert!(any.contains(&(seen[1][0] as u64)) && seen[1] != [40]);
            assert_eq!(seen[2], [50, 51, 52, 53]);
            assert!((2..6).contains(&loader.stats().bad.replaced));
        }
    }
}

#[test]
fn a_bad_sample_is_left_out_of_its_list() {
    let lists = vec![vec![1, 13, 2], vec![3], vec![4, 5]];
    for workers in [0, 2] {
        let samples = from_fn(LEN, |index, _: &mut SampleRng| match index {
            13 => Err("it is broken".into()),
            index => Ok(index as i64),
        });
        let loader = DataLoader::builder(samples)
            .batch_sampler(lists.clone())
            .on_error(OnError::Skip { at_most: 5 })
            .num_workers(workers)
            .build()
            .unwrap();
        let seen: Vec<_> = loader
            .epoch(0)
            .with_info()
            .map(|batch| {
                let (batch, info) = batch.unwrap();
                (batch.to_vec(), info.position(), info.real_rows())
            })
            .collect();
        assert_eq!(
            seen,
            [(vec![1, 2], 0, 2), (vec![3], 3, 1), (vec![4, 5], 4, 2)]
        );
    }
}

/// Lists of which some are empty: the first, some in a row, and the last.
fn gaps() -> Vec<Vec<u64>> {
    let lists: [&[u64]; 9] = [
        &[],
        &[4, 5, 6],
        &[],
        &[],
        &[9],
        &[1, 2],
        &[],
        &[7, 8, 3, 0],
        &[],
    ];
    lists.map(<[u64]>::to_vec).to_vec()
}

/// By default, an empty list is an error in its batch's place, and nothing else is lost; or it is left out.
#[test]
fn an_empty_list_costs_its_own_batch() {
    for workers in [0, 1, 3] {
        for on_error in [
            OnError::Fail,
            OnError::Replace { at_most: 9 },
            OnError::Skip { at_most: 9 },
        ] {
            let whole = || builder(gaps()).num_workers(workers).on_error(on_error);
            let loader = whole().build().unwrap();
            assert_eq!((loader.len(), loader.batch_size()), (9, 4));
            let outcomes = outcomes(&loader, 0);
            for (outcome, (list, number)) in outcomes.iter().zip(gaps().iter().zip(0..)) {
                match outcome {
                    Ok(batch) => assert!(
                        batch
                            .iter()
                            .map(|index| *index as u64)
                            .eq(list.iter().copied())
                    ),
                    Err(error) => {
                        assert!(list.is_empty(), "{error}");
                        assert!(
                            error.contains(&format!(
                                "list {number} (counted from 0) is empty: say by `on_empty`"
                            )),
                            "{error}"
                        );
                    }
                }
            }
            assert_eq!(
                outcomes.iter().filter(|outcome| outcome.is_err()).count(),
                5
            );
            let stats = loader.stats();
            assert_eq!((stats.batches, stats.samples), (4, 10));
            assert_eq!((stats.bad.replaced, stats.bad.skipped), (0, 0));

            let loader = whole().on_empty(OnEmpty::Skip).build().unwrap();
            assert_eq!(loader.len(), 4);
            let batches: Vec<Vec<i64>> = loader.epoch(0).map(indices).collect();
            assert_eq!(batches, [&[4, 5, 6][..], &[9], &[1, 2], &[7, 8, 3, 0]]);
        }
    }
}

/// An empty batch has its place and its shape, however it is loaded and wherever it goes.
#[test]
fn empty_batches_are_kept_in_their_places() {
    type Loader = DataLoader<(Tensor<f32>, Tensor<i64>, Vec<String>)>;
    let build = |workers: usize, device: Option<&Device>, how: usize| -> Loader {
        let samples = from_fn(LEN, |index, _| {
            let x = Tensor::from_vec(vec![index as f32; 6], &[2, 3])?;
            Ok((x, index as i64, format!("sample {index}")))
        });
        let mut builder = DataLoader::builder(samples)
            .batch_sampler(gaps())
            .on_empty(OnEmpty::Keep)
            .num_workers(workers);
        if let Some(device) = device {
            builder = builder.pin_memory(device).pin_by_copy(how == 1);
        }
        if how == 2 && workers > 0 {
            builder = builder.max_bytes_in_flight(100);
        }
        builder.build().unwrap()
    };
    let lists = gaps();
    let device = Device::cpu();
    for workers in [0, 1, 3] {
        for (pins, how) in [
            (None, 0),
            (None, 2),
            (Some(&device), 0),
            (Some(&device), 1),
            (Some(&device), 2),
        ] {
            let loader = build(workers, pins, how);
            for epoch in loader.epochs(0..3) {
                assert_eq!(epoch.len(), 9);
                for (batch, list) in epoch.with_info().zip(&lists) {
                    let ((x, y, names), info) = batch.unwrap();
                    assert_eq!(x.shape()[..], [list.len(), 2, 3]);
                    assert!(
                        y.as_slice()
                            .iter()
                            .map(|y| *y as u64)
                            .eq(list.iter().copied())
                    );
                    assert_eq!(
                        (names.len(), y.shape()[..].to_vec()),
                        (list.len(), vec![list.len()])
                    );
                    assert_eq!((info.rows(), info.real_rows()), (list.len(), list.len()));
                    assert_eq!(info.indices(), *list);
                    assert!(info.mask().len() == list.len());
                }
            }
            let stats = loader.stats();
            assert_eq!(
                (stats.batches, stats.samples, stats.unpinned.count),
                (9, 10, 0),
                "{stats}"
            );
            // On a device, of the loader's own and another.
            for target in [&device, &Device::cpu()] {
                for (batch, list) in loader.epoch(3).prefetch_to_device(target, 2).zip(&lists) {
                    let (x, y, names) = batch.unwrap();
                    assert_eq!(
                        (x.shape()[..].to_vec(), names.len()),
                        (vec![list.len(), 2, 3], list.len())
                    );
                    let y = y.to_host(false).unwrap().wait().unwrap();
                    assert!(
                        y.as_slice()
                            .iter()
                            .map(|y| *y as u64)
                            .eq(list.iter().copied())
                    );
                }
            }
        }
        // Buffers at fixed addresses are as large as the largest list needs, although the first is empty.
        let samples = from_fn(LEN, |index, _| Ok([index as f32; 6]));
        let loader = DataLoader::builder(samples)
            .batch_sampler(gaps())
            .on_empty(OnEmpty::Keep);
        let loader = loader
            .num_workers(workers)
            .pin_memory(&device)
            .build()
            .unwrap();
        let buffers = DeviceBuffers::new(&device, 2).unwrap();
        for (batch, list) in loader.epoch(0).prefetch_to_device(&buffers, 1).zip(&lists) {
            assert_eq!(batch.unwrap().shape()[..], [list.len(), 6]);
        }
    }
}

/// Several devices, and batches in any order, share them as any.
#[test]
fn empty_batches_are_shared_and_come_in_any_order() {
    for workers in [0, 3] {
        let devices = [Device::cpu(), Device::cpu()];
        let builder = || builder(gaps()).on_empty(OnEmpty::Keep).num_workers(workers);
        let loader = builder().pin_memory(&devices).build().unwrap();
        let rows: Vec<Vec<usize>> = std::thread::scope(|scope| {
            let epochs = loader.epoch(0).split(&devices, 1).into_iter();
            let looked: Vec<_> = epochs
                .map(|epoch| scope.spawn(|| epoch.map(|batch| batch.unwrap().0.len()).collect()))
                .collect();
            looked.into_iter().map(|one| one.join().unwrap()).collect()
        });
        // (The second has no list in the last step, and an empty batch.)
        assert_eq!(rows, [[0, 0, 1, 0, 0], [3, 0, 2, 4, 0]]);

        let loader = builder().in_order(false).build().unwrap();
        let seen = loader.epoch(0).with_info().map(|batch| {
            let (batch, info) = batch.unwrap();
            assert_eq!(batch.0.len(), info.rows());
            (info.batch(), info.indices())
        });
        let mut seen: Vec<(u64, Vec<u64>)> = seen.collect();
        seen.sort_unstable();
        assert!(seen.into_iter().map(|(_, indices)| indices).eq(gaps()));
    }
}

/// Whatever samples are made of, an empty batch of them has no rows, of the shape that others have.
#[test]
fn empty_batches_of_all_kinds() {
    let lists = || vec![vec![], vec![3, 2, 1], vec![]];
    for workers in [0, 2] {
        let texts = from_fn(4, |index, _| {
            let tokens = vec![index as i64; index as usize];
            let boxes = vec![[index as f32; 4]; index as usize];
            let ragged = Ragged::from(boxes);
            let maybe = (index > 1).then_some([index as i64; 2]);
            Ok((
                Padded::from(tokens).with_multiple_of(8),
                ragged,
                maybe,
                vec![0u8; 5],
            ))
        });
        let loader = DataLoader::builder(texts)
            .batch_sampler(lists())
            .on_empty(OnEmpty::Keep);
        let loader = loader.num_workers(workers).build().unwrap();
        let batches: Vec<_> = loader.epoch(0).map(Result::unwrap).collect();
        for (padded, ragged, (maybe, is_there), plain) in [&batches[0], &batches[2]] {
            assert_eq!((padded.len(), &padded.values.shape()[..]), (0, &[0, 0][..]));
            assert_eq!((ragged.len(), &ragged.values.shape()[..]), (0, &[0, 4][..]));
            assert_eq!(ragged.offsets.as_slice(), [0]);
            assert_eq!((&maybe.shape()[..], is_there.len()), (&[0, 2][..], 0));
            assert_eq!(plain.shape()[..], [0, 5]);
        }
        assert_eq!(batches[1].0.values.shape()[..], [3, 8]);

        // A function is called with no samples; no sample is loaded for it.
        let numbers = from_fn(4, |index, _| Ok(index as i64));
        let loader = DataLoader::builder(numbers)
            .batch_sampler(vec![vec![], vec![], vec![2, 2]])
            .on_empty(OnEmpty::Keep)
            .num_workers(workers)
            .collate_fn(|numbers: Vec<i64>, arena: &mut Arena| {
                let mut sum = arena.zeros(&[1])?;
                sum.as_mut_slice().ok_or("it is new")?[0] = numbers.iter().sum::<i64>();
                Ok(sum)
            })
            .build()
            .unwrap();
        let sums: Vec<i64> = loader
            .epoch(0)
            .map(|sum| sum.unwrap().as_slice()[0])
            .collect();
        assert_eq!(sums, [0, 0, 4]);
    }
}

/// What rows would be like is told by the first sample of the lists, or another if that one is bad and may be replaced. It is not
/// announced, and got once for each empty batch.
#[test]
fn a_sample_tells_what_empty_batches_are_like() {
    for (workers, at_once) in [(0, 1), (2, 1), (0, 5), (3, 5)] {
        struct Kept(Arc<Told>, usize);
        impl pinfeed::Dataset for Kept {
            type Sample = [i64; 2];

            fn len(&self) -> u64 {
                LEN
            }

            fn get(&self, index: u64, _: &mut SampleRng) -> Result<[i64; 2], BoxError> {
                self.0.got.lock().unwrap().push(index);
                if index == 4 {
                    return Err("it is broken".into());
                }
                Ok([index as i64; 2])
            }

            fn at_once(&self) -> usize {
                self.1
            }

            fn lookahead(&self) -> usize {
                3
            }

            fn will_need(&self, indices: &[u64], _: Pass) {
                self.0.told.lock().unwrap().extend(indices);
            }
        }
        let policies = [
            (OnError::Fail, 0),
            (OnError::Skip { at_most: 99 }, 6),
            (OnError::Replace { at_most: 99 }, 6),
        ];
        for (on_error, replaced_or_left_out) in policies {
            let told = Arc::<Told>::default();
            let loader: DataLoader<Tensor<i64>> =
                DataLoader::builder(Kept(Arc::clone(&told), at_once))
                    .batch_sampler(gaps())
                    .on_empty(OnEmpty::Keep)
                    .on_error(on_error)
                    .num_workers(workers)
                    .build()
                    .unwrap();
            let batches: Vec<_> = loader.epoch(0).with_info().collect();
            for (batch, list) in batches.iter().zip(gaps()) {
                match batch {
                    Ok((batch, info)) => {
                        let left_out = usize::from(
                            list.contains(&4) && matches!(on_error, OnError::Skip { .. }),
                        );
                        assert_eq!(batch.shape()[..], [list.len() - left_out, 2]);
                        assert_eq!(info.indices().len(), batch.shape()[0]);
                    }
                    Err(Error::Sample(sample, _)) => {
                        assert_eq!((on_error, sample.index), (OnError::Fail, 4));
                    }
                    Err(error) => panic!("{error}"),
                }
            }
            let failed = batches.iter().filter(|batch| batch.is_err()).count();
            assert_eq!(failed, if on_error == OnError::Fail { 6 } else { 0 });
            let stats = loader.stats();
            // (Each draws another at random, which may be bad as well.)
            assert!(
                stats.bad.replaced + stats.bad.skipped >= replaced_or_left_out,
                "{stats}"
            );
            let mut told: Vec<u64> = told.told.lock().unwrap().clone();
            told.sort_unstable();
            assert_eq!(told, [0, 1, 2, 3, 4, 5, 6, 7, 8, 9]);
        }
    }
}

/// A state belongs to what was made of empty lists.
#[test]
fn a_state_tells_what_became_of_empty_lists() {
    let policies = [OnEmpty::Fail, OnEmpty::Keep, OnEmpty::Skip];
    let build = |on_empty| builder(gaps()).on_empty(on_empty).build().unwrap();
    let state_of = |on_empty| {
        let loader = build(on_empty);
        let _ = loader.epoch(0).take(2).count();
        loader.state()
    };
    for on_empty in policies {
        for other in policies {
            let resumed = build(other).resume(0..1, &state_of(on_empty)).is_ok();
            assert_eq!(resumed, on_empty == other, "{on_empty:?}, {other:?}");
        }
    }
}
