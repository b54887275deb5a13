//! Kernels of the library's own: each is a value that says what it does on either backend.
//!
//! A kernel has a file here, with its arguments, its work on the CPU device, and how it is launched on a CUDA device; and its
//! source in `cuda/`, as `.cu` and as the `.ptx` that is made of it. Loading and launching are the same for all
//! (`cuda/launch.rs`). What a program calls is in [`ops`](crate::ops), which a lower layer does not know.

mod labels;
mod normalize;

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
    /// The memory that the arguments name must be of the CPU device, as large and as aligned as they say, and in no one else's
    /// use.
    unsafe fn run(&self);

    /// How it is launched on a CUDA device.
    #[cfg(feature = "cuda")]
    fn launch(&self) -> Launch<'_>;
}

/// What launches a kernel on a CUDA device.
#[cfg(feature = "cuda")]
pub(crate) struct Launch<'a> {
    /// What it is for, in the error of a device that is too old.
    pub(super) purpose: &'static str,
    pub(super) ptx: &'static CStr,
    pub(super) function: &'static CStr,
    /// How many items the threads share; each goes on with further ones, in steps of all threads.
    pub(super) items: u64,
    pub(super) arguments: Vec<Argument<'a>>,
}

/// An argument of a kernel, where it lies.
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
    /// The memory that its arguments name must be this device's, aligned to 16 bytes, and valid until the work is done; until
    /// then nobody may write what it reads, or touch what it writes, but work that is ordered by the stream.
    pub(crate) unsafe fn launch<K: Kernel>(&self, stream: &RawStream, kernel: K) -> Result<()> {
        match (self, stream) {
            (Driver::Cpu(driver), RawStream::Cpu(stream)) => {
                // SAFETY: the caller's contract: when the stream comes to it, nobody else uses the memory.
                let work = Box::new(move || unsafe { kernel.run() });
                driver.launch(stream, work)
            }
            #[cfg(feature = "cuda")]
            (Driver::Cuda(driver), RawStream::Cuda(stream)) => {
                // SAFETY: the caller's contract; the arguments are those that the kernel's own file says.
                unsafe { driver.launch(stream, &kernel.launch()) }
            }
            #[cfg(feature = "cuda")]
            _ => Err(self.foreign("stream")),
        }
    }
}

/// PTX as the driver takes it.
#[cfg(feature = "cuda")]
pub(super) const fn ptx(text: &'static str) -> &'static CStr {
    match CStr::from_bytes_with_nul(text.as_bytes()) {
        Ok(text) => text,
        Err(_) => panic!("PTX is text that ends in a zero"),
    }
}
