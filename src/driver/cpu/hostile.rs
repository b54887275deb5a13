//! The hostile mode: a CPU device that delays, fails, runs out of memory and poisons what was freed.

use std::time::Duration;

use crate::rng::SampleRng;
use crate::sync::{AtomicBool, AtomicU64, Ordering, thread};

/// What idle memory is filled with.
pub(super) const POISON: u8 = 0xDB;

/// How a hostile CPU device behaves ([`Device::hostile`](crate::Device::hostile)): a way to test one's own program
/// against late copies, failures and little memory, without a GPU. Everything it does follows from the seed and from
/// the order of the calls.
///
/// Where memory is unlocked or freed, it waits for what all streams hold, as a GPU does.
///
/// Idle memory (host slabs that come home, device blocks before they are handed out again) is filled with a poison
/// byte, so that whoever reads too late or too early reads nonsense, and a test that compares bytes finds out.
///
/// # Examples
///
/// ```
/// use pinfeed::device::Hostile;
/// use pinfeed::{Batch, Device, Error, Tensor};
///
/// let mut options = Hostile::default();
/// options.fail_operation = Some("copy");
/// options.fail_call = Some(0); // the first one
/// let device = Device::hostile(options)?;
/// let sent = Tensor::from(vec![1u8, 2]).to_device(&device, true);
/// assert!(matches!(sent, Err(Error::Device { .. })));
/// # Ok::<(), pinfeed::Error>(())
/// ```
#[derive(Debug, Clone, Default)]
#[non_exhaustive]
pub struct Hostile {
    /// Seeds the delays.
    pub seed: u64,
    /// The longest delay before each operation on a stream; none by default.
    pub max_delay: Duration,
    /// The number (from 0) of the device call that fails: calls that allocate, lock, copy, record or wait are counted.
    pub fail_call: Option<u64>,
    /// Only calls of this name count for `fail_call`: `copy`, `record_event`, `alloc_device`, `lock_pages`, ... Questions whether
    /// an event has fired, and waits for it, count by their own name only, `event_query`; an event that fails once fails always.
    pub fail_operation: Option<&'static str>,
    /// Whether the device stays broken after the call that failed, as a GPU does after a fault in a kernel.
    pub sticky: bool,
    /// How much device memory there is; no limit by default.
    pub device_capacity_bytes: Option<usize>,
    /// How much memory can be page-locked; no limit by default.
    pub pinned_capacity_bytes: Option<usize>,
}

pub(super) struct Hostility {
    options: Hostile,
    calls: AtomicU64,
    broken: AtomicBool,
}

impl Hostility {
    pub(super) fn new(options: Hostile) -> Hostility {
        Hostility {
            options,
            calls: AtomicU64::new(0),
            broken: AtomicBool::new(false),
        }
    }

    /// Counts a call, and says whether it is to fail.
    pub(super) fn fails(&self, operation: &'static str) -> bool {
        if self.is_broken() {
            return true;
        }
        if self
            .options
            .fail_operation
            .is_some_and(|only| only != operation)
        {
            return false;
        }
        let fails = self.options.fail_call == Some(self.calls.fetch_add(1, Ordering::Relaxed));
        if fails && self.options.sticky {
            self.broken.store(true, Ordering::Relaxed);
        }
        fails
    }

    /// As `fails`, for an operation that counts by its own name only, because it is called so often.
    pub(super) fn fails_by_name(&self, operation: &'static str) -> bool {
        self.options.fail_operation == Some(operation) && self.fails(operation)
    }

    pub(super) fn is_broken(&self) -> bool {
        self.broken.load(Ordering::Relaxed)
    }

    pub(super) fn device_capacity_bytes(&self) -> Option<usize> {
        self.options.device_capacity_bytes
    }

    pub(super) fn pinned_capacity_bytes(&self) -> Option<usize> {
        self.options.pinned_capacity_bytes
    }

    /// The delays of one stream.
    pub(super) fn delays(&self, stream: usize) -> Delays {
        Delays {
            rng: SampleRng::new(self.options.seed, stream as u64, 0),
            max_ns: u64::try_from(self.options.max_delay.as_nanos()).unwrap_or(u64::MAX),
        }
    }
}

/// A stream's own sequence of delays.
pub(super) struct Delays {
    rng: SampleRng,
    max_ns: u64,
}

impl Delays {
    pub(super) fn sleep(&mut self) {
        // Half of the operations run at once: a device that is always late is too predictable.
        if self.max_ns > 0 && self.rng.bool(0.5) {
            thread::sleep(Duration::from_nanos(self.rng.below(self.max_ns)));
        }
    }
}
