//! Tensors in device memory, and the loans through which kernels reach them.

use std::fmt;
use std::marker::PhantomData;

mod column;
mod download;
mod hand_over;
mod launch;
mod lent;
#[cfg(feature = "dlpack")]
mod taken;

pub use self::lent::{Adrift, OwnedLoan, OwnedLoanMut};

use super::block::{DeviceBlock, Uses};
use super::handle::{Device, Stream};
use super::inner::DeviceInner;
use crate::driver::RawEvent;
use crate::error::Result;
use crate::sync::Arc;
use crate::tensor::{DType, Element, Shape};

/// A tensor in device memory: dense, row-major, guarded by the event of the copy that writes it.
///
/// It exists before its bytes arrive: [`on`](DeviceTensor::on) makes a stream wait for them, without the host waiting. It
/// can be dropped at any time: its memory is reused only after the events of all its users.
///
/// # Examples
///
/// ```
/// use pinfeed::{Batch, Device, Tensor};
///
/// let device = Device::cpu();
/// let mut x = Tensor::from(vec![1.0f32, 2.0]).to_device(&device, true)?; // its bytes are on the way
/// assert_eq!((x.len(), x.device().name()), (2, device.name()));
/// x.copy_from_host(&Tensor::from(vec![3.0, 4.0]), true)?; // behind the first copy
/// assert_eq!(x.to_host(false)?.wait()?.as_slice(), [3.0, 4.0]);
/// # Ok::<(), pinfeed::Error>(())
/// ```
pub struct DeviceTensor<T: Element> {
    uses: Uses,
    address: u64,
    shape: Shape,
    elements: usize,
    element: PhantomData<fn() -> T>,
}

impl<T: Element> DeviceTensor<T> {
    /// A tensor at `address` within `block`, whose last write is done when `written` fires.
    pub(super) fn new(
        block: Arc<DeviceBlock>,
        address: u64,
        shape: Shape,
        written: Option<RawEvent>,
    ) -> Self {
        DeviceTensor {
            uses: Uses::new(block, written),
            address,
            elements: shape.iter().product(),
            shape,
            element: PhantomData,
        }
    }

    /// The lengths of the dimensions, outermost first.
    pub fn shape(&self) -> &Shape {
        &self.shape
    }

    /// The number of elements.
    pub fn len(&self) -> usize {
        self.elements
    }

    /// Whether there are no elements.
    pub fn is_empty(&self) -> bool {
        self.elements == 0
    }

    /// The element type.
    pub fn dtype(&self) -> DType {
        T::DTYPE
    }

    /// The size of all elements in bytes.
    pub fn size_bytes(&self) -> usize {
        self.elements * size_of::<T>()
    }

    /// The device that the memory is on.
    pub fn device(&self) -> Device {
        Device {
            inner: Arc::clone(self.inner()),
        }
    }

    pub(super) fn inner(&self) -> &Arc<DeviceInner> {
        self.uses.block().device()
    }

    pub(super) fn uses(&self) -> &Uses {
        &self.uses
    }

    pub(super) fn uses_mut(&mut self) -> &mut Uses {
        &mut self.uses
    }

    pub(super) fn address(&self) -> u64 {
        self.address
    }

    /// Lends the memory to work on `stream`, for reading.
    ///
    /// # Synchronization
    ///
    /// The host does not block. The stream waits for the tensor's last write: its upload, or the last
    /// [`on_mut`](DeviceTensor::on_mut). Dropping the loan records an event on the stream, so launch the kernels that
    /// read before that; the memory is not reused until that event fires.
    ///
    /// # Errors
    ///
    /// [`WrongDevice`](crate::Error::WrongDevice) if the stream is of another device,
    /// [`WrongThread`](crate::Error::WrongThread) if it is another thread's default stream,
    /// [`Device`](crate::Error::Device) if the device failed.
    pub fn on(&self, stream: &Stream) -> Result<Loan<'_, T>> {
        stream.check(self.inner(), "the stream")?;
        Ok(Loan {
            id: self.uses.begin_read(stream.shared())?,
            tensor: self,
            stream: stream.clone(),
            not_send: PhantomData,
        })
    }

    /// Lends the memory to work on `stream`, for writing.
    ///
    /// # Synchronization
    ///
    /// As [`on`](DeviceTensor::on), and the stream waits for all readers as well. Later users of the tensor wait for this
    /// loan's work.
    ///
    /// # Errors
    ///
    /// As [`on`](DeviceTensor::on).
    pub fn on_mut(&mut self, stream: &Stream) -> Result<LoanMut<'_, T>> {
        stream.check(self.inner(), "the stream")?;
        Ok(LoanMut {
            id: self.uses.begin_write(stream.shared())?,
            tensor: self,
            stream: stream.clone(),
            not_send: PhantomData,
        })
    }

    /// The elements in place, on the CPU device, once the last write is done; `None` on a GPU.
    pub(crate) fn host_slice(&self) -> Result<Option<&[T]>> {
        if !self.inner().driver.is_host() {
            return Ok(None);
        }
        self.synchronize()?;
        // SAFETY: on the CPU backend the address is that of initialized host memory, aligned to 256 bytes; the last
        // write is done, and later ones need `&mut` (*memory outlives its events*).
        Ok(Some(unsafe {
            std::slice::from_raw_parts(self.address as *const T, self.elements)
        }))
    }

    /// Blocks the calling thread until the tensor's last write is done. The host memory that it was copied from is then not
    /// shared by the copy any more.
    ///
    /// # Errors
    ///
    /// [`Device`](crate::Error::Device) if the device failed.
    pub fn synchronize(&self) -> Result<()> {
        if let Some(event) = self.uses.last_write()? {
            event.synchronize()?;
        }
        self.inner().flights.reap();
        Ok(())
    }
}

impl<T: Element> fmt::Debug for DeviceTensor<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DeviceTensor")
            .field("dtype", &T::DTYPE)
            .field("shape", &self.shape)
            .field("device", &self.inner().driver.name())
            .finish()
    }
}

macro_rules! loan {
    ($name:ident) => {
        impl<T: Element> $name<'_, T> {
            /// The stream that the loan is for.
            pub fn stream(&self) -> &Stream {
                &self.stream
            }

            /// The lengths of the dimensions, outermost first.
            pub fn shape(&self) -> &Shape {
                &self.tensor.shape
            }

            /// The number of elements.
            pub fn len(&self) -> usize {
                self.tensor.elements
            }

            /// Whether there are no elements.
            pub fn is_empty(&self) -> bool {
                self.tensor.elements == 0
            }

            /// The address in device memory, for kernels on this loan's stream. (On the CPU device: in host memory.)
            ///
            /// This is where the promise of this crate ends: a kernel that is launched on another stream, or after the
            /// loan was dropped, is not ordered with the copies.
            pub fn address(&self) -> u64 {
                self.tensor.address
            }
        }

        impl<T: Element> Drop for $name<'_, T> {
            fn drop(&mut self) {
                self.tensor.uses.end(self.id);
            }
        }

        impl<T: Element> fmt::Debug for $name<'_, T> {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.debug_struct(stringify!($name))
                    .field("tensor", &self.tensor)
                    .field("stream", &self.stream)
                    .finish()
            }
        }
    };
}

/// A device tensor, lent for reading to work on one stream. Dropping it records the end of that work.
///
/// # Examples
///
/// ```
/// use pinfeed::{Batch, Device, Tensor};
///
/// let device = Device::cpu();
/// let stream = device.stream()?;
/// let x = Tensor::from(vec![1.0f32, 2.0]).to_device(&device, true)?;
/// let loan = x.on(&stream)?;
/// if let Some(elements) = loan.host_slice()? {
///     assert_eq!(elements, [1.0, 2.0]); // the CPU device: its memory can be read where it lies
/// } else {
///     let _input = loan.address(); // a GPU: for kernels on `loan.stream()`
/// }
/// # Ok::<(), pinfeed::Error>(())
/// ```
#[must_use = "the loan ends when it is dropped: launch the kernels that read before"]
pub struct Loan<'a, T: Element> {
    tensor: &'a DeviceTensor<T>,
    stream: Stream,
    id: u64,
    /// The end is recorded on the thread that launched the work.
    not_send: PhantomData<*const ()>,
}

loan!(Loan);

impl<T: Element> Loan<'_, T> {
    /// The elements in place, on the CPU device; `None` on a GPU.
    ///
    /// # Synchronization
    ///
    /// Blocks the calling thread until the stream has reached the loan: until the tensor's last write, and whatever the
    /// stream held before, is done.
    ///
    /// # Errors
    ///
    /// [`Device`](crate::Error::Device) if the device failed.
    pub fn host_slice(&self) -> Result<Option<&[T]>> {
        if !self.tensor.inner().driver.is_host() {
            return Ok(None);
        }
        self.stream.synchronize()?;
        // SAFETY: on the CPU backend the address is that of initialized host memory, aligned to 256 bytes; the last write
        // is done, and the loan prevents later ones, which need `&mut` (*memory outlives its events*).
        let slice = unsafe {
            std::slice::from_raw_parts(self.tensor.address as *const T, self.tensor.elements)
        };
        Ok(Some(slice))
    }
}

/// A device tensor, lent for writing to work on one stream. Dropping it records the end of that work.
///
/// # Examples
///
/// ```
/// use pinfeed::{Batch, Device, Tensor};
///
/// let device = Device::cpu();
/// let stream = device.stream()?;
/// let mut x = Tensor::from(vec![1.0f32, 2.0]).to_device(&device, true)?;
/// let loan = x.on_mut(&stream)?; // the stream waits for the copy, and for all readers of `x`
/// // Kernels that write to `loan.address()` are launched on the stream here.
/// drop(loan);
/// let _sees_what_they_wrote = x.to_host(true)?;
/// # Ok::<(), pinfeed::Error>(())
/// ```
#[must_use = "the loan ends when it is dropped: launch the kernels that write before"]
pub struct LoanMut<'a, T: Element> {
    tensor: &'a mut DeviceTensor<T>,
    stream: Stream,
    id: u64,
    not_send: PhantomData<*const ()>,
}

loan!(LoanMut);
