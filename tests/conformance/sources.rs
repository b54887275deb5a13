//! Whatever samples come from, and however the program takes them: every byte arrives, and a run that is stopped twice goes on.

use std::collections::HashSet;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use pinfeed::collate::Stack;
use pinfeed::dataset::{FromFn, Staged, StagedDataset};
use pinfeed::error::Temporary;
use pinfeed::iterable::{self, IterableDataset};
use pinfeed::loader::{Builder, IterableState, LoaderState, OnError, Recording, TryNext, Workers};
use pinfeed::sampler::{MixtureSampler, Sampler, SubsetRandomSampler, WeightedRandomSampler};
use pinfeed::{
    Batch, BoxError, DataLoader, Dataset, Device, DeviceTensor, SampleRng, Tensor, from_fn,
};

use crate::Test;
use crate::backend::Backend;

pub const TESTS: &[Test] = &[
    ("streams_go_on", streams_go_on),
    (
        "what_is_fetched_ahead_goes_on",
        what_is_fetched_ahead_goes_on,
    ),
    ("what_comes_at_once_goes_on", what_comes_at_once_goes_on),
    ("what_is_cached_goes_on", what_is_cached_goes_on),
    ("drawn_samples_go_on", drawn_samples_go_on),
    ("bad_samples_are_replaced", bad_samples_are_replaced),
    ("bad_samples_are_left_out", bad_samples_are_left_out),
    ("who_does_not_wait_goes_on", who_does_not_wait_goes_on),
    ("who_records_goes_on", who_records_goes_on),
    (
        "one_batch_comes_again_and_again",
        one_batch_comes_again_and_again,
    ),
];

const LEN: u64 = 40;
const BATCH: usize = 6;
const ROW: usize = 2_000;

/// What a row's bytes follow from: a sample, and what it drew.
type Row = (u64, u64);

fn bytes((index, drawn): Row) -> Vec<u8> {
    let mut bytes = [index.to_le_bytes(), drawn.to_le_bytes()].concat();
    let rest = 0..ROW as u64 - 16;
    bytes.extend(rest.map(|place| (index * 29 + drawn * 7 + place * 3) as u8));
    bytes
}

fn sample(index: u64, rng: &mut SampleRng) -> Tensor<u8> {
    Tensor::from(bytes((index, rng.range(0..1_000_000))))
}

/// The rows of a batch, by all of their bytes.
fn rows(batch: &Tensor<u8>) -> Vec<Row> {
    let rows = batch.as_slice().chunks_exact(ROW);
    rows.map(|found| {
        let number = |at: usize| u64::from_le_bytes(found[at..at + 8].try_into().unwrap());
        let row = (number(0), number(8));
        assert!(found == bytes(row), "{row:?} is torn");
        row
    })
    .collect()
}

fn rows_there(batch: &DeviceTensor<u8>) -> Vec<Row> {
    rows(&batch.to_host(true).unwrap().wait().unwrap())
}

/// The batches of a run.
type Batches = Vec<Vec<Row>>;

/// The epochs of each run.
const EPOCHS: Range<u64> = 0..2;

/// What comes on the host, without workers and page-locked memory.
fn expected<D: Dataset<Sample = Tensor<u8>>>(builder: Builder<D, Stack>) -> Batches {
    let loader = builder.batch_size(BATCH).build().unwrap();
    let batches = EPOCHS.flat_map(|epoch| loader.epoch(epoch));
    batches.map(|batch| rows(&batch.unwrap())).collect()
}

/// How the program takes batches.
#[derive(Clone, Copy, PartialEq)]
enum Taking {
    Waits,
    Polls,
    Records,
}

/// Runs that stop after so many batches, each on workers of its own, and a last one to the end. The first has to find out how large
/// samples are, so in the last one they may travel in parts.
const RUNS: [(Workers, usize); 3] = [
    (Workers::Fixed(3), 2),
    (Workers::Fixed(0), 3),
    (Workers::Auto, usize::MAX),
];

/// The batches of these runs, each of which goes on from the state that the one before left.
fn interrupted<S: Default>(mut run: impl FnMut(Workers, usize, &S) -> (Batches, S)) -> Batches {
    let (mut all, mut state) = (Vec::new(), S::default());
    for (workers, most) in RUNS {
        let (batches, left) = run(workers, most, &state);
        assert!(most == usize::MAX || batches.len() == most);
        all.extend(batches);
        state = left;
    }
    all
}

/// The batches that arrive at the device.
fn arrives<D: Dataset<Sample = Tensor<u8>>>(
    backend: &Backend,
    taking: Taking,
    builder: impl Fn() -> Builder<D, Stack>,
) -> Batches {
    let device = &backend.device;
    interrupted(|workers, most, state: &LoaderState| {
        let builder = builder().batch_size(BATCH).num_workers(workers);
        let loader = builder.pin_memory(device).build().unwrap();
        let recording = (taking == Taking::Records).then(|| loader.record());
        let mut seen = Vec::new();
        for mut epoch in loader
            .resume(EPOCHS, state)
            .unwrap()
            .prefetch_to_device(device, 2)
        {
            while seen.len() < most {
                let next = match taking {
                    Taking::Polls => loop {
                        match epoch.try_next() {
                            TryNext::NotYet => {}
                            next => break next.batch(),
                        }
                        match epoch.next_timeout(Duration::from_millis(1)) {
                            TryNext::NotYet => {}
                            next => break next.batch(),
                        }
                    },
                    _ => epoch.next(),
                };
                let Some(batch) = next else { break };
                seen.push(rows_there(&batch.unwrap()));
            }
            if seen.len() == most {
                break;
            }
        }
        if let Some(recording) = recording {
            check_recording(recording);
        }
        (seen, loader.state())
    })
}

fn check_recording(recording: Recording) {
    let timeline = recording.finish();
    assert!(timeline.len() > 5 && timeline.dropped() == 0);
    assert!(timeline.to_html().starts_with("<!DOCTYPE html>"));
}

type Plain = FromFn<fn(u64, &mut SampleRng) -> Result<Tensor<u8>, BoxError>>;

fn plain() -> Plain {
    from_fn(LEN, |index, rng| Ok(sample(index, rng)))
}

fn shuffled() -> Builder<Plain, Stack> {
    DataLoader::builder(plain()).shuffle(true).seed(17)
}

/// Two sources, mixed and shuffled. The state of one of them is skipped to, since its iterator cannot seek.
fn streams_go_on(backend: &Backend) {
    let source = || {
        let numbers = |from: u64| {
            iterable::from_fn(move |_, _| Ok((from..from + 60).map(Ok)))
                .map(|index, rng: &mut SampleRng| Ok(sample(index, rng)))
        };
        let mixed = iterable::mix([(numbers(0), 0.7), (numbers(100), 0.3)]);
        mixed.unwrap().shuffle(7).take(LEN)
    };
    let builder = || DataLoader::iterable(source()).batch_size(BATCH).seed(17);
    let on_host = builder().build::<Tensor<u8>>().unwrap();
    let expected = EPOCHS.flat_map(|epoch| on_host.epoch(epoch));
    let expected: Batches = expected.map(|batch| rows(&batch.unwrap())).collect();
    assert_eq!(expected.len(), 14);

    let device = &backend.device;
    let found = interrupted(|workers, most, state: &IterableState| {
        let builder = builder().num_workers(workers).pin_memory(device);
        let loader = builder.build::<Tensor<u8>>().unwrap();
        let mut seen = Vec::new();
        for mut epoch in loader
            .resume(EPOCHS, state)
            .unwrap()
            .prefetch_to_device(device, 2)
        {
            while seen.len() < most {
                let Some(batch) = epoch.next() else { break };
                seen.push(rows_there(&batch.unwrap()));
            }
            if seen.len() == most {
                break;
            }
        }
        (seen, loader.state())
    });
    assert_eq!(found, expected);
}

/// A store that refuses some requests the first time.
#[derive(Default)]
struct Store {
    refused: Mutex<HashSet<u64>>,
}

impl Store {
    fn ask(&self, index: u64) -> Result<u64, BoxError> {
        let mut refused = self.refused.lock().unwrap_or_else(PoisonError::into_inner);
        match index % 5 == 2 && refused.insert(index) {
            true => Err(Temporary::new("503 Service Unavailable").into()),
            false => Ok(index),
        }
    }
}

impl StagedDataset for Store {
    type Raw = u64;
    type Sample = Tensor<u8>;

    fn len(&self) -> u64 {
        LEN
    }

    fn fetch(&self, index: u64) -> Result<u64, BoxError> {
        self.ask(index)
    }

    fn decode(&self, _: u64, raw: u64, rng: &mut SampleRng) -> Result<Tensor<u8>, BoxError> {
        Ok(sample(raw, rng))
    }

    fn raw_bytes(&self, _: &u64) -> usize {
        8
    }
}

fn what_is_fetched_ahead_goes_on(backend: &Backend) {
    let found = arrives(backend, Taking::Waits, || {
        DataLoader::builder(Staged::new(Store::default()).with_in_flight(4))
            .shuffle(true)
            .seed(17)
            .retry(3, Duration::from_micros(100))
    });
    assert_eq!(found, expected(shuffled()));
}

/// Samples that come seven at a time.
struct Table(Store);

impl Dataset for Table {
    type Sample = Tensor<u8>;

    fn len(&self) -> u64 {
        LEN
    }

    fn get(&self, index: u64, rng: &mut SampleRng) -> Result<Tensor<u8>, BoxError> {
        Ok(sample(self.0.ask(index)?, rng))
    }

    fn at_once(&self) -> usize {
        7
    }
}

fn what_comes_at_once_goes_on(backend: &Backend) {
    let found = arrives(backend, Taking::Waits, || {
        DataLoader::builder(Table(Store::default()))
            .shuffle(true)
            .seed(17)
            .retry(3, Duration::from_micros(100))
    });
    assert_eq!(found, expected(shuffled()));
}

/// One cache for all runs: samples are loaded once, and augmented anew in each epoch.
fn what_is_cached_goes_on(backend: &Backend) {
    let loads = Arc::new(AtomicU64::new(0));
    let counter = Arc::clone(&loads);
    let cached = from_fn(LEN, move |index, _| {
        counter.fetch_add(1, Ordering::Relaxed);
        Ok(vec![index; 10])
    });
    let cached = Arc::new(cached.cached(1 << 20));
    let found = arrives(backend, Taking::Waits, || {
        let samples = Arc::clone(&cached).map(|numbers, rng| Ok(sample(numbers[9], rng)));
        DataLoader::builder(samples).shuffle(true).seed(17)
    });
    assert_eq!(found, expected(shuffled()));
    // (Of two epochs that are loaded at once, both may miss a sample.)
    let loads = loads.load(Ordering::Relaxed);
    assert!((LEN..2 * LEN).contains(&loads), "{loads} loads");
}

fn drawn_samples_go_on(backend: &Backend) {
    let weights: Vec<f64> = (0..LEN).map(|index| (index % 4) as f64).collect();
    let weighted = WeightedRandomSampler::new(&weights, 25, 7).unwrap();
    let samplers: [Arc<dyn Sampler>; 4] = [
        Arc::new(weighted.clone()),
        Arc::new(weighted.without_replacement().unwrap()),
        Arc::new(
            MixtureSampler::new(&[30, 10], &[0.5, 0.5], 7)
                .unwrap()
                .with_num_samples(33),
        ),
        Arc::new(SubsetRandomSampler::new(10..37, 7).unwrap()),
    ];
    for sampler in samplers {
        let drawn = || DataLoader::builder(plain()).sampler(Arc::clone(&sampler));
        let found = arrives(backend, Taking::Waits, drawn);
        assert_eq!(found, expected(drawn()));
        let order = EPOCHS.flat_map(|epoch| {
            let sampler = &sampler;
            (0..sampler.len()).map(move |position| sampler.index(epoch, position))
        });
        assert!(found.concat().iter().map(|row| row.0).eq(order));
    }
}

fn is_bad(index: u64) -> bool {
    index % 11 == 3
}

fn with_bad_samples(on_error: OnError) -> Builder<impl Dataset<Sample = Tensor<u8>>, Stack> {
    let samples = from_fn(LEN, |index, rng: &mut SampleRng| match is_bad(index) {
        true => Err(BoxError::from("it is bad")),
        false => Ok(sample(index, rng)),
    });
    DataLoader::builder(samples)
        .shuffle(true)
        .seed(17)
        .on_error(on_error)
}

fn bad_samples_are_replaced(backend: &Backend) {
    let builder = || with_bad_samples(OnError::Replace { at_most: 100 });
    let found = arrives(backend, Taking::Waits, builder);
    assert_eq!(found, expected(builder()));
    assert_eq!(found.concat().len(), 2 * LEN as usize);
    assert!(!found.concat().iter().any(|row| is_bad(row.0)));
}

fn bad_samples_are_left_out(backend: &Backend) {
    let builder = || with_bad_samples(OnError::Skip { at_most: 100 });
    let found = arrives(backend, Taking::Waits, builder);
    assert_eq!(found, expected(builder()));
    // What is left stands where it would stand, and has drawn what it would draw.
    let good = expected(shuffled()).concat();
    let good = good.into_iter().filter(|row| !is_bad(row.0));
    assert!(found.concat().into_iter().eq(good));
}

fn who_does_not_wait_goes_on(backend: &Backend) {
    let found = arrives(backend, Taking::Polls, shuffled);
    assert_eq!(found, expected(shuffled()));
}

fn who_records_goes_on(backend: &Backend) {
    backend.device.cut_batches_at(8_000, 2_000);
    let found = arrives(backend, Taking::Records, shuffled);
    assert_eq!(found, expected(shuffled()));
}

/// What the program writes into a batch is in no other.
fn one_batch_comes_again_and_again(backend: &Backend) {
    let device: &Device = &backend.device;
    let stream = device.stream().unwrap();
    let expected = expected(shuffled());
    for workers in [0, 2] {
        let builder = shuffled().batch_size(BATCH).num_workers(workers);
        let loader = builder.pin_memory(device).build().unwrap();
        let mut steps = 0;
        for batch in loader.replay(0).unwrap().prefetch_to_device(device, 2) {
            let mut batch: DeviceTensor<u8> = batch.unwrap();
            assert_eq!(rows_there(&batch), expected[0]);
            let written = batch.on_mut(&stream).unwrap();
            let late = Duration::from_millis(1);
            backend.fill_slowly(&stream, written.address(), ROW * BATCH / 4, 0xdead, late);
            steps += 1;
        }
        assert_eq!(steps, 7);
        let first = loader.epoch(0).next().unwrap().unwrap();
        assert_eq!(rows(&first), expected[0]);
        let first = first.to_device(device, true).unwrap();
        assert_eq!(rows_there(&first), expected[0]);
    }
}
