//! What does each thread of a loader do when? Draws a timeline of one epoch, as a page for a browser.
//!
//!     cargo run --release --example timeline -- --out timeline.html
//!
//! A small loop is fed by workers: samples are loaded (a wait, as for a disk), decoded and copied to the device, and the step takes its
//! time. One sample in 50 takes ten times as long, so that one sees what that does. Then it prints where the time went, and how fast the
//! loop would be if loading cost nothing.

#[allow(unreachable_pub)] // a module of a program: it is `pub` for the rest of the program
mod args;

use std::path::PathBuf;
use std::process::ExitCode;
use std::thread;
use std::time::{Duration, Instant};

use pinfeed::error::CollateError;
use pinfeed::sample::{Field, Filled, Layout, Row, Sample};
use pinfeed::{BoxError, DataLoader, Device, DeviceTensor, Result, Stream, Tensor, from_fn};

use args::DeviceName;

const HELP: &str = "\
Draws a timeline of one epoch of a small loop: a row for each thread, in a page for a browser.

cargo run --release --example timeline -- [OPTIONS]

  --device DEVICE     cpu or cuda:0 (default: the first CUDA device, or the CPU if there is none)
  --workers N         threads that load (default: 4)
  --prefetch N        batches that are loaded ahead (default: 2)
  --load-us N         how long a sample takes to load, in microseconds (default: 1000)
  --step-us N         how long a step takes (default: 6000)
  --batches N         batches of the epoch (default: 60)
  --out FILE          writes the page
  --trace FILE        writes the same for https://ui.perfetto.dev
  --help              this text";

const BATCH_SIZE: usize = 16;
const SAMPLE_BYTES: usize = 64 << 10;

/// A sample that is decoded into its row, as a picture would be.
struct Lazy(u64);

impl Sample for Lazy {
    type Batch = Tensor<u8>;
    type Plan = Field<u8>;
    type Rest = ();

    fn plan<'a>(
        _: impl Iterator<Item = &'a Lazy> + Clone,
        layout: &mut Layout,
    ) -> Result<Field<u8>, CollateError> {
        layout.field(&[SAMPLE_BYTES])
    }

    fn fill(self, field: &Field<u8>, row: &mut Row<'_>) -> Result<(), CollateError> {
        row.decoding(|row| {
            let mut state = self.0;
            for byte in row.slice_mut(field)? {
                state = state
                    .wrapping_mul(6_364_136_223_846_793_005)
                    .wrapping_add(1);
                *byte = (state >> 56) as u8;
            }
            Ok(())
        })
    }

    fn finish(field: Field<u8>, _: Vec<()>, filled: &mut Filled) -> Tensor<u8> {
        filled.take(field)
    }
}

struct Options {
    device: Device,
    workers: usize,
    prefetch: usize,
    load: Duration,
    step: Duration,
    batches: usize,
    out: Option<PathBuf>,
    trace: Option<PathBuf>,
}

impl Options {
    fn take(mut options: args::Options) -> Result<Options, BoxError> {
        let device = options.value("--device", "cpu or cuda:0")?;
        let whole = "a whole number, such as 1000";
        let micros = |value: Option<u64>, default| Duration::from_micros(value.unwrap_or(default));
        let taken = Options {
            device: match device {
                Some(DeviceName::Cpu) => Device::cpu(),
                Some(DeviceName::Cuda(ordinal)) => Device::cuda(ordinal)?,
                None => Device::available(),
            },
            workers: options.positive("--workers")?.unwrap_or(4),
            prefetch: options.positive("--prefetch")?.unwrap_or(2),
            load: micros(options.value("--load-us", whole)?, 1_000),
            step: micros(options.value("--step-us", whole)?, 6_000),
            batches: options.positive("--batches")?.unwrap_or(60),
            out: options.path("--out")?,
            trace: options.path("--trace")?,
        };
        options.finish()?;
        Ok(taken)
    }
}

fn main() -> ExitCode {
    args::start(HELP, run)
}

fn run(options: args::Options) -> Result<(), BoxError> {
    let options = Options::take(options)?;
    let (load, device) = (options.load, &options.device);
    let samples = from_fn(options.batches * BATCH_SIZE, move |index, _| {
        let is_slow = index % 50 == 49;
        thread::sleep(if is_slow { load * 10 } else { load });
        Ok(Lazy(index))
    });
    let loader = DataLoader::builder(samples)
        .batch_size(BATCH_SIZE)
        .shuffle(true)
        .num_workers(options.workers)
        .prefetch(options.prefetch)
        .pin_memory(device)
        .build()?;

    let stream = device.stream()?;
    let recording = loader.record();
    for batch in loader.epoch(0).prefetch_to_device(device, 2) {
        step(&batch?, &stream, options.step)?;
    }
    let timeline = recording.finish();
    println!("{}\n", loader.stats());

    let start = Instant::now();
    for batch in loader.replay(0)?.prefetch_to_device(device, 2) {
        step(&batch?, &stream, options.step)?;
    }
    let at_best = start.elapsed().as_secs_f64();
    println!("If loading cost nothing, the epoch would take {at_best:.2} s.");

    match &options.out {
        Some(page) => {
            std::fs::write(page, timeline.to_html())?;
            println!("{}: {} events", page.display(), timeline.len());
        }
        None => println!("{} events; --out FILE writes the page", timeline.len()),
    }
    if let Some(trace) = &options.trace {
        std::fs::write(trace, timeline.to_chrome_trace())?;
    }
    Ok(())
}

/// A training step.
fn step(batch: &DeviceTensor<u8>, stream: &Stream, time: Duration) -> Result<()> {
    let pixels = batch.on(stream)?;
    thread::sleep(time);
    drop(pixels);
    Ok(())
}
