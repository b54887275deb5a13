//! What nvJPEG has of its device's memory, and of page-locked memory: counted, and the device's bounded.

use crate::device::decoding::memory::Taken;
use crate::driver::Driver;
use crate::driver::nvjpeg::{HostMemory, Memory};
use crate::sync::{Arc, AtomicUsize, Ordering};
use crate::tuning::nvjpeg::DECODER_MOST_BYTES;

/// What is taken once, for as long as a decoder is open.
pub(super) struct Fixed {
    taken: Arc<Taken>,
    bytes: [usize; 2],
}

impl Fixed {
    pub(super) fn new(taken: &Arc<Taken>, bytes: [usize; 2]) -> Fixed {
        taken.device.fetch_add(bytes[0], Ordering::Relaxed);
        taken.pinned.fetch_add(bytes[1], Ordering::Relaxed);
        Fixed {
            taken: Arc::clone(taken),
            bytes,
        }
    }
}

impl Drop for Fixed {
    fn drop(&mut self) {
        let [device, pinned] = self.bytes;
        self.taken.device.fetch_sub(device, Ordering::Relaxed);
        self.taken.pinned.fetch_sub(pinned, Ordering::Relaxed);
    }
}

/// Memory for nvJPEG itself, which takes more as it needs it.
#[derive(Clone)]
pub(super) struct Counted {
    pub(super) driver: Driver,
    pub(super) taken: Arc<Taken>,
}

/// Takes memory, if it does not become more than `most`.
fn take<T>(
    taken: &AtomicUsize,
    bytes: usize,
    most: usize,
    take: impl FnOnce() -> Option<T>,
) -> Option<T> {
    let with = |taken: usize| taken.checked_add(bytes).filter(|all| *all <= most);
    let counted = taken.fetch_update(Ordering::Relaxed, Ordering::Relaxed, with);
    counted.ok()?;
    let memory = take();
    if memory.is_none() {
        taken.fetch_sub(bytes, Ordering::Relaxed);
    }
    memory
}

impl Memory for Counted {
    fn take(&self, bytes: usize) -> Option<u64> {
        let from_driver = || Memory::take(&self.driver, bytes);
        take(&self.taken.device, bytes, DECODER_MOST_BYTES, from_driver)
    }

    fn give_back(&self, address: u64, bytes: usize) {
        Memory::give_back(&self.driver, address, bytes);
        self.taken.device.fetch_sub(bytes, Ordering::Relaxed);
    }

    fn reserve(&self, bytes: usize) -> bool {
        take(&self.taken.device, bytes, DECODER_MOST_BYTES, || Some(())).is_some()
    }

    fn release(&self, bytes: usize) {
        self.taken.device.fetch_sub(bytes, Ordering::Relaxed);
    }
}

impl HostMemory for Counted {
    fn take(&self, bytes: usize) -> Option<*mut u8> {
        let from_driver = || HostMemory::take(&self.driver, bytes);
        take(&self.taken.pinned, bytes, usize::MAX, from_driver)
    }

    fn give_back(&self, address: *mut u8, bytes: usize) {
        HostMemory::give_back(&self.driver, address, bytes);
        self.taken.pinned.fetch_sub(bytes, Ordering::Relaxed);
    }
}
