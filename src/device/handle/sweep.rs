//! Memory that is adrift: when the program lets the device look whether it is free.

use super::Device;
use crate::device::captures::CaptureGuard;
use crate::error::Result;
use crate::sync::Ordering;

impl Device {
    /// Puts all device memory that is adrift ([`OwnedLoan::end_everywhere`](crate::device::OwnedLoan::end_everywhere)) behind one event of
    /// the whole context. It is reused when that event has fired. Returns the number of bytes.
    ///
    /// The event is behind all work that all streams of the context hold now, those of other libraries among them. So this is for the
    /// program to call where it calls for batches; nothing else makes such memory free. It costs about a microsecond, and nothing where
    /// nothing is adrift ([`MemoryStats::adrift_bytes`](crate::device::MemoryStats::adrift_bytes)).
    ///
    /// No graph may be captured meanwhile in the device's context: the driver refuses such an event beside a capture, and fails the
    /// capture, too, whichever thread it is on. So nothing is done (0 is returned, and the memory stays adrift) while a [`CaptureGuard`]
    /// lives, or while one of these streams is seen to be captured: those that [`Stream`](crate::Stream)s name, and those that wait for the
    /// legacy default stream, as all do that were made without `CU_STREAM_NON_BLOCKING`. The driver does not tell of others, such as those
    /// on which PyTorch captures, nor of a capture that another thread begins at that very moment. Hold a guard for these.
    ///
    /// What is adrift when the last holder of the device is dropped is swept then, in the same way, and leaked if a capture is seen.
    ///
    /// # Synchronization
    ///
    /// Does not wait. With a driver older than CUDA 12.5, which has no such event, it blocks until all work of the context is done; the log
    /// says so.
    ///
    /// # Errors
    ///
    /// [`Error::Device`](crate::Error::Device) if the device failed, or if the driver found a capture that could not be seen. The memory
    /// stays adrift, and the next sweep may succeed.
    ///
    /// # Examples
    ///
    /// ```
    /// use pinfeed::{Batch, Device, Tensor};
    ///
    /// let device = Device::cpu();
    /// let stream = device.stream()?;
    /// for step in 0..3 {
    ///     let batch = Tensor::from(vec![step; 100]).to_device(&device, true)?;
    ///     let theirs = batch.lend(&stream)?.end_everywhere(); // another library's, on streams of its own
    ///     drop(theirs); // on any thread, perhaps in a callback
    ///     device.sweep()?;
    /// }
    /// assert_eq!(device.memory().adrift_bytes, 0);
    /// # Ok::<(), pinfeed::Error>(())
    /// ```
    pub fn sweep(&self) -> Result<usize> {
        self.inner.pool.sweep()
    }

    /// Whether memory that is adrift is [swept](Device::sweep) with each batch: when the program calls
    /// [`Batch::to_device`](crate::Batch::to_device), or asks an epoch that goes to this device for its next batch. Never on a thread of
    /// the library's. Default: no.
    ///
    /// Say yes where no graph is captured in the device's context but under a [`CaptureGuard`], or on streams that [`sweep`](Device::sweep)
    /// sees. A sweep that fails is logged, and the next batch tries again.
    ///
    /// # Examples
    ///
    /// ```
    /// use pinfeed::{Batch, Device, Tensor};
    ///
    /// let device = Device::cpu();
    /// device.sweep_with_batches(true);
    /// let stream = device.stream()?;
    /// for step in 0..100 {
    ///     let batch = Tensor::from(vec![step; 100]).to_device(&device, true)?;
    ///     drop(batch.lend(&stream)?.end_everywhere());
    /// }
    /// assert_eq!(device.memory().adrift_bytes, 512); // the last one, which no batch came after
    /// # Ok::<(), pinfeed::Error>(())
    /// ```
    pub fn sweep_with_batches(&self, on: bool) {
        self.inner.sweeps.store(on, Ordering::Relaxed);
    }

    /// Makes the device record no event of the whole context while the guard lives, on any thread. A sweep that another thread has begun is
    /// waited for. See [`CaptureGuard`].
    pub fn capture_guard(&self) -> CaptureGuard {
        self.inner.captures.hold()
    }
}
