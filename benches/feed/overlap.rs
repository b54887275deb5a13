//! `overlap`: a fixed device step beside loading. What does the loop lose to the loader?
//!
//! Each sample costs so much CPU that loading, with half the cores, takes 0.8 of the step: a loader that overlaps well
//! loses nothing. The loop takes a batch, sends it, lends it to its stream and launches the step; the host runs at most
//! two steps ahead. The baseline is the same loop over one batch that lies on the device, while no loader is alive.
//! Both are run in turn, in pairs, so that the machine's noise is seen beside the loss.
//!
//! A second line is about the launching thread: see `launch.rs`.

use std::hint::black_box;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use pinfeed::{Batch, DataLoader, Device, Stream, Tensor, from_fn};

use crate::args::{Args, cores};
use crate::drive::{Arrived, ms};
use crate::report::{Record, Report};
use crate::step::{self, Run, Stepper};
use crate::target::Target;
use crate::window::{Measured, Waits, median};
use crate::{Outcome, data, launch};

const SHAPE: [usize; 3] = [3, 224, 224];

/// The rows that the samples are copied from.
const ROWS: usize = 2_000;

/// How much of the step loading a batch takes.
const LOAD_SHARE: f64 = 0.8;

/// Batches in the one epoch of a half: more than it takes, so that no epoch's end lies in it.
const BATCHES: u64 = 1 << 30;

pub fn run(args: &Args, report: &mut Report) -> Outcome {
    for &name in &args.devices {
        let target = Target::open(name)?;
        let [channels, height, width] = SHAPE;
        let rows = data::random::<u8>(&[ROWS, channels, height, width], args.seed)?;
        for &workers in &args.workers(&[(cores() / 2).max(1)]) {
            for &batch_size in &args.batch_sizes(256) {
                let device = target.device()?;
                let overlap = Overlap {
                    args,
                    target: &target,
                    stream: device.stream()?,
                    device: &device,
                    rows: Arc::new(rows.view()),
                    work: Arc::new(AtomicU64::new(0)),
                    workers,
                    batch_size,
                    step: args.step(20.0),
                };
                report.print(&overlap.measure()?);
                drop(overlap);
                launch::measure(args, &target, &rows, workers, batch_size, report)?;
            }
        }
    }
    Ok(())
}

struct Overlap<'a> {
    args: &'a Args,
    target: &'a Target,
    device: &'a Device,
    stream: Stream,
    rows: Arc<Tensor<u8>>,
    /// What each sample costs, in rounds of `burn`.
    work: Arc<AtomicU64>,
    workers: usize,
    batch_size: usize,
    step: Duration,
}

impl Overlap<'_> {
    fn measure(&self) -> Outcome<Record> {
        let load_share = self.calibrate()?;
        let seconds = self.args.seconds(2.0).as_secs_f64();
        let steps = ((seconds / self.step.as_secs_f64()) as u64).max(20);

        let (mut losses, mut alone, mut beside) = (Vec::new(), Vec::new(), Vec::new());
        let (mut waits, mut measured) = (Waits::default(), None::<Measured>);
        for pair in 0..self.args.pairs {
            // In turn, so that a drift of the machine's favours neither.
            let baseline_first = pair % 2 == 0;
            let mut baseline = None;
            if baseline_first {
                baseline = Some(self.baseline(steps)?);
            }
            let loaded = self.loaded(steps)?;
            let baseline = match baseline {
                Some(baseline) => baseline,
                None => self.baseline(steps)?,
            };
            losses.push(1.0 - baseline.seconds_per_step / loaded.seconds_per_step);
            alone.push(baseline.seconds_per_step * 1e3);
            beside.push(loaded.seconds_per_step * 1e3);
            waits.extend(&loaded.waits);
            match &mut measured {
                Some(measured) => measured.add(&loaded.measured),
                None => measured = Some(loaded.measured),
            }
        }

        let mut record = Record::new("overlap", self.target.name).waited(&mut waits);
        if let Some(measured) = &measured {
            record = record.measured(measured);
        }
        let rate = 1e3 / median(beside.clone());
        let batch_bytes = self.batch_size * SHAPE.iter().product::<usize>();
        record.workers = Some(self.workers);
        record.batch_size = Some(self.batch_size);
        record.dtype = Some("u8");
        record.batches_s = Some(rate);
        record.samples_s = Some(rate * self.batch_size as f64);
        record.gb_s = Some(rate * batch_bytes as f64 / 1e9);
        record.pinned_mb = Some(self.device.memory().pinned_bytes as f64 / 1e6);
        let p99_share = record.wait_p99_ms.unwrap_or(f64::NAN) / ms(self.step);
        let least = losses.iter().copied().fold(f64::INFINITY, f64::min);
        let most = losses.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        Ok(record
            .with("variant", "loss")
            .with_number("loss_median", median(losses.clone()))
            .with_number("loss_min", least)
            .with_number("loss_max", most)
            .with_numbers("losses", &losses)
            .with_number("step_ms", ms(self.step))
            .with_number("baseline_step_ms", median(alone))
            .with_number("loaded_step_ms", median(beside))
            .with_number("load_share", load_share)
            .with_number("wait_p99_share", p99_share)
            .with("steps", steps)
            .with("prefetch", self.args.prefetch(self.workers)))
    }

    fn loader(&self) -> Outcome<DataLoader<Tensor<u8>>> {
        let (rows, work) = (Arc::clone(&self.rows), Arc::clone(&self.work));
        let samples = from_fn(BATCHES * self.batch_size as u64, move |index, _| {
            burn(work.load(Ordering::Relaxed));
            Ok(rows.row(index as usize % ROWS))
        });
        let mut builder = DataLoader::builder(samples)
            .batch_size(self.batch_size)
            .shuffle(true)
            .seed(self.args.seed)
            .num_workers(self.workers)
            .pin_memory(self.device);
        if let Some(prefetch) = self.args.prefetch(self.workers) {
            builder = builder.prefetch(prefetch);
        }
        Ok(builder.build()?)
    }

    /// Finds the work per sample with which loading alone takes its share of the step; returns the share that it takes.
    fn calibrate(&self) -> Outcome<f64> {
        let goal = self.step.as_secs_f64() * LOAD_SHARE;
        let idle = self.load_time(0)?;
        if idle >= goal {
            eprintln!(
                "note: loading takes {:.2} of the step without any work in the samples: raise --step-ms or --workers",
                idle / self.step.as_secs_f64()
            );
            return Ok(idle / self.step.as_secs_f64());
        }
        // A guess from what the work costs on one core, and then closer by what loading with it takes. No step is a
        // large one, so that a moment's noise does not lead far away.
        let per_sample = (goal - idle) * self.workers.max(1) as f64 / self.batch_size as f64;
        let mut work = per_sample * rounds_per_second();
        let mut time = self.load_time(work as u64)?;
        for _ in 0..4 {
            let factor = (goal - idle) / (time - idle).max(1e-9);
            work *= factor.clamp(0.7, 1.4);
            time = self.load_time(work as u64)?;
        }
        Ok(time / self.step.as_secs_f64())
    }

    /// Seconds per batch of loading and sending, with so much work in each sample and no steps beside.
    fn load_time(&self, work: u64) -> Outcome<f64> {
        self.work.store(work, Ordering::Relaxed);
        let loader = self.loader()?;
        let mut epoch = loader.epoch(0);
        let mut next = || -> Outcome {
            let batch = epoch.next().ok_or("the epoch is over")??;
            batch.to_device(self.device, true)?.touch(&self.stream)?;
            Ok(())
        };
        for _ in 0..20 {
            next()?;
        }
        // The better of two: what disturbs makes it longer.
        let mut best = f64::INFINITY;
        for _ in 0..2 {
            let (begun, mut batches) = (Instant::now(), 0);
            while batches < 10 || begun.elapsed() < Duration::from_millis(250) {
                next()?;
                batches += 1;
            }
            best = best.min(begun.elapsed().as_secs_f64() / f64::from(batches));
        }
        Ok(best)
    }

    /// The loop over batches that are loaded beside it.
    fn loaded(&self, steps: u64) -> Outcome<Run> {
        let loader = self.loader()?;
        let mut epoch = loader.epoch(0);
        self.half(steps, |stepper, waits| {
            let asked = Instant::now();
            let batch = epoch.next().ok_or("the epoch is over")??;
            waits.push(asked.elapsed());
            let there = batch.to_device(self.device, true)?;
            there.with(&self.stream, &mut || stepper.step())?;
            Ok(())
        })
    }

    /// The loop over one batch that is there, with no loader alive.
    fn baseline(&self, steps: u64) -> Outcome<Run> {
        let [channels, height, width] = SHAPE;
        let batch = Tensor::<u8>::zeros(&[self.batch_size, channels, height, width]);
        let there = batch.to_device(self.device, false)?;
        self.half(steps, |stepper, _| {
            there.with(&self.stream, &mut || stepper.step())?;
            Ok(())
        })
    }

    fn half(
        &self,
        steps: u64,
        step: impl FnMut(&mut Stepper<'_>, &mut Waits) -> Outcome,
    ) -> Outcome<Run> {
        step::run(self.target, &self.stream, self.step, steps, step)
    }
}

/// How fast one core burns.
pub fn rounds_per_second() -> f64 {
    const ROUNDS: u64 = 10_000_000;
    let begun = Instant::now();
    burn(ROUNDS);
    ROUNDS as f64 / begun.elapsed().as_secs_f64()
}

/// Rounds of arithmetic that wait for each other. (Not a wait by the clock: that would take no longer on a busy core.)
pub fn burn(rounds: u64) {
    let mut word = black_box(1u64);
    for _ in 0..rounds {
        word = word.wrapping_mul(0x5851_f42d_4c95_7f2d).rotate_left(23) ^ rounds;
    }
    black_box(word);
}
