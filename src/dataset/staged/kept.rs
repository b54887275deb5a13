//! Requests that are kept: what they bring is not taken by one `get`, but shared by several, and counted by whatever makes them. So
//! threads, places in flight and time limits are here, and what is fetched lies elsewhere: [`Blocked`](crate::dataset::Blocked).

use std::time::Duration;

use super::requests::{Gone, Seen};
use super::{Inner, Staged, Stages};
use crate::error::{BoxError, NoAnswer};
use crate::sync::{Arc, Instant};

/// What became of a request that a `get` waits for.
pub(in crate::dataset) enum Came {
    Done,
    /// No thread could fetch it: the caller must.
    Nobody,
    /// It was forgotten: it is not needed any more.
    Gone,
}

/// What is to be dropped without a lock.
pub(in crate::dataset) struct Forgotten<S: Stages>(Gone<S::Raw>);

impl<S: Stages> Default for Forgotten<S> {
    fn default() -> Forgotten<S> {
        Forgotten(Gone::default())
    }
}

impl<S: Stages> Staged<S> {
    pub(in crate::dataset) fn shared(&self) -> &Arc<Inner<S>> {
        self.inner()
    }

    /// As [`with_in_flight`](Staged::with_in_flight).
    pub(in crate::dataset) fn set_in_flight(&mut self, requests: usize) {
        if let Some(inner) = self.inner.as_mut().and_then(Arc::get_mut) {
            inner.limits.in_flight = requests;
        }
    }

    /// The source, before the data set is in a loader.
    pub(in crate::dataset) fn source_mut(&mut self) -> Option<&mut S> {
        let inner = self.inner.as_mut().and_then(Arc::get_mut)?;
        Some(&mut inner.source)
    }
}

impl<S: Stages> Inner<S> {
    pub(in crate::dataset) fn source(&self) -> &S {
        &self.source
    }

    /// Whether this is the process whose threads fetch: the one that uses it first.
    pub(in crate::dataset) fn is_here(&self) -> bool {
        self.process.is_this()
    }

    /// Whether another process fetches, from which this one was forked.
    pub(in crate::dataset) fn is_elsewhere(&self) -> bool {
        self.process.is_another()
    }

    /// Makes a request; returns its number. [`run`](Inner::run) it when no lock is held.
    pub(in crate::dataset) fn queue(&self, index: u64, timeout: Option<Duration>) -> u64 {
        self.state.lock().queue(index, timeout)
    }

    /// Whether a request has run for as long as a sample may take.
    pub(in crate::dataset) fn hangs(&self, number: u64) -> bool {
        self.state.lock().is_late(number, Instant::now())
    }

    /// A request is not needed any more.
    pub(in crate::dataset) fn forget(&self, number: u64, forgotten: &mut Forgotten<S>) {
        self.state.lock().forget(number, &mut forgotten.0);
    }

    /// Sees to it that requests run which may run now, and drops what was forgotten.
    pub(in crate::dataset) fn run(self: &Arc<Self>, forgotten: Forgotten<S>) {
        self.clear(forgotten.0);
    }

    /// Waits for a request until `timeout` is over, which began then. One that hangs already is not waited for.
    pub(in crate::dataset) fn wait_for(
        self: &Arc<Self>,
        number: u64,
        began: Instant,
        timeout: Option<Duration>,
    ) -> Result<Came, BoxError> {
        let state = self.state.lock();
        self.wait(state, number, began, timeout, |state, waiter, now| {
            let came = match state.look(number, waiter, now) {
                Seen::Done => Came::Done,
                Seen::Nobody => Came::Nobody,
                Seen::Gone => Came::Gone,
                Seen::Wait if state.is_late(number, now) => {
                    let elapsed = state.timeout(number).or(timeout).unwrap_or_default();
                    state.give_up(number, waiter);
                    return Some(Err(NoAnswer { elapsed }.into()));
                }
                Seen::Wait => return None,
            };
            Some(Ok(came))
        })?
    }
}
