//! The real primitives.

pub(crate) use super::held::{
    Condvar, Mutex, MutexGuard, OnceLock, RwLock, WriteGuard, without_locks,
};
pub(crate) use std::hint::spin_loop;
pub(crate) use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize};
pub(crate) use std::time::Instant;
pub(crate) use std::{thread, thread_local};

pub(crate) use crossbeam_channel as channel;
pub(crate) use rayon::{ThreadPool, ThreadPoolBuilder};

/// Bugs are planted only in tests/shuttle.
#[inline(always)]
pub(crate) const fn planted(_: &str) -> bool {
    false
}

/// Starts a thread of this name within a scope.
#[cfg(feature = "webdataset")]
pub(crate) fn spawn_scoped<'scope, T: Send + 'scope>(
    scope: &'scope thread::Scope<'scope, '_>,
    name: String,
    work: impl FnOnce() -> T + Send + 'scope,
) -> std::io::Result<thread::ScopedJoinHandle<'scope, T>> {
    thread::Builder::new().name(name).spawn_scoped(scope, work)
}
