//! What a decoder has of its device's memory, and of page-locked memory.

use crate::sync::{AtomicUsize, Ordering};

/// How many bytes a decoder has. (All accesses are relaxed: nothing else depends on them.)
#[derive(Default)]
pub(super) struct Taken {
    pub(super) device: AtomicUsize,
    pub(super) pinned: AtomicUsize,
}

impl Taken {
    /// Of the device, and page-locked.
    pub(super) fn bytes(&self) -> [usize; 2] {
        [&self.device, &self.pinned].map(|bytes| bytes.load(Ordering::Relaxed))
    }
}
