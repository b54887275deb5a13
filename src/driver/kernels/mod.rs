//! The library's own kernels, each of which is a value that runs on either backend.
//!
//! Each kernel has a file here with its arguments, its code for the CPU device, and its launch parameters for a CUDA
//! device. Its CUDA source is in `cuda/`, as `.cu` and as the `.ptx` made from it. Loading and launching are the same
//! for all kernels (`cuda/launch.rs`). The public calls are two layers up, in `ops`.

// (`nvjpeg` launches this and the pictures'.)
#[cfg(all(feature = "nvjpeg", target_os = "linux", not(miri)))]
pub(crate) mod changes;
#[cfg(all(test, feature = "nvjpeg", target_os = "linux", not(miri)))]
mod emulated;
mod labels;
mod normalize;
#[cfg(all(feature = "nvjpeg", target_os = "linux", not(miri)))]
pub(crate) mod picture;
pub(crate) mod rows;

#[cfg(feature = "cuda")]
use std::ffi::{CStr, c_void};
#[cfg(feature = "cuda")]
use std::marker::PhantomData;

pub(crate) use self::labels::{Labelling, Weights};
pub(crate) use self::normalize::{Mixture, Normalizing};
use super::{Driver, RawStream};
use crate::error::Result;

/// A kernel and its arguments. Both backends give the same numbers.
pub(crate) trait Kernel: Send + 'static {
    /// Does the work on the calling thread, on the CPU device.
    ///
    /// # Safety
    ///
    /// The memory that the arguments point to must belong to the CPU device and have the size and alignment that they
    /// say, and nothing else may use it.
    unsafe fn run(&self);

    /// The launch parameters for a CUDA device.
    #[cfg(feature = "cuda")]
    fn launch(&self) -> Launch<'_>;
}

/// The parameters of a launch on a CUDA device.
#[cfg(feature = "cuda")]
pub(crate) struct Launch<'a> {
    /// The kernel's purpose, for the error on a device that is too old.
    pub(super) purpose: &'static str,
    pub(super) ptx: &'static CStr,
    pub(super) function: &'static CStr,
    /// How many items the threads share. Each thread strides over them by the total number of threads.
    pub(super) items: u64,
    pub(super) arguments: Vec<Argument<'a>>,
}

/// An argument of a kernel, by its address.
#[cfg(feature = "cuda")]
pub(crate) struct Argument<'a>(*const c_void, PhantomData<&'a ()>);

#[cfg(feature = "cuda")]
impl<'a> Argument<'a> {
    fn new<T: Copy>(value: &'a T) -> Argument<'a> {
        Argument(std::ptr::from_ref(value).cast(), PhantomData)
    }

    pub(super) fn pointer(&self) -> *mut c_void {
        self.0.cast_mut() // the driver only reads it
    }
}

impl Driver {
    /// Enqueues a kernel on the stream.
    ///
    /// # Safety
    ///
    /// The memory that its arguments name must belong to this device, be aligned to 16 bytes, and be valid until the
    /// kernel is done. Until then nothing may write what it reads, or touch what it writes, except work that the stream
    /// orders.
    pub(crate) unsafe fn launch<K: Kernel>(&self, stream: &RawStream, kernel: K) -> Result<()> {
        match (self, stream) {
            (Driver::Cpu(driver), RawStream::Cpu(stream)) => {
                // SAFETY: the caller's contract: when the stream reaches it, nothing else uses the memory.
                let work = Box::new(move || unsafe { kernel.run() });
                driver.launch(stream, work)
            }
            #[cfg(feature = "cuda")]
            (Driver::Cuda(driver), RawStream::Cuda(stream)) => {
                // SAFETY: the caller's contract; the kernel's own file defines its arguments.
                unsafe { driver.launch(stream, &kernel.launch()) }
            }
            #[cfg(feature = "cuda")]
            _ => Err(self.foreign("stream")),
        }
    }
}

/// PTX in the form that the driver takes.
#[cfg(feature = "cuda")]
pub(super) const fn ptx(text: &'static str) -> &'static CStr {
    match CStr::from_bytes_with_nul(text.as_bytes()) {
        Ok(text) => text,
        Err(_) => panic!("PTX is text that ends in a zero"),
    }
}
