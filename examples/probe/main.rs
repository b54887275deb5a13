//! What can this machine do? Its links to GPUs, its memory, its cores, and what follows for a loader's settings.
//!
//!     cargo run --release --example probe
//!
//! It wants neither C++ nor a CUDA toolkit, only the GPU's driver. Without a GPU, it measures the host's part, and copies by the CPU
//! device. The output is text; with `--json`, one object; with `--html FILE`, a page with plots as well.
//!
//! `host`, `pcie`, `copies`, `together`, `memcpy`, `page_locking` and `decode` each measure one thing; `device` measures all of one device,
//! with the bare calls of `driver`. What they found is in the plain values of `report`, from which `advice` derives settings. `text` and
//! `page` (with `plot`) render a report; `words` has the sentences that both need.

#![allow(unreachable_pub)] // modules of a program: what they have is `pub` for the rest of the program

mod advice;
#[path = "../args/mod.rs"]
mod args;
mod copies;
mod decode;
mod device;
#[path = "../devices/mod.rs"]
mod devices;
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

use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Instant;

use pinfeed::Device;

use args::Result;
use effort::Effort;
use report::Report;
use together::Alone;

const HELP: &str = "\
Says what this machine can do: links to GPUs, copies, page-locking, memory, decoding, limits, and the settings that follow for a loader.

cargo run --release --example probe -- [OPTIONS]

  --quick             some seconds: fewer sizes, and fewer and shorter measurements
  --json              one JSON object instead of text
  --html FILE         writes a page with plots, too
  --help              this text

Without a GPU it measures the host's part. With --features nvjpeg it measures the GPU's decoder of JPEG files as well.";

fn main() -> ExitCode {
    args::start(HELP, run)
}

fn run(mut options: args::Options) -> Result<()> {
    let (quick, json) = (options.flag("--quick"), options.flag("--json"));
    let html: Option<PathBuf> = options.path("--html")?;
    options.finish()?;
    // Now, rather than after the measurements.
    if let Some(file) = &html {
        fs::write(file, "").map_err(|error| format!("{}: {error}", file.display()))?;
    }
    let report = measure(quick)?;
    if let Some(file) = &html {
        fs::write(file, page::render(&report))
            .map_err(|error| format!("{}: {error}", file.display()))?;
    }
    match json {
        true => println!("{}", serde_json::to_string_pretty(&report)?),
        false => print!("{}", text::Text(&report)),
    }
    Ok(())
}

fn measure(quick: bool) -> Result<Report> {
    let (begun, root) = (Instant::now(), Path::new("/"));
    // First, while the program has one thread: with the feature nvjpeg, opening a device sets a variable of the environment.
    let (gpus, mut problems) = devices::all_cuda();
    let host = host::read(root);
    let effort = Effort::new(quick, host.usable_memory_bytes());
    let (mut devices, mut ordinals) = (Vec::new(), Vec::new());
    for gpu in &gpus {
        let id = gpu.name();
        let ordinal = id
            .strip_prefix("cuda:")
            .and_then(|ordinal| ordinal.parse().ok());
        let ordinal = ordinal.ok_or_else(|| format!("{id}: a device without a number"))?;
        match device::cuda(&effort, root, gpu, ordinal) {
            Ok(device) => {
                devices.push(device);
                ordinals.push(ordinal);
            }
            Err(error) => problems.push(format!("{id}: {error}")),
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
        decode: decode::measure(&effort, host.usable_cores, gpus.first())?,
        host,
        problems,
        devices,
        together,
        advice: Vec::new(),
    };
    report.advice = advice::derive(&report);
    report.seconds = begun.elapsed().as_secs_f64();
    Ok(report)
}
