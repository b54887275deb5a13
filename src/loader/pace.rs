//! How far the devices come that share epochs.

use crate::sync::plain::AtomicU64;
use crate::sync::{Arc, Ordering};

/// How far the devices of a split have come: the one that is ahead stands for all, so that what they do side by side counts once.
pub(super) struct Lead {
    /// How many epochs it has begun.
    epochs: AtomicU64,
    /// For how long its consumer has waited and worked, in nanoseconds.
    ns: AtomicU64,
}

impl Lead {
    /// `counts_first`: the epoch that is shared is not counted yet.
    pub(super) fn new(counts_first: bool) -> Arc<Lead> {
        Arc::new(Lead {
            epochs: AtomicU64::new(u64::from(!counts_first)),
            ns: AtomicU64::new(0),
        })
    }
}

/// How far one device of a split has come. (All accesses are relaxed: these are statistics.)
pub(super) struct Pace {
    lead: Arc<Lead>,
    epochs: AtomicU64,
    ns: AtomicU64,
}

impl Pace {
    pub(super) fn of(lead: &Arc<Lead>) -> Arc<Pace> {
        Arc::new(Pace {
            lead: Arc::clone(lead),
            epochs: AtomicU64::new(0),
            ns: AtomicU64::new(0),
        })
    }

    /// The device begins its next epoch. Returns whether it is the first that does.
    pub(super) fn begins(&self) -> bool {
        let begun = self.epochs.fetch_add(1, Ordering::Relaxed) + 1;
        self.lead.epochs.fetch_max(begun, Ordering::Relaxed) < begun
    }

    /// The device's consumer has waited or worked for so long. Returns how much of that it was behind another, in nanoseconds.
    pub(super) fn behind_ns(&self, ns: u64) -> u64 {
        let own = self.ns.fetch_add(ns, Ordering::Relaxed) + ns;
        let most = self.lead.ns.fetch_max(own, Ordering::Relaxed);
        ns - own.saturating_sub(most).min(ns)
    }
}
