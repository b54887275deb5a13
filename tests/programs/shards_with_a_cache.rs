//! Tar shards in a bucket that takes long to answer, and a disk that keeps them: the second epoch asks the bucket for nothing, and neither
//! does the next run.

use std::fs::{self, File};
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use pinfeed::store::{DiskCache, LocalFiles, Object, Store};
use pinfeed::webdataset::WebDataset;
use pinfeed::{BoxError, DataLoader};

/// Stands for a bucket: 20 ms to the first byte.
struct Bucket {
    files: LocalFiles,
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
        thread::sleep(Duration::from_millis(20));
        self.files.read(object, range)
    }

    fn locate(&self, key: &str) -> String {
        format!("s3://bucket/{key}")
    }
}

fn write_shards(folder: &Path) -> Result<(), BoxError> {
    fs::create_dir(folder)?;
    for shard in 0..4 {
        let mut archive = tar::Builder::new(File::create(folder.join(format!("{shard}.tar")))?);
        for sample in 0..50 {
            let text = format!("clip {sample} of shard {shard}; ").repeat(500);
            let mut header = tar::Header::new_gnu();
            header.set_size(text.len() as u64);
            header.set_mode(0o644);
            archive.append_data(&mut header, format!("{sample:03}.txt"), text.as_bytes())?;
        }
        archive.into_inner()?;
    }
    Ok(())
}

/// A run of two epochs. Returns how many requests the bucket had in each.
fn train(shards: &Path, folder: &Path) -> Result<Vec<u64>, BoxError> {
    let files = LocalFiles::open(shards)?;
    let bucket = Arc::new(Bucket { files, requests: AtomicU64::new(0) });
    let cache = Arc::new(DiskCache::open(Arc::clone(&bucket), folder, 1 << 30)?);

    let data = WebDataset::builder(Arc::clone(&cache), "{0..3}.tar")
        .build(|sample, _rng| Ok(sample.field("txt")?.len() as i64))?;
    let loader = DataLoader::builder(data).batch_size(20).shuffle(true).num_workers(2).build()?;
    let mut requests = Vec::new();
    for epoch in loader.epochs(0..2) {
        let samples: usize = epoch.map(|batch| batch.map_or(0, |batch| batch.len())).sum();
        assert_eq!(samples, 200);
        requests.push(bucket.requests.swap(0, Ordering::Relaxed));
    }
    println!("{:?}", cache.stats());
    Ok(requests)
}

pub fn main() -> Result<(), BoxError> {
    if !cfg!(unix) {
        return Ok(()); // no cache there
    }
    let home = tempfile::tempdir()?;
    let (shards, folder) = (home.path().join("shards"), home.path().join("cache"));
    write_shards(&shards)?;
    let first = train(&shards, &folder)?;
    assert!(first[0] > 0 && first[1] == 0, "{first:?}");
    assert_eq!(train(&shards, &folder)?, [0, 0]);
    Ok(())
}
