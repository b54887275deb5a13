//! The threads that fetch: started when there is something to do for them, ended when their data set is dropped.
//!
//! A thread whose request hangs cannot be stopped. When its request gives its place to another, one more thread may be started; should it
//! come back, it fetches again like any other.

use std::panic::{AssertUnwindSafe, catch_unwind};

use super::{Inner, StagedDataset, Stages};
use crate::error::BoxError;
use crate::rng::SampleRng;
use crate::sync::log;
use crate::sync::{Arc, Instant, mark_own_thread, thread};

/// TLS, decompression and the like run on them, and hundreds of them cost addresses only.
const STACK_BYTES: usize = 2 << 20;

impl<S: StagedDataset> Stages for S {
    type Raw = S::Raw;
    type Sample = S::Sample;

    fn samples(&self) -> u64 {
        self.len()
    }

    fn decode_raw(
        &self,
        index: u64,
        raw: S::Raw,
        rng: &mut SampleRng,
    ) -> Result<S::Sample, BoxError> {
        self.decode(index, raw, rng)
    }

    fn bytes_of(&self, raw: &S::Raw) -> usize {
        self.raw_bytes(raw)
    }

    fn sample_bytes_hint(&self) -> Option<usize> {
        self.sample_bytes()
    }

    fn description(&self, index: u64) -> Option<String> {
        self.describe(index)
    }

    fn print(&self) -> u32 {
        self.fingerprint()
    }

    fn fetch_here(&self, index: u64) -> Result<S::Raw, BoxError> {
        self.fetch(index)
    }

    fn start(inner: &Arc<Inner<S>>) {
        let number = {
            let mut state = inner.state.lock();
            if !state.can_start(&inner.limits, Instant::now()) {
                return;
            }
            if state.idle > 0 {
                inner.startable.notify_one();
                return;
            }
            if state.threads >= state.most_threads(&inner.limits) {
                return; // those that are busy look again
            }
            state.threads += 1;
            state.threads
        };
        let own = Arc::clone(inner);
        let builder = thread::Builder::new().name(format!("pinfeed-fetch-{number}"));
        let started = builder.stack_size(STACK_BYTES).spawn(move || {
            mark_own_thread();
            run(&own);
        });
        match started {
            Ok(handle) => inner.threads.lock().push(handle),
            Err(error) => lacks(inner, &error),
        }
    }
}

fn run<S: StagedDataset>(inner: &Arc<Inner<S>>) {
    let mut state = inner.state.lock();
    while !state.is_closed {
        let Some((number, index)) = state.start(&inner.limits, Instant::now()) else {
            state.idle += 1;
            inner.startable.wait(&mut state);
            state.idle -= 1;
            continue;
        };
        drop(state);
        // Each that found something to do wakes the next, as long as there is more.
        S::start(inner);
        let outcome = catch_unwind(AssertUnwindSafe(|| inner.source.fetch(index)));
        inner.finish(number, outcome);
        state = inner.state.lock();
    }
    state.threads -= 1;
    inner.ended.notify_all();
}

#[cold]
fn lacks<S: StagedDataset>(inner: &Arc<Inner<S>>, error: &std::io::Error) {
    let (is_first, threads) = {
        let mut state = inner.state.lock();
        state.threads -= 1;
        let is_first = !state.is_lacking;
        state.is_lacking = true;
        state.tell_waiting();
        (is_first, state.threads)
    };
    if is_first {
        log::warn!(
            "the system started only {threads} of {} threads that fetch samples: {error}",
            inner.limits.in_flight
        );
    }
}
