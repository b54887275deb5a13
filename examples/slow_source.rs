//! A source far away: each sample takes 50 ms to arrive, and a little to decode. How many workers does that take?
//!
//!     cargo run --release --example slow_source
//!
//! Fetched in `get`, a worker that waits decodes nothing, so samples come no faster than `workers / latency`. A `StagedDataset` has
//! its requests in flight beside the workers: `in_flight / latency`, until decoding is the limit. Both limits are printed first; the one
//! for decoding is measured, without any latency.

#[allow(unreachable_pub)] // a module of a program: it is `pub` for the rest of the program
mod args;

use std::process::ExitCode;
use std::thread::sleep;
use std::time::{Duration, Instant};

use pinfeed::dataset::{Staged, StagedDataset};
use pinfeed::{BoxError, DataLoader, Dataset, SampleRng, from_fn};

const HELP: &str = "\
Measures how many samples a second come from a source that answers after a while, fetched in `get` and fetched ahead.

cargo run --release --example slow_source -- [OPTIONS]

  --workers N         worker threads (default: 4)
  --in-flight N       requests at a time (default: 256)
  --latency-ms N      how long each request takes (default: 50)
  --decode-us N       about how long decoding a sample takes (default: 50)
  --seconds N         how long each line measures (default: 4)
  --help              this text";

/// How many bytes a request brings.
const BYTES: usize = 4096;

#[derive(Clone, Copy)]
struct Far {
    latency: Duration,
    /// How many times decoding goes over the bytes.
    rounds: u32,
}

impl Far {
    fn decode(&self, raw: &[u8]) -> f32 {
        let mut sum = 1u32;
        for round in 0..self.rounds {
            sum = raw.iter().fold(sum ^ round, |sum, byte| {
                sum.wrapping_mul(31) ^ u32::from(*byte)
            });
        }
        sum as f32
    }

    /// As many rounds as take so long, on a thread that has a core to itself.
    fn decoding_for(mut self, time: Duration) -> Far {
        let raw = vec![7; BYTES];
        self.rounds = 1_000;
        let begin = Instant::now();
        std::hint::black_box(self.decode(&raw));
        let each = begin.elapsed().as_secs_f64() / f64::from(self.rounds);
        self.rounds = (time.as_secs_f64() / each) as u32;
        self
    }
}

impl StagedDataset for Far {
    type Raw = Vec<u8>;
    type Sample = f32;

    fn len(&self) -> u64 {
        1 << 30
    }

    fn fetch(&self, index: u64) -> Result<Vec<u8>, BoxError> {
        if !self.latency.is_zero() {
            sleep(self.latency);
        }
        Ok(vec![index as u8; BYTES])
    }

    fn decode(&self, _: u64, raw: Vec<u8>, _: &mut SampleRng) -> Result<f32, BoxError> {
        Ok(Far::decode(self, &raw))
    }

    fn raw_bytes(&self, raw: &Vec<u8>) -> usize {
        raw.len()
    }
}

/// Fetches and decodes in `get`.
fn in_get(far: Far) -> impl Dataset<Sample = f32> {
    from_fn(far.len(), move |index, _| {
        let raw = far.fetch(index)?;
        Ok(Far::decode(&far, &raw))
    })
}

/// Samples a second, after the first batches.
fn rate<D>(dataset: D, workers: usize, seconds: f64) -> pinfeed::Result<f64>
where
    D: Dataset<Sample = f32>,
{
    let loader = DataLoader::builder(dataset)
        .batch_size(64)
        .shuffle(true)
        .num_workers(workers)
        .prefetch(4)
        .build()?;
    let mut epoch = loader.epoch(0);
    for _ in 0..8 {
        let _ = epoch.next().transpose()?;
    }
    let (begin, mut samples) = (Instant::now(), 0);
    while begin.elapsed().as_secs_f64() < seconds {
        samples += epoch.next().transpose()?.map_or(0, |batch| batch.len());
    }
    Ok(samples as f64 / begin.elapsed().as_secs_f64())
}

fn run(mut options: args::Options) -> args::Result<()> {
    let workers = options.positive("--workers")?.unwrap_or(4);
    let in_flight = options.positive("--in-flight")?.unwrap_or(256);
    let latency = options.positive("--latency-ms")?.unwrap_or(50);
    let decode = options.positive("--decode-us")?.unwrap_or(50);
    let seconds = options.positive("--seconds")?.unwrap_or(4) as f64;
    options.finish()?;
    let far = Far {
        latency: Duration::from_millis(latency as u64),
        rounds: 0,
    };
    let far = far.decoding_for(Duration::from_micros(decode as u64));
    let near = Far {
        latency: Duration::ZERO,
        ..far
    };

    let decoding = rate(in_get(near), workers, seconds)?;
    let per_request = 1000.0 / latency as f64;
    let waiting = workers as f64 * per_request;
    let flying = in_flight as f64 * per_request;
    let best = flying.min(decoding);
    println!("requests of {latency} ms, {workers} workers, {in_flight} requests in flight\n");
    println!("limits, in samples/s");
    println!("  workers that wait   {waiting:8.0}");
    println!("  requests in flight  {flying:8.0}");
    println!("  decoding (measured) {decoding:8.0}\n");

    let plain = rate(in_get(far), workers, seconds)?;
    let staged = Staged::new(far).with_in_flight(in_flight);
    let staged = rate(staged, workers, seconds)?;
    println!("measured");
    println!(
        "  fetched in `get`    {plain:8.0}  {:5.1} % of the workers' limit",
        100.0 * plain / waiting
    );
    println!(
        "  fetched ahead       {staged:8.0}  {:5.1} % of the lower of the two others",
        100.0 * staged / best
    );
    Ok(())
}

fn main() -> ExitCode {
    args::start(HELP, run)
}
