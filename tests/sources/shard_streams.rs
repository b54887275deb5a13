//! Streams of tar shards (`WebDataset::builder(..).stream(..)`, a `WebStream`): what Python's webdataset reads in them, whatever compresses
//! them; each sample once, on any ranks, however often the run goes on with others; and what is wrong with a shard.
//!
//! The archives in tests/fixtures/streams are by other writers; streams.py there says which.

use std::collections::BTreeMap;
use std::io::Write;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex};

use flate2::Compression;
use flate2::write::GzEncoder;
use pinfeed::device::Hostile;
use pinfeed::error::Temporary;
use pinfeed::iterable::IterableDataset;
use pinfeed::loader::{Iterable, IterableState, OnError, World};
use pinfeed::store::{LocalFiles, Object, Store};
use pinfeed::webdataset::{ShardError, WebDataset, WebDatasetBuilder, WebSample, WebStream};
use pinfeed::{BoxError, DataLoader, Device, Error, SampleRng};
use proptest::prelude::*;
use ruzstd::encoding::{CompressionLevel, compress_to_vec};

fn fixtures() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/streams")
}

/// Objects in memory, of which reads can fail, panic or wait.
#[derive(Default)]
struct Memory {
    objects: BTreeMap<String, Vec<u8>>,
    lists: AtomicU64,
    bytes: AtomicU64,
    /// Reads that touch this byte of an object: what becomes of them.
    trap: Mutex<Option<(String, u64, Trap)>>,
    gate: (Mutex<bool>, Condvar),
}

#[derive(Clone, Copy, PartialEq)]
enum Trap {
    Fails,
    /// It says neither for which object nor where.
    FailsInAWord,
    Panics,
    GivesTooLittle,
    Waits,
}

impl Memory {
    fn of<K: Into<String>>(objects: impl IntoIterator<Item = (K, Vec<u8>)>) -> Memory {
        let objects = objects.into_iter();
        Memory {
            objects: objects.map(|(key, bytes)| (key.into(), bytes)).collect(),
            ..Memory::default()
        }
    }

    fn trap(&self, key: &str, at: u64, trap: Trap) {
        *self.trap.lock().unwrap() = Some((key.to_owned(), at, trap));
    }

    fn open_gate(&self) {
        *self.gate.0.lock().unwrap() = true;
        self.gate.1.notify_all();
    }
}

impl Store for Memory {
    fn list(&self, _: &str) -> Result<Vec<Object>, BoxError> {
        self.lists.fetch_add(1, Ordering::SeqCst);
        self.objects.keys().map(|key| self.object(key)).collect()
    }

    fn object(&self, key: &str) -> Result<Object, BoxError> {
        let bytes = self
            .objects
            .get(key)
            .ok_or_else(|| format!("there is no {key}"))?;
        Ok(Object {
            key: key.to_owned(),
            bytes: bytes.len() as u64,
            version: None,
        })
    }

    fn read(&self, object: &Object, range: Range<u64>) -> Result<Vec<u8>, BoxError> {
        self.bytes
            .fetch_add(range.end - range.start, Ordering::SeqCst);
        let mut bytes =
            self.objects[&object.key][range.start as usize..range.end as usize].to_vec();
        let trap = self.trap.lock().unwrap().clone();
        match trap {
            Some((key, at, trap)) if key == object.key && range.contains(&at) => match trap {
                Trap::Fails => {
                    return Err(Temporary::new(format!("{key}: 503 Service Unavailable")).into());
                }
                Trap::FailsInAWord => return Err(Temporary::new("busy").into()),
                Trap::Panics => watch::provoked("the store"),
                Trap::GivesTooLittle => _ = bytes.pop(),
                Trap::Waits => {
                    let mut is_open = self.gate.0.lock().unwrap();
                    while !*is_open {
                        is_open = self.gate.1.wait(is_open).unwrap();
                    }
                }
            },
            _ => {}
        }
        Ok(bytes)
    }
}

/// An archive of these files.
fn tar<N: AsRef<str>>(files: impl IntoIterator<Item = (N, Vec<u8>)>) -> Vec<u8> {
    let mut builder = tar::Builder::new(Vec::new());
    for (name, contents) in files {
        let mut header = tar::Header::new_gnu();
        header.set_size(contents.len() as u64);
        header.set_mode(0o644);
        builder
            .append_data(&mut header, name.as_ref(), &*contents)
            .unwrap();
    }
    builder.into_inner().unwrap()
}

fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
    encoder.write_all(bytes).unwrap();
    encoder.finish().unwrap()
}

fn zstd(bytes: &[u8]) -> Vec<u8> {
    compress_to_vec(bytes, CompressionLevel::Fastest)
}

/// What hardly compresses, and is another for each number.
fn noise(number: u64, count: usize) -> Vec<u8> {
    let mut state = number.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut next = || {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (state >> 56) as u8
    };
    (0..count).map(|_| next()).collect()
}

/// Shards of so many samples each, compressed in turn by gzip, Zstandard and not at all. A sample's key is its number.
fn shards(sizes: &[u64]) -> Memory {
    let mut number = 0;
    Memory::of(sizes.iter().enumerate().map(|(shard, size)| {
        let files = (number..number + size).flat_map(|sample| {
            let length = 200 + (sample * 7_919 % 3_000) as usize;
            [
                (format!("{sample:05}.bin"), noise(sample, length)),
                (format!("{sample:05}.cls"), sample.to_string().into_bytes()),
            ]
        });
        let archive = tar(files);
        number += size;
        let (end, bytes) = match shard % 3 {
            0 => (".tar.gz", gzip(&archive)),
            1 => (".tar", archive),
            _ => (".tar.zst", zstd(&archive)),
        };
        (format!("{shard:03}{end}"), bytes)
    }))
}

fn number(sample: WebSample<'_>, _: &mut SampleRng) -> Result<u64, BoxError> {
    let number = sample.number("cls")?;
    assert_eq!(sample.key(), format!("{number:05}"));
    let bytes = sample.field("bin")?;
    assert!(bytes == noise(number, bytes.len()) && bytes.len() >= 200);
    Ok(number)
}

fn numbers(store: impl Store) -> WebStream<u64> {
    WebDataset::builder(store, "")
        .extent_bytes(4_000)
        .stream(number)
        .unwrap()
}

fn single<S: IterableDataset<Sample = u64>>(source: S) -> DataLoader<Vec<u64>, Iterable> {
    loader(source, World::single(), 1)
}

fn loader<S: IterableDataset<Sample = u64>>(
    source: S,
    world: World,
    batch_size: usize,
) -> DataLoader<Vec<u64>, Iterable> {
    let builder = DataLoader::iterable(source)
        .batch_size(batch_size)
        .seed(7)
        .world(world);
    builder
        .num_workers(1)
        .collate_fn(|samples, _| Ok(samples))
        .build()
        .unwrap()
}

fn rank(rank: usize, ranks: usize) -> World {
    World::new(rank, ranks).unwrap()
}

/// The samples of an epoch, and the errors in their places.
fn epoch(loader: &DataLoader<Vec<u64>, Iterable>, epoch: u64) -> Vec<Result<u64, String>> {
    let batches = loader
        .epoch(epoch)
        .map(|batch| batch.map_err(|error| error.to_string()));
    batches
        .flat_map(|batch| match batch {
            Ok(samples) => samples.into_iter().map(Ok).collect(),
            Err(error) => vec![Err(error)],
        })
        .collect()
}

fn all(loader: &DataLoader<Vec<u64>, Iterable>, number: u64) -> Vec<u64> {
    epoch(loader, number)
        .into_iter()
        .collect::<Result<_, _>>()
        .unwrap()
}

/// All samples of a shard, in its order, as text.
fn whole(builder: WebDatasetBuilder) -> Vec<String> {
    let stream = builder.stream(|sample: WebSample<'_>, _: &mut SampleRng| {
        let hex = |bytes: &[u8]| {
            bytes
                .iter()
                .map(|byte| format!("{byte:02x}"))
                .collect::<String>()
        };
        let fields: BTreeMap<&str, String> = sample
            .fields()
            .map(|(name, bytes)| (name, hex(bytes)))
            .collect();
        Ok(serde_json::to_string(&(sample.key(), fields))?)
    });
    let stream = stream
        .unwrap()
        .with_open_shards(1)
        .with_shuffled_shards(false);
    let loader = DataLoader::iterable(stream)
        .batch_size(100)
        .num_workers(1)
        .build()
        .unwrap();
    loader.epoch(0).flat_map(Result::unwrap).collect()
}

#[test]
fn shards_of_others_are_read_as_webdataset_reads_them() {
    let expected = std::fs::read(fixtures().join("samples.json")).unwrap();
    type Sample = (String, BTreeMap<String, String>);
    let expected: Vec<(String, Vec<Sample>)> = serde_json::from_slice(&expected).unwrap();
    assert_eq!(expected.len(), 8);
    for (archive, samples) in &expected {
        let samples: Vec<String> = samples
            .iter()
            .map(|sample| serde_json::to_string(sample).unwrap())
            .collect();
        assert!(samples.len() > 3);
        for bytes in [1, 1_000, 4 << 20] {
            let store = LocalFiles::open(fixtures()).unwrap();
            let found = whole(WebDataset::builder(store, archive).extent_bytes(bytes));
            assert!(found == samples, "{archive}, {bytes} bytes at once");
        }
    }
    // By braces, in the order of the pattern.
    let store = LocalFiles::open(fixtures()).unwrap();
    let found = whole(WebDataset::builder(store, "train-{0..1}.tar.gz"));
    assert_eq!(found.len(), 12);
    assert!(found[0].starts_with(r#"["0/0000""#) && found[11].starts_with(r#"["1/0006""#));
}

#[test]
fn a_long_window_of_zstandard_is_read() {
    let store = LocalFiles::open(fixtures()).unwrap();
    let stream = WebDataset::builder(store, "long.tar.zst").stream(|sample, _| {
        let bytes = sample.field("bin")?;
        assert!(bytes.len() == 300_000 && bytes.iter().zip(&bytes[3_000..]).all(|(a, b)| a == b));
        Ok(1u64)
    });
    assert_eq!(all(&single(stream.unwrap()), 0), [1]);
}

#[test]
fn the_order_is_another_in_each_epoch_and_the_same_on_any_workers() {
    let store = Arc::new(shards(&[9, 7, 0, 8, 12, 5, 1, 10]));
    let build = |workers: usize, seed: u64| {
        let builder = DataLoader::iterable(numbers(Arc::clone(&store)).shuffle(8))
            .batch_size(5)
            .seed(seed);
        builder
            .num_workers(workers)
            .collate_fn(|samples, _| Ok(samples))
            .build()
            .unwrap()
    };
    let first = all(&build(0, 7), 0);
    let mut sorted = first.clone();
    sorted.sort_unstable();
    assert!(sorted.into_iter().eq(0..52));
    assert_eq!(all(&build(1, 7), 0), first);
    assert_eq!(all(&build(3, 7), 0), first);
    assert_ne!(all(&build(3, 7), 1), first);
    assert_ne!(all(&build(3, 8), 0), first);
    // Without any of that, samples come as they lie in the shards.
    let plain = numbers(Arc::clone(&store))
        .with_open_shards(1)
        .with_shuffled_shards(false);
    assert!(plain.shards().eq(store.objects.keys()));
    assert!(all(&single(plain), 3).into_iter().eq(0..52));
    assert_eq!(
        store.lists.load(Ordering::SeqCst),
        6,
        "one listing for each stream"
    );
}

#[test]
fn a_run_goes_on_behind_any_batch() {
    let store = Arc::new(shards(&[3, 6, 2, 0, 4, 5]));
    for window in [1, 4, 100] {
        let build = || {
            let source = numbers(Arc::clone(&store))
                .with_open_shards(3)
                .filter(|number, _| Ok(number % 5 != 2))
                .shuffle(window);
            loader(source, World::single(), 3)
        };
        let expected = all(&build(), 1);
        assert_eq!(expected.len(), 16);
        for given in 0..=expected.len().div_ceil(3) {
            let first = build();
            let mut begun = first.epoch(1);
            begun.by_ref().take(given).for_each(drop);
            // Twice: the second resumes what was resumed, without a batch between them.
            let state: IterableState = begun.state().to_string().parse().unwrap();
            let second = build();
            let state = second.resume(0..9, &state).unwrap().next().unwrap().state();
            let resumed = build();
            let epochs: Vec<(u64, Vec<u64>)> = resumed
                .resume(0..2, &state)
                .unwrap()
                .map(|epoch| (epoch.number(), epoch.flat_map(Result::unwrap).collect()))
                .collect();
            let rest = &expected[(3 * given).min(expected.len())..];
            assert_eq!(
                epochs[0],
                (1, rest.to_vec()),
                "window {window}, {given} batches"
            );
        }
    }
}

/// The states of ranks that were given so many batches of an epoch each, and what they were given.
fn ranks<S: IterableDataset<Sample = u64> + Clone>(
    source: &S,
    states: &[IterableState],
    steps: &[usize],
    given: &mut Vec<u64>,
) -> Vec<IterableState> {
    let ranks = steps.len();
    let each = steps.iter().enumerate().map(|(at, steps)| {
        let loader = loader(source.clone(), rank(at, ranks), 2);
        let state = match states.is_empty() {
            true => IterableState::default(),
            false => loader.hand_over(states).unwrap(),
        };
        let mut epochs = loader.resume(0..1, &state).unwrap();
        let state = match epochs.next() {
            None => state, // it is over
            Some(mut epoch) => {
                epoch
                    .by_ref()
                    .take(*steps)
                    .for_each(|batch| given.extend(batch.unwrap()));
                epoch.state()
            }
        };
        state.to_string().parse().unwrap()
    });
    each.collect()
}

#[test]
fn four_ranks_are_killed_and_three_go_on() {
    let sizes: Vec<u64> = (0..24).map(|shard| 10 + shard % 7).collect();
    let samples: u64 = sizes.iter().sum();
    let source = numbers(shards(&sizes)).shuffle(25);
    let mut given = Vec::new();
    let states = ranks(&source, &[], &[14; 4], &mut given);
    assert_eq!(given.len(), 4 * 14 * 2);
    let before = given.len();
    let states = ranks(&source, &states, &[usize::MAX; 3], &mut given);
    assert!(given.len() > before);
    given.sort_unstable();
    assert!(given.into_iter().eq(0..samples), "each sample once");
    // All three have ended the epoch; the next one is any other.
    let mut given = Vec::new();
    assert!(states.iter().all(|state| state.epoch() == 1), "{states:?}");
    for at in 0..2 {
        let loader = loader(source.clone(), rank(at, 2), 2);
        let state = loader.hand_over(&states).unwrap();
        loader
            .resume(1..2, &state)
            .unwrap()
            .flatten()
            .for_each(|batch| given.extend(batch.unwrap()));
    }
    given.sort_unstable();
    assert!(given.into_iter().eq(0..samples));
}

/// Four processes, killed in mid-epoch as a machine is that loses power; three go on from what each had saved last.
#[test]
#[cfg(not(miri))]
fn four_processes_are_killed_and_three_ranks_go_on() {
    const FOLDER: &str = "PINFEED_TEST_FOLDER";
    const RANK: &str = "PINFEED_TEST_RANK";
    let sizes: Vec<u64> = (0..24).map(|shard| 40 + shard % 7).collect();
    let source = |folder: &Path| {
        let store = LocalFiles::open(folder.join("shards")).unwrap();
        numbers(store).shuffle(60)
    };
    if let Some(folder) = std::env::var_os(FOLDER) {
        let folder = PathBuf::from(folder);
        let own: usize = std::env::var(RANK).unwrap().parse().unwrap();
        let loader = loader(source(&folder), rank(own, 4), 3);
        let mut given = Vec::new();
        for batch in loader.epoch(0) {
            given.extend(batch.unwrap());
            // What a step leaves, all at once: what was trained on, and the state behind it.
            let saved = serde_json::to_vec(&(&given, loader.state().to_string())).unwrap();
            std::fs::write(folder.join(format!("{own}.new")), saved).unwrap();
            std::fs::rename(
                folder.join(format!("{own}.new")),
                folder.join(format!("{own}.saved")),
            )
            .unwrap();
            std::thread::sleep(std::time::Duration::from_millis(1));
        }
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    std::fs::create_dir(folder.path().join("shards")).unwrap();
    for (key, bytes) in &shards(&sizes).objects {
        std::fs::write(folder.path().join("shards").join(key), bytes).unwrap();
    }
    let processes: Vec<_> = (0..4)
        .map(|rank| {
            let mut process = std::process::Command::new(std::env::current_exe().unwrap());
            let test = "shard_streams::four_processes_are_killed_and_three_ranks_go_on";
            process
                .args(["--exact", test])
                .env(FOLDER, folder.path())
                .env(RANK, rank.to_string());
            process.stdout(std::process::Stdio::null()).spawn().unwrap()
        })
        .collect();
    type Saved = (Vec<u64>, String);
    let saved = |rank: usize| -> Option<Saved> {
        serde_json::from_slice(&std::fs::read(folder.path().join(format!("{rank}.saved"))).ok()?)
            .ok()
    };
    for (rank, mut process) in processes.into_iter().enumerate() {
        while saved(rank).is_none_or(|(given, _)| given.len() < 20 + 30 * rank) {
            assert!(
                process.try_wait().unwrap().is_none(),
                "rank {rank} has ended"
            );
            std::thread::sleep(std::time::Duration::from_millis(1));
        }
        process.kill().unwrap(); // SIGKILL
        process.wait().unwrap();
    }
    let (mut given, mut states) = (Vec::new(), Vec::new());
    for (samples, state) in (0..4).map(|rank| saved(rank).unwrap()) {
        given.extend(samples);
        states.push(state.parse().unwrap());
    }
    let samples: u64 = sizes.iter().sum();
    assert!((given.len() as u64) < samples, "the epoch had not ended");
    ranks(
        &source(folder.path()),
        &states,
        &[usize::MAX; 3],
        &mut given,
    );
    given.sort_unstable();
    assert!(given.into_iter().eq(0..samples), "each sample once");
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 40, failure_persistence: None, rng_seed: proptest::test_runner::RngSeed::Fixed(17), ..ProptestConfig::default() })]

    /// However often, on however many ranks, wherever each stood: no sample is lost, and none comes twice.
    #[test]
    fn each_sample_comes_once_however_ranks_change(
        sizes in prop::collection::vec(0u64..9, 4..12),
        open in 1usize..4,
        window in prop::sample::select(vec![1usize, 3, 10, 100]),
        runs in prop::collection::vec(prop::collection::vec(0usize..6, 1..5), 1..4),
    ) {
        let samples: u64 = sizes.iter().sum();
        let source = numbers(shards(&sizes)).with_open_shards(open);
        let source = source.filter(|number, _| Ok(*number != 3)).shuffle(window).map(|number, _| Ok(number));
        let (mut given, mut states) = (Vec::new(), Vec::new());
        for steps in &runs {
            states = ranks(&source, &states, steps, &mut given);
        }
        ranks(&source, &states, &[usize::MAX; 2], &mut given);
        given.sort_unstable();
        prop_assert!(given.into_iter().eq((0..samples).filter(|number| *number != 3)));
    }
}

#[test]
fn ranks_have_equally_many_shards_and_the_state_is_a_few_bytes() {
    let source = numbers(shards(&[4; 64])).shuffle(10);
    let mut given = Vec::new();
    let states = ranks(&source, &[], &[7, 7, 7, 8], &mut given);
    let mut each = Vec::new();
    for at in 0..3 {
        let mut own = Vec::new();
        let loader = loader(source.clone(), rank(at, 3), 2);
        let state = loader.hand_over(&states).unwrap();
        assert!(state.to_string().len() < 1_500, "{state}");
        loader
            .resume(0..1, &state)
            .unwrap()
            .flatten()
            .for_each(|batch| own.extend(batch.unwrap()));
        each.push(own.len());
    }
    let (least, most) = (each.iter().min().unwrap(), each.iter().max().unwrap());
    assert!(most - least <= 12, "{each:?}");
    assert_eq!(given.len() + each.iter().sum::<usize>(), 256);
}

#[test]
fn states_that_are_not_those_of_one_run_are_refused() {
    let source = numbers(shards(&[5; 12])).shuffle(5);
    let states = ranks(&source, &[], &[3; 4], &mut Vec::new());
    let alone = single(source.clone());
    let refused = |states: &[IterableState]| alone.hand_over(states).unwrap_err().to_string();
    for (states, says) in [
        (vec![], "all ranks"),
        (states[..3].to_vec(), "there are 3 of 4 ranks"),
        (
            [&states[..3], &states[..1]].concat(),
            "rank 0 is there twice",
        ),
        (
            [&states[..3], &[IterableState::default()]].concat(),
            "before the first batch",
        ),
        (
            [
                &states[..3],
                &ranks(&source, &[], &[1; 3], &mut Vec::new())[..1],
            ]
            .concat(),
            "not of one run",
        ),
        (
            ranks(
                &numbers(shards(&[5; 11])).shuffle(5),
                &[],
                &[3; 4],
                &mut Vec::new(),
            ),
            "source is another",
        ),
        (
            ranks(
                &numbers(shards(&[5; 12])).shuffle(6),
                &[],
                &[3; 4],
                &mut Vec::new(),
            ),
            "source is another",
        ),
    ] {
        let error = refused(&states);
        assert!(error.contains(says), "{error}");
    }
    let other = DataLoader::iterable(source.clone())
        .seed(8)
        .collate_fn(|samples, _| Ok(samples))
        .build()
        .unwrap();
    let error = other.hand_over(&states).unwrap_err().to_string();
    assert!(error.contains("its seed is 7, the loader's 8"), "{error}");
    // One rank is an epoch ahead.
    let ahead = loader(source.clone(), rank(3, 4), 2);
    let mut begun = ahead.epoch(1);
    begun.next().unwrap().unwrap();
    let error = refused(&[&states[..3], &[begun.state()]].concat());
    assert!(
        error.contains("rank 3 is in epoch 1") && error.contains("epoch 0"),
        "{error}"
    );
    // The ranks of before take their own, and those that have begun nothing begin.
    let second = loader(source.clone(), rank(2, 4), 2);
    assert_eq!(second.hand_over(&states).unwrap(), states[2]);
    let none = ranks(&source, &[], &[0; 4], &mut Vec::new());
    assert_eq!(
        (
            alone.hand_over(&none).unwrap().items(),
            all(&alone, 0).len()
        ),
        (0, 60)
    );
    // And resuming from one of several says what to do.
    let error = alone
        .resume(0..1, &states[0])
        .map(|_| ())
        .unwrap_err()
        .to_string();
    assert!(error.contains("hand_over"), "{error}");
}

#[test]
fn what_keeps_items_of_a_rank_is_not_handed_over() {
    let source = numbers(shards(&[5; 8])).take(12);
    let states = ranks(&source, &[], &[1; 2], &mut Vec::new());
    let error = single(source).hand_over(&states).unwrap_err().to_string();
    assert!(error.contains("as many ranks as before"), "{error}");
}

#[test]
fn fewer_shards_than_ranks_are_refused() {
    let loader = loader(numbers(shards(&[5; 2])), rank(0, 3), 2);
    let errors = epoch(&loader, 0);
    assert_eq!(errors.len(), 1);
    assert!(
        errors[0]
            .as_ref()
            .unwrap_err()
            .contains("2 shards for 3 ranks"),
        "{errors:?}"
    );
}

/// What comes of three shards if the middle one is `bytes`: the numbers that came, and the errors.
fn with_middle(key: &str, bytes: Vec<u8>) -> (Vec<u64>, Vec<String>) {
    let mut store = shards(&[6, 0, 6]);
    store.objects.retain(|name, _| !name.starts_with("001"));
    store.objects.insert(key.to_owned(), bytes);
    let stream = numbers(store)
        .with_open_shards(1)
        .with_shuffled_shards(false);
    let found = epoch(&single(stream), 0);
    let errors = found
        .iter()
        .filter_map(|found| found.clone().err())
        .collect();
    (found.into_iter().filter_map(Result::ok).collect(), errors)
}

/// Six samples, from 100 on.
fn middle() -> Vec<u8> {
    tar((100..106u64).flat_map(|sample| {
        [
            (format!("{sample:05}.bin"), noise(sample, 900)),
            (format!("{sample:05}.cls"), sample.to_string().into_bytes()),
        ]
    }))
}

#[test]
fn a_shard_that_is_cut_off_is_one_error_behind_the_samples_before_that() {
    let archive = middle();
    for (key, bytes) in [
        ("001.tar", archive.clone()),
        ("001.tar.gz", gzip(&archive)),
        ("001.tar.zst", zstd(&archive)),
    ] {
        let (whole, errors) = with_middle(key, bytes.clone());
        assert_eq!((whole.len(), errors.len()), (18, 0), "{key}: {errors:?}");
        let cuts = (0..bytes.len())
            .step_by(311)
            .chain([1, 5, 512, bytes.len() - 1]);
        for cut in cuts {
            // (The end of a plain archive is two blocks of zeros, and one is enough.)
            if key == "001.tar" && cut > bytes.len() - 1_024 {
                continue;
            }
            let (found, errors) = with_middle(key, bytes[..cut].to_vec());
            assert_eq!(errors.len(), 1, "{key}, {cut} bytes: {errors:?}");
            assert!(errors[0].contains(key), "{key}, {cut} bytes: {errors:?}");
            let says = ["copy it again", "no tar archive", "it has no bytes"];
            assert!(
                says.iter().any(|says| errors[0].contains(says)),
                "{cut}: {errors:?}"
            );
            let (before, rest) = found.split_at(6);
            let (middle, behind) = rest.split_at(rest.len() - 6);
            assert!(
                before.iter().copied().eq(0..6) && behind.iter().copied().eq(6..12),
                "{found:?}"
            );
            assert!(
                middle.iter().copied().eq(100..100 + middle.len() as u64),
                "{found:?}"
            );
        }
    }
}

/// (A frame of Zstandard has a checksum if its writer gave it one. zstd does, ruzstd does not.)
#[test]
fn a_shard_that_is_damaged_is_an_error() {
    let text = |sample: WebSample<'_>, _: &mut SampleRng| {
        let fields: Vec<(&str, &[u8])> = sample.fields().collect();
        Ok(format!("{}: {fields:?}", sample.key()))
    };
    let read = |key: &str, bytes: Vec<u8>| -> Result<Vec<String>, Error> {
        let stream = WebDataset::builder(Memory::of([(key, bytes)]), key).stream(text)?;
        let loader = DataLoader::iterable(stream).num_workers(1).build()?;
        let batches: Result<Vec<Vec<String>>, Error> = loader.epoch(0).collect();
        Ok(batches?.concat())
    };
    let zstd = std::fs::read(fixtures().join("train-3.tar.zst")).unwrap();
    for (key, bytes) in [("a.tar.gz", gzip(&middle())), ("a.tar.zst", zstd)] {
        let expected = read(key, bytes.clone()).unwrap();
        let mut errors = 0;
        for at in (0..bytes.len()).step_by(41) {
            let mut damaged = bytes.clone();
            damaged[at] ^= 0x10;
            match read(key, damaged) {
                Err(error) => {
                    assert!(error.to_string().contains(key), "{error}");
                    errors += 1;
                }
                // (Some bits mean nothing: of a header, or those that fill a byte before a stored block.)
                Ok(found) => assert!(found == expected, "{key}, byte {at}"),
            }
        }
        assert!(errors > 40, "{errors}");
    }
}

#[test]
fn what_is_no_shard_is_an_error_that_says_what_it_is() {
    let read = |name: &str| std::fs::read(fixtures().join(name)).unwrap();
    for (bytes, says) in [
        (read("bz2.tar"), "bzip2"),
        (read("xz.tar"), "xz"),
        (b"<html>not found</html>".to_vec(), "<html>"),
        (gzip(b"{\"error\": 404}"), "no tar archive"),
        (zstd(&[]), "no bytes"),
        (
            gzip(&[middle(), middle()].concat()),
            "another archive follows",
        ),
        (
            [gzip(&middle()), b"more, and no gzip".to_vec()].concat(),
            "damaged",
        ),
    ] {
        let (found, errors) = with_middle("001.tar", bytes);
        assert!(
            found.len() >= 12 && errors.len() == 1,
            "{found:?} {errors:?}"
        );
        assert!(
            errors[0].contains("001.tar: ") && errors[0].contains(says),
            "{errors:?}"
        );
    }
}

#[test]
fn what_is_wrong_with_a_sample_is_an_error_in_its_place() {
    let of = |names: &[&str]| {
        gzip(&tar(names.iter().map(|name| {
            let (key, field) = name.split_once('.').unwrap();
            let number: u64 = key.parse().unwrap();
            (
                name.to_string(),
                if field == "bin" {
                    noise(number, 300)
                } else {
                    number.to_string().into_bytes()
                },
            )
        })))
    };
    let names = [
        "00100.bin",
        "00100.cls",
        "00101.bin",
        "00102.cls",
        "00102.bin",
        "00103.cls",
        "00103.CLS",
        "00103.bin",
        "00100.cls",
        "00100.bin",
        "00104.bin",
        "00104.cls",
    ];
    let build = |skip| {
        let builder = WebDataset::builder(Memory::of([("a.tar.gz", of(&names))]), "a.tar.gz")
            .field("bin")
            .field("cls");
        builder.skip_incomplete(skip).stream(number).unwrap()
    };
    let found = epoch(&single(build(false)), 0);
    let told: Vec<&str> = found
        .iter()
        .map(|found| found.as_ref().err().map_or("", |error| error))
        .collect();
    let expected = [
        "",
        "has no field \"cls\", but \"bin\"",
        "",
        "\"00103.cls\" and \"00103.CLS\"",
        "two samples have this key",
        "",
    ];
    assert_eq!(told.len(), expected.len(), "{told:?}");
    for (told, expected) in told.iter().zip(expected) {
        assert!(
            told.contains(expected) && told.is_empty() == expected.is_empty(),
            "{told}: {expected}"
        );
        assert!(
            told.is_empty() || told.contains("a.tar.gz: sample \"001"),
            "{told}"
        );
    }
    let skipped = epoch(&single(build(true)), 0);
    assert_eq!(
        (
            skipped.len(),
            skipped.iter().filter(|found| found.is_err()).count()
        ),
        (5, 2)
    );
    let loader = DataLoader::iterable(build(false))
        .batch_size(10)
        .on_error(OnError::Skip { at_most: 9 });
    let batches: Vec<_> = loader
        .collate_fn(|samples, _| Ok(samples))
        .build()
        .unwrap()
        .epoch(0)
        .collect();
    assert_eq!(batches.len(), 1);
    assert_eq!(batches[0].as_ref().unwrap(), &[100, 102, 104]);
    // What the program's own function makes of a sample names it, too.
    let stream = WebDataset::builder(shards(&[2]), "").stream(|sample, _| match sample.key() {
        "00001" => Err("it is not wanted".into()),
        _ => Ok(0),
    });
    let found = epoch(&single(stream.unwrap()), 0);
    assert!(
        found[1]
            .as_ref()
            .unwrap_err()
            .ends_with("000.tar.gz: sample \"00001\": it is not wanted"),
        "{found:?}"
    );
}

/// A sparse member is the error of its sample, in its place, if it is asked for; all others come, as Python's webdataset reads them.
#[test]
fn a_sparse_member_is_an_error_in_its_samples_place() {
    type Sample = (String, BTreeMap<String, Option<String>>);
    let expected = std::fs::read(fixtures().join("sparse.json")).unwrap();
    let expected: Vec<(String, Vec<Sample>)> = serde_json::from_slice(&expected).unwrap();
    assert_eq!(expected.len(), 4, "a form each");
    for (archive, samples) in &expected {
        let bytes = std::fs::read(fixtures().join(archive)).unwrap();
        for (name, bytes) in [
            ("a.tar", bytes.clone()),
            ("a.tar.gz", gzip(&bytes)),
            ("a.tar.zst", zstd(&bytes)),
        ] {
            let of_fields = |fields: &[&str]| {
                let mut builder = WebDataset::builder(Memory::of([(name, bytes.clone())]), name);
                for field in fields {
                    builder = builder.field(field);
                }
                let builder = builder.extent_bytes(700);
                let stream = builder.stream(|sample: WebSample<'_>, _: &mut SampleRng| {
                    let digit = sample.key().bytes().last().unwrap_or_default();
                    let read = |(_, bytes)| bytes == [digit];
                    assert!(sample.fields().all(read), "{sample:?}");
                    Ok(u64::from(digit - b'0'))
                });
                epoch(&single(stream.unwrap().with_open_shards(1)), 0)
            };
            for fields in [&[][..], &["bin"], &["cls"], &["bin", "cls"]] {
                let found = of_fields(fields);
                assert_eq!(found.len(), samples.len(), "{archive} {name} {found:?}");
                for (at, ((key, has), found)) in samples.iter().zip(found).enumerate() {
                    let is_wanted = |field: &str| fields.is_empty() || fields.contains(&field);
                    let sparse = has
                        .iter()
                        .find(|(field, bytes)| bytes.is_none() && is_wanted(field));
                    let case = format!("{archive} {name} {fields:?}: {found:?}");
                    match (sparse, &found) {
                        (None, Ok(found)) => assert_eq!(*found, at as u64, "{case}"),
                        (Some((field, _)), Err(said)) => {
                            let says =
                                format!("sample \"{key}\": its member \"{key}.{field}\" is sparse");
                            assert!(said.contains(&says) && said.contains(name), "{case}");
                        }
                        _ => panic!("{case}"),
                    }
                }
            }
        }
        // An index is of all members, so it refuses the shard; what has no key is no sample's.
        let builder = WebDataset::builder(LocalFiles::open(fixtures()).unwrap(), archive);
        let error = builder.build(number).unwrap_err().to_string();
        let says = "sample \"0002\": its member \"0002.bin\" is sparse";
        assert!(error.contains(archive) && error.contains(says), "{error}");
    }
}

/// A run goes on behind any batch of a shard with sparse members, wherever these are.
#[test]
fn a_run_goes_on_behind_a_sparse_member() {
    for archive in [
        "sparse-gnu.tar",
        "sparse-0.0.tar",
        "sparse-0.1.tar",
        "sparse-1.0.tar",
    ] {
        let build = || {
            let store = LocalFiles::open(fixtures()).unwrap();
            let stream = WebDataset::builder(store, archive).stream(|sample, _| {
                Ok(u64::from(
                    sample.key().bytes().last().unwrap_or_default() - b'0',
                ))
            });
            single(stream.unwrap().with_open_shards(1))
        };
        // (An error is in the place of its sample's batch, and a run goes on behind it, too.)
        let expected = [Some(0), Some(1), None, None, Some(4), None, Some(6)];
        let found = |batch: Result<Vec<u64>, Error>| batch.ok().map(|samples| samples[0]);
        for given in 0..=expected.len() {
            let first = build();
            let mut begun = first.epoch(0);
            let before = begun.by_ref().take(given).map(found);
            assert!(before.eq(expected[..given].iter().copied()), "{archive}");
            let state: IterableState = begun.state().to_string().parse().unwrap();
            let second = build();
            let rest = second.resume(0..1, &state).unwrap().flatten().map(found);
            let rest: Vec<Option<u64>> = rest.collect();
            assert_eq!(rest, expected[given..], "{archive}, {given} batches");
        }
    }
}

/// What a sample draws, beside it.
fn drawn(number: u64, rng: &mut SampleRng) -> Result<(u64, u64), BoxError> {
    Ok((number, rng.range(0..1u64 << 40)))
}

type Drawn = DataLoader<Vec<(u64, u64)>, Iterable>;

fn drawing<S: IterableDataset<Sample = u64>>(
    source: S,
    batch_size: usize,
    workers: usize,
    on_error: OnError,
) -> Drawn {
    let builder = DataLoader::iterable(source.map(drawn)).batch_size(batch_size);
    let builder = builder.seed(7).num_workers(workers).on_error(on_error);
    builder
        .collate_fn(|samples, _| Ok(samples))
        .build()
        .unwrap()
}

/// A store that does not answer for now: no sample is lost, whether the program waits for it, or ends and goes on later. Batches, what samples
/// draw, and states are those of a run that met no error.
#[test]
fn a_store_that_comes_back_costs_no_sample() {
    for (key, trap) in [
        ("000.tar.gz", Trap::Fails),
        ("001.tar", Trap::FailsInAWord),
        ("002.tar.zst", Trap::FailsInAWord),
    ] {
        for (window, size, workers) in [(1, 1, 1), (7, 4, 0), (7, 5, 2), (100, 3, 2)] {
            let store = Arc::new(shards(&[12, 12, 12]));
            let build = |size| {
                let stream = numbers(Arc::clone(&store)).with_open_shards(2);
                drawing(stream.shuffle(window), size, workers, OnError::Fail)
            };
            let case = format!("{key}, window {window}, batches of {size}");
            let (mut expected, mut states) = (Vec::new(), Vec::new());
            let calm = build(size);
            for batch in calm.epoch(0) {
                expected.push(batch.unwrap());
                states.push(calm.state());
            }
            let at = store.objects[key].len() as u64 / 2;
            store.trap(key, at, trap);
            let first = build(size);
            let (mut given, mut found, mut errors) = (Vec::new(), Vec::new(), 0);
            for batch in first.epoch(0) {
                match batch {
                    Ok(samples) => {
                        given.push(samples);
                        found.push(first.state());
                    }
                    Err(error) => {
                        let Error::Sample(id, cause) = &error else {
                            panic!("{error}")
                        };
                        // (Items that the batch has begun with are not lost.)
                        let begun = given.len() * size;
                        assert!(
                            (begun..begun + size).contains(&(id.index as usize)),
                            "{error}"
                        );
                        let is_temporary =
                            cause.is::<Temporary>() || ShardError::find(&error).is_some();
                        assert!(is_temporary && error.to_string().contains(key), "{error}");
                        let state = first.state();
                        assert_eq!(state.items(), begun as u64, "{case}");
                        assert!(found.last().is_none_or(|before| *before == state), "{case}");
                        errors += 1;
                    }
                }
                if errors == 3 {
                    *store.trap.lock().unwrap() = None;
                }
            }
            assert!(errors >= 3, "{case}: {errors}");
            assert!(given == expected, "{case}: {given:?}, and not {expected:?}");
            assert_eq!(found, states, "{case}");
            // From wherever a checkpoint was, before the error or behind it; and where the store fails again meanwhile.
            for (before, state) in (1..).zip(&found) {
                store.trap(key, at, trap);
                let again = build(size);
                let mut rest = Vec::new();
                for batch in again.resume(0..1, state).unwrap().flatten() {
                    match batch {
                        Ok(samples) => rest.push(samples),
                        Err(_) => *store.trap.lock().unwrap() = None,
                    }
                    if rest.is_empty() {
                        assert_eq!(&again.state(), state, "{case}, resumed behind {before}");
                    }
                }
                assert!(
                    rest == expected[before..],
                    "{case}, resumed behind {before}"
                );
            }
            // It is asked again as often as the quota says.
            store.trap(key, at, trap);
            let stream = numbers(Arc::clone(&store)).with_open_shards(2);
            let skips = OnError::Skip { at_most: 5 };
            let last = drawing(stream.shuffle(window), size, workers, skips);
            let mut given = 0;
            let error = last.epoch(0).find_map(|batch| match batch {
                Ok(samples) => {
                    assert!(samples == expected[given]);
                    given += 1;
                    None
                }
                Err(error) => Some(error),
            });
            assert!(
                error.is_some_and(|error| error.to_string().contains(key)),
                "{case}"
            );
            assert_eq!(last.stats().bad.skipped, 5, "{case}");
        }
    }
}

/// Batches that go to a device, and what is told of them, too.
#[test]
fn what_a_device_gets_is_what_it_would_have_had() {
    for hostile in [false, true] {
        let device = match hostile {
            true => Device::hostile(Hostile::default()).unwrap(),
            false => Device::cpu(),
        };
        let store = Arc::new(shards(&[12, 12, 12]));
        let stream = numbers(Arc::clone(&store))
            .shuffle(7)
            .map(|number, _| Ok(number as i64));
        let builder = DataLoader::iterable(stream).batch_size(5).seed(7);
        let loader = builder.num_workers(2).pin_memory(&device).build().unwrap();
        let take = |falls: bool| {
            let (mut given, mut indices, mut errors) = (Vec::new(), Vec::new(), 0);
            if falls {
                store.trap("001.tar", 9_000, Trap::FailsInAWord);
            }
            for batch in loader.epoch(0).prefetch_to_device(&device, 2).with_info() {
                match batch {
                    Ok((batch, info)) => {
                        given.push(
                            batch
                                .to_host(true)
                                .unwrap()
                                .wait()
                                .unwrap()
                                .as_slice()
                                .to_vec(),
                        );
                        indices.extend(info.indices());
                    }
                    Err(_) => errors += 1,
                }
                if errors == 3 {
                    *store.trap.lock().unwrap() = None;
                }
            }
            (given, indices, errors >= 3)
        };
        let expected = take(false);
        assert!(expected.1.iter().copied().eq(0..36) && !expected.2);
        assert_eq!(take(true), (expected.0, expected.1, true));
    }
}

/// A listing that fails for now is told; without one, shards are asked for by themselves.
#[test]
fn a_listing_that_fails_for_now_is_not_taken_for_none() {
    struct Unlisted(Memory, bool);

    impl Store for Unlisted {
        fn list(&self, _: &str) -> Result<Vec<Object>, BoxError> {
            Err(match self.1 {
                true => Temporary::new("busy").into(),
                false => "lists are forbidden".into(),
            })
        }

        fn object(&self, key: &str) -> Result<Object, BoxError> {
            self.0.object(key)
        }

        fn read(&self, object: &Object, range: Range<u64>) -> Result<Vec<u8>, BoxError> {
            self.0.read(object, range)
        }
    }

    let build = |is_busy| {
        let store = Unlisted(shards(&[5, 3]), is_busy);
        WebDataset::builder(store, "{000.tar.gz,001.tar}").stream(number)
    };
    assert_eq!(all(&single(build(false).unwrap()), 0).len(), 8);
    assert!(build(true).unwrap_err().to_string().contains("busy"));
}

/// A store that stays away: a program that stops at the first error does, and so does one that stops at the tenth. Each goes on later.
#[test]
fn a_store_that_stays_away_is_an_error_for_each_batch() {
    let store = Arc::new(shards(&[12, 12, 12]));
    let build = || {
        let stream = numbers(Arc::clone(&store)).shuffle(10);
        drawing(stream, 4, 2, OnError::Fail)
    };
    let whole: Vec<_> = build().epoch(0).flat_map(Result::unwrap).collect();
    for most in [1, 10] {
        store.trap("001.tar", 9_000, Trap::Fails);
        let loader = build();
        let (mut given, mut errors) = (Vec::new(), 0);
        for batch in loader.epoch(0) {
            match batch {
                Ok(samples) => given.extend(samples),
                Err(_) => errors += 1,
            }
            if errors == most {
                break;
            }
        }
        assert_eq!(errors, most);
        let state = loader.state();
        drop(loader);
        *store.trap.lock().unwrap() = None;
        let later = build();
        let rest = later.resume(0..1, &state).unwrap().flatten();
        given.extend(rest.flat_map(Result::unwrap));
        assert!(given == whole, "{most}");
    }
    // Whatever the quota, it is told in the end.
    store.trap("001.tar", 9_000, Trap::Fails);
    let skips = OnError::Skip { at_most: u64::MAX };
    let loader = drawing(numbers(Arc::clone(&store)).shuffle(10), 4, 2, skips);
    let mut results = loader.epoch(0);
    let mut errors = std::iter::from_fn(|| results.find_map(Result::err)).take(2);
    assert!(errors.all(|error| error.to_string().contains("503")));
    assert!(loader.stats().bad.skipped >= 32, "{}", loader.stats());
}

/// What is lost for good is one error. If it comes back nevertheless, a state within a window that it was in is refused.
#[test]
fn a_store_that_loses_a_shard_is_one_error() {
    for (trap, says) in [
        (Trap::Panics, "its store panicked"),
        (Trap::GivesTooLittle, "its store gave"),
    ] {
        for (key, window) in [("000.tar.gz", 1), ("001.tar", 5), ("002.tar.zst", 100)] {
            let store = Arc::new(shards(&[12, 12, 12]));
            let build = || {
                single(
                    numbers(Arc::clone(&store))
                        .with_open_shards(2)
                        .shuffle(window),
                )
            };
            let whole = all(&build(), 0);
            let at = store.objects[key].len() as u64 / 2;
            store.trap(key, at, trap);
            let first = build();
            let (mut states, mut errors) =
                (vec![(IterableState::default(), Vec::new())], Vec::new());
            let mut given = Vec::new();
            for batch in first.epoch(0) {
                match batch {
                    Ok(samples) => given.extend(samples),
                    Err(error) => errors.push(error),
                }
                states.push((first.state(), given.clone()));
            }
            assert_eq!(errors.len(), 1, "{errors:?}");
            let error = errors[0].to_string();
            assert!(error.contains(key) && error.contains(says), "{error}");
            assert!(given.len() < 36);
            // It stays lost: the run goes on where it was.
            for (state, before) in &states {
                let again = build();
                let resumed = again
                    .resume(0..1, state)
                    .unwrap()
                    .flatten()
                    .flat_map(Result::ok);
                let rest: Vec<u64> = resumed.flatten().collect();
                assert!(
                    given == [before.clone(), rest].concat(),
                    "{key}, window {window}: {state}"
                );
            }
            // It comes back: what was not given comes, or the state is refused.
            *store.trap.lock().unwrap() = None;
            let (mut exact, mut refused) = (0, 0);
            for (state, before) in &states {
                let again = build();
                let rest: Result<Vec<Vec<u64>>, Error> =
                    again.resume(0..1, state).unwrap().flatten().collect();
                match rest {
                    Ok(rest) => {
                        let rest = rest.concat();
                        assert!(
                            before.iter().all(|number| !rest.contains(number)),
                            "{state}"
                        );
                        exact += usize::from(before.len() + rest.len() == whole.len());
                    }
                    Err(error) => {
                        assert!(
                            error.to_string().contains("go on from an earlier state"),
                            "{error}"
                        );
                        refused += 1;
                    }
                }
            }
            assert!(
                exact > 0 && refused > 0,
                "{exact} and {refused} of {}",
                states.len()
            );
        }
    }
}

#[test]
fn an_epoch_that_is_left_in_the_middle_of_a_shard_costs_nothing() {
    let store = Arc::new(shards(&[12, 12, 12]));
    let loader = loader(numbers(Arc::clone(&store)), World::single(), 4);
    for given in [0, 1, 5] {
        let mut begun = loader.epoch(0);
        begun
            .by_ref()
            .take(given)
            .for_each(|batch| drop(batch.unwrap()));
        drop(begun);
    }
    // One whose store hangs, too: dropping the loader waits for the item that is pulled, but not for the readers ahead.
    store.trap("001.tar", 9_000, Trap::Waits);
    let mut begun = loader.epoch(0);
    begun.next().unwrap().unwrap();
    store.open_gate();
    drop(begun);
    *store.trap.lock().unwrap() = None;
    let mut samples = all(&loader, 1);
    samples.sort_unstable();
    assert!(samples.into_iter().eq(0..36));
}

#[test]
fn no_more_is_read_ahead_than_is_said() {
    // A field of 1 MiB in each of 64 samples.
    let archive = tar((0..64u64).map(|sample| {
        (
            format!("{sample:05}.cls"),
            format!("{sample}{}", " ".repeat(1 << 20)).into_bytes(),
        )
    }));
    let store = Arc::new(Memory::of([("a.tar", archive)]));
    let stream = WebDataset::builder(Arc::clone(&store), "a.tar").extent_bytes(1 << 20);
    let loader = single(
        stream
            .stream(|sample, _| Ok(sample.number("cls")?))
            .unwrap(),
    );
    let mut begun = loader.epoch(0);
    for expected in 0..10 {
        assert_eq!(begun.next().unwrap().unwrap(), [expected]);
    }
    // 10 were given, some more are loaded ahead; 8 MiB and a sample of the reader's, and two ranges.
    let read = store.bytes.load(Ordering::SeqCst);
    assert!((11 << 20..28 << 20).contains(&read), "{} MiB", read >> 20);
    // And where a run goes on, a shard that is not compressed is read from there.
    let (state, before) = (begun.state(), store.bytes.load(Ordering::SeqCst));
    drop(begun);
    let rest: Vec<u64> = loader
        .resume(0..1, &state)
        .unwrap()
        .flatten()
        .flat_map(Result::unwrap)
        .collect();
    assert!(rest.into_iter().eq(10..64));
    let read = store.bytes.load(Ordering::SeqCst) - before;
    assert!(read < 75 << 20, "{} MiB", read >> 20);
}

#[test]
fn what_a_stream_has_no_use_for_is_refused() {
    let refused =
        |builder: WebDatasetBuilder| builder.stream(number).map(|_| ()).unwrap_err().to_string();
    let builder = || WebDataset::builder(shards(&[1, 1]), "");
    let folder = tempfile::tempdir().unwrap();
    for (error, says) in [
        (refused(builder().keep_index(folder.path())), "keep_index"),
        (refused(builder().dali_index("{a,b}")), "dali_index"),
        (refused(builder().extent_bytes(0)), "extent_bytes"),
        (refused(builder().field("a;;b")), "empty name"),
        (
            refused(WebDataset::builder(shards(&[1]), "000.tar")),
            "there is no 000.tar",
        ),
        (
            refused(WebDataset::builder(Memory::of([("a.txt", vec![])]), "")),
            "*.tar.gz",
        ),
        (
            refused(WebDataset::builder(
                Memory::of([("a.tar", vec![]), ("a.tar.gz", vec![])]),
                "",
            )),
            "twice",
        ),
    ] {
        assert!(error.contains(says), "{error}");
    }
    // An index of shards that is needed says where to find the other way.
    let error = WebDataset::builder(shards(&[1]), "000.tar.gz")
        .build(number)
        .unwrap_err()
        .to_string();
    assert!(
        error.contains("gzip") && error.contains("`stream`"),
        "{error}"
    );
}

#[test]
fn shards_of_wids_are_counted() {
    let index = |samples: u64| {
        let list = format!(
            r#"[{{"url": "000.tar.gz", "nsamples": {samples}}}, {{"url": "001.tar", "nsamples": 3}}]"#
        );
        format!(r#"{{"wids_version": 1, "shardlist": {list}}}"#).into_bytes()
    };
    for (said, errors) in [(5, 0), (6, 1)] {
        let mut store = shards(&[5, 3]);
        store.objects.insert("index.json".to_owned(), index(said));
        let stream = WebDataset::from_wids(store, "index.json")
            .unwrap()
            .stream(number)
            .unwrap();
        let found = epoch(&single(stream), 0);
        assert_eq!(found.iter().filter(|found| found.is_ok()).count(), 8);
        let told: Vec<&String> = found
            .iter()
            .filter_map(|found| found.as_ref().err())
            .collect();
        assert_eq!(told.len(), errors, "{told:?}");
        assert!(
            told.iter().all(
                |told| told.contains("000.tar.gz: it has 5 samples") && told.contains("says 6")
            ),
            "{told:?}"
        );
    }
}

#[test]
fn the_error_of_a_shard_is_found_however_many_lie_between() {
    let cut_off = || gzip(&middle())[..900].to_vec();
    let stream = || {
        let store = Memory::of([("a.tar.gz", cut_off())]);
        WebDataset::builder(store, "a.tar.gz")
            .stream(number)
            .unwrap()
    };
    let shard = |error: &Error| {
        let found = ShardError::find(error);
        found.map(|found| (found.shard().to_owned(), found.key().is_some()))
    };
    let of = |loader: DataLoader<Vec<u64>, Iterable>| {
        let error = loader.epoch(0).find_map(Result::err).unwrap();
        shard(&error).unwrap_or_else(|| panic!("{error}"))
    };
    assert_eq!(of(single(stream())).0, "a.tar.gz");
    assert_eq!(
        of(single(stream().filter(|_, _| Ok(true)).shuffle(3))).0,
        "a.tar.gz"
    );
    let texts = stream().map(|number, _| Ok(vec![number as u32; 2])).pack(3);
    let rows = texts.unwrap().map(|row, _| Ok(row.tokens.len() as u64));
    assert_eq!(of(single(rows)).0, "a.tar.gz");
    // What a data set with an index says of the extent that it could not fetch.
    let store = Arc::new(Memory::of([("a.tar", middle())]));
    let data = WebDataset::builder(Arc::clone(&store), "a.tar")
        .build(number)
        .unwrap();
    store.trap("a.tar", 700, Trap::GivesTooLittle);
    let loader = DataLoader::builder(data).batch_size(2).build().unwrap();
    let error = loader.epoch(0).find_map(Result::err).unwrap();
    assert_eq!(shard(&error), Some(("a.tar".to_owned(), false)), "{error}");
    // What a builder says, and what is none.
    let refused =
        WebDataset::builder(Memory::of([("a.tar.gz", cut_off())]), "a.tar.gz").build(number);
    let found = refused.map(|_| ()).map_err(|error| shard(&error).is_some());
    assert_eq!(found, Err(true));
    assert!(shard(&Error::WrongThread).is_none());
}

/// What may go away is tried again, whatever its store says of it.
#[test]
fn a_word_of_a_store_is_enough_to_try_again() {
    let store = Arc::new(Memory::of([("a.tar", middle())]));
    let data = WebDataset::builder(Arc::clone(&store), "a.tar")
        .build(number)
        .unwrap();
    store.trap("a.tar", 700, Trap::FailsInAWord);
    let builder = DataLoader::builder(data).batch_size(6);
    let loader = builder.retry(3, std::time::Duration::ZERO).build().unwrap();
    assert!(loader.epoch(0).next().unwrap().is_err());
    assert!(loader.stats().bad.retried > 0, "{}", loader.stats());
}

/// What comes of a shard does not depend on where a run began to read it: so no window is another one.
#[test]
fn what_a_shard_gives_is_the_same_from_any_state() {
    let contents = |name: &str| {
        let (key, field) = name.split_once('.').unwrap();
        let number: u64 = key.parse().unwrap();
        match field {
            "bin" => noise(number, 300),
            _ => number.to_string().into_bytes(),
        }
    };
    // Samples that lack something, one whose halves lie apart, and one that is there twice.
    let files = [
        "00001.bin",
        "00001.cls",
        "00002.bin",
        "00003.bin",
        "00003.cls",
        "00004.cls",
        "00004.bin",
        "00002.cls",
        "00005.bin",
        "00005.cls",
        "00006.cls",
        "00007.bin",
        "00007.cls",
        "00008.bin",
        "00008.cls",
    ];
    let archive = tar(files.map(|name| (name, contents(name))));
    let index = br#"{"wids_version": 1, "shardlist": [{"url": "a.tar", "nsamples": 12}, {"url": "b.tar.gz", "nsamples": 9}]}"#;
    let store = Arc::new(Memory::of([
        ("index.json", index.to_vec()),
        ("a.tar", archive.clone()),
        ("b.tar.gz", gzip(&archive)),
    ]));
    for skips in [true, false] {
        for window in [1, 4, 50] {
            let build = || {
                let shards = WebDataset::from_wids(Arc::clone(&store), "index.json").unwrap();
                let shards = shards.field("bin").field("cls").skip_incomplete(skips);
                single(
                    shards
                        .stream(number)
                        .unwrap()
                        .with_open_shards(1)
                        .shuffle(window),
                )
            };
            let loader = build();
            let (mut expected, mut states) = (Vec::new(), Vec::new());
            for batch in loader.epoch(0) {
                expected.push(batch.map_err(|error| error.to_string()));
                states.push(loader.state());
            }
            let counts = expected
                .iter()
                .filter(|found| matches!(found, Err(error) if error.contains("samples, and")));
            assert_eq!(counts.count(), 1, "{expected:?}");
            for (before, state) in (1..).zip(&states) {
                let again = build();
                let rest = again.resume(0..1, state).unwrap().flatten();
                let rest: Vec<_> = rest
                    .map(|batch| batch.map_err(|error| cause(&error.to_string())))
                    .collect();
                let expected = expected[before..].iter().cloned();
                let mut expected: Vec<_> = expected
                    .map(|found| found.map_err(|error| cause(&error)))
                    .collect();
                // (A key that came before is not known where reading began behind it: that is said in the documentation.)
                if !skips {
                    expected.iter_mut().zip(&rest).for_each(|(expected, rest)| {
                        if matches!((&*expected, rest), (Err(twice), Err(lacks)) if twice.contains("have this key") && lacks.contains("has no field")) {
                            *expected = rest.clone();
                        }
                    });
                }
                assert_eq!(rest, expected, "window {window}, behind {before}");
            }
        }
    }
}

/// What an error says without the sample that it is of.
fn cause(said: &str) -> String {
    said.split_once(".tar")
        .map_or(said, |(_, rest)| rest)
        .to_owned()
}

/// The last sample of a shard whose end is wrong is whole, and the error is the shard's.
#[test]
fn what_is_wrong_with_a_shards_end_costs_no_sample() {
    let mut checksum = gzip(&middle());
    let at = checksum.len() - 6;
    checksum[at] ^= 1;
    for (key, bytes) in [
        ("001.tar.gz", checksum),
        ("001.tar.gz", gzip(&[middle(), middle()].concat())),
        ("001.tar", [middle(), middle()].concat()),
        ("001.tar.gz", [gzip(&middle()), b"more".to_vec()].concat()),
    ] {
        let (found, errors) = with_middle(key, bytes);
        assert_eq!((found.len(), errors.len()), (18, 1), "{errors:?}");
        assert!(!errors[0].contains("sample \""), "{errors:?}");
    }
}

/// Whatever the order of the states, each rank comes to the same.
#[test]
fn the_order_of_the_states_does_not_matter() {
    let source = numbers(shards(&[9; 16])).shuffle(7);
    let mut states = ranks(&source, &[], &[3, 3, 3, 3], &mut Vec::new());
    let again = ranks(&source, &states, &[2, 2, 2], &mut Vec::new());
    let dealt = |states: &[IterableState], ranks| -> Vec<IterableState> {
        let of_rank = |at| {
            loader(source.clone(), rank(at, ranks), 2)
                .hand_over(states)
                .unwrap()
        };
        (0..ranks).map(of_rank).collect()
    };
    let expected = dealt(&states, 3);
    states.reverse();
    assert_eq!(dealt(&states, 3), expected);
    states.swap(1, 2);
    assert_eq!(dealt(&states, 3), expected);
    let (expected, rotated) = (dealt(&again, 5), [&again[1..], &again[..1]].concat());
    assert_eq!(dealt(&rotated, 5), expected);
}

/// A rank that has ended its epoch had numbers that no other is given.
#[test]
fn no_two_samples_draw_the_same_though_a_rank_has_ended() {
    let sizes = [40, 2, 2, 2];
    let store = Arc::new(shards(&sizes));
    let build = |at, ranks| {
        let stream = numbers(Arc::clone(&store)).with_shuffled_shards(false);
        let stream = stream.map(drawn).filter(|_, _| Ok(true));
        let stream = stream
            .map(|(number, early): (u64, u64), rng| Ok((number, early, rng.range(0..1u64 << 40))));
        let builder = DataLoader::iterable(stream)
            .batch_size(1)
            .seed(7)
            .world(rank(at, ranks));
        builder
            .collate_fn(|samples, _| Ok(samples))
            .build()
            .unwrap()
    };
    let (mut given, mut states) = (Vec::new(), Vec::new());
    // Of four ranks, the second has had all of its epoch, which the third has hardly begun. The first has most of its left.
    for (at, batches) in [(0, 1), (1, 9), (2, 1), (3, 9)] {
        let loader = build(at, 4);
        let mut epoch = loader.epoch(0);
        given.extend(epoch.by_ref().take(batches).flat_map(Result::unwrap));
        states.push(epoch.state());
    }
    assert_eq!(
        states.iter().map(IterableState::epoch).collect::<Vec<_>>(),
        [0, 1, 0, 1]
    );
    for at in 0..2 {
        let loader = build(at, 2);
        let state = loader.hand_over(&states).unwrap();
        let rest = loader.resume(0..1, &state).unwrap().flatten();
        given.extend(rest.flat_map(Result::unwrap));
    }
    assert_eq!(given.len(), 46);
    for draw in [
        |sample: &(u64, u64, u64)| sample.1,
        |sample: &(u64, u64, u64)| sample.2,
    ] {
        let draws: std::collections::BTreeSet<u64> = given.iter().map(draw).collect();
        assert_eq!(draws.len(), given.len(), "{given:?}");
    }
}

/// A window that was dealt to a rank and cannot be read as it was ends the run: nothing of it is left out.
#[test]
fn a_dealt_window_that_is_another_one_ends_the_run() {
    let store = Arc::new(shards(&[9; 8]));
    let source = numbers(Arc::clone(&store)).shuffle(10);
    let states = ranks(&source, &[], &[3, 3], &mut Vec::new());
    for trap in [Trap::Panics, Trap::GivesTooLittle] {
        let builder = DataLoader::iterable(source.clone()).seed(7).num_workers(1);
        let builder = builder.on_error(OnError::Skip { at_most: 1 });
        let alone = builder
            .collate_fn(|samples, _| Ok(samples))
            .build()
            .unwrap();
        let state = alone.hand_over(&states).unwrap();
        let mut results = Vec::new();
        for key in store.objects.keys() {
            store.trap(key, 600, trap);
            let found: Vec<_> = alone.resume(0..1, &state).unwrap().flatten().collect();
            *store.trap.lock().unwrap() = None;
            if let Some(Err(error)) = found.last() {
                assert!(matches!(error, Error::Iterable { .. }), "{error}");
                assert!(
                    error.to_string().contains("go on from an earlier state"),
                    "{error}"
                );
                assert!(found.iter().rev().skip(1).all(Result::is_ok));
            }
            results.push(found.last().is_some_and(Result::is_err));
        }
        assert!(results.contains(&true), "{results:?}");
    }
    // And with one that is as it was, a state between its items has what is left of it.
    let alone = single(source.clone());
    let state = alone.hand_over(&states).unwrap();
    let whole: Vec<u64> = alone
        .resume(0..1, &state)
        .unwrap()
        .flatten()
        .flat_map(Result::unwrap)
        .collect();
    for given in 0..12 {
        let mut epochs = alone.resume(0..1, &state).unwrap();
        let mut begun = epochs.next().unwrap();
        begun.by_ref().take(given).for_each(drop);
        let state = begun.state();
        drop(begun);
        let rest: Vec<u64> = alone
            .resume(0..1, &state)
            .unwrap()
            .flatten()
            .flat_map(Result::unwrap)
            .collect();
        assert_eq!(rest, whole[given..]);
    }
}

/// Runs a test of this file in a process of its own, which it says.
#[cfg(all(unix, not(miri)))]
fn is_alone(test: &str, stack: Option<&str>) -> bool {
    const ALONE: &str = "PINFEED_TEST_ALONE_WITH_SHARDS";
    if std::env::var_os(ALONE).is_some() {
        return true;
    }
    let mut process = std::process::Command::new(std::env::current_exe().unwrap());
    process
        .args(["--exact", &format!("shard_streams::{test}"), "--nocapture"])
        .env(ALONE, "1");
    if let Some(bytes) = stack {
        process.env("RUST_MIN_STACK", bytes);
    }
    let ended = process.output().unwrap();
    let printed = String::from_utf8_lossy(&ended.stdout).into_owned()
        + &String::from_utf8_lossy(&ended.stderr);
    assert!(
        ended.status.success() && printed.contains("1 passed"),
        "{printed}"
    );
    false
}

/// In a forked child there are none of the threads that read shards.
#[test]
#[cfg(all(unix, not(miri)))]
#[expect(unsafe_code, reason = "it forks")]
fn a_forked_child_is_told_that_its_shards_are_read_elsewhere() {
    if !is_alone(
        "a_forked_child_is_told_that_its_shards_are_read_elsewhere",
        None,
    ) {
        return;
    }
    let build = || {
        let stream = numbers(shards(&[12, 12, 12])).shuffle(4);
        let builder = DataLoader::iterable(stream).batch_size(2).seed(7);
        builder
            .collate_fn(|samples, _| Ok(samples))
            .build()
            .unwrap()
    };
    let whole: Vec<u64> = build().epoch(0).flat_map(Result::unwrap).collect();
    let loader = build();
    let mut epoch = loader.epoch(0);
    let mut given = epoch.next().unwrap().unwrap();
    // SAFETY: the child ends by itself, and runs none of the parent's code after that.
    let process = unsafe { libc::fork() };
    if process == 0 {
        // SAFETY: it takes a number.
        unsafe { libc::alarm(60) };
        let child = || {
            let error = epoch.find_map(Result::err).unwrap();
            assert!(error.to_string().contains("forked"), "{error}");
            assert!(epoch.next().is_none());
            drop(epoch);
        };
        let is_ok = std::panic::catch_unwind(std::panic::AssertUnwindSafe(child)).is_ok();
        // SAFETY: likewise.
        unsafe { libc::_exit(i32::from(!is_ok)) }
    }
    let mut status = 0;
    // SAFETY: it writes one number.
    assert_eq!(unsafe { libc::waitpid(process, &mut status, 0) }, process);
    assert_eq!(status, 0);
    given.extend(epoch.flat_map(Result::unwrap));
    assert_eq!(given, whole);
}

/// A thread that the system does not start for now is an error that names its shard, and costs no sample.
#[test]
#[cfg(all(target_os = "linux", not(miri)))]
#[expect(unsafe_code, reason = "it sets a limit of its process")]
fn a_thread_that_does_not_start_costs_no_sample() {
    // (Each thread's stack takes more than the process may have; all else, hardly any.)
    if !is_alone(
        "a_thread_that_does_not_start_costs_no_sample",
        Some("1073741824"),
    ) {
        return;
    }
    let build = || drawing(numbers(shards(&[6, 6, 6])).shuffle(4), 2, 0, OnError::Fail);
    let whole: Vec<_> = build().epoch(0).flat_map(Result::unwrap).collect();
    let limit = |bytes| {
        let limit = libc::rlimit {
            rlim_cur: bytes,
            rlim_max: libc::RLIM_INFINITY,
        };
        // SAFETY: it reads a value of that type.
        assert_eq!(unsafe { libc::setrlimit(libc::RLIMIT_AS, &limit) }, 0);
    };
    let has = std::fs::read_to_string("/proc/self/statm").unwrap();
    let pages: u64 = has.split(' ').next().unwrap().parse().unwrap();
    let loader = build();
    let (mut given, mut errors) = (Vec::new(), 0);
    limit(pages * 4_096 + (256 << 20));
    for batch in loader.epoch(0) {
        match batch {
            Ok(samples) => given.extend(samples),
            Err(error) => {
                errors += 1;
                let text = error.to_string();
                let shard = ShardError::find(&error).map(ShardError::shard);
                assert!(shard.is_some_and(|shard| text.contains(shard)), "{text}");
                assert!(text.contains("no thread could be started"), "{text}");
                if errors == 3 {
                    limit(libc::RLIM_INFINITY);
                }
                assert!(errors < 10, "{text}");
            }
        }
    }
    // (Some more shards were opened meanwhile.)
    assert!(given == whole && errors >= 3, "{errors}: {given:?}");
}
