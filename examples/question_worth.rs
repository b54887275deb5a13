//! Does pinning help for one tensor that is used at once? For several inputs? Without workers?
//!
//!     cargo run --release --example question_worth

#[allow(unreachable_pub)] // a module of a program: it is `pub` for the rest of the program
mod args;

use std::process::ExitCode;
use std::time::Instant;

use pinfeed::{Batch, BoxError, DataLoader, Device, Sample, Tensor, from_fn};

const HELP: &str = "\
Measures where pinning helps: for one tensor that is used at once, for several inputs, and without workers.

cargo run --release --example question_worth -- [OPTIONS]

  --device DEVICE     cpu or cuda:0 (default: the first CUDA device, or the CPU if there is none)
  --repeats N         copies, and batches, to measure (default: 40)
  --help              this text";

fn main() -> ExitCode {
    args::start(HELP, run)
}

fn run(mut options: args::Options) -> Result<(), BoxError> {
    let device = options.device()?;
    let repeats = options.positive("--repeats")?.unwrap_or(40);
    options.finish()?;
    println!(
        "{}{}\n",
        device.info()?.name,
        if device.is_cpu() {
            ": no link and no driver, so only the host's part shows"
        } else {
            ""
        }
    );

    println!("One tensor of 32 MB, used at once: milliseconds until it is on the device");
    let source = Tensor::from_vec(vec![1.0f32; 8_000_000], &[8_000_000])?;
    let pinned = source.view().pin(&device)?;
    let staged = ms(repeats, || {
        Ok(source.view().to_device(&device, false).map(drop)?)
    })?;
    let afresh = ms(repeats, || {
        device.release_pinned();
        Ok(source
            .view()
            .pin(&device)?
            .to_device(&device, false)
            .map(drop)?)
    })?;
    let once = ms(repeats, || {
        Ok(pinned.view().to_device(&device, false).map(drop)?)
    })?;
    println!("  from ordinary memory (staged)     {staged:8.2}");
    println!("  pinned for this copy              {afresh:8.2}");
    println!("  pinned once, before               {once:8.2}");
    for (name, tensor) in [("from ordinary memory", &source), ("pinned once", &pinned)] {
        println!(
            "  until to_device(.., true) returns {:8.3}  {name}",
            returns(repeats, tensor, &device)?
        );
    }
    println!(
        "Does it help? Pinning for one copy {}; memory that stays pinned {}.",
        than(afresh, staged),
        than(once, staged)
    );

    println!("\nA loop over 8 MB batches, milliseconds a batch      not pinned     pinned");
    for (inputs, workers) in [(1, 0), (1, 2), (4, 0), (4, 2)] {
        let measure = |pin| match inputs {
            1 => batches(&device, (workers, pin), repeats, |index| row(index, 1)),
            _ => batches(&device, (workers, pin), repeats, |index| {
                (row(index, 4), row(index, 4), row(index, 4), row(index, 4))
            }),
        };
        let (plain, pinned) = (measure(false)?, measure(true)?);
        let name = format!(
            "{inputs} input{}, {workers} workers",
            if inputs == 1 { "" } else { "s" }
        );
        println!(
            "  {name:<46} {plain:>12.2} {pinned:>10.2}   pinning {}",
            than(pinned, plain)
        );
    }
    println!(
        "Several inputs of a batch lie in one slab: it is page-locked once, however many there are."
    );
    println!(
        "Without workers the program's own thread loads, into the same slabs; pinning needs no workers."
    );
    Ok(())
}

/// In words, of milliseconds; a difference of 5 % is none.
fn than(this: f64, other: f64) -> String {
    match this / other {
        ratio if ratio > 1.05 => format!("takes {ratio:.2} times as long"),
        ratio if ratio < 0.95 => format!("is {:.2} times as fast", 1.0 / ratio),
        _ => "makes no difference".to_owned(),
    }
}

/// Milliseconds of each, after two that warm up.
fn ms(repeats: usize, mut step: impl FnMut() -> Result<(), BoxError>) -> Result<f64, BoxError> {
    (0..2).try_for_each(|_| step())?;
    let start = Instant::now();
    (0..repeats).try_for_each(|_| step())?;
    Ok(start.elapsed().as_secs_f64() * 1e3 / repeats as f64)
}

/// Milliseconds that a call takes which does not wait for the copy.
fn returns(repeats: usize, tensor: &Tensor<f32>, device: &Device) -> Result<f64, BoxError> {
    let mut seconds = 0.0;
    for _ in 0..repeats {
        let start = Instant::now();
        let there = tensor.view().to_device(device, true)?;
        seconds += start.elapsed().as_secs_f64();
        there.synchronize()?;
    }
    Ok(seconds * 1e3 / repeats as f64)
}

/// Milliseconds a batch of 64 samples, two batches ahead.
fn batches<S>(
    device: &Device,
    (workers, pin): (usize, bool),
    repeats: usize,
    sample: fn(u64) -> S,
) -> Result<f64, BoxError>
where
    S: Sample<Batch: Batch>,
{
    let samples = from_fn(repeats as u64 * 64, move |index, _| Ok(sample(index)));
    let mut builder = DataLoader::builder(samples)
        .batch_size(64)
        .num_workers(workers);
    if pin {
        builder = builder.pin_memory(device);
    }
    let loader = builder.build()?;
    let epoch = |number| -> Result<(), BoxError> {
        loader
            .epoch(number)
            .prefetch_to_device(device, 2)
            .try_for_each(|batch| Ok(batch.map(drop)?))
    };
    epoch(0)?; // it warms up: memory is page-locked now
    let start = Instant::now();
    epoch(1)?;
    Ok(start.elapsed().as_secs_f64() * 1e3 / repeats as f64)
}

/// Part of a sample: 64 of the whole ones are 8 MB.
fn row(index: u64, parts: usize) -> Vec<f32> {
    vec![index as f32; 31_250 / parts]
}
