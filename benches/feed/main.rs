//! How fast does the library feed a device? One program, with a subcommand for each workload:
//!
//!     cargo bench --bench feed -- tensor --device cuda:0 --workers 16 --seconds 5
//!     cargo bench --bench feed -- --help
//!
//! Each result is one line, of a table or (`--json`) of JSON. It holds what was measured against what the machine gives
//! to a bare loop *in the same run* (`limit_gb_s`, `share`), for machines are noisy, and beside what it cost: the CPU
//! seconds of the whole process, its memory, its page-locked memory. What arrived on the device is compared with the
//! source in a pass of its own, so that the check does not pay for the figure; a wrong byte ends the program.

#![allow(unreachable_pub)] // modules of a program: what is `pub` in them is for the others

mod args;
#[cfg(feature = "cuda")]
#[expect(unsafe_code, reason = "it calls the driver")]
mod bare;
mod breakdown;
#[cfg_attr(
    all(feature = "image", target_os = "linux"),
    expect(unsafe_code, reason = "it asks the system to forget files")
)]
mod cold;
mod data;
mod devices;
#[cfg(feature = "image")]
mod draw;
mod drive;
mod folder;
#[expect(unsafe_code, reason = "threads write disjoint rows of one slab")]
mod gather;
mod jpeg;
mod launch;
mod limits;
mod options;
mod overlap;
mod report;
mod roundtrip;
#[cfg(feature = "image")]
mod served;
mod shards;
mod startup;
mod step;
mod submit;
mod table;
mod tails;
mod target;
mod tensor;
mod tiny;
mod train;
#[cfg(feature = "turbojpeg")]
#[expect(unsafe_code, reason = "it calls libjpeg-turbo")]
mod turbo;
#[cfg_attr(
    unix,
    expect(unsafe_code, reason = "it asks the system for its counters")
)]
mod window;

use std::error::Error;
use std::process::ExitCode;

use args::{Args, Parsed, Workload};
use report::Report;

type BoxError = Box<dyn Error + Send + Sync>;
type Outcome<T = ()> = Result<T, BoxError>;

fn main() -> ExitCode {
    let done = match Args::parse(std::env::args().skip(1)) {
        Ok(Parsed::Help(help)) => {
            println!("{help}");
            Ok(())
        }
        Ok(Parsed::Run(args)) => run(&args),
        Err(error) => Err(error),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {}", chain(&*error));
            ExitCode::FAILURE
        }
    }
}

fn run(args: &Args) -> Outcome {
    if cfg!(debug_assertions) {
        eprintln!("note: built without optimization; `cargo bench` builds with it");
    }
    let mut report = Report::new(args.json);
    match args.workload {
        Workload::Limits => limits::run(args, &mut report),
        Workload::Tensor => tensor::run(args, &mut report),
        Workload::Devices => devices::run(args, &mut report),
        Workload::Table => table::run(args, &mut report),
        Workload::Tiny => tiny::run(args, &mut report),
        Workload::Roundtrip => roundtrip::run(args, &mut report),
        Workload::Overlap => overlap::run(args, &mut report),
        Workload::Jpeg => jpeg::run(args, &mut report),
        Workload::Train => train::run(args, &mut report),
        Workload::Tails => tails::run(args, &mut report),
        Workload::Cold => cold::run(args, &mut report),
        Workload::Folder => folder::run(args, &mut report),
        Workload::Shards => shards::run(args, &mut report),
        Workload::Startup => startup::run(args, &mut report),
        Workload::Breakdown => breakdown::run(args, &mut report),
        Workload::Submit => submit::run(args, &mut report),
    }
}

/// An error with all that caused it.
fn chain(error: &dyn Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        text = format!("{text}: {error}");
        cause = error.source();
    }
    text
}
