//! How fast is an epoch whose data a disk has kept? Tar shards of 110 KB samples, read from a folder, from a store that takes 50 ms to
//! answer, and through a cache of that store: its first epoch, and those that follow.
//!
//!     cargo bench --bench cache -- --mb 600 --epochs 5 --folder /nvme/scratch
//!
//! What is measured is reading: a sample is decoded to the sum of its bytes. All rates are of one run, in turn, and of files that are in
//! memory as far as there is room.

use std::error::Error;
use std::fs::{self, File};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use pinfeed::dataset::Blocked;
use pinfeed::store::{DiskCache, LocalFiles, Object, Store};
use pinfeed::webdataset::WebDataset;
use pinfeed::{BoxError, DataLoader};

type Outcome<T = ()> = Result<T, Box<dyn Error + Send + Sync>>;

const SAMPLE: usize = 110_000;
const OF_A_SHARD: usize = 100;

/// A folder that answers late.
struct Bucket {
    files: LocalFiles,
    delay: Duration,
    requests: AtomicU64,
}

impl Store for Bucket {
    fn list(&self, prefix: &str) -> Result<Vec<Object>, BoxError> {
        self.files.list(prefix)
    }

    fn object(&self, key: &str) -> Result<Object, BoxError> {
        self.files.object(key)
    }

    fn read(&self, object: &Object, range: Range<u64>) -> Result<Vec<u8>, BoxError> {
        self.requests.fetch_add(1, Ordering::Relaxed);
        thread::sleep(self.delay);
        self.files.read(object, range)
    }

    fn locate(&self, key: &str) -> String {
        self.files.locate(key)
    }
}

fn write(folder: &Path, shards: usize) -> Outcome {
    fs::create_dir_all(folder)?;
    for shard in 0..shards {
        let mut archive = tar::Builder::new(File::create(folder.join(format!("{shard:04}.tar")))?);
        for sample in 0..OF_A_SHARD {
            let seed = shard * OF_A_SHARD + sample;
            let bytes: Vec<u8> = (0..SAMPLE).map(|at| (at * 31 + seed * 7) as u8).collect();
            let mut header = tar::Header::new_gnu();
            header.set_size(bytes.len() as u64);
            header.set_mode(0o644);
            archive.append_data(&mut header, format!("{sample:04}.jpg"), &*bytes)?;
        }
        archive.into_inner()?;
    }
    Ok(())
}

/// Samples a second in each epoch.
fn rates(store: impl Store, shards: usize, index: &Path, epochs: u64) -> Outcome<Vec<f64>> {
    let pattern = format!("{{0000..{:04}}}.tar", shards - 1);
    let data = WebDataset::builder(store, &pattern)
        .keep_index(index)
        .build(|sample, _rng| {
            let bytes = sample.field("jpg")?;
            Ok(bytes.iter().fold(0i64, |sum, byte| sum + i64::from(*byte)))
        })?;
    let data = Blocked::new(data)
        .with_in_flight(16)
        .with_max_bytes(1 << 30);
    let loader = DataLoader::builder(data)
        .batch_size(64)
        .shuffle(true)
        .seed(1)
        .num_workers(2)
        .build()?;
    let mut rates = Vec::new();
    for epoch in 0..epochs {
        // (Each by itself: nothing of the next one is read ahead.)
        let (began, mut samples) = (Instant::now(), 0);
        for batch in loader.epoch(epoch) {
            samples += batch?.len();
        }
        rates.push(samples as f64 / began.elapsed().as_secs_f64());
    }
    Ok(rates)
}

fn median(rates: &[f64]) -> f64 {
    let mut rates = rates.to_vec();
    rates.sort_by(f64::total_cmp);
    rates[rates.len() / 2]
}

fn main() -> Outcome {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    if arguments.iter().any(|word| word == "--help") {
        println!(
            "--mb 600 (of shards)  --epochs 5  --delay-ms 50  --folder (a scratch folder; that of temporary files)"
        );
        return Ok(());
    }
    let option = |name: &str| {
        let at = arguments.iter().position(|word| word == name)?;
        arguments.get(at + 1).cloned()
    };
    let number = |name: &str, default: u64| option(name).map_or(Ok(default), |text| text.parse());
    let (mb, epochs) = (number("--mb", 600)?, number("--epochs", 5)?.max(2));
    let delay = Duration::from_millis(number("--delay-ms", 50)?);
    let scratch = option("--folder").map_or_else(std::env::temp_dir, PathBuf::from);
    let home = scratch.join(format!("pinfeed-cache-bench-{}", std::process::id()));
    let measured = measure(&home, mb, epochs, delay);
    fs::remove_dir_all(&home)?;
    measured
}

fn measure(home: &Path, mb: u64, epochs: u64, delay: Duration) -> Outcome {
    let (folder, index) = (home.join("shards"), home.join("index"));
    let shards = (mb as usize * 1_000_000 / (SAMPLE * OF_A_SHARD)).max(1);
    write(&folder, shards)?;
    let bucket = || -> Outcome<Arc<Bucket>> {
        Ok(Arc::new(Bucket {
            files: LocalFiles::open(&folder)?,
            delay,
            requests: AtomicU64::new(0),
        }))
    };
    // The index is made once, by the one that is read first; then the rates, in turn.
    rates(LocalFiles::open(&folder)?, shards, &index, 1)?;
    let local = median(&rates(LocalFiles::open(&folder)?, shards, &index, epochs)?);
    let far = median(&rates(bucket()?, shards, &index, 2)?);
    let behind = bucket()?;
    let cache = Arc::new(DiskCache::open(
        Arc::clone(&behind),
        home.join("cache"),
        1 << 40,
    )?);
    let first = rates(Arc::clone(&cache), shards, &index, 1)?[0];
    let requests = behind.requests.swap(0, Ordering::Relaxed);
    let kept = median(&rates(Arc::clone(&cache), shards, &index, epochs)?);
    let again = median(&rates(LocalFiles::open(&folder)?, shards, &index, epochs)?);
    let best = (local + again) / 2.0;

    println!(
        "{shards} shards of {OF_A_SHARD} samples of {SAMPLE} bytes, {} ms to the first byte",
        delay.as_millis()
    );
    println!("| | samples/s | of the folder | requests |");
    println!("| --- | --- | --- | --- |");
    println!("| the folder, before and after | {local:.0}, {again:.0} | 1 | |");
    println!("| the store | {far:.0} | {:.2} | |", far / best);
    println!(
        "| the store and a cache, first epoch | {first:.0} | {:.2} | {requests} |",
        first / best
    );
    let requests = behind.requests.load(Ordering::Relaxed);
    println!(
        "| the same, epochs that follow | {kept:.0} | {:.2} | {requests} |",
        kept / best
    );
    println!("{:?}", cache.stats());
    match requests {
        0 => Ok(()),
        _ => Err("an epoch that was kept made requests".into()),
    }
}
