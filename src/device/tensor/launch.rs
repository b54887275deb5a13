//! Running the library's own kernels: on the device, one tensor becomes another.

use super::DeviceTensor;
use crate::device::block::DeviceBlock;
use crate::driver::Kernel;
use crate::error::Result;
use crate::sync::Arc;
use crate::tensor::Element;

impl<T: Element> DeviceTensor<T> {
    /// Makes a tensor of this shape with a kernel, which is given the addresses of this tensor and of the new one. It
    /// runs on a stream of the device's own, after this tensor's last write and the last users of the new one's memory.
    /// Neither memory is reused before the kernel is done.
    ///
    /// # Safety
    ///
    /// The kernel must only read at the first address, and no more than this tensor's bytes. It must write no more than
    /// the new tensor's bytes at the second. It must touch nothing else.
    pub(crate) unsafe fn launch<U: Element, K: Kernel>(
        &self,
        shape: &[usize],
        kernel: impl FnOnce(u64, u64) -> K,
    ) -> Result<DeviceTensor<U>> {
        let device = Arc::clone(self.inner());
        let bytes = shape.iter().fold(size_of::<U>(), |bytes, length| {
            bytes.saturating_mul(*length)
        });
        let block = Arc::new(DeviceBlock::take(&device, bytes, None, true)?);
        let made =
            |written| DeviceTensor::new(Arc::clone(&block), block.address(), shape.into(), written);
        if bytes == 0 {
            return Ok(made(None));
        }
        let stream = device.for_kernels()?;
        let driver = &device.driver;
        if let Some(written) = self.uses().last_write()? {
            driver.stream_wait(stream, &written)?;
        }
        let kernel = kernel(self.address(), block.address());
        // SAFETY: by the caller's contract, the kernel stays within both memories. It waits for the source's last write;
        // the source is not written, and its memory is not reused, before the event below. The same holds for the target,
        // whose last users are done (*memory outlives its events*).
        let launched = unsafe { driver.launch(stream, kernel) };
        match driver.record(stream, false) {
            Ok(done) => {
                self.uses().read_behind(done.clone());
                block.free_behind([done.clone()]);
                launched?;
                Ok(made(Some(done)))
            }
            Err(error) => {
                // The kernel may be running, and nothing will tell when it ends.
                block.leak();
                self.uses().block().leak();
                Err(launched.err().unwrap_or(error))
            }
        }
    }
}
