//! Contexts and streams by their handles: for programs that use another CUDA binding, or another version of cudarc.

use std::ffi::c_void;

use crate::device::{Device, Stream};
use crate::driver::{Driver, RawStream, cuda};
use crate::error::Result;

/// Opens a device on the program's own context.
///
/// # Errors
///
/// As [`Device::cuda`].
///
/// # Safety
///
/// `context` must be a `CUcontext` of the device `ordinal`, and outlive everything that is made from the device.
pub unsafe fn device_from_context(ordinal: usize, context: *mut c_void) -> Result<Device> {
    // SAFETY: the caller's contract.
    let driver = unsafe { cuda::Cuda::from_handle(ordinal, context) }?;
    Device::open(Driver::Cuda(driver))
}

/// Takes the program's own stream. The legacy default stream is 0 (null); the per-thread default stream is 2, and is
/// bound to the calling thread: using it from another thread is an error.
///
/// # Safety
///
/// `stream` must be a `CUstream` of the device's context, and outlive the returned stream, its loans and the tensors
/// that were lent to it.
pub unsafe fn stream_from_handle(device: &Device, stream: *mut c_void) -> Stream {
    // SAFETY: the caller's contract.
    let stream = unsafe { cuda::CuStream::foreign(stream, None) };
    Stream::new(RawStream::Cuda(stream), device.inner.clone())
}

/// The `CUstream` behind a stream, for launching kernels; `None` on the CPU device.
///
/// It is valid as long as the stream is.
pub fn stream_handle(stream: &Stream) -> Option<*mut c_void> {
    match stream.raw() {
        RawStream::Cuda(stream) => Some(stream.handle().cast()),
        RawStream::Cpu(_) => None,
    }
}
