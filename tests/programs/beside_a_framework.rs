//! A program that uses a framework whose names are the usual ones, and the crate `image`: the prelude clashes with neither.

use framework::*;
use pinfeed::prelude::*;

/// Stands for a framework's prelude, as `burn::prelude` is one.
mod framework {
    pub type Result<T> = std::result::Result<T, Error>;

    #[derive(Debug)]
    pub struct Error;

    pub struct Stream;

    #[derive(Default)]
    pub struct Device;

    pub struct Tensor(pub Vec<f32>);

    impl Tensor {
        pub fn of(elements: &[f32], _: &Device, _: &Stream) -> Result<Tensor> {
            (!elements.is_empty()).then(|| Tensor(elements.to_vec())).ok_or(Error)
        }
    }
}

#[derive(pinfeed::Sample)]
struct Picture {
    pixels: Vec<f32>,
    label: i64,
}

pub fn main() -> std::result::Result<(), Box<dyn std::error::Error>> {
    let drawn: Vec<image::GrayImage> = (0..6).map(|shade| image::GrayImage::from_pixel(2, 3, image::Luma([shade]))).collect();
    let pictures = from_fn(drawn.len(), move |index, _rng| {
        let pixels = drawn[index as usize].pixels().map(|pixel| f32::from(pixel.0[0])).collect();
        Ok(Picture { pixels, label: index as i64 })
    });
    let loader = DataLoader::builder(pictures).batch_size(3).build()?;

    let device = Device;
    let mut sum = 0.0;
    for batch in &loader {
        let batch: PictureBatch = batch?;
        assert_eq!(batch.label.len(), 3);
        let tensor = Tensor::of(batch.pixels.as_slice(), &device, &Stream).map_err(|error| format!("{error:?}"))?;
        sum += tensor.0.iter().sum::<f32>();
    }
    assert_eq!(sum, 6.0 * 15.0);
    Ok(())
}
