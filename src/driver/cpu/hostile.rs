//! The hostile mode: a CPU device that delays, fails, runs out of memory and poisons idle memory.

use std::time::Duration;

use crate::rng::{RngKey, SampleRng};
use crate::sync::{AtomicBool, AtomicU64, Ordering, thread};

/// The byte that idle memory is filled with.
pub(super) const POISON: u8 = 0xDB;

/// How a hostile CPU device behaves ([`Device::hostile`](crate::Device::hostile)): a way to test your own program against
/// late copies, failures and scarce memory, without a GPU. Everything it does depends only on the seed and on the order
/// of the calls.
///
/// Like a GPU, it waits for all work of its streams before it unlocks or frees memory.
///
/// It fills idle memory (host slabs that come home, device blocks before they are handed out again) with a poison byte,
/// so a read that is too late or too early yields nonsense, which a test that compares bytes finds.
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
    /// The number (from 0) of the device call that fails. Calls that allocate, lock, copy, record or wait are counted.
    pub fail_call: Option<u64>,
    /// If set, `fail_call` counts only calls of this name: `copy`, `record_event`, `alloc_device`, `lock_pages`, ...
    /// Queries of events, and waits for them, count only under their own name, `event_query`; an event that failed once
    /// fails always.
    pub fail_operation: Option<&'static str>,
    /// Whether the device stays broken after the call that failed, as a GPU does after a fault in a kernel.
    pub sticky: bool,
    /// How much device memory there is; no limit by default.
    pub device_capacity_bytes: Option<usize>,
    /// How much memory can be page-locked; no limit by default.
    pub pinned_capacity_bytes: Option<usize>,
    /// A library that stands in for nvJPEG (the file, or its folder). By default, pictures are decoded as the CPU does.
    #[cfg(all(feature = "nvjpeg", target_os = "linux", not(miri)))]
    pub nvjpeg: Option<std::path::PathBuf>,
}

pub(super) struct Hostility {
    pub(super) options: Hostile,
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

    /// Counts a call. Returns whether it is to fail.
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

    /// As `fails`, for an operation that counts only under its own name, because it is called so often.
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
            rng: SampleRng::for_sample(RngKey {
                seed: self.options.seed,
                epoch: stream as u64,
                position: 0,
            }),
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
        // Only half of the operations are delayed: a device that is always late is too predictable.
        if self.max_ns > 0 && self.rng.bool(0.5) {
            thread::sleep(Duration::from_nanos(self.rng.below(self.max_ns)));
        }
    }
}
