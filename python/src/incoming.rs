//! What Python objects become as samples.

use std::ffi::{CString, c_void};
use std::sync::Arc;

use pinfeed::Tensor;
use pinfeed::tensor::Element;
use pyo3::buffer::PyUntypedBuffer;
use pyo3::exceptions::{PyOverflowError, PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{
    PyBool, PyByteArray, PyBytes, PyDict, PyFloat, PyInt, PyList, PyMapping, PyMemoryView,
    PySequence, PyString, PyTuple, PyType,
};

use crate::kind::{HostTensor, Kind};
use crate::tree::Key;
use crate::value::Value;

/// Memory of a Python object that exports a buffer.
struct Exported {
    address: *const c_void,
    bytes: usize,
    /// It keeps the memory where it is. (Dropped by a thread that is not attached, it is let go when one attaches next.)
    _view: Py<PyMemoryView>,
}

// SAFETY: the bytes are only read, and lie where they are as long as the view lives.
unsafe impl Send for Exported {}
// SAFETY: as above.
unsafe impl Sync for Exported {}

impl AsRef<[u8]> for Exported {
    fn as_ref(&self) -> &[u8] {
        // SAFETY: a contiguous buffer has that many bytes there (`PyBuffer_IsContiguous`), which the view keeps. That they do not change
        // while a batch is made of them is the program's to see to, as with every loader that reads arrays.
        unsafe { std::slice::from_raw_parts(self.address.cast(), self.bytes) }
    }
}

/// The array that a Python object exports as a buffer: the same memory if it is contiguous, or a copy. `kind`: how its bytes are read, if
/// not as its format says.
pub(crate) fn tensor_of_buffer(
    object: &Bound<'_, PyAny>,
    kind: Option<Kind>,
) -> PyResult<(HostTensor, Kind)> {
    let py = object.py();
    let view = PyMemoryView::from(object)?;
    if view
        .getattr(pyo3::intern!(py, "ndim"))?
        .extract::<usize>()?
        == 0
    {
        return scalar_of(&view, kind); // (PyO3's buffers have a shape)
    }
    let buffer = PyUntypedBuffer::get(&view)?;
    let own = Kind::of_format(buffer.format(), buffer.item_size());
    let Some(kind) = kind.or(own) else {
        return Err(no_place(&buffer.format().to_string_lossy()));
    };
    let shape = buffer.shape().to_vec();
    let bytes = buffer.len_bytes();
    if bytes == 0 || !buffer.is_c_contiguous() {
        let copied = copied(py, &view, bytes)?;
        return Ok((tensor(copied, &shape, kind)?, kind));
    }
    let address = buffer.buf_ptr().cast_const();
    if !address.addr().is_multiple_of(kind.item_bytes()) {
        let copied = copied(py, &view, bytes)?;
        return Ok((tensor(copied, &shape, kind)?, kind));
    }
    let exported = Exported {
        address,
        bytes,
        _view: view.unbind(),
    };
    Ok((tensor(exported, &shape, kind)?, kind))
}

fn no_place(format: &str) -> PyErr {
    PyTypeError::new_err(format!(
        "an array of format {format:?} has no place in a batch: bool, int8 to int64, uint8 to uint64, float16, float32 and float64 have, in this \
         machine's byte order. Convert it by `astype`, or give the loader a collate_fn"
    ))
}

/// The number that a buffer without dimensions has.
fn scalar_of(view: &Bound<'_, PyMemoryView>, kind: Option<Kind>) -> PyResult<(HostTensor, Kind)> {
    let py = view.py();
    let format: String = view.getattr(pyo3::intern!(py, "format"))?.extract()?;
    let item_bytes = view.getattr(pyo3::intern!(py, "itemsize"))?.extract()?;
    let own = CString::new(format.as_str()).ok();
    let own = own.and_then(|format| Kind::of_format(&format, item_bytes));
    let Some(kind) = kind.or(own) else {
        return Err(no_place(&format));
    };
    Ok((tensor(copied(py, view, item_bytes)?, &[], kind)?, kind))
}

/// A copy of a buffer's bytes, row-major.
fn copied(py: Python<'_>, view: &Bound<'_, PyMemoryView>, bytes: usize) -> PyResult<Aligned> {
    if bytes == 0 {
        return Ok(Aligned::new(&[]));
    }
    let copy = view.call_method0(pyo3::intern!(py, "tobytes"))?;
    Ok(Aligned::new(copy.cast::<PyBytes>()?.as_bytes()))
}

/// Bytes that begin where any element may.
struct Aligned {
    words: Vec<u64>,
    bytes: usize,
}

impl Aligned {
    fn new(bytes: &[u8]) -> Aligned {
        let words = bytes.chunks(8).map(|chunk| {
            let mut word = [0; 8];
            word[..chunk.len()].copy_from_slice(chunk);
            u64::from_ne_bytes(word)
        });
        Aligned {
            words: words.collect(),
            bytes: bytes.len(),
        }
    }
}

impl AsRef<[u8]> for Aligned {
    fn as_ref(&self) -> &[u8] {
        // SAFETY: the words have at least that many bytes, all initialized.
        unsafe { std::slice::from_raw_parts(self.words.as_ptr().cast(), self.bytes) }
    }
}

fn tensor<O>(owner: O, shape: &[usize], kind: Kind) -> PyResult<HostTensor>
where
    O: AsRef<[u8]> + Send + Sync + 'static,
{
    fn of<T: Element, O>(owner: O, shape: &[usize]) -> PyResult<HostTensor>
    where
        O: AsRef<[u8]> + Send + Sync + 'static,
        HostTensor: From<Tensor<T>>,
    {
        let tensor = Tensor::<T>::from_owner(owner, shape);
        let tensor = tensor.map_err(|error| PyValueError::new_err(error.to_string()))?;
        Ok(tensor.into())
    }
    match kind {
        Kind::Bool | Kind::U8 => of::<u8, O>(owner, shape),
        Kind::I8 => of::<i8, O>(owner, shape),
        Kind::I16 => of::<i16, O>(owner, shape),
        Kind::U16 => of::<u16, O>(owner, shape),
        Kind::I32 => of::<i32, O>(owner, shape),
        Kind::U32 => of::<u32, O>(owner, shape),
        Kind::I64 | Kind::U64 => of::<i64, O>(owner, shape),
        Kind::F16 => of::<half::f16, O>(owner, shape),
        Kind::BF16 => of::<half::bf16, O>(owner, shape),
        Kind::F32 => of::<f32, O>(owner, shape),
        Kind::F64 => of::<f64, O>(owner, shape),
    }
}

/// `torch.Tensor`, if the program has imported torch.
pub(crate) fn torch_tensor_type(py: Python<'_>) -> Option<&'static Py<PyType>> {
    static TYPE: PyOnceLock<Py<PyType>> = PyOnceLock::new();
    if let Some(class) = TYPE.get(py) {
        return Some(class);
    }
    let modules = py.import("sys").ok()?.getattr("modules").ok()?;
    let torch = modules.get_item("torch").ok()?;
    let class = torch.getattr("Tensor").ok()?.cast_into::<PyType>().ok()?;
    let _ = TYPE.set(py, class.unbind());
    TYPE.get(py)
}

pub(crate) fn is_torch_tensor(object: &Bound<'_, PyAny>) -> bool {
    torch_tensor_type(object.py())
        .is_some_and(|class| object.is_instance(class.bind(object.py())).unwrap_or(false))
}

/// The array of a torch tensor on the CPU: the same memory if it is contiguous.
fn tensor_of_torch(object: &Bound<'_, PyAny>) -> PyResult<(HostTensor, Kind)> {
    let py = object.py();
    let device = object.getattr("device")?.getattr("type")?.to_string();
    if device != "cpu" {
        return Err(PyTypeError::new_err(format!(
            "a tensor on {device:?} has no place in a batch: workers make batches on the CPU, and DataLoader(device=...) sends them to the device. \
             Return it from __getitem__ as a CPU tensor"
        )));
    }
    let layout = object.getattr(pyo3::intern!(py, "layout"))?.to_string();
    let is_nested: bool = object.getattr(pyo3::intern!(py, "is_nested"))?.extract()?;
    if is_nested || layout != "torch.strided" {
        return Err(PyTypeError::new_err(format!(
            "a {} has no place in a batch: give the loader a collate_fn, which returns it as it is",
            match is_nested {
                true => "nested tensor".to_owned(),
                false => format!("tensor of layout {layout}"),
            }
        )));
    }
    let detached = object.call_method0(pyo3::intern!(py, "detach"))?;
    let detached = detached.call_method0(pyo3::intern!(py, "contiguous"))?;
    let torch = py.import("torch")?;
    if detached.getattr("dtype")?.eq(torch.getattr("bfloat16")?)? {
        let bits = detached.call_method1("view", (torch.getattr("int16")?,))?;
        return tensor_of_buffer(&bits.call_method0("numpy")?, Some(Kind::BF16));
    }
    tensor_of_buffer(&detached.call_method0(pyo3::intern!(py, "numpy"))?, None)
}

/// Whether its elements are bfloat16, as NumPy (with ml_dtypes) and JAX have it. Python's buffers have none.
fn is_bfloat16(object: &Bound<'_, PyAny>) -> bool {
    let py = object.py();
    let dtype = object.getattr(pyo3::intern!(py, "dtype"));
    let name = dtype.and_then(|dtype| dtype.getattr(pyo3::intern!(py, "name")));
    name.is_ok_and(|name| name.eq("bfloat16").unwrap_or(false))
}

/// The array of an object that others take by DLPack. NumPy consumes the capsule: so what lets go of it is Python's, and no thread of ours.
fn tensor_of_dlpack(object: &Bound<'_, PyAny>) -> PyResult<(HostTensor, Kind)> {
    let py = object.py();
    let place = object.call_method0(pyo3::intern!(py, "__dlpack_device__"))?;
    let kind: i32 = place.get_item(0)?.extract()?;
    if kind != 1 {
        return Err(PyTypeError::new_err(format!(
            "an array of type {} is on a device (DLPack's number {kind}), and has no place in a batch: workers make batches on the CPU, and \
             DataLoader(device=...) sends them to the device. Return it on the host",
            object.get_type().fully_qualified_name()?
        )));
    }
    let array = py
        .import("numpy")?
        .call_method1(pyo3::intern!(py, "from_dlpack"), (object,))?;
    tensor_of_buffer(&array, None)
}

/// The array that an object is, if it is one: of torch, NumPy, or anything that exports a buffer, `__dlpack__` or `__array__`.
pub(crate) fn tensor_of(object: &Bound<'_, PyAny>) -> PyResult<Option<(HostTensor, Kind)>> {
    if is_torch_tensor(object) {
        return tensor_of_torch(object).map(Some);
    }
    if is_bfloat16(object) {
        let numpy = object.py().import("numpy")?;
        let bits = numpy
            .call_method1("asarray", (object,))?
            .call_method1("view", ("uint16",))?;
        return tensor_of_buffer(&bits, Some(Kind::BF16)).map(Some);
    }
    // SAFETY: the object is alive, and this thread is attached.
    if unsafe { pyo3::ffi::PyObject_CheckBuffer(object.as_ptr()) } == 1 {
        return tensor_of_buffer(object, None).map(Some);
    }
    let py = object.py();
    if object.hasattr(pyo3::intern!(py, "__dlpack__"))? {
        return tensor_of_dlpack(object).map(Some);
    }
    if object.hasattr(pyo3::intern!(py, "__array__"))? {
        let array = py.import("numpy")?.call_method1("asarray", (object,))?;
        return tensor_of_buffer(&array, None).map(Some);
    }
    Ok(None)
}

fn values(items: Vec<Bound<'_, PyAny>>) -> PyResult<Vec<Value>> {
    items.iter().map(value_of).collect()
}

fn key_of(key: &Bound<'_, PyAny>) -> PyResult<Key> {
    if let Ok(name) = key.cast::<PyString>() {
        return Ok(Key::Name(Arc::from(name.to_cow()?.as_ref())));
    }
    let number = key.extract::<i64>();
    number.map(Key::Number).map_err(|_| {
        PyTypeError::new_err(format!(
            "a sample's dict has the key {key}: a batch has str and int keys"
        ))
    })
}

/// What a Python object is as a sample. It is attached.
pub(crate) fn value_of(object: &Bound<'_, PyAny>) -> PyResult<Value> {
    let py = object.py();
    if let Ok(tuple) = object.cast_exact::<PyTuple>() {
        return Ok(Value::Tuple(values(tuple.iter().collect())?));
    }
    if object.is_exact_instance_of::<PyBool>() {
        return Ok(Value::Bool(object.is_truthy()?));
    }
    if object.is_exact_instance_of::<PyInt>() {
        return object.extract().map(Value::Int).map_err(|_| {
            PyOverflowError::new_err(format!(
                "{object} does not fit into an int64, the type that an int becomes in a batch"
            ))
        });
    }
    if object.is_exact_instance_of::<PyFloat>() {
        return Ok(Value::Float(object.extract()?));
    }
    if object.is_instance_of::<PyString>() || object.is_instance_of::<PyBytes>() {
        return Ok(Value::Object(object.clone().unbind()));
    }
    if let Ok(list) = object.cast_exact::<PyList>() {
        return Ok(Value::List(values(list.iter().collect())?));
    }
    if let Ok(dict) = object.cast_exact::<PyDict>() {
        let entries = dict.iter();
        let entries = entries.map(|(key, value)| Ok((key_of(&key)?, value_of(&value)?)));
        return Ok(Value::Dict(entries.collect::<PyResult<_>>()?));
    }
    if let Some((tensor, kind)) = tensor_of(object)? {
        return Ok(Value::Tensor(tensor, kind));
    }
    // Subclasses, and what behaves like one of them.
    if object.is_instance_of::<PyInt>() {
        return Ok(Value::Int(object.extract()?));
    }
    if object.is_instance_of::<PyFloat>() {
        return Ok(Value::Float(object.extract()?));
    }
    if let Ok(tuple) = object.cast::<PyTuple>() {
        let parts = values(tuple.iter().collect())?;
        return Ok(match object.hasattr(pyo3::intern!(py, "_fields"))? {
            true => Value::Named(object.get_type().into_any().unbind(), parts),
            false => Value::Tuple(parts),
        });
    }
    if let Ok(mapping) = object.cast::<PyMapping>() {
        let mut entries = Vec::new();
        for item in mapping.items()?.iter() {
            let (key, value): (Bound<'_, PyAny>, Bound<'_, PyAny>) = item.extract()?;
            entries.push((key_of(&key)?, value_of(&value)?));
        }
        let dict = Box::new(Value::Dict(entries));
        return Ok(Value::Like(object.clone().unbind(), dict));
    }
    if !object.is_instance_of::<PyByteArray>()
        && let Ok(sequence) = object.cast::<PySequence>()
    {
        let items: PyResult<Vec<_>> = sequence.try_iter()?.collect();
        let list = Box::new(Value::List(values(items?)?));
        return Ok(Value::Like(object.clone().unbind(), list));
    }
    Err(PyTypeError::new_err(format!(
        "a sample, or a part of one, is of type {}: batches are made of arrays, tensors, numbers, strings, and tuples, lists and dicts of \
         these. Give the loader a collate_fn for others",
        object.get_type().fully_qualified_name()?
    )))
}
