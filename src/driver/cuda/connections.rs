//! How many connections to the device a context has: as many of its streams as that run without waiting for each other.
//!
//! The driver gives a context eight. nvJPEG has 20 streams of its own, and what shares a connection waits for the other's work, though it
//! need not: a training step beside the decoder leaves the device idle for a sixth of the time (docs/performance.md).

use std::fs;

use crate::driver::nvjpeg::{CONNECTIONS, variable};
use crate::sync::log;

/// As many as there can be.
const MOST: &str = "32";

/// Asks for as many as there can be, where the environment does not say how many, by setting its variable. The driver reads that when it
/// makes its first context, so this comes before.
///
/// If the program has other threads, which may be reading the environment, it does nothing; a warning says so when a decoder is opened.
pub(super) fn ask_for_more() {
    if variable(CONNECTIONS).is_some() {
        return;
    }
    let threads = fs::read_dir("/proc/self/task").map(|threads| threads.take(2).count());
    if !matches!(threads, Ok(1)) {
        return;
    }
    // SAFETY: the program has one thread, and this is it: the environment is not read or written meanwhile.
    unsafe { std::env::set_var(CONNECTIONS, MOST) };
    log::debug!("{CONNECTIONS}={MOST} is set, as nvJPEG has many streams");
}
