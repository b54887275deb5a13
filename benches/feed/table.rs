//! `table`: a million rows of 20 `f32` and a target in random order: what a row costs that is only copied.
//!
//! In host memory, the limit is a bare loop on as many threads, which copies the same rows in the same order into four slabs, and knows
//! the order beforehand; on the way to a device, no more than bare copies of that size make. No loop does both at that rate, so beside it
//! stand as many threads that gather into page-locked slabs and copy these, one batch a copy and four (`bare_batches_s`,
//! `bare_four_batches_s`). In the device's memory (`resident`: sent
//! ahead, and from the program's loop; `wide`: rows of 4 KiB), it is plain copies of a batch's size within that memory.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use pinfeed::sampler::{RandomSampler, Sampler};
use pinfeed::{Batch, DataLoader, Dataset, Device, Sample, Tensor, TensorDataset};

use crate::Outcome;
use crate::args::Args;
use crate::gather::Direction;
use crate::report::{Record, Report};
use crate::target::{LIMIT, Target};
use crate::window::Window;

/// Where the table is and what becomes of its batches.
pub const VARIANTS: &[&str] = &[
    "host",
    "pinned",
    "loop",
    "ahead",
    "resident",
    "resident_loop",
    "wide",
];

const COLUMNS: usize = 20;

/// The bare loop's rows.
const ROW_BYTES: usize = (COLUMNS + 1) * size_of::<f32>();

/// Looking at the clock takes a part of what a small batch does.
const STRIDE: u64 = 64;

type Rows = (Tensor<f32>, Tensor<f32>);

pub fn run(args: &Args, report: &mut Report) -> Outcome {
    for &name in &args.devices {
        let target = Target::open(name)?;
        for variant in args.variants(VARIANTS, 3) {
            for &batch_size in &args.batch_sizes(1024) {
                for &workers in &args.workers(&[0, 1, 2, 8]) {
                    let run = Run {
                        args,
                        target: &target,
                        variant,
                        workers,
                        batch_size,
                        rows: args.samples.unwrap_or(match variant {
                            "wide" => 200_000,
                            _ => 1_000_000,
                        }),
                    };
                    report.print(&run.measure()?);
                }
            }
        }
    }
    Ok(())
}

struct Run<'a> {
    args: &'a Args,
    target: &'a Target,
    variant: &'static str,
    workers: usize,
    batch_size: usize,
    rows: usize,
}

impl Run<'_> {
    fn columns(&self) -> usize {
        match self.variant {
            "wide" => 1_024,
            _ => COLUMNS,
        }
    }

    fn is_resident(&self) -> bool {
        ["resident", "resident_loop", "wide"].contains(&self.variant)
    }

    fn loader(&self, device: &Device) -> Outcome<DataLoader<Rows>> {
        let columns = self.columns();
        let x = (0..self.rows * columns).map(|at| value(at / columns, at % columns));
        let y = (0..self.rows).map(|row| value(row, columns));
        let x = Tensor::from_vec(x.collect(), &[self.rows, columns])?;
        let table = TensorDataset::new((x, Tensor::from(y.collect::<Vec<f32>>())))?;
        match self.is_resident() {
            true => self.loader_of(table.to_device(device)?, device),
            false => self.loader_of(table, device),
        }
    }

    fn loader_of<D>(&self, table: D, device: &Device) -> Outcome<DataLoader<Rows>>
    where
        D: Dataset,
        D::Sample: Sample<Batch = Rows>,
    {
        let mut builder = DataLoader::builder(table)
            .batch_size(self.batch_size)
            .shuffle(true)
            .seed(self.args.seed)
            .drop_last(true)
            .num_workers(self.workers);
        if self.variant != "host" {
            builder = builder.pin_memory(device);
        }
        if let Some(prefetch) = self.args.prefetch(self.workers) {
            builder = builder.prefetch(prefetch);
        }
        Ok(builder.build()?)
    }

    fn measure(&self) -> Outcome<Record> {
        let device = self.target.device()?;
        let loader = self.loader(&device)?;
        loader.epoch(0).try_for_each(|batch| batch.map(drop))?;

        let before = self.limit()?;
        let window = Window::begin();
        let end = window.begun() + self.args.seconds(2.0);
        let mut batches = 0u64;
        let mut count = || {
            batches += 1;
            batches.is_multiple_of(STRIDE) && Instant::now() >= end
        };
        'window: for number in 1.. {
            if ["ahead", "resident", "wide"].contains(&self.variant) {
                for batch in loader
                    .epoch(number)
                    .prefetch_to_device(&device, self.args.depth)
                {
                    drop(batch?);
                    if count() {
                        break 'window;
                    }
                }
                continue;
            }
            for batch in loader.epoch(number) {
                let batch = batch?;
                if self.variant.ends_with("loop") {
                    drop(batch.to_device(&device, true)?);
                }
                if count() {
                    break 'window;
                }
            }
        }
        // It comes behind all batches that were sent.
        drop(Tensor::from(vec![0u8; 8]).to_device(&device, false)?);
        let measured = window.end();
        if self.args.stats {
            eprintln!("{}", loader.total_stats());
        }
        let limit = before.max(self.limit()?);
        let sending = match self.variant {
            "ahead" => self.bare_sending()?,
            _ => [None; 2],
        };
        let checked = self.check(&loader)?;

        let rate = batches as f64 / measured.window_s;
        let mut record = Record::new("table", self.target.name).measured(&measured);
        record.workers = Some(self.workers);
        record.batch_size = Some(self.batch_size);
        record.dtype = Some("f32");
        record.batches_s = Some(rate);
        record.samples_s = Some(rate * self.batch_size as f64);
        record.gb_s = Some(rate * self.batch_bytes() / 1e9);
        record.limit_gb_s = Some(limit);
        record.pinned_mb = Some(device.memory().pinned_bytes as f64 / 1e6);
        for (key, rate) in ["bare_batches_s", "bare_four_batches_s"]
            .into_iter()
            .zip(sending)
        {
            if let Some(rate) = rate {
                record = record.with_number(key, rate);
            }
        }
        Ok(record
            .with("variant", self.variant)
            .with("rows", self.rows)
            .with_number("ns_per_row", 1e9 / rate / self.batch_size as f64)
            .with_number("limit_batches_s", limit * 1e9 / self.batch_bytes())
            .with("checked_batches", checked))
    }

    /// Batches/s of threads that gather into page-locked slabs and copy these: one batch a copy, and four.
    fn bare_sending(&self) -> Outcome<[Option<f64>; 2]> {
        let (rows, size) = (self.rows, self.batch_size);
        let x = vec![[1u8; COLUMNS * size_of::<f32>()]; rows];
        let y = vec![[1u8; size_of::<f32>()]; rows];
        let mut order = vec![0; rows];
        RandomSampler::with_seed(rows as u64, self.args.seed).indices(1, 0, &mut order);
        let fill = |batch: usize, to: &mut [u8]| {
            let order = &order[batch % (rows / size) * size..][..size];
            let (to_x, to_y) = to.split_at_mut(size_of_val(&x[0]) * size);
            let to_x = to_x.as_chunks_mut::<{ COLUMNS * size_of::<f32>() }>().0;
            let to_y = to_y.as_chunks_mut::<{ size_of::<f32>() }>().0;
            for (to, row) in to_x.iter_mut().zip(order) {
                *to = x[*row as usize];
            }
            for (to, row) in to_y.iter_mut().zip(order) {
                *to = y[*row as usize];
            }
        };
        let rate = |together| {
            let target = self.target;
            target.bare_sending(self.workers, together, size * ROW_BYTES, fill)
        };
        Ok([rate(1)?, rate(4)?])
    }

    fn batch_bytes(&self) -> f64 {
        (self.batch_size * (self.columns() + 1) * size_of::<f32>()) as f64
    }

    /// GB/s of what bounds the variant.
    fn limit(&self) -> Outcome<f64> {
        if self.is_resident() {
            return self.target.within_limit(self.batch_bytes() as usize);
        }
        let threads = self.workers.max(1);
        let copied = bare_loop(self.rows, self.batch_size, threads, self.args.seed);
        if ["host", "pinned"].contains(&self.variant) {
            return Ok(copied);
        }
        let bytes = self.batch_bytes() as usize;
        let sent = self.target.copy_limit(Direction::ToDevice, bytes)?;
        Ok(copied.min(sent))
    }

    /// Compares an epoch with the rows that its order names; returns how many batches.
    fn check(&self, loader: &DataLoader<Rows>) -> Outcome<u64> {
        const EPOCH: u64 = 1 << 40; // one that was not measured
        let columns = self.columns();
        let order = RandomSampler::with_seed(self.rows as u64, self.args.seed);
        let (mut position, mut checked) = (0, 0);
        for batch in loader.epoch(EPOCH) {
            let (x, y) = batch?;
            for (x, y) in x.as_slice().chunks_exact(columns).zip(y.as_slice()) {
                let row = order.index(EPOCH, position) as usize;
                let mut wrong = x
                    .iter()
                    .zip(0..)
                    .map(|(x, column)| *x != value(row, column));
                if wrong.any(|wrong| wrong) || *y != value(row, columns) {
                    return Err(format!("corrupted: position {position} is not row {row}").into());
                }
                position += 1;
            }
            checked += 1;
        }
        let whole = self.rows / self.batch_size * self.batch_size;
        match position == whole as u64 {
            true => Ok(checked),
            false => Err(format!("{position} rows came of {whole}").into()),
        }
    }
}

/// What a table holds: exact in `f32`.
fn value(row: usize, column: usize) -> f32 {
    ((row * 31 + column) % (1 << 24)) as f32
}

/// GB/s of threads that claim batches and copy their rows.
fn bare_loop(rows: usize, batch_size: usize, threads: usize, seed: u64) -> f64 {
    let x: Vec<[f32; COLUMNS]> = (0..rows).map(|row| [row as f32; COLUMNS]).collect();
    let y: Vec<f32> = (0..rows).map(|row| row as f32).collect();
    let mut order = vec![0; rows];
    RandomSampler::with_seed(rows as u64, seed).indices(1, 0, &mut order);
    let batches = rows / batch_size;
    let (next, copied) = (AtomicUsize::new(0), AtomicUsize::new(0));
    let begun = Instant::now();
    thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                let mut slabs: Vec<_> = (0..4)
                    .map(|_| (vec![[0f32; COLUMNS]; batch_size], vec![0f32; batch_size]))
                    .collect();
                let mut made = 0;
                while made == 0 || !is_over(begun, made) {
                    let batch = next.fetch_add(1, Ordering::Relaxed) % batches;
                    let (to_x, to_y) = &mut slabs[made % 4];
                    let order = &order[batch * batch_size..][..batch_size];
                    for (to, row) in to_x.iter_mut().zip(order) {
                        *to = x[*row as usize];
                    }
                    for (to, row) in to_y.iter_mut().zip(order) {
                        *to = y[*row as usize];
                    }
                    std::hint::black_box(&mut slabs);
                    made += 1;
                }
                copied.fetch_add(made, Ordering::Relaxed);
            });
        }
    });
    let bytes = copied.into_inner() * batch_size * ROW_BYTES;
    bytes as f64 / begun.elapsed().as_secs_f64() / 1e9
}

fn is_over(begun: Instant, made: usize) -> bool {
    const BARE: Duration = LIMIT;
    made.is_multiple_of(STRIDE as usize) && begun.elapsed() >= BARE
}
