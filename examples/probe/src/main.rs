//! Prints what this machine can do, and what follows for a loader's settings.
//!
//!     cargo run --release --package probe
//!
//! It wants neither C++ nor a CUDA toolkit, only the GPU's driver. Without a GPU, it measures the host's part, and copies by the CPU
//! device. The output is text; with `--json`, one object; with `--html FILE`, a page with plots as well.

#![allow(unreachable_pub)] // a module of a program: it is `pub` for the rest of the program

#[path = "../../args/mod.rs"]
mod args;

use std::fs;
use std::path::PathBuf;
use std::process::ExitCode;

use args::Result;
use probe::{Language, Probe};

const HELP: &str = "\
Says what this machine can do: links to GPUs, copies, page-locking, memory, decoding, limits, and the settings that follow for a loader.

cargo run --release --package probe -- [OPTIONS]

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
    let probe = Probe::measure(quick, Language::Rust)?;
    if let Some(file) = &html {
        fs::write(file, probe.html()).map_err(|error| format!("{}: {error}", file.display()))?;
    }
    match json {
        true => println!("{}", probe.json()?),
        false => print!("{probe}"),
    }
    Ok(())
}
