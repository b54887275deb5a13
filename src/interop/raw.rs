//! Contexts, streams and memory by their handles and addresses: for programs that use another CUDA binding, another version of cudarc, or
//! tensors of a framework.

#[cfg(feature = "cuda")]
use std::ffi::c_void;

#[cfg(feature = "cuda")]
use crate::device::Device;
use crate::device::{DeviceTensor, Stream};
#[cfg(feature = "cuda")]
use crate::driver::{Driver, RawStream, cuda};
use crate::error::Result;
use crate::ops::{MixupDraw, Normalize};
use crate::tensor::{Element, Float};

/// Opens a device on the program's own context.
///
/// # Errors
///
/// As [`Device::cuda`].
///
/// # Safety
///
/// `context` must be a `CUcontext` of the device `ordinal`, and outlive everything that is made from the device.
#[cfg(feature = "cuda")]
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
#[cfg(feature = "cuda")]
pub unsafe fn stream_from_handle(device: &Device, stream: *mut c_void) -> Stream {
    // SAFETY: the caller's contract.
    let stream = unsafe { cuda::CuStream::foreign(stream, None) };
    Stream::new(RawStream::Cuda(stream), device.inner.clone())
}

/// The `CUstream` behind a stream, for launching kernels; `None` on the CPU device.
///
/// It is valid as long as the stream is.
#[cfg(feature = "cuda")]
pub fn stream_handle(stream: &Stream) -> Option<*mut c_void> {
    match stream.raw() {
        RawStream::Cuda(stream) => Some(stream.handle().cast()),
        RawStream::Cpu(_) => None,
    }
}

/// Copies a tensor into memory of another allocator: a framework's own tensor, of which no more than its address is known.
///
/// The elements arrive dense and row-major, as they lie in every [`DeviceTensor`] (none is a view): `size_bytes` bytes from `to` on, which may
/// have any alignment. A tensor without elements is no copy, whatever `to` is. The result belongs to its allocator alone, and knows nothing
/// of this library.
///
/// # Synchronization
///
/// The host does not block. The stream waits for the tensor's last write, and then copies; what it does later sees the copy. So memory that is
/// free in the stream's own order, as `torch.empty` on the current stream is, needs no event. The copy is a use of the tensor, which may be
/// dropped at once: its memory is reused behind the copy.
///
/// On an H200, 38.5 MB took the device 23 us, and the host 12 to 17 us.
///
/// # Errors
///
/// [`WrongDevice`](crate::Error::WrongDevice) if the stream is of another device, [`WrongThread`](crate::Error::WrongThread) if it is another
/// thread's default stream, [`InvalidOption`](crate::Error::InvalidOption) if `to` is 0, or if the stream is being captured into a graph (which would read the
/// tensor's memory at each launch, after it was given to another batch), [`Device`](crate::Error::Device) if the device failed.
///
/// # Safety
///
/// From `to` on there must be as many bytes as the tensor has, of memory of the tensor's device (on the CPU device: of host memory) that does
/// not overlap the tensor. In the stream's order, it must be allocated, and in no other use, until the copy is done.
///
/// # Examples
///
/// ```
/// use pinfeed::interop::raw;
/// use pinfeed::{Batch, Device, Tensor};
///
/// let device = Device::cpu();
/// let stream = device.stream()?; // on a GPU: the framework's own, by `raw::stream_from_handle`
/// let batch = Tensor::from(vec![1.0f32, 2.0, 3.0]).to_device(&device, true)?;
///
/// let mut theirs = vec![0.0f32; 3]; // on a GPU: `torch.empty(...).data_ptr()`
/// // SAFETY: the memory has as many bytes, on this device, and is in no other use before the stream was waited for.
/// unsafe { raw::copy_to(&batch, theirs.as_mut_ptr() as u64, &stream) }?;
/// drop(batch); // at once: its memory is reused behind the copy
/// stream.synchronize()?; // (only because the host reads it here)
/// assert_eq!(theirs, [1.0, 2.0, 3.0]);
/// # Ok::<(), pinfeed::Error>(())
/// ```
pub unsafe fn copy_to<T: Element>(from: &DeviceTensor<T>, to: u64, stream: &Stream) -> Result<()> {
    // SAFETY: the caller's contract.
    unsafe { from.copy_into(to, stream) }
}

/// Normalises pictures into memory of another allocator, and mixes them on the way: what
/// [`DeviceTensor::normalize_mixed`](crate::DeviceTensor::normalize_mixed) does, in place of a copy. [`MixupDraw::none`] mixes nothing.
///
/// The pictures have the shape `[n, height, width, 3]`. The result is dense and row-major, `[n, 3, height, width]` unless
/// [`Normalize::with_channels_last`] says otherwise, with as many elements of `F` as the pictures have bytes.
///
/// # Synchronization
///
/// As [`copy_to`].
///
/// # Errors
///
/// As [`copy_to`]; [`InvalidOption`](crate::Error::InvalidOption) also if the tensor has another shape, if `to` is not a multiple of 16 or if `mix` is
/// CutMix for pictures of another size; [`ComputeCapability`](crate::Error::ComputeCapability) on a CUDA device below 7.0.
///
/// # Safety
///
/// As [`copy_to`], for as many elements of `F` as the tensor has bytes.
///
/// # Examples
///
/// ```
/// use pinfeed::interop::raw;
/// use pinfeed::ops::{MixupDraw, Normalize};
/// use pinfeed::{Batch, Device, Tensor};
///
/// let device = Device::cpu();
/// let stream = device.stream()?;
/// let pictures = Tensor::<u8>::zeros(&[2, 4, 4, 3]).to_device(&device, true)?;
///
/// let mut theirs = Tensor::<f32>::zeros(&[2, 3, 4, 4]).to_device(&device, true)?; // stands for a framework's tensor
/// let loan = theirs.on_mut(&stream)?;
/// // SAFETY: there are as many elements at this address, and the stream orders all that uses them.
/// unsafe {
///     raw::normalize_to::<f32>(&pictures, &Normalize::IMAGENET, &MixupDraw::none(), loan.address(), &stream)
/// }?;
/// drop(loan);
/// let black = (0.0 - 0.485) / 0.229;
/// assert!((theirs.to_host(false)?.wait()?.as_slice()[0] - black).abs() < 1e-6);
/// # Ok::<(), pinfeed::Error>(())
/// ```
pub unsafe fn normalize_to<F: Float>(
    from: &DeviceTensor<u8>,
    normalize: &Normalize,
    mix: &MixupDraw,
    to: u64,
    stream: &Stream,
) -> Result<()> {
    // SAFETY: the caller's contract.
    unsafe { from.normalize_into::<F>(normalize, mix, to, stream) }
}
