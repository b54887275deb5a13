//! Locks that the calling thread knows of: what must not happen under one happens when the last is released.
//!
//! They are parking_lot's and the standard library's; each counts in the thread that holds it.

use std::cell::{Cell, RefCell};
use std::fmt;
use std::ops::{Deref, DerefMut};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Instant;

type Deferred = Box<dyn FnOnce()>;

thread_local! {
    /// What the calling thread holds: how many locks; above these bits, how many values it is making that others would wait for
    /// ([`OnceLock`]); and `NOTHING_WAITS` for all of that to end. So it is 0 when something that has waited may run: taking a lock adds to
    /// the number, and releasing one subtracts and sees whether 0 is left.
    static HELD: Cell<u64> = const { Cell::new(NOTHING_WAITS) };
    static DEFERRED: RefCell<Vec<Deferred>> = const { RefCell::new(Vec::new()) };
}

const LOCK: u64 = 1;
const MAKING: u64 = 1 << 31;
const NOTHING_WAITS: u64 = 1 << 62;

/// How many locks the calling thread holds.
#[cfg(any(test, feature = "testing"))]
pub(crate) fn locks_held() -> usize {
    (HELD.get() % MAKING) as usize
}

/// Runs `f` as soon as the calling thread holds no lock: at once, if it holds none.
pub(crate) fn without_locks(f: impl FnOnce() + 'static) {
    if HELD.get() & !NOTHING_WAITS == 0 {
        return f();
    }
    // (A thread that is ending has no place for it: what it holds is not said.)
    let deferred = DEFERRED.try_with(|deferred| deferred.borrow_mut().push(Box::new(f)));
    if deferred.is_ok() {
        HELD.set(HELD.get() & !NOTHING_WAITS);
    }
}

/// The calling thread holds nothing any more, and something has waited for that.
#[cold]
fn run_deferred() {
    while HELD.get() == 0 {
        HELD.set(NOTHING_WAITS);
        let deferred = DEFERRED.try_with(|deferred| std::mem::take(&mut *deferred.borrow_mut()));
        for f in deferred.unwrap_or_default() {
            // It is the program's code, within a `drop`.
            let _ = catch_unwind(AssertUnwindSafe(f));
        }
    }
}

/// Counts what the calling thread holds: a `LOCK`, or a value that it is `MAKING`.
struct Counted<const WHAT: u64>;

impl<const WHAT: u64> Counted<WHAT> {
    #[inline]
    fn new() -> Counted<WHAT> {
        HELD.set(HELD.get() + WHAT);
        Counted
    }
}

impl<const WHAT: u64> Drop for Counted<WHAT> {
    #[inline]
    fn drop(&mut self) {
        let left = HELD.get() - WHAT;
        HELD.set(left);
        if left == 0 {
            run_deferred();
        }
    }
}

#[derive(Default)]
pub(crate) struct Mutex<T>(parking_lot::Mutex<T>);

pub(crate) struct MutexGuard<'a, T> {
    // First: it is released when its count is taken back.
    guard: parking_lot::MutexGuard<'a, T>,
    _lock: Counted<LOCK>,
}

impl<T> Mutex<T> {
    pub(crate) const fn new(value: T) -> Mutex<T> {
        Mutex(parking_lot::Mutex::new(value))
    }

    #[inline]
    pub(crate) fn lock(&self) -> MutexGuard<'_, T> {
        MutexGuard {
            guard: self.0.lock(),
            _lock: Counted::new(),
        }
    }

    /// For where there may be no thread left to release it.
    pub(crate) fn try_lock(&self) -> Option<MutexGuard<'_, T>> {
        Some(MutexGuard {
            guard: self.0.try_lock()?,
            _lock: Counted::new(),
        })
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

/// A lock that readers share.
#[derive(Default)]
pub(crate) struct RwLock<T>(parking_lot::RwLock<T>);

pub(crate) struct ReadGuard<'a, T> {
    guard: parking_lot::RwLockReadGuard<'a, T>,
    _lock: Counted<LOCK>,
}

pub(crate) struct WriteGuard<'a, T> {
    guard: parking_lot::RwLockWriteGuard<'a, T>,
    _lock: Counted<LOCK>,
}

impl<T> RwLock<T> {
    pub(crate) const fn new(value: T) -> RwLock<T> {
        RwLock(parking_lot::RwLock::new(value))
    }

    #[inline]
    pub(crate) fn read(&self) -> ReadGuard<'_, T> {
        ReadGuard {
            guard: self.0.read(),
            _lock: Counted::new(),
        }
    }

    #[inline]
    pub(crate) fn write(&self) -> WriteGuard<'_, T> {
        WriteGuard {
            guard: self.0.write(),
            _lock: Counted::new(),
        }
    }
}

impl<T> Deref for ReadGuard<'_, T> {
    type Target = T;

    #[inline]
    fn deref(&self) -> &T {
        &self.guard
    }
}

impl<T> Deref for WriteGuard<'_, T> {
    type Target = T;

    #[inline]
    fn deref(&self) -> &T {
        &self.guard
    }
}

impl<T> DerefMut for WriteGuard<'_, T> {
    #[inline]
    fn deref_mut(&mut self) -> &mut T {
        &mut self.guard
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
        let _making = Counted::<MAKING>::new();
        self.0.get_or_init(make)
    }

    /// As [`get_or_init`](OnceLock::get_or_init), for a value that the program's code makes. It does not count: what is logged meanwhile is
    /// said at once, as in any code of the program's. So nothing must be logged while it is made that the library itself says.
    pub(crate) fn get_or_ask(&self, ask: impl FnOnce() -> T) -> &T {
        self.0.get_or_init(ask)
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
        // But the program's code may take long, and what is logged there is not held back.
        let made = OnceLock::new();
        made.get_or_ask(|| {
            drop(one.lock());
            defer(&ran);
            assert_eq!(ran.get(), 5);
        });
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
