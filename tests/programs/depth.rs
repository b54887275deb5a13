//! Depth in PNG files of 16 bits, 256 for a metre, as KITTI keeps it: batches have metres, and 0 where nothing was measured. No value lies
//! between the car and the wall behind it.

use std::error::Error;
use std::io::Cursor;

use image::{ImageBuffer, ImageFormat, Luma};
use pinfeed::image::{ImageTransform, LazyImage, LazyMap};
use pinfeed::{DataLoader, Sample, Tensor, from_fn};

const PER_METRE: f32 = 256.0;

#[derive(Sample)]
struct View {
    image: LazyImage,
    depth: LazyMap<f32>,
}

/// A car, 5 metres away, before a wall at 80 metres; the sky is not measured.
fn depth_file(number: u32) -> Result<Vec<u8>, image::ImageError> {
    let depth = ImageBuffer::from_fn(96, 64, |x, y| {
        let is_car = (20 + number..60 + number).contains(&x) && y > 30;
        Luma([if y < 10 { 0 } else if is_car { 5 * 256 } else { 80 * 256u16 }])
    });
    let mut file = Cursor::new(Vec::new());
    depth.write_to(&mut file, ImageFormat::Png)?;
    Ok(file.into_inner())
}

pub fn main() -> Result<(), Box<dyn Error>> {
    let transform = ImageTransform::train(32).random_rotation(10.0);
    let views = from_fn(24, move |index, rng| {
        let image = LazyImage::rgb(Tensor::zeros(&[64, 96, 3]))?.transform(&transform, rng);
        let depth = LazyMap::encoded(depth_file(index as u32)?).with_path(format!("{index}.png"));
        let depth = depth.with_geometry(image.geometry()?);
        Ok(View { image, depth })
    });
    let loader = DataLoader::builder(views).batch_size(8).num_workers(2).build()?;
    let mut counts = [0; 3];
    for batch in &loader {
        let ViewBatch { image, depth } = batch?;
        assert_eq!((image.shape()[0], &depth.shape()[..]), (8, &[8, 32, 32][..]));
        for value in depth.as_slice() {
            let metres = value / PER_METRE; // on the device, in a program that trains there
            let kind = [0.0, 5.0, 80.0].iter().position(|known| *known == metres);
            counts[kind.ok_or("a depth between two others")?] += 1;
        }
    }
    assert!(counts.iter().all(|count| *count > 100), "{counts:?}");
    Ok(())
}
