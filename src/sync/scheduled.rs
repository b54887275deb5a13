//! The primitives under shuttle. One system thread runs all threads of a test in turn, and shuttle chooses which one
//! continues at each lock, condition variable, atomic and clock. A run depends on its seed alone, so clocks are
//! simulated.

use std::cell::Cell;
use std::ops::{AddAssign, Deref, DerefMut, Sub};
use std::sync::{PoisonError, TryLockError};
use std::time::Duration;

pub(crate) use shuttle::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize};
pub(crate) use shuttle::{thread, thread_local};

/// Whether this bug is planted: tests/shuttle checks that its scenarios find it, each in its own process.
pub(crate) fn planted(bug: &str) -> bool {
    static PLANTED: std::sync::OnceLock<Option<String>> = std::sync::OnceLock::new();
    let planted = PLANTED.get_or_init(|| std::env::var("PINFEED_PLANTED").ok());
    planted.as_deref() == Some(bug)
}

/// They are not counted.
#[cfg(feature = "testing")]
pub(crate) fn locks_held() -> usize {
    0
}

/// Nothing logs under these locks but what scenarios look at.
pub(crate) fn without_locks(f: impl FnOnce()) {
    f();
}

/// Starts a thread within a scope. (There it has no name.)
#[cfg(feature = "webdataset")]
pub(crate) fn spawn_scoped<'scope, T: Send + 'static>(
    scope: &'scope thread::Scope<'scope, '_>,
    _: String,
    work: impl FnOnce() -> T + Send + 'scope,
) -> std::io::Result<thread::ScopedJoinHandle<'scope, T>> {
    Ok(scope.spawn(work))
}

/// Yields, because the scheduler need not be fair to a spinning thread.
pub(crate) fn spin_loop() {
    thread::yield_now();
}

/// With parking_lot's interface: no poisoning on panic.
#[derive(Debug, Default)]
pub(crate) struct Mutex<T>(shuttle::sync::Mutex<T>);

pub(crate) struct MutexGuard<'a, T> {
    held: Option<shuttle::sync::MutexGuard<'a, T>>,
    mutex: &'a shuttle::sync::Mutex<T>,
}

impl<T> Mutex<T> {
    pub(crate) const fn new(value: T) -> Mutex<T> {
        Mutex(shuttle::sync::Mutex::new(value))
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, T> {
        MutexGuard {
            held: Some(self.0.lock().unwrap_or_else(PoisonError::into_inner)),
            mutex: &self.0,
        }
    }

    pub(crate) fn try_lock(&self) -> Option<MutexGuard<'_, T>> {
        let held = match self.0.try_lock() {
            Ok(held) => held,
            Err(TryLockError::Poisoned(held)) => held.into_inner(),
            Err(TryLockError::WouldBlock) => return None,
        };
        Some(MutexGuard {
            held: Some(held),
            mutex: &self.0,
        })
    }

    pub(crate) fn get_mut(&mut self) -> &mut T {
        self.0.get_mut().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn into_inner(self) -> T {
        self.0.into_inner().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<T> Deref for MutexGuard<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        match &self.held {
            Some(guard) => guard,
            None => unreachable!("only `Condvar::wait` takes it, and puts it back"),
        }
    }
}

impl<T> DerefMut for MutexGuard<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        match &mut self.held {
            Some(guard) => guard,
            None => unreachable!("only `Condvar::wait` takes it, and puts it back"),
        }
    }
}

/// With parking_lot's interface: no poisoning on panic.
#[derive(Debug, Default)]
pub(crate) struct RwLock<T>(shuttle::sync::RwLock<T>);

pub(crate) type ReadGuard<'a, T> = shuttle::sync::RwLockReadGuard<'a, T>;
pub(crate) type WriteGuard<'a, T> = shuttle::sync::RwLockWriteGuard<'a, T>;

impl<T> RwLock<T> {
    pub(crate) const fn new(value: T) -> RwLock<T> {
        RwLock(shuttle::sync::RwLock::new(value))
    }

    pub(crate) fn read(&self) -> ReadGuard<'_, T> {
        self.0.read().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn write(&self) -> WriteGuard<'_, T> {
        self.0.write().unwrap_or_else(PoisonError::into_inner)
    }
}

/// With parking_lot's interface.
#[derive(Debug, Default)]
pub(crate) struct Condvar {
    condvar: shuttle::sync::Condvar,
    /// Counts notifications, for waits with an end.
    told: std::sync::atomic::AtomicU64,
}

impl Condvar {
    pub(crate) const fn new() -> Condvar {
        Condvar {
            condvar: shuttle::sync::Condvar::new(),
            told: std::sync::atomic::AtomicU64::new(0),
        }
    }

    /// Waits until notified, or until the end, which comes whenever shuttle likes: then the clock says that it has come. While
    /// others can go on, it is unlikely.
    pub(crate) fn wait_until<T>(&self, guard: &mut MutexGuard<'_, T>, end: Instant) {
        let told = self.told.load(super::Ordering::Relaxed);
        loop {
            drop(guard.held.take());
            thread::yield_now();
            let held = guard.mutex.lock().unwrap_or_else(PoisonError::into_inner);
            guard.held = Some(held);
            if self.told.load(super::Ordering::Relaxed) != told {
                return;
            }
            if random().is_multiple_of(32) {
                return Instant::passes(end);
            }
        }
    }

    pub(crate) fn wait<T>(&self, guard: &mut MutexGuard<'_, T>) {
        if let Some(held) = guard.held.take() {
            let held = self.condvar.wait(held);
            guard.held = Some(held.unwrap_or_else(PoisonError::into_inner));
        }
    }

    pub(crate) fn notify_one(&self) {
        self.told.fetch_add(1, super::Ordering::Relaxed);
        self.condvar.notify_one();
    }

    pub(crate) fn notify_all(&self) {
        self.told.fetch_add(1, super::Ordering::Relaxed);
        self.condvar.notify_all();
    }
}

/// Initialised once. Threads that arrive meanwhile wait, on shuttle's lock.
#[derive(Debug)]
pub(crate) struct OnceLock<T> {
    value: std::sync::OnceLock<T>,
    making: Mutex<()>,
    is_made: AtomicBool,
}

impl<T> Default for OnceLock<T> {
    fn default() -> OnceLock<T> {
        OnceLock::new()
    }
}

impl<T> OnceLock<T> {
    pub(crate) const fn new() -> OnceLock<T> {
        OnceLock {
            value: std::sync::OnceLock::new(),
            making: Mutex::new(()),
            is_made: AtomicBool::new(false),
        }
    }

    pub(crate) fn get(&self) -> Option<&T> {
        let is_made = self.is_made.load(super::Ordering::Acquire);
        is_made.then(|| self.value.get()).flatten()
    }

    pub(crate) fn set(&self, value: T) -> Result<(), T> {
        let mut value = Some(value);
        self.get_or_init(|| match value.take() {
            Some(value) => value,
            None => unreachable!("it is called once"),
        });
        value.map_or(Ok(()), Err)
    }

    pub(crate) fn get_or_init(&self, make: impl FnOnce() -> T) -> &T {
        if let Some(value) = self.get() {
            return value;
        }
        let _making = self.making.lock();
        let value = self.value.get_or_init(make);
        self.is_made.store(true, super::Ordering::Release);
        value
    }

    pub(crate) fn get_or_ask(&self, ask: impl FnOnce() -> T) -> &T {
        self.get_or_init(ask)
    }

    pub(crate) fn take(&mut self) -> Option<T> {
        self.is_made = AtomicBool::new(false);
        self.value.take()
    }

    pub(crate) fn into_inner(self) -> Option<T> {
        self.value.into_inner()
    }
}

/// An instant of a simulated clock: each reading finds that a nanosecond to some milliseconds have passed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Instant(Duration);

std::thread_local! {
    static NOW_NS: Cell<u64> = const { Cell::new(0) };
}

fn random() -> u64 {
    shuttle::rand::RngCore::next_u64(&mut shuttle::rand::thread_rng())
}

impl Instant {
    /// The clock has reached this instant.
    fn passes(end: Instant) {
        let ns = end.0.as_nanos() as u64;
        NOW_NS.set(NOW_NS.get().max(ns));
    }

    pub(crate) fn checked_add(&self, duration: Duration) -> Option<Instant> {
        self.0.checked_add(duration).map(Instant)
    }

    pub(crate) fn now() -> Instant {
        let random = random();
        let step_ns = (1 << (random % 22)) + (random >> 32) % 64;
        NOW_NS.set(NOW_NS.get() + step_ns);
        Instant(Duration::from_nanos(NOW_NS.get()))
    }

    pub(crate) fn elapsed(&self) -> Duration {
        Instant::now().saturating_duration_since(*self)
    }

    pub(crate) fn saturating_duration_since(&self, earlier: Instant) -> Duration {
        self.0.saturating_sub(earlier.0)
    }
}

impl AddAssign<Duration> for Instant {
    fn add_assign(&mut self, duration: Duration) {
        self.0 += duration;
    }
}

impl Sub for Instant {
    type Output = Duration;

    fn sub(self, earlier: Instant) -> Duration {
        self.saturating_duration_since(earlier)
    }
}

/// A channel with crossbeam's interface.
pub(crate) mod channel {
    pub(crate) use shuttle::sync::mpsc::{Sender, channel as unbounded};
}

/// Replaces rayon's pool: each piece of work gets its own thread.
#[derive(Debug)]
pub(crate) struct ThreadPool {
    threads: usize,
}

impl ThreadPool {
    pub(crate) fn current_num_threads(&self) -> usize {
        self.threads
    }

    pub(crate) fn spawn(&self, work: impl FnOnce() + Send + 'static) {
        let named = thread::Builder::new().name("pinfeed-helper".to_owned());
        drop(named.spawn(work));
    }
}

/// With rayon's interface.
#[derive(Debug, Default)]
pub(crate) struct ThreadPoolBuilder {
    threads: usize,
}

impl ThreadPoolBuilder {
    pub(crate) fn new() -> ThreadPoolBuilder {
        ThreadPoolBuilder::default()
    }

    pub(crate) fn num_threads(self, threads: usize) -> ThreadPoolBuilder {
        ThreadPoolBuilder { threads }
    }

    pub(crate) fn thread_name(self, _: impl Fn(usize) -> String) -> ThreadPoolBuilder {
        self
    }

    pub(crate) fn build(self) -> Result<ThreadPool, std::convert::Infallible> {
        Ok(ThreadPool {
            threads: self.threads,
        })
    }
}
