//! A deadlock watch on every test: one that hangs ends its process, after it was named.
//!
//! A test binary has it by one line at its root, by which every `#[test]` in it is [`test`](macro@test):
//!
//! ```
//! #[macro_use]
//! extern crate watch;
//! ```
//!
//! Code that runs tests without the attribute calls [`on`].
//!
//! And [`provoked`], a panic that a test provokes and the library catches: it is no failure, so it prints nothing.

use std::any::Any;
use std::collections::BTreeMap;
use std::io::Write;
use std::panic::resume_unwind;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread::{Builder, JoinHandle};
use std::time::{Duration, Instant};
use std::{env, fs, io, process};

pub use watch_attribute::test;

/// A test that takes longer hangs, unless `PINFEED_PATIENCE` says how many seconds it may take. (Miri's clock counts steps.)
const PATIENCE: Duration = Duration::from_secs(if cfg!(miri) { 1_000_000 } else { 300 });

/// What is running, by numbers that rise.
static RUNNING: Mutex<BTreeMap<u64, (String, Instant)>> = Mutex::new(BTreeMap::new());

/// A test that is being watched. It may take as long as it likes once this is dropped.
#[derive(Debug)]
#[must_use]
pub struct Watch {
    number: u64,
    /// Both are there until it is dropped. The thread ends with the sender.
    alive: Option<mpsc::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

/// Watches a test from here on.
///
/// # Panics
///
/// If `PINFEED_PATIENCE` is no number, or no thread can be started.
pub fn on(test: impl Into<String>) -> Watch {
    let patience = env::var("PINFEED_PATIENCE").map_or(PATIENCE, |seconds| {
        let seconds = seconds.parse().ok();
        Duration::from_secs(seconds.unwrap_or_else(|| panic!("PINFEED_PATIENCE is no number")))
    });
    let mut running = running();
    let number = running.last_key_value().map_or(0, |(last, _)| last + 1);
    running.insert(number, (test.into(), Instant::now()));
    drop(running);

    let (alive, ended) = mpsc::channel();
    let thread = Builder::new().name("watch".to_owned()).spawn(move || {
        if ended.recv_timeout(patience) == Err(RecvTimeoutError::Timeout) {
            end_the_process(number, patience);
        }
    });
    Watch {
        number,
        alive: Some(alive),
        thread: Some(thread.unwrap_or_else(|error| panic!("no thread for the watch: {error}"))),
    }
}

/// Panics as `panic!(message)` does, but without its line on standard error, which a reader of the log takes for a failure. The payload is
/// the same: `&'static str` for a literal, `String` for `format!(..)`.
///
/// It is for what the code under test has to catch. No panic hook is changed, so every other panic is printed as ever.
pub fn provoked(message: impl Any + Send) -> ! {
    resume_unwind(Box::new(message))
}

impl Drop for Watch {
    fn drop(&mut self) {
        drop(self.alive.take());
        // It panics nowhere, and there is nobody to tell.
        let _ = self.thread.take().map(JoinHandle::join);
        running().remove(&self.number);
    }
}

fn running() -> MutexGuard<'static, BTreeMap<u64, (String, Instant)>> {
    RUNNING.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Says what hangs, beside which tests, and with which threads. (`eprintln` would go to what the harness prints when the test is over.)
fn end_the_process(number: u64, patience: Duration) {
    let running = running();
    let mut text = String::from("\n");
    if let Some((test, _)) = running.get(&number) {
        text += &format!("{test} hangs: it takes longer than {patience:?} (PINFEED_PATIENCE)\n");
    }
    for (test, since) in running.values() {
        text += &format!("  running for {:.0?}: {test}\n", since.elapsed());
    }
    text += &format!("  threads: {}\n", threads().join(", "));
    let _ = io::stderr().write_all(text.as_bytes());
    process::abort();
}

/// The names of the process's threads, where the system tells. It cuts them off after 15 bytes.
fn threads() -> Vec<String> {
    let tasks = fs::read_dir("/proc/self/task").into_iter().flatten();
    let names = tasks.filter_map(|task| fs::read_to_string(task.ok()?.path().join("comm")).ok());
    let mut names: Vec<String> = names.map(|name| name.trim_end().to_owned()).collect();
    names.sort();
    names
}
