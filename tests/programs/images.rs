//! Pictures in class folders, with a folder for validation that lacks a class.

use std::error::Error;
use std::fs;
use std::path::Path;

use image::{Rgb, RgbImage};
use pinfeed::image::{ImageFolder, ImageTransform};
use pinfeed::{DataLoader, Dataset, Device, Tensor};

const CLASSES: [(&str, [u8; 3]); 3] = [
    ("blue", [20, 20, 220]),
    ("green", [20, 220, 20]),
    ("red", [220, 20, 20]),
];

/// Batches of pictures, `[n, 16, 16, 3]`, and their labels, `[n]`.
type Loader = DataLoader<(Tensor<u8>, Tensor<i64>)>;

pub fn main() -> Result<(), Box<dyn Error>> {
    let folder = tempfile::tempdir()?;
    draw(&folder.path().join("train"), &CLASSES, 12)?;
    draw(&folder.path().join("val"), &CLASSES[1..], 5)?;

    let train = ImageFolder::open(folder.path().join("train"))?
        .with_transform(ImageTransform::train(16));
    let val = ImageFolder::open(folder.path().join("val"))?
        .with_classes(train.classes())?
        .with_transform(ImageTransform::eval(16));
    println!("{} pictures of {:?}, {} to validate", train.len(), train.classes(), val.len());
    let classes = train.classes().len();

    let device = Device::available();
    let train: Loader = DataLoader::builder(train)
        .batch_size(8)
        .shuffle(true)
        .num_workers(2)
        .pin_memory(&device)
        .build()?;
    let val: Loader = DataLoader::builder(val).batch_size(8).build()?;

    // The "network": each class's mean colour.
    let mut sums = vec![[0.0; 3]; classes];
    let mut counts = vec![0.0; classes];
    for batch in &train {
        let (images, labels) = batch?;
        for (number, label) in labels.as_slice().iter().enumerate() {
            let colour = mean_colour(images.row(number).as_slice());
            for (sum, value) in sums[*label as usize].iter_mut().zip(colour) {
                *sum += value;
            }
            counts[*label as usize] += 1.0;
        }
    }
    let means: Vec<[f32; 3]> = sums.iter().zip(&counts).map(|(sum, count)| sum.map(|sum| sum / count)).collect();

    let (mut right, mut seen) = (0, 0);
    for batch in &val {
        let (images, labels) = batch?;
        for (number, label) in labels.as_slice().iter().enumerate() {
            let colour = mean_colour(images.row(number).as_slice());
            let distance = |mean: &[f32; 3]| -> f32 { mean.iter().zip(colour).map(|(a, b)| (a - b).powi(2)).sum() };
            let nearest = (0..classes).min_by(|&a, &b| distance(&means[a]).total_cmp(&distance(&means[b])));
            right += usize::from(nearest == Some(*label as usize));
            seen += 1;
        }
    }
    println!("{right} of {seen} are right");
    assert_eq!((right, seen), (10, 10));
    Ok(())
}

fn draw(folder: &Path, classes: &[(&str, [u8; 3])], count: u32) -> Result<(), Box<dyn Error>> {
    for (name, colour) in classes {
        let folder = folder.join(name);
        fs::create_dir_all(&folder)?;
        for number in 0..count {
            let picture = RgbImage::from_fn(24 + number, 24, |x, y| {
                let shade = ((x + y + number) % 16) as u8;
                Rgb(colour.map(|value| value + shade))
            });
            picture.save(folder.join(format!("{number}.png")))?;
        }
    }
    Ok(())
}

fn mean_colour(pixels: &[u8]) -> [f32; 3] {
    let count = pixels.len() as f32 / 3.0;
    [0, 1, 2].map(|channel| {
        let values = pixels.iter().skip(channel).step_by(3);
        values.map(|value| f32::from(*value)).sum::<f32>() / count
    })
}
