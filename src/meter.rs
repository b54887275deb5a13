//! Counters of where an epoch's time goes: plain sums, cheap enough to be always on.

use std::sync::Weak;
use std::time::Instant;

use crate::sync::{Arc, AtomicU64, Mutex, Ordering};

/// Sums of one epoch, shared by everyone who works for it. Relaxed throughout: each is a statistic, and orders nothing.
#[derive(Default)]
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
    /// Of the time that making a batch takes, how much is the data set's: in thousandths, as seen last.
    pub(crate) get_share: Share,
    /// The devices that measure for the epoch.
    devices: Mutex<Vec<Weak<dyn Settle>>>,
}

/// Somebody who measures by events, and counts them when they are over.
pub(crate) trait Settle: Send + Sync {
    /// Counts what is over.
    fn settle(&self);
}

impl Meter {
    /// Remembers who measures for the epoch.
    pub(crate) fn measured_by<D: Settle + 'static>(&self, device: &Arc<D>) {
        let mut devices = self.devices.lock();
        let address = Arc::as_ptr(device).cast::<()>();
        if !devices
            .iter()
            .any(|known| known.as_ptr().cast::<()>() == address)
        {
            let device: Weak<D> = Arc::downgrade(device);
            devices.push(device);
        }
    }

    /// Has everything counted that is over.
    pub(crate) fn settle(&self) {
        let devices: Vec<_> = self
            .devices
            .lock()
            .iter()
            .filter_map(Weak::upgrade)
            .collect();
        devices.iter().for_each(|device| device.settle());
    }
}

impl std::fmt::Debug for Meter {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Meter").finish_non_exhaustive()
    }
}

/// A share in thousandths that is looked at now and then.
#[derive(Debug)]
pub(crate) struct Share(AtomicU64);

impl Default for Share {
    fn default() -> Share {
        Share(AtomicU64::new(u64::MAX))
    }
}

impl Share {
    pub(crate) fn set(&self, part: u64, of: u64) {
        let share = u128::from(part) * 1000 / u128::from(of.max(1));
        self.0.store(share.min(1000) as u64, Ordering::Relaxed);
    }

    /// The part of so much; `None` if nobody looked yet.
    pub(crate) fn of(&self, whole: u64) -> Option<u64> {
        let share = self.0.load(Ordering::Relaxed);
        let part = u128::from(whole) * u128::from(share) / 1000;
        (share <= 1000).then_some(part as u64)
    }
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

    /// Adds the nanoseconds between two moments.
    pub(crate) fn add_between(&self, start: Instant, end: Instant) {
        let nanoseconds = end.saturating_duration_since(start).as_nanos();
        self.add(u64::try_from(nanoseconds).unwrap_or(u64::MAX));
    }

    pub(crate) fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}
