//! What this machine and this build can do, for `pinfeed.doctor`.

use pinfeed::Device;
use pyo3::prelude::*;
use pyo3::types::PyDict;

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
        let mut devices = Vec::new();
        loop {
            match Device::cuda(devices.len()) {
                Ok(device) => devices.push(device.name()),
                Err(error) => break (devices, error.to_string()),
            }
        }
    });
    let facts = PyDict::new(py);
    facts.set_item("features", built)?;
    facts.set_item("devices", devices)?;
    facts.set_item("why_no_device", why)?;
    facts.set_item("memory_bytes", memory_bytes())?;
    Ok(facts)
}

/// The memory that the system says is there, or that the control group allows.
fn memory_bytes() -> u64 {
    let read = |path: &str| std::fs::read_to_string(path).ok();
    let total = read("/proc/meminfo").and_then(|text| {
        let line = text
            .lines()
            .find(|line| line.starts_with("MemTotal:"))?
            .to_owned();
        line.split_whitespace().nth(1)?.parse::<u64>().ok()
    });
    let total = total.map_or(0, |kibibytes| kibibytes << 10);
    let limit = read("/sys/fs/cgroup/memory.max").and_then(|text| text.trim().parse::<u64>().ok());
    limit.map_or(total, |limit| limit.min(total))
}
