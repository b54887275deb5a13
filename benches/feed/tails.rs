//! `tails`: samples that take much longer than others. Does the loop wait for them, and are workers idle meanwhile?
//!
//! Samples take a millisecond of a core each. `uniform`: all of them; `percent`: one of a hundred takes 20 times as long;
//! `stuck`: a third of the way through, one sleeps for two seconds, as a file on a network may. A device step of a fixed
//! length runs beside, so that loading takes 0.8 of the time on average. Batches come in order, so that a loop waits for
//! a stuck one once what was loaded ahead is used up: `--prefetch` says how much that is.

use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use pinfeed::{DataLoader, Device, SampleRng, Tensor, from_fn};

use crate::args::{Args, cores};
use crate::drive::{Arrived, ms};
use crate::overlap::{burn, rounds_per_second};
use crate::report::{Record, Report};
use crate::step;
use crate::target::Target;
use crate::{Outcome, data};

const SHAPE: [usize; 3] = [3, 224, 224];

/// The rows that the samples are copied from.
const ROWS: usize = 256;

const SAMPLE: Duration = Duration::from_millis(1);

/// How much longer one of a hundred takes.
const LONGER: u64 = 20;

const STUCK: Duration = Duration::from_secs(2);

/// How much of the step loading a batch takes.
const LOAD_SHARE: f64 = 0.8;

#[derive(Clone, Copy, PartialEq)]
enum Tail {
    Uniform,
    Percent,
    /// The sample that is stuck.
    Stuck(u64),
}

pub fn run(args: &Args, report: &mut Report) -> Outcome {
    let [channels, height, width] = SHAPE;
    let rows = data::random::<u8>(&[ROWS, channels, height, width], args.seed)?;
    for &name in &args.devices {
        let target = Target::open(name)?;
        for &workers in &args.workers(&[cores()]) {
            if workers == 0 {
                return Err("--workers: without workers the loop waits for every sample".into());
            }
            for &batch_size in &args.batch_sizes(256) {
                let tails = Tails {
                    args,
                    target: &target,
                    rows: Arc::new(rows.view()),
                    rounds: (rounds_per_second() * SAMPLE.as_secs_f64()) as u64,
                    workers,
                    batch_size,
                };
                for variant in args.variants(&["uniform", "percent", "stuck"], 3) {
                    report.print(&tails.measure(variant)?);
                }
            }
        }
    }
    Ok(())
}

struct Tails<'a> {
    args: &'a Args,
    target: &'a Target,
    rows: Arc<Tensor<u8>>,
    /// What a sample costs, in rounds of `burn`.
    rounds: u64,
    workers: usize,
    batch_size: usize,
}

impl Tails<'_> {
    fn measure(&self, variant: &'static str) -> Outcome<Record> {
        let device = self.target.device()?;
        let stream = device.stream()?;
        let factor = match variant {
            "percent" => 0.99 + 0.01 * LONGER as f64,
            _ => 1.0,
        };
        let step = self.load_time(&device)?.mul_f64(factor / LOAD_SHARE);
        let seconds = self.args.seconds(10.0).as_secs_f64();
        let steps = ((seconds / step.as_secs_f64()) as u64).max(20);
        let baseline = step::run(self.target, &stream, step, 20, |stepper, _| stepper.step())?;

        let tail = match variant {
            "percent" => Tail::Percent,
            "stuck" => Tail::Stuck((steps / 3 * 2 + 1) * self.batch_size as u64 / 2),
            _ => Tail::Uniform,
        };
        let loader = self.loader(tail, &device)?;
        let begun = Instant::now();
        let mut epoch = loader.epoch(0).prefetch_to_device(&device, self.args.depth);
        let mut run = step::run(self.target, &stream, step, steps, |stepper, waits| {
            let asked = Instant::now();
            let batch = epoch.next().ok_or("the epoch is over")??;
            waits.push(asked.elapsed());
            batch.with(&stream, &mut || stepper.step())?;
            Ok(())
        })?;
        let (elapsed, stats) = (begun.elapsed(), loader.stats());
        let busy = stats.loading.total + stats.decoding.total + stats.collating.total;
        let busy = busy.as_secs_f64() / elapsed.as_secs_f64() / self.workers as f64;
        let most = run.waits.percentile_ms(1.0).unwrap_or(f64::NAN);
        let idle = 1.0 - baseline.seconds_per_step / run.seconds_per_step;

        let mut record = Record::new("tails", self.target.name)
            .measured(&run.measured)
            .waited(&mut run.waits);
        record.workers = Some(self.workers);
        record.batch_size = Some(self.batch_size);
        record.dtype = Some("u8");
        record.batches_s = Some(1.0 / run.seconds_per_step);
        record.samples_s = Some(self.batch_size as f64 / run.seconds_per_step);
        record.pinned_mb = Some(device.memory().pinned_bytes as f64 / 1e6);
        Ok(record
            .with("variant", variant)
            .with_number("wait_max_ms", most)
            .with_number("busy_workers_share", busy)
            .with_number("idle_share", idle)
            .with_number("step_ms", ms(step))
            .with_number("baseline_step_ms", baseline.seconds_per_step * 1e3)
            .with_number("loaded_step_ms", run.seconds_per_step * 1e3)
            .with("steps", steps)
            .with("prefetch", self.args.prefetch(self.workers)))
    }

    fn loader(&self, tail: Tail, device: &Device) -> Outcome<DataLoader<Tensor<u8>>> {
        let (rows, rounds) = (Arc::clone(&self.rows), self.rounds);
        let get = move |index: u64, rng: &mut SampleRng| {
            match tail {
                Tail::Percent if rng.bool(0.01) => burn(rounds * LONGER),
                Tail::Stuck(stuck) if index == stuck => thread::sleep(STUCK),
                _ => burn(rounds),
            }
            Ok(rows.row(index as usize % ROWS))
        };
        let mut builder = DataLoader::builder(from_fn(1u64 << 40, get))
            .batch_size(self.batch_size)
            .seed(self.args.seed)
            .num_workers(self.workers)
            .pin_memory(device);
        if let Some(prefetch) = self.args.prefetch(self.workers) {
            builder = builder.prefetch(prefetch);
        }
        Ok(builder.build()?)
    }

    /// How long a batch of equal samples takes to load, with nothing beside.
    fn load_time(&self, device: &Device) -> Outcome<Duration> {
        let loader = self.loader(Tail::Uniform, device)?;
        let stream = device.stream()?;
        let mut epoch = loader.epoch(0).prefetch_to_device(device, self.args.depth);
        let mut next = || -> Outcome {
            epoch.next().ok_or("the epoch is over")??.touch(&stream)?;
            Ok(())
        };
        for _ in 0..5 {
            next()?;
        }
        let (begun, mut batches) = (Instant::now(), 0);
        while batches < 10 || begun.elapsed() < Duration::from_millis(500) {
            next()?;
            batches += 1;
        }
        Ok(begun.elapsed() / batches)
    }
}
