//! What this machine and this build can do, for `pinfeed.doctor`.

use pinfeed::Device;
use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;
use pyo3::types::PyDict;

use crate::errors::in_python;

/// Facts, by name.
#[pyfunction]
pub(crate) fn machine(py: Python<'_>) -> PyResult<Bound<'_, PyDict>> {
    let features = [
        ("turbojpeg", cfg!(feature = "turbojpeg")),
        ("nvjpeg", cfg!(feature = "nvjpeg")),
        ("object-store", cfg!(feature = "object-store")),
    ];
    let built: Vec<&str> = features
        .iter()
        .filter(|(_, is_there)| *is_there)
        .map(|(name, _)| *name)
        .collect();
    let (devices, why) = py.detach(|| {
        let (mut devices, mut why) = (Vec::new(), None);
        // (The error of the first says why there is none.)
        for ordinal in 0..Device::cuda_count().unwrap_or(0).max(1) {
            match Device::cuda(ordinal) {
                Ok(device) => devices.push(device.name()),
                Err(error) => why = why.or(Some(in_python(error.to_string()))),
            }
        }
        (devices, why)
    });
    let facts = PyDict::new(py);
    facts.set_item("features", built)?;
    facts.set_item("devices", devices)?;
    facts.set_item("why_no_device", why)?;
    Ok(facts)
}

/// What was measured of this machine.
#[pyclass(name = "_Probe", module = "pinfeed._pinfeed", frozen)]
pub(crate) struct PyProbe(probe::Probe);

#[pymethods]
impl PyProbe {
    /// Measures it, which takes a minute; some seconds if `quick`.
    #[new]
    fn new(py: Python<'_>, quick: bool) -> PyResult<PyProbe> {
        let measured = py.detach(|| probe::Probe::measure(quick, probe::Language::Python));
        measured
            .map(PyProbe)
            .map_err(|error| PyRuntimeError::new_err(error.to_string()))
    }

    /// For a person.
    fn text(&self) -> String {
        self.0.to_string()
    }

    /// One object.
    fn json(&self) -> PyResult<String> {
        let json = self.0.json();
        json.map_err(|error| PyRuntimeError::new_err(error.to_string()))
    }

    /// A page with plots.
    fn html(&self) -> String {
        self.0.html()
    }
}
