//! Learns from tar shards of pictures and classes: writes some as Python's webdataset would, trains on all but one of them, is
//! interrupted, goes on where it stopped, and validates on the last.
//!
//!     cargo run --release --example webdataset --features webdataset
//!
//! Shards of your own are only read, and counted: a pattern, and the field of the pictures.
//!
//!     cargo run --release --example webdataset --features webdataset -- "imagenet/train-{000000..000146}.tar" "jpg;jpeg;png"

mod colours;
mod shards;

use std::time::Instant;

use colours::{Batch, Model};
use pinfeed::dataset::Blocked;
use pinfeed::image::{ImageTransform, LazyImage};
use pinfeed::prelude::*;
use pinfeed::webdataset::WebDataset;

/// Pictures of 32 by 32 pixels, and classes, of the shards that a pattern names.
fn pictures(
    pattern: &str,
    transform: ImageTransform,
) -> pinfeed::Result<WebDataset<(LazyImage, i64)>> {
    WebDataset::open(pattern)?
        .field("ppm") // each sample has both
        .field("cls")
        .build(move |sample, rng| {
            let picture = LazyImage::encoded(sample.shared("ppm")?).with_path(sample.key());
            Ok((picture.transform(&transform, rng), sample.number("cls")?))
        })
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args().skip(1);
    if let Some(pattern) = arguments.next() {
        return count(
            &pattern,
            &arguments
                .next()
                .unwrap_or_else(|| "jpg;jpeg;png".to_owned()),
        );
    }
    let folder = std::env::temp_dir().join(format!("pinfeed-shards-{}", std::process::id()));
    shards::write(&folder)?;
    let place = folder.display();

    let train = pictures(
        &format!("{place}/shard-{{000..006}}.tar"),
        ImageTransform::new().random_crop(28),
    )?;
    println!("{train:?}");
    let loader = || -> pinfeed::Result<DataLoader<Batch>> {
        let data = Blocked::new(train.clone()).with_in_flight(8);
        DataLoader::builder(data)
            .batch_size(32)
            .shuffle(true)
            .seed(17)
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
    println!("interrupted after 10 batches, in the state {state}");
    for epoch in loader()?.resume(0..3, &state)? {
        let (number, mut samples) = (epoch.number(), 0);
        for batch in epoch {
            let batch = batch?;
            model.learn(&batch);
            samples += batch.1.len();
        }
        println!("epoch {number}: {samples} samples");
    }

    let valid = pictures(
        &format!("{place}/shard-007.tar"),
        ImageTransform::new().center_crop(28),
    )?;
    let (mut right, all) = (0, valid.len());
    for batch in DataLoader::builder(valid).batch_size(50).build()?.epoch(0) {
        right += model.right(&batch?);
    }
    println!("{right} of {all} pictures of the last shard are recognised");
    std::fs::remove_dir_all(&folder)?;
    Ok(())
}

/// Reads an epoch of other shards, without decoding.
fn count(pattern: &str, field: &str) -> Result<(), Box<dyn std::error::Error>> {
    let began = Instant::now();
    let names = field.to_owned();
    let data = WebDataset::open(pattern)?.field(field);
    let data = data.build(move |sample, _| Ok(sample.field(&names)?.len() as u64))?;
    println!("{data:?}, indexed in {:.1?}", began.elapsed());
    let loader = DataLoader::builder(data)
        .batch_size(256)
        .shuffle(true)
        .num_workers(2)
        .build()?;
    let (began, mut bytes) = (Instant::now(), 0);
    for batch in loader.epoch(0) {
        bytes += batch?.as_slice().iter().sum::<i64>();
    }
    println!(
        "{:.1} MB of {field} in {:.1?}",
        bytes as f64 / 1e6,
        began.elapsed()
    );
    println!("{}", loader.stats());
    Ok(())
}
