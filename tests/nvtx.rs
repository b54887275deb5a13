//! Ranges for NVIDIA's profilers: what a tool sees that attaches as NVTX wants it, and what happens without one.
//!
//! The tool is a small library of C (`nvtx/tool.c`), built here. As a process looks for it once, each case runs in a child: this program
//! again, with other environment variables.

#![cfg(all(target_os = "linux", not(miri)))] // it builds a library, and starts processes
#![allow(clippy::unwrap_used)] // a panic is how a test fails

#[macro_use]
extern crate watch;

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::time::Duration;

use pinfeed::{DataLoader, Device, from_fn, iterable};

const CHILD: &str = "PINFEED_TEST_CHILD";
const RANGES: &str = "PINFEED_TEST_RANGES";
const TOOL: &str = "NVTX_INJECTION64_PATH";

/// How long a sample of the program takes: workers share a batch of slow ones, and make tiny batches alone.
const SAMPLE_US: &str = "PINFEED_TEST_SAMPLE_US";

/// The program that is profiled: it does nothing unless it is a child.
#[test]
fn child() {
    if std::env::var_os(CHILD).is_none() {
        return;
    }
    let micros = std::env::var(SAMPLE_US).unwrap().parse().unwrap();
    let device = Device::cpu();
    let samples = from_fn(40, move |index, _| {
        std::thread::sleep(Duration::from_micros(micros));
        Ok(vec![index as f32; 64])
    });
    let loader = DataLoader::builder(samples)
        .batch_size(4)
        .num_workers(2)
        .pin_memory(&device)
        .build()
        .unwrap();
    for batch in loader.epoch(0).prefetch_to_device(&device, 2) {
        batch.unwrap();
    }
    drop(loader);
    let items = iterable::from_fn(|_, _| Ok((0..8i64).map(Ok)));
    let loader = DataLoader::iterable(items)
        .batch_size(4)
        .num_workers(1)
        .build()
        .unwrap();
    assert_eq!(loader.epoch(0).count(), 2);
}

fn run(sample_us: u32, variables: &[(&str, &Path)]) -> Output {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["child", "--exact", "--nocapture"]);
    command.env(CHILD, "1").env_remove(TOOL);
    command.env(SAMPLE_US, sample_us.to_string());
    variables
        .iter()
        .for_each(|(name, value)| _ = command.env(name, value));
    command.output().unwrap()
}

fn tool(folder: &Path) -> PathBuf {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/nvtx/tool.c");
    let library = folder.join("tool.so");
    let mut cc = Command::new("cc");
    cc.args(["-Wall", "-Werror", "-shared", "-fPIC", "-pthread", "-o"]);
    let built = cc.arg(&library).arg(source).status().unwrap();
    assert!(built.success());
    library
}

/// The batches of which a tool saw each range, of the program with such samples.
fn seen(sample_us: u32) -> BTreeMap<String, BTreeSet<u64>> {
    let folder = tempfile::tempdir().unwrap();
    let (tool, ranges) = (tool(folder.path()), folder.path().join("ranges"));
    let output = run(sample_us, &[(TOOL, &tool), (RANGES, &ranges)]);
    assert!(output.status.success(), "{output:?}");

    let ranges = std::fs::read_to_string(ranges).unwrap();
    let mut lines = ranges.lines();
    assert_eq!(lines.next(), Some("domain pinfeed"));
    let mut open: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    let mut seen: BTreeMap<String, BTreeSet<u64>> = BTreeMap::new();
    for line in lines {
        let words: Vec<&str> = line.split(' ').collect();
        match words[..] {
            [thread, "push", name, kind, payload] => {
                assert_eq!(kind, "1", "{line}");
                open.entry(thread).or_default().push(name);
                let batch = payload.parse().unwrap();
                seen.entry(name.to_owned()).or_default().insert(batch);
            }
            [thread, "pop"] => {
                let name = open.get_mut(thread).and_then(Vec::pop);
                assert!(name.is_some(), "a range ends that did not begin: {line}");
            }
            _ => panic!("{line}"),
        }
    }
    assert!(open.values().all(Vec::is_empty), "{open:?}");
    seen
}

#[test]
fn a_tool_sees_each_range_with_its_batch() {
    let seen = seen(1_000);
    let every: BTreeSet<u64> = (0..10).collect();
    for name in ["load", "collate", "wait"] {
        assert!(seen[name].is_superset(&every), "{name}: {seen:?}");
    }
    // (Batches that are ready at once are sent together: the range has the first one's number.)
    for name in ["pull", "slab", "send", "upload"] {
        assert!(seen.contains_key(name), "{name}: {seen:?}");
    }
}

/// A worker may make a tiny batch alone.
#[test]
fn a_tool_sees_tiny_batches_too() {
    let seen = seen(0);
    let every: BTreeSet<u64> = (0..10).collect();
    let none = BTreeSet::new();
    let [load, make] = ["load", "make"].map(|name| seen.get(name).unwrap_or(&none));
    assert_eq!(load | make, every, "{seen:?}");
    assert!(seen["wait"].is_superset(&every), "{seen:?}");
    // (Slabs of batches that it makes in a row are taken together, too.)
    for name in ["slab", "send"] {
        assert!(seen.contains_key(name), "{name}: {seen:?}");
    }
}

#[test]
fn nothing_happens_without_a_tool_or_if_it_refuses() {
    let folder = tempfile::tempdir().unwrap();
    let tool = tool(folder.path());
    let no_library = folder.path().join("nothing.so");
    let cases: [&[(&str, &Path)]; 3] = [&[], &[(TOOL, &tool)], &[(TOOL, &no_library)]];
    for variables in cases {
        let output = run(0, variables);
        assert!(output.status.success(), "{output:?}");
    }
}
