//! Memory of the program that is page-locked in place, and where it is unlocked.
//!
//! Unlocking waits for running kernels, and CUDA's driver blocks the process's other calls meanwhile. So it happens only
//! where the program asks for it: where one of its own threads drops the last holder, registers other memory, calls
//! [`Device::release_pinned`](super::Device::release_pinned), or drops the device. If the last holder is a copy or one of
//! the library's threads, the memory is parked until then.

use std::ptr::NonNull;

use super::flights::drop_owner;
use crate::driver::Driver;
use crate::error::Result;
use crate::sync::log;
use crate::sync::{Arc, Mutex, Weak, is_own_thread};
use crate::tensor::{Backend, Storage};

/// Memory of the program, page-locked as long as this lives.
pub(super) struct Registered {
    pages: LockedPages,
    /// Takes the pages if the program did not ask to unlock them.
    parking: Weak<Parking>,
    /// A copy was the last holder.
    is_left_over: bool,
}

impl Registered {
    /// # Safety
    ///
    /// The memory must belong to the owner, and stay in place and allocated for as long as the owner lives.
    pub(super) unsafe fn lock(
        driver: &Driver,
        parking: &Arc<Parking>,
        base: NonNull<u8>,
        bytes: usize,
        owner: &Arc<dyn Storage>,
    ) -> Result<Registered> {
        // SAFETY: the caller's contract; `LockedPages` keeps the owner until it has unlocked the pages.
        unsafe { driver.lock_pages(base.as_ptr(), bytes, owner.is_read_only()) }?;
        Ok(Registered {
            pages: LockedPages {
                base,
                bytes,
                driver: driver.clone(),
                owner: Some(Arc::clone(owner)),
            },
            parking: Arc::downgrade(parking),
            is_left_over: false,
        })
    }
}

impl Storage for Registered {
    fn is_pinned(&self) -> bool {
        true
    }

    fn registered(&self) -> Option<Backend> {
        Some(self.pages.driver.backend())
    }

    fn is_read_only(&self) -> bool {
        let owner = self.pages.owner.as_ref();
        owner.is_some_and(|owner| owner.is_read_only())
    }

    fn let_go(self: Arc<Self>, last: &mut Vec<Arc<dyn Storage>>) {
        if let Some(mut registered) = Arc::into_inner(self) {
            registered.is_left_over = true;
            last.push(Arc::new(registered));
        }
    }
}

impl Drop for Registered {
    fn drop(&mut self) {
        if (self.is_left_over || is_own_thread())
            && let Some(parking) = self.parking.upgrade()
        {
            let pages = self.pages.take();
            parking.parked.lock().push(pages);
        }
    }
}

/// Page-locked memory and its owner. It is unlocked on drop.
struct LockedPages {
    base: NonNull<u8>,
    bytes: usize,
    driver: Driver,
    /// `None` once the pages are unlocked, or were moved elsewhere.
    owner: Option<Arc<dyn Storage>>,
}

// SAFETY: it gives no access; the memory is the owner's, which is `Send + Sync`.
unsafe impl Send for LockedPages {}
// SAFETY: as above.
unsafe impl Sync for LockedPages {}

impl LockedPages {
    fn take(&mut self) -> LockedPages {
        LockedPages {
            base: self.base,
            bytes: self.bytes,
            driver: self.driver.clone(),
            owner: self.owner.take(),
        }
    }

    /// Unlocks the pages, which may wait for kernels, and returns their owner, whose `Drop` may do anything.
    fn unlock(&mut self) -> Option<Arc<dyn Storage>> {
        let owner = self.owner.take()?;
        // SAFETY: the range was locked in `Registered::lock`. Copies in flight hold an `Arc` of its storage, so none is left (*no
        // access while in flight*).
        match unsafe { self.driver.unlock_pages(self.base.as_ptr(), self.bytes) } {
            Ok(()) => Some(owner),
            Err(error) => {
                log::warn!("memory stays page-locked, and allocated: {error}");
                #[expect(
                    clippy::mem_forget,
                    reason = "memory that may still be registered must not serve anybody else"
                )]
                std::mem::forget(owner);
                None
            }
        }
    }
}

impl Drop for LockedPages {
    fn drop(&mut self) {
        drop(self.unlock());
    }
}

/// Registered memory that the program let go of, and did not ask to unlock.
#[derive(Default)]
pub(super) struct Parking {
    parked: Mutex<Vec<LockedPages>>,
    /// Held while pages are unlocked, so a thread that is about to register the same pages finds them unlocked.
    unlocking: Mutex<()>,
}

impl Parking {
    /// Unlocks all parked memory, and waits for other threads that are doing so. Returns the number of bytes. It drops
    /// owners of the program's, so the caller holds no lock.
    pub(super) fn release(&self) -> usize {
        let (mut owners, mut bytes) = (Vec::new(), 0);
        {
            let _unlocking = self.unlocking.lock();
            let parked = std::mem::take(&mut *self.parked.lock());
            for mut pages in parked {
                bytes += pages.bytes;
                owners.extend(pages.unlock());
            }
        }
        owners.into_iter().for_each(drop_owner);
        bytes
    }

    pub(super) fn bytes(&self) -> usize {
        self.parked.lock().iter().map(|pages| pages.bytes).sum()
    }
}

impl Drop for Parking {
    /// The device is gone, so the program cannot ask any more.
    fn drop(&mut self) {
        self.release();
    }
}
