//! Shards and pictures that are other files, shorter, gone or forbidden by the time that they are read: the error names the object and, where one is
//! known, the sample; all samples of other objects come once; nothing of the other file does.

#![cfg(all(feature = "webdataset", feature = "image", unix, not(miri)))] // it reads files

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;

use pinfeed::image::StoredFolder;
use pinfeed::loader::OnError;
use pinfeed::store::LocalFiles;
use pinfeed::webdataset::WebDataset;
use pinfeed::{BoxError, DataLoader, Tensor};

/// Four objects of so many samples. The first byte of a sample is its number, and the second one which writing it is of.
const OBJECTS: u8 = 4;
const EACH: u8 = 6;

#[derive(Debug, Clone, Copy, PartialEq)]
enum Change {
    /// By another file of the same length.
    Replaced,
    CutOff,
    Gone,
    Forbidden,
}

fn shard(object: u8, writing: u8) -> Vec<u8> {
    let mut archive = tar::Builder::new(Vec::new());
    for number in object * EACH..(object + 1) * EACH {
        let mut header = tar::Header::new_gnu();
        header.set_size(2);
        header.set_mode(0o644);
        let name = format!("sample{number:02}.bin");
        archive
            .append_data(&mut header, name, &[number, writing][..])
            .unwrap();
    }
    archive.into_inner().unwrap()
}

fn picture(number: u8, writing: u8) -> Vec<u8> {
    [&b"P6 1 1 255\n"[..], &[number, writing, 0]].concat()
}

/// Which files there are, as they are written for the first or the second time.
fn files(are_pictures: bool, writing: u8) -> BTreeMap<String, Vec<u8>> {
    match are_pictures {
        true => (0..OBJECTS * EACH)
            .map(|number| {
                (
                    format!("train/cat/{number:02}.ppm"),
                    picture(number, writing),
                )
            })
            .collect(),
        false => (0..OBJECTS)
            .map(|object| (format!("train/{object}.tar"), shard(object, writing)))
            .collect(),
    }
}

fn write(root: &Path, files: &BTreeMap<String, Vec<u8>>) {
    for (key, bytes) in files {
        let path = root.join(key);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, bytes).unwrap();
    }
}

fn change(path: &Path, other: &[u8], how: Change) {
    match how {
        Change::Replaced => {
            // (As another file: its time of change is another one, too, however coarse that is.)
            let beside = path.with_extension("new");
            fs::write(&beside, other).unwrap();
            let earlier = std::time::SystemTime::now() - std::time::Duration::from_secs(9);
            fs::File::options()
                .write(true)
                .open(&beside)
                .unwrap()
                .set_modified(earlier)
                .unwrap();
            fs::rename(beside, path).unwrap();
        }
        Change::CutOff => {
            let bytes = fs::read(path).unwrap();
            fs::write(path, &bytes[..bytes.len() / 2]).unwrap();
        }
        Change::Gone => fs::remove_file(path).unwrap(),
        Change::Forbidden => fs::set_permissions(path, fs::Permissions::from_mode(0o000)).unwrap(),
    }
}

#[derive(Debug, Clone, Copy, PartialEq)]
enum Kind {
    Indexed,
    Stream,
    Pictures,
}

/// A loader of numbers and writings, `[n, 2]`.
enum Loader {
    Shards(DataLoader<Tensor<u8>>),
    Stream(DataLoader<Tensor<u8>, pinfeed::loader::Iterable>),
    Pictures(DataLoader<(Tensor<u8>, Tensor<i64>)>),
}

fn loader(kind: Kind, root: &Path, workers: usize, on_error: OnError) -> Loader {
    let shards = || {
        let store = LocalFiles::open(root).unwrap();
        WebDataset::builder(store, "train/{0..3}.tar").field("bin")
    };
    let sample = |sample: &pinfeed::webdataset::WebSample<'_>| -> Result<[u8; 2], BoxError> {
        Ok(sample.field("bin")?.try_into()?)
    };
    match kind {
        Kind::Indexed => {
            let data = shards().build(move |own, _| sample(&own)).unwrap();
            let builder = DataLoader::builder(data)
                .batch_size(4)
                .shuffle(true)
                .seed(2);
            Loader::Shards(
                builder
                    .num_workers(workers)
                    .on_error(on_error)
                    .build()
                    .unwrap(),
            )
        }
        Kind::Stream => {
            let data = shards().stream(move |own, _| sample(&own)).unwrap();
            let builder = DataLoader::iterable(data).batch_size(4).seed(2);
            Loader::Stream(
                builder
                    .num_workers(workers)
                    .on_error(on_error)
                    .build()
                    .unwrap(),
            )
        }
        Kind::Pictures => {
            let data = StoredFolder::open(LocalFiles::open(root).unwrap(), "train").unwrap();
            let builder = DataLoader::builder(data)
                .batch_size(4)
                .shuffle(true)
                .seed(2);
            Loader::Pictures(
                builder
                    .num_workers(workers)
                    .on_error(on_error)
                    .build()
                    .unwrap(),
            )
        }
    }
}

impl Loader {
    /// The samples of an epoch, and what its errors say, with what they are because of.
    fn epoch(&self) -> (Vec<[u8; 2]>, Vec<String>) {
        let (mut samples, mut errors) = (Vec::new(), Vec::new());
        let mut note = |batch: pinfeed::Result<Vec<[u8; 2]>>| match batch {
            Ok(of_batch) => samples.extend(of_batch),
            Err(error) => errors.push(said(&error)),
        };
        let pairs = |batch: Tensor<u8>| batch.as_slice().as_chunks().0.to_vec();
        match self {
            Loader::Shards(loader) => loader.epoch(0).for_each(|batch| note(batch.map(pairs))),
            Loader::Stream(loader) => loader.epoch(0).for_each(|batch| note(batch.map(pairs))),
            Loader::Pictures(loader) => loader.epoch(0).for_each(|batch| {
                let pixels = |(pixels, _): (Tensor<u8>, _)| {
                    let pixels = pixels.as_slice().as_chunks::<3>().0.iter();
                    pixels.map(|pixel| [pixel[0], pixel[1]]).collect()
                };
                note(batch.map(pixels));
            }),
        }
        samples.sort_unstable();
        (samples, errors)
    }
}

fn said(error: &dyn std::error::Error) -> String {
    let mut said = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        said += &format!(": {error}");
        cause = error.source();
    }
    said
}

fn check(how: Change) {
    for kind in [Kind::Indexed, Kind::Stream, Kind::Pictures] {
        for workers in [0, 2] {
            let case = format!("{kind:?} {how:?} {workers}");
            let are_pictures = kind == Kind::Pictures;
            let root = tempfile::tempdir().unwrap();
            write(root.path(), &files(are_pictures, 1));
            let every = OnError::Skip { at_most: u64::MAX };
            let (skips, fails) = (
                loader(kind, root.path(), workers, every),
                loader(kind, root.path(), workers, OnError::Fail),
            );
            let all: Vec<_> = (0..OBJECTS * EACH).map(|number| [number, 1]).collect();
            let key = match are_pictures {
                true => "train/cat/07.ppm",
                false => "train/1.tar",
            };
            // (Of a shard, all samples: its version is another one, wherever it is read.)
            let lost = if are_pictures { 7..8 } else { EACH..2 * EACH };
            change(&root.path().join(key), &files(are_pictures, 2)[key], how);
            for epoch in 0..2 {
                let (samples, errors) = skips.epoch();
                assert_eq!(errors, [""; 0], "{case}");
                let mut expected = all.clone();
                expected.retain(|[number, _]| !lost.contains(number));
                let mut found = samples.clone();
                found.retain(|[number, _]| !lost.contains(number));
                assert_eq!(found, expected, "{case}, epoch {epoch}: others");
                assert_eq!(
                    samples.len(),
                    expected.len(),
                    "{case}, epoch {epoch}: {samples:?}"
                );
            }
            let (_, errors) = fails.epoch();
            assert!(!errors.is_empty(), "{case}");
            for error in errors {
                assert!(error.contains(key), "{case}: {error}");
                if kind == Kind::Indexed {
                    assert!(error.contains("sample"), "{case}: {error}");
                }
            }
        }
    }
}

#[test]
fn an_object_that_is_replaced() {
    check(Change::Replaced);
}

#[test]
fn an_object_that_is_cut_off() {
    check(Change::CutOff);
}

#[test]
fn an_object_that_is_gone() {
    check(Change::Gone);
}

/// (To root, nothing is forbidden: it does this as another user.)
#[test]
fn an_object_that_is_forbidden() {
    let root = tempfile::tempdir().unwrap();
    let file = root.path().join("a");
    fs::write(&file, "").unwrap();
    change(&file, &[], Change::Forbidden);
    if fs::read(&file).is_err() {
        return check(Change::Forbidden);
    }
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", "broken_objects::an_object_that_is_forbidden"]);
    match command.uid(65_534).status() {
        Ok(status) => assert!(status.success(), "{status}"),
        Err(error) => {
            println!("another user may not run this program, so it is not tested: {error}")
        }
    }
}

/// The system refuses files of more than 1 KiB, as a full disk refuses more bytes: the index is not kept, and all samples are there.
#[test]
fn a_full_disk_has_no_index() {
    const HOME: &str = "PINFEED_TEST_FULL_DISK";
    let count = |home: &Path| {
        let store = LocalFiles::open(home).unwrap();
        let shards = WebDataset::builder(store, "train/{0..3}.tar").field("bin");
        let shards = shards.keep_index(home.join("index"));
        let data = shards.build(|sample, _| Ok(sample.field("bin")?.len() as u64));
        let loader = DataLoader::builder(data.unwrap())
            .batch_size(500)
            .num_workers(2)
            .build()
            .unwrap();
        let lengths = loader.epoch(0).map(|batch| batch.unwrap().len());
        assert_eq!(lengths.sum::<usize>(), 800);
        fs::read_dir(home.join("index")).map_or(0, Iterator::count)
    };
    if let Some(home) = std::env::var_os(HOME) {
        assert_eq!(count(Path::new(&home)), 0, "nothing unfinished is left");
        return;
    }
    let home = tempfile::tempdir().unwrap();
    for object in 0..OBJECTS {
        let mut archive = tar::Builder::new(Vec::new());
        for number in 0..200 {
            let mut header = tar::Header::new_gnu();
            header.set_size(1);
            header.set_mode(0o644);
            archive
                .append_data(&mut header, format!("sample{number:03}.bin"), &b"1"[..])
                .unwrap();
        }
        let files = [(format!("train/{object}.tar"), archive.into_inner().unwrap())];
        write(home.path(), &files.into());
    }
    let test = "broken_objects::a_full_disk_has_no_index";
    let mut command = Command::new("sh");
    command.args([
        "-c",
        "trap '' XFSZ; ulimit -f 1; exec \"$0\" --exact \"$1\"",
    ]);
    // (What it says goes through a pipe: into a file, it would be written no further than the index.)
    let output = command
        .arg(std::env::current_exe().unwrap())
        .arg(test)
        .env(HOME, home.path())
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{said}");
    assert!(said.contains("1 passed"), "{said}");
    // With room, it is kept.
    assert_eq!(count(home.path()), usize::from(OBJECTS));
}
