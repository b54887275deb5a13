//! Blocks of host memory, page-locked if possible.

use std::alloc::Layout;
use std::ptr::NonNull;

use crate::driver::Driver;
use crate::error::{Error, Result};
use crate::sync::log;
use crate::system::{HUGE_PAGE_BYTES, PAGE_BYTES};

/// A block of host memory, which returns to where it came from on drop. Its bytes are always initialized.
pub(crate) struct HostBlock {
    base: NonNull<u8>,
    capacity: usize,
    origin: Origin,
}

enum Origin {
    /// From the allocator.
    Pageable,
    /// From the allocator, and page-locked.
    Registered(Driver),
    /// From the driver, page-locked.
    Driver(Driver),
}

// SAFETY: it owns its memory, and hands out nothing but its address.
unsafe impl Send for HostBlock {}
// SAFETY: as above.
unsafe impl Sync for HostBlock {}

/// Writes zeros to fresh memory, so its pages exist, with several threads if that pays.
pub(crate) type Touch<'a> = &'a dyn Fn(*mut u8, usize);

impl HostBlock {
    /// Page-locked memory of at least `bytes`, rounded up to whole pages.
    ///
    /// Touching the pages and then registering them is an order of magnitude faster than having the driver allocate. If
    /// the device refuses, the driver allocates. If both fail, both errors are returned.
    pub(crate) fn pinned(
        driver: &Driver,
        bytes: usize,
        touch: Touch<'_>,
    ) -> Result<HostBlock, Vec<Error>> {
        let Some(mut block) = HostBlock::pageable(bytes, touch) else {
            return Err(Vec::new());
        };
        let registered = {
            // SAFETY: the block is allocated, and unlocks its pages before it goes.
            unsafe { driver.lock_pages(block.base.as_ptr(), block.capacity, false) }
        };
        let refused = match registered {
            Ok(()) => {
                block.origin = Origin::Registered(driver.clone());
                return Ok(block);
            }
            Err(error) => error,
        };
        let capacity = block.capacity;
        drop(block);
        match driver.alloc_host(capacity).map(NonNull::new) {
            Ok(Some(base)) => {
                log::debug!(
                    "{}: pages cannot be registered ({refused}); the driver allocates",
                    driver.name()
                );
                Ok(HostBlock {
                    base,
                    capacity,
                    origin: Origin::Driver(driver.clone()),
                })
            }
            Ok(None) => Err(vec![refused]),
            Err(error) => Err(vec![refused, error]),
        }
    }

    /// Pageable memory of at least `bytes`, rounded up to whole pages; `None` if the system has not as much.
    pub(crate) fn pageable(bytes: usize, touch: Touch<'_>) -> Option<HostBlock> {
        let layout = pages(bytes)?;
        // SAFETY: the layout is not of size 0.
        let base = NonNull::new(unsafe { std::alloc::alloc(layout) })?;
        crate::system::prefer_huge_pages(base.as_ptr(), layout.size());
        touch(base.as_ptr(), layout.size());
        Some(HostBlock {
            base,
            capacity: layout.size(),
            origin: Origin::Pageable,
        })
    }

    pub(crate) fn base(&self) -> NonNull<u8> {
        self.base
    }

    pub(crate) fn capacity(&self) -> usize {
        self.capacity
    }

    pub(crate) fn is_pinned(&self) -> bool {
        !matches!(self.origin, Origin::Pageable)
    }
}

/// The layout of at least `bytes` (at least one page), in whole pages; `None` if that is more than memory can be. Large
/// blocks are aligned to huge pages.
fn pages(bytes: usize) -> Option<Layout> {
    let size = bytes.max(1).checked_next_multiple_of(PAGE_BYTES)?;
    let large = size >= 2 * HUGE_PAGE_BYTES;
    Layout::from_size_align(size, if large { HUGE_PAGE_BYTES } else { PAGE_BYTES }).ok()
}

/// The size of a block for this many bytes.
pub(crate) fn block_bytes(bytes: usize) -> Option<usize> {
    pages(bytes).map(|layout| layout.size())
}

impl Drop for HostBlock {
    fn drop(&mut self) {
        let base = self.base.as_ptr();
        match &self.origin {
            Origin::Pageable => {}
            Origin::Registered(driver) => {
                // SAFETY: it was registered as a whole, and the owner that drops a block made sure that nothing is in flight
                // (*no access while in flight*).
                if unsafe { driver.unlock_pages(base, self.capacity) }.is_err() {
                    // Memory that may still be registered must not be used for anything else: it is leaked.
                    return;
                }
            }
            Origin::Driver(driver) => {
                // SAFETY: it came from this driver, and nothing uses it any more.
                let _ = unsafe { driver.free_host(base, self.capacity) };
                return;
            }
        }
        if let Some(layout) = pages(self.capacity) {
            // SAFETY: it was allocated with the same layout: for a multiple of the page size, `pages` returns that size.
            unsafe { std::alloc::dealloc(base, layout) };
        }
    }
}
