//! Samples that come several at a time are the samples that come one by one.

use std::collections::HashSet;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::time::Duration;

use pinfeed::collate::Stack;
use pinfeed::dataset::{ConcatDataset, Subset};
use pinfeed::error::Temporary;
use pinfeed::loader::{Builder, OnError, World};
use pinfeed::sampler::{RandomSampler, Sampler};
use pinfeed::{BoxError, DataLoader, Dataset, Device, Error, SampleRng, Tensor};

/// Numbers, and what each draws; it remembers how many it was asked for at once.
struct Numbers {
    len: u64,
    at_once: usize,
    asked: Arc<Mutex<Vec<usize>>>,
    bad: Option<u64>,
    /// One result too few.
    forgets: bool,
    panics: bool,
}

fn numbers(len: u64, at_once: usize) -> Numbers {
    Numbers {
        len,
        at_once,
        asked: Arc::default(),
        bad: None,
        forgets: false,
        panics: false,
    }
}

impl Dataset for Numbers {
    type Sample = (i64, i64);

    fn len(&self) -> u64 {
        self.len
    }

    fn get(&self, index: u64, rng: &mut SampleRng) -> Result<(i64, i64), BoxError> {
        if self.bad == Some(index) {
            return Err("it is broken".into());
        }
        Ok((index as i64, rng.range(0..1_000_000)))
    }

    fn get_many(
        &self,
        indices: &[u64],
        rngs: &mut [SampleRng],
    ) -> Vec<Result<(i64, i64), BoxError>> {
        if self.panics {
            watch::provoked("the query panics");
        }
        self.asked.lock().unwrap().push(indices.len());
        let each = indices.iter().zip(rngs);
        let mut got: Vec<_> = each.map(|(index, rng)| self.get(*index, rng)).collect();
        if self.forgets {
            got.pop();
        }
        got
    }

    fn at_once(&self) -> usize {
        self.at_once
    }

    fn describe(&self, index: u64) -> Option<String> {
        Some(format!("row {index}"))
    }
}

type Pair = (Tensor<i64>, Tensor<i64>);

fn loader<D>(data: D, workers: usize, pinned: bool) -> DataLoader<Pair>
where
    D: Dataset<Sample = (i64, i64)>,
{
    let mut builder = DataLoader::builder(data)
        .batch_size(24)
        .shuffle(true)
        .seed(4)
        .num_workers(workers);
    if pinned {
        builder = builder.pin_memory(&Device::cpu());
    }
    builder.build().unwrap()
}

fn rows(loader: &DataLoader<Pair>, epoch: u64) -> Vec<(i64, i64)> {
    let batches = loader.epoch(epoch).map(|batch| {
        let (indices, drawn) = batch.unwrap();
        indices
            .as_slice()
            .iter()
            .copied()
            .zip(drawn.as_slice().iter().copied())
            .collect::<Vec<_>>()
    });
    batches.collect::<Vec<_>>().concat()
}

#[test]
fn what_comes_is_what_comes_one_by_one() {
    for workers in [0, 1, 4] {
        for pinned in [false, true] {
            for at_once in [2, 7, 1_000] {
                let many = numbers(100, at_once);
                let asked = Arc::clone(&many.asked);
                let many = loader(many, workers, pinned);
                let single = loader(numbers(100, 1), 0, false);
                for epoch in 0..2 {
                    assert_eq!(
                        rows(&many, epoch),
                        rows(&single, epoch),
                        "{workers} workers, {at_once} at once"
                    );
                }
                let asked = asked.lock().unwrap();
                assert!(asked.iter().all(|count| *count <= at_once));
                assert_eq!(asked.iter().sum::<usize>(), 200);
                assert!(asked.contains(&at_once.min(24)));
            }
        }
    }
}

/// Through everything that data sets are made of, in whatever order.
#[test]
fn adapters_pass_it_on() {
    fn build(at_once: usize, asked: &Arc<Mutex<Vec<usize>>>) -> impl Dataset<Sample = (i64, i64)> {
        let part = |len| Numbers {
            asked: Arc::clone(asked),
            ..numbers(len, at_once)
        };
        let both = ConcatDataset::new(vec![part(30), part(50)]).unwrap();
        let subset = Subset::new(both, (0..80).rev().step_by(2).collect::<Vec<u64>>()).unwrap();
        let zipped = subset.zip(part(40)).unwrap();
        let mapped =
            zipped.map(|(a, b), rng| Ok((a.0 * 1_000 + b.0, a.1 ^ b.1 ^ rng.range(0..1_000))));
        Arc::new(Box::new(mapped))
    }
    let (many_asked, single_asked) = (Arc::default(), Arc::default());
    for workers in [0, 3] {
        let many = loader(build(16, &many_asked), workers, false);
        let single = loader(build(1, &single_asked), workers, false);
        for epoch in 0..2 {
            assert_eq!(rows(&many, epoch), rows(&single, epoch));
        }
    }
    assert!(single_asked.lock().unwrap().is_empty());
    assert!(many_asked.lock().unwrap().iter().any(|count| *count > 4));
}

#[test]
fn a_cache_asks_for_what_it_does_not_have() {
    struct Plain(Arc<Mutex<Vec<Vec<u64>>>>);
    impl Dataset for Plain {
        type Sample = i64;

        fn len(&self) -> u64 {
            40
        }

        fn get(&self, index: u64, _: &mut SampleRng) -> Result<i64, BoxError> {
            Ok(index as i64)
        }

        fn get_many(&self, indices: &[u64], _: &mut [SampleRng]) -> Vec<Result<i64, BoxError>> {
            self.0.lock().unwrap().push(indices.to_vec());
            indices.iter().map(|index| Ok(*index as i64)).collect()
        }

        fn at_once(&self) -> usize {
            8
        }
    }
    let asked = Arc::default();
    let cached = Arc::new(Plain(Arc::clone(&asked)).cached(1 << 20));
    let loader = DataLoader::builder(Arc::clone(&cached))
        .batch_size(8)
        .shuffle(true)
        .build()
        .unwrap();
    for epoch in 0..3 {
        let mut seen: Vec<i64> = loader
            .epoch(epoch)
            .flat_map(|batch| batch.unwrap().to_vec())
            .collect();
        seen.sort_unstable();
        assert!(seen.into_iter().eq(0..40));
    }
    let asked: Vec<u64> = asked.lock().unwrap().concat();
    assert_eq!(asked.len(), 40);
    assert_eq!((cached.stats().hits, cached.stats().misses), (80, 40));
}

/// One sample that fails costs its batch; replaced or left out, it costs nothing else. Where the call panics, and no sample does, the batch fails.
#[test]
fn failures_are_those_of_their_samples() {
    for workers in [0, 3] {
        let bad = || Numbers {
            bad: Some(17),
            ..numbers(100, 6)
        };
        let batches: Vec<_> = loader(bad(), workers, false).epoch(0).collect();
        let failed: Vec<_> = batches.into_iter().filter_map(Result::err).collect();
        assert!(
            matches!(&failed[..], [Error::Sample(sample, _)] if sample.index == 17),
            "{failed:?}"
        );
        assert!(failed[0].to_string().contains("row 17"));

        let sound = rows(&loader(numbers(100, 1), 0, false), 0);
        for on_error in [
            OnError::Replace { at_most: 5 },
            OnError::Skip { at_most: 5 },
        ] {
            let loader = DataLoader::builder(bad())
                .batch_size(24)
                .shuffle(true)
                .seed(4)
                .num_workers(workers)
                .on_error(on_error)
                .build()
                .unwrap();
            let found = rows(&loader, 0);
            match on_error {
                OnError::Skip { .. } => {
                    let kept: Vec<_> = sound.iter().copied().filter(|row| row.0 != 17).collect();
                    assert_eq!(found, kept);
                }
                _ => assert!(
                    found
                        .iter()
                        .zip(&sound)
                        .all(|(found, sound)| (found == sound) != (sound.0 == 17))
                ),
            }
            assert_eq!(loader.stats().bad.replaced + loader.stats().bad.skipped, 1);
        }

        let panics = Numbers {
            panics: true,
            ..numbers(100, 6)
        };
        let batches: Vec<_> = loader(panics, workers, true).epoch(0).collect();
        assert_eq!(batches.len(), 5);
        assert!(
            batches
                .iter()
                .all(|batch| matches!(batch, Err(Error::SamplePanicked(..))))
        );
        let forgets = Numbers {
            forgets: true,
            ..numbers(100, 6)
        };
        for batch in loader(forgets, workers, false).epoch(0) {
            let said = batch.unwrap_err().to_string();
            assert!(
                said.contains("results for") && said.contains("indices"),
                "{said}"
            );
        }
    }
}

/// A sample that panics in a call for several is alone to blame: what comes is the same on any number of workers and ranks, and however
/// many share a call.
#[test]
fn a_panic_is_its_own_samples() {
    const BAD: [u64; 4] = [13, 17, 44, 95];
    struct Panicking(usize);
    impl Dataset for Panicking {
        type Sample = (i64, i64);

        fn len(&self) -> u64 {
            96
        }

        fn get(&self, index: u64, rng: &mut SampleRng) -> Result<(i64, i64), BoxError> {
            if BAD.contains(&index) {
                watch::provoked(format!("sample {index} panics"));
            }
            Ok((index as i64, rng.range(0..1_000_000)))
        }

        fn at_once(&self) -> usize {
            self.0
        }
    }
    let builder = |at_once, workers, on_error| {
        DataLoader::builder(Panicking(at_once))
            .shuffle(true)
            .seed(4)
            .num_workers(workers)
            .on_error(on_error)
    };
    for on_error in [
        OnError::Skip { at_most: 4 },
        OnError::Replace { at_most: 9 },
    ] {
        let one_by_one = builder(1, 0, on_error).batch_size(24).build().unwrap();
        let expected = rows(&one_by_one, 0);
        let left_out = 4 * usize::from(matches!(on_error, OnError::Skip { .. }));
        assert_eq!(expected.len(), 96 - left_out);
        for (at_once, workers) in [(5, 0), (7, 1), (7, 3), (100, 2)] {
            let whole = builder(at_once, workers, on_error).batch_size(24);
            let whole = whole.build().unwrap();
            assert_eq!(rows(&whole, 0), expected, "{at_once}, {workers} workers");
            let stats = whole.stats();
            assert!((4..=9).contains(&(stats.bad.replaced + stats.bad.skipped)));
            let mut both: Vec<(i64, i64)> = Vec::new();
            for rank in 0..2 {
                let half = builder(at_once, workers, on_error).global_batch_size(24);
                let half = half.world(World::new(rank, 2).unwrap()).build().unwrap();
                both.extend(rows(&half, 0));
            }
            both.sort_unstable();
            let mut sorted = expected.clone();
            sorted.sort_unstable();
            assert_eq!(both, sorted, "{at_once} at once, {workers} workers");
        }
    }
    // If none may be left out, the error names the first of its batch.
    for (at_once, workers) in [(1, 0), (7, 0), (7, 3)] {
        let loader = builder(at_once, workers, OnError::Fail).batch_size(96);
        let loader: DataLoader<Pair> = loader.build().unwrap();
        let first = RandomSampler::with_seed(96, 4);
        let first = (0..96).map(|at| first.index(0, at));
        let first = first.enumerate().find(|(_, index)| BAD.contains(index));
        match loader.epoch(0).next() {
            Some(Err(Error::SamplePanicked(sample, said))) => {
                assert_eq!(Some((sample.row, sample.index)), first);
                assert_eq!(said, format!("sample {} panics", sample.index));
            }
            other => panic!("{other:?}"),
        }
    }
}

/// A call that panics although each of its samples loads: with a policy for bad samples, none of them is bad.
#[test]
fn a_call_that_panics_makes_no_sample_bad() {
    for workers in [0, 3] {
        let panics = Numbers {
            panics: true,
            ..numbers(100, 6)
        };
        let loader = DataLoader::builder(panics)
            .batch_size(24)
            .shuffle(true)
            .seed(4)
            .num_workers(workers)
            .on_error(OnError::Skip { at_most: 100 })
            .build()
            .unwrap();
        assert_eq!(
            rows(&loader, 0),
            rows(&self::loader(numbers(100, 1), 0, false), 0)
        );
        assert_eq!(loader.stats().bad.skipped, 0);
    }
}

/// A sampler that names what is not there, beside what is.
#[test]
fn what_is_not_there_is_one_samples_error() {
    let data = numbers(10, 4);
    let loader = DataLoader::builder(data)
        .sampler(vec![1u64, 2, 30, 4, 5, 6])
        .batch_size(3)
        .build()
        .unwrap();
    let batches: Vec<_> = loader.epoch(0).collect();
    assert!(
        batches[0]
            .as_ref()
            .unwrap_err()
            .to_string()
            .contains("index 30")
    );
    assert_eq!(batches[1].as_ref().unwrap().0.as_slice(), [4, 5, 6]);
}

/// A sampler that panics in the middle of a call: its batch is an error, whatever the policy, and the others come.
#[test]
fn a_sampler_may_panic_in_the_middle() {
    struct Panicking;
    impl Sampler for Panicking {
        fn len(&self) -> u64 {
            40
        }

        fn index(&self, _: u64, position: u64) -> u64 {
            if position == 13 {
                watch::provoked("no such position");
            }
            position
        }

        fn fingerprint(&self) -> u32 {
            0
        }
    }
    for on_error in [
        OnError::Fail,
        OnError::Replace { at_most: 99 },
        OnError::Skip { at_most: 99 },
    ] {
        for workers in [0, 3] {
            for pinned in [false, true] {
                let device = Device::cpu();
                let mut builder = DataLoader::builder(numbers(40, 6))
                    .sampler(Panicking)
                    .batch_size(10)
                    .num_workers(workers)
                    .on_error(on_error);
                if pinned {
                    builder = builder.pin_memory(&device);
                }
                let loader = builder.build().unwrap();
                let batches: Vec<_> = loader.epoch(0).collect();
                let failed: Vec<_> = batches.iter().map(Result::is_err).collect();
                assert_eq!(
                    failed,
                    [false, true, false, false],
                    "{on_error:?}, {workers} workers"
                );
                for (number, batch) in batches.into_iter().enumerate() {
                    if let Ok((indices, _)) = batch {
                        let first = number as i64 * 10;
                        assert!(indices.as_slice().iter().copied().eq(first..first + 10));
                    }
                }
            }
        }
    }
}

#[test]
fn ranks_get_their_own() {
    let whole = rows(&loader(numbers(96, 5), 2, false), 1);
    let ranks = [0, 1].map(|rank| {
        let loader = DataLoader::builder(numbers(96, 5))
            .global_batch_size(24)
            .shuffle(true)
            .seed(4)
            .num_workers(2)
            .world(World::new(rank, 2).unwrap())
            .build()
            .unwrap();
        rows(&loader, 1)
    });
    let both = ranks[0]
        .chunks(12)
        .zip(ranks[1].chunks(12))
        .flat_map(|(a, b)| [a, b].concat());
    assert!(both.eq(whole));
}

/// Calls that take their time, or hang until the gate is dropped.
struct Slow {
    takes: Duration,
    hangs: Option<(u64, Mutex<mpsc::Receiver<()>>)>,
    /// Samples that were got, each a first time.
    tried: Mutex<HashSet<u64>>,
    is_flaky: bool,
    done: Arc<AtomicUsize>,
}

impl Slow {
    fn new(takes: Duration) -> Slow {
        Slow {
            takes,
            hangs: None,
            tried: Mutex::default(),
            is_flaky: false,
            done: Arc::default(),
        }
    }

    fn hanging(index: u64) -> (mpsc::Sender<()>, Slow) {
        let (gate, opened) = mpsc::channel();
        let slow = Slow {
            hangs: Some((index, Mutex::new(opened))),
            ..Slow::new(Duration::ZERO)
        };
        (gate, slow)
    }
}

impl Dataset for Slow {
    type Sample = i64;

    fn len(&self) -> u64 {
        40
    }

    fn get(&self, index: u64, _: &mut SampleRng) -> Result<i64, BoxError> {
        std::thread::sleep(self.takes);
        if let Some((_, opened)) = self.hangs.as_ref().filter(|hangs| hangs.0 == index) {
            let _ = opened.lock().unwrap().recv();
        }
        if self.is_flaky && self.tried.lock().unwrap().insert(index) {
            return Err(Temporary::new("503").into());
        }
        self.done.fetch_add(1, Ordering::SeqCst);
        Ok(index as i64)
    }

    fn at_once(&self) -> usize {
        8
    }

    fn describe(&self, index: u64) -> Option<String> {
        Some(format!("row {index}"))
    }
}

const TIMEOUT: Duration = Duration::from_millis(150);

fn timed(data: Slow) -> Builder<Slow, Stack> {
    let builder = DataLoader::builder(data).batch_size(10).num_workers(2);
    builder.timeout(TIMEOUT)
}

/// No sample takes longer than it may, but a call for eight does. Nor does it if all of them are tried again.
#[test]
fn a_call_has_the_time_of_all_its_samples() {
    let loader = timed(Slow::new(TIMEOUT / 4)).build().unwrap();
    let late: Vec<_> = loader.epoch(0).filter_map(Result::err).collect();
    assert!(late.is_empty(), "{late:?}");
    let flaky = Slow {
        is_flaky: true,
        ..Slow::new(Duration::ZERO)
    };
    let loader = timed(flaky).retry(1, TIMEOUT / 4).build().unwrap();
    let late: Vec<_> = loader.epoch(0).filter_map(Result::err).collect();
    assert!(late.is_empty(), "{late:?}");
    assert_eq!(loader.stats().bad.retried, 40);
}

/// Whoever drops the loader waits for a call within its time.
#[test]
fn a_call_may_end_when_the_loader_is_dropped() {
    let slow = Slow::new(TIMEOUT / 4);
    let done = Arc::clone(&slow.done);
    let loader = timed(slow).build().unwrap();
    let mut epoch = loader.epoch(0);
    assert!(epoch.next().unwrap().is_ok());
    drop(epoch);
    drop(loader);
    let done_then = done.load(Ordering::SeqCst);
    assert_eq!(Arc::strong_count(&done), 1, "no thread is left");
    assert_eq!(done.load(Ordering::SeqCst), done_then);
}

/// Nobody knows which of them hangs: the error names all, and later batches come.
#[test]
fn a_call_that_hangs_names_all_its_samples() {
    for shuffle in [false, true] {
        let (gate, slow) = Slow::hanging(15);
        let builder = timed(slow).shuffle(shuffle).seed(3);
        let loader = builder.build().unwrap();
        let order: Vec<u64> = match shuffle {
            true => {
                let sampler = RandomSampler::with_seed(40, 3);
                (0..40).map(|position| sampler.index(0, position)).collect()
            }
            false => (0..40).collect(),
        };
        let batches: Vec<_> = loader.epoch(0).collect();
        assert_eq!(batches.len(), 4);
        for (number, batch) in batches.into_iter().enumerate() {
            let own = &order[number * 10..][..10];
            let Some(at) = own.iter().position(|index| *index == 15) else {
                assert_eq!(batch.unwrap().len(), 10);
                continue;
            };
            let error = batch.unwrap_err();
            let Error::TimedOut(late) = &error else {
                panic!("{error}");
            };
            let first = late.sample.as_ref().unwrap();
            assert_eq!(first.index, own[first.row]);
            assert_eq!(first.description, Some(format!("row {}", first.index)));
            let rows = first.row..first.row + late.count;
            assert!(rows.contains(&at), "{error}");
            assert_eq!(late.others, own[rows.start + 1..rows.end]);
            assert!(late.elapsed >= TIMEOUT * late.count as u32, "{error}");
            let text = error.to_string();
            if !shuffle {
                let part = "one of 8 samples that are got in one call (samples 10 to 17; the first is row 10), rows 0 to 7 of batch 1 \
                            in epoch 0, was still being loaded after";
                assert!(text.contains(part), "{text}");
            }
        }
        drop(loader);
        drop(gate);
    }
}
