//! Kernels of the library's own: on the device, one tensor becomes another.

use super::block::DeviceBlock;
use super::tensor::DeviceTensor;
use crate::driver::{Driver, RawStream};
use crate::error::Result;
use crate::sync::Arc;
use crate::tensor::Element;

impl<T: Element> DeviceTensor<T> {
    /// Makes a tensor by work that `start` enqueues, from this tensor's address to the new one's: on a stream of the device's own,
    /// behind this tensor's last write and the last users of the new one's memory. Neither memory is used again but behind that
    /// work.
    pub(super) fn transformed<U: Element>(
        &self,
        shape: &[usize],
        start: impl FnOnce(&Driver, &RawStream, u64, u64) -> Result<()>,
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
        let stream = device.transforming()?;
        let driver = &device.driver;
        if let Some(written) = self.uses().last_write()? {
            driver.stream_wait(stream, &written)?;
        }
        let started = start(driver, stream, self.address(), block.address());
        match driver.record(stream, false) {
            Ok(done) => {
                self.uses().read_behind(done.clone());
                block.free_behind([done.clone()]);
                started?;
                Ok(made(Some(done)))
            }
            Err(error) => {
                // The work may be under way, and nothing will tell when it ends.
                block.leak();
                self.uses().block().leak();
                Err(started.err().unwrap_or(error))
            }
        }
    }
}
