//! Locks that the calling thread knows of: what must not happen under one happens when the last is released.
//!
//! They are parking_lot's and the standard library's; each counts in the thread that holds it.

use std::cell::{Cell, RefCell};
use std::fmt;
use std::ops::{Deref, DerefMut};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Instant;

/// What the calling thread holds.
struct Held {
    locks: Cell<usize>,
    /// How many values it is making that others would wait for ([`OnceLock`]).
    making: Cell<usize>,
    has_deferred: Cell<bool>,
}

type Deferred = Box<dyn FnOnce()>;

thread_local! {
    static HELD: Held = const {
        Held { locks: Cell::new(0), making: Cell::new(0), has_deferred: Cell::new(false) }
    };
    static DEFERRED: RefCell<Vec<Deferred>> = const { RefCell::new(Vec::new()) };
}

/// How many locks the calling thread holds.
#[cfg(any(test, feature = "testing"))]
pub(crate) fn locks_held() -> usize {
    HELD.with(|held| held.locks.get())
}

/// Runs `f` as soon as the calling thread holds no lock: at once, if it holds none.
pub(crate) fn without_locks(f: impl FnOnce() + 'static) {
    let is_free = HELD.with(|held| held.locks.get() == 0 && held.making.get() == 0);
    if is_free {
        return f();
    }
    // (A thread that is ending has no place for it: what it holds is not said.)
    let deferred = DEFERRED.try_with(|deferred| deferred.borrow_mut().push(Box::new(f)));
    HELD.with(|held| held.has_deferred.set(deferred.is_ok()));
}

/// The calling thread may hold nothing any more.
#[cold]
fn run_deferred() {
    let is_free = |held: &Held| held.locks.get() == 0 && held.making.get() == 0;
    while HELD.with(|held| is_free(held) && held.has_deferred.replace(false)) {
        let deferred = DEFERRED.try_with(|deferred| std::mem::take(&mut *deferred.borrow_mut()));
        for f in deferred.unwrap_or_default() {
            // It is the program's code, within a `drop`.
            let _ = catch_unwind(AssertUnwindSafe(f));
        }
    }
}

/// Counts a lock.
struct Lock;

impl Lock {
    #[inline]
    fn new() -> Lock {
        HELD.with(|held| held.locks.set(held.locks.get() + 1));
        Lock
    }
}

impl Drop for Lock {
    #[inline]
    fn drop(&mut self) {
        let is_last = HELD.with(|held| {
            let left = held.locks.get() - 1;
            held.locks.set(left);
            left == 0 && held.has_deferred.get()
        });
        if is_last {
            run_deferred();
        }
    }
}

/// Counts a value that is being made.
struct Making;

impl Making {
    fn new() -> Making {
        HELD.with(|held| held.making.set(held.making.get() + 1));
        Making
    }
}

impl Drop for Making {
    fn drop(&mut self) {
        HELD.with(|held| held.making.set(held.making.get() - 1));
        run_deferred();
    }
}

#[derive(Default)]
pub(crate) struct Mutex<T>(parking_lot::Mutex<T>);

pub(crate) struct MutexGuard<'a, T> {
    // First: it is released when its count is taken back.
    guard: parking_lot::MutexGuard<'a, T>,
    _lock: Lock,
}

impl<T> Mutex<T> {
    pub(crate) const fn new(value: T) -> Mutex<T> {
        Mutex(parking_lot::Mutex::new(value))
    }

    #[inline]
    pub(crate) fn lock(&self) -> MutexGuard<'_, T> {
        MutexGuard {
            guard: self.0.lock(),
            _lock: Lock::new(),
        }
    }

    pub(crate) fn get_mut(&mut self) -> &mut T {
        self.0.get_mut()
    }

    pub(crate) fn into_inner(self) -> T {
        self.0.into_inner()
    }
}

impl<T: fmt::Debug> fmt::Debug for Mutex<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl<T> Deref for MutexGuard<'_, T> {
    type Target = T;

    #[inline]
    fn deref(&self) -> &T {
        &self.guard
    }
}

impl<T> DerefMut for MutexGuard<'_, T> {
    #[inline]
    fn deref_mut(&mut self) -> &mut T {
        &mut self.guard
    }
}

#[derive(Debug, Default)]
pub(crate) struct Condvar(parking_lot::Condvar);

impl Condvar {
    pub(crate) const fn new() -> Condvar {
        Condvar(parking_lot::Condvar::new())
    }

    pub(crate) fn wait<T>(&self, guard: &mut MutexGuard<'_, T>) {
        self.0.wait(&mut guard.guard);
    }

    pub(crate) fn wait_until<T>(
        &self,
        guard: &mut MutexGuard<'_, T>,
        end: Instant,
    ) -> parking_lot::WaitTimeoutResult {
        self.0.wait_until(&mut guard.guard, end)
    }

    pub(crate) fn notify_one(&self) -> bool {
        self.0.notify_one()
    }

    pub(crate) fn notify_all(&self) -> usize {
        self.0.notify_all()
    }
}

/// A value that is made once, by the thread that needs it first; others wait.
#[derive(Debug)]
pub(crate) struct OnceLock<T>(std::sync::OnceLock<T>);

impl<T> Default for OnceLock<T> {
    fn default() -> OnceLock<T> {
        OnceLock::new()
    }
}

impl<T> OnceLock<T> {
    pub(crate) const fn new() -> OnceLock<T> {
        OnceLock(std::sync::OnceLock::new())
    }

    #[inline]
    pub(crate) fn get(&self) -> Option<&T> {
        self.0.get()
    }

    pub(crate) fn set(&self, value: T) -> Result<(), T> {
        self.0.set(value)
    }

    #[inline]
    pub(crate) fn get_or_init(&self, make: impl FnOnce() -> T) -> &T {
        match self.0.get() {
            Some(value) => value,
            None => self.make(make),
        }
    }

    #[cold]
    fn make(&self, make: impl FnOnce() -> T) -> &T {
        let _making = Making::new();
        self.0.get_or_init(make)
    }

    pub(crate) fn take(&mut self) -> Option<T> {
        self.0.take()
    }

    pub(crate) fn into_inner(self) -> Option<T> {
        self.0.into_inner()
    }
}

#[cfg(test)]
mod tests {
    use std::rc::Rc;

    use super::*;

    #[test]
    fn what_is_deferred_runs_when_the_last_lock_is_released() {
        let (one, other, made) = (Mutex::new(()), Mutex::new(()), OnceLock::new());
        let ran = Rc::new(Cell::new(0));
        let defer = |ran: &Rc<Cell<usize>>| {
            let ran = Rc::clone(ran);
            without_locks(move || {
                assert_eq!(locks_held(), 0);
                ran.set(ran.get() + 1);
            });
        };
        defer(&ran);
        assert_eq!(ran.get(), 1);
        let first = one.lock();
        defer(&ran);
        made.get_or_init(|| {
            let second = other.lock();
            defer(&ran);
            drop(second);
            assert_eq!((ran.get(), locks_held()), (1, 1));
        });
        assert_eq!(ran.get(), 1);
        drop(first);
        assert_eq!((ran.get(), locks_held()), (3, 0));
        // Nor while a value is made that others wait for.
        let made = OnceLock::new();
        made.get_or_init(|| {
            drop(one.lock());
            defer(&ran);
            assert_eq!(ran.get(), 3);
        });
        assert_eq!(ran.get(), 4);
    }

    #[test]
    fn what_is_deferred_may_panic_and_take_locks() {
        let mutex = Rc::new(Mutex::new(0));
        let guard = mutex.lock();
        without_locks(|| panic!("a logger panics"));
        let own = Rc::clone(&mutex);
        without_locks(move || *own.lock() += 1);
        drop(guard);
        assert_eq!(*mutex.lock(), 1);
    }
}
