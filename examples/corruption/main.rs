//! Does a non-blocking copy corrupt data? The classic mistake, by the driver's own calls, with the wrong bytes counted; and the same lines
//! with this library.
//!
//!     cargo run --release --example corruption
//!
//! An asynchronous copy reads its buffer, or writes it, when its turn comes on the stream. A program that fills the buffer for the next
//! batch, or reads it, right behind the call gets wrong bytes, and no error. `raw.rs` does that on purpose; it wants a GPU.
//!
//! Here, `to_device` takes the batch, and a `Download` has no elements before `wait`: two of the three programs do not compile, and the
//! third waits. The compiler's words are those of `tests/ui/fail`, which `cargo test --test ui` compares.

#[allow(unreachable_pub)] // a module of a program: it is `pub` for the rest of the program
#[path = "../args/mod.rs"]
mod args;
mod raw;

use std::process::ExitCode;
use std::time::Duration;

use pinfeed::{Batch, BoxError, Device, Tensor};

use args::{DeviceName, misuse};
use raw::Raw;

const HELP: &str = "\
Makes the classic mistake of non-blocking copies by the driver's own calls, counts the wrong bytes, and shows the same lines with this library.

cargo run --release --example corruption -- [OPTIONS]

  --device DEVICE     cpu or cuda:0 (default: the first CUDA device, or the CPU if there is none)
  --megabytes N       bytes of the buffer, in millions (default: 64)
  --help              this text";

/// How long the stream is busy before the copy's turn comes: a training step.
const STEP: Duration = Duration::from_millis(300);

const WRITTEN: (&str, &str) = (
    include_str!("../../tests/ui/fail/batch_written_after_to_device.rs"),
    include_str!("../../tests/ui/fail/batch_written_after_to_device.stderr"),
);
const READ: (&str, &str) = (
    include_str!("../../tests/ui/fail/download_read_before_wait.rs"),
    include_str!("../../tests/ui/fail/download_read_before_wait.stderr"),
);

fn main() -> ExitCode {
    args::start(HELP, run)
}

fn run(mut options: args::Options) -> Result<(), BoxError> {
    let device: Option<DeviceName> = options.value("--device", "cpu or cuda:0")?;
    let megabytes = options.positive("--megabytes")?.unwrap_or(64);
    options.finish()?;
    if megabytes > 4_000 {
        return Err(misuse(format!(
            "--megabytes wants at most 4000, not {megabytes}"
        )));
    }
    let bytes = megabytes * 1_000_000;

    println!("1. The mistake, by the driver's own calls\n");
    let ordinal = if let Some(DeviceName::Cuda(ordinal)) = device {
        ordinal
    } else {
        0
    };
    let opened = match device {
        Some(DeviceName::Cpu) => Err("it was started with --device cpu".into()),
        Some(DeviceName::Cuda(_)) => Ok(Device::cuda(ordinal)?), // asked for: a failure is the program's
        None => Device::cuda(ordinal).map_err(BoxError::from),
    };
    let (device, raw) = match opened {
        Ok(device) => {
            let raw = Raw::new(ordinal, bytes)?;
            println!(
                "{}, {bytes} bytes of page-locked memory",
                device.info()?.name
            );
            mistake(&raw, bytes)?;
            (device, Some(raw))
        }
        Err(error) => {
            println!("This part needs an NVIDIA GPU and its driver, and was left out: {error}.");
            println!(
                "The rest is the library's, on the CPU device, whose copies have a thread of their own."
            );
            (Device::cpu(), None)
        }
    };

    println!("\n2. The same lines with this library do not compile\n");
    for (title, (program, words)) in [
        ("The host writes a batch behind `to_device`:", WRITTEN),
        ("The host reads a download before `wait`:", READ),
    ] {
        println!("{title}\n");
        indented(program.lines().skip_while(|line| !line.starts_with("use")));
        println!();
        indented(words.lines());
        println!();
    }

    println!("3. The one that waits\n");
    let wrong = sent(&device, bytes)? + read_back(&device, raw.as_ref(), bytes)?;
    match wrong {
        0 => Ok(()),
        _ => Err(format!("{wrong} bytes are wrong: this is a bug of the library's").into()),
    }
}

fn indented<'a>(lines: impl Iterator<Item = &'a str>) {
    for line in lines.filter(|line| !line.trim().starts_with("//~")) {
        let line = line.split("//~").next().unwrap_or_default(); // (marks for the test)
        println!("{}", format!("    {line}").trim_end());
    }
}

fn count(what: &str, wrong: usize, bytes: usize) {
    let share = 100.0 * wrong as f64 / bytes as f64;
    println!("    {what:<52} {wrong:>12} of {bytes} bytes wrong ({share:.1} %)");
}

/// Each line twice: behind a kernel, as in a training loop, and on an idle stream, where only a part may be wrong, and not each time.
fn mistake(raw: &Raw, bytes: usize) -> Result<(), BoxError> {
    for (stream, step) in [
        ("behind a kernel of 300 ms", STEP),
        ("on an idle stream", Duration::ZERO),
    ] {
        println!("\n  {stream}:");
        count(
            "cuMemcpyHtoDAsync, and the host overwrites at once",
            raw.overwritten(step, false)?,
            bytes,
        );
        count(
            "  the same, after cuStreamSynchronize",
            raw.overwritten(step, true)?,
            bytes,
        );
        count(
            "cuMemcpyDtoHAsync, and the host reads at once",
            raw.read_early(step, false)?,
            bytes,
        );
        count(
            "  the same, after cuStreamSynchronize",
            raw.read_early(step, true)?,
            bytes,
        );
    }
    Ok(())
}

/// Eight batches, each filled as soon as the one before was handed over. Their memory is used again, but not before its copy is done.
fn sent(device: &Device, bytes: usize) -> Result<usize, BoxError> {
    let mut batches = Vec::new();
    let before = device.memory();
    for number in 1..=8u8 {
        let mut batch = Tensor::<u8>::zeros(&[bytes / 8]).pin(device)?;
        batch
            .as_mut_slice()
            .ok_or("the batch is shared")?
            .fill(number);
        batches.push((number, batch.to_device(device, true)?)); // moved: nothing here can write it any more
    }
    let mut wrong = 0;
    for (number, batch) in &batches {
        let back = batch.to_host(true)?.wait()?;
        wrong += back
            .as_slice()
            .iter()
            .filter(|byte| *byte != number)
            .count();
    }
    count(
        "batch.fill(n); batch.to_device(&device, true)",
        wrong,
        bytes / 8 * 8,
    );
    let after = device.memory();
    let (made, reused) = (
        after.slabs_made - before.slabs_made,
        after.slabs_reused - before.slabs_reused,
    );
    println!(
        "    (16 pieces of page-locked memory were wanted: {made} were made, {reused} used again)"
    );
    Ok(wrong)
}

/// A download of what a slow kernel writes; on the CPU device, of what was just sent.
fn read_back(device: &Device, raw: Option<&Raw>, bytes: usize) -> Result<usize, BoxError> {
    let words = bytes / 4;
    let mut there = Tensor::from_vec(vec![1u32; words], &[words])?.to_device(device, true)?;
    let expected = match raw {
        Some(raw) => raw.write_slowly(device, &mut there, 7, STEP)?,
        None => 1,
    };
    let download = there.to_host(true)?; // at once: the kernel still runs
    let is_ready = download.is_ready()?;
    let words = download.wait()?; // and this waits, for the kernel and the copy
    let wrong = words
        .as_slice()
        .iter()
        .filter(|word| **word != expected)
        .count()
        * 4;
    count("there.to_host(true)?.wait()?", wrong, words.size_bytes());
    println!(
        "    (was the copy done when `to_host` returned? {})",
        if is_ready { "yes" } else { "no" }
    );
    Ok(wrong)
}
