//! Code shared by the programs.
#![allow(missing_docs, missing_debug_implementations)] // used by these programs only

#[path = "../../args/mod.rs"]
pub mod args;
pub mod cache;
pub mod folders;
pub mod net;
pub mod rng;
pub mod shapes;

use std::env;
use std::fmt::Display;
use std::hint::black_box;
use std::path::Path;
use std::process::ExitCode;

use candle_core::Device as CandleDevice;
use pinfeed::collate::{Collate, Stack};
use pinfeed::loader::Stats;
use pinfeed::{Batch, DataLoader, Dataset, Device};

use args::{Args, DeviceName, Options};
pub use args::{BoxError, Result};

/// Reads the command line and runs the example, or prints `help` if requested.
pub fn start(help: &str, run: impl FnOnce(Options) -> Result<()>) -> ExitCode {
    prepare_cpu();
    args::start(help, run)
}

/// The device of the loader, and candle's on the same hardware.
pub fn open(device: DeviceName) -> Result<(Device, CandleDevice)> {
    match device {
        DeviceName::Cpu => Ok((Device::cpu(), CandleDevice::Cpu)),
        DeviceName::Cuda(_) if cfg!(not(feature = "candle-cuda")) => Err(format!(
            "--device {device} needs the feature candle-cuda: \
             cargo run --release -p training --features candle-cuda ... --device {device}"
        )
        .into()),
        DeviceName::Cuda(ordinal) => Ok((Device::cuda(ordinal)?, CandleDevice::new_cuda(ordinal)?)),
    }
}

/// Makes the loader of a data set. It shuffles for training.
pub fn loader<D: Dataset, B: Batch>(
    args: &Args,
    data: D,
    training: bool,
    device: &Device,
) -> Result<DataLoader<B>>
where
    Stack: Collate<D::Sample, Batch = B>,
{
    let mut builder = DataLoader::builder(data)
        .batch_size(args.batch_size)
        .shuffle(training)
        .seed(args.seed)
        .num_workers(args.workers);
    if args.pin {
        builder = builder.pin_memory(device);
    }
    Ok(builder.build()?)
}

/// One line of JSON: the results, and the stages of an epoch in milliseconds.
pub fn json(results: &[(&str, f64)], stats: &Stats) -> String {
    let results = results
        .iter()
        .map(|(name, value)| format!(r#""{name}":{value:.4}"#));
    let stages = [
        ("loading", stats.loading.total),
        ("decoding", stats.decoding.total),
        ("collating", stats.collating.total),
        ("pinning", stats.pinning),
        ("slab_wait", stats.slab_wait.total),
        ("transfers", stats.transfers.total),
        ("processing", stats.processing.total),
        ("step", stats.step),
        ("consumer_wait", stats.consumer_wait.total),
    ];
    let stages = stages.map(|(stage, time)| {
        let ms = 1e3 * time.as_secs_f64();
        format!(r#""{stage}_ms":{ms:.1}"#)
    });
    let fields: Vec<_> = results.chain(stages).collect();
    format!("{{{}}}", fields.join(","))
}

/// Sets candle on the CPU up to share cores with the loader, which also makes it several times as fast.
#[expect(
    unsafe_code,
    reason = "candle takes the number from the environment only"
)]
fn prepare_cpu() {
    // candle's threads wait for each other in busy loops. If they share cores with the loader's threads, a step of a
    // small network takes up to ten times as long as on one thread.
    if env::var_os("CANDLE_NUM_THREADS").is_none() {
        // SAFETY: this is the program's only thread so far, so no other reads the environment now.
        unsafe { env::set_var("CANDLE_NUM_THREADS", "1") };
    }
    // A step frees memory that the next one allocates. glibc returns such blocks to the kernel and gets them back page
    // by page, unless a block as large as this one has been freed before.
    drop(black_box(vec![0_u8; 31 << 20]));
}

/// Adds the file or folder to an error.
pub fn at<E: Display>(path: &Path) -> impl FnOnce(E) -> BoxError {
    move |error| format!("{}: {error}", path.display()).into()
}
