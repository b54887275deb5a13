//! Tar shards: what Python's webdataset reads in them, one order over all of them, resumed on other ranks, and what is refused.
//!
//! The archives in tests/fixtures/shards are by other writers; shards.py there says which.

use std::collections::{BTreeMap, HashSet};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use pinfeed::dataset::{BlockSource, Blocked, IntoDataset};
use pinfeed::error::Temporary;
use pinfeed::loader::{LoaderState, OnError, World};
use pinfeed::rng::RngKey;
use pinfeed::sampler::Sampler;
use pinfeed::store::{LocalFiles, Object, Store};
use pinfeed::webdataset::{ShardError, WebDataset, WebDatasetBuilder, WebSample};
use pinfeed::{BoxError, DataLoader, Dataset, Error, SampleRng};
use proptest::prelude::*;

fn fixtures() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/shards")
}

/// Objects in memory, which counts what is read of them.
#[derive(Default)]
struct Memory {
    objects: BTreeMap<String, Vec<u8>>,
    reads: AtomicU64,
    bytes: AtomicU64,
    /// How much each asked for.
    lengths: Mutex<Vec<u64>>,
    /// How many reads fail before one succeeds.
    failing: AtomicU64,
    /// Whether it can list.
    is_listless: bool,
    asked: Mutex<Vec<String>>,
}

impl Memory {
    fn of<'a>(objects: impl IntoIterator<Item = (&'a str, Vec<u8>)>) -> Memory {
        let objects = objects
            .into_iter()
            .map(|(key, bytes)| (key.to_owned(), bytes));
        Memory {
            objects: objects.collect(),
            ..Memory::default()
        }
    }
}

impl Store for Memory {
    fn list(&self, prefix: &str) -> Result<Vec<Object>, BoxError> {
        self.asked.lock().unwrap().push(format!("list {prefix}"));
        if self.is_listless {
            return Err("405 Method Not Allowed".into());
        }
        let folder = prefix.trim_end_matches('/');
        let is_below = |key: &&String| {
            folder.is_empty()
                || key
                    .strip_prefix(folder)
                    .is_some_and(|rest| rest.starts_with('/'))
        };
        let keys = self.objects.keys().filter(is_below);
        Ok(keys.map(|key| self.describe(key)).collect())
    }

    fn object(&self, key: &str) -> Result<Object, BoxError> {
        self.asked.lock().unwrap().push(format!("object {key}"));
        match self.objects.contains_key(key) {
            true => Ok(self.describe(key)),
            false => Err(format!("there is no {key}").into()),
        }
    }

    fn read(&self, object: &Object, range: Range<u64>) -> Result<Vec<u8>, BoxError> {
        self.reads.fetch_add(1, Ordering::SeqCst);
        self.bytes
            .fetch_add(range.end - range.start, Ordering::SeqCst);
        self.lengths.lock().unwrap().push(range.end - range.start);
        let fails = |left: u64| left.checked_sub(1);
        if self
            .failing
            .fetch_update(Ordering::SeqCst, Ordering::SeqCst, fails)
            .is_ok()
        {
            return Err(Temporary::new("503 Service Unavailable").into()); // (it does not say of which object)
        }
        let part = self.objects[&object.key].get(range.start as usize..range.end as usize);
        Ok(part
            .ok_or_else(|| format!("{} has no bytes {range:?}", object.key))?
            .to_vec())
    }
}

impl Memory {
    fn describe(&self, key: &str) -> Object {
        Object {
            key: key.to_owned(),
            bytes: self.objects[key].len() as u64,
            version: Some(format!("\"{:x}\"", self.objects[key].len())),
        }
    }
}

/// An archive of these files.
fn tar<'a>(files: impl IntoIterator<Item = (&'a str, &'a [u8])>) -> Vec<u8> {
    let mut builder = tar::Builder::new(Vec::new());
    for (name, contents) in files {
        let mut header = tar::Header::new_gnu();
        header.set_size(contents.len() as u64);
        header.set_mode(0o644);
        builder.append_data(&mut header, name, contents).unwrap();
    }
    builder.into_inner().unwrap()
}

/// A sample as these tests compare it: its key, and its fields.
type Whole = (String, BTreeMap<String, Vec<u8>>);

fn whole(sample: WebSample<'_>, _: &mut SampleRng) -> Result<Whole, BoxError> {
    let fields = sample.fields().map(|(name, bytes)| {
        assert_eq!(sample.shared(name).unwrap(), bytes);
        (name.to_owned(), bytes.to_vec())
    });
    Ok((sample.key().to_owned(), fields.collect()))
}

fn key(sample: WebSample<'_>, _: &mut SampleRng) -> Result<String, BoxError> {
    Ok(format!("{}: {}", sample.shard(), sample.key()))
}

fn get<D: Dataset>(data: &D, index: u64) -> Result<D::Sample, BoxError> {
    let mut rng = SampleRng::for_sample(RngKey {
        seed: 1,
        epoch: 0,
        position: index,
    });
    data.get(index, &mut rng)
}

/// All samples of a shard, in its order.
fn all(builder: WebDatasetBuilder) -> Result<Vec<Whole>, BoxError> {
    let data = builder.build(whole)?.into_dataset();
    (0..data.len()).map(|index| get(&data, index)).collect()
}

/// The error of a shard, if it is one.
fn of_shard(error: &Error) -> Option<&ShardError> {
    match error {
        Error::Source(cause) | Error::Sample(_, cause) => cause.downcast_ref(),
        _ => None,
    }
}

fn of_bytes(shard: Vec<u8>) -> WebDatasetBuilder {
    WebDataset::builder(Memory::of([("a/shard.tar", shard)]), "a/shard.tar")
}

/// Why these bytes are no shard.
#[track_caller]
fn refusal(shard: Vec<u8>) -> String {
    let error = of_bytes(shard).build(whole).unwrap_err();
    let shard = of_shard(&error).unwrap().shard();
    assert_eq!(shard, "a/shard.tar");
    error.to_string()
}

#[test]
fn shards_of_others_are_read_as_webdataset_reads_them() {
    let expected = std::fs::read(fixtures().join("samples.json")).unwrap();
    type Fields = BTreeMap<String, String>;
    let expected: Vec<(String, Vec<(String, Fields)>)> = serde_json::from_slice(&expected).unwrap();
    assert_eq!(expected.len(), 10);
    for (archive, samples) in expected {
        let store = LocalFiles::open(fixtures()).unwrap();
        let found = all(WebDataset::builder(store, &archive)).unwrap();
        let unhex = |text: &String| -> Vec<u8> {
            let digits = text.as_bytes().chunks(2);
            digits
                .map(|digits| u8::from_str_radix(std::str::from_utf8(digits).unwrap(), 16).unwrap())
                .collect()
        };
        let samples = samples.into_iter().map(|(key, fields)| {
            let fields = fields
                .iter()
                .map(|(name, text)| (name.clone(), unhex(text)));
            (key, fields.collect::<BTreeMap<_, _>>())
        });
        assert_eq!(found, samples.collect::<Vec<_>>(), "{archive}");
    }
}

#[test]
fn what_samples_hold_is_got_by_name() {
    let shards = WebDataset::open(fixtures().join("img2dataset.tar").to_str().unwrap()).unwrap();
    let data = shards
        .field("jpg;jpeg;png")
        .optional_field("TXT")
        .build(|sample, _| {
            assert!(sample.get("json").is_none(), "it was not chosen");
            assert!(sample.get("png;jpg").is_some());
            let missing = sample.field("json").unwrap_err().to_string();
            assert!(
                missing.contains(r#"has no field "json", but "#),
                "{missing}"
            );
            let missing = sample.shared("json").unwrap_err().to_string();
            assert!(
                missing.contains(r#"has no field "json", but "#),
                "{missing}"
            );
            let number = sample.number::<i64>("txt").unwrap_err();
            assert_eq!(number.key(), Some(sample.key()));
            assert!(
                number.to_string().contains("is not such a number"),
                "{number}"
            );
            Ok((
                sample.field("jpg;jpeg")?[..2].to_vec(),
                sample.text("txt")?.to_owned(),
            ))
        })
        .unwrap();
    assert_eq!(data.shards().collect::<Vec<_>>(), [("img2dataset.tar", 3)]);
    assert_eq!(data.key(2), ("000070003", "img2dataset.tar"));
    let data = data.into_dataset();
    assert_eq!(data.describe(1).unwrap(), "img2dataset.tar: 000070001");
    let (jpeg, text) = get(&data, 2).unwrap();
    assert_eq!((jpeg, &*text), (vec![0xff, 0xd8], "a picture, no. 3"));
    let beyond = get(&data, 3).unwrap_err().to_string();
    assert!(beyond.contains("no sample 3"), "{beyond}");
}

/// Three shards of the writer's, read in a random order by several workers; then again, after it was left in the middle.
#[test]
fn an_epoch_has_each_sample_once() {
    let pattern = format!("{}/train-{{000000..000002}}.tar", fixtures().display());
    let shards = WebDataset::open(&pattern).unwrap().extent_bytes(2_048);
    let data = shards.build(key).unwrap();
    assert!(data.blocks().len() > 3, "{data:?}");
    let loader = DataLoader::builder(data)
        .batch_size(3)
        .shuffle(true)
        .num_workers(2)
        .build()
        .unwrap();
    let mut first = loader.epoch(0);
    assert!(first.next().unwrap().is_ok());
    drop(first);
    let mut orders = HashSet::new();
    for epoch in 0..3 {
        let mut seen: Vec<String> = loader
            .epoch(epoch)
            .flat_map(|batch| batch.unwrap())
            .collect();
        orders.insert(seen.clone());
        seen.sort();
        let expected = (0..8).map(|index| format!("train-{:06}.tar: {index:05}", index / 3));
        assert!(seen.into_iter().eq(expected), "epoch {epoch}");
    }
    assert!(orders.len() > 1, "it is shuffled");
}

/// 24 shards, each with another number of samples.
fn many() -> (Memory, Vec<String>) {
    let (mut store, mut expected) = (Memory::default(), Vec::new());
    for shard in 0..24 {
        let name = format!("train/{shard:03}.tar");
        let names: Vec<String> = (0..shard % 7 + 4).map(|at| format!("{at:04}")).collect();
        let bytes = vec![shard as u8; 700];
        let files: Vec<String> = names
            .iter()
            .flat_map(|of| [format!("{of}.bin"), format!("{of}.cls")])
            .collect();
        let files = files.iter().map(|file| (file.as_str(), &bytes[..]));
        store.objects.insert(name.clone(), tar(files));
        expected.extend(names.into_iter().map(|key| format!("{name}: {key}")));
    }
    (store, expected)
}

/// An epoch that is resumed on other numbers of ranks, twice: each sample comes once, in one order.
#[test]
fn resumed_on_other_ranks() {
    let (store, mut expected) = many();
    let store = Arc::new(store);
    expected.sort();
    let loader = |rank: usize, ranks: usize| {
        let shards = WebDataset::builder(Arc::clone(&store), "train/{000..023}.tar");
        let data = shards.extent_bytes(4_096).build(key).unwrap();
        let builder = DataLoader::builder(data)
            .global_batch_size(12)
            .shuffle(true)
            .seed(5);
        builder
            .num_workers(2)
            .world(World::new(rank, ranks).unwrap())
            .build()
            .unwrap()
    };
    let run = |ranks: usize, state: &LoaderState, batches: usize| {
        let (mut seen, mut states) = (Vec::new(), Vec::new());
        for rank in 0..ranks {
            let loader = loader(rank, ranks);
            let mut epochs = loader.resume(0..1, state).unwrap();
            let mut epoch = epochs.next().unwrap();
            for _ in 0..batches {
                let Some(batch) = epoch.next() else { break };
                seen.extend(batch.unwrap());
            }
            drop(epoch);
            states.push(loader.state());
        }
        (seen, states.swap_remove(0))
    };
    for plan in [[2, 1, 2], [1, 2, 3], [3, 2, 1]] {
        let state = loader(0, 1).state();
        let (mut seen, state) = run(plan[0], &state, 3);
        let (more, state) = run(plan[1], &state, 4);
        seen.extend(more);
        seen.extend(run(plan[2], &state, usize::MAX).0);
        seen.sort();
        assert_eq!(seen, expected, "{plan:?} ranks");
    }
}

/// A store that fails now and then, and a shard of which a sample is bad.
#[test]
fn reads_are_tried_again_and_bad_samples_replaced() {
    let (store, expected) = many();
    let store = Arc::new(store);
    let shards = WebDataset::builder(Arc::clone(&store), "train/");
    let data = shards
        .extent_bytes(4_096)
        .build(|sample, rng| match sample.key() {
            "0001" => Err("no picture".into()),
            _ => key(sample, rng),
        })
        .unwrap();
    assert_eq!(data.len(), expected.len() as u64);
    store.failing.store(3, Ordering::SeqCst);
    let builder = DataLoader::builder(data)
        .batch_size(10)
        .shuffle(true)
        .num_workers(2);
    let builder = builder.retry(5, std::time::Duration::from_millis(1));
    let loader = builder
        .on_error(OnError::Replace { at_most: 40 })
        .build()
        .unwrap();
    let seen: Vec<String> = loader.epoch(0).flat_map(|batch| batch.unwrap()).collect();
    assert_eq!(seen.len(), expected.len());
    assert!(seen.iter().all(|of| !of.ends_with(": 0001")));
}

/// An extent that a store does not give, without a word of which object it is: the error has the shard.
#[test]
fn an_error_of_a_store_names_the_shard() {
    let (store, _) = many();
    let store = Arc::new(store);
    let data = WebDataset::builder(Arc::clone(&store), "train/");
    let loader = DataLoader::builder(data.build(key).unwrap())
        .build()
        .unwrap();
    store.failing.store(u64::MAX, Ordering::SeqCst);
    let error = loader.epoch(0).next().unwrap().unwrap_err();
    let of_shard = ShardError::find(&error).unwrap();
    assert!(of_shard.shard().contains("train/"), "{of_shard}");
    let said = of_shard.to_string();
    assert!(
        said.contains(of_shard.shard()) && said.contains("503 Service Unavailable"),
        "{said}"
    );
}

/// What is read at once is neither tiny nor large, whatever fields are wanted; and the order does not depend on these.
#[test]
fn extents_follow_from_the_shards() {
    let (store, _) = many();
    let store = Arc::new(store);
    let builder =
        || WebDataset::builder(Arc::clone(&store), "train/{000..023}.tar").extent_bytes(4_096);
    let data = builder().build(key).unwrap();
    let one = builder().field("cls").build(key).unwrap();
    let blocks = data.blocks();
    assert_eq!(one.blocks(), blocks);
    assert_eq!(one.fingerprint(), data.fingerprint());
    let other = builder().extent_bytes(9_000).build(key).unwrap();
    assert_ne!(other.fingerprint(), data.fingerprint());
    for block in 0..blocks.len() {
        let samples = blocks.range(block);
        assert_eq!(
            data.key(samples.start).1,
            data.key(samples.end - 1).1,
            "one shard"
        );
        let bytes = data.block_bytes(block, samples.clone());
        assert!((1_536..9_216).contains(&bytes), "{bytes}");
        store.bytes.store(0, Ordering::SeqCst);
        data.fetch(block, samples).unwrap();
        assert_eq!(store.bytes.load(Ordering::SeqCst), bytes as u64);
    }
    // By default, so small that there are many, but for tiny ones.
    let picture = vec![1; 50_000];
    let names: Vec<String> = (0..100).map(|at| format!("{at:03}.jpg")).collect();
    let shard = tar(names.iter().map(|name| (name.as_str(), &picture[..])));
    let usual = of_bytes(shard).build(key).unwrap();
    assert!((70..=100).contains(&usual.blocks().len()), "{usual:?}");
    let large = builder().extent_bytes(1 << 20).build(key).unwrap();
    assert_eq!(large.blocks().len(), 24, "a shard each");
}

#[test]
fn large_members_are_skipped_by_the_index() {
    let picture = vec![7; 300_000];
    let names: Vec<String> = (0..40)
        .flat_map(|of| [format!("{of:03}.jpg"), format!("{of:03}.cls")])
        .collect();
    let files = names.iter().map(|name| {
        (
            name.as_str(),
            if name.ends_with("jpg") {
                &picture[..]
            } else {
                b"1"
            },
        )
    });
    let store = Arc::new(Memory::of([("a.tar", tar(files))]));
    let data = WebDataset::builder(Arc::clone(&store), "a.tar")
        .build(key)
        .unwrap();
    assert_eq!(data.len(), 40);
    // (On a busy machine, it may take the store for one that is far, and ask for 4 MiB at once.)
    let lengths = store.lengths.lock().unwrap();
    let near: Vec<u64> = lengths
        .iter()
        .copied()
        .filter(|bytes| *bytes < 1 << 20)
        .collect();
    assert!(near.iter().sum::<u64>() < 40 * 300_000 / 8, "{lengths:?}");
    assert!(lengths.len() <= 45, "{lengths:?}");
}

#[test]
fn a_kept_index_saves_the_headers_and_is_never_wrong() {
    let folder = tempfile::tempdir().unwrap();
    let (store, _) = many();
    let store = Arc::new(store);
    let build = |store: &Arc<Memory>| {
        store.reads.store(0, Ordering::SeqCst);
        let shards = WebDataset::builder(Arc::clone(store), "train/{000..023}.tar")
            .keep_index(folder.path());
        let data = shards.build(whole).unwrap().into_dataset();
        let reads = store.reads.load(Ordering::SeqCst);
        let samples: Vec<_> = (0..data.len())
            .map(|index| get(&data, index).unwrap())
            .collect();
        (reads, samples)
    };
    let (made, samples) = build(&store);
    assert!(made >= 24);
    assert_eq!(build(&store), (0, samples.clone()));
    let kept = |shard: usize| folder.path().join(format!("train%2F{shard:03}.tar.index"));
    // Cut off, damaged in each of its parts, of another version: made again.
    let bytes = std::fs::read(kept(3)).unwrap();
    for at in (0..bytes.len()).step_by(37) {
        std::fs::write(kept(3), &bytes[..at]).unwrap();
        let mut damaged = bytes.clone();
        damaged[at] ^= 0x20;
        std::fs::write(kept(4), &damaged).unwrap();
        let (reads, found) = build(&store);
        assert!((2..=8).contains(&reads), "{reads} reads");
        assert_eq!(found, samples);
    }
    // A shard that was replaced.
    let (mut other, _) = many();
    let replaced = other.objects["train/010.tar"].clone();
    other.objects.insert("train/005.tar".to_owned(), replaced);
    let (reads, found) = build(&Arc::new(other));
    assert!(reads >= 1 && found != samples);
    assert_eq!(build(&store).1, samples);
    assert!(
        std::fs::read_dir(folder.path()).unwrap().count() == 24,
        "nothing unfinished is left"
    );
}

/// Where an index cannot be kept, the data set is there all the same; one that is there and cannot be read is an error.
#[test]
fn a_folder_for_indexes_that_is_none() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("a file");
    std::fs::write(&file, "").unwrap();
    let shard = || of_bytes(tar([("a.txt", &b"1"[..])]));
    let below = shard().keep_index(file.join("below")).build(whole);
    assert!(below.is_ok() || below.unwrap_err().to_string().contains("a file"));
    std::fs::create_dir(folder.path().join("a%2Fshard.tar.index")).unwrap();
    let error = shard().keep_index(folder.path()).build(whole).unwrap_err();
    assert!(error.to_string().contains("a%2Fshard.tar.index"), "{error}");
}

#[test]
fn the_index_of_dali_finds_the_same() {
    let store = || LocalFiles::open(fixtures()).unwrap();
    let shards = || WebDataset::builder(store(), "train-{000000..000002}.tar");
    let expected = all(shards()).unwrap();
    assert_eq!(
        all(shards().dali_index("train-{000000..000002}.idx")).unwrap(),
        expected
    );
    let error = shards()
        .dali_index("train-000000.idx")
        .build(whole)
        .unwrap_err();
    assert!(
        error
            .to_string()
            .contains("names 1 indexes, and there are 3 shards"),
        "{error}"
    );
    // Where names are long in GNU's format, its offsets are those of the names.
    for (archive, wrong) in [("gnu", Some(0)), ("pax", None)] {
        let shard = WebDataset::builder(store(), &format!("{archive}.tar"));
        let data = shard
            .dali_index(&format!("{archive}.idx"))
            .build(whole)
            .unwrap()
            .into_dataset();
        let plain = all(WebDataset::builder(store(), &format!("{archive}.tar"))).unwrap();
        for index in 0..data.len() {
            match get(&data, index) {
                Ok(sample) => assert_eq!(sample, plain[index as usize]),
                Err(error) => {
                    assert_eq!(Some(index), wrong, "{error}");
                    assert!(
                        error.to_string().contains("make the index again"),
                        "{error}"
                    );
                }
            }
        }
        assert!(
            wrong.is_none_or(|wrong| get(&data, wrong).is_err()),
            "{archive}"
        );
    }
}

#[test]
fn an_index_of_dali_that_is_none_is_refused() {
    let shard = tar([("0.jpg", &b"1"[..]), ("0.cls", b"2")]);
    for (index, why) in [
        ("", "it begins with no version"),
        ("v1.1 1\njpg 512 1\n", "line 1: its version is not v1.2"),
        ("v1.2 2\njpg 512 1 0.jpg\n", "1 lines for 2 samples"),
        ("v1.2 1\njpg 512 1 a name.jpg\n", "four words"),
        ("v1.2 1\njpg x 1 0.jpg\n", "are no numbers"),
        ("v1.2 1\njpg 0 1 0.jpg\n", "where the shard has none"),
        ("v1.2 1\njpg 513 1 0.jpg\n", "where the shard has none"),
        (
            "v1.2 1\njpg 512 999999 0.jpg\n",
            "line 2: a member lies where the shard has none",
        ),
        (
            "v1.2 1\njpg 512 18446744073709551615 0.jpg\n",
            "where the shard has none",
        ),
    ] {
        let store = Memory::of([("a.tar", shard.clone()), ("a.idx", index.into())]);
        let error = WebDataset::builder(store, "a.tar")
            .dali_index("a.idx")
            .build(whole)
            .unwrap_err();
        let text = error.to_string();
        assert!(
            text.contains(why) && text.contains("a.tar: its index a.idx"),
            "{text}"
        );
    }
    // One of another shard is noticed when a sample is read.
    let index = "v1.2 1\njpg 512 0 0.jpg\n";
    let store = Memory::of([("a.tar", shard), ("a.idx", index.into())]);
    let data = WebDataset::builder(store, "a.tar")
        .dali_index("a.idx")
        .build(whole)
        .unwrap()
        .into_dataset();
    let error = get(&data, 0).unwrap_err().to_string();
    assert!(
        error.contains("a.tar: sample \"0\": what is at byte 0 is not what its index says"),
        "{error}"
    );
}

#[test]
fn the_index_of_wids_names_the_shards() {
    let shard = |samples: usize| {
        let names: Vec<String> = (0..samples).map(|at| format!("{at}.txt")).collect();
        tar(names.iter().map(|name| (name.as_str(), &b"1"[..])))
    };
    let index = |list: &str| {
        format!(r#"{{"__kind__": "wids-shard-index-v1", "wids_version": 1, "shardlist": {list}}}"#)
    };
    let open = |index: String| {
        let shards = [
            ("set/b.tar", shard(2)),
            ("set/a.tar", shard(3)),
            ("set/train.json", index.into_bytes()),
        ];
        WebDataset::from_wids(Memory::of(shards), "set/train.json")?.build(key)
    };
    let data = open(index(
        r#"[{"url": "b.tar", "nsamples": 2}, {"url": "a.tar", "nsamples": 3, "filesize": 1}]"#,
    ))
    .unwrap();
    assert_eq!(
        data.shards().collect::<Vec<_>>(),
        [("set/b.tar", 2), ("set/a.tar", 3)]
    );
    for (index, why) in [
        (
            index(r#"[{"url": "b.tar", "nsamples": 3}]"#),
            "set/b.tar: it has 2 samples, and set/train.json says 3",
        ),
        (
            index(r#"[{"url": "c.tar", "nsamples": 3}]"#),
            "there is no set/c.tar",
        ),
        (
            index(r#"[{"url": "s3://other/b.tar", "nsamples": 3}]"#),
            "is not in this store",
        ),
        (index(r#"[{"url": "b.tar"}]"#), "no \"nsamples\""),
        (index("3"), "no \"shardlist\""),
        (index("[]"), "no shards are named"),
        ("[]".to_owned(), "\"wids_version\" is not 1"),
        ("{".to_owned(), "set/train.json: it is no JSON"),
    ] {
        let error = open(index).unwrap_err().to_string();
        assert!(error.contains(why), "{error}");
    }
}

#[test]
fn shards_are_found_by_one_listing() {
    let found = |is_listless: bool, pattern: &str| {
        let store = Memory {
            is_listless,
            ..many().0
        };
        let store = Arc::new(store);
        let built = WebDataset::builder(Arc::clone(&store), pattern).build(key);
        let asked = store.asked.lock().unwrap().len();
        built.map(|data| (data.shards().count(), asked))
    };
    assert_eq!(found(false, "train/{000..023}.tar").unwrap(), (24, 1));
    assert_eq!(found(false, "train/").unwrap(), (24, 1));
    assert_eq!(found(false, "").unwrap(), (24, 1));
    assert_eq!(found(false, "train/{001,005}.tar").unwrap(), (2, 1));
    assert_eq!(found(false, "train/007.tar").unwrap(), (1, 1));
    assert_eq!(found(true, "train/{000..004}.tar").unwrap(), (5, 6));
    for (pattern, why) in [
        (
            "train/{000..024}.tar",
            "there is no shard train/024.tar, of the 25 that are named",
        ),
        ("train/{001,001}.tar", "is named twice"),
        ("train/{000..004.tar", "has a brace without its other one"),
        ("train/30.tar", "there is no train/30.tar"),
        (
            "train/*.tar",
            "there is no train/*.tar. A pattern has braces",
        ),
        (
            "train/{00,01}*.tar",
            "name the folder, with a slash at the end",
        ),
        ("val/", "has no shards"),
        ("{000..999999999}.tar", "more than 1000000 names"),
    ] {
        let error = found(false, pattern).unwrap_err().to_string();
        assert!(error.contains(why), "{error}");
    }
}

#[test]
fn compressed_shards_are_refused_in_plain_words() {
    let store = || LocalFiles::open(fixtures()).unwrap();
    let error = WebDataset::builder(store(), "train.tar.gz")
        .build(whole)
        .unwrap_err()
        .to_string();
    assert!(
        error.contains("train.tar.gz: it is compressed (gzip)") && error.contains("decompress"),
        "{error}"
    );
    let packed = Memory::of([("a/0.tar.zst", vec![]), ("a/1.tar.zst", vec![])]);
    let error = WebDataset::builder(packed, "a/")
        .build(whole)
        .unwrap_err()
        .to_string();
    assert!(
        error.contains("a/0.tar.zst: it is compressed (zstd)"),
        "{error}"
    );
    for (magic, name) in [
        (&b"\x28\xb5\x2f\xfd"[..], "zstd"),
        (b"BZh91AY", "bzip2"),
        (b"\xfd7zXZ\0", "xz"),
    ] {
        let text = refusal(magic.repeat(100));
        assert!(text.contains(name), "{text}");
    }
}

#[test]
fn sparse_members_are_refused_by_name() {
    for archive in ["sparse-gnu.tar", "sparse-pax.tar"] {
        let store = LocalFiles::open(fixtures()).unwrap();
        let error = WebDataset::builder(store, archive)
            .build(whole)
            .unwrap_err()
            .to_string();
        assert!(
            error.contains(archive) && error.contains(r#"its member "0001.bin" is sparse"#),
            "{error}"
        );
    }
}

#[test]
fn bad_shards_say_what_to_do() {
    let good = || {
        tar([
            ("a/0.txt", &b"zero"[..]),
            ("a/0.cls", b"0"),
            ("a/1.txt", b"one"),
        ])
    };
    let changed = |at: usize, byte: u8| {
        let mut bytes = good();
        bytes[at] = byte;
        bytes
    };
    let with_size = |size: u64| {
        let mut bytes = good();
        let mut header = tar::Header::from_byte_slice(&bytes[..512]).clone();
        header.set_size(size);
        header.set_cksum();
        bytes[..512].copy_from_slice(header.as_bytes());
        bytes
    };
    let twice = || {
        let names = [("a.txt", &b"1"[..]), ("b.txt", b"2"), ("a.cls", b"3")];
        tar(names)
    };
    for (bytes, why) in [
        (vec![], "it has no bytes"),
        (
            good()[..good().len() - 1024].to_vec(),
            "the blocks of zeros are missing",
        ),
        (
            good()[..1_100].to_vec(),
            "it is cut off at byte 1100, in a header",
        ),
        (
            good()[..2_000].to_vec(),
            "cut off at byte 2000, in its member \"a/0.cls\"",
        ),
        (good()[..300].to_vec(), "no tar archive"),
        (
            changed(1024, b'?'),
            "the header at byte 1024 has a wrong checksum: the bytes are damaged, or the member before it (\"a/0.txt\")",
        ),
        (with_size(1 << 40), "in its member \"a/0.txt\""),
        (with_size(u64::MAX), "in its member \"a/0.txt\""),
        (with_size(u64::MAX - 600), "in its member \"a/0.txt\""),
        (with_size(600), "the header at byte 1536"),
        (
            [good(), good()].concat(),
            "another archive follows the end of the first, at byte 4096",
        ),
        (
            b"<html>404 Not Found</html>".repeat(30),
            "a server's answer was saved",
        ),
        (
            b"version https://git-lfs.github.com/spec/v1\noid".repeat(20),
            "a pointer to the file",
        ),
        (twice(), "sample \"a\": two samples have this key"),
        (
            tar([("a.jpg", &b"1"[..]), ("a.JPG", b"2")]),
            "called \"a.jpg\" and \"a.JPG\", which is one field",
        ),
        (tar([("README", &b"1"[..])]), "it has no samples"),
        (tar([]), "it has no samples"),
    ] {
        let text = refusal(bytes);
        assert!(
            text.starts_with("the data cannot be opened: a/shard.tar: ") && text.contains(why),
            "{text}"
        );
    }
    let garbage = [good(), vec![b'x'; 700]].concat();
    assert_eq!(
        all(of_bytes(garbage)).unwrap().len(),
        2,
        "as tar ignores it"
    );
}

#[test]
fn samples_that_lack_a_field_are_refused_or_left_out() {
    let shard = || {
        of_bytes(tar([
            ("0.jpg", &b"1"[..]),
            ("0.cls", b"0"),
            ("1.jpg", b"2"),
            ("2.5.jpg", b"3"),
            ("2.cls", b"2"),
        ]))
    };
    let error = shard()
        .field("jpg;png")
        .field("cls")
        .build(whole)
        .unwrap_err();
    let text = error.to_string();
    assert_eq!(
        text,
        r#"the data cannot be opened: a/shard.tar: sample "1": it has no field "cls", but "jpg""#
    );
    assert_eq!(of_shard(&error).and_then(ShardError::key), Some("1"));
    let text = shard().field("jpg").build(whole).unwrap_err().to_string();
    assert!(
        text.contains(r#"but "5.jpg", "cls" (a field's name begins behind the first dot"#),
        "{text}"
    );
    let kept = all(shard().field("jpg").field("cls").skip_incomplete(true)).unwrap();
    assert_eq!(
        kept.iter().map(|(key, _)| key.as_str()).collect::<Vec<_>>(),
        ["0"]
    );
    let none = shard()
        .field("webp")
        .skip_incomplete(true)
        .build(whole)
        .unwrap_err()
        .to_string();
    assert!(none.contains("it has no samples"), "{none}");
    for (option, builder) in [
        ("field", shard().field("jpg;")),
        ("extent_bytes", shard().extent_bytes(0)),
    ] {
        let error = builder.build(whole).unwrap_err();
        let Error::InvalidOption { option: of, .. } = &error else {
            panic!("{error}");
        };
        assert_eq!(*of, option);
    }
}

/// A shard that becomes another one while it is used: an error that names it, and no other sample's picture.
#[test]
fn a_shard_that_is_replaced_is_noticed() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.tar");
    std::fs::write(&path, tar([("0.txt", &b"zero"[..]), ("1.txt", b"one")])).unwrap();
    let open = || {
        WebDataset::open(path.to_str().unwrap())
            .unwrap()
            .build(whole)
            .unwrap()
    };
    let data = Blocked::new(open());
    assert_eq!(get(&data, 1).unwrap().1["txt"], b"one");
    std::fs::write(&path, tar([("0.txt", &b"another"[..])])).unwrap();
    let error = get(&data, 1).unwrap_err().to_string();
    assert!(error.contains("a.tar"), "{error}");
    let data = open();
    let loader = DataLoader::builder(data.into_dataset().map(|(key, _), _| Ok(key)))
        .build()
        .unwrap();
    std::fs::remove_file(&path).unwrap();
    let error = loader.epoch(0).next().unwrap().unwrap_err().to_string();
    assert!(error.contains("a.tar: 0"), "{error}");
}

/// Names and contents of an archive, and the samples in it.
fn archives() -> impl Strategy<Value = Vec<(String, Vec<u8>)>> {
    let field = prop::sample::subsequence(vec!["cls", "jpg", "seg.png", "txt"], 1..4);
    let folder = prop::sample::select(vec![
        String::new(),
        "f/".to_owned(),
        format!("{}/", "long".repeat(40)),
    ]);
    let sample = (folder, field, prop::collection::vec(any::<u8>(), 0..1_200));
    prop::collection::vec(sample, 1..6).prop_map(|samples| {
        let samples = samples.into_iter().enumerate();
        let files = samples.flat_map(|(at, (folder, fields, contents))| {
            let file = move |field: &str| {
                (
                    format!("{folder}{at:03}.{field}"),
                    contents[..contents.len() / field.len()].to_vec(),
                )
            };
            fields.into_iter().map(file).collect::<Vec<_>>()
        });
        files.collect()
    })
}

fn packed(files: &[(String, Vec<u8>)]) -> Vec<u8> {
    tar(files
        .iter()
        .map(|(name, contents)| (name.as_str(), &contents[..])))
}

fn grouped(files: &[(String, Vec<u8>)]) -> Vec<Whole> {
    let mut samples: Vec<Whole> = Vec::new();
    for (name, contents) in files {
        let (key, field) = name.split_once('.').unwrap();
        if samples.last().is_none_or(|(last, _)| last != key) {
            samples.push((key.to_owned(), BTreeMap::new()));
        }
        samples
            .last_mut()
            .unwrap()
            .1
            .insert(field.to_owned(), contents.clone());
    }
    samples
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(60))]

    /// A shard that is cut off anywhere is an error, or has all samples.
    #[test]
    fn a_shard_that_is_cut_off_has_all_samples_or_none(files in archives(), at in any::<prop::sample::Index>()) {
        let whole = packed(&files);
        prop_assert_eq!(all(of_bytes(whole.clone())).unwrap(), grouped(&files));
        let cut = at.index(whole.len());
        if let Ok(samples) = all(of_bytes(whole[..cut].to_vec())) {
            prop_assert_eq!(samples, grouped(&files), "cut at {}", cut);
        }
    }

    /// Damaged bytes are an error or other contents or names, never a panic, and never a read beyond the shard.
    #[test]
    fn a_damaged_shard_never_panics(files in archives(), at in any::<prop::sample::Index>(), bytes in prop::collection::vec(any::<u8>(), 1..600)) {
        let mut damaged = packed(&files);
        let at = at.index(damaged.len());
        for (old, new) in damaged[at..].iter_mut().zip(bytes) {
            *old = new;
        }
        let _ = all(of_bytes(damaged));
    }

    /// Whatever the extents, a shuffled epoch has each sample once, and random access gives the same.
    #[test]
    fn each_sample_comes_once(files in archives(), extent in 1u64..5_000, seed in any::<u64>()) {
        let data = of_bytes(packed(&files)).extent_bytes(extent).build(whole).unwrap().into_dataset();
        let expected = grouped(&files);
        let order = pinfeed::sampler::BlockSampler::new(data.blocks().unwrap()).with_seed(seed);
        let mut seen: Vec<Whole> = (0..data.len()).map(|at| get(&data, order.index(0, at)).unwrap()).collect();
        seen.sort();
        prop_assert_eq!(seen, { let mut sorted = expected; sorted.sort(); sorted });
    }
}
