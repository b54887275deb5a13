//! Downloads of any memory of a device, such as what another library allocated.

use super::{Device, Stream};
use crate::device::download::{Download, DownloadSource, download};
use crate::error::{Result, ShapeError};
use crate::tensor::{Element, Shape};

impl Device {
    /// Copies any memory of this device to the host, such as what another library allocated.
    ///
    /// # Synchronization
    ///
    /// The copy waits, on the device, for all work that `stream` holds now. With `non_blocking` the call returns at once.
    /// It blocks until the tensor has arrived without it, or if the ring has no room and the target is pageable.
    ///
    /// # Errors
    ///
    /// [`Error::WrongDevice`](crate::Error::WrongDevice) if the stream is of another device, [`Error::Shape`](crate::Error::Shape) if the
    /// shape has too many elements for memory, [`Error::Device`](crate::Error::Device) if the device failed. In that case a copy in progress is waited for, so nothing reads
    /// the memory any more (unless the device does not even answer that).
    ///
    /// # Safety
    ///
    /// From `address` on, memory of this device must hold as many initialized elements as the shape has. Until the
    /// download is ready it must stay allocated, and nothing may write it but work that `stream` holds already.
    pub unsafe fn download_raw<T: Element>(
        &self,
        address: u64,
        shape: &[usize],
        stream: &Stream,
        non_blocking: bool,
    ) -> Result<Download<T>> {
        stream.check(&self.inner, "the stream")?;
        Shape::elements(shape)
            .filter(|&n| n <= isize::MAX as usize / size_of::<T>())
            .ok_or_else(|| ShapeError {
                elements: 0,
                shape: shape.into(),
            })?;
        let source = DownloadSource {
            address,
            behind: Some(self.inner.driver.record(stream.raw(), false)?),
            reader: None,
        };
        let target = self.inner.host_tensor(shape.into());
        // SAFETY: the caller's contract.
        unsafe { download(&self.inner, source, target, non_blocking) }
    }

    /// As [`download_raw`](Device::download_raw), without blocking, and the stream's later work waits for the copy. If
    /// the stream cannot be made to wait, the copy is waited for before the error is returned.
    ///
    /// # Safety
    ///
    /// From `address` on, memory of this device must hold as many initialized elements as the shape has. Nothing but work
    /// of `stream` may write or free it.
    #[cfg(any(feature = "cuda", test))]
    pub(crate) unsafe fn download_ahead_of<T: Element>(
        &self,
        address: u64,
        shape: &[usize],
        stream: &Stream,
    ) -> Result<Download<T>> {
        // SAFETY: the caller's contract. When this returns, the stream's later work waits for the copy, or the copy is
        // over.
        let download = unsafe { self.download_raw(address, shape, stream, true) }?;
        download.hold(stream.raw()).inspect_err(|_| {
            // If this fails, so did the device: the copy's own memory is leaked, and counted, at the next reap.
            let _ = download.synchronize();
        })?;
        Ok(download)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::driver::{Driver, cpu};

    /// A device that is late, and on which the `call`th operation of this name fails.
    fn failing(seed: u64, operation: &'static str, call: u64) -> Device {
        let options = cpu::Hostile {
            seed,
            max_delay: Duration::from_millis(3),
            fail_operation: Some(operation),
            fail_call: Some(call),
            ..cpu::Hostile::default()
        };
        Device::open(Driver::Cpu(cpu::Cpu::new(Some(options)))).unwrap()
    }

    /// The owner of what a raw download reads may free it when the call fails: nothing is in flight then.
    #[test]
    fn a_raw_download_that_fails_leaves_nothing_under_way() {
        // The wait for the stream, and the stream's wait for the copy; the event after the stream, and the one after the
        // copy.
        for (operation, calls) in [("stream_wait_event", 2), ("record_event", 2), ("copy", 1)] {
            for (call, seed) in (0..calls).flat_map(|call| (0..10).map(move |seed| (call, seed))) {
                let device = failing(seed, operation, call);
                let stream = device.stream().unwrap();
                let source = vec![7i64; 1000];
                let address = source.as_ptr() as u64;
                // SAFETY: on the CPU device, any memory is the device's; it is freed after the call, when the copy has
                // ended.
                let error = unsafe { device.download_ahead_of::<i64>(address, &[1000], &stream) };
                assert!(error.is_err(), "{operation} {call}");
                drop(source);
                let memory = device.memory();
                assert_eq!(
                    memory.pinned_bytes, memory.pinned_idle_bytes,
                    "{operation} {call}"
                );
                assert_eq!(memory.leaked, 0, "{operation} {call}");
            }
        }
    }
}
