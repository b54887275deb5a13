//! Tensors for NumPy, CuPy, JAX and others, which take them where they lie, by DLPack: `pinfeed.Tensor`.
//!
//! ```text
//! h2d:      copy -e1
//! handed:   wait e1                                    the stream of ours that stands between
//! consumer: wait for handed . step                     each __dlpack__(stream=consumer)
//! deleter:  any thread: the last one leaves the block adrift, without a call of the driver
//! next():   sweep: an event behind all work of all streams; the block is free behind it
//! ```
//!
//! A capsule holds what its memory needs, and no Python object: whoever consumed it may let go after the loader, the tensor and the
//! interpreter are gone.

use std::ffi::{CStr, c_int, c_void};
use std::sync::{Arc, Mutex};

use half::{bf16, f16};
use pinfeed::device::{Adrift, CaptureGuard};
use pinfeed::interop::dlpack::{
    DLDataType, DLDevice, DLManagedTensor, DLManagedTensorVersioned, Exported, Imported,
    consumer_stream,
};
use pinfeed::ops::Normalize;
use pinfeed::tensor::{Element, Float};
use pinfeed::{Device, DeviceTensor, Error, Stream, Tensor};
use pyo3::exceptions::{PyBufferError, PyMemoryError, PyTypeError};
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyDict, PyTuple};

use crate::errors::{OrRaise, exception, say};
use crate::kind::{AnyAdrift, AnyDeviceTensor, HostTensor, Kind, each};
use crate::outgoing::{Output, View, object_of};
use crate::picture::PixelType;
use crate::thread::lock;
use crate::tree::{DeviceLeaf, Tree};

/// A device whose memory goes out as it is. There is one for each device, for as long as the process runs.
pub(crate) struct Ring {
    device: Device,
    ordinal: usize,
    /// Behind the copies of all batches that were handed over. Consumers' streams wait for it.
    handed: Stream,
}

impl Ring {
    pub(crate) fn of(py: Python<'_>, device: &Device, ordinal: usize) -> PyResult<Arc<Ring>> {
        static RINGS: Mutex<Vec<Arc<Ring>>> = Mutex::new(Vec::new());
        let known = |rings: &[Arc<Ring>]| {
            let ring = rings.iter().find(|ring| ring.ordinal == ordinal);
            ring.map(Arc::clone)
        };
        if let Some(ring) = known(&lock(&RINGS)) {
            return Ok(ring);
        }
        let handed = py.detach(|| device.stream()).or_raise(py)?;
        let mut rings = lock(&RINGS);
        if let Some(ring) = known(&rings) {
            return Ok(ring); // another thread was faster
        }
        let ring = Arc::new(Ring {
            device: device.clone(),
            ordinal,
            handed,
        });
        rings.push(Arc::clone(&ring));
        Ok(ring)
    }

    fn place(&self) -> DLDevice {
        DLDevice::cuda(self.ordinal as i32)
    }

    /// A batch, as the objects that `output` names.
    pub(crate) fn object<'py>(
        self: &Arc<Ring>,
        py: Python<'py>,
        tree: Tree<DeviceLeaf>,
        output: Output,
    ) -> PyResult<Bound<'py, PyAny>> {
        object_of(py, tree, &mut |leaf| {
            let lent = py.detach(|| self.lend(leaf));
            let (adrift, kind) = lent.or_raise(py)?;
            let shape = each!(&adrift, AnyAdrift, adrift => adrift.shape().to_vec());
            let memory = Memory::Device {
                adrift,
                ring: Arc::clone(self),
            };
            as_wanted(PyTensor::new(py, memory, kind, shape)?, output)
        })
    }

    /// Makes the stream between wait for the tensor, or for what the device makes of it.
    fn lend(&self, leaf: DeviceLeaf) -> pinfeed::Result<(AnyAdrift, Kind)> {
        let (tensor, kind) = match (leaf.finish, leaf.tensor) {
            (Some(finish), AnyDeviceTensor::U8(pictures)) => {
                let normalize = finish.on_device();
                match finish.pixel_type {
                    PixelType::F32 => (normalized::<f32>(pictures, &normalize)?, Kind::F32),
                    PixelType::F16 => (normalized::<f16>(pictures, &normalize)?, Kind::F16),
                    PixelType::Bf16 => (normalized::<bf16>(pictures, &normalize)?, Kind::BF16),
                }
            }
            (_, tensor) => (tensor, leaf.kind),
        };
        let adrift = each!(tensor, AnyDeviceTensor, tensor => {
            Arc::new(tensor.lend_mut(&self.handed)?.end_everywhere()).into()
        });
        Ok((adrift, kind))
    }

    /// Lets memory that was let go of be used again, behind all work of the context.
    pub(crate) fn sweep(&self, py: Python<'_>) -> PyResult<usize> {
        py.detach(|| self.device.sweep()).or_raise(py)
    }

    pub(crate) fn capture_guard(&self, py: Python<'_>) -> PyCaptureGuard {
        PyCaptureGuard(Mutex::new(Some(py.detach(|| self.device.capture_guard()))))
    }
}

fn normalized<F: Float>(
    pictures: DeviceTensor<u8>,
    normalize: &Normalize,
) -> pinfeed::Result<AnyDeviceTensor>
where
    AnyDeviceTensor: From<DeviceTensor<F>>,
{
    Ok(pictures.normalize::<F>(normalize)?.into())
}

/// While it lives, no event of the whole context is recorded.
#[pyclass(frozen, module = "pinfeed._pinfeed", name = "_CaptureGuard")]
pub(crate) struct PyCaptureGuard(Mutex<Option<CaptureGuard>>);

impl PyCaptureGuard {
    /// Of a loader whose memory does not leave.
    pub(crate) fn of_nothing() -> PyCaptureGuard {
        PyCaptureGuard(Mutex::new(None))
    }
}

#[pymethods]
impl PyCaptureGuard {
    fn __enter__(slf: PyRef<'_, Self>) -> PyRef<'_, Self> {
        slf
    }

    #[pyo3(signature = (*_exception))]
    fn __exit__(&self, _exception: &Bound<'_, PyTuple>) {
        lock(&self.0).take();
    }
}

/// Where a tensor's elements are.
enum Memory {
    Host(Arc<HostMemory>),
    Device { adrift: AnyAdrift, ring: Arc<Ring> },
}

/// Host memory that capsules and buffers show.
struct HostMemory {
    /// The only holder of the elements, unless they are read-only.
    keeper: HostTensor,
    address: *mut u8,
    is_read_only: bool,
}

// SAFETY: the address is that of the keeper's elements. This library only reads them, in a call that asks for a copy; who consumed a capsule
// is responsible for threads, as with any array.
unsafe impl Send for HostMemory {}
// SAFETY: as above.
unsafe impl Sync for HostMemory {}

/// A tensor of a batch, for any library: NumPy, CuPy, JAX and PyTorch take it where it lies.
#[pyclass(frozen, weakref, module = "pinfeed", name = "Tensor")]
pub(crate) struct PyTensor {
    memory: Memory,
    kind: Kind,
    shape: Vec<usize>,
    /// As a buffer has them.
    view: View,
}

/// A tensor on the host as the objects that `output` names.
pub(crate) fn host_tensor<'py>(
    py: Python<'py>,
    mut tensor: HostTensor,
    kind: Kind,
    output: Output,
) -> PyResult<Bound<'py, PyAny>> {
    let shape = tensor.shape().to_vec();
    let address = tensor.make_own();
    if address.is_null() {
        return Err(PyMemoryError::new_err(
            "no memory for a copy of a batch's tensor",
        ));
    }
    let memory = Memory::Host(Arc::new(HostMemory {
        keeper: tensor,
        address,
        is_read_only: false,
    }));
    as_wanted(PyTensor::new(py, memory, kind, shape)?, output)
}

/// A tensor over memory that must not be written, such as a mapped file.
pub(crate) fn read_only_tensor<'py>(
    py: Python<'py>,
    keeper: HostTensor,
) -> PyResult<Bound<'py, PyTensor>> {
    let (kind, shape) = (keeper.kind(), keeper.shape().to_vec());
    let memory = Memory::Host(Arc::new(HostMemory {
        address: keeper.address().cast_mut(),
        keeper,
        is_read_only: true,
    }));
    PyTensor::new(py, memory, kind, shape)
}

/// What the named library makes of a tensor.
fn as_wanted(tensor: Bound<'_, PyTensor>, output: Output) -> PyResult<Bound<'_, PyAny>> {
    let py = tensor.py();
    let from = match output {
        Output::Cupy => {
            static FROM: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
            FROM.import(py, "cupy", "from_dlpack")?
        }
        Output::Jax => {
            static FROM: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
            FROM.import(py, "jax.dlpack", "from_dlpack")?
        }
        Output::Torch | Output::Numpy | Output::Dlpack => return Ok(tensor.into_any()),
    };
    from.call1((tensor,))
}

fn refused(reason: impl Into<String>) -> PyErr {
    PyBufferError::new_err(reason.into())
}

/// An error of the library's, where a consumer asked.
fn raised(py: Python<'_>, error: &Error) -> PyErr {
    match error {
        Error::InvalidOption { .. } | Error::WrongDevice { .. } => {
            refused(format!("pinfeed: {error:#}"))
        }
        _ => exception(py, error),
    }
}

impl PyTensor {
    fn new(
        py: Python<'_>,
        memory: Memory,
        kind: Kind,
        shape: Vec<usize>,
    ) -> PyResult<Bound<'_, PyTensor>> {
        let view = View::new(&shape, kind);
        Bound::new(
            py,
            PyTensor {
                memory,
                kind,
                shape,
                view,
            },
        )
    }

    fn place(&self) -> DLDevice {
        match &self.memory {
            Memory::Host(_) => DLDevice::CPU,
            Memory::Device { ring, .. } => ring.place(),
        }
    }

    /// The elements where they are, for one more consumer.
    fn shared(&self) -> pinfeed::Result<Exported> {
        match &self.memory {
            Memory::Host(host) => {
                let flags = match host.is_read_only {
                    true => DLManagedTensorVersioned::READ_ONLY,
                    false => 0,
                };
                // SAFETY: the keeper has as many elements there, in ordinary memory (`make_own`) or that of an array that was read. It holds them alone,
                // or they are flagged. It is dropped without a call of Python or a driver: it is a batch's, from a loader that has no device.
                unsafe {
                    Exported::from_raw_parts(
                        host.address.cast(),
                        DLDevice::CPU,
                        self.kind.data_type(),
                        &self.shape,
                        flags,
                        Box::new(Arc::clone(host)),
                    )
                }
            }
            Memory::Device { adrift, .. } => {
                let exported =
                    each!(adrift, AnyAdrift, adrift => Exported::adrift(Arc::clone(adrift)))?;
                exported.seen_as(self.kind.data_type())
            }
        }
    }

    /// A copy of the elements in host memory. (It may wait: the caller is detached.)
    fn copied_to_host(&self) -> pinfeed::Result<Exported> {
        let exported = match &self.memory {
            Memory::Host(host) => {
                each!(&host.keeper, HostTensor, tensor => Exported::host_copy(tensor))
            }
            Memory::Device { adrift, ring } => {
                each!(adrift, AnyAdrift, adrift => downloaded(adrift, ring))
            }
        }?;
        exported.seen_as(self.kind.data_type())
    }

    /// A copy of the elements in memory of the ring's. (It waits: the caller is detached.)
    fn copied_on_device(&self, adrift: &AnyAdrift, ring: &Ring) -> pinfeed::Result<Exported> {
        let exported = each!(adrift, AnyAdrift, adrift => copied(adrift, ring))?;
        exported.seen_as(self.kind.data_type())
    }
}

fn downloaded<T: Element>(adrift: &Adrift<T>, ring: &Ring) -> pinfeed::Result<Exported> {
    // SAFETY: as many elements are there, behind what `handed` waited for; they stay while `adrift` is borrowed, and the call waits for the copy.
    // (A consumer that writes them meanwhile, on a stream of its own, gets a mixture of both: as with any array of its.)
    let there = unsafe {
        ring.device
            .download_raw::<T>(adrift.address(), adrift.shape(), &ring.handed, false)
    }?;
    let tensor: Tensor<T> = there.wait()?;
    Exported::host_copy(&tensor)
}

fn copied<T: Element>(adrift: &Arc<Adrift<T>>, ring: &Ring) -> pinfeed::Result<Exported> {
    let shared = Exported::adrift(Arc::clone(adrift))?.into_versioned();
    // SAFETY: it was just exported, and is used once. (Its deleter is ours.)
    let shared = unsafe { Imported::from_versioned(shared) }?;
    // SAFETY: what wrote the elements is what `handed` waited for. (As above of a consumer that writes.)
    let copy = unsafe { shared.to_device::<T>(&ring.device, &ring.handed) }?;
    Ok(Exported::device(copy, &ring.handed)?.copied())
}

#[pymethods]
impl PyTensor {
    /// The lengths of the dimensions.
    #[getter]
    fn shape<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyTuple>> {
        PyTuple::new(py, &self.shape)
    }

    /// The name of the element type, as NumPy's and torch's.
    #[getter]
    fn dtype(&self) -> &'static str {
        self.kind.name()
    }

    /// ``"cpu"``, or ``"cuda:0"``.
    #[getter]
    fn device(&self) -> String {
        match &self.memory {
            Memory::Host(_) => "cpu".to_owned(),
            Memory::Device { ring, .. } => format!("cuda:{}", ring.ordinal),
        }
    }

    /// The size of all elements in bytes.
    #[getter]
    fn nbytes(&self) -> usize {
        self.view.bytes()
    }

    /// A NumPy array: over the same memory, or from a GPU a copy, which is waited for.
    fn numpy<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, PyAny>> {
        let py = slf.py();
        let numpy = py.import("numpy")?;
        if slf.get().kind == Kind::BF16 {
            return Err(say(
                py,
                "Error",
                "NumPy has no bfloat16: take dtype=\"float32\" or \"float16\", or another library",
            ));
        }
        let on_host = match slf.get().memory {
            Memory::Host(_) => slf.clone().into_any(),
            Memory::Device { .. } => {
                let tensor = slf.get();
                let exported = py.detach(|| tensor.copied_to_host());
                let exported = exported.map_err(|error| raised(py, &error))?;
                Bound::new(py, OnHost(Mutex::new(Some(exported))))?.into_any()
            }
        };
        numpy.call_method1("from_dlpack", (on_host,))
    }

    fn __len__(&self) -> PyResult<usize> {
        match self.shape.first() {
            Some(length) => Ok(*length),
            None => Err(PyTypeError::new_err(
                "a tensor without dimensions has no length",
            )),
        }
    }

    fn __repr__(&self) -> String {
        let shape: Vec<String> = self.shape.iter().map(usize::to_string).collect();
        format!(
            "<pinfeed.Tensor of {} [{}] on {}>",
            self.kind.name(),
            shape.join(", "),
            self.device()
        )
    }

    /// ``numpy.asarray(tensor)``.
    #[pyo3(signature = (dtype=None, copy=None))]
    fn __array__<'py>(
        slf: &Bound<'py, Self>,
        dtype: Option<Bound<'py, PyAny>>,
        copy: Option<bool>,
    ) -> PyResult<Bound<'py, PyAny>> {
        if let Memory::Device { .. } = slf.get().memory {
            return Err(PyTypeError::new_err(
                "this tensor is on a GPU: tensor.numpy() copies it to the host",
            ));
        }
        let array = PyTensor::numpy(slf)?;
        let array = match dtype {
            Some(dtype) => array.call_method1("astype", (dtype,))?,
            None => array,
        };
        match copy {
            Some(true) => array.call_method0("copy"),
            _ => Ok(array),
        }
    }

    /// Where it is, for a consumer: ``(1, 0)`` is the host, ``(2, n)`` the CUDA device ``n``.
    fn __dlpack_device__(&self) -> (i32, i32) {
        let place = self.place();
        (place.device_type, place.device_id)
    }

    /// A capsule for a consumer, as Python's array API standard has it. Each call makes another one over the same memory.
    ///
    /// ``stream``: the consumer's stream waits until the batch is there. ``None`` or 1 is CUDA's legacy default stream, 2 the thread's,
    /// -1 waits for nothing. ``max_version``: ``(1, 0)`` or later gets a capsule ``dltensor_versioned``, others ``dltensor``, which is a copy
    /// where memory must not be written. ``dl_device``: ``(1, 0)`` copies from a GPU to the host. ``copy``: ``True`` copies, ``False`` raises
    /// ``BufferError`` where a copy is needed.
    #[pyo3(signature = (*, stream=None, max_version=None, dl_device=None, copy=None))]
    pub(crate) fn __dlpack__<'py>(
        &self,
        py: Python<'py>,
        stream: Option<i64>,
        max_version: Option<(i64, i64)>,
        dl_device: Option<(i32, i32)>,
        copy: Option<bool>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let is_versioned = max_version.is_some_and(|(major, _)| major >= 1);
        let own = self.place();
        let wanted = dl_device.map_or(own, |(device_type, device_id)| DLDevice {
            device_type,
            device_id,
        });
        let exported = match &self.memory {
            Memory::Host(_) if wanted != own => {
                return Err(refused(format!(
                    "this tensor is in host memory, and was asked for in {wanted}: DataLoader(device=\"cuda\") sends batches there"
                )));
            }
            Memory::Host(host) => {
                if !matches!(stream, None | Some(-1)) {
                    return Err(refused(
                        "this tensor is in host memory, which has no streams: stream is None",
                    ));
                }
                let needs_copy = host.is_read_only && !is_versioned;
                match (copy, needs_copy) {
                    (Some(false), true) => {
                        return Err(refused(
                            "this memory must not be written, which a capsule \"dltensor\" cannot say: ask for max_version=(1, 0), or let it be copied",
                        ));
                    }
                    (Some(true), _) | (_, true) => py.detach(|| self.copied_to_host()),
                    _ => self.shared(),
                }
            }
            Memory::Device { .. } if wanted == DLDevice::CPU => {
                if copy == Some(false) {
                    return Err(refused(format!(
                        "this tensor is in {own}, and the host gets it by a copy only"
                    )));
                }
                py.detach(|| self.copied_to_host())
            }
            Memory::Device { .. } if wanted != own => {
                return Err(refused(format!(
                    "this tensor is in {own}, and was asked for in {wanted}: let the consumer copy it"
                )));
            }
            Memory::Device { adrift, ring } => py.detach(|| {
                let exported = match copy {
                    Some(true) => self.copied_on_device(adrift, ring),
                    _ => self.shared(),
                }?;
                // SAFETY: it is the consumer's own stream, which it does not end before it has consumed the capsule, by the standard; it is used
                // in this call only.
                if let Some(consumer) = unsafe { consumer_stream(&ring.device, stream) }? {
                    consumer.wait_for(&ring.handed)?;
                }
                Ok(exported)
            }),
        };
        let exported = exported.map_err(|error| raised(py, &error))?;
        capsule(py, exported, is_versioned)
    }

    /// # Safety
    ///
    /// CPython calls it, with a view to fill.
    unsafe fn __getbuffer__(
        slf: Bound<'_, Self>,
        view: *mut ffi::Py_buffer,
        flags: c_int,
    ) -> PyResult<()> {
        let tensor = slf.get();
        let Memory::Host(host) = &tensor.memory else {
            return Err(refused(
                "this tensor is on a GPU: tensor.numpy() copies it to the host",
            ));
        };
        if tensor.kind == Kind::BF16 {
            return Err(refused(
                "Python's buffers have no bfloat16: take it by DLPack, or dtype=\"float32\"",
            ));
        }
        let (address, is_read_only) = (host.address, host.is_read_only);
        let shown: *const View = &raw const tensor.view;
        // SAFETY: CPython's view; what it shows is in the object, which is frozen, and which the view keeps from now on.
        unsafe { (*shown).show(view, flags, address, is_read_only, slf.into_any()) }
    }

    /// # Safety
    ///
    /// CPython calls it, with a view that `__getbuffer__` filled.
    unsafe fn __releasebuffer__(&self, _view: *mut ffi::Py_buffer) {}
}

/// Host memory for one consumer, as `from_dlpack` wants it.
#[pyclass(frozen, module = "pinfeed._pinfeed", name = "_OnHost")]
struct OnHost(Mutex<Option<Exported>>);

#[pymethods]
impl OnHost {
    fn __dlpack_device__(&self) -> (i32, i32) {
        (1, 0)
    }

    /// (Versions of NumPy differ in what they ask for.)
    #[pyo3(signature = (*, max_version=None, **_options))]
    fn __dlpack__<'py>(
        &self,
        py: Python<'py>,
        max_version: Option<(i64, i64)>,
        _options: Option<&Bound<'py, PyDict>>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let exported = lock(&self.0).take();
        let exported = exported.ok_or_else(|| refused("it was consumed"))?;
        capsule(
            py,
            exported,
            max_version.is_some_and(|(major, _)| major >= 1),
        )
    }
}

const VERSIONED: &CStr = c"dltensor_versioned";
const UNVERSIONED: &CStr = c"dltensor";

/// A capsule, whose consumer renames it. What no consumer took is let go with the capsule.
fn capsule(py: Python<'_>, exported: Exported, is_versioned: bool) -> PyResult<Bound<'_, PyAny>> {
    type Destructor = unsafe extern "C" fn(*mut ffi::PyObject);
    let (managed, name, destructor): (*mut c_void, _, Destructor) = match is_versioned {
        true => (exported.into_versioned().cast(), VERSIONED, forgotten),
        false => {
            let managed = exported.into_unversioned();
            let managed = managed.map_err(|error| raised(py, &error))?;
            (managed.cast(), UNVERSIONED, forgotten_unversioned)
        }
    };
    // SAFETY: this thread is attached; the name is static, and the pointer is not null.
    let capsule = unsafe { ffi::PyCapsule_New(managed, name.as_ptr(), Some(destructor)) };
    // SAFETY: it is a new reference, or null with an exception.
    let capsule = unsafe { Bound::from_owned_ptr_or_err(py, capsule) };
    if capsule.is_err() {
        // SAFETY: nobody has it but this function.
        unsafe {
            match is_versioned {
                true => delete(managed),
                false => delete_unversioned(managed),
            }
        }
    }
    capsule
}

/// # Safety
///
/// It must be a `DLManagedTensorVersioned` that nobody uses any more.
unsafe fn delete(managed: *mut c_void) {
    let managed: *mut DLManagedTensorVersioned = managed.cast();
    // SAFETY: the caller's contract.
    if let Some(deleter) = unsafe { (*managed).deleter } {
        // SAFETY: as above.
        unsafe { deleter(managed) };
    }
}

/// # Safety
///
/// It must be a `DLManagedTensor` that nobody uses any more.
unsafe fn delete_unversioned(managed: *mut c_void) {
    let managed: *mut DLManagedTensor = managed.cast();
    // SAFETY: the caller's contract.
    if let Some(deleter) = unsafe { (*managed).deleter } {
        // SAFETY: as above.
        unsafe { deleter(managed) };
    }
}

/// A capsule goes. If it has its first name yet, nobody consumed it.
///
/// # Safety
///
/// CPython calls it, with a capsule of `capsule`'s.
unsafe extern "C" fn forgotten(capsule: *mut ffi::PyObject) {
    // SAFETY: CPython's capsule, and a thread that is attached. (Neither call raises: the name is compared first.)
    unsafe {
        if ffi::PyCapsule_IsValid(capsule, VERSIONED.as_ptr()) == 1 {
            delete(ffi::PyCapsule_GetPointer(capsule, VERSIONED.as_ptr()));
        }
    }
}

/// # Safety
///
/// As `forgotten`.
unsafe extern "C" fn forgotten_unversioned(capsule: *mut ffi::PyObject) {
    // SAFETY: as above.
    unsafe {
        if ffi::PyCapsule_IsValid(capsule, UNVERSIONED.as_ptr()) == 1 {
            delete_unversioned(ffi::PyCapsule_GetPointer(capsule, UNVERSIONED.as_ptr()));
        }
    }
}

impl Kind {
    fn data_type(self) -> DLDataType {
        use pinfeed::tensor::DType;
        match self {
            Kind::Bool => DLDataType::BOOL,
            Kind::U8 => DType::U8.into(),
            Kind::I8 => DType::I8.into(),
            Kind::I16 => DType::I16.into(),
            Kind::U16 => DType::U16.into(),
            Kind::I32 => DType::I32.into(),
            Kind::U32 => DType::U32.into(),
            Kind::I64 => DType::I64.into(),
            Kind::U64 => DLDataType::U64,
            Kind::F16 => DType::F16.into(),
            Kind::BF16 => DType::BF16.into(),
            Kind::F32 => DType::F32.into(),
            Kind::F64 => DType::F64.into(),
        }
    }
}
