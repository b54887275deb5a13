//! What can this machine do? Its links to GPUs, its memory, its cores, and what follows for a loader's settings.
//!
//! The program `probe` and Python's `pinfeed.doctor` print what [`Probe`] found.
//!
//! `host`, `pcie`, `copies`, `together`, `memcpy`, `page_locking` and `decode` each measure one thing; `device` measures all of one device,
//! with the bare calls of `driver`. What they found is in the plain values of `report`, from which `advice` derives settings. `text` and
//! `page` (with `plot`) render a report; `words` has the sentences that both need.

#![allow(unreachable_pub)] // what a private module has is `pub` for the rest of the crate

mod advice;
mod copies;
mod decode;
mod device;
mod driver;
mod effort;
mod host;
mod memcpy;
mod page;
mod page_locking;
mod pcie;
mod plot;
mod report;
#[cfg(test)]
mod sample;
mod text;
mod together;
mod words;

use std::fmt;
use std::path::Path;
use std::time::Instant;

use pinfeed::Device;

use effort::Effort;
use report::Report;
use together::Alone;

/// An error says which measurement failed, and why.
pub type Result<T, E = Box<dyn std::error::Error + Send + Sync>> = std::result::Result<T, E>;

/// What a run found. Printed, it is text for a person.
#[derive(Debug, Clone)]
pub struct Probe(Report);

/// Which library's settings are recommended: names differ.
#[derive(Debug, Clone, Copy)]
pub enum Language {
    /// `pinfeed` for Rust.
    Rust,
    /// `pinfeed` for Python.
    Python,
}

impl Probe {
    /// Measures the host and every GPU that can be opened; without a GPU, copies by the CPU device. `quick` takes some seconds: fewer
    /// sizes, and fewer and shorter measurements.
    ///
    /// Call it while the program does nothing else, and before it has other threads: with the feature `nvjpeg`, opening a device sets a
    /// variable of the environment.
    ///
    /// # Errors
    ///
    /// If the host cannot be measured, or neither can a device. A GPU that fails beside another is mentioned in what is found.
    pub fn measure(quick: bool, language: Language) -> Result<Probe> {
        measure(quick, language).map(Probe)
    }

    /// One JSON object. Numbers carry their unit in their name: `gb_s` is 10<sup>9</sup> bytes a second, `bytes` are bytes.
    ///
    /// # Errors
    ///
    /// None is known: numbers that JSON has no word for are null.
    pub fn json(&self) -> Result<String> {
        Ok(serde_json::to_string_pretty(&self.0)?)
    }

    /// A page with plots, in one file that loads nothing.
    pub fn html(&self) -> String {
        page::render(&self.0)
    }
}

impl fmt::Display for Probe {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        text::Text(&self.0).fmt(f)
    }
}

fn measure(quick: bool, language: Language) -> Result<Report> {
    let (begun, root) = (Instant::now(), Path::new("/"));
    // First, while the program has one thread: with the feature nvjpeg, opening a device sets a variable of the environment.
    let count = Device::cuda_count().unwrap_or(0);
    let (mut gpus, mut problems) = (Vec::new(), Vec::new());
    // (The error of the first says why there is none.)
    for ordinal in 0..count.max(1) {
        match Device::cuda(ordinal) {
            Ok(gpu) => gpus.push((ordinal, gpu)),
            Err(error) => problems.push(error.to_string()),
        }
    }
    if matches!(language, Language::Python) {
        for problem in &mut problems {
            *problem = problem.replace(", or use Device::cpu()", "");
        }
    }
    let host = host::read(root);
    let effort = Effort::new(quick, host.usable_memory_bytes());
    let (mut devices, mut ordinals) = (Vec::new(), Vec::new());
    for (ordinal, gpu) in &gpus {
        match device::cuda(&effort, root, gpu, *ordinal) {
            Ok(device) => {
                devices.push(device);
                ordinals.push(*ordinal);
            }
            Err(error) => problems.push(format!("{}: {error}", gpu.name())),
        }
    }
    if devices.is_empty() {
        devices.push(device::cpu(&effort, &Device::cpu())?);
    }
    let together = match ordinals.len() {
        ..2 => None,
        _ => {
            let alone = devices.iter().zip(&ordinals);
            let alone = alone.map(|(report, &ordinal)| Alone { report, ordinal });
            together::measure(&effort, &alone.collect::<Vec<_>>())
                .inspect_err(|error| problems.push(format!("all GPUs at once: {error}")))
                .ok()
        }
    };
    let mut report = Report {
        version: env!("CARGO_PKG_VERSION"),
        quick,
        seconds: 0.0,
        memcpy: memcpy::measure(&effort, host.usable_cores, host.usable_memory_bytes())?,
        decode: decode::measure(&effort, host.usable_cores, gpus.first().map(|(_, gpu)| gpu))?,
        host,
        problems,
        devices,
        together,
        advice: Vec::new(),
    };
    report.advice = advice::derive(&report, language);
    report.seconds = begun.elapsed().as_secs_f64();
    Ok(report)
}
