//! Batches as Python objects, over the batch's own memory: torch tensors, NumPy arrays, or what other libraries take (`dlpack`).

use std::ffi::c_int;

use pyo3::exceptions::{PyBufferError, PyMemoryError};
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyBytes, PyDict, PyList, PyTuple};

use crate::dlpack::host_tensor;
use crate::errors::say;
use crate::kind::{HostTensor, Kind};
use crate::tree::{HostLeaf, Key, Tree};

/// What batches become.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Output {
    Torch,
    Numpy,
    /// `pinfeed.Tensor`, which other libraries take by DLPack.
    Dlpack,
    Cupy,
    Jax,
}

impl Output {
    /// `"torch"`, `"numpy"`, `"cupy"`, `"jax"`, `"dlpack"`, or `"auto"`: torch where it is installed; without it, NumPy on the host, and on a
    /// device what any library takes.
    pub(crate) fn named(py: Python<'_>, name: &str, is_on_device: bool) -> PyResult<Output> {
        let refused = |reason: &str| {
            Err(say(
                py,
                "OptionError",
                &format!("output={name:?}: {reason}"),
            ))
        };
        let missing = |what: &str, advice: &str, error: PyErr| {
            let reason = format!("output={name:?}: {what} cannot be imported: {advice}");
            let refused = say(py, "OptionError", &reason);
            refused.set_cause(py, Some(error));
            refused
        };
        match (name, is_on_device) {
            ("torch", _) => match torch(py) {
                Ok(_) => Ok(Output::Torch),
                Err(error) => Err(missing(
                    "torch",
                    "`pip install torch`, or output=\"numpy\"",
                    error,
                )),
            },
            ("numpy", true) => refused(
                "NumPy's arrays are in host memory: leave device out, or take \"torch\", \"cupy\", \"jax\", or \"dlpack\"",
            ),
            ("numpy", false) => match py.import("numpy") {
                Ok(_) => Ok(Output::Numpy),
                Err(error) => Err(missing("NumPy", "`pip install numpy`", error)),
            },
            ("dlpack", _) => Ok(Output::Dlpack),
            ("cupy", false) => {
                refused("CuPy's arrays are on a GPU: device=\"cuda\" sends batches there")
            }
            ("cupy", true) => match py.import("cupy") {
                Ok(_) => Ok(Output::Cupy),
                Err(error) => Err(missing("CuPy", "`pip install cupy-cuda12x`", error)),
            },
            ("jax", _) => match py.import("jax.dlpack") {
                Ok(_) => Ok(Output::Jax),
                Err(error) => Err(missing("JAX", "`pip install jax`", error)),
            },
            ("auto", _) if is_installed(py, "torch")? => Output::named(py, "torch", is_on_device),
            ("auto", true) => Ok(Output::Dlpack),
            ("auto", false) => Output::named(py, "numpy", false),
            _ => refused(
                "it is \"torch\", \"numpy\", \"cupy\", \"jax\", \"dlpack\" or \"auto\" (torch where it is installed)",
            ),
        }
    }

    /// What a sample's arrays are, where the program's own code gets them before they are a batch.
    pub(crate) fn of_samples(self, py: Python<'_>) -> PyResult<Output> {
        match self {
            Output::Torch | Output::Numpy => Ok(self),
            _ if is_installed(py, "numpy")? => Ok(Output::Numpy),
            _ => Ok(Output::Dlpack),
        }
    }
}

fn is_installed(py: Python<'_>, name: &str) -> PyResult<bool> {
    if py.import("sys")?.getattr("modules")?.contains(name)? {
        return Ok(true);
    }
    let spec = py
        .import("importlib.util")?
        .call_method1("find_spec", (name,))?;
    Ok(!spec.is_none())
}

/// What a buffer says of dense, row-major memory.
pub(crate) struct View {
    kind: Kind,
    bytes: isize,
    shape: Vec<isize>,
    strides: Vec<isize>,
}

impl View {
    pub(crate) fn new(shape: &[usize], kind: Kind) -> View {
        let shape: Vec<isize> = shape.iter().map(|length| *length as isize).collect();
        let mut strides = vec![0; shape.len()];
        let mut stride = kind.item_bytes() as isize;
        for (place, length) in shape.iter().enumerate().rev() {
            strides[place] = stride;
            stride *= (*length).max(1);
        }
        View {
            kind,
            bytes: shape.iter().product::<isize>() * kind.item_bytes() as isize,
            shape,
            strides,
        }
    }

    pub(crate) fn bytes(&self) -> usize {
        self.bytes as usize
    }

    /// Fills a buffer's view of memory at this address.
    ///
    /// # Safety
    ///
    /// `view` must be CPython's, to be filled, or null. `owner` must keep the memory, and `self`, which must not change.
    pub(crate) unsafe fn show(
        &self,
        view: *mut ffi::Py_buffer,
        flags: c_int,
        address: *mut u8,
        is_read_only: bool,
        owner: Bound<'_, PyAny>,
    ) -> PyResult<()> {
        if view.is_null() {
            return Err(PyBufferError::new_err("no view"));
        }
        let has = |flag: c_int| flags & flag == flag;
        if has(ffi::PyBUF_F_CONTIGUOUS) && self.shape.len() > 1 {
            return Err(PyBufferError::new_err("the elements are row-major"));
        }
        if has(ffi::PyBUF_WRITABLE) && is_read_only {
            return Err(PyBufferError::new_err("this memory must not be written"));
        }
        // SAFETY: CPython's view, which nothing else touches during the call.
        let view = unsafe { &mut *view };
        view.buf = address.cast();
        view.len = self.bytes;
        view.readonly = c_int::from(is_read_only);
        view.itemsize = self.kind.item_bytes() as isize;
        view.ndim = self.shape.len() as c_int;
        view.format = match has(ffi::PyBUF_FORMAT) {
            true => self.kind.format().as_ptr().cast_mut(),
            false => std::ptr::null_mut(),
        };
        view.shape = match has(ffi::PyBUF_ND) {
            true => self.shape.as_ptr().cast_mut(),
            false => std::ptr::null_mut(),
        };
        view.strides = match has(ffi::PyBUF_STRIDES) {
            true => self.strides.as_ptr().cast_mut(),
            false => std::ptr::null_mut(),
        };
        view.suboffsets = std::ptr::null_mut();
        view.internal = std::ptr::null_mut();
        view.obj = owner.into_ptr();
        Ok(())
    }
}

/// Memory of one tensor of a batch, which it keeps: NumPy's arrays and torch's tensors over it refer to it.
#[pyclass(frozen, module = "pinfeed._pinfeed", name = "_Memory")]
pub(crate) struct Memory {
    /// The only holder of the elements.
    _keeper: HostTensor,
    address: *mut u8,
    view: View,
}

// SAFETY: the address is that of the keeper's elements, which this object never touches; who exports the buffer is responsible for
// threads, as with any array.
unsafe impl Send for Memory {}
// SAFETY: as above.
unsafe impl Sync for Memory {}

impl Memory {
    fn new(mut tensor: HostTensor, kind: Kind) -> PyResult<Memory> {
        let view = View::new(tensor.shape(), kind);
        let address = tensor.make_own();
        if address.is_null() {
            return Err(PyMemoryError::new_err(
                "no memory for a copy of a batch's tensor",
            ));
        }
        Ok(Memory {
            _keeper: tensor,
            address,
            view,
        })
    }
}

#[pymethods]
impl Memory {
    /// # Safety
    ///
    /// CPython calls it, with a view to fill.
    unsafe fn __getbuffer__(
        slf: Bound<'_, Self>,
        view: *mut ffi::Py_buffer,
        flags: c_int,
    ) -> PyResult<()> {
        let memory = slf.get();
        let (address, shown) = (memory.address, &raw const memory.view);
        // SAFETY: CPython's view; what it shows is in the object, which is frozen, and which the view keeps from now on.
        unsafe { (*shown).show(view, flags, address, false, slf.into_any()) }
    }

    /// # Safety
    ///
    /// CPython calls it, with a view that `__getbuffer__` filled.
    unsafe fn __releasebuffer__(&self, _view: *mut ffi::Py_buffer) {}
}

/// What is asked of torch for each batch.
pub(crate) struct Torch {
    frombuffer: Py<PyAny>,
    pub(crate) empty: Py<PyAny>,
    dtypes: [Option<Py<PyAny>>; Kind::ALL.len()],
}

pub(crate) fn torch(py: Python<'_>) -> PyResult<&Torch> {
    static TORCH: PyOnceLock<Torch> = PyOnceLock::new();
    TORCH.get_or_try_init(py, || {
        let torch = py.import("torch")?;
        let dtype = |kind: Kind| torch.getattr(kind.name()).ok().map(Bound::unbind);
        Ok(Torch {
            frombuffer: torch.getattr("frombuffer")?.unbind(),
            empty: torch.getattr("empty")?.unbind(),
            dtypes: Kind::ALL.map(dtype),
        })
    })
}

impl Torch {
    /// torch's type of these elements. Old versions lack `uint16`, `uint32` and `uint64`.
    pub(crate) fn dtype<'py>(&self, py: Python<'py>, kind: Kind) -> PyResult<&Bound<'py, PyAny>> {
        let place = Kind::ALL.iter().position(|other| *other == kind);
        match place.and_then(|place| self.dtypes[place].as_ref()) {
            Some(dtype) => Ok(dtype.bind(py)),
            None => Err(say(
                py,
                "Error",
                &format!(
                    "this torch has no {}: convert the samples, take a newer torch, or output=\"numpy\"",
                    kind.name()
                ),
            )),
        }
    }

    /// A tensor of torch's own, with no content.
    pub(crate) fn empty<'py>(
        &self,
        py: Python<'py>,
        shape: &[usize],
        kind: Kind,
        more: &[(&str, Bound<'py, PyAny>)],
    ) -> PyResult<Bound<'py, PyAny>> {
        let options = PyDict::new(py);
        options.set_item("dtype", self.dtype(py, kind)?)?;
        for (name, value) in more {
            options.set_item(name, value)?;
        }
        let shape = PyTuple::new(py, shape)?;
        self.empty.bind(py).call((shape,), Some(&options))
    }
}

/// A tensor's NumPy array or torch tensor, over the same memory.
pub(crate) fn array_of<'py>(
    py: Python<'py>,
    tensor: HostTensor,
    kind: Kind,
    output: Output,
) -> PyResult<Bound<'py, PyAny>> {
    match output {
        Output::Numpy => {
            if kind == Kind::BF16 {
                return Err(say(
                    py,
                    "Error",
                    "NumPy has no bfloat16: take dtype=\"float32\" or \"float16\", or output=\"torch\"",
                ));
            }
            static ASARRAY: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
            let asarray = ASARRAY.import(py, "numpy", "asarray")?;
            let memory = Bound::new(py, Memory::new(tensor, kind)?)?;
            asarray.call1((memory,))
        }
        Output::Dlpack | Output::Cupy | Output::Jax => host_tensor(py, tensor, kind, output),
        Output::Torch => {
            let torch = torch(py)?;
            let shape = tensor.shape().to_vec();
            if tensor.size_bytes() == 0 {
                return torch.empty(py, &shape, kind, &[]); // `frombuffer` takes no empty buffer
            }
            let memory = Bound::new(py, Memory::new(tensor, kind)?)?;
            let options = PyDict::new(py);
            options.set_item(pyo3::intern!(py, "dtype"), torch.dtype(py, kind)?)?;
            let flat = torch.frombuffer.bind(py).call((memory,), Some(&options))?;
            match shape.len() {
                1 => Ok(flat),
                _ => flat.call_method1(pyo3::intern!(py, "view"), (PyTuple::new(py, &shape)?,)),
            }
        }
    }
}

fn key_object<'py>(py: Python<'py>, key: &Key) -> PyResult<Bound<'py, PyAny>> {
    match key {
        Key::Name(name) => Ok(pyo3::types::PyString::new(py, name).into_any()),
        Key::Number(number) => Ok(number.into_pyobject(py)?.into_any()),
    }
}

/// A batch as Python objects; `leaf` makes those of its tensors.
pub(crate) fn object_of<'py, L>(
    py: Python<'py>,
    tree: Tree<L>,
    leaf: &mut dyn FnMut(L) -> PyResult<Bound<'py, PyAny>>,
) -> PyResult<Bound<'py, PyAny>> {
    let all = |trees: Vec<Tree<L>>, leaf: &mut dyn FnMut(L) -> PyResult<Bound<'py, PyAny>>| {
        let trees = trees.into_iter();
        trees
            .map(|tree| object_of(py, tree, leaf))
            .collect::<PyResult<Vec<_>>>()
    };
    Ok(match tree {
        Tree::Leaf(tensor) => leaf(tensor)?,
        Tree::Objects(objects) => PyList::new(py, objects)?.into_any(),
        Tree::Texts(texts) => PyList::new(py, texts)?.into_any(),
        Tree::Bytes(bytes) => {
            let bytes = bytes.iter().map(|bytes| PyBytes::new(py, bytes));
            PyList::new(py, bytes.collect::<Vec<_>>())?.into_any()
        }
        Tree::Whole(whole) => whole.into_bound(py),
        Tree::List(trees) => PyList::new(py, all(trees, leaf)?)?.into_any(),
        Tree::Tuple(trees) => PyTuple::new(py, all(trees, leaf)?)?.into_any(),
        Tree::Named(class, trees) => {
            let parts = PyTuple::new(py, all(trees, leaf)?)?;
            class.bind(py).call1(parts)?
        }
        Tree::Dict(entries) => {
            let dict = PyDict::new(py);
            for (key, tree) in entries {
                dict.set_item(key_object(py, &key)?, object_of(py, tree, leaf)?)?;
            }
            dict.into_any()
        }
        Tree::Like(sample, tree) => like(&sample.into_bound(py), object_of(py, *tree, leaf)?)?,
    })
}

/// A list or a dict, of the class that a sample has: `_collate.py` says how.
pub(crate) fn like<'py>(
    sample: &Bound<'py, PyAny>,
    plain: Bound<'py, PyAny>,
) -> PyResult<Bound<'py, PyAny>> {
    static LIKE: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
    let like = LIKE.import(sample.py(), "pinfeed._collate", "like")?;
    like.call1((sample, plain))
}

/// A batch on the host as Python objects.
pub(crate) fn host_object<'py>(
    py: Python<'py>,
    tree: Tree<HostLeaf>,
    output: Output,
) -> PyResult<Bound<'py, PyAny>> {
    object_of(py, tree, &mut |leaf| {
        array_of(py, leaf.tensor, leaf.kind, output)
    })
}
