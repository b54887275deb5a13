//! The other lines of `overlap`: how long a training thread takes to launch a kernel, beside something and alone.
//!
//! A thread that is slow to launch starves the device even if every batch is there. The kernel does nothing. Phases beside
//! something and alone follow each other, so that the machine's noise is seen. Beside:
//!
//! - `launch`: a loader that feeds `u8` images to the same device flat out, from another thread and over another stream;
//! - `launch_paced`: the same loader, of whose batches one is taken in each step's time;
//! - `launch_copies`: no loader, but bare copies from page-locked memory: the link alone;
//! - `launch_memcpy`: no loader and no copies to the device: as many threads as the loader has workers copy memory.

use std::sync::atomic::Ordering;
use std::thread;
use std::time::{Duration, Instant};

use pinfeed::{DataLoader, Device, Tensor, TensorDataset};

use crate::Outcome;
use crate::args::Args;
use crate::drive::{self, Seen, Way};
use crate::gather::{self, Direction, Ends};
use crate::report::{Record, Report};
use crate::step::Stepper;
use crate::target::Target;
use crate::window::{Waits, median};

/// After so many launches the stream is waited for, so that no launch waits for room in its queue.
const BURST: usize = 64;

pub fn measure(
    args: &Args,
    target: &Target,
    rows: &Tensor<u8>,
    workers: usize,
    batch_size: usize,
    report: &mut Report,
) -> Outcome {
    let device = target.device()?;
    let loader = DataLoader::builder(TensorDataset::new(rows.view())?)
        .batch_size(batch_size)
        .shuffle(true)
        .seed(args.seed)
        .num_workers(workers)
        .pin_memory(&device)
        .build()?;
    let stepper = Stepper::new(target, &device.stream()?, Duration::ZERO)?;
    let launches = Launches {
        stepper: &stepper,
        phase: args.seconds(2.0) / 4,
        pairs: args.pairs,
    };
    launches.run()?; // to warm up

    let (step, way) = (args.step(20.0), Way::Ahead(args.depth));
    let bytes = batch_size * ROW_BYTES;
    let flat_out = |ends: &Ends| feed(&loader, &device, way, Duration::ZERO, ends);
    let paced = |ends: &Ends| feed(&loader, &device, way, step, ends);
    // Long enough for the phase, whatever it begins with.
    let copies = |ends: &Ends| {
        ends.ready.store(true, Ordering::Relaxed);
        target.copy_rate(Direction::ToDevice, bytes, launches.phase * 2)
    };
    let memcpy = |ends: &Ends| Ok(gather::memcpy_until(MEMCPY_BYTES, workers.max(1), ends));
    let beside: [(&str, &Beside<'_>); 4] = [
        ("launch", &flat_out),
        ("launch_paced", &paced),
        ("launch_copies", &copies),
        ("launch_memcpy", &memcpy),
    ];
    for (variant, beside) in beside {
        let mut record = Record::new("overlap", target.name);
        record.workers = Some(workers);
        record.batch_size = Some(batch_size);
        record.dtype = Some("u8");
        report.print(&launches.compare(record.with("variant", variant), beside)?);
    }
    Ok(())
}

/// What runs beside the launches, between its two ends; it returns its GB/s.
type Beside<'a> = dyn Fn(&Ends) -> Outcome<f64> + Sync + 'a;

struct Launches<'a> {
    stepper: &'a Stepper<'a>,
    phase: Duration,
    pairs: usize,
}

impl Launches<'_> {
    fn compare(&self, mut record: Record, beside: &Beside<'_>) -> Outcome<Record> {
        let (mut quiet, mut busy, mut ratios, mut rates) = (vec![], vec![], vec![], vec![]);
        for _ in 0..self.pairs {
            let off = Phase::of(self.run()?);
            let (on, gb_s) = self.run_beside(beside)?;
            let on = Phase::of(on);
            ratios.push(on.p99_us / off.p99_us);
            rates.push(gb_s);
            quiet.push(off);
            busy.push(on);
        }
        record.gb_s = Some(median(rates));
        let middle = |phases: &[Phase], of: fn(&Phase) -> f64| {
            median(phases.iter().map(of).collect::<Vec<_>>())
        };
        let p99s = |phases: &[Phase]| phases.iter().map(|phase| phase.p99_us).collect::<Vec<_>>();
        let least = ratios.iter().copied().fold(f64::INFINITY, f64::min);
        let most = ratios.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        Ok(record
            .with_number("p50_off_us", middle(&quiet, |phase| phase.p50_us))
            .with_number("p50_on_us", middle(&busy, |phase| phase.p50_us))
            .with_number("p99_off_us", middle(&quiet, |phase| phase.p99_us))
            .with_number("p99_on_us", middle(&busy, |phase| phase.p99_us))
            .with_number("p999_off_us", middle(&quiet, |phase| phase.p999_us))
            .with_number("p999_on_us", middle(&busy, |phase| phase.p999_us))
            .with_number("p99_ratio_median", median(ratios))
            .with_number("p99_ratio_min", least)
            .with_number("p99_ratio_max", most)
            .with_numbers("p99s_off_us", &p99s(&quiet))
            .with_numbers("p99s_on_us", &p99s(&busy))
            .with_number("phase_s", self.phase.as_secs_f64()))
    }

    /// How long each launch takes, for a phase.
    fn run(&self) -> Outcome<Waits> {
        let (begun, mut launches) = (Instant::now(), Waits::default());
        while begun.elapsed() < self.phase {
            for _ in 0..BURST {
                let asked = Instant::now();
                self.stepper.launch_nothing()?;
                launches.push(asked.elapsed());
            }
            self.stepper.drain()?;
        }
        Ok(launches)
    }

    /// A phase beside something, and the GB/s of that.
    fn run_beside(&self, beside: &Beside<'_>) -> Outcome<(Waits, f64)> {
        let ends = Ends::default();
        thread::scope(|scope| {
            let busy = scope.spawn(|| {
                let gb_s = beside(&ends);
                ends.ready.store(true, Ordering::Relaxed); // also where it failed at once
                gb_s
            });
            while !ends.ready.load(Ordering::Relaxed) {
                thread::sleep(Duration::from_millis(1));
            }
            thread::sleep(SETTLING);
            let launches = self.run();
            ends.stop.store(true, Ordering::Relaxed);
            let gb_s = busy
                .join()
                .unwrap_or_else(|_| Err("what ran beside the launches panicked".into()))?;
            Ok((launches?, gb_s))
        })
    }
}

/// So long something runs before launches beside it are measured.
const SETTLING: Duration = Duration::from_millis(50);

struct Phase {
    p50_us: f64,
    p99_us: f64,
    p999_us: f64,
}

impl Phase {
    fn of(mut launches: Waits) -> Phase {
        let mut us = |share| launches.percentile_ms(share).unwrap_or(f64::NAN) * 1e3;
        Phase {
            p50_us: us(0.5),
            p99_us: us(0.99),
            p999_us: us(0.999),
        }
    }
}

/// Feeds the device, epoch after epoch, a batch in each `step`.
fn feed(
    loader: &DataLoader<Tensor<u8>>,
    device: &Device,
    way: Way,
    step: Duration,
    ends: &Ends,
) -> Outcome<f64> {
    let (stream, mut number) = (device.stream()?, 0);
    let (mut batches, mut begun) = (0u64, Instant::now());
    while !ends.stop.load(Ordering::Relaxed) {
        let mut go_on = || {
            // The first batches page-lock.
            if batches == WARM_UP {
                begun = Instant::now();
                ends.ready.store(true, Ordering::Relaxed);
            }
            batches += 1;
            thread::sleep(step);
            !ends.stop.load(Ordering::Relaxed)
        };
        let on = (device, &stream);
        let seen = &mut Seen::default();
        drive::epoch(loader, number, way, on, &mut go_on, &mut drive::touch, seen)?;
        number += 1;
    }
    stream.synchronize()?;
    let bytes = (batches - WARM_UP) as f64 * (loader.batch_size() * ROW_BYTES) as f64;
    Ok(bytes / begun.elapsed().as_secs_f64() / 1e9)
}

const WARM_UP: u64 = 10;

const MEMCPY_BYTES: usize = 64 << 20;

const ROW_BYTES: usize = 3 * 224 * 224;
