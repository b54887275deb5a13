//! Requests as tasks of the program's own runtime.

use std::fmt;
use std::future::poll_fn;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::pin;
use std::task::Poll;

use tokio::runtime::Handle;

use super::{AsyncStagedDataset, Inner, Staged, Stages};
use crate::error::BoxError;
use crate::rng::SampleRng;
use crate::sync::{Arc, Instant};
use crate::system::Process;

const SHUT_DOWN: &str = "the runtime that fetches samples was shut down";

const FORKED: &str = "this process was forked from the one that has the runtime that fetches samples: make the data set, and its runtime, in \
                      this one";

const BLOCKED: &str = "the runtime that fetches samples does not run: none of its threads has begun anything for seconds. A loop over a loader \
                       blocks its thread, which must not be the only one of the runtime: take one of several threads \
                       (`#[tokio::main]`, `#[tokio::test(flavor = \"multi_thread\")]`), or iterate the loader within \
                       `tokio::task::spawn_blocking`";

/// An [`AsyncStagedDataset`] with the runtime that its requests run on: [`Staged::on_runtime`] makes it.
pub struct OnRuntime<S> {
    source: S,
    runtime: Handle,
    process: Process,
}

impl<S: fmt::Debug> fmt::Debug for OnRuntime<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.source.fmt(f)
    }
}

impl<S: AsyncStagedDataset> Staged<OnRuntime<S>> {
    /// Makes a data set whose requests are tasks on this runtime, which must keep running while a loader has epochs.
    ///
    /// The only thread that waits for a request is the worker that needs its sample. Tasks are aborted when their samples are no longer
    /// needed. If the runtime is shut down, samples are errors.
    ///
    /// A loop over the loader blocks the thread that it runs on, and must leave the runtime one for the requests. A runtime with a single
    /// thread has none left if the loop runs within it, as in `#[tokio::main(flavor = "current_thread")]` or a plain `#[tokio::test]`. Then
    /// samples are errors that say so, after fifteen seconds without a sign of life. Take a runtime with several threads, or iterate
    /// the loader within `tokio::task::spawn_blocking`.
    pub fn on_runtime(source: S, runtime: Handle) -> Staged<OnRuntime<S>> {
        Staged::of(OnRuntime {
            source,
            runtime,
            process: Process::this(),
        })
    }

    /// Returns the source.
    pub fn source(&self) -> &S {
        &self.inner().source.source
    }
}

impl<S: AsyncStagedDataset> Stages for OnRuntime<S> {
    type Raw = S::Raw;
    type Sample = S::Sample;

    fn samples(&self) -> u64 {
        self.source.len()
    }

    fn decode_raw(
        &self,
        index: u64,
        raw: S::Raw,
        rng: &mut SampleRng,
    ) -> Result<S::Sample, BoxError> {
        self.source.decode(index, raw, rng)
    }

    fn bytes_of(&self, raw: &S::Raw) -> usize {
        self.source.raw_bytes(raw)
    }

    fn sample_bytes_hint(&self) -> Option<usize> {
        self.source.sample_bytes()
    }

    fn description(&self, index: u64) -> Option<String> {
        self.source.describe(index)
    }

    fn print(&self) -> u32 {
        self.source.fingerprint()
    }

    fn fetch_here(&self, _: u64) -> Result<S::Raw, BoxError> {
        match self.process.is_this() {
            true => Err(SHUT_DOWN.into()),
            false => Err(FORKED.into()),
        }
    }

    const NO_SIGN: Option<&'static str> = Some(BLOCKED);

    fn ask_for_sign(inner: &Arc<Inner<OnRuntime<S>>>) {
        let waits = Arc::downgrade(inner);
        inner.source.runtime.spawn(async move {
            if let Some(inner) = waits.upgrade() {
                inner.state.lock().asked_for_sign = None;
            }
        });
    }

    fn start(inner: &Arc<Inner<OnRuntime<S>>>) {
        loop {
            let started = {
                let mut state = inner.state.lock();
                let runs = !state.is_lacking;
                runs.then(|| state.start(&inner.limits, Instant::now()))
                    .flatten()
            };
            let Some((number, index)) = started else {
                return;
            };
            let task = Task {
                inner: Arc::clone(inner),
                number,
                is_finished: false,
            };
            // Without the lock: a runtime that is shut down drops the task here.
            let spawned = inner.source.runtime.spawn(task.run(index));
            let abort = spawned.abort_handle();
            let abort = Box::new(move || abort.abort());
            let unwanted = inner.state.lock().note_abort(number, abort);
            if let Some(abort) = unwanted {
                abort();
            }
        }
    }
}

/// A request that runs. If it is dropped before it is finished, it was aborted, or the runtime was shut down.
struct Task<S: AsyncStagedDataset> {
    inner: Arc<Inner<OnRuntime<S>>>,
    number: u64,
    is_finished: bool,
}

impl<S: AsyncStagedDataset> Task<S> {
    async fn run(mut self, index: u64) {
        let outcome = {
            let source = &self.inner.source.source;
            let mut fetch = pin!(async { source.fetch(index).await });
            poll_fn(|context| {
                // Unwind safety: after a panic, the future is only dropped.
                match catch_unwind(AssertUnwindSafe(|| fetch.as_mut().poll(context))) {
                    Ok(Poll::Pending) => Poll::Pending,
                    Ok(Poll::Ready(fetched)) => Poll::Ready(Ok(fetched)),
                    Err(payload) => Poll::Ready(Err(payload)),
                }
            })
            .await
        };
        self.is_finished = true;
        self.inner.finish(self.number, outcome);
        OnRuntime::start(&self.inner);
    }
}

impl<S: AsyncStagedDataset> Drop for Task<S> {
    fn drop(&mut self) {
        if self.is_finished {
            return;
        }
        if self.inner.finish(self.number, Ok(Err(SHUT_DOWN.into()))) {
            // It was not aborted. Others would end in the same way, each within the call that starts it.
            let mut state = self.inner.state.lock();
            state.is_lacking = true;
            state.tell_waiting();
        } else {
            OnRuntime::start(&self.inner);
        }
    }
}
