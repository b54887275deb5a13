//! Files as a crawler finds them: JPEG of several kinds, PNG, and some that are broken. The device decodes what it can; a bad file is left out.

use std::error::Error;
use std::fs;

use image::{Rgb, RgbImage};
use pinfeed::image::{Decode, ImageFolder, ImageTransform};
use pinfeed::loader::OnError;
use pinfeed::{DataLoader, Device, Tensor};

pub fn main() -> Result<(), Box<dyn Error>> {
    let folder = tempfile::tempdir()?;
    let mut list = Vec::new();
    for number in 0..30u8 {
        let picture = RgbImage::from_pixel(20 + u32::from(number), 25, Rgb([number * 8, 50, 50]));
        let kind = if number % 5 == 0 { "png" } else { "jpg" };
        let path = folder.path().join(format!("{number}.{kind}"));
        picture.save(&path)?;
        if number % 10 == 3 {
            let bytes = fs::read(&path)?;
            fs::write(&path, &bytes[..bytes.len() / 2])?; // the connection broke
        }
        list.push((path, i64::from(number)));
    }
    let device = Device::cpu();
    for decode in [Decode::Device, Decode::Both] {
        let pictures = ImageFolder::from_list(list.clone())?
            .with_transform(ImageTransform::eval(16))
            .with_decode(decode);
        let loader: DataLoader<(Tensor<u8>, Tensor<i64>)> = DataLoader::builder(pictures)
            .batch_size(6)
            .num_workers(2)
            .pin_memory(&device)
            .on_error(OnError::Skip { at_most: 10 })
            .build()?;
        for epoch in loader.epochs(0..2).prefetch_to_device(&device, 1) {
            let mut seen = Vec::new();
            for batch in epoch {
                let (images, labels) = batch?;
                let (images, labels) = (images.to_host(true)?.wait()?, labels.to_host(true)?.wait()?);
                for (row, label) in labels.as_slice().iter().enumerate() {
                    let red = i64::from(images.row(row).as_slice()[0]);
                    assert!((red - label * 8).abs() < 4, "{label} is of another file");
                    seen.push(*label);
                }
            }
            let good: Vec<i64> = (0..30).filter(|number| number % 10 != 3).collect();
            assert_eq!(seen, good);
        }
        let stats = loader.stats();
        println!("{stats}");
        assert_eq!(stats.bad.skipped, 3);
        assert!(stats.bad.listed.iter().all(|bad| bad.contains("3.jpg")), "{:?}", stats.bad.listed);
    }
    Ok(())
}
