//! Trains on shards that are far away: starts a web server which takes 50 ms to begin an answer, reads shards from it as from a bucket,
//! keeps what was read on this machine's disk, is interrupted, and goes on without asking the server again.
//!
//!     cargo run --release --example bucket --features webdataset,object-store
//!
//! Of a bucket of your own, two epochs are read, and counted: a pattern, the field of the pictures, and a folder of a local disk.
//!
//!     cargo run --release --example bucket --features webdataset,object-store -- \
//!         "s3://bucket/train-{000000..000146}.tar" "jpg;jpeg;png" /nvme/cache
//!
//! Credentials and endpoints are those of the environment: AWS_ACCESS_KEY_ID, AWS_ENDPOINT_URL, and so on.

mod colours;
mod shards;
mod web;

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use colours::{Batch, Model};
use pinfeed::image::{ImageTransform, LazyImage};
use pinfeed::prelude::*;
use pinfeed::store::{self, DiskCache};
use pinfeed::webdataset::WebDataset;

const MIB: u64 = 1 << 20;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match &arguments[..] {
        [] => {}
        [pattern, field, folder] => return count(pattern, field, folder),
        _ => return Err("usage: bucket [PATTERN FIELD FOLDER]".into()),
    }
    let folder = tempfile::tempdir()?;
    let shards = folder.path().join("shards");
    shards::write(&shards)?;
    let server = web::Server::start(&shards, Duration::from_millis(50))?;

    let far = store::open(&server.url(""))?;
    let cache = Arc::new(DiskCache::open(
        far,
        folder.path().join("cache"),
        256 * MIB,
    )?);
    let build = |pattern: &str, transform: ImageTransform| {
        WebDataset::builder(Arc::clone(&cache), pattern)
            .field("ppm")
            .field("cls")
            .keep_index(folder.path().join("index")) // the next run asks for no headers
            .build(move |sample, rng| {
                let picture = LazyImage::encoded(sample.shared("ppm")?);
                let picture = picture.with_path(sample.key());
                Ok((
                    picture.transform(&transform, rng),
                    sample.number::<i64>("cls")?,
                ))
            })
    };
    let began = Instant::now();
    let train = build(
        "shard-{000..006}.tar",
        ImageTransform::new().random_crop(28),
    )?;
    println!(
        "{} samples, indexed by {} requests in {:.2?}",
        train.len(),
        server.requests(),
        began.elapsed()
    );

    let loader = || -> pinfeed::Result<DataLoader<Batch>> {
        DataLoader::builder(train.clone())
            .batch_size(32)
            .shuffle(true)
            .num_workers(2)
            .build()
    };
    let mut model = Model::default();
    let first = loader()?;
    for batch in first.epoch(0).take(10) {
        model.learn(&batch?);
    }
    let state = first.state(); // a line of text, for a checkpoint
    drop(first);
    println!(
        "interrupted after 10 batches: {} requests",
        server.requests()
    );
    for epoch in loader()?.resume(0..3, &state)? {
        let (number, began, mut samples) = (epoch.number(), Instant::now(), 0);
        for batch in epoch {
            let batch = batch?;
            model.learn(&batch);
            samples += batch.1.len();
        }
        let (requests, took) = (server.requests(), began.elapsed());
        println!("epoch {number}: {samples} samples in {took:.2?}, {requests} requests");
    }

    let valid = build("shard-007.tar", ImageTransform::new().center_crop(28))?;
    let (mut right, all) = (0, valid.len());
    for batch in DataLoader::builder(valid).batch_size(50).build()?.epoch(0) {
        right += model.right(&batch?);
    }
    println!("{right} of {all} pictures of the last shard are recognised");
    println!("{:?}", cache.stats());
    Ok(())
}

/// Reads two epochs of other shards, without decoding.
fn count(pattern: &str, field: &str, folder: &str) -> Result<(), Box<dyn std::error::Error>> {
    let (bucket, names) = pattern.rsplit_once('/').ok_or("that is no URL")?;
    let folder = Path::new(folder);
    let cache = DiskCache::open(store::open(bucket)?, folder.join("pages"), 64 << 30)?;
    let cache = Arc::new(cache);
    let (began, wanted) = (Instant::now(), field.to_owned());
    let data = WebDataset::builder(Arc::clone(&cache), names)
        .field(field)
        .keep_index(folder.join("index"))
        .build(move |sample, _| Ok(sample.field(&wanted)?.len() as u64))?;
    println!("{data:?}, indexed in {:.1?}", began.elapsed());
    let loader = DataLoader::builder(data)
        .batch_size(256)
        .shuffle(true)
        .num_workers(2)
        .build()?;
    for epoch in loader.epochs(0..2) {
        let (number, began, mut bytes) = (epoch.number(), Instant::now(), 0);
        for batch in epoch {
            bytes += batch?.as_slice().iter().sum::<i64>();
        }
        let (read, took) = (bytes as f64 / 1e6, began.elapsed());
        println!("epoch {number}: {read:.1} MB of {field} in {took:.1?}");
    }
    println!("{:?}", cache.stats());
    println!("{}", loader.stats());
    Ok(())
}
