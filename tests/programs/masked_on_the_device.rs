//! Pictures that the device decodes, with masks that go through the same crop and rotation on the host.

use std::error::Error;
use std::io::Cursor;

use image::{GrayImage, ImageFormat, Luma};
use pinfeed::image::{Decode, ImageTransform, LazyImage, LazyMask};
use pinfeed::{DataLoader, Device, Sample, Tensor, from_fn};

#[derive(Sample)]
struct Scene {
    image: LazyImage,
    mask: LazyMask,
}

pub fn main() -> Result<(), Box<dyn Error>> {
    let transform = ImageTransform::train(24).random_rotation(20.0);
    let scenes = from_fn(40, move |index, rng| {
        // White where the mask is 1: a box at another place in each picture.
        let is_in = |x: u32, y: u32| (10..40).contains(&x) && (index as u32 % 8..30).contains(&y);
        let picture = GrayImage::from_fn(60, 40, |x, y| Luma([if is_in(x, y) { 250 } else { 5 }]));
        let mut file = Cursor::new(Vec::new());
        picture.write_to(&mut file, ImageFormat::Jpeg)?;
        let mask = (0..40).flat_map(|y| (0..60).map(move |x| u8::from(is_in(x, y)))).collect();

        let image = LazyImage::encoded(file.into_inner()).with_decode(Decode::Device).transform(&transform, rng);
        let geometry = image.geometry()?;
        let mask = LazyMask::labels(Tensor::from_vec(mask, &[40, 60])?)?.with_geometry(geometry);
        Ok(Scene { image, mask })
    });
    let device = Device::cpu();
    let loader = DataLoader::builder(scenes).batch_size(8).num_workers(2).pin_memory(&device).build()?;
    for epoch in loader.epochs(0..2).prefetch_to_device(&device, 2) {
        let (mut right, mut pixels) = (0, 0);
        for batch in epoch {
            let SceneDeviceBatch { image, mask } = batch?;
            let (image, mask) = (image.to_host(true)?.wait()?, mask.to_host(true)?.wait()?);
            for (pixel, label) in image.as_slice().chunks(3).zip(mask.as_slice()) {
                right += usize::from((pixel[0] > 127) == (*label == 1));
                pixels += 1;
            }
        }
        assert_eq!(pixels, 40 * 24 * 24);
        assert!(right * 100 > pixels * 97, "{right} of {pixels} pixels are where their mask says");
    }
    assert!(loader.total_stats().decoder.decoded > 0, "{:?}", loader.total_stats().decoder.left_to_cpu);
    Ok(())
}
