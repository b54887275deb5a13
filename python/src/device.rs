//! Batches on a device, as Python objects.

use pyo3::prelude::*;

use crate::errors::say;
use crate::outgoing::Output;
use crate::tree::{DeviceLeaf, Tree};

/// A batch on a device as torch tensors in torch's own memory.
pub(crate) fn device_object<'py>(
    py: Python<'py>,
    _tree: Tree<DeviceLeaf>,
    _output: Output,
) -> PyResult<Bound<'py, PyAny>> {
    Err(say(py, "DeviceError", "not yet"))
}
