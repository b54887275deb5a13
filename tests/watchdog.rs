//! The watch on the tests themselves: one that hangs is a failure, which says what hangs; a panic that a test provokes is none.
//!
//! They have a process of their own, as they start it again, and let it hang.

#![allow(clippy::unwrap_used)] // a panic is how a test fails

#[macro_use]
extern crate watch;

use std::env;
use std::panic::catch_unwind;
use std::process::Command;
use std::sync::mpsc;

use pinfeed::{DataLoader, from_fn};

const HANG: &str = "PINFEED_TEST_HANGS";
const PROVOKE: &str = "PINFEED_TEST_PROVOKES";

/// In the process that the next test starts, a sample waits for ever, and so does the test.
#[test]
fn a_test_that_hangs() {
    if env::var_os(HANG).is_none() {
        return;
    }
    let (_never, news) = mpsc::channel::<()>();
    let news = std::sync::Mutex::new(news);
    let samples = from_fn(10, move |_, _| Ok(news.lock().unwrap().recv().is_ok()));
    let loader = DataLoader::builder(samples).num_workers(1).build().unwrap();
    loader.epoch(0).next();
}

#[test]
#[cfg(not(miri))] // it starts a process
fn a_hang_is_a_failure_that_names_test_and_threads() {
    let ended = Command::new(env::current_exe().unwrap())
        .args(["--exact", "a_test_that_hangs"])
        .env(HANG, "1")
        .env("PINFEED_PATIENCE", "1")
        .output()
        .unwrap();
    let said = String::from_utf8(ended.stderr).unwrap();
    assert!(!ended.status.success(), "{said}");
    assert!(said.contains("watchdog::a_test_that_hangs hangs"), "{said}");
    if cfg!(target_os = "linux") {
        assert!(said.contains("pinfeed-worker-"), "{said}");
    }
}

/// In the process that the next test starts, one panic is provoked, and another is not.
#[test]
fn a_test_that_panics() {
    let payload = catch_unwind(|| watch::provoked("on purpose")).unwrap_err();
    assert_eq!(payload.downcast_ref(), Some(&"on purpose"));
    let payload = catch_unwind(|| watch::provoked(format!("{} purpose", "on"))).unwrap_err();
    assert_eq!(*payload.downcast::<String>().unwrap(), "on purpose");
    assert!(env::var_os(PROVOKE).is_none(), "a failure");
}

#[test]
#[cfg(not(miri))] // it starts a process
fn a_provoked_panic_prints_nothing_and_a_failure_is_printed() {
    let ended = Command::new(env::current_exe().unwrap())
        .args(["--exact", "a_test_that_panics", "--nocapture"])
        .env(PROVOKE, "1")
        .output()
        .unwrap();
    let said = String::from_utf8(ended.stderr).unwrap();
    assert!(!ended.status.success(), "{said}");
    assert_eq!(said.matches("panicked at").count(), 1, "{said}");
    assert!(said.contains("a failure"), "{said}");
    assert!(!said.contains("on purpose"), "{said}");
}

/// A failure is one as ever, and so is a test that returns an error.
#[test]
#[should_panic(expected = "seen")]
fn a_panic_is_seen() {
    panic!("it is seen");
}

#[test]
fn a_test_may_return_early() -> Result<(), std::num::ParseIntError> {
    if "1".parse::<i32>()? == 1 {
        return Ok(());
    }
    unreachable!()
}
