//! cudarc's contexts, streams and slices.

use cudarc::driver::{CudaContext, CudaStream, DevicePtr};

use crate::device::{Device, Download, Stream};
use crate::driver::{Driver, RawStream, cuda};
use crate::error::{Error, Result, ShapeError};
use crate::sync::Arc;
use crate::tensor::{Element, Shape};

/// Opens a device on the program's own context object. The context's settings do not change: event tracking stays off
/// if it was.
///
/// # Errors
///
/// As [`Device::cuda`].
pub fn device(context: &Arc<CudaContext>) -> Result<Device> {
    Device::open(Driver::Cuda(cuda::Cuda::from_context(Arc::clone(context))?))
}

/// Takes the program's own stream, and keeps it alive. The per-thread default stream is bound to the calling thread:
/// using it from another thread is an error.
///
/// # Errors
///
/// [`Error::WrongDevice`] if the stream does not belong to the device's context.
pub fn stream(device: &Device, stream: &Arc<CudaStream>) -> Result<Stream> {
    let ours = match &device.inner.driver {
        Driver::Cuda(driver) => driver.is_on(stream.context()),
        Driver::Cpu(_) => false,
    };
    if !ours {
        return Err(Error::WrongDevice {
            what: "the stream",
            found: format!("another context (of cuda:{})", stream.context().ordinal()),
            expected: device.name(),
        });
    }
    let keep: Arc<dyn std::any::Any + Send + Sync> = Arc::clone(stream) as _;
    // SAFETY: the stream is of the device's context, and `keep` keeps it alive.
    let raw = unsafe { cuda::CuStream::foreign(stream.cu_stream().cast(), Some(keep)) };
    Ok(Stream::new(RawStream::Cuda(raw), Arc::clone(&device.inner)))
}

/// Copies a cudarc slice or view to the host, into page-locked memory.
///
/// # Synchronization
///
/// On the device, the copy waits for all work submitted to the slice's stream so far, and that stream's later work
/// waits for the copy: the slice may be written or dropped at once. With `non_blocking` the call returns at once.
///
/// If the slice is on a per-thread default stream, it does not tell which thread's. The call then waits for the whole
/// context, and for the copy, whatever `non_blocking` says.
///
/// # Errors
///
/// [`Error::Shape`] if the shape's number of elements is not the slice's length, [`Error::WrongDevice`] if the slice is
/// on another device, [`Error::Device`] if the device failed. In that case the call waits for a copy in flight, so the
/// slice may still be dropped.
pub fn to_host<T: Element, S: DevicePtr<T>>(
    device: &Device,
    slice: &S,
    shape: &[usize],
    non_blocking: bool,
) -> Result<Download<T>> {
    if Shape::elements(shape) != Some(slice.len()) {
        return Err(Error::Shape(ShapeError {
            elements: slice.len(),
            shape: shape.into(),
        }));
    }
    let owner = slice.stream();
    let ours = stream(device, owner)?;
    let of_some_thread = owner.cu_stream() as usize == cuda::PER_THREAD;
    if of_some_thread {
        device.inner.driver.synchronize_context()?;
    }
    let (address, guard) = slice.device_ptr(owner);
    // SAFETY: cudarc's slice has that length and is alive, and is written and released by its stream's later work.
    let download = unsafe { device.download_ahead_of(address, shape, &ours) }?;
    drop(guard); // cudarc, if it tracks slices, records the read after the copy
    if !non_blocking || of_some_thread {
        download.synchronize()?;
    }
    Ok(download)
}
