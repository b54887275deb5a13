//! What does a batch cost, with dataloader-rs? The workload `tiny` of pinfeed's `feed` bench, with its options and keys.
//!
//!     cargo run --release -- tiny --workers 0,4 --seconds 5 --json
//!
//! Scalars `f32` in memory, shuffled, in batches of 32, on the host. A batch is a `Vec<f32>`: what `DefaultCollator` and
//! `VecCollator` both make of scalars, and the latter for free. Two variants: `get` fetches sample by sample, as a user
//! would begin; `get_batch` is the peer's own way to fetch a batch at once, and its fastest. With workers it is measured
//! with 16 batches ahead, as in the peer's own bench of the same thing, and with 256, which serves it best here.

use std::fs;
use std::hint::black_box;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use dataloader_rs::{DataLoader, Dataset, RandomSampler, error::Result};

const USAGE: &str = "usage: peer-dataloader-rs tiny [--workers 0,4] [--batch-size 32] [--samples 1000000] \
    [--seconds 5] [--prefetch 16,256] [--seed 17] [--json]";

fn main() -> ExitCode {
    match Options::parse(std::env::args().skip(1)) {
        Ok(options) => match run(&options) {
            Ok(()) => ExitCode::SUCCESS,
            Err(error) => {
                eprintln!("{error}");
                ExitCode::FAILURE
            }
        },
        Err(complaint) => {
            eprintln!("{complaint}\n{USAGE}");
            ExitCode::from(2)
        }
    }
}

struct Options {
    workers: Vec<usize>,
    batch_sizes: Vec<usize>,
    samples: usize,
    seconds: f64,
    prefetches: Vec<usize>,
    seed: u64,
    json: bool,
}

impl Options {
    fn parse(arguments: impl Iterator<Item = String>) -> std::result::Result<Options, String> {
        let mut options = Options {
            workers: vec![0, 4],
            batch_sizes: vec![32],
            samples: 1_000_000,
            seconds: 5.0,
            prefetches: vec![16, 256],
            seed: 17,
            json: false,
        };
        let mut workload = None;
        let mut arguments = arguments;
        while let Some(argument) = arguments.next() {
            if argument == "--json" {
                options.json = true;
                continue;
            }
            if !argument.starts_with("--") {
                workload = Some(argument);
                continue;
            }
            let value = arguments
                .next()
                .ok_or_else(|| format!("{argument} needs a value"))?;
            match argument.as_str() {
                "--workers" => options.workers = list(&value)?,
                "--batch-size" => options.batch_sizes = list(&value)?,
                "--samples" => options.samples = number(&value)?,
                "--seconds" => options.seconds = number(&value)?,
                "--prefetch" => options.prefetches = list(&value)?,
                "--seed" => options.seed = number(&value)?,
                "--dtype" if value == "f32" => {}
                "--device" if value == "cpu" => {}
                _ => return Err(format!("{argument} {value}: not in this program")),
            }
        }
        let mut numbers = options.batch_sizes.iter().chain(&options.prefetches);
        if options.samples == 0 || numbers.any(|&number| number == 0) {
            return Err("batch size, samples and prefetch are at least 1".into());
        }
        match workload.as_deref() {
            Some("tiny") => Ok(options),
            _ => Err("the peer knows no devices: `tiny` is the workload to compare".into()),
        }
    }
}

fn list(text: &str) -> std::result::Result<Vec<usize>, String> {
    text.split(',').map(number).collect()
}

fn number<T: std::str::FromStr>(text: &str) -> std::result::Result<T, String> {
    text.trim()
        .parse()
        .map_err(|_| format!("`{text}` is not such a number"))
}

/// The default `get_batch`: one `get` for each sample.
struct Scalars(Vec<f32>);

impl Dataset for Scalars {
    type Item = f32;

    fn get(&self, index: usize) -> Result<f32> {
        Ok(self.0[index])
    }

    fn len(&self) -> usize {
        self.0.len()
    }
}

/// The same samples, a batch at once.
struct Batches(Scalars);

impl Dataset for Batches {
    type Item = f32;

    fn get(&self, index: usize) -> Result<f32> {
        self.0.get(index)
    }

    fn get_batch(&self, indices: &[usize]) -> Result<Vec<f32>> {
        let scalars = &self.0.0;
        Ok(indices.iter().map(|&index| scalars[index]).collect())
    }

    fn len(&self) -> usize {
        self.0.len()
    }
}

fn run(options: &Options) -> Result<()> {
    let scalars = || Scalars((0..options.samples).map(|value| value as f32).collect());
    for &workers in &options.workers {
        for &batch_size in &options.batch_sizes {
            // Without workers nothing is loaded ahead.
            let prefetches = match workers {
                0 => &options.prefetches[..1],
                _ => &options.prefetches[..],
            };
            for &prefetch in prefetches {
                let config = Config {
                    workers,
                    batch_size,
                    prefetch,
                };
                measure("get", scalars(), options, &config)?;
                measure("get_batch", Batches(scalars()), options, &config)?;
            }
        }
    }
    Ok(())
}

struct Config {
    workers: usize,
    batch_size: usize,
    prefetch: usize,
}

/// Whole epochs back to back for the seconds asked for, after one to warm up. The waits are those of that first one:
/// looking at the clock costs as much as a batch.
fn measure(
    variant: &str,
    dataset: impl Dataset<Item = f32>,
    options: &Options,
    config: &Config,
) -> Result<()> {
    let Config {
        workers,
        batch_size,
        prefetch,
    } = *config;
    let mut loader = DataLoader::builder(dataset)
        .batch_size(batch_size)
        .sampler(RandomSampler::new(options.seed))
        .num_workers(workers)
        .prefetch_depth(prefetch)
        .build();

    let mut waits = Vec::new();
    let mut asked = Instant::now();
    for batch in loader.iter() {
        waits.push(asked.elapsed());
        black_box(batch?);
        asked = Instant::now();
    }
    let first = waits.first().copied().unwrap_or_default();

    let (mut batches, mut samples) = (0u64, 0u64);
    let cpu = cpu_seconds();
    let start = Instant::now();
    while start.elapsed().as_secs_f64() < options.seconds {
        for batch in loader.iter() {
            samples += black_box(batch?).len() as u64;
            batches += 1;
        }
    }
    let window = start.elapsed().as_secs_f64();
    let cpu = cpu_seconds() - cpu;

    let (batches_s, samples_s) = (batches as f64 / window, samples as f64 / window);
    if !options.json {
        let each = 1e6 / batches_s;
        println!(
            "{workers} workers, {variant}, prefetch {prefetch}: {batches_s:.0} batches/s, {each:.3} us each"
        );
        return Ok(());
    }
    println!(
        "{{\"workload\":\"tiny\",\"peer\":\"dataloader-rs 0.2.0\",\"variant\":\"{variant}\",\"device\":\"cpu\",\
         \"workers\":{workers},\"batch_size\":{batch_size},\"dtype\":\"f32\",\"samples_s\":{samples_s:.1},\
         \"batches_s\":{batches_s:.1},\"gb_s\":null,\"limit_gb_s\":null,\"share\":null,\
         \"first_batch_ms\":{:.4},\"wait_p50_ms\":{:.6},\"wait_p99_ms\":{:.6},\"cpu_s\":{cpu:.2},\
         \"window_s\":{window:.3},\"peak_rss_mb\":{},\"pinned_mb\":null,\"cores\":{:.3},\"ns_per_batch\":{:.1},\
         \"prefetch\":{prefetch}}}",
        first.as_secs_f64() * 1e3,
        percentile(&mut waits, 0.5),
        percentile(&mut waits, 0.99),
        peak_rss_mb().map_or("null".into(), |megabytes| format!("{megabytes:.1}")),
        cpu / window,
        1e9 / batches_s,
    );
    Ok(())
}

/// In milliseconds.
fn percentile(times: &mut [Duration], share: f64) -> f64 {
    times.sort_unstable();
    let last = times.len().saturating_sub(1);
    let time = times.get((last as f64 * share).round() as usize);
    time.map_or(0.0, |time| time.as_secs_f64() * 1e3)
}

/// User and system time of this process, in seconds: Linux counts it in hundredths.
fn cpu_seconds() -> f64 {
    let stat = fs::read_to_string("/proc/self/stat").unwrap_or_default();
    let fields = stat.rsplit(") ").next().unwrap_or_default();
    let times = fields.split(' ').skip(11).take(2);
    times
        .filter_map(|ticks| ticks.parse::<f64>().ok())
        .sum::<f64>()
        / 100.0
}

fn peak_rss_mb() -> Option<f64> {
    let status = fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find(|line| line.starts_with("VmHWM:"))?;
    let kilobytes: f64 = line.split_whitespace().nth(1)?.parse().ok()?;
    Some(kilobytes * 1024.0 / 1e6)
}
