//! Tensors of other libraries that came in.

use std::fmt;
use std::ptr::NonNull;

use super::{DLDataType, DLDevice, DLManagedTensor, DLManagedTensorVersioned, DLTensor};
use crate::device::{Device, DeviceTensor, Stream};
use crate::error::{Error, Result};
use crate::sync::Arc;
use crate::tensor::{Element, Shape, Storage, Tensor};

/// A tensor of another library, which lets go of it when it is dropped: by its deleter, called once.
///
/// # Examples
///
/// ```
/// use pinfeed::Tensor;
/// use pinfeed::interop::dlpack::{DLDevice, Exported, Imported};
///
/// let theirs = Exported::host(Tensor::from(vec![1i32, 2, 3]))?.into_versioned();
/// // SAFETY: it is the struct of an exporter, which nobody else has.
/// let imported = unsafe { Imported::from_versioned(theirs) }?;
/// assert_eq!((imported.device(), imported.shape()), (DLDevice::CPU, &[3][..]));
/// let error = imported.into_host::<f32>().unwrap_err(); // its deleter was called
/// assert!(error.to_string().contains("it has elements of i32, and f32 was asked for"));
/// # Ok::<(), pinfeed::Error>(())
/// ```
pub struct Imported {
    /// The address of the first element.
    data: *mut u8,
    device: DLDevice,
    dtype: DLDataType,
    shape: Vec<usize>,
    flags: u64,
    managed: Managed,
}

// SAFETY: it only reads memory that nobody writes, and its deleter may be called on any thread (`from_versioned`).
unsafe impl Send for Imported {}
// SAFETY: as above.
unsafe impl Sync for Imported {}

impl Imported {
    /// Takes a tensor of another library, in the form of DLPack 1.x. (In Python: of a capsule `dltensor_versioned`, which is renamed to
    /// `used_dltensor_versioned`.)
    ///
    /// # Errors
    ///
    /// [`Error::InvalidOption`], which says why, if it is of another major version, not dense and row-major, or not sound: null, lengths that are
    /// negative or too large, elements of several numbers. Its deleter was called then.
    ///
    /// # Safety
    ///
    /// `managed` must be null, or a tensor that its exporter made, which the caller owns and uses no more. If it is host memory, nobody may
    /// write its elements while what is made of it lives. Its deleter may be called on any thread. (NumPy's, PyTorch's and JAX's may. Those of
    /// Python's libraries wait for the interpreter: hold no lock that a thread of the interpreter's waits for where you drop the last holder.)
    pub unsafe fn from_versioned(managed: *mut DLManagedTensorVersioned) -> Result<Imported> {
        let Some(pointer) = NonNull::new(managed) else {
            return Err(refused("it is null"));
        };
        let managed = Managed::Versioned(pointer);
        // SAFETY: the version is there in every version of the struct.
        let version = unsafe { (*pointer.as_ptr()).version };
        if version.major != 1 {
            return Err(refused(format!(
                "it is of DLPack {}.{}, and this library knows 1.x: ask its exporter for version 1 (max_version=(1, 0))",
                version.major, version.minor
            )));
        }
        // SAFETY: the caller's contract, for this version. It is read as a whole, for the deleter may free it before `new` returns.
        let (tensor, flags) = unsafe {
            let tensor = (&raw const (*pointer.as_ptr()).dl_tensor).read();
            (tensor, (*pointer.as_ptr()).flags)
        };
        // SAFETY: as above.
        unsafe { Imported::new(tensor, flags, managed) }
    }

    /// Takes a tensor of another library, in the form of the time before DLPack 1.0. (In Python: of a capsule `dltensor`, which is renamed to
    /// `used_dltensor`.)
    ///
    /// # Errors
    ///
    /// As [`from_versioned`](Imported::from_versioned).
    ///
    /// # Safety
    ///
    /// As [`from_versioned`](Imported::from_versioned).
    pub unsafe fn from_unversioned(managed: *mut DLManagedTensor) -> Result<Imported> {
        let Some(pointer) = NonNull::new(managed) else {
            return Err(refused("it is null"));
        };
        let managed = Managed::Unversioned(pointer);
        // SAFETY: the caller's contract. It is read as a whole, as above.
        let tensor = unsafe { (&raw const (*pointer.as_ptr()).dl_tensor).read() };
        // SAFETY: as above.
        unsafe { Imported::new(tensor, 0, managed) }
    }

    /// # Safety
    ///
    /// The tensor must be that of `managed`, and as its exporter made it.
    unsafe fn new(tensor: DLTensor, flags: u64, managed: Managed) -> Result<Imported> {
        let ndim = usize::try_from(tensor.ndim)
            .map_err(|_| refused(format!("it has {} dimensions", tensor.ndim)))?;
        if ndim > 0 && tensor.shape.is_null() {
            return Err(refused("it has no lengths"));
        }
        let lengths = match ndim {
            0 => &[],
            // SAFETY: there are as many, by the caller's contract.
            _ => unsafe { std::slice::from_raw_parts(tensor.shape.cast_const(), ndim) },
        };
        let shape: Vec<usize> = lengths
            .iter()
            .map(|&length| usize::try_from(length))
            .collect::<Result<_, _>>()
            .map_err(|_| refused(format!("its shape is {lengths:?}")))?;
        let dtype = tensor.dtype;
        let (1, Some(element_bytes)) = (dtype.lanes, dtype.size_bytes()) else {
            return Err(refused(format!(
                "its elements are {dtype}, and tensors hold single numbers of whole bytes"
            )));
        };
        let elements = Shape::elements(&shape);
        let bytes = elements.and_then(|elements| elements.checked_mul(element_bytes));
        let Some(bytes) = bytes.filter(|bytes| isize::try_from(*bytes).is_ok()) else {
            return Err(refused(format!(
                "{shape:?} of {dtype} is larger than memory can be"
            )));
        };
        if bytes > 0 && ndim > 0 && !tensor.strides.is_null() {
            // SAFETY: as the lengths.
            let strides = unsafe { std::slice::from_raw_parts(tensor.strides.cast_const(), ndim) };
            if !is_dense(&shape, strides) {
                return Err(refused(format!(
                    "it is not dense and row-major: its shape is {shape:?}, and its strides are {strides:?}. Make it contiguous in its own \
                     library (numpy.ascontiguousarray, Tensor.contiguous)"
                )));
            }
        }
        if bytes > 0 && tensor.data.is_null() {
            return Err(refused("its memory is at address 0"));
        }
        let offset = usize::try_from(tensor.byte_offset).ok();
        let offset = offset.filter(|offset| {
            let end = offset.checked_add(bytes);
            end.is_some_and(|end| tensor.data.addr().checked_add(end).is_some())
        });
        let Some(offset) = offset else {
            return Err(refused(format!(
                "it begins {} bytes behind {:?}, where no memory is",
                tensor.byte_offset, tensor.data
            )));
        };
        Ok(Imported {
            data: tensor.data.cast::<u8>().wrapping_add(offset),
            device: tensor.device,
            dtype,
            shape,
            flags,
            managed,
        })
    }

    /// Which memory it is in.
    pub fn device(&self) -> DLDevice {
        self.device
    }

    /// Its element type.
    pub fn dtype(&self) -> DLDataType {
        self.dtype
    }

    /// The lengths of its dimensions, outermost first.
    pub fn shape(&self) -> &[usize] {
        &self.shape
    }

    /// Whether its exporter flagged it as read-only. (What becomes of it here is never written.)
    pub fn is_read_only(&self) -> bool {
        self.flags & DLManagedTensorVersioned::READ_ONLY != 0
    }

    /// A host tensor, where it lies. It can be read but never written, as one over an owner of the program's
    /// ([`Tensor::from_owner`]); truth values are `u8`. Its deleter is called when the last view, and the last copy in flight, is done.
    ///
    /// Memory that CUDA page-locked ([`DLDevice::CUDA_HOST`]) counts as such: copies from it are asynchronous, and hold it.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidOption`] if it is on a device, its elements are of another type, or it is not aligned for them. Its deleter was called
    /// then.
    pub fn into_host<T: Element>(self) -> Result<Tensor<T>> {
        if ![DLDevice::CPU, DLDevice::CUDA_HOST].contains(&self.device) {
            return Err(refused(format!(
                "it is in {}, and no host memory: copy it (Imported::to_device), or export it on the host",
                self.device
            )));
        }
        self.check_type::<T>()?;
        let past = self.data.addr() % align_of::<T>();
        let shape = Shape::from(&self.shape[..]);
        let Some(pointer) = NonNull::new(self.data.cast::<T>()).filter(|_| !shape.contains(&0))
        else {
            return Ok(Tensor::zeros(&shape)); // no elements: any address will do
        };
        if past != 0 {
            return Err(refused(format!(
                "it begins at an address {past} past a multiple of {}, and must begin at one: copy it in its own library",
                align_of::<T>()
            )));
        }
        let storage = Foreign {
            is_page_locked: self.device == DLDevice::CUDA_HOST,
            _managed: self.managed,
        };
        // SAFETY: as many elements are there, aligned, in host memory that `managed` keeps and nobody writes (`from_versioned`). They are
        // initialized, and may have any bits (*an Element accepts all bit patterns*).
        Ok(unsafe { Tensor::from_raw(pointer, shape, Arc::new(storage)) })
    }

    /// Copies a tensor in this device's memory into a tensor of the device's pool. (On the CPU device: one in host memory.)
    ///
    /// # Synchronization
    ///
    /// The copy comes after `stream`'s work so far. Blocks until it is done, because only then may the deleter be called, which is told no
    /// stream. It is called before this returns, on this thread.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidOption`] if it is in other memory, its elements are of another type, or the stream is being captured into a graph;
    /// [`Error::WrongDevice`] if the stream is of another device; [`Error::DeviceBudget`] if the pool has no room; [`Error::Device`] if the
    /// device failed. Its deleter was called then.
    ///
    /// # Safety
    ///
    /// In the stream's order, nobody may write the elements until the copy is done. (What an exporter has to do with the stream that a consumer
    /// names.)
    pub unsafe fn to_device<T: Element>(
        self,
        device: &Device,
        stream: &Stream,
    ) -> Result<DeviceTensor<T>> {
        let place = super::export::place_of(device);
        if self.device != place {
            return Err(refused(format!(
                "it is in {}, and {} was asked for: copy it there in its own library",
                self.device, place
            )));
        }
        self.check_type::<T>()?;
        let shape = Shape::from(&self.shape[..]);
        // SAFETY: as many elements are there, on this device, which `self` keeps beyond the call; the order is the caller's contract.
        unsafe { DeviceTensor::copied_from(device, self.data as u64, shape, stream) }
    }

    fn check_type<T: Element>(&self) -> Result<()> {
        let wanted = DLDataType::from(T::DTYPE);
        let is_bool = self.dtype == DLDataType::BOOL && wanted == DLDataType::from(u8::DTYPE);
        match self.dtype == wanted || is_bool {
            true => Ok(()),
            false => Err(refused(format!(
                "it has elements of {}, and {wanted} was asked for",
                self.dtype
            ))),
        }
    }
}

impl fmt::Debug for Imported {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Imported")
            .field("dtype", &format_args!("{}", self.dtype))
            .field("shape", &self.shape)
            .field("device", &format_args!("{}", self.device))
            .field("is_read_only", &self.is_read_only())
            .finish_non_exhaustive()
    }
}

fn refused(reason: impl fmt::Display) -> Error {
    Error::option("Imported", format!("a DLPack tensor is refused: {reason}"))
}

/// Whether each element lies behind the one before. (Along a dimension of length 1, there is no neighbour.)
fn is_dense(shape: &[usize], strides: &[i64]) -> bool {
    let mut expected = 1;
    let mut dimensions = shape.iter().zip(strides).rev();
    dimensions.all(|(&length, &stride)| {
        let is_right = length == 1 || stride == expected;
        expected *= length as i64; // (the size was checked)
        is_right
    })
}

/// What calls the deleter when it is dropped, once.
enum Managed {
    Versioned(NonNull<DLManagedTensorVersioned>),
    Unversioned(NonNull<DLManagedTensor>),
}

// SAFETY: the struct is not touched but by its deleter, which may be called on any thread (`Imported::from_versioned`).
unsafe impl Send for Managed {}
// SAFETY: through a reference, there is nothing to do with it.
unsafe impl Sync for Managed {}

impl Drop for Managed {
    fn drop(&mut self) {
        match *self {
            Managed::Versioned(managed) => {
                // SAFETY: it is owned (`from_versioned`), and its deleter is there in every version of the struct.
                let deleter = unsafe { (*managed.as_ptr()).deleter };
                if let Some(deleter) = deleter {
                    // SAFETY: the struct is not used any more, and nothing else calls it.
                    unsafe { deleter(managed.as_ptr()) };
                }
            }
            Managed::Unversioned(managed) => {
                // SAFETY: as above.
                let deleter = unsafe { (*managed.as_ptr()).deleter };
                if let Some(deleter) = deleter {
                    // SAFETY: as above.
                    unsafe { deleter(managed.as_ptr()) };
                }
            }
        }
    }
}

/// Host memory of another library. It is only read.
struct Foreign {
    is_page_locked: bool,
    _managed: Managed,
}

impl Storage for Foreign {
    fn is_pinned(&self) -> bool {
        self.is_page_locked
    }

    fn is_read_only(&self) -> bool {
        true
    }

    fn let_go(self: Arc<Self>, last: &mut Vec<Arc<dyn Storage>>) {
        last.push(self); // its deleter may do anything
    }
}
