//! Counters of where an epoch's time goes: plain sums, cheap enough to be always on.

use std::time::Instant;

use crate::sync::{AtomicU64, Ordering};

/// Sums of one epoch, shared by everyone who works for it. Relaxed throughout: each is a statistic, and orders nothing.
#[derive(Debug, Default)]
pub(crate) struct Meter {
    pub(crate) samples: Sum,
    pub(crate) batches: Sum,
    pub(crate) loading_ns: Sum,
    pub(crate) collating_ns: Sum,
    pub(crate) pinning_ns: Sum,
    pub(crate) slab_wait_ns: Sum,
    pub(crate) transfers: Sum,
    pub(crate) transfer_bytes: Sum,
    pub(crate) transfer_ns: Sum,
    pub(crate) processed: Sum,
    pub(crate) processing_ns: Sum,
    pub(crate) host_ns: Sum,
    pub(crate) consumer_wait_ns: Sum,
    pub(crate) unpinned: Sum,
}

/// A sum that only grows.
#[derive(Debug, Default)]
pub(crate) struct Sum(AtomicU64);

impl Sum {
    pub(crate) fn add(&self, amount: u64) {
        self.0.fetch_add(amount, Ordering::Relaxed);
    }

    /// Adds the nanoseconds since `start`.
    pub(crate) fn add_since(&self, start: Instant) {
        self.add(u64::try_from(start.elapsed().as_nanos()).unwrap_or(u64::MAX));
    }

    pub(crate) fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}
