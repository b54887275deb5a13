//! Learns from tar shards of pictures and classes: writes some as Python's webdataset would, trains on all but one of them, is
//! interrupted, goes on where it stopped, and validates on the last.
//!
//!     cargo run --release --example webdataset --features webdataset
//!
//! Shards of your own are only read, and counted: a pattern, and the field of the pictures.
//!
//!     cargo run --release --example webdataset --features webdataset -- "imagenet/train-{000000..000146}.tar" "jpg;jpeg;png"

use std::path::Path;
use std::time::Instant;

use pinfeed::Tensor;
use pinfeed::dataset::Blocked;
use pinfeed::image::{ImageTransform, LazyImage};
use pinfeed::prelude::*;
use pinfeed::webdataset::WebDataset;

type Batch = (Tensor<u8>, Tensor<i64>);

/// Pictures of 32 by 32 pixels, and classes, of the shards that a pattern names.
fn pictures(
    pattern: &str,
    transform: ImageTransform,
) -> pinfeed::Result<WebDataset<(LazyImage, i64)>> {
    WebDataset::open(pattern)?
        .field("ppm") // each sample has both
        .field("cls")
        .build(move |sample, rng| {
            let picture = LazyImage::encoded(sample.field("ppm")?.to_vec()).with_path(sample.key());
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
    write_shards(&folder)?;
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

/// Eight shards of 100 pictures each: red, green and blue ones, with noise.
fn write_shards(folder: &Path) -> std::io::Result<()> {
    std::fs::create_dir_all(folder)?;
    let mut noise = 1u32;
    let mut noise = move || {
        noise = noise.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (noise >> 25) as u8
    };
    for shard in 0..8 {
        let mut archive = tar::Builder::new(std::fs::File::create(
            folder.join(format!("shard-{shard:03}.tar")),
        )?);
        let mut file = |name: String, contents: &[u8]| {
            let mut header = tar::Header::new_ustar();
            header.set_size(contents.len() as u64);
            header.set_mode(0o644);
            archive.append_data(&mut header, name, contents)
        };
        for sample in 0..100 {
            let class = sample % 3;
            let mut picture = b"P6 32 32 255\n".to_vec();
            for _ in 0..32 * 32 {
                picture.extend((0..3).map(|colour| noise() + if colour == class { 90 } else { 0 }));
            }
            file(
                format!("{shard:03}{sample:05}.cls"),
                class.to_string().as_bytes(),
            )?;
            file(format!("{shard:03}{sample:05}.ppm"), &picture)?;
        }
        archive.finish()?;
    }
    Ok(())
}

/// The mean colour of each class.
#[derive(Default)]
struct Model {
    sums: [[f64; 3]; 3],
    counts: [f64; 3],
}

impl Model {
    fn learn(&mut self, (pictures, classes): &Batch) {
        for (colour, class) in colours(pictures).zip(classes.as_slice()) {
            let class = *class as usize;
            self.counts[class] += 1.0;
            (0..3).for_each(|of| self.sums[class][of] += colour[of]);
        }
    }

    /// How many of a batch have the class whose mean is nearest.
    fn right(&self, (pictures, classes): &Batch) -> usize {
        let distance = |colour: &[f64; 3], class: usize| -> f64 {
            let mean = self.sums[class].map(|sum| sum / self.counts[class]);
            (0..3).map(|of| (colour[of] - mean[of]).powi(2)).sum()
        };
        let nearest = |colour: &[f64; 3]| {
            (0..3).min_by(|a, b| distance(colour, *a).total_cmp(&distance(colour, *b)))
        };
        let pairs = colours(pictures).zip(classes.as_slice());
        pairs
            .filter(|(colour, class)| nearest(colour) == Some(**class as usize))
            .count()
    }
}

fn colours(pictures: &Tensor<u8>) -> impl Iterator<Item = [f64; 3]> {
    let pixels = 28 * 28;
    pictures
        .as_slice()
        .chunks_exact(3 * pixels)
        .map(move |picture| {
            let mean = |colour: usize| {
                picture
                    .iter()
                    .skip(colour)
                    .step_by(3)
                    .map(|of| f64::from(*of))
                    .sum::<f64>()
                    / pixels as f64
            };
            [mean(0), mean(1), mean(2)]
        })
}
