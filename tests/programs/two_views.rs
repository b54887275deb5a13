//! Contrastive learning: each sample is two random views of one picture, which the device decodes. The network sees what it would if the CPU did.

use std::error::Error;
use std::io::Cursor;
use std::sync::Arc;

use image::{ImageFormat, RgbImage};
use pinfeed::image::{Decode, ImageTransform, LazyImage};
use pinfeed::rng::RngKey;
use pinfeed::{DataLoader, Device, DeviceTensor, SampleRng, Tensor, from_fn};

type Views = (Tensor<u8>, Tensor<u8>, Tensor<i64>);

fn file(number: u64) -> Result<Vec<u8>, Box<dyn Error>> {
    let mut rng = SampleRng::for_sample(RngKey { seed: number, epoch: 0, position: 0 });
    let picture = RgbImage::from_fn(60 + number as u32, 50, |x, y| {
        image::Rgb([(x * 4) as u8, (y * 5) as u8, rng.next_u64() as u8])
    });
    // Some are no JPEG, so the CPU decodes them.
    let format = if number % 7 == 3 { ImageFormat::Png } else { ImageFormat::Jpeg };
    let mut bytes = Vec::new();
    picture.write_to(&mut Cursor::new(&mut bytes), format)?;
    Ok(bytes)
}

fn loader(files: &Arc<Vec<Vec<u8>>>, size: usize, decode: Decode, device: &Device) -> pinfeed::Result<DataLoader<Views>> {
    let (files, transform) = (Arc::clone(files), ImageTransform::train(size));
    let views = from_fn(files.len(), move |index, rng| {
        let file = &files[index as usize];
        let mut view = || LazyImage::encoded(file.clone()).transform(&transform, rng).with_decode(decode);
        Ok((view(), view(), index as i64))
    });
    DataLoader::builder(views).batch_size(6).shuffle(true).num_workers(2).pin_memory(device).build()
}

fn on_host(pixels: &DeviceTensor<u8>) -> pinfeed::Result<Vec<u8>> {
    Ok(pixels.to_host(true)?.wait()?.to_vec())
}

pub fn main() -> Result<(), Box<dyn Error>> {
    let files: Vec<Vec<u8>> = (0..24).map(file).collect::<Result<_, _>>()?;
    let (files, device) = (Arc::new(files), Device::cpu());
    // Rows that are smaller than most files, and larger ones.
    for size in [24, 224] {
        let expected = loader(&files, size, Decode::Cpu, &device)?;
        for decode in [Decode::Device, Decode::Both] {
            let loader = loader(&files, size, decode, &device)?;
            for epoch in loader.epochs(0..2).prefetch_to_device(&device, 2) {
                let mut expected = expected.epoch(epoch.number());
                for batch in epoch {
                    let ((one, other, labels), expected) = (batch?, expected.next().ok_or("too many batches")??);
                    assert!(on_host(&one)? == expected.0.as_slice());
                    assert!(on_host(&other)? == expected.1.as_slice());
                    assert_eq!(labels.to_host(true)?.wait()?.as_slice(), expected.2.as_slice());
                }
                assert!(expected.next().is_none());
            }
            let stats = loader.total_stats();
            assert!(decode == Decode::Both || stats.decoder.decoded > 0); // (its share may come to nothing)
            println!("{size}: {} of {} views by the device", stats.decoder.decoded, 2 * stats.samples);
        }
    }
    Ok(())
}
