//! Tensors of this library on their way out.

use std::any::Any;
use std::ffi::c_void;
use std::fmt;
use std::panic::AssertUnwindSafe;
use std::ptr::NonNull;

use super::{
    DLDataType, DLDevice, DLManagedTensor, DLManagedTensorVersioned, DLPackVersion, DLTensor,
};
use crate::device::{Adrift, Device, DeviceTensor, Stream};
use crate::driver::Driver;
use crate::error::{Error, Result, panic_message};
use crate::sync::Arc;
use crate::sync::log;
use crate::tensor::{Element, Shape, Tensor};

/// A tensor on its way to another library, which owns its memory.
///
/// [`into_versioned`](Exported::into_versioned) or [`into_unversioned`](Exported::into_unversioned) makes the struct of it that goes out. Dropped
/// before that, it gives the memory back, as its deleter would.
///
/// # Examples
///
/// ```
/// use pinfeed::Tensor;
/// use pinfeed::interop::dlpack::{DLDataType, DLManagedTensorVersioned, Exported};
///
/// let flags = Exported::host(Tensor::from(vec![1u8, 0, 1]))?.seen_as(DLDataType::BOOL)?;
/// let theirs = flags.into_versioned();
/// // What the other library does. SAFETY: it owns the struct, and calls its deleter once.
/// unsafe {
///     assert_eq!((*theirs).flags & DLManagedTensorVersioned::READ_ONLY, 0); // nothing else has the memory
///     assert_eq!((*theirs).dl_tensor.dtype, DLDataType::BOOL);
///     ((*theirs).deleter.unwrap())(theirs);
/// }
/// # Ok::<(), pinfeed::Error>(())
/// ```
pub struct Exported {
    data: *mut c_void,
    device: DLDevice,
    dtype: DLDataType,
    /// Lengths, and then strides.
    dimensions: Vec<i64>,
    ndim: i32,
    flags: u64,
    /// Dropped by the deleter.
    owner: Box<dyn Any + Send>,
}

// SAFETY: it owns the memory at its address (`from_raw_parts`), which it does not touch; the owner is `Send`.
unsafe impl Send for Exported {}

impl Exported {
    /// A host tensor, where it lies. It may be written if nothing else holds the memory, and is flagged as read-only otherwise: where views
    /// share it, copies read it, or it is an owner's ([`Tensor::from_owner`]).
    ///
    /// # Errors
    ///
    /// [`Error::InvalidOption`] if the memory is page-locked, or comes from a device's ring, or its rows lie elsewhere. Other libraries take
    /// it for ordinary memory, and let go of it while copies from it are in flight: [`host_copy`](Exported::host_copy) copies it.
    pub fn host<T: Element>(mut tensor: Tensor<T>) -> Result<Exported> {
        if tensor.storage().needs_driver() {
            return Err(Error::option(
                "Exported::host",
                "was given memory that is page-locked, or a device's: other libraries copy from it without waiting, and let go of it while these \
                 copies are in flight. Copy it (Exported::host_copy)",
            ));
        }
        let flags = match tensor.as_mut_slice() {
            Some(_) => 0,
            None => DLManagedTensorVersioned::READ_ONLY,
        };
        Exported::of_host(tensor, flags)
    }

    /// A copy of a host tensor in memory of its own, flagged as such.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidOption`] if it has more dimensions, or larger ones, than DLPack can say.
    ///
    /// # Panics
    ///
    /// As [`Tensor::as_slice`].
    pub fn host_copy<T: Element>(tensor: &Tensor<T>) -> Result<Exported> {
        let copy = Tensor::from_vec(tensor.to_vec(), tensor.shape())?;
        Exported::of_host(copy, DLManagedTensorVersioned::IS_COPIED)
    }

    fn of_host<T: Element>(tensor: Tensor<T>, flags: u64) -> Result<Exported> {
        let (data, shape) = (tensor.as_ptr().cast(), tensor.shape().clone());
        // SAFETY: the elements lie there (and are not written, if they are shared) as long as the tensor, which is the owner. Its memory is
        // ordinary memory of the process.
        unsafe {
            Exported::from_raw_parts(
                data,
                DLDevice::CPU,
                T::DTYPE.into(),
                &shape,
                flags,
                Box::new(tensor),
            )
        }
    }

    /// A device tensor, where it lies, for work on `stream` and on all streams that come after it. (On the CPU device: host memory, when the
    /// stream has arrived there.)
    ///
    /// # Synchronization
    ///
    /// On a GPU the host does not block: `stream` waits for the tensor's last write and for its readers. A consumer that reads on another
    /// stream makes that one wait for it. Its deleter tells of no stream. So from then on the memory is adrift: [`Device::sweep`] makes it
    /// free, behind all work of the context. On the CPU device, whose consumers have no streams, the call waits for `stream`.
    ///
    /// # Errors
    ///
    /// As [`DeviceTensor::lend`]; [`Error::InvalidOption`] if it has more dimensions, or larger ones, than DLPack can say.
    ///
    /// # Examples
    ///
    /// ```
    /// use pinfeed::interop::dlpack::Exported;
    /// use pinfeed::{Batch, Device, Tensor};
    ///
    /// let device = Device::cpu();
    /// let stream = device.stream()?; // on a GPU: the consumer's, by `consumer_stream`
    /// let batch = Tensor::from(vec![1.0f32, 2.0]).to_device(&device, true)?;
    /// let theirs = Exported::device(batch, &stream)?.into_versioned();
    ///
    /// // SAFETY: the consumer owns the struct, and calls its deleter once, on any thread.
    /// unsafe { ((*theirs).deleter.unwrap())(theirs) };
    /// assert_eq!(device.sweep()?, 512); // the block of the pool that it lay in
    /// # Ok::<(), pinfeed::Error>(())
    /// ```
    pub fn device<T: Element>(tensor: DeviceTensor<T>, stream: &Stream) -> Result<Exported> {
        let theirs = tensor.lend_mut(stream)?.end_everywhere();
        if theirs.device().is_cpu() {
            stream.synchronize()?;
        }
        Exported::adrift(Arc::new(theirs))
    }

    /// Device memory that all streams may use, and that several exports share: it is adrift when the last of them is gone.
    ///
    /// # Synchronization
    ///
    /// Orders nothing: before a consumer reads, its stream must come after the one that the memory was lent to. (On the CPU device, the host
    /// must have waited for that.)
    ///
    /// # Errors
    ///
    /// [`Error::InvalidOption`] if it has more dimensions, or larger ones, than DLPack can say.
    pub fn adrift<T: Element>(theirs: Arc<Adrift<T>>) -> Result<Exported> {
        let (data, shape) = (theirs.address() as *mut c_void, theirs.shape().clone());
        let device = place_of(&theirs.device());
        // SAFETY: the elements lie there as long as one of the holders lives, and nothing of this library uses them any more (*adrift memory is
        // behind an event of the whole context*). The memory is of that device.
        unsafe {
            Exported::from_raw_parts(data, device, T::DTYPE.into(), &shape, 0, Box::new(theirs))
        }
    }

    /// Dense, row-major memory of another owner.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidOption`] if there are more dimensions, or larger ones, than DLPack can say.
    ///
    /// # Safety
    ///
    /// At `data` there must be as many elements of this type as the shape has, in memory of this device, until `owner` is dropped. Unless `flags`
    /// has [`READ_ONLY`](DLManagedTensorVersioned::READ_ONLY), the consumer writes them: no reference to them may exist. What is not
    /// [`CUDA_HOST`](DLDevice::CUDA_HOST) must not be page-locked. The owner is dropped on any thread, by a deleter that must call no driver and
    /// no interpreter.
    pub unsafe fn from_raw_parts(
        data: *mut c_void,
        device: DLDevice,
        dtype: DLDataType,
        shape: &[usize],
        flags: u64,
        owner: Box<dyn Any + Send>,
    ) -> Result<Exported> {
        let refused = || {
            let shape = Shape::from(shape);
            Error::option(
                "Exported",
                format!("DLPack has no place for a tensor of {shape:?}"),
            )
        };
        let ndim = i32::try_from(shape.len()).map_err(|_| refused())?;
        let mut dimensions = vec![0; 2 * shape.len()];
        let mut stride = 1i64;
        for (place, &length) in shape.iter().enumerate().rev() {
            let length = i64::try_from(length).map_err(|_| refused())?;
            dimensions[place] = length;
            dimensions[shape.len() + place] = stride;
            stride = stride.checked_mul(length.max(1)).ok_or_else(refused)?;
        }
        let is_empty = shape.contains(&0);
        Ok(Exported {
            data: match is_empty {
                true => std::ptr::null_mut(),
                false => data,
            },
            device,
            dtype,
            dimensions,
            ndim,
            flags,
            owner,
        })
    }

    /// The same bytes as elements of another type, which this library has not: [`DLDataType::BOOL`] for `u8`, [`DLDataType::U64`] for `i64`.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidOption`] if its elements are not of the same size.
    pub fn seen_as(mut self, dtype: DLDataType) -> Result<Exported> {
        if dtype.size_bytes() != self.dtype.size_bytes() {
            return Err(Error::option(
                "seen_as",
                format!(
                    "elements of {} cannot be seen as {dtype}: they differ in size",
                    self.dtype
                ),
            ));
        }
        self.dtype = dtype;
        Ok(self)
    }

    /// The same, flagged as a copy that was made for this export.
    pub fn copied(mut self) -> Exported {
        self.flags |= DLManagedTensorVersioned::IS_COPIED;
        self
    }

    /// Whether the consumer must not write the elements.
    pub fn is_read_only(&self) -> bool {
        self.flags & DLManagedTensorVersioned::READ_ONLY != 0
    }

    /// The struct of DLPack 1.x. Who gets it calls its deleter once.
    pub fn into_versioned(self) -> *mut DLManagedTensorVersioned {
        let flags = self.flags;
        self.boxed(|whole, dl_tensor| DLManagedTensorVersioned {
            version: DLPackVersion::OURS,
            manager_ctx: whole,
            deleter: Some(delete::<DLManagedTensorVersioned>),
            flags,
            dl_tensor,
        })
        .as_ptr()
    }

    /// The struct of the time before DLPack 1.0. Who gets it calls its deleter once.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidOption`] if the elements must not be written, which it has no flag for: export a copy
    /// ([`host_copy`](Exported::host_copy)).
    pub fn into_unversioned(self) -> Result<*mut DLManagedTensor> {
        if self.is_read_only() {
            return Err(Error::option(
                "into_unversioned",
                "the memory is shared, or another owner's, and must not be written; a DLManagedTensor cannot say so. Export a copy \
                 (Exported::host_copy), or a DLManagedTensorVersioned",
            ));
        }
        let managed = self.boxed(|whole, dl_tensor| DLManagedTensor {
            dl_tensor,
            manager_ctx: whole,
            deleter: Some(delete::<DLManagedTensor>),
        });
        Ok(managed.as_ptr())
    }

    /// Puts all of it into one allocation, at the beginning of which `managed` stands.
    fn boxed<M>(self, managed: impl FnOnce(*mut c_void, DLTensor) -> M) -> NonNull<M> {
        let whole = Box::new(std::mem::MaybeUninit::<Whole<M>>::uninit());
        let whole: *mut Whole<M> = Box::into_raw(whole).cast();
        let mut dimensions = self.dimensions;
        let shape = dimensions.as_mut_ptr();
        // (Within the vector, or at its end.)
        let strides = shape.wrapping_add(dimensions.len() / 2);
        let tensor = DLTensor {
            data: self.data,
            device: self.device,
            ndim: self.ndim,
            dtype: self.dtype,
            shape,
            strides,
            byte_offset: 0,
        };
        // SAFETY: the allocation is that of a `Whole<M>`, and nothing else refers to it.
        unsafe {
            whole.write(Whole {
                managed: managed(whole.cast(), tensor),
                _dimensions: dimensions,
                owner: self.owner,
            });
        }
        // SAFETY: a box is never null.
        unsafe { NonNull::new_unchecked(whole.cast()) }
    }
}

impl fmt::Debug for Exported {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Exported")
            .field("dtype", &format_args!("{}", self.dtype))
            .field("shape", &&self.dimensions[..self.dimensions.len() / 2])
            .field("device", &format_args!("{}", self.device))
            .field("is_read_only", &self.is_read_only())
            .finish()
    }
}

/// What is allocated for an export.
#[repr(C)]
struct Whole<M> {
    managed: M,
    /// What `shape` and `strides` refer to.
    _dimensions: Vec<i64>,
    owner: Box<dyn Any + Send>,
}

/// The deleter. It runs on any thread, and calls no driver. (What it drops: see `Exported`.)
///
/// # Safety
///
/// `managed` must come from `Exported::boxed`, and not be used any more; or be null.
unsafe extern "C" fn delete<M>(managed: *mut M) {
    if managed.is_null() {
        return;
    }
    // SAFETY: the caller's contract. It is the allocation's beginning (`repr(C)`).
    let whole = unsafe { Box::from_raw(managed.cast::<Whole<M>>()) };
    let Whole { owner, .. } = *whole;
    // A panic must not go through another library's frames.
    if let Err(payload) = std::panic::catch_unwind(AssertUnwindSafe(|| drop(owner))) {
        let message = panic_message(payload);
        log::error!("the owner of an exported tensor panicked when it was dropped: {message}");
    }
}

/// A device as DLPack names it.
pub(super) fn place_of(device: &Device) -> DLDevice {
    match &device.inner.driver {
        Driver::Cpu(_) => DLDevice::CPU,
        #[cfg(feature = "cuda")]
        Driver::Cuda(driver) => DLDevice::cuda(driver.ordinal() as i32),
    }
}
