//! The second line of `overlap`: how long a training thread takes to launch a kernel, while a loader runs flat out and
//! while it does not.
//!
//! A thread that is slow to launch starves the device even if every batch is there. The kernel does nothing; the loader
//! feeds `u8` images to the same device from another thread, over another stream. Phases with and without it follow each
//! other, so that the machine's noise is seen.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use pinfeed::{DataLoader, Device, Tensor, TensorDataset};

use crate::Outcome;
use crate::args::Args;
use crate::drive::{self, Seen, Way};
use crate::report::Record;
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
) -> Outcome<Record> {
    let device = target.device()?;
    let loader = DataLoader::builder(TensorDataset::new(rows.view())?)
        .batch_size(batch_size)
        .shuffle(true)
        .seed(args.seed)
        .num_workers(workers)
        .pin_memory(&device)
        .build()?;
    let stepper = Stepper::new(target, &device.stream()?, Duration::ZERO)?;
    let phase = args.seconds(2.0) / 4;
    launches(&stepper, phase)?; // to warm up

    let (mut quiet, mut busy, mut ratios, mut rates) = (vec![], vec![], vec![], vec![]);
    for _ in 0..args.pairs {
        let off = Phase::of(launches(&stepper, phase)?);
        let (on, gb_s) = beside(&loader, &device, || launches(&stepper, phase))?;
        let on = Phase::of(on);
        ratios.push(on.p99_us / off.p99_us);
        rates.push(gb_s);
        quiet.push(off);
        busy.push(on);
    }

    let mut record = Record::new("overlap", target.name);
    record.workers = Some(workers);
    record.batch_size = Some(batch_size);
    record.dtype = Some("u8");
    record.gb_s = Some(median(rates));
    let middle =
        |phases: &[Phase], of: fn(&Phase) -> f64| median(phases.iter().map(of).collect::<Vec<_>>());
    let p99s = |phases: &[Phase]| phases.iter().map(|phase| phase.p99_us).collect::<Vec<_>>();
    let least = ratios.iter().copied().fold(f64::INFINITY, f64::min);
    let most = ratios.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    Ok(record
        .with("variant", "launch")
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
        .with_number("phase_s", phase.as_secs_f64()))
}

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

/// How long each launch takes, for so long.
fn launches(stepper: &Stepper<'_>, phase: Duration) -> Outcome<Waits> {
    let (begun, mut launches) = (Instant::now(), Waits::default());
    while begun.elapsed() < phase {
        for _ in 0..BURST {
            let asked = Instant::now();
            stepper.launch_nothing()?;
            launches.push(asked.elapsed());
        }
        stepper.drain()?;
    }
    Ok(launches)
}

/// Runs `f` while a thread feeds the device; returns its rate too.
fn beside<R>(
    loader: &DataLoader<Tensor<u8>>,
    device: &Device,
    f: impl FnOnce() -> Outcome<R>,
) -> Outcome<(R, f64)> {
    let (stop, fed) = (AtomicBool::new(false), AtomicU64::new(0));
    let feed = || -> Outcome {
        let (stream, mut number) = (device.stream()?, 0);
        while !stop.load(Ordering::Relaxed) {
            let mut go_on = || {
                fed.fetch_add(1, Ordering::Relaxed);
                !stop.load(Ordering::Relaxed)
            };
            let on = (device, &stream);
            drive::epoch(
                loader,
                number,
                Way::Loop,
                on,
                &mut go_on,
                &mut Seen::default(),
            )?;
            number += 1;
        }
        Ok(stream.synchronize()?)
    };
    thread::scope(|scope| {
        let feeder = scope.spawn(|| {
            let fed = feed();
            stop.store(true, Ordering::Relaxed);
            fed
        });
        // The first batches page-lock.
        while fed.load(Ordering::Relaxed) < 20 && !stop.load(Ordering::Relaxed) {
            thread::sleep(Duration::from_millis(1));
        }
        let (begun, before) = (Instant::now(), fed.load(Ordering::Relaxed));
        let result = f();
        let batches = fed.load(Ordering::Relaxed) - before;
        let seconds = begun.elapsed().as_secs_f64();
        stop.store(true, Ordering::Relaxed);
        feeder
            .join()
            .unwrap_or_else(|_| Err("the feeding thread panicked".into()))?;
        let bytes = batches as f64 * loader.batch_size() as f64 * ROW_BYTES;
        Ok((result?, bytes / seconds / 1e9))
    })
}

const ROW_BYTES: f64 = (3 * 224 * 224) as f64;
