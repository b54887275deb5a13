//! Evaluation: batches go to the GPU, or to the CPU where there is none, and what comes back is counted.

use std::error::Error;

use pinfeed::device::Download;
use pinfeed::{DataLoader, Device, DeviceTensor, Stream, from_fn};

const CLASSES: usize = 10;

pub fn main() -> Result<(), Box<dyn Error>> {
    let device = Device::available();
    let stream = device.stream()?;
    // A "picture" of class c is brightest at place c; every tenth is labelled wrongly.
    let samples = from_fn(1_000, |index, rng| {
        let class = rng.below(CLASSES as u64) as usize;
        let mut picture = [0.0; CLASSES].map(|_: f32| rng.f32());
        picture[class] += 1.0;
        let label = if index % 10 == 0 { (class + 1) % CLASSES } else { class };
        Ok((picture, label as i64))
    });
    let loader = DataLoader::builder(samples)
        .batch_size(64)
        .num_workers(2)
        .pin_memory(&device)
        .build()?;

    // Predictions come back while the next batch is worked on: they are waited for one batch later.
    let (mut right, mut seen) = (0, 0);
    let mut waiting: Option<(Download<f32>, Download<i64>)> = None;
    for batch in loader.epoch(0).prefetch_to_device(&device, 2) {
        let (pictures, labels) = batch?;
        let scores = model(pictures, &stream)?;
        let coming = (scores.to_host(true)?, labels.to_host(true)?);
        if let Some(before) = waiting.replace(coming) {
            count(before, &mut right, &mut seen)?;
        }
    }
    if let Some(last) = waiting {
        count(last, &mut right, &mut seen)?;
    }
    println!("{}: {right} of {seen} are right", device.name());
    assert_eq!((right, seen), (900, 1_000));
    Ok(())
}

/// Here a network's kernels are launched on the stream.
fn model(pictures: DeviceTensor<f32>, stream: &Stream) -> pinfeed::Result<DeviceTensor<f32>> {
    drop(pictures.on(stream)?);
    Ok(pictures)
}

fn count(
    (scores, labels): (Download<f32>, Download<i64>),
    right: &mut usize,
    seen: &mut usize,
) -> pinfeed::Result<()> {
    let (scores, labels) = (scores.wait()?, labels.wait()?);
    for (scores, label) in scores.as_slice().chunks(CLASSES).zip(labels.as_slice()) {
        let likeliest = (0..CLASSES).max_by(|&a, &b| scores[a].total_cmp(&scores[b]));
        *right += usize::from(likeliest == Some(*label as usize));
        *seen += 1;
    }
    Ok(())
}
