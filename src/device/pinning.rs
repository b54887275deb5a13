//! Page-locked tensors: copies in the ring, and memory of the program's that is registered.

use std::ptr::NonNull;

use super::handle::Device;
use super::registered::Registered;
use super::ring::take_pinned;
use crate::error::{Error, Result};
use crate::sync::Arc;
use crate::tensor::{Element, Tensor};

impl<T: Element> Tensor<T> {
    /// Copies the tensor into page-locked memory of the device's ring, from which copies to the device are asynchronous. A tensor that is
    /// page-locked already is returned as it is.
    ///
    /// Page-locking is expensive (milliseconds for tens of MB), and the ring reuses its memory: pin what is copied more than once, or let
    /// the loader pin its batches (`pin_memory`), which copies nothing.
    ///
    /// # Synchronization
    ///
    /// Blocks until the tensor is copied; several threads copy a large one.
    ///
    /// # Errors
    ///
    /// [`Error::Pinned`] if the ring's budget has no room, or the system refuses to lock that much. The error names the
    /// option to change.
    pub fn pin(self, device: &Device) -> Result<Tensor<T>> {
        if self.is_pinned() {
            return Ok(self);
        }
        device.inner.settle();
        let slab = take_pinned(&device.inner.ring, self.size_bytes())?;
        let base = slab.base().cast::<T>();
        // SAFETY: the slab is held by this call alone, as large as the tensor, page-aligned, and initialized.
        let target = unsafe { std::slice::from_raw_parts_mut(base.as_ptr(), self.len()) };
        device.inner.ring.helpers().copy(self.as_slice(), target);
        // SAFETY: the elements were just written; the slab, in an `Arc` of its own, is the only way to them.
        Ok(unsafe { Tensor::from_raw(base, self.shape().clone(), Arc::new(slab)) })
    }

    /// Page-locks the tensor's own memory, without copying: for data that is read again and again, such as a data set
    /// that fits in memory, or a memory-mapped file ([`Tensor::from_owner`]).
    ///
    /// Dropping the last of the tensor and its views unlocks the memory, if a thread of the program does it. If the last holder was a copy
    /// in flight or a thread of the library, the memory stays locked and allocated
    /// ([`MemoryStats::parked_bytes`](crate::device::MemoryStats::parked_bytes)) until other memory is registered,
    /// [`Device::release_pinned`] is called, or the device is dropped.
    ///
    /// Rows of 16 KiB and more of a [`TensorDataset`](crate::TensorDataset) on registered memory are not copied on the
    /// host in epochs that are sent to the device ([`Epoch::prefetch_to_device`](crate::loader::Epoch::prefetch_to_device), with
    /// `pin_memory` of this device, or another of CUDA's): the device gathers them in place.
    ///
    /// The bytes do not count against the ring's budget: they belong to the program.
    ///
    /// # Synchronization
    ///
    /// Locking waits for nothing. Unlocking waits for running kernels, and CUDA's driver blocks the process's other calls
    /// meanwhile. That affects the thread that drops the last view, and this call if memory is parked.
    ///
    /// # Errors
    ///
    /// [`Error::Shared`] if a view or a transfer shares the memory, [`Error::Device`] if the system refuses to lock that
    /// much, or some of its pages are locked already.
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
        let Some(base) = NonNull::new(self.as_ptr()) else {
            return Ok(self);
        };
        // Parked memory may be these very pages. This also bounds it: no more is parked than was registered at the same
        // time.
        device.inner.settle();
        device.inner.parking.release();
        // SAFETY: the memory belongs to the storage, which keeps it.
        let registered = unsafe {
            Registered::lock(
                &device.inner.driver,
                &device.inner.parking,
                base.cast(),
                self.size_bytes(),
                self.storage(),
            )
        }?;
        // SAFETY: the same elements; nothing shared the old storage, and `Registered` keeps it alive.
        Ok(unsafe { Tensor::from_raw(base, self.shape().clone(), Arc::new(registered)) })
    }
}
