//! The sample for masks: a picture whose values are labels.

use std::borrow::Cow;
use std::fmt;
use std::io::Cursor;
use std::path::PathBuf;

use image::ImageFormat;

use super::ImageError;
use super::decode::{self, DecodeOptions};
use super::error::{Advice, Cause};
use super::geometry::Geometry;
use super::pixels::{Labels, Look, Scratch, carry_out, render};
use super::plan::Interpolation;
use super::size::Size;
use crate::error::CollateError;
use crate::sample::{Field, Filled, Layout, Row};
use crate::tensor::Shape;
use crate::{Sample, Tensor};

/// A mask, with a label of 8 bits for each pixel, that follows its picture through crops, flips, resizing and rotation.
///
/// A batch of them is a `Tensor<u8>` of shape `[n, height, width]`. Labels are taken from the nearest pixel and never mixed.
/// Operations on colours do not change them.
///
/// A file is a PNG or TIFF in grey or with a palette, whose indices are the labels (as in PASCAL VOC), or a PGM or PBM. Labels of 1,
/// 2 and 4 bits are the values in the file: 0 (black) to 1, 3 or 15. (Pillow stretches grey of 2 and 4 bits to 0..=255.) In TIFF
/// whose white is 0, they are counted from black, too.
///
/// # Errors
///
/// The sample fails with an [`ImageError`] if the mask and its picture differ in size, or if its pixels are not labels: three
/// channels, 16 bits (a [`LazyMap`](super::LazyMap) takes these, and colours that stand for ids), or a JPEG file, whose compression changes
/// them.
///
/// # Examples
///
/// ```
/// use pinfeed::image::{ImageTransform, LazyImage, LazyMask};
/// use pinfeed::rng::RngKey;
/// use pinfeed::{SampleRng, Tensor};
///
/// let (pixels, labels) = (Tensor::zeros(&[40, 80, 3]), Tensor::from_vec(vec![7; 40 * 80], &[40, 80])?);
/// let image = LazyImage::rgb(pixels)?.transform(&ImageTransform::train(32), &mut SampleRng::for_sample(RngKey { seed: 17, epoch: 0, position: 0 }));
/// let mask = LazyMask::labels(labels)?.with_geometry(image.geometry()?);
/// assert_eq!(mask.decode()?.shape()[..], [32, 32]); // (image, mask) is a sample
/// # Ok::<(), pinfeed::BoxError>(())
/// ```
pub struct LazyMask {
    source: MaskSource,
    path: Option<PathBuf>,
    geometry: Option<Geometry>,
    fill: u8,
    max_pixels: u64,
}

enum MaskSource {
    Encoded(Box<dyn AsRef<[u8]> + Send>),
    Labels(Tensor<u8>),
}

impl LazyMask {
    /// Makes one from the content of a file.
    pub fn encoded(bytes: impl AsRef<[u8]> + Send + 'static) -> LazyMask {
        LazyMask::new(MaskSource::Encoded(Box::new(bytes)))
    }

    /// Makes one from labels, of shape `[height, width]`.
    ///
    /// # Errors
    ///
    /// [`ImageError`] if the shape is different, or there are no pixels.
    pub fn labels(labels: Tensor<u8>) -> Result<LazyMask, ImageError> {
        match size_of(labels.shape()) {
            Some(_) => Ok(LazyMask::new(MaskSource::Labels(labels))),
            None => Err(ImageError::new(
                None,
                Cause::NotLabels(labels.shape().clone()),
            )),
        }
    }

    fn new(source: MaskSource) -> LazyMask {
        LazyMask {
            source,
            path: None,
            geometry: None,
            fill: 0,
            max_pixels: DecodeOptions::default().max_pixels,
        }
    }

    /// Shows the same part of the mask as of its picture. See
    /// [`LazyImage::geometry`](crate::image::LazyImage::geometry).
    pub fn with_geometry(mut self, geometry: Geometry) -> LazyMask {
        self.geometry = Some(geometry);
        self
    }

    /// Names the file in errors.
    pub fn with_path(mut self, path: impl Into<PathBuf>) -> LazyMask {
        self.path = Some(path.into());
        self
    }

    /// The label outside the picture. Default: 0. Recipes often use 255 and let the loss ignore it.
    pub fn with_fill(mut self, label: u8) -> LazyMask {
        self.fill = label;
        self
    }

    /// The most pixels that a mask's file may have. Default: 178,956,970, as for pictures.
    pub fn with_max_pixels(mut self, pixels: u64) -> LazyMask {
        self.max_pixels = pixels;
        self
    }

    /// Decodes the mask now, with its picture's geometry, into a tensor of shape `[height, width]`.
    ///
    /// # Errors
    ///
    /// [`ImageError`] as for the type.
    pub fn decode(self) -> Result<Tensor<u8>, ImageError> {
        self.decode_to_vec().map_err(|cause| self.error(cause))
    }

    fn decode_to_vec(&self) -> Result<Tensor<u8>, Cause> {
        let (size, labels) = self.read()?;
        let shape = shape_of(shown(&self.geometry, size)?);
        let mut out = vec![0; shape.iter().product()];
        self.draw(size, &labels, &mut out)?;
        Tensor::from_vec(out, &shape).map_err(|_| Cause::NotLabels(shape))
    }

    /// The labels as stored in the file.
    fn read(&self) -> Result<(Size, Cow<'_, [u8]>), Cause> {
        match &self.source {
            MaskSource::Encoded(bytes) => {
                let (size, labels) = decode((**bytes).as_ref(), self.max_pixels)?;
                Ok((size, Cow::Owned(labels)))
            }
            MaskSource::Labels(labels) => match size_of(labels.shape()) {
                Some(size) => Ok((size, Cow::Borrowed(labels.as_slice()))),
                None => Err(Cause::NotLabels(labels.shape().clone())),
            },
        }
    }

    fn draw(&self, size: Size, labels: &[u8], out: &mut [u8]) -> Result<(), Cause> {
        let Some(geometry) = &self.geometry else {
            out.copy_from_slice(labels);
            return Ok(());
        };
        let look = Look {
            interpolation: Interpolation::Nearest,
            fill: [self.fill],
        };
        Scratch::with(|scratch| {
            carry_out::<Labels, 1>(geometry, look, scratch, out, |frame, scratch, out| {
                render::<Labels, 1>(&mut scratch.resampler, labels, size, frame, look, out)
            })
        })
    }

    fn error(&self, cause: Cause) -> ImageError {
        ImageError::new(self.path.clone(), cause)
    }
}

impl Sample for LazyMask {
    type Batch = Tensor<u8>;
    type Plan = Field<u8>;
    type Rest = ();
    const DENSE: bool = true;

    fn plan<'a>(
        mut samples: impl Iterator<Item = &'a Self> + Clone,
        layout: &mut Layout,
    ) -> Result<Field<u8>, CollateError> {
        let Some(first) = samples.next() else {
            return layout.field(&[0, 0]);
        };
        let size = match &first.geometry {
            Some(geometry) => geometry.size(),
            None => first.read().map_err(|cause| load(first.error(cause)))?.0,
        };
        layout.field(&shape_of(size))
    }

    fn fill(self, field: &Field<u8>, row: &mut Row<'_>) -> Result<(), CollateError> {
        row.decoding(|row| {
            let failed = |cause| load(self.error(cause));
            let (size, labels) = self.read().map_err(failed)?;
            let shape = shape_of(shown(&self.geometry, size).map_err(failed)?);
            if shape != *field.row_shape() {
                return Err(row.mismatch(field, shape));
            }
            self.draw(size, &labels, row.slice_mut(field)?)
                .map_err(failed)
        })
    }

    fn finish(field: Field<u8>, _: Vec<()>, filled: &mut Filled) -> Tensor<u8> {
        filled.take(field)
    }
}

/// The size of the transformed mask, if the mask has the given size.
pub(super) fn shown(geometry: &Option<Geometry>, size: Size) -> Result<Size, Cause> {
    let Some(geometry) = geometry else {
        return Ok(size);
    };
    let picture = geometry.source();
    if picture != size {
        let said = |size: Size| format!("{} x {}", size.width, size.height);
        return Err(Cause::OtherSize {
            mask: said(size),
            picture: said(picture),
        });
    }
    Ok(geometry.size())
}

pub(super) fn load(error: ImageError) -> CollateError {
    CollateError::Load(Box::new(error))
}

pub(super) fn shape_of(size: Size) -> Shape {
    Shape::from([size.height as usize, size.width as usize].as_slice())
}

pub(super) fn size_of(shape: &Shape) -> Option<Size> {
    let [height, width] = shape[..] else {
        return None;
    };
    let side = |pixels: usize| u32::try_from(pixels).ok().filter(|pixels| *pixels > 0);
    Some(Size {
        width: side(width)?,
        height: side(height)?,
    })
}

/// Reads a file of labels.
fn decode(bytes: &[u8], max_pixels: u64) -> Result<(Size, Vec<u8>), Cause> {
    if bytes.is_empty() {
        return Err(Cause::Empty);
    }
    match decode::format(bytes).map_err(|cause| cause.with_advice(Advice::Labels))? {
        ImageFormat::Png => match decode::caught(|| decode_png(bytes, max_pixels))? {
            (size, Stored::Eight(labels, _)) => Ok((size, labels)),
            (_, Stored::Sixteen(_)) => Err(Cause::NotAMask("Grayscale of 16 bits".into())),
            (_, Stored::Colours { what, .. }) => Err(Cause::NotAMask(what)),
        },
        ImageFormat::Jpeg => Err(Cause::NotAMask("of a JPEG file, which changes them".into())),
        _ => {
            let decoding = DecodeOptions {
                max_pixels,
                ..DecodeOptions::default()
            };
            let picture = decode::open(bytes, decoding);
            let picture = picture.map_err(|cause| cause.with_advice(Advice::Labels))?;
            let size = picture.size();
            let mut labels = vec![0; size.width as usize * size.height as usize];
            picture.decode_labels(&mut labels)?;
            Ok((size, labels))
        }
    }
}

/// The pixels of a PNG file, as they are stored.
pub(super) enum Stored {
    /// Grey of at most 8 bits; or indices into a palette, and its colours.
    Eight(Vec<u8>, Option<Vec<u8>>),
    /// Grey.
    Sixteen(Vec<u16>),
    /// Anything else, by name. Those of 8 bits are decoded, without their alpha.
    Colours { what: String, rgb: Option<Vec<u8>> },
}

/// Reads a PNG file without applying its palette: `image`'s decoder would turn the labels into colours.
pub(super) fn decode_png(bytes: &[u8], max_pixels: u64) -> Result<(Size, Stored), Cause> {
    let size = decode::png_size(bytes)?;
    let decoding = DecodeOptions {
        max_pixels,
        ..DecodeOptions::default()
    };
    decode::check_size(size, 0, decoding)?;
    // Metadata is not needed, and may be a decompression bomb.
    let limits = png::Limits { bytes: 64 << 20 };
    let mut decoder = png::Decoder::new_with_limits(Cursor::new(bytes), limits);
    decoder.set_transformations(png::Transformations::IDENTITY);
    decoder.set_ignore_text_chunk(true);
    decoder.set_ignore_iccp_chunk(true);
    let mut reader = decoder.read_info()?;
    let (color, depth) = reader.output_color_type();
    let palette = reader.info().palette.as_deref().map(<[u8]>::to_vec);
    let palette = palette.filter(|_| color == png::ColorType::Indexed);
    let what = || format!("{color:?} of {} bits", depth as u8);
    let channels = match (color, depth) {
        (png::ColorType::Indexed | png::ColorType::Grayscale, _) => 1,
        (png::ColorType::Rgb, png::BitDepth::Eight) => 3,
        (png::ColorType::Rgba, png::BitDepth::Eight) => 4,
        _ => {
            let what = what();
            return Ok((size, Stored::Colours { what, rgb: None }));
        }
    };
    let width = size.width as usize;
    let line = reader.output_line_size(size.width).unwrap_or(width);
    let mut packed = vec![0; line * size.height as usize];
    reader.next_frame(&mut packed)?;
    match (channels, depth) {
        (3, _) => {
            let (what, rgb) = (what(), Some(packed));
            return Ok((size, Stored::Colours { what, rgb }));
        }
        (4, _) => {
            let (pixels, _) = packed.as_chunks::<4>();
            let rgb = pixels.iter().flat_map(|[r, g, b, _]| [*r, *g, *b]);
            let (what, rgb) = (what(), Some(rgb.collect()));
            return Ok((size, Stored::Colours { what, rgb }));
        }
        (_, png::BitDepth::Eight) => return Ok((size, Stored::Eight(packed, palette))),
        (_, png::BitDepth::Sixteen) => {
            let (values, _) = packed.as_chunks::<2>();
            let values = values.iter().map(|value| u16::from_be_bytes(*value));
            return Ok((size, Stored::Sixteen(values.collect())));
        }
        _ => {}
    }
    let depth = depth as usize;
    let per_byte = 8 / depth;
    let unpacked = packed.chunks_exact(line).flat_map(|line| {
        (0..width).map(move |column| {
            let shift = 8 - depth * (1 + column % per_byte);
            line[column / per_byte] >> shift & (0xFF >> (8 - depth))
        })
    });
    Ok((size, Stored::Eight(unpacked.collect(), palette)))
}

impl fmt::Debug for LazyMask {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let source = match &self.source {
            MaskSource::Encoded(bytes) => format!("{} bytes", (**bytes).as_ref().len()),
            MaskSource::Labels(labels) => format!("{:?}", labels.shape()),
        };
        f.debug_struct("LazyMask")
            .field("source", &source)
            .field("path", &self.path)
            .field("geometry", &self.geometry)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests;
