//! Slow sources: what is fetched, and may wait, apart from what is decoded, and computes.

mod kept;
mod requests;
#[cfg(feature = "tokio")]
mod runtime;
mod source;
mod threads;

pub(in crate::dataset) use kept::{Came, Forgotten};
#[cfg(feature = "tokio")]
pub use runtime::OnRuntime;
#[cfg(feature = "tokio")]
pub use source::AsyncStagedDataset;
pub use source::StagedDataset;

use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::time::Duration;

use self::requests::{Counted, Found, Gone, Limits, MOST_OVERDUE, Outcome, State, is_past};
use super::{Dataset, Pass};
use crate::error::{BoxError, NoAnswer, panic_message};
use crate::meter::Fetching;
use crate::rng::SampleRng;
use crate::sync::log;
use crate::sync::{
    Arc, Condvar, Instant, Mutex, MutexGuard, is_own_thread, planted, sample_timeout, thread,
};
use crate::system::FirstUser;

/// A data set that fetches ahead: requests run beside the workers, which only decode.
///
/// The loader announces which samples come, across the boundaries of epochs too ([`Dataset::will_need`]), and requests are made in
/// that order: up to [`with_in_flight`](Staged::with_in_flight) at a time, for samples up to [`with_lookahead`](Staged::with_lookahead) of those that are being
/// loaded, of [`with_max_bytes`](Staged::with_max_bytes) together. A worker that needs a sample which is not there waits for it; the wait
/// counts in the loader's [`timeout`](crate::loader::Builder::timeout). Order and content of batches are those of a
/// data set that fetches and decodes in `get`. Each sample is fetched once in each epoch. (A sample that is loaded once more, or takes
/// the place of a bad one, is fetched when it is needed.)
///
/// # Requests that hang
///
/// With a [`timeout`](crate::loader::Builder::timeout), a sample whose request brings nothing in time is an error in its batch's place, and
/// later batches come. A thread in `fetch` cannot be stopped, so its request runs on; but after half of the timeout it no longer counts
/// towards the limits, and another begins in its place, on one more thread. Up to 1,024 requests may be left like that
/// at a time (then the log says so, and those that hang keep their places). So give `fetch` a time limit of its own.
///
/// A result that comes late is used if its sample is still in time, and dropped if not; the thread fetches again. The next epoch requests
/// the sample anew. A task of a runtime is aborted when its sample has become an error. [`StagedStats`] counts: `given_up` and `overdue`.
///
/// Without a timeout, a request that hangs keeps its place, and the epoch waits.
///
/// # Dropping
///
/// When an epoch is dropped before its end, requests that do not run yet are dropped, and what was fetched for it is freed. Requests that
/// run go on, because a thread cannot be interrupted, and their results are dropped; tasks of a runtime are aborted. What a worker waits
/// for at that moment is still fetched.
///
/// Dropping the data set waits for requests that run, so that the source is free afterwards. Those of a loader with a `timeout` are waited
/// for until they have run for that long: the threads of those that hang are abandoned, and keep the source until they come back.
///
/// A forked child process has none of the threads. If its parent has loaded a sample before the fork, the child's workers fetch their
/// samples themselves, one at a time: make the data set, and the loader, after the fork.
///
/// Put it into an `Arc` to read [`stats`](Staged::stats) beside the loader.
///
/// (Grain's `ReadOptions` has the same two numbers, `num_threads` and `prefetch_buffer_size`.)
///
/// # Examples
///
/// ```
/// use pinfeed::dataset::{Staged, StagedDataset};
/// use pinfeed::{BoxError, DataLoader, SampleRng};
///
/// /// Files on a slow share.
/// struct Share(Vec<std::path::PathBuf>);
///
/// impl StagedDataset for Share {
///     type Raw = Vec<u8>;
///     type Sample = i64;
///
///     fn len(&self) -> u64 {
///         self.0.len() as u64
///     }
///
///     fn fetch(&self, index: u64) -> Result<Vec<u8>, BoxError> {
///         Ok(std::fs::read(&self.0[index as usize])?)
///     }
///
///     fn decode(&self, _: u64, raw: Vec<u8>, _: &mut SampleRng) -> Result<i64, BoxError> {
///         Ok(raw.len() as i64)
///     }
///
///     fn raw_bytes(&self, raw: &Vec<u8>) -> usize {
///         raw.len()
///     }
///
///     fn describe(&self, index: u64) -> Option<String> {
///         Some(self.0[index as usize].display().to_string())
///     }
/// }
///
/// let share = Share(vec!["nowhere/a".into(), "nowhere/b".into()]);
/// let data = Staged::new(share).with_in_flight(64).with_max_bytes(256 << 20);
/// let loader = DataLoader::builder(data).num_workers(2).build()?;
/// let error = loader.epoch(0).next().unwrap().unwrap_err();
/// assert!(error.to_string().contains("sample 0 (nowhere/a)"));
/// # Ok::<(), pinfeed::Error>(())
/// ```
pub struct Staged<S: Stages> {
    /// `None` once it is being dropped.
    inner: Option<Arc<Inner<S>>>,
}

/// What a [`Staged`] has done, and what it is doing: [`Staged::stats`].
///
/// # Examples
///
/// ```
/// use pinfeed::dataset::{Staged, StagedDataset};
///
/// fn report<S: StagedDataset>(data: &Staged<S>) {
///     let stats = data.stats();
///     println!("{} requests, {} of which a worker waited for", stats.fetched, stats.waited);
/// }
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct StagedStats {
    /// How many requests were begun.
    pub fetched: u64,
    /// How often a worker needed a sample that was not there yet. If it is most of them, fetching is what limits: raise
    /// [`with_in_flight`](Staged::with_in_flight), unless the source is at its limit.
    pub waited: u64,
    /// How many requests were given up, before or after they were begun, because their samples were no longer needed.
    pub cancelled: u64,
    /// How many requests a worker waited for in vain: the sample is an error, because of the loader's
    /// [`timeout`](crate::loader::Builder::timeout).
    pub given_up: u64,
    /// How many requests run.
    pub running: usize,
    /// How many of those run for more than half of the `timeout`, and no longer count in [`with_in_flight`](Staged::with_in_flight).
    pub overdue: usize,
    /// How much memory the samples have that were fetched, and are not decoded.
    pub held_bytes: usize,
    /// The highest value of `held_bytes` so far.
    pub most_bytes: usize,
}

/// What all kinds of sources have in common.
#[doc(hidden)]
pub trait Stages: Send + Sync + Sized + 'static {
    type Raw: Send + 'static;
    type Sample: Send + 'static;

    fn samples(&self) -> u64;
    fn decode_raw(
        &self,
        index: u64,
        raw: Self::Raw,
        rng: &mut SampleRng,
    ) -> Result<Self::Sample, BoxError>;
    fn bytes_of(&self, raw: &Self::Raw) -> usize;
    fn sample_bytes_hint(&self) -> Option<usize>;
    fn description(&self, index: u64) -> Option<String>;
    fn print(&self) -> u32;

    /// Fetches on the caller's thread: there is no other.
    fn fetch_here(&self, index: u64) -> Result<Self::Raw, BoxError>;

    /// Sees to it that requests run which may run now.
    fn start(inner: &Arc<Inner<Self>>);

    /// The error of a sample whose request cannot run, if what runs requests gives no sign of life. `None`: it has threads of its own,
    /// which live.
    const NO_SIGN: Option<&'static str> = None;

    /// Asks what runs requests for a sign of life, upon which it clears [`State::asked_for_sign`].
    fn ask_for_sign(inner: &Arc<Inner<Self>>) {
        let _ = inner;
    }
}

/// How long a `get` waits for a request before what runs it is asked for a sign of life, and how long that may take.
const SIGN_AFTER: Duration = Duration::from_secs(1);
const SIGN_WITHIN: Duration = Duration::from_secs(14);

/// When a `get` that began to wait at `began` looks for a sign of life. If another `get` has asked for one (at `asked`), it is due when
/// that one's time is over, but not before this `get` would have asked itself.
fn sign_due(began: Instant, asked: Option<Instant>) -> Option<Instant> {
    let own = began.checked_add(SIGN_AFTER)?;
    match asked {
        None => Some(own),
        Some(asked) => Some(asked.checked_add(SIGN_WITHIN)?.max(own)),
    }
}

/// What is shared with the threads, or the tasks of a runtime, that run requests.
#[doc(hidden)]
pub struct Inner<S: Stages> {
    source: S,
    limits: Limits,
    state: Mutex<State<S::Raw>>,
    /// A request may run: threads sleep here.
    startable: Condvar,
    /// A thread has ended.
    ended: Condvar,
    threads: Mutex<Vec<thread::JoinHandle<()>>>,
    /// The process that they run in: the one that needed a sample first.
    process: FirstUser,
}

impl<S: Stages> Inner<S> {
    /// A request has run. Returns whether it was wanted.
    fn finish(&self, number: u64, mut outcome: Outcome<S::Raw>) -> bool {
        let mut bytes = 0;
        if let Ok(Ok(raw)) = &outcome {
            match catch_unwind(AssertUnwindSafe(|| self.source.bytes_of(raw))) {
                Ok(counted) => bytes = counted,
                Err(payload) => outcome = Err(payload),
            }
        }
        let unwanted = self.state.lock().finish(number, outcome, bytes);
        let Some(unwanted) = unwanted else {
            return true;
        };
        drop_quietly(unwanted);
        self.state.lock().ended(number);
        false
    }

    /// Drops what is not needed any more, and starts what there is room for now.
    fn clear(self: &Arc<Self>, gone: Gone<S::Raw>) {
        gone.aborts.into_iter().for_each(|abort| abort());
        gone.outcomes.into_iter().for_each(drop_quietly);
        S::start(self);
    }

    /// Waits for a sample's request. What comes back counts as held.
    fn take(self: &Arc<Self>, index: u64, pass: u32) -> (Outcome<S::Raw>, Held<'_, S>) {
        let nothing = || Held {
            inner: self,
            counted: None,
        };
        if !self.process.is_this() {
            return (Ok(self.source.fetch_here(index)), nothing());
        }
        let began = Instant::now();
        let mut state = self.state.lock();
        // (A data set around this one may get samples on threads of its own.)
        let own = sample_timeout();
        let number = state.take_on(index, pass, own);
        let of_pass = state.timeout(number).filter(|_| pass != 0);
        let came = self.wait(
            state,
            number,
            began,
            own.or(of_pass),
            |state, waiter, now| match state.find(number, waiter, now) {
                Found::Done(outcome, counted) => Some(Some((outcome, counted))),
                Found::Nobody => Some(None),
                Found::Wait => None,
            },
        );
        match came {
            Ok(Some((outcome, counted))) => {
                let counted = Some(counted);
                let inner = self;
                (outcome, Held { inner, counted })
            }
            Ok(None) => {
                let _fetching = Fetching::begin();
                (Ok(self.source.fetch_here(index)), nothing())
            }
            Err(error) => (Ok(Err(error)), nothing()),
        }
    }

    /// Waits until `look` finds something. Fails if that takes longer than `timeout`.
    fn wait<'a, T>(
        self: &'a Arc<Self>,
        mut state: MutexGuard<'a, State<S::Raw>>,
        number: u64,
        began: Instant,
        timeout: Option<Duration>,
        look: impl Fn(&mut State<S::Raw>, &Arc<Condvar>, Instant) -> Option<T>,
    ) -> Result<T, BoxError> {
        let waiter = Arc::default();
        let end = timeout.and_then(|timeout| began.checked_add(timeout));
        let end = end.filter(|_| !planted("a worker waits for a request for ever"));
        let mut has_started = false;
        let asked = state.asked_for_sign; // by another
        let mut sign_due = S::NO_SIGN.and_then(|_| sign_due(began, asked));
        loop {
            let now = Instant::now();
            if let Some(found) = look(&mut state, &waiter, now) {
                return Ok(found);
            }
            if is_past(end, now) {
                self.give_up(state, number, &waiter);
                let elapsed = now.saturating_duration_since(began);
                return Err(NoAnswer { elapsed }.into());
            }
            // Has what runs the request done anything since it was asked for a sign?
            if let Some(no_sign) = S::NO_SIGN.filter(|_| is_past(sign_due, now)) {
                let asked = *state.asked_for_sign.get_or_insert(now);
                sign_due = asked.checked_add(SIGN_WITHIN);
                if is_past(sign_due, now) {
                    self.give_up(state, number, &waiter);
                    return Err(no_sign.into());
                }
                if asked == now {
                    drop(state);
                    S::ask_for_sign(self);
                    state = self.state.lock();
                }
                continue;
            }
            // What hangs gives way to what waits.
            let is_changed = timeout.is_some() && state.expire(now);
            if is_changed || !has_started {
                drop(state);
                S::start(self);
                has_started = true;
                state = self.state.lock();
                continue;
            }
            // (What begins while this thread sleeps gives way later than that.)
            let later = timeout.and_then(|timeout| now.checked_add(timeout / 2));
            let due = state.next_expiry().filter(|_| timeout.is_some());
            let _fetching = Fetching::begin();
            match [due, later, end, sign_due].into_iter().flatten().min() {
                Some(until) => _ = waiter.wait_until(&mut state, until),
                None => waiter.wait(&mut state),
            }
        }
    }
}
impl<S: Stages> Inner<S> {
    /// Waits for a request no longer.
    #[cold]
    fn give_up(
        self: &Arc<Self>,
        mut state: MutexGuard<'_, State<S::Raw>>,
        number: u64,
        waiter: &Arc<Condvar>,
    ) {
        let abort = state.give_up(number, waiter);
        let is_most = state.is_news_of_most();
        drop(state);
        abort.into_iter().for_each(|abort| abort());
        if is_most {
            log::error!(
                "{MOST_OVERDUE} requests for samples hang: no more begin in their place until some of them come back"
            );
        }
        S::start(self);
    }
}

/// What was fetched counts until it is decoded, or that failed.
struct Held<'a, S: Stages> {
    inner: &'a Arc<Inner<S>>,
    /// `None`: it was fetched by the thread that needs it, or not at all.
    counted: Option<Counted>,
}

impl<S: Stages> Drop for Held<'_, S> {
    fn drop(&mut self) {
        if let Some(counted) = self.counted.take() {
            self.inner.state.lock().release(counted);
            S::start(self.inner);
        }
    }
}

/// Drops something of the program's. A panic of its `Drop` is caught and ignored.
fn drop_quietly<T>(thing: T) {
    if let Err(payload) = catch_unwind(AssertUnwindSafe(|| drop(thing))) {
        drop(panic_message(payload));
    }
}

impl<S: StagedDataset> Staged<S> {
    /// Makes a data set whose requests run on threads of its own, which are started when they are first needed.
    pub fn new(source: S) -> Staged<S> {
        Staged::of(source)
    }

    /// Returns the source.
    pub fn source(&self) -> &S {
        &self.inner().source
    }
}

impl<S: Stages> Staged<S> {
    fn of(source: S) -> Staged<S> {
        Staged {
            inner: Some(Arc::new(Inner {
                source,
                limits: Limits {
                    in_flight: 32,
                    ahead: None,
                    max_bytes: 1 << 30,
                },
                state: Mutex::default(),
                startable: Condvar::default(),
                ended: Condvar::default(),
                threads: Mutex::default(),
                process: FirstUser::nobody(),
            })),
        }
    }

    fn inner(&self) -> &Arc<Inner<S>> {
        match &self.inner {
            Some(inner) => inner,
            None => unreachable!("it is `None` within `drop` only"),
        }
    }

    fn limited(mut self, limit: impl FnOnce(&mut Limits)) -> Staged<S> {
        // Nothing has been started before it is in a loader, so it is not shared yet.
        if let Some(inner) = self.inner.as_mut().and_then(Arc::get_mut) {
            limit(&mut inner.limits);
        }
        self
    }

    /// Sets how many requests may run at a time; 32 by default, and at least 1.
    ///
    /// A source of a given latency gives `in_flight / latency` samples a second at most: 256 requests of 50 ms give 5,120. With
    /// blocking requests, each takes a thread (2 MiB of addresses, and a few pages of memory).
    pub fn with_in_flight(self, requests: usize) -> Staged<S> {
        self.limited(|limits| limits.in_flight = requests.max(1))
    }

    /// Sets how many samples may be requested, or fetched, ahead of those that are being loaded; twice
    /// [`with_in_flight`](Staged::with_in_flight) by default. It should be more than are in flight, because they do not come in order.
    pub fn with_lookahead(self, samples: usize) -> Staged<S> {
        self.limited(|limits| limits.ahead = Some(samples))
    }

    /// Sets how much memory samples may have that are fetched and not decoded, with those being fetched; 1 GiB by default.
    ///
    /// A request that runs counts as much as the largest sample so far, because its size is not known before. (So the first sample of all
    /// is fetched alone.) If a worker waits for a sample for which there is no room, it is fetched nevertheless, one at a time: the bound
    /// may be exceeded by one sample, and by samples that are larger than all before. `usize::MAX` is no bound.
    pub fn with_max_bytes(self, bytes: usize) -> Staged<S> {
        self.limited(|limits| limits.max_bytes = bytes)
    }

    /// Returns what has been done so far. In a process that was forked from the one that fetches, all zeros.
    pub fn stats(&self) -> StagedStats {
        let inner = self.inner();
        match inner.process.is_another() {
            true => StagedStats::default(), // one of its threads may hold the lock
            false => inner.state.lock().stats(),
        }
    }
}

impl<S: Stages> Dataset for Staged<S> {
    type Sample = S::Sample;

    fn len(&self) -> u64 {
        self.inner().source.samples()
    }

    fn get(&self, index: u64, rng: &mut SampleRng) -> Result<S::Sample, BoxError> {
        let inner = self.inner();
        let (outcome, _held) = inner.take(index, rng.pass());
        match outcome {
            Ok(fetched) => inner.source.decode_raw(index, fetched?, rng),
            Err(payload) => resume_unwind(payload),
        }
    }

    fn describe(&self, index: u64) -> Option<String> {
        self.inner().source.description(index)
    }

    fn lookahead(&self) -> usize {
        self.inner().limits.ahead()
    }

    fn will_need(&self, indices: &[u64], pass: Pass) {
        let inner = self.inner();
        if inner.process.is_this() {
            let gone = inner.state.lock().announce(indices, pass);
            inner.clear(gone);
        }
    }

    fn pass_ended(&self, pass: Pass) {
        let inner = self.inner();
        if !inner.process.is_another() {
            let gone = inner.state.lock().end(pass.id());
            inner.clear(gone);
        }
    }

    fn sample_bytes(&self) -> Option<usize> {
        self.inner().source.sample_bytes_hint()
    }

    fn fingerprint(&self) -> u32 {
        self.inner().source.print()
    }
}

impl<S: Stages> Drop for Staged<S> {
    fn drop(&mut self) {
        let Some(inner) = self.inner.take() else {
            return;
        };
        if inner.process.is_another() {
            return; // its threads are not here, and hold it for ever
        }
        let gone = inner.state.lock().close();
        inner.startable.notify_all();
        inner.clear(gone);
        // A data set may be dropped by one of its own threads.
        if is_own_thread() {
            return;
        }
        let mut state = inner.state.lock();
        loop {
            let (hanging, next) = state.hanging(Instant::now());
            if state.threads > hanging {
                match next {
                    Some(end) => _ = inner.ended.wait_until(&mut state, end),
                    None => inner.ended.wait(&mut state),
                }
                continue;
            }
            drop(state);
            if hanging > 0 {
                log::warn!(
                    "a data set is dropped while {hanging} of its requests hang: their threads are left alone, and keep its source \
                     until they come back"
                );
                return;
            }
            break;
        }
        let threads = std::mem::take(&mut *inner.threads.lock());
        for thread in threads {
            let _ = thread.join(); // they catch panics
        }
    }
}

impl<S: Stages + fmt::Debug> fmt::Debug for Staged<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Staged")
            .field("source", &self.inner().source)
            .field("limits", &self.inner().limits)
            .field("stats", &self.stats())
            .finish()
    }
}

impl<S: Stages> fmt::Debug for Inner<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Inner").finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A `get` that begins to wait when a sign that another asked for is nearly due waits for it as long as one that asks itself
    /// waits before it asks.
    #[test]
    fn a_sign_of_life_has_its_time() {
        let asked = Instant::now();
        let after = |seconds| asked.checked_add(Duration::from_secs(seconds)).unwrap();
        assert_eq!(sign_due(asked, None), Some(after(1)));
        assert_eq!(sign_due(after(5), Some(asked)), Some(after(14)));
        for began in [13, 14, 100] {
            let due = sign_due(after(began), Some(asked));
            assert_eq!(due, Some(after(began + 1)));
        }
    }
}
