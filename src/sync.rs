//! Locks and atomics, behind one path: the rest of the crate takes them from here, so that a model checker can take
//! their place without touching the protocols.

pub(crate) use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
pub(crate) use std::sync::{Arc, OnceLock};

pub(crate) use parking_lot::{Condvar, Mutex};

/// A counter that threads can sleep on: whoever changes something that others wait for calls [`Signal::notify`].
///
/// The waiter reads the [`ticket`](Signal::ticket) *before* it looks at the state that it waits for, and hands it to
/// [`wait`](Signal::wait): a notification between the two is then never lost.
#[derive(Debug, Default)]
pub(crate) struct Signal {
    count: Mutex<u64>,
    changed: Condvar,
}

impl Signal {
    pub(crate) fn ticket(&self) -> u64 {
        *self.count.lock()
    }

    pub(crate) fn notify(&self) {
        *self.count.lock() += 1;
        self.changed.notify_all();
    }

    /// Blocks until a notification came after `ticket` was taken.
    pub(crate) fn wait(&self, ticket: u64) {
        let mut count = self.count.lock();
        while *count == ticket {
            self.changed.wait(&mut count);
        }
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
