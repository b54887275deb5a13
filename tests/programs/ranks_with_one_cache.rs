//! Two ranks of a machine, which are processes, share a folder that keeps what they read of a bucket: what one has read, the other does not
//! request.

use std::ops::Range;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::{env, fs};

use pinfeed::dataset::{BlockSource, Blocked};
use pinfeed::loader::World;
use pinfeed::sampler::Blocks;
use pinfeed::store::{DiskCache, LocalFiles, Object, Store};
use pinfeed::{BoxError, DataLoader, SampleRng};

const SAMPLES: u64 = 4_000;
const BYTES: u64 = 1_500;

/// Records of 1,500 bytes, one behind the other, in an object.
struct Records {
    store: Arc<DiskCache>,
    object: Object,
}

impl BlockSource for Records {
    type Block = (u64, Vec<u8>);
    type Sample = i64;

    fn blocks(&self) -> Arc<Blocks> {
        Arc::new(Blocks::even(SAMPLES, 50).unwrap_or_else(|_| unreachable!("50 is not 0")))
    }

    fn block_bytes(&self, _: u64, samples: Range<u64>) -> usize {
        ((samples.end - samples.start) * BYTES) as usize
    }

    fn fetch(&self, _: u64, samples: Range<u64>) -> Result<(u64, Vec<u8>), BoxError> {
        let range = samples.start * BYTES..samples.end * BYTES;
        Ok((samples.start, self.store.read(&self.object, range)?))
    }

    fn decode(&self, (first, bytes): &(u64, Vec<u8>), index: u64, _: &mut SampleRng) -> Result<i64, BoxError> {
        let at = ((index - first) * BYTES) as usize;
        Ok(i64::from_le_bytes(bytes[at..at + 8].try_into()?))
    }
}

/// What a rank does. It says how many samples it had, and how many bytes it has requested.
fn train(home: &Path) -> Result<(), BoxError> {
    let bucket = LocalFiles::open(home.join("bucket"))?; // RemoteStore::open("s3://..")
    let store = Arc::new(DiskCache::open(bucket, home.join("cache"), 100 << 20)?);
    let object = store.object("records.bin")?;
    let data = Blocked::new(Records { store: Arc::clone(&store), object }).with_in_flight(4);
    let loader = DataLoader::builder(data)
        .global_batch_size(100)
        .shuffle(true)
        .seed(5)
        .world(World::from_env()?)
        .num_workers(1)
        .build()?;
    let mut samples = 0;
    for epoch in loader.epochs(0..2) {
        for batch in epoch {
            samples += batch?.len();
        }
    }
    println!("RANK {samples} {}", store.stats().fetched_bytes);
    Ok(())
}

pub fn main() -> Result<(), BoxError> {
    if !cfg!(unix) {
        return Ok(()); // no cache there
    }
    if let Some(home) = env::var_os("PINFEED_TEST_RANKS_HOME") {
        return train(Path::new(&home));
    }
    let home = tempfile::tempdir()?;
    fs::create_dir(home.path().join("bucket"))?;
    let record = |index: u64| {
        let mut record = vec![0; BYTES as usize];
        record[..8].copy_from_slice(&index.to_le_bytes());
        record
    };
    let records: Vec<u8> = (0..SAMPLES).flat_map(record).collect();
    fs::write(home.path().join("bucket/records.bin"), &records)?;

    // As a launcher starts them: this program twice.
    let ranks = ["0", "1"].map(|rank| {
        Command::new(env::current_exe()?)
            .args(["--exact", "ranks_with_one_cache", "--nocapture"])
            .env("PINFEED_TEST_RANKS_HOME", home.path())
            .envs([("RANK", rank), ("LOCAL_RANK", rank), ("WORLD_SIZE", "2"), ("LOCAL_WORLD_SIZE", "2")])
            .stdout(Stdio::piped())
            .spawn()
    });
    let (mut samples, mut requested) = (0, 0);
    for rank in ranks {
        let output = rank?.wait_with_output()?;
        let said = String::from_utf8(output.stdout)?;
        let said = said.lines().find_map(|line| Some(line.split_once("RANK ")?.1.to_owned()));
        let said = said.ok_or("a rank has said nothing")?;
        let (of_rank, bytes) = said.split_once(' ').ok_or("one number")?;
        samples += of_rank.parse::<u64>()?;
        requested += bytes.parse::<usize>()?;
    }
    assert_eq!(samples, 2 * SAMPLES);
    assert_eq!(requested, records.len(), "each byte was requested once, by one of them");
    Ok(())
}
