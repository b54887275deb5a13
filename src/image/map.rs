//! The sample for maps: a picture whose values are ids or distances, of more than 8 bits.

mod stored;
mod value;

pub use value::MapValue;

use std::fmt;
use std::path::PathBuf;

use super::ImageError;
use super::decode::DecodeOptions;
use super::error::Cause;
use super::geometry::Geometry;
use super::mask::{load, shape_of, shown, size_of};
use super::size::Size;
use crate::error::CollateError;
use crate::sample::{Field, Filled, Layout, Row};
use crate::{Sample, Tensor};

/// What a colour stands for; `None`: nothing.
type Code<T> = Box<dyn Fn([u8; 3]) -> Option<T> + Send>;

/// A map, with a value of type `T` for each pixel, that follows its picture through crops, flips, resizing and rotation: ids of instances,
/// depth, disparity, or ids that a file has as colours. ([`LazyMask`](super::LazyMask) is for labels of 8 bits.)
///
/// A batch of them is a `Tensor<T>` of shape `[n, height, width]`, where `T` is `u8`, `u16`, `u32`, `i32` or `f32`. Values are taken from
/// the nearest pixel and never mixed: an id between two others is another thing, and a depth between foreground and background is nowhere.
/// Operations on colours do not change them. Points and boxes are not moved by the values. The nearest pixel is the one in which the middle of
/// the new one lies, as in Pillow and in torchvision's `NEAREST_EXACT`, so a map stays under its picture. (torchvision resizes its tensors of the
/// type `Mask` by `NEAREST`, which is up to a pixel of the source beside that.)
///
/// [`encoded`](LazyMap::encoded) takes files of *numbers*: PNG, TIFF or PGM in grey of 1 to 16 bits, or with a palette, whose indices
/// are the values. They are the numbers in the file, of whatever scale: KITTI's depth is 256 for a metre, ScanNet's 1,000. (Divide where it
/// is cheap: on the device. Of TIFF files of at most 8 bits in which 0 is white, they are brightness, as Pillow and OpenCV have it.)
/// [`coloured`](LazyMap::coloured) takes files of *colours*: PNG, BMP or PPM in RGB of 8 bits, or a PNG file's palette. What they mean says
/// a function: [`panoptic_id`] for COCO's panoptic segmentation, or one of your own, such as ADE20K's
/// `|[r, g, _]| Some(i32::from(r) / 10 * 256 + i32::from(g))`, or a look-up of class colours. Signed numbers, floats and those of 32 bits
/// are refused: read them otherwise, and pass them to [`values`](LazyMap::values).
///
/// # Errors
///
/// The sample fails with an [`ImageError`] if the map and its picture differ in size; if a value does not fit `T` (a file of 16 bits and
/// `u8`), or a colour stands for nothing, which names it and its place; or if the file's pixels are of another kind, or of one whose
/// compression changes them (JPEG).
///
/// # Examples
///
/// Depth, beside its picture:
///
/// ```
/// use pinfeed::image::{ImageTransform, LazyImage, LazyMap};
/// use pinfeed::rng::RngKey;
/// use pinfeed::{SampleRng, Tensor};
///
/// let (pixels, depth) = (Tensor::zeros(&[40, 80, 3]), Tensor::from_vec(vec![5_120u16; 40 * 80], &[40, 80])?);
/// let mut rng = SampleRng::for_sample(RngKey { seed: 17, epoch: 0, position: 0 });
/// let image = LazyImage::rgb(pixels)?.transform(&ImageTransform::train(32), &mut rng);
/// let depth = LazyMap::values(depth)?.with_geometry(image.geometry()?);
/// assert_eq!(depth.decode()?.shape()[..], [32, 32]); // (image, depth) is a sample
/// # Ok::<(), pinfeed::BoxError>(())
/// ```
///
/// Class colours:
///
/// ```
/// use pinfeed::image::LazyMap;
///
/// fn class([r, g, b]: [u8; 3]) -> Option<u8> {
///     match [r, g, b] {
///         [128, 128, 128] => Some(0), // sky
///         [128, 64, 128] => Some(1),  // road
///         _ => None,                  // an error, rather than a class of its own
///     }
/// }
/// let classes = |file: &'static [u8]| LazyMap::coloured(file, class).decode();
/// let file = b"P6 2 1 255\n\x80\x80\x80\x80\x40\x80";
/// assert_eq!(classes(file)?.as_slice(), [0, 1]);
/// let said = classes(b"P6 2 1 255\n\x80\x80\x80\x80\x40\x81").unwrap_err().to_string();
/// assert!(said.contains("[128, 64, 129]") && said.contains("column 1, row 0"));
/// # Ok::<(), pinfeed::image::ImageError>(())
/// ```
pub struct LazyMap<T: MapValue> {
    source: Source<T>,
    path: Option<PathBuf>,
    geometry: Option<Geometry>,
    fill: T,
    max_pixels: u64,
}

enum Source<T: MapValue> {
    Numbers(Box<dyn AsRef<[u8]> + Send>),
    Colours(Box<dyn AsRef<[u8]> + Send>, Code<T>),
    Values(Tensor<T>),
}

/// The id that a colour has in COCO's panoptic segmentation: `R + 256 G + 65,536 B`, as `panopticapi.utils.rgb2id` computes it. 0 is
/// nothing: pixels without a label.
///
/// # Examples
///
/// ```
/// use pinfeed::image::{LazyMap, panoptic_id};
///
/// let segments = LazyMap::coloured(b"P6 1 1 255\n\x39\x05\x01", panoptic_id).decode()?;
/// assert_eq!(segments.as_slice(), [57 + 256 * 5 + 65_536]);
/// # Ok::<(), pinfeed::image::ImageError>(())
/// ```
pub fn panoptic_id([r, g, b]: [u8; 3]) -> Option<i32> {
    Some(i32::from(r) | i32::from(g) << 8 | i32::from(b) << 16)
}

impl<T: MapValue> LazyMap<T> {
    /// Makes one from the content of a file of numbers: grey, or indices into a palette.
    pub fn encoded(bytes: impl AsRef<[u8]> + Send + 'static) -> LazyMap<T> {
        LazyMap::new(Source::Numbers(Box::new(bytes)))
    }

    /// Makes one from the content of a file of colours, which stand for values: `code` says for which, or for none, which is an error.
    /// (Alpha is ignored.)
    pub fn coloured(
        bytes: impl AsRef<[u8]> + Send + 'static,
        code: impl Fn([u8; 3]) -> Option<T> + Send + 'static,
    ) -> LazyMap<T> {
        LazyMap::new(Source::Colours(Box::new(bytes), Box::new(code)))
    }

    /// Makes one from values, of shape `[height, width]`.
    ///
    /// # Errors
    ///
    /// [`ImageError`] if the shape is different, or there are no pixels.
    pub fn values(values: Tensor<T>) -> Result<LazyMap<T>, ImageError> {
        match size_of(values.shape()) {
            Some(_) => Ok(LazyMap::new(Source::Values(values))),
            None => Err(ImageError::new(
                None,
                Cause::NotLabels(values.shape().clone()),
            )),
        }
    }

    fn new(source: Source<T>) -> LazyMap<T> {
        LazyMap {
            source,
            path: None,
            geometry: None,
            fill: T::default(),
            max_pixels: DecodeOptions::default().max_pixels,
        }
    }

    /// Shows the same part of the map as of its picture. See
    /// [`LazyImage::geometry`](crate::image::LazyImage::geometry).
    pub fn with_geometry(mut self, geometry: Geometry) -> LazyMap<T> {
        self.geometry = Some(geometry);
        self
    }

    /// Names the file in errors.
    pub fn with_path(mut self, path: impl Into<PathBuf>) -> LazyMap<T> {
        self.path = Some(path.into());
        self
    }

    /// The value outside the picture. Default: 0.
    pub fn with_fill(mut self, value: T) -> LazyMap<T> {
        self.fill = value;
        self
    }

    /// The most pixels that a map's file may have. Default: 178,956,970, as for pictures.
    pub fn with_max_pixels(mut self, pixels: u64) -> LazyMap<T> {
        self.max_pixels = pixels;
        self
    }

    /// Decodes the map now, with its picture's geometry, into a tensor of shape `[height, width]`.
    ///
    /// # Errors
    ///
    /// [`ImageError`] as for the type.
    pub fn decode(self) -> Result<Tensor<T>, ImageError> {
        self.decode_to_vec().map_err(|cause| self.error(cause))
    }

    fn decode_to_vec(&self) -> Result<Tensor<T>, Cause> {
        let (size, values) = self.read()?;
        let shape = shape_of(shown(&self.geometry, size)?);
        let mut out = vec![T::default(); shape.iter().product()];
        self.draw(size, &values, &mut out)?;
        Tensor::from_vec(out, &shape).map_err(|_| Cause::NotLabels(shape))
    }

    /// The values of the file, one behind the other, as bytes.
    fn read(&self) -> Result<(Size, Vec<u8>), Cause> {
        let max_pixels = self.max_pixels;
        match &self.source {
            Source::Numbers(bytes) => {
                let (size, numbers) = stored::numbers((**bytes).as_ref(), max_pixels)?;
                Ok((size, value::of_numbers::<T>(&numbers)?))
            }
            Source::Colours(bytes, code) => {
                let (size, colours) = stored::colours((**bytes).as_ref(), max_pixels)?;
                let values = value::of_colours(&colours, size.width as usize, code)?;
                Ok((size, values))
            }
            Source::Values(values) => match size_of(values.shape()) {
                Some(size) => Ok((size, value::bytes(values.as_slice()))),
                None => Err(Cause::NotLabels(values.shape().clone())),
            },
        }
    }

    fn draw(&self, size: Size, values: &[u8], out: &mut [T]) -> Result<(), Cause> {
        match &self.geometry {
            None => value::put(values, out),
            Some(geometry) => {
                let drawn = T::draw(geometry, self.fill, size, values)?;
                value::put(&drawn, out);
            }
        }
        Ok(())
    }

    fn error(&self, cause: Cause) -> ImageError {
        ImageError::new(self.path.clone(), cause)
    }
}

impl<T: MapValue> Sample for LazyMap<T> {
    type Batch = Tensor<T>;
    type Plan = Field<T>;
    type Rest = ();
    const DENSE: bool = true;

    fn plan<'a>(
        mut samples: impl Iterator<Item = &'a Self> + Clone,
        layout: &mut Layout,
    ) -> Result<Field<T>, CollateError> {
        let Some(first) = samples.next() else {
            return layout.field(&[0, 0]);
        };
        let size = match &first.geometry {
            Some(geometry) => geometry.size(),
            None => first.read().map_err(|cause| load(first.error(cause)))?.0,
        };
        layout.field(&shape_of(size))
    }

    fn fill(self, field: &Field<T>, row: &mut Row<'_>) -> Result<(), CollateError> {
        row.decoding(|row| {
            let failed = |cause| load(self.error(cause));
            let (size, values) = self.read().map_err(failed)?;
            let shape = shape_of(shown(&self.geometry, size).map_err(failed)?);
            if shape != *field.row_shape() {
                return Err(row.mismatch(field, shape));
            }
            self.draw(size, &values, row.slice_mut(field)?)
                .map_err(failed)
        })
    }

    fn finish(field: Field<T>, _: Vec<()>, filled: &mut Filled) -> Tensor<T> {
        filled.take(field)
    }
}

impl<T: MapValue> fmt::Debug for LazyMap<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let source = match &self.source {
            Source::Numbers(bytes) => format!("{} bytes", (**bytes).as_ref().len()),
            Source::Colours(bytes, _) => format!("{} bytes of colours", (**bytes).as_ref().len()),
            Source::Values(values) => format!("{:?}", values.shape()),
        };
        f.debug_struct("LazyMap")
            .field("source", &source)
            .field("path", &self.path)
            .field("geometry", &self.geometry)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests;
