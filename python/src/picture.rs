//! Pictures as floating point numbers: what torchvision's `ToTensor` and `Normalize` make of the bytes.

use std::sync::Arc;

use half::{bf16, f16};
use pinfeed::error::CollateError;
use pinfeed::image::LazyImage;
use pinfeed::ops::Normalize;
use pinfeed::sample::{Field, Filled, Layout, Row};
use pinfeed::tensor::Float;
use pinfeed::{Sample, Tensor};

/// The type that pixels become.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum PixelType {
    F32,
    F16,
    Bf16,
}

/// What becomes of the pixels of a picture, `[height, width, 3]` in bytes.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Finish {
    pub(crate) mean: [f32; 3],
    pub(crate) std: [f32; 3],
    pub(crate) pixel_type: PixelType,
    /// Whether the channels are the last dimension, and not the first.
    pub(crate) channels_last: bool,
}

impl Finish {
    /// What the device does, whose values are within 1e-6 of those on the host.
    pub(crate) fn on_device(&self) -> Normalize {
        Normalize::new(self.mean, self.std).with_channels_last(self.channels_last)
    }

    /// What each byte becomes in each channel: torchvision's operations, each rounded to `f32` as it does.
    fn table(&self) -> [[f32; 256]; 3] {
        let is_plain = self.mean == [0.0; 3] && self.std == [1.0; 3];
        std::array::from_fn(|channel| {
            std::array::from_fn(|byte| {
                let value = byte as f32 / 255.0;
                match is_plain {
                    true => value,
                    false => (value - self.mean[channel]) / self.std[channel],
                }
            })
        })
    }
}

/// A type that pixels become.
pub(crate) trait Pixel: Float {
    fn of(value: f32) -> Self;
}

impl Pixel for f32 {
    fn of(value: f32) -> f32 {
        value
    }
}

impl Pixel for f16 {
    fn of(value: f32) -> f16 {
        f16::from_f32(value)
    }
}

impl Pixel for bf16 {
    fn of(value: f32) -> bf16 {
        bf16::from_f32(value)
    }
}

/// What each byte becomes, for one transform.
#[derive(Debug)]
pub(crate) struct PixelTable<P> {
    values: [[P; 256]; 3],
    channels_last: bool,
}

impl<P: Pixel> PixelTable<P> {
    pub(crate) fn new(finish: &Finish) -> PixelTable<P> {
        PixelTable {
            values: finish.table().map(|channel| channel.map(P::of)),
            channels_last: finish.channels_last,
        }
    }

    /// The shape of a finished picture of this one's.
    pub(crate) fn shape(&self, picture: &[usize]) -> [usize; 3] {
        match (picture, self.channels_last) {
            (&[height, width, _], true) => [height, width, 3],
            (&[height, width, _], false) => [3, height, width],
            _ => [0; 3],
        }
    }

    /// Writes the finished picture of these pixels.
    pub(crate) fn finish(&self, pixels: &[u8], finished: &mut [P]) {
        let [red, green, blue] = &self.values;
        let (pixels, _) = pixels.as_chunks::<3>();
        if self.channels_last {
            let (finished, _) = finished.as_chunks_mut::<3>();
            for (to, &[r, g, b]) in finished.iter_mut().zip(pixels) {
                *to = [red[r as usize], green[g as usize], blue[b as usize]];
            }
            return;
        }
        let (reds, rest) = finished.split_at_mut(pixels.len().min(finished.len()));
        let (greens, blues) = rest.split_at_mut(pixels.len().min(rest.len()));
        let planes = reds.iter_mut().zip(greens).zip(blues);
        for (((to_red, to_green), to_blue), &[r, g, b]) in planes.zip(pixels) {
            *to_red = red[r as usize];
            *to_green = green[g as usize];
            *to_blue = blue[b as usize];
        }
    }
}

/// A picture that is decoded, transformed, and becomes numbers in its row of the batch.
pub(crate) struct FinishedImage<P> {
    pub(crate) image: LazyImage,
    pub(crate) table: Arc<PixelTable<P>>,
}

impl<P: Pixel> Sample for FinishedImage<P> {
    type Batch = Tensor<P>;
    type Plan = Field<P>;
    type Rest = ();
    const DENSE: bool = true;

    fn plan<'a>(
        mut samples: impl Iterator<Item = &'a Self> + Clone,
        layout: &mut Layout,
    ) -> Result<Field<P>, CollateError> {
        let Some(first) = samples.next() else {
            return layout.field(&[3, 0, 0]);
        };
        let shape = first.image.shape().map_err(load)?;
        layout.field(&first.table.shape(&shape))
    }

    fn fill(self, field: &Field<P>, row: &mut Row<'_>) -> Result<(), CollateError> {
        row.decoding(|row| {
            let pixels = self.image.decode().map_err(load)?;
            let shape = self.table.shape(pixels.shape());
            if shape[..] != field.row_shape()[..] {
                return Err(CollateError::Shape {
                    field: "",
                    expected: field.row_shape().clone(),
                    found: shape.as_slice().into(),
                });
            }
            self.table.finish(pixels.as_slice(), row.slice_mut(field)?);
            Ok(())
        })
    }

    fn finish(field: Field<P>, _: Vec<()>, filled: &mut Filled) -> Tensor<P> {
        filled.take(field)
    }
}

fn load(error: pinfeed::image::ImageError) -> CollateError {
    CollateError::Load(error.into())
}
