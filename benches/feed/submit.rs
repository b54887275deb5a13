//! `submit`: what the host pays to send one page-locked batch, and to lend it to a stream: no more than some calls of the driver.
//!
//! Each batch is timed alone, from the call that sends it until it is dropped; loading it is not. Beside it, on CUDA, the bare
//! calls: an asynchronous copy of as many bytes from page-locked memory, and two events from a pool.

use std::time::{Duration, Instant};

use pinfeed::{Batch, DataLoader, Device, Stream, Tensor, TensorDataset};

use crate::Outcome;
use crate::args::Args;
use crate::report::{Record, Report};
use crate::target::Target;
use crate::window::{Waits, Window};

const COLUMNS: usize = 21;
const ROW_BYTES: usize = COLUMNS * size_of::<f32>();

/// Epochs are long beside the beginning, where the library measures each copy; but no table is larger than needed.
const BATCHES: usize = 1024;
const MOST_BYTES: usize = 64 << 20;

/// The first batches make the slabs and the events.
const WARM_UP: usize = 32;

pub fn run(args: &Args, report: &mut Report) -> Outcome {
    for &name in &args.devices {
        let target = Target::open(name)?;
        for batch_size in args.batch_sizes_of(&[32, 12_500]) {
            let bare = bare(&target, batch_size * ROW_BYTES, args.seconds(2.0))?;
            for variant in args.variants(&["upload", "loan"], 2) {
                let run = Run {
                    args,
                    target: &target,
                    variant,
                    batch_size,
                };
                report.print(&run.measure(&bare)?);
            }
        }
    }
    Ok(())
}

/// What the bare calls take, in microseconds; empty on the CPU, which has none.
#[derive(Default)]
pub struct BareCalls {
    /// A copy and two events; the same, with a stream that is made to wait for the first; with events whose waiter sleeps, as the
    /// library's.
    pub two_events: Option<f64>,
    pub ordered: Option<f64>,
    pub sleeping: Option<f64>,
    /// Making a context current that is not, choosing a capture mode, and putting both back.
    pub turn: Option<f64>,
}

fn bare(target: &Target, bytes: usize, duration: Duration) -> Outcome<BareCalls> {
    #[cfg(feature = "cuda")]
    if let Some(bare) = &target.bare {
        return bare.submit_times(bytes, duration);
    }
    let _ = (target, bytes, duration);
    Ok(BareCalls::default())
}

struct Run<'a> {
    args: &'a Args,
    target: &'a Target,
    variant: &'static str,
    batch_size: usize,
}

impl Run<'_> {
    fn loader(&self, device: &Device) -> Outcome<DataLoader<Tensor<f32>>> {
        let bytes = self.batch_size * ROW_BYTES;
        let batches = BATCHES.min(MOST_BYTES.div_ceil(bytes)).max(2);
        let rows = self.args.samples.unwrap_or(batches * self.batch_size);
        let table = (0..rows * COLUMNS).map(|at| at as f32).collect();
        let table = TensorDataset::new(Tensor::from_vec(table, &[rows, COLUMNS])?)?;
        let loader = DataLoader::builder(table)
            .batch_size(self.batch_size)
            .shuffle(true)
            .seed(self.args.seed)
            .drop_last(true)
            .pin_memory(device);
        Ok(loader.build()?)
    }

    /// Sends a batch, and drops it.
    fn send(&self, batch: Tensor<f32>, device: &Device, stream: &Stream) -> Outcome {
        let there = batch.to_device(device, true)?;
        if self.variant == "loan" {
            drop(there.on(stream)?);
        }
        Ok(())
    }

    fn measure(&self, bare: &BareCalls) -> Outcome<Record> {
        let device = self.target.device()?;
        let stream = device.stream()?;
        let loader = self.loader(&device)?;
        let mut waits = Waits::default();
        let (mut sum, mut batches) = (Duration::ZERO, 0usize);
        let window = Window::begin();
        let end = window.begun() + self.args.seconds(2.0);
        let before = loader.total_stats();
        'window: for number in 0.. {
            for batch in loader.epoch(number) {
                let batch = batch?;
                if !batch.is_pinned() {
                    return Err("a batch is not page-locked".into());
                }
                let begun = Instant::now();
                self.send(batch, &device, &stream)?;
                let took = begun.elapsed();
                batches += 1;
                if batches > WARM_UP {
                    waits.push(took);
                    sum += took;
                }
                if batches > 2 * WARM_UP && begun + took >= end {
                    break 'window;
                }
            }
        }
        stream.synchronize()?;
        let measured = window.end();
        let stats = loader.total_stats();
        let memory = device.memory();

        let mean = sum.as_secs_f64() * 1e6 / (batches - WARM_UP) as f64;
        let us = |share: f64, waits: &mut Waits| waits.percentile_ms(share).map(|ms| ms * 1e3);
        let (p50, p99) = (us(0.5, &mut waits), us(0.99, &mut waits));
        let per_batch = |count: u64| count as f64 / batches as f64;
        let mut record = Record::new("submit", self.target.name).measured(&measured);
        record.batch_size = Some(self.batch_size);
        record.dtype = Some("f32");
        record.pinned_mb = Some(memory.pinned_bytes as f64 / 1e6);
        let mut record = record
            .with("variant", self.variant)
            .with("batch_bytes", self.batch_size * ROW_BYTES)
            .with("batches", batches)
            .with_number("us_per_batch", mean)
            .with_number("us_p50", p50.unwrap_or(f64::NAN))
            .with_number("us_p99", p99.unwrap_or(f64::NAN));
        for (key, value) in [
            ("bare_us", bare.two_events),
            ("ratio", bare.two_events.map(|bare| mean / bare)),
            ("bare_ordered_us", bare.ordered),
            ("bare_sleeping_us", bare.sleeping),
            ("bare_turn_us", bare.turn),
        ] {
            record = record.with_number(key, value.unwrap_or(f64::NAN));
        }
        Ok(record
            .with_number(
                "copies_per_batch",
                per_batch(stats.transfers.count - before.transfers.count),
            )
            .with_number("timed_share", per_batch(stats.transfers.each.count()))
            .with("slabs_made", memory.slabs_made)
            .with_number("device_mb", memory.device_bytes as f64 / 1e6)
            .with("leaked", memory.leaked))
    }
}
