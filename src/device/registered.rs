//! Memory of the program's that is page-locked where it lies, and who unlocks it.
//!
//! Unlocking waits for the kernels that run, and CUDA's driver holds up the process's other calls meanwhile. So it happens where
//! the program asks for it: where it drops the last holder on a thread of its own, registers other memory, calls
//! [`Device::release_pinned`](super::Device::release_pinned), or drops the device. What a copy or one of the library's threads
//! held last is parked until then.

use std::ptr::NonNull;

use super::flights::drop_owner;
use crate::driver::Driver;
use crate::error::Result;
use crate::sync::{Arc, Mutex, Weak, is_own_thread};
use crate::tensor::{Backend, Storage};

/// Memory of the program's, page-locked as long as this lives.
pub(super) struct Registered {
    pages: LockedPages,
    /// Where the pages go, if nobody asked to unlock them.
    parking: Weak<Parking>,
    /// A copy was the last holder.
    is_left_over: bool,
}

impl Registered {
    /// # Safety
    ///
    /// The memory must be the owner's, and stay where it is and allocated for as long as the owner lives.
    pub(super) unsafe fn lock(
        driver: &Driver,
        parking: &Arc<Parking>,
        base: NonNull<u8>,
        bytes: usize,
        owner: &Arc<dyn Storage>,
    ) -> Result<Registered> {
        // SAFETY: the caller's contract; `LockedPages` keeps the owner until it has unlocked them.
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

/// Page-locked memory, and who owns it. It is unlocked when this goes.
struct LockedPages {
    base: NonNull<u8>,
    bytes: usize,
    driver: Driver,
    /// `None` if they are unlocked, or were taken over.
    owner: Option<Arc<dyn Storage>>,
}

// SAFETY: it hands out nothing; the memory is the owner's, who is `Send + Sync`.
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

    /// Unlocks them, which may wait for kernels, and gives their owner out, whose `Drop` may do anything.
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

/// Registered memory that the program let go of and nobody asked to unlock.
#[derive(Default)]
pub(super) struct Parking {
    parked: Mutex<Vec<LockedPages>>,
    /// Held while pages are unlocked: who is about to register the same ones finds them unlocked.
    unlocking: Mutex<()>,
}

impl Parking {
    /// Unlocks all that is parked, and waits for who else is at it; returns the bytes. The caller holds no lock: it drops owners
    /// of the program's.
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
    /// The device is gone, and nobody can ask any more.
    fn drop(&mut self) {
        self.release();
    }
}
