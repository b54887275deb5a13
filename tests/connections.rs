//! A program that opens its device first has as many connections to it as there can be, and needs no variable for that. One that has other
//! threads by then has what its environment says.
//!
//! It has no test harness, for that has threads: the program runs itself again, told by environment variables what to be.

#![allow(clippy::unwrap_used)] // a panic is how a test fails
#![allow(clippy::disallowed_methods)] // a thread of one line needs no name

use std::env;
use std::path::Path;
use std::process::Command;
use std::sync::mpsc;

use pinfeed::Device;

const CONNECTIONS: &str = "CUDA_DEVICE_MAX_CONNECTIONS";

/// A child has so many threads when it opens its device.
const THREADS: &str = "PINFEED_TEST_THREADS";

fn main() {
    match env::var(THREADS) {
        Ok(threads) => child(threads.parse().unwrap()),
        Err(_) if cfg!(all(target_os = "linux", not(miri))) => parent(),
        Err(_) => println!("a program's threads are not counted here: skipped"),
    }
}

/// Prints what the environment says when its device is open.
fn child(threads: usize) {
    let (end, ended) = mpsc::channel::<()>();
    let other = (threads > 1).then(|| std::thread::spawn(move || ended.recv()));
    // (The driver has no device, but it was started.)
    let error = Device::cuda(0).unwrap_err();
    assert!(matches!(error, pinfeed::Error::NoDevice { .. }), "{error}");
    println!("{}", env::var(CONNECTIONS).unwrap_or_default());
    drop(end);
    other.map(|other| other.join().unwrap());
}

fn parent() {
    let folder = tempfile::tempdir().unwrap();
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/drivers/libcuda.c");
    let mut cc = Command::new("cc");
    cc.args(["-DCOUNT=0", "-shared", "-fPIC", "-o"]);
    let built = cc
        .arg(folder.path().join("libcuda.so.1"))
        .arg(source)
        .status();
    assert!(built.unwrap().success());
    for (threads, set, expected) in [
        (1, None, "32"),
        (1, Some("8"), "8"),
        (1, Some(""), "32"),
        (2, None, ""),
        (2, Some("8"), "8"),
    ] {
        let _watch = watch::on(format!("a program of {threads} threads, {set:?}"));
        let mut child = Command::new(env::current_exe().unwrap());
        child
            .env(THREADS, threads.to_string())
            .env_remove(CONNECTIONS);
        child.env("LD_LIBRARY_PATH", folder.path());
        set.map(|set| child.env(CONNECTIONS, set));
        let output = child.output().unwrap();
        let (said, complaints) = (
            String::from_utf8_lossy(&output.stdout),
            String::from_utf8_lossy(&output.stderr),
        );
        assert!(output.status.success(), "{said}{complaints}");
        assert_eq!(said.trim(), expected, "{threads} threads, {set:?}");
        println!("test {threads} threads, {set:?}: {expected:?} ... ok");
    }
}
