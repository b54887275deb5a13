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

const SHUT_DOWN: &str = "the runtime that fetches samples was shut down";

/// An [`AsyncStagedDataset`] with the runtime that its requests run on: [`Staged::on_runtime`] makes it.
pub struct OnRuntime<S> {
    source: S,
    runtime: Handle,
}

impl<S: fmt::Debug> fmt::Debug for OnRuntime<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.source.fmt(f)
    }
}

impl<S: AsyncStagedDataset> Staged<OnRuntime<S>> {
    /// Makes a data set whose requests are tasks on this runtime, which must keep running while a loader has epochs.
    ///
    /// No thread waits for a request but the worker that needs its sample. Tasks are aborted when nobody needs them any more. If the
    /// runtime is shut down, samples are errors.
    ///
    /// Workers wait on threads of their own. With `num_workers(0)`, the thread that iterates the epoch waits: it must not be the only
    /// thread of the runtime.
    pub fn on_runtime(source: S, runtime: Handle) -> Staged<OnRuntime<S>> {
        Staged::of(OnRuntime { source, runtime })
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
        Err(SHUT_DOWN.into())
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
            // Nobody aborted it. Others would end in the same way, each within the call that starts it.
            let mut state = self.inner.state.lock();
            state.is_lacking = true;
            state.tell_waiting();
        } else {
            OnRuntime::start(&self.inner);
        }
    }
}
