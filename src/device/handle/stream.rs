//! Streams as users see them.

use std::fmt;

use super::Device;
use crate::device::inner::DeviceInner;
use crate::driver::RawStream;
use crate::error::{Error, Result};
use crate::sync::Arc;

/// A stream of a device: work that runs in order. Cloning it clones a reference to the same stream.
///
/// [`Device::stream`] makes one; the functions of [`interop`](crate::interop) wrap the program's own.
///
/// # Examples
///
/// ```
/// use pinfeed::{Batch, Device, Tensor};
///
/// let device = Device::cpu();
/// let stream = device.stream()?;
/// let x = Tensor::from(vec![1.0f32, 2.0]).to_device(&device, true)?;
/// let loan = x.on(&stream)?; // the stream waits for the copy, the host does not
/// // Kernels that read from `loan.address()` are launched on the stream here.
/// drop(loan);
/// stream.synchronize()?; // the host waits for all of it
/// # Ok::<(), pinfeed::Error>(())
/// ```
#[derive(Clone)]
pub struct Stream {
    raw: Arc<RawStream>,
    device: Arc<DeviceInner>,
}

impl Stream {
    pub(crate) fn new(raw: RawStream, device: Arc<DeviceInner>) -> Stream {
        let raw = Arc::new(raw);
        device.captures.know(&raw);
        Stream { raw, device }
    }

    pub(crate) fn raw(&self) -> &RawStream {
        &self.raw
    }

    /// The same, to be kept beyond the call.
    pub(in crate::device) fn shared(&self) -> &Arc<RawStream> {
        &self.raw
    }

    /// The device that the stream belongs to.
    pub fn device(&self) -> Device {
        Device {
            inner: Arc::clone(&self.device),
        }
    }

    /// Blocks the calling thread until all work that the stream holds now is done.
    ///
    /// # Errors
    ///
    /// [`Error::WrongThread`] if it is another thread's default stream, [`Error::Device`] if the device failed, also in
    /// earlier work.
    pub fn synchronize(&self) -> Result<()> {
        self.check_thread()?;
        self.device.driver.synchronize(&self.raw)
    }

    /// Makes this stream's later work wait for all work that `other` holds now. The host does not wait.
    ///
    /// # Errors
    ///
    /// [`Error::WrongDevice`] if the streams are of different devices, [`Error::WrongThread`] if one is another thread's
    /// default stream, [`Error::Device`] if the device failed.
    pub fn wait_for(&self, other: &Stream) -> Result<()> {
        self.check_thread()?;
        other.check(&self.device, "the stream that is waited for")?;
        let driver = &self.device.driver;
        driver.stream_wait(&self.raw, &driver.record(&other.raw, false)?)
    }

    /// Enqueues a function that runs on the host, in the stream's order.
    ///
    /// # Synchronization
    ///
    /// Returns at once; the stream's later work waits for the function. On CUDA the function must call neither CUDA nor
    /// anything of this crate that does. On no device may it wait for a stream or drop the last holder of the device. A
    /// panic in it is logged.
    ///
    /// # Errors
    ///
    /// [`Error::WrongThread`] if it is another thread's default stream, [`Error::Device`] if the device failed.
    pub fn host_fn(&self, f: impl FnOnce() + Send + 'static) -> Result<()> {
        self.check_thread()?;
        self.device.driver.host_fn(&self.raw, Box::new(f))
    }

    /// Checks that the stream is of this device and may be used on this thread.
    pub(in crate::device) fn check(
        &self,
        device: &Arc<DeviceInner>,
        what: &'static str,
    ) -> Result<()> {
        if !self.device.driver.same_device(&device.driver) {
            return Err(self.device.is_not(device, what));
        }
        self.check_thread()
    }

    /// The handle of a per-thread default stream names another stream on every thread.
    fn check_thread(&self) -> Result<()> {
        if self.raw.on_its_thread() {
            Ok(())
        } else {
            Err(Error::WrongThread)
        }
    }
}

impl PartialEq for Stream {
    /// Whether both name the same stream of the same device.
    fn eq(&self, other: &Stream) -> bool {
        self.device.driver.same_device(&other.device.driver) && self.raw.same(&other.raw)
    }
}

impl fmt::Debug for Stream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Stream")
            .field("device", &self.device.driver.name())
            .finish_non_exhaustive()
    }
}
