//! Locks, atomics, threads and clocks, behind one path: the rest of the crate takes them from here, so that a model
//! checker can replace them without changes to the protocols.
//!
//! They are parking_lot's and the standard library's. With `--cfg shuttle` they are shuttle's: tests/shuttle runs the
//! whole pipeline under schedules that shuttle chooses. Its scenarios must find bugs that are [`planted`] in the
//! protocols; without the flag, the planted bugs compile to nothing.

#[cfg(not(shuttle))]
mod held;
pub(crate) mod log;
#[cfg(not(shuttle))]
mod real;
#[cfg(shuttle)]
mod scheduled;
mod within;

pub(crate) use std::sync::atomic::Ordering;
pub(crate) use std::sync::{Arc, Weak};
use std::time::Duration;

#[cfg(all(not(shuttle), feature = "testing"))]
pub(crate) use self::held::locks_held;
#[cfg(not(shuttle))]
pub(crate) use self::real::*;
#[cfg(shuttle)]
pub(crate) use self::scheduled::*;
pub(crate) use self::within::{Within, is_within_code_of};

/// Always the standard library's: for statics, which outlive a scheduled run, and for counters that order nothing,
/// which would only make schedules longer.
pub(crate) mod plain {
    #[cfg(feature = "nvtx")]
    pub(crate) use std::sync::atomic::AtomicPtr;
    pub(crate) use std::sync::atomic::{AtomicU64, AtomicUsize};
}

self::thread_local! {
    static IS_OWN: std::cell::Cell<bool> = const { std::cell::Cell::new(false) };
    static SAMPLE_TIMEOUT: std::cell::Cell<Option<Duration>> = const { std::cell::Cell::new(None) };
}

/// Marks the calling thread as one of the library's.
pub(crate) fn mark_own_thread() {
    IS_OWN.with(|is_own| is_own.set(true));
}

/// Whether the calling thread is one of the library's. User code on such a thread (a `get`, a `drop`) must not wait for
/// another one, which may be waiting for this one.
pub(crate) fn is_own_thread() -> bool {
    IS_OWN.with(std::cell::Cell::get)
}

/// The calling thread is a worker, of a loader whose samples may take this long.
pub(crate) fn set_sample_timeout(timeout: Option<Duration>) {
    SAMPLE_TIMEOUT.with(|of_thread| of_thread.set(timeout));
}

/// How long a sample may take that the calling thread loads.
pub(crate) fn sample_timeout() -> Option<Duration> {
    SAMPLE_TIMEOUT.with(std::cell::Cell::get)
}

/// A counter that threads can sleep on. A thread that changes state that others wait for calls [`Signal::notify`].
///
/// The waiter takes a [`ticket`](Signal::ticket) *before* it looks at the state, and passes it to
/// [`wait`](Signal::wait): a notification between the two is then never lost.
#[derive(Debug, Default)]
pub(crate) struct Signal {
    count: Mutex<u64>,
    changed: Condvar,
    /// How many threads want notifications of frequent events.
    interested: AtomicUsize,
}

impl Signal {
    pub(crate) fn ticket(&self) -> u64 {
        *self.count.lock()
    }

    pub(crate) fn notify(&self) {
        *self.count.lock() += 1;
        self.changed.notify_all();
    }

    /// Notifies if any thread registered interest: for events so frequent that they should not wake threads needlessly.
    ///
    /// The event is published under a lock, and a waiter registers its interest before it looks under the same lock. So
    /// either the waiter sees the event, or this call sees the interest.
    pub(crate) fn notify_interested(&self) {
        if self.interested.load(Ordering::SeqCst) > 0 {
            self.notify();
        }
    }

    /// Registers the caller's interest, until the guard is dropped.
    pub(crate) fn interest(&self) -> Interest<'_> {
        if !planted("interest does not count") {
            self.interested.fetch_add(1, Ordering::SeqCst);
        }
        Interest(self)
    }

    /// Blocks until there has been a notification since `ticket` was taken.
    pub(crate) fn wait(&self, ticket: u64) {
        let mut count = self.count.lock();
        let late = planted("the ticket is taken when the wait begins").then_some(*count);
        let ticket = late.unwrap_or(ticket);
        while *count == ticket {
            self.changed.wait(&mut count);
        }
    }
}

/// See [`Signal::interest`].
pub(crate) struct Interest<'a>(&'a Signal);

impl Drop for Interest<'_> {
    fn drop(&mut self) {
        if planted("interest does not count") {
            return;
        }
        self.0.interested.fetch_sub(1, Ordering::SeqCst);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_notification_between_ticket_and_wait_is_not_lost() {
        let signal = Signal::default();
        let ticket = signal.ticket();
        signal.notify();
        signal.wait(ticket);
    }
}
