//! Does page-locked memory accumulate? How is it given back?
//!
//!     cargo run --release --example question_growth

#[allow(unreachable_pub)] // a module of a program: it is `pub` for the rest of the program
mod args;

use std::process::ExitCode;
use std::time::Duration;
use std::{fs, thread};

use pinfeed::{BoxError, DataLoader, Device, Tensor, from_fn};

const HELP: &str = "\
Runs epochs, and prints after each how much memory is page-locked; then gives it back in three ways.

cargo run --release --example question_growth -- [OPTIONS]

  --device DEVICE     cpu or cuda:0 (default: the first CUDA device, or the CPU if there is none)
  --epochs N          epochs to run (default: 8)
  --help              this text";

/// What a loader may have: `prefetch`, the depth of `prefetch_to_device`, and two.
const SLABS: u64 = 4 + 2 + 2;

fn main() -> ExitCode {
    args::start(HELP, run)
}

fn run(mut options: args::Options) -> Result<(), BoxError> {
    let device = options.device()?;
    let epochs = options.positive("--epochs")?.unwrap_or(8) as u64;
    options.finish()?;
    println!(
        "Batches of 8 MB; at most {SLABS} slabs: 4 batches ahead, 2 on the device, 2 to hand over.\n"
    );
    println!(
        "{:<58} {:>12} {:>10} {:>12}",
        device.name(),
        "page-locked",
        "of it idle",
        "slabs so far"
    );
    let loader = || {
        // A megabyte a sample.
        let samples = from_fn(96, |index, _| Ok(vec![index as f32; 250_000]));
        DataLoader::builder(samples)
            .batch_size(8)
            .num_workers(2)
            .prefetch(4)
            .pin_memory(&device)
            .build()
    };
    let first = loader()?;
    let mut locked = Vec::new();
    for epoch in 0..epochs {
        for batch in first.epoch(epoch).prefetch_to_device(&device, 2) {
            batch?.synchronize()?; // the program uses it
        }
        locked.push(print(&device, &format!("epoch {epoch}")));
    }
    drop(first);
    print(&device, "the loader is dropped: the ring keeps its slabs");
    let second = loader()?;
    for batch in second.epoch(0).prefetch_to_device(&device, 2) {
        batch?.synchronize()?;
    }
    let again = print(&device, "another loader, one epoch: it uses them again");
    drop(second);

    device.set_pinned_budget_bytes(20_000_000);
    let lowered = print(&device, "set_pinned_budget_bytes(20_000_000)");
    let given_back = device.release_pinned();
    let released = print(
        &device,
        &format!(
            "release_pinned() gave back {:.1} MB",
            given_back as f64 / 1e6
        ),
    );

    drop_device(device)?;

    let most = locked.iter().chain([&again]).max();
    let most = most.copied().unwrap_or_default();
    let grows = again.1 > SLABS; // (until here, none was given back)
    let answer = match grows {
        true => format!("Yes: more than {SLABS} slabs were locked."),
        false => format!(
            "No. A loader has at most {SLABS} slabs (see above), and another one takes the same."
        ),
    };
    println!("\nDoes it accumulate? {answer}");
    let is_back = lowered.0 <= 20_000_000.min(most.0) && released.0 == 0;
    let back = match is_back {
        true => "By a lower budget, by release_pinned, or by dropping the device.",
        false => "Not as asked: some of it is in use, see above.",
    };
    println!("How is it given back? {back}");
    println!(
        "It is never given back unasked: unlocking waits for running kernels, and would hold up the loop."
    );
    if grows || !is_back {
        return Err("page-locked memory grew, or was not given back".into());
    }
    Ok(())
}

/// Locks 256 MB more, drops the device, and prints what the system says before and after.
fn drop_device(device: Device) -> Result<(), BoxError> {
    device.set_pinned_budget_bytes(300_000_000);
    drop(Tensor::<u8>::zeros(&[256_000_000]).pin(&device)?);
    print(&device, "256 MB more, and nothing uses them");
    let system = || {
        let read = |file| fs::read_to_string(file).unwrap_or_default(); // (on Linux)
        let (own, all) = (read("/proc/self/status"), read("/proc/meminfo"));
        let kib = |text: &str, key| {
            text.lines().find_map(|line| {
                line.strip_prefix(key)?
                    .split_whitespace()
                    .next()?
                    .parse::<f64>()
                    .ok()
            })
        };
        [kib(&own, "VmLck:"), kib(&all, "MemAvailable:")]
            .map(|kib| kib.unwrap_or(f64::NAN) * 1.024e-3)
    };
    let before = system();
    drop(device);
    thread::sleep(Duration::from_millis(500));
    let after = system();
    println!(
        "the device is dropped: locked by mlock {:.0} MB, then {:.0}; free in the system {:.0}, then {:.0}",
        before[0], after[0], before[1], after[1]
    );
    Ok(())
}

/// Page-locked bytes and slabs made so far.
fn print(device: &Device, when: &str) -> (usize, u64) {
    let memory = device.memory();
    let [locked, idle] =
        [memory.pinned_bytes, memory.pinned_idle_bytes].map(|bytes| bytes as f64 / 1e6);
    println!(
        "{when:<58} {locked:>9.1} MB {idle:>7.1} MB {:>12}",
        memory.slabs_made
    );
    (memory.pinned_bytes, memory.slabs_made)
}
