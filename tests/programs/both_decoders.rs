//! Training on JPEG files that the device and the workers share. The run stops in its second epoch, and goes on from a checkpoint.

use std::error::Error;
use std::fs;
use std::path::Path;

use image::{Rgb, RgbImage};
use pinfeed::image::{Decode, ImageFolder, ImageTransform};
use pinfeed::ops::Normalize;
use pinfeed::{DataLoader, Device, Tensor};

const STEPS: usize = 50; // of each epoch

type Loader = DataLoader<(Tensor<u8>, Tensor<i64>)>;

fn loader(folder: &Path, device: &Device) -> Result<Loader, Box<dyn Error>> {
    let train = ImageFolder::open(folder)?
        .with_transform(ImageTransform::train(16))
        .with_decode(Decode::Both);
    Ok(DataLoader::builder(train)
        .batch_size(4)
        .shuffle(true)
        .seed(3)
        .num_workers(2)
        .pin_memory(device)
        .build()?)
}

/// Trains until this step of a run, and saves where it stands. Returns what the "network" saw: the sum of all labels and pixels.
fn train(folder: &Path, saved: &Path, device: &Device, until: usize) -> Result<f64, Box<dyn Error>> {
    let loader = loader(folder, device)?;
    let state = fs::read_to_string(saved).unwrap_or_default();
    let state = if state.is_empty() { Default::default() } else { state.parse()? };
    let mut sum = 0.0;
    'run: for epoch in loader.resume(0..2, &state)?.prefetch_to_device(device, 2) {
        let mut step = epoch.number() as usize * STEPS + STEPS - epoch.len();
        for batch in epoch {
            let (images, labels) = batch?;
            let images = images.normalize::<f32>(&Normalize::IMAGENET)?;
            sum += images.to_host(true)?.wait()?.as_slice().iter().map(|x| f64::from(*x)).sum::<f64>();
            sum += labels.to_host(true)?.wait()?.as_slice().iter().sum::<i64>() as f64;
            step += 1;
            if step == until {
                break 'run;
            }
        }
    }
    fs::write(saved, loader.state().to_string())?;
    let stats = loader.total_stats();
    println!("{} of {} pictures by the device", stats.decoder.decoded, stats.samples);
    Ok(sum)
}

pub fn main() -> Result<(), Box<dyn Error>> {
    let folder = tempfile::tempdir()?;
    let pictures = folder.path().join("train");
    for class in 0..2u32 {
        let class_folder = pictures.join(class.to_string());
        fs::create_dir_all(&class_folder)?;
        for number in 0..100 {
            let colour = [(number * 2) as u8, 100, (class * 200) as u8];
            RgbImage::from_pixel(24 + number % 7, 20, Rgb(colour)).save(class_folder.join(format!("{number}.jpg")))?;
        }
    }
    let device = Device::cpu();
    let at_once = train(&pictures, &folder.path().join("whole"), &device, 2 * STEPS)?;
    let saved = folder.path().join("state");
    let first = train(&pictures, &saved, &device, STEPS + 20)?;
    let rest = train(&pictures, &saved, &device, 2 * STEPS)?;
    assert!((first + rest - at_once).abs() < 1e-3 * at_once.abs(), "{first} + {rest} is not {at_once}");
    Ok(())
}
