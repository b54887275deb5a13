//! Loans that own their tensor: for code that keeps memory beyond a scope, on other threads, or in another library.
//!
//! | state | who may use the memory | what ends it |
//! | --- | --- | --- |
//! | [`OwnedLoan`], [`OwnedLoanMut`] | work on the streams that were named | its drop, on any thread: an event on each of these streams |
//! | [`Adrift`] | work on any stream of the context | its drop, on any thread: listed (`pool/adrift.rs`) until a sweep |
//!
//! A loan is its tensor's only holder, so it needs no entry beside the open uses in the tensor's list, which end as those of a tensor do
//! that is dropped while a scoped loan was forgotten.

use std::fmt;
use std::mem::ManuallyDrop;

use super::DeviceTensor;
use crate::device::buffer_set::BufferSet;
use crate::device::handle::{Device, Stream};
use crate::device::inner::DeviceInner;
use crate::error::{Error, Result};
use crate::sync::log;
use crate::sync::{Arc, thread};
use crate::tensor::{DType, Element, Shape};

/// A device tensor, lent for reading for as long as the owner of the loan likes: it may be kept, and dropped on any thread.
///
/// [`DeviceTensor::lend`] makes one. It owns the tensor, and so its block of device memory, or its buffer at a fixed address, and the
/// device. For several owners, put it into an [`Arc`]. A loan for a scope is [`DeviceTensor::on`].
///
/// # Synchronization
///
/// Dropping it records an event on each stream that was named, on whichever thread that is, and drops the tensor: launch the kernels that
/// read before. Its memory is not reused before these events. On CUDA it must not be dropped in a host function
/// ([`Stream::host_fn`](crate::Stream::host_fn)), which must not call the driver; what [`end_everywhere`](OwnedLoan::end_everywhere)
/// returns may be. If an event cannot be recorded because the device failed, the memory is leaked, and counted
/// ([`MemoryStats::leaked`](crate::device::MemoryStats::leaked)). A loan that is forgotten (`mem::forget`) keeps the memory for good: it
/// counts in the pool's budget.
///
/// # Examples
///
/// ```
/// use std::sync::Arc;
///
/// use pinfeed::device::OwnedLoan;
/// use pinfeed::{Batch, Device, Tensor};
///
/// let device = Device::cpu();
/// let stream = device.stream()?;
/// let batch = Tensor::from(vec![1.0f32, 2.0]).to_device(&device, true)?;
/// let loan: Arc<OwnedLoan<f32>> = Arc::new(batch.lend(&stream)?); // the stream waits for the copy, the host does not
/// let kept = Arc::clone(&loan);
/// drop((stream, device)); // it keeps what it needs
/// let elsewhere = std::thread::spawn(move || {
///     // Kernels that read `kept.address()` are launched on the stream here.
///     assert_eq!((&kept.shape()[..], &kept.strides()[..]), (&[2][..], &[1][..]));
/// });
/// drop(loan);
/// elsewhere.join().unwrap(); // the last owner was there
/// # Ok::<(), pinfeed::Error>(())
/// ```
#[must_use = "the loan ends when it is dropped: launch the kernels that read before"]
pub struct OwnedLoan<T: Element> {
    tensor: DeviceTensor<T>,
}

/// A device tensor, lent for writing for as long as the owner of the loan likes: as [`OwnedLoan`], on one stream at a time.
///
/// # Examples
///
/// ```
/// use pinfeed::device::OwnedLoanMut;
/// use pinfeed::{Batch, Device, Tensor};
///
/// let device = Device::cpu();
/// let (first, second) = (device.stream()?, device.stream()?);
/// let batch = Tensor::from(vec![1.0f32, 2.0]).to_device(&device, true)?;
/// let mut loan: OwnedLoanMut<f32> = batch.lend_mut(&first)?;
/// // Kernels that write to `loan.address()` are launched on the first stream here,
/// loan.move_to(&second)?;
/// // and here on the second one, which waits for them.
/// let batch = loan.into_tensor();
/// let _sees_what_they_wrote = batch.to_host(true)?;
/// # Ok::<(), pinfeed::Error>(())
/// ```
#[must_use = "the loan ends when it is dropped: launch the kernels that write before"]
pub struct OwnedLoanMut<T: Element> {
    tensor: DeviceTensor<T>,
}

/// A device tensor of which it is not known which streams use it: another library has its address, and streams of its own.
///
/// [`OwnedLoan::end_everywhere`] makes one. Dropping it calls no driver, and waits for nothing, on whichever thread that is: a deleter of
/// another library, or a host function of a stream. Its memory is *adrift* then, and free behind an event of the whole context, which the
/// program asks for ([`Device::sweep`]).
///
/// It is no tensor any more: a copy into it, or a kernel that writes it, could not wait for readers that are not known.
///
/// # Synchronization
///
/// Drop it when all work that uses the memory has been *launched*, on streams of the device's context. (That it is done is what the event
/// is for.) Until a sweep, memory that is adrift is in use for the pool: batches that need it are told so by
/// [`Error::DeviceBudget`], and those that need a buffer at a fixed address by
/// [`Error::Buffers`]. Work on another device's streams, or on the host, is not covered.
///
/// If it was the last holder of the device, a thread of its own gives the device back. How long the batch was processed is not measured.
///
/// # Examples
///
/// ```
/// use pinfeed::device::Adrift;
/// use pinfeed::{Batch, Device, Tensor};
///
/// let device = Device::cpu();
/// let stream = device.stream()?;
/// let batch = Tensor::from(vec![1.0f32, 2.0]).to_device(&device, true)?;
/// let theirs: Adrift<f32> = batch.lend(&stream)?.end_everywhere();
/// // A library that has the address may read it on any stream that comes after `stream`.
/// assert_eq!((theirs.len(), theirs.dtype()), (2, pinfeed::tensor::DType::F32));
/// stream.host_fn(move || drop(theirs))?; // in a callback
/// stream.synchronize()?;
/// assert_eq!(device.sweep()?, 512); // the block of the pool that it lay in
/// # Ok::<(), pinfeed::Error>(())
/// ```
pub struct Adrift<T: Element> {
    /// Dropped in `drop` alone.
    tensor: ManuallyDrop<DeviceTensor<T>>,
}

impl<T: Element> DeviceTensor<T> {
    /// Lends the memory to work on `stream`, for reading, to an owner: the loan has no lifetime, and may go to other threads and libraries.
    ///
    /// # Synchronization
    ///
    /// The host does not block. The stream waits for the tensor's last write. What ends the loan, and when the memory is reused:
    /// [`OwnedLoan`].
    ///
    /// # Errors
    ///
    /// The tensor is dropped with an error. [`Error::WrongDevice`] if the stream is of another device, [`Error::InvalidOption`] if it is a
    /// per-thread default stream (the loan may end on another thread, where its handle names another stream), [`Error::WrongThread`] if a
    /// loan on one of these was forgotten, [`Error::Device`] if the device failed.
    pub fn lend(self, stream: &Stream) -> Result<OwnedLoan<T>> {
        self.check_owned("lend", stream)?;
        self.uses.begin_read(stream.shared())?;
        Ok(OwnedLoan { tensor: self })
    }

    /// Lends the memory to work on `stream`, for writing, to an owner.
    ///
    /// # Synchronization
    ///
    /// As [`lend`](DeviceTensor::lend), and the stream waits for all readers as well.
    ///
    /// # Errors
    ///
    /// As [`lend`](DeviceTensor::lend).
    pub fn lend_mut(self, stream: &Stream) -> Result<OwnedLoanMut<T>> {
        self.check_owned("lend_mut", stream)?;
        self.uses.begin_write(stream.shared())?;
        Ok(OwnedLoanMut { tensor: self })
    }

    /// Checks a stream on which a loan may end on any thread.
    fn check_owned(&self, call: &'static str, stream: &Stream) -> Result<()> {
        stream.check(self.inner(), "the stream")?;
        match stream.raw().is_of_one_thread() {
            false => Ok(()),
            true => Err(Error::option(
                call,
                "was given a per-thread default stream, and the loan may end on another thread, where its handle names another stream: use a \
                 stream of your own (Device::stream), or lend the tensor for a scope (DeviceTensor::on)",
            )),
        }
    }
}

macro_rules! owned {
    ($name:ident) => {
        impl<T: Element> $name<T> {
            /// The address in device memory, for kernels on the streams that the loan is for. (On the CPU device: in host memory.)
            ///
            /// This is where the promise of this crate ends: a kernel that is launched on another stream, or after the loan was dropped, is
            /// not ordered with the copies.
            pub fn address(&self) -> u64 {
                self.tensor.address
            }

            /// The lengths of the dimensions, outermost first.
            pub fn shape(&self) -> &Shape {
                self.tensor.shape()
            }

            /// The distance, in elements, between neighbours along each dimension. Tensors are dense and row-major, so the last is 1.
            pub fn strides(&self) -> Vec<usize> {
                strides(self.tensor.shape())
            }

            /// The number of elements.
            pub fn len(&self) -> usize {
                self.tensor.len()
            }

            /// Whether there are no elements.
            pub fn is_empty(&self) -> bool {
                self.tensor.is_empty()
            }

            /// The size of all elements in bytes.
            pub fn size_bytes(&self) -> usize {
                self.tensor.size_bytes()
            }

            /// The element type.
            pub fn dtype(&self) -> DType {
                T::DTYPE
            }

            /// The device that the memory is on.
            pub fn device(&self) -> Device {
                self.tensor.device()
            }
        }

        impl<T: Element> fmt::Debug for $name<T> {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.debug_struct(stringify!($name))
                    .field("dtype", &T::DTYPE)
                    .field("shape", self.tensor.shape())
                    .field("device", &self.tensor.inner().driver.name())
                    .finish()
            }
        }
    };
}

owned!(OwnedLoan);
owned!(OwnedLoanMut);
owned!(Adrift);

impl<T: Element> OwnedLoan<T> {
    /// Lends the memory to work on another stream, too.
    ///
    /// # Synchronization
    ///
    /// The host does not block. That stream waits for the tensor's last write; readers do not wait for each other.
    ///
    /// # Errors
    ///
    /// As [`DeviceTensor::lend`]; the loan is as it was.
    pub fn also_on(&mut self, stream: &Stream) -> Result<()> {
        self.tensor.check_owned("also_on", stream)?;
        self.tensor.uses.begin_read(stream.shared())?;
        Ok(())
    }

    /// Lends the memory to work on another stream, in place of those that were named so far: an event on each of these ends its use.
    ///
    /// # Synchronization
    ///
    /// As [`also_on`](OwnedLoan::also_on).
    ///
    /// # Errors
    ///
    /// As [`also_on`](OwnedLoan::also_on).
    pub fn move_to(&mut self, stream: &Stream) -> Result<()> {
        self.tensor.check_owned("move_to", stream)?;
        let id = self.tensor.uses.begin_read(stream.shared())?;
        self.tensor.uses.end_others(Some(id));
        Ok(())
    }

    /// Lends the memory to all streams of the device's context, for as long as what this returns is not dropped: for another library, which
    /// does not say on which of its streams it reads.
    ///
    /// # Synchronization
    ///
    /// Orders nothing by itself: before a stream reads, it must come after one that was named (a stream waits for it, or the host did).
    /// When the memory is reused: [`Adrift`].
    pub fn end_everywhere(self) -> Adrift<T> {
        Adrift::new(self.tensor)
    }

    /// Ends the loan, and gives the tensor back.
    ///
    /// # Synchronization
    ///
    /// The host does not block. What writes the tensor next waits for the streams' work so far.
    pub fn into_tensor(self) -> DeviceTensor<T> {
        self.tensor.uses.end_others(None);
        self.tensor
    }

    /// The elements in place, on the CPU device; `None` on a GPU.
    ///
    /// # Synchronization
    ///
    /// Blocks the calling thread until the tensor's last write is done.
    ///
    /// # Errors
    ///
    /// [`Error::Device`] if the device failed.
    pub fn host_slice(&self) -> Result<Option<&[T]>> {
        self.tensor.host_slice()
    }
}

impl<T: Element> OwnedLoanMut<T> {
    /// Lends the memory to work on another stream, in place of the one that was named so far.
    ///
    /// # Synchronization
    ///
    /// The host does not block. The new stream waits for the old one's work so far.
    ///
    /// # Errors
    ///
    /// As [`DeviceTensor::lend`]. What was launched so far is guarded; launch no more after [`Error::Device`], but drop the loan.
    pub fn move_to(&mut self, stream: &Stream) -> Result<()> {
        self.tensor.check_owned("move_to", stream)?;
        self.tensor.uses.begin_write(stream.shared())?; // it records an event behind the write so far, and waits for that
        Ok(())
    }

    /// Lends the memory to all streams of the device's context, as [`OwnedLoan::end_everywhere`] does, for writing. Which of them writes
    /// when is theirs to order.
    pub fn end_everywhere(self) -> Adrift<T> {
        Adrift::new(self.tensor)
    }

    /// Ends the loan, and gives the tensor back.
    ///
    /// # Synchronization
    ///
    /// The host does not block. What uses the tensor next waits for the stream's work so far.
    pub fn into_tensor(self) -> DeviceTensor<T> {
        self.tensor.uses.end_others(None);
        self.tensor
    }
}

impl<T: Element> Adrift<T> {
    fn new(mut tensor: DeviceTensor<T>) -> Adrift<T> {
        // Here, where the driver may be called: the last handle of a stream may go with its use.
        tensor.uses.end_everywhere();
        Adrift {
            tensor: ManuallyDrop::new(tensor),
        }
    }
}

impl<T: Element> Drop for Adrift<T> {
    fn drop(&mut self) {
        let block = self.tensor.uses.block();
        let holder = LastHolder {
            set: block.set().cloned(),
            device: Arc::clone(block.device()),
        };
        // SAFETY: it is not used any more.
        unsafe { ManuallyDrop::drop(&mut self.tensor) };
        holder.let_go();
    }
}

/// What memory's last holder keeps, and must not drop on a thread that may call no driver.
struct LastHolder {
    set: Option<Arc<BufferSet>>,
    device: Arc<DeviceInner>,
}

impl LastHolder {
    /// Lets go of it. If there is no other holder, a thread of its own drops it.
    fn let_go(self) {
        let set = self.set.and_then(Arc::into_inner); // it holds the device
        let device = Arc::into_inner(self.device);
        if set.is_none() && device.is_none() {
            return;
        }
        // (A thread that does not start drops nothing.)
        let held = ManuallyDrop::new((set, device));
        let name = "pinfeed-last-holder".to_owned();
        let started = thread::Builder::new()
            .name(name)
            .spawn(move || drop(ManuallyDrop::into_inner(held)));
        if let Err(error) = started {
            log::error!(
                "a device is leaked: its last holder may call no driver, and no thread could be started that would ({error})"
            );
        }
    }
}

/// Of a dense tensor, in elements.
fn strides(shape: &[usize]) -> Vec<usize> {
    let mut stride = 1;
    let mut strides: Vec<usize> = shape
        .iter()
        .rev()
        .map(|length| {
            let own = stride;
            stride *= (*length).max(1);
            own
        })
        .collect();
    strides.reverse();
    strides
}

/// They go to any thread, and live as long as their owner likes.
const _: () = {
    const fn goes_anywhere<T: Send + Sync + 'static>() {}
    goes_anywhere::<OwnedLoan<f32>>();
    goes_anywhere::<OwnedLoanMut<f32>>();
    goes_anywhere::<Adrift<f32>>();
};

#[cfg(test)]
mod tests {
    use super::strides;

    #[test]
    fn strides_are_those_of_a_dense_tensor() {
        assert!(strides(&[]).is_empty());
        assert_eq!(strides(&[7]), [1]);
        assert_eq!(strides(&[2, 3, 4]), [12, 4, 1]);
        assert_eq!(strides(&[2, 0, 4]), [4, 4, 1]); // as numpy's and torch's
    }
}
