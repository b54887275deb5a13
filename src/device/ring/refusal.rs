//! Why there is no page-locked memory, in words.

use super::Ring;
use crate::device::host_memory::block_bytes;
use crate::error::Error;

impl Ring {
    /// Why the budget has no room for this many more bytes, and what to change.
    pub(crate) fn over_budget(&self, bytes: usize) -> String {
        let (pinned, free, budget) = self.bytes();
        // As it would be page-locked: in whole pages.
        let size = block_bytes(bytes).unwrap_or(usize::MAX);
        match budget / size {
            0 => format!(
                "it needs {size} bytes, and the budget is {budget}. Raise the budget \
                 (Device::set_pinned_budget_bytes), or lower batch_size"
            ),
            slabs => format!(
                "{pinned} bytes are page-locked already ({free} of them idle) under a budget of {budget}, which holds {slabs} \
                 of {size} bytes. Raise the budget (Device::set_pinned_budget_bytes), drop batches that you are done with, or \
                 lower batch_size"
            ),
        }
    }

    /// The error for a caller that insists on page-locked memory.
    pub(crate) fn refusal(&self, bytes: usize) -> Error {
        Error::Pinned {
            bytes,
            reason: self.over_budget(bytes),
        }
    }

    /// The error for a caller that insists on page-locked memory when the system locks no more.
    pub(crate) fn unlockable(&self, bytes: usize) -> Error {
        let (pinned, ..) = self.bytes();
        Error::Pinned {
            bytes,
            reason: format!(
                "the system does not page-lock as much: {pinned} bytes are locked. Free memory, raise the limit of \
                 locked memory, or lower prefetch or batch_size"
            ),
        }
    }
}
