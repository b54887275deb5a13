//! Page-locked tensors: copies in the ring, and memory of the user's that is registered.

use std::mem::ManuallyDrop;
use std::ptr::NonNull;

use super::Device;
use super::ring::take_pinned;
use crate::driver::Driver;
use crate::error::{Error, Result};
use crate::sync::Arc;
use crate::tensor::{Backend, Element, Storage, Tensor};

/// Memory of the user's, page-locked as long as this lives.
struct Registered {
    base: NonNull<u8>,
    bytes: usize,
    driver: Driver,
    /// Who owns the memory; taken when it is unlocked.
    owner: ManuallyDrop<Arc<dyn Storage>>,
}

// SAFETY: it hands out nothing; the memory is the owner's, who is `Send + Sync`.
unsafe impl Send for Registered {}
// SAFETY: as above.
unsafe impl Sync for Registered {}

impl Storage for Registered {
    fn is_pinned(&self) -> bool {
        true
    }

    fn registered(&self) -> Option<Backend> {
        Some(self.driver.backend())
    }

    fn is_read_only(&self) -> bool {
        self.owner.is_read_only()
    }

    fn let_go(self: Arc<Self>, last: &mut Vec<Arc<dyn Storage>>) {
        if let Some(registered) = Arc::into_inner(self) {
            last.push(Arc::new(registered));
        }
    }
}

impl Drop for Registered {
    fn drop(&mut self) {
        // SAFETY: the range was registered in `Tensor::register`. Copies in flight hold an `Arc` of this storage, so
        // none is left (*no access while in flight*).
        match unsafe { self.driver.unlock_pages(self.base.as_ptr(), self.bytes) } {
            // SAFETY: it is dropped once, here, and not used again.
            Ok(()) => unsafe { ManuallyDrop::drop(&mut self.owner) },
            // Memory that may still be registered must not serve anybody else: it is leaked.
            Err(error) => log::warn!("memory stays page-locked, and allocated: {error}"),
        }
    }
}

impl<T: Element> Tensor<T> {
    /// Copies the tensor into page-locked memory of the device's ring, from which copies to the device are
    /// asynchronous. A tensor that is page-locked already is returned as it is.
    ///
    /// Page-locking is dear (milliseconds for tens of MB) and the ring's memory is used again: pin what is copied
    /// more than once, or let the loader pin its batches (`pin_memory`), which copies nothing.
    ///
    /// # Errors
    ///
    /// [`Error::Pinned`] if the ring's budget has no room, or the system does not lock as much; the error names the
    /// knob.
    pub fn pin(self, device: &Device) -> Result<Tensor<T>> {
        if self.is_pinned() {
            return Ok(self);
        }
        device.inner.settle();
        let slab = take_pinned(&device.inner.ring, self.size_bytes())?;
        let base = slab.base().cast::<T>();
        // SAFETY: the slab is this call's alone, as large as the tensor, page-aligned, and its bytes are initialized.
        let target = unsafe { std::slice::from_raw_parts_mut(base.as_ptr(), self.len()) };
        device.inner.ring.helpers().copy(self.as_slice(), target);
        // SAFETY: the elements were just written; the slab, an `Arc` of its own, is the only way to them.
        Ok(unsafe { Tensor::from_raw(base, self.shape().clone(), Arc::new(slab)) })
    }

    /// Page-locks the tensor's own memory, without copying; it is unlocked when the tensor, its views and all copies
    /// in flight are gone. Unlocking waits for running kernels: whoever drops the last view does, and where a copy in flight was
    /// the last, a thread of the device's. For data that is read again and again, such as a data set that fits in memory, or a
    /// memory-mapped file ([`Tensor::from_owner`]).
    ///
    /// Rows of 16 KiB and more of a [`TensorDataset`](crate::TensorDataset) on registered memory are not copied on the
    /// host in epochs that go to the device ([`Epoch::to_device`](crate::loader::Epoch::to_device), with `pin_memory` of the same
    /// device): the device gathers them from where they lie.
    ///
    /// The bytes do not count in the ring's budget: they are the program's.
    ///
    /// # Errors
    ///
    /// [`Error::Shared`] if a view or a transfer shares the memory, [`Error::Device`] if the system does not lock as
    /// much, or parts of its pages are locked already.
    pub fn register(mut self, device: &Device) -> Result<Tensor<T>> {
        let read_only = self.storage().is_read_only();
        if self.as_mut_slice().is_none() && !(read_only && self.sharers() == 0) {
            return Err(Error::Shared {
                sharers: self.sharers(),
            });
        }
        if self.is_pinned() || self.is_empty() {
            return Ok(self);
        }
        let driver = &device.inner.driver;
        let Some(base) = NonNull::new(self.as_ptr()) else {
            return Ok(self);
        };
        let bytes = self.size_bytes();
        // What is being unlocked may be these very pages.
        device.inner.aside().wait();
        // SAFETY: the tensor's memory is allocated, and `Registered` keeps it so until it has unlocked it.
        unsafe { driver.lock_pages(base.as_ptr().cast(), bytes, read_only) }?;
        let storage = Registered {
            base: base.cast(),
            bytes,
            driver: driver.clone(),
            owner: ManuallyDrop::new(Arc::clone(self.storage())),
        };
        // SAFETY: the same elements; nothing shared the old storage, and `Registered` keeps it alive.
        Ok(unsafe { Tensor::from_raw(base, self.shape().clone(), Arc::new(storage)) })
    }
}
