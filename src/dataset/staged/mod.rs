//! Slow sources: what is fetched, and may wait, apart from what is decoded, and computes.

mod requests;
#[cfg(feature = "tokio")]
mod runtime;
mod threads;

#[cfg(feature = "tokio")]
pub use runtime::OnRuntime;

use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::time::Duration;

use self::requests::{Counted, Found, Gone, Limits, Outcome, State};
use super::{Dataset, Pass};
use crate::error::{BoxError, panic_message};
use crate::fingerprint::{Fingerprint, spread};
use crate::rng::SampleRng;
use crate::sync::{Arc, Condvar, Instant, Mutex, is_own_thread, thread};

/// A source of samples that has two steps: to *fetch* what is stored, which waits for a network or a disk, and to *decode* it, which
/// computes. [`Staged`] makes a data set of it, with many requests in flight and few workers.
///
/// `fetch` blocks a thread. For a client that is asynchronous, there is `AsyncStagedDataset`, with the feature `tokio`.
///
/// # Examples
///
/// ```
/// use pinfeed::dataset::{Staged, StagedDataset};
/// use pinfeed::{BoxError, DataLoader, SampleRng};
///
/// /// Stands for objects in a store far away.
/// struct Store;
///
/// impl StagedDataset for Store {
///     type Raw = Vec<u8>;
///     type Sample = (f32, i64);
///
///     fn len(&self) -> u64 {
///         200
///     }
///
///     fn fetch(&self, index: u64) -> Result<Vec<u8>, BoxError> {
///         std::thread::sleep(std::time::Duration::from_millis(5));
///         Ok(vec![index as u8; 1000])
///     }
///
///     fn decode(&self, index: u64, raw: Vec<u8>, rng: &mut SampleRng) -> Result<(f32, i64), BoxError> {
///         Ok((f32::from(raw[0]) + rng.f32(), index as i64))
///     }
///
///     fn raw_bytes(&self, raw: &Vec<u8>) -> usize {
///         raw.len()
///     }
/// }
///
/// let data = Staged::new(Store).in_flight(50); // 50 requests wait at a time, for two workers
/// let loader = DataLoader::builder(data).batch_size(20).shuffle(true).num_workers(2).build()?;
/// for batch in loader.epoch(0) {
///     let (values, indices) = batch?;
///     assert_eq!(values.len(), indices.len());
/// }
/// # Ok::<(), pinfeed::Error>(())
/// ```
pub trait StagedDataset: Send + Sync + 'static {
    /// What a request brings.
    type Raw: Send + 'static;
    /// What is made of it.
    type Sample: Send + 'static;

    /// The number of samples.
    fn len(&self) -> u64;

    /// Whether there are no samples.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Fetches what is stored of the sample at `index`. It runs on a thread of [`Staged`]'s, and may wait.
    ///
    /// It should have a time limit of its own, as clients of servers do: nobody can interrupt it.
    ///
    /// # Errors
    ///
    /// Any error: it is that of the sample, at its place in the order. One that is [`Temporary`](crate::error::Temporary) is tried again
    /// with [`retry`](crate::loader::Builder::retry). A panic is caught, and reported as the sample's.
    fn fetch(&self, index: u64) -> Result<Self::Raw, BoxError>;

    /// Makes the sample, on a worker. Draw random augmentation from `rng`, as in [`Dataset::get`].
    ///
    /// # Errors
    ///
    /// As [`Dataset::get`].
    fn decode(
        &self,
        index: u64,
        raw: Self::Raw,
        rng: &mut SampleRng,
    ) -> Result<Self::Sample, BoxError>;

    /// How much memory that has, in bytes: it counts in [`max_bytes`](Staged::max_bytes) until it is decoded.
    fn raw_bytes(&self, raw: &Self::Raw) -> usize;

    /// As [`Dataset::describe`].
    fn describe(&self, index: u64) -> Option<String> {
        let _ = index;
        None
    }

    /// As [`Dataset::sample_bytes`].
    fn sample_bytes(&self) -> Option<usize> {
        None
    }

    /// As [`Dataset::fingerprint`].
    fn fingerprint(&self) -> u32 {
        fingerprint(self.len(), |index| self.describe(index))
    }
}

/// A [`StagedDataset`] whose requests are futures: [`Staged::on_runtime`] makes a data set of it. (With the feature `tokio`.)
///
/// # Examples
///
/// ```
/// use std::time::Duration;
///
/// use pinfeed::dataset::{AsyncStagedDataset, Staged};
/// use pinfeed::{BoxError, DataLoader, SampleRng};
///
/// /// Stands for a client of an object store.
/// struct Store;
///
/// impl AsyncStagedDataset for Store {
///     type Raw = Vec<u8>;
///     type Sample = i64;
///
///     fn len(&self) -> u64 {
///         200
///     }
///
///     async fn fetch(&self, index: u64) -> Result<Vec<u8>, BoxError> {
///         tokio::task::yield_now().await;
///         Ok(index.to_le_bytes().to_vec())
///     }
///
///     fn decode(&self, _: u64, raw: Vec<u8>, _: &mut SampleRng) -> Result<i64, BoxError> {
///         Ok(i64::from_le_bytes(raw.as_slice().try_into()?))
///     }
///
///     fn raw_bytes(&self, raw: &Vec<u8>) -> usize {
///         raw.len()
///     }
/// }
///
/// let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).build()?;
/// let data = Staged::on_runtime(Store, runtime.handle().clone()).in_flight(100);
/// let loader = DataLoader::builder(data).batch_size(50).num_workers(2).build()?;
/// let batch = loader.epoch(0).next().unwrap()?;
/// assert_eq!(batch.as_slice()[..3], [0, 1, 2]);
/// # Ok::<(), pinfeed::BoxError>(())
/// ```
#[cfg(feature = "tokio")]
pub trait AsyncStagedDataset: Send + Sync + 'static {
    /// What a request brings.
    type Raw: Send + 'static;
    /// What is made of it.
    type Sample: Send + 'static;

    /// The number of samples.
    fn len(&self) -> u64;

    /// Whether there are no samples.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Fetches what is stored of the sample at `index`. It is a task of the program's runtime, dropped at an `await` when nobody needs
    /// the sample any more. Implement it as `async fn`.
    ///
    /// # Errors
    ///
    /// As [`StagedDataset::fetch`].
    fn fetch(&self, index: u64) -> impl Future<Output = Result<Self::Raw, BoxError>> + Send;

    /// As [`StagedDataset::decode`].
    ///
    /// # Errors
    ///
    /// As [`Dataset::get`].
    fn decode(
        &self,
        index: u64,
        raw: Self::Raw,
        rng: &mut SampleRng,
    ) -> Result<Self::Sample, BoxError>;

    /// As [`StagedDataset::raw_bytes`].
    fn raw_bytes(&self, raw: &Self::Raw) -> usize;

    /// As [`Dataset::describe`].
    fn describe(&self, index: u64) -> Option<String> {
        let _ = index;
        None
    }

    /// As [`Dataset::sample_bytes`].
    fn sample_bytes(&self) -> Option<usize> {
        None
    }

    /// As [`Dataset::fingerprint`].
    fn fingerprint(&self) -> u32 {
        fingerprint(self.len(), |index| self.describe(index))
    }
}

/// As the default of [`Dataset::fingerprint`].
fn fingerprint(len: u64, describe: impl Fn(u64) -> Option<String>) -> u32 {
    let mut print = Fingerprint::new();
    print.add_number(len);
    for index in spread(len, 16) {
        print.add(describe(index).unwrap_or_default().as_bytes());
    }
    print.finish()
}

/// A data set that fetches ahead: requests run beside the workers, which only decode.
///
/// The loader announces which samples come, across the boundaries of epochs too ([`Dataset::will_need`]), and requests are made in
/// that order: up to [`in_flight`](Staged::in_flight) at a time, for samples up to [`ahead`](Staged::ahead) of those that are being
/// loaded, of [`max_bytes`](Staged::max_bytes) together. A worker that needs a sample which is not there waits for it; the wait
/// counts in the loader's [`timeout`](crate::loader::Builder::timeout). Order and content of batches are those of a
/// data set that fetches and decodes in `get`. Each sample is fetched once in each epoch. (A sample that is loaded once more, or takes
/// the place of a bad one, is fetched when it is needed.)
///
/// When an epoch is dropped before its end, requests that do not run yet are dropped, and what was fetched for it is freed. Requests that
/// run go on, because nobody can interrupt a thread, and their results are dropped; tasks of a runtime are aborted. What a worker waits
/// for at that moment is still fetched.
///
/// Dropping it waits for requests that run, so that the source is free afterwards; no longer than the `timeout` of a loader that
/// used it, if it has one. Put it into an `Arc` to read [`stats`](Staged::stats) beside the loader.
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
/// let data = Staged::new(share).in_flight(64).max_bytes(256 << 20);
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
    /// [`in_flight`](Staged::in_flight), unless the source is at its limit.
    pub waited: u64,
    /// How many requests were given up, before or after they were begun, because nobody needed them any more.
    pub cancelled: u64,
    /// How many requests run.
    pub running: usize,
    /// How much memory the samples have that were fetched, and are not decoded.
    pub held_bytes: usize,
    /// The most that was so far.
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
}

/// What is shared with whoever runs requests.
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
    /// That of the loader that announced last.
    timeout: Mutex<Option<Duration>>,
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
        let is_wanted = unwanted.is_none();
        unwanted.into_iter().for_each(drop_quietly);
        is_wanted
    }

    /// Drops what nobody needs, and starts what there is room for now.
    fn clear(self: &Arc<Self>, gone: Gone<S::Raw>) {
        gone.aborts.into_iter().for_each(|abort| abort());
        gone.outcomes.into_iter().for_each(drop_quietly);
        S::start(self);
    }

    /// Waits for a sample's request. What comes back counts as held.
    fn take(self: &Arc<Self>, index: u64, pass: u32) -> (Outcome<S::Raw>, Held<'_, S>) {
        let waiter = Arc::default();
        let mut state = self.state.lock();
        let number = state.take_on(index, pass);
        let mut has_started = false;
        loop {
            match state.find(number, &waiter) {
                Found::Done(outcome, counted) => {
                    return (
                        outcome,
                        Held {
                            inner: self,
                            counted,
                        },
                    );
                }
                Found::Nobody => {
                    drop(state);
                    let fetched = self.source.fetch_here(index);
                    return (
                        Ok(fetched),
                        Held {
                            inner: self,
                            counted: Counted::default(),
                        },
                    );
                }
                Found::Wait if has_started => waiter.wait(&mut state),
                Found::Wait => {
                    drop(state);
                    S::start(self);
                    has_started = true;
                    state = self.state.lock();
                }
            }
        }
    }
}

/// What was fetched counts until it is decoded, or that failed.
struct Held<'a, S: Stages> {
    inner: &'a Arc<Inner<S>>,
    counted: Counted,
}

impl<S: Stages> Drop for Held<'_, S> {
    fn drop(&mut self) {
        self.inner.state.lock().release(self.counted);
        S::start(self.inner);
    }
}

/// It is the program's to drop, and its panic nobody's.
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
                timeout: Mutex::default(),
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
        // Nothing has been started before it is in a loader, so nobody shares it.
        if let Some(inner) = self.inner.as_mut().and_then(Arc::get_mut) {
            limit(&mut inner.limits);
        }
        self
    }

    /// Sets how many requests may run at a time; 32 by default, and at least 1.
    ///
    /// A source of a given latency gives `in_flight / latency` samples a second at most: 256 requests of 50 ms give 5,120. With
    /// blocking requests, each takes a thread (2 MiB of addresses, and a few pages of memory).
    pub fn in_flight(self, requests: usize) -> Staged<S> {
        self.limited(|limits| limits.in_flight = requests.max(1))
    }

    /// Sets how many samples may be requested, or fetched, ahead of those that are being loaded; twice
    /// [`in_flight`](Staged::in_flight) by default. It should be more than are in flight, because they do not come in order.
    pub fn ahead(self, samples: usize) -> Staged<S> {
        self.limited(|limits| limits.ahead = Some(samples))
    }

    /// Sets how much memory samples may have that are fetched and not decoded, with those being fetched; 1 GiB by default.
    ///
    /// What is being fetched counts as the largest so far, because nobody knows before. (So the first sample of all is fetched alone.) If
    /// a worker waits for a sample for which there is no room, it is fetched nevertheless, one at a time: the bound may be exceeded by
    /// one sample, and by samples that are larger than all before.
    pub fn max_bytes(self, bytes: usize) -> Staged<S> {
        self.limited(|limits| limits.max_bytes = bytes)
    }

    /// Returns what has been done so far.
    pub fn stats(&self) -> StagedStats {
        self.inner().state.lock().stats()
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
        *inner.timeout.lock() = pass.timeout;
        let gone = inner.state.lock().announce(indices, pass);
        inner.clear(gone);
    }

    fn pass_ended(&self, pass: Pass) {
        let inner = self.inner();
        let gone = inner.state.lock().end(pass.id());
        inner.clear(gone);
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
        let gone = inner.state.lock().close();
        inner.startable.notify_all();
        inner.clear(gone);
        // A data set may be dropped by one of its own threads.
        if is_own_thread() {
            return;
        }
        let timeout = *inner.timeout.lock();
        let end = timeout.and_then(|timeout| Instant::now().checked_add(timeout));
        if let Some(end) = end {
            let mut state = inner.state.lock();
            while state.threads > 0 && Instant::now() < end {
                inner.ended.wait_until(&mut state, end);
            }
            if state.threads > 0 {
                log::warn!(
                    "a data set is dropped while {} of its requests hang: their threads are left alone, and keep its source until \
                     they come back",
                    state.stats().running
                );
                return;
            }
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
