//! Taking over a tensor that another allocator made: a copy into memory of the pool.

use super::DeviceTensor;
use crate::device::block::DeviceBlock;
use crate::device::{Device, Stream};
use crate::error::{Error, Result};
use crate::sync::Arc;
use crate::tensor::{Element, Shape};

impl<T: Element> DeviceTensor<T> {
    /// Copies memory of the device behind the stream's work so far, and waits until that is done. With an error, no copy is under way.
    ///
    /// # Safety
    ///
    /// At `from` there must be as many initialized elements as the shape has, in memory of this device that stays allocated during the call.
    /// In the stream's order, nothing may write them until the copy is done.
    pub(crate) unsafe fn copied_from(
        device: &Device,
        from: u64,
        shape: Shape,
        stream: &Stream,
    ) -> Result<DeviceTensor<T>> {
        stream.check(&device.inner, "the stream")?;
        let driver = &device.inner.driver;
        let bytes = shape.iter().fold(size_of::<T>(), |bytes, length| {
            bytes.saturating_mul(*length)
        });
        let block = Arc::new(DeviceBlock::take(&device.inner, bytes, None, true)?);
        let address = block.address();
        if bytes == 0 {
            return Ok(DeviceTensor::new(block, address, shape, None));
        }
        let _entered = driver.enter()?;
        if driver.is_capturing(stream.raw())? {
            return Err(Error::option(
                "Imported::to_device",
                "was given a stream that is being captured: the graph would copy at each launch, from memory that is gone by then",
            ));
        }
        // SAFETY: the source is the caller's contract; the target's last users are done, and nothing else has it (*memory outlives its events*).
        let copied = unsafe { driver.copy_on_device(stream.raw(), from, address, bytes) };
        let done = copied.and_then(|()| {
            let done = driver.record(stream.raw(), false)?;
            done.sleep()?;
            Ok(done)
        });
        match done {
            Ok(done) => Ok(DeviceTensor::new(block, address, shape, Some(done))),
            Err(error) => {
                // If waiting fails, too, the device is lost, and nothing runs.
                if driver.synchronize(stream.raw()).is_err() {
                    block.leak();
                }
                Err(error)
            }
        }
    }
}
