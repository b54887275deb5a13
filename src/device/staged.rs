//! What is counted of a device's staged copies, for batches that wait for slabs.

use super::ring::Ring;
use crate::sync::{Arc, AtomicUsize, Ordering};

/// The staged copies of a device.
#[derive(Default)]
pub(crate) struct Staged {
    /// How many slabs of the ring stage copies.
    pub(super) slabs: AtomicUsize,
    /// How many uploads are being staged: calls whose slabs are not yet held by a copy in the list of flights.
    sending: AtomicUsize,
    /// How many batches wait for slabs of staged uploads.
    pub(super) held_off: AtomicUsize,
}

impl Staged {
    /// Whether an upload is being staged. If not, and the ring has no slab either, then no such call holds one.
    pub(super) fn is_sending(&self) -> bool {
        // SeqCst, as `Signal::interest`: a call is counted before it takes a slab, and then notifies the threads
        // that are interested.
        self.sending.load(Ordering::SeqCst) > 0
    }

    /// Something is about to hold slabs of the ring that no copy in the list of flights holds.
    pub(super) fn begin(&self, ring: &Ring) {
        self.sending.fetch_add(1, Ordering::SeqCst);
        // Before it takes a slab: a thread that looked and found neither slab nor call looks again.
        ring.news().notify_interested();
    }

    pub(super) fn end(&self, ring: &Ring) {
        self.sending.fetch_sub(1, Ordering::SeqCst);
        // A thread that waits for the call has nothing else to wake it: not all of its slabs need have come home.
        ring.news().notify_interested();
    }

    /// While this is held, no further copy is staged: a batch waits for the slabs of those in progress, and others would
    /// take them again and again.
    pub(crate) fn hold_off(self: &Arc<Staged>) -> HeldOff {
        self.held_off.fetch_add(1, Ordering::Relaxed);
        HeldOff(Arc::clone(self))
    }
}

/// See [`Staged::hold_off`].
pub(crate) struct HeldOff(Arc<Staged>);

impl Drop for HeldOff {
    fn drop(&mut self) {
        self.0.held_off.fetch_sub(1, Ordering::Relaxed);
    }
}
