//! The lazy sample: a picture that is decoded into its row of the batch.

use std::fmt;
use std::path::PathBuf;

use super::ImageError;
use super::decode::{self, Decoding};
use super::error::Cause;
use super::geometry::Geometry;
use super::opened::Opened;
use super::plan::ImageTransform;
use super::render::Look;
use super::size::Size;
use crate::error::CollateError;
use crate::meter;
use crate::rng::SampleRng;
use crate::tensor::{Dense, Field, Filled, Layout, Row, Sample, Shape, Tensor};

/// A picture that is decoded, transformed and written into its row of the batch in one go.
///
/// As a sample it becomes `u8` RGB: a batch of them is a `Tensor<u8>` of shape `[n, height, width, 3]`. Until its row
/// is there it is only the bytes of a file. [`ImageFolder`](crate::ImageFolder) gives such samples; a data set of
/// one's own makes them from bytes ([`encoded`](LazyImage::encoded)) or pixels ([`rgb`](LazyImage::rgb)).
///
/// The formats are JPEG, PNG, WebP, GIF, TIFF, BMP and PNM, and what else the program has the `image` crate decode; the
/// content tells which. Grey is repeated in all three channels, palettes are looked up, alpha is dropped (so transparent pixels
/// keep the colour that the file has of them, and what the first frame of a GIF leaves uncovered has its transparent colour), 16
/// bits keep their upper half, CMYK is converted without a colour profile. Of an animation or a file of several pages, it is the
/// first picture.
///
/// With the feature `turbojpeg`, JPEG files in grey and YCbCr are decoded by libjpeg-turbo, where a transform crops first only
/// the box that the crop needs. Its pixels differ from the default decoder's by rounding (4 of 255 at most where chroma is
/// not subsampled), and do not depend on how much was decoded. Other JPEG files go the default way.
///
/// # Errors
///
/// A file that is empty, truncated or broken fails as its sample does, with an [`ImageError`] that names the file.
///
/// A JPEG file with damage within its data is refused if the damage shows there: codes that no table has, data that end too soon,
/// restart markers that are missing. Of files with one damaged place those are about a quarter, 4 in 10 of those with restart
/// markers, and 6 in 10 of progressive ones. Other damage decodes to a possible picture. Nothing tells it from one, and libjpeg draws the
/// same without a word. (In 1 file of 250 the damaged data have the right length, but coefficients that no picture has. There the
/// damaged blocks differ from libjpeg's.) With the feature `turbojpeg`, files in grey and YCbCr come out as libjpeg shows them, with
/// the damage in the picture.
///
/// What is not decoded is an error that names it and says what to do: other formats; JPEG of 12 bits, without loss, or of more
/// than 100 scans; TIFF with a palette, or grey with alpha or in floating point. So are JPEG files with arithmetic coding and
/// of a few rare layouts (luma coarser than chroma; channels one behind the other and subsampled; four columns or fewer, of which chroma
/// has half), unless the feature `turbojpeg` is on. A PNG file is refused if the checksum of its pixels or its palette is wrong, though
/// Pillow does not look at that of pixels; of other chunks, a wrong one does not matter.
///
/// # Examples
///
/// ```
/// use pinfeed::{Dataset, ImageTransform, LazyImage, SampleRng, Tensor, from_fn};
///
/// let transform = ImageTransform::train(32);
/// let data = from_fn(100, move |index, rng| {
///     let pixels = Tensor::from_vec(vec![index as u8; 60 * 80 * 3], &[60, 80, 3])?;
///     Ok((LazyImage::rgb(pixels)?.transform(&transform, rng), index as i64))
/// });
/// let (image, label) = data.get(7, &mut SampleRng::new(17, 0, 0))?;
/// let image = image.decode()?; // a loader does this on its workers, straight into the batch
/// assert_eq!((&image.shape()[..], image.as_slice()[0], label), (&[32, 32, 3][..], 7, 7));
/// # Ok::<(), pinfeed::BoxError>(())
/// ```
pub struct LazyImage {
    source: Source,
    path: Option<PathBuf>,
    transform: Option<ImageTransform>,
    /// What the transform's random numbers are drawn from.
    seed: u64,
    decoding: Decoding,
}

enum Source {
    Encoded(Box<dyn AsRef<[u8]> + Send>),
    Rgb(Tensor<u8>),
}

impl LazyImage {
    /// Makes one of a file's content: a `Vec<u8>`, an `Arc<[u8]>`, a slice of a memory map, whatever has bytes.
    pub fn encoded(bytes: impl AsRef<[u8]> + Send + 'static) -> LazyImage {
        LazyImage::new(Source::Encoded(Box::new(bytes)))
    }

    /// Makes one of pixels, of shape `[height, width, 3]`.
    ///
    /// # Errors
    ///
    /// [`ImageError`] if the shape is another one, or there are no pixels.
    pub fn rgb(pixels: Tensor<u8>) -> Result<LazyImage, ImageError> {
        match pixels.shape()[..] {
            [height, width, 3]
                if height.min(width) > 0 && u32::try_from(height.max(width)).is_ok() =>
            {
                Ok(LazyImage::new(Source::Rgb(pixels)))
            }
            _ => Err(ImageError::new(None, Cause::NotRgb(pixels.shape().clone()))),
        }
    }

    fn new(source: Source) -> LazyImage {
        LazyImage {
            source,
            path: None,
            transform: None,
            seed: 0,
            decoding: Decoding::default(),
        }
    }

    /// Sets the transform; random numbers are drawn from `rng`, the generator that the data set's `get` was given.
    ///
    /// It draws the same numbers for as many pictures as are given clones of one generator. What belongs to one picture (a mask,
    /// boxes) goes by its [`geometry`](LazyImage::geometry).
    pub fn transform(mut self, transform: &ImageTransform, rng: &mut SampleRng) -> LazyImage {
        if transform.is_random() {
            self.seed = rng.next_u64();
        }
        self.transform = Some(transform.clone());
        self
    }

    /// Names the file in errors.
    pub fn path(mut self, path: impl Into<PathBuf>) -> LazyImage {
        self.path = Some(path.into());
        self
    }

    /// Whether to turn the picture as its EXIF orientation says, or its tag where it is TIFF. Default: no, as in torchvision's
    /// `ImageFolder`, but for TIFF, which Pillow turns by itself.
    pub fn exif_orientation(mut self, apply: bool) -> LazyImage {
        self.decoding.exif_orientation = apply;
        self
    }

    /// The most pixels that a picture may have, in its file and as transformed. Default: 178,956,970, Pillow's limit.
    ///
    /// A larger one is an error, before any memory is taken for it; so is a file with a larger one within. Pictures of 16 bits
    /// a channel count as twice their size, or thereabouts: the limit also is one of 4 bytes for each pixel, as decoded.
    /// Decoders take memory beside: that of a progressive JPEG 6 bytes for each pixel, that of PNG up to 64 MB for a profile.
    pub fn max_pixels(mut self, pixels: u64) -> LazyImage {
        self.decoding.max_pixels = pixels;
        self
    }

    pub(crate) fn decoding(mut self, decoding: Decoding) -> LazyImage {
        self.decoding = decoding;
        self
    }

    /// The shape of the decoded and transformed picture: `[height, width, 3]`. Where the transform does not tell, the
    /// file's header is read.
    ///
    /// # Errors
    ///
    /// [`ImageError`] if the header cannot be read, or asks for more than [`max_pixels`](LazyImage::max_pixels).
    pub fn shape(&self) -> Result<Shape, ImageError> {
        if let Some((height, width)) = self.transform.as_ref().and_then(|t| t.output_size()) {
            return Ok([height, width, 3].as_slice().into());
        }
        let (height, width) = self.geometry()?.output_size();
        Ok([height, width, 3].as_slice().into())
    }

    /// What the transform shows of the picture, for what belongs to it: masks, boxes, key points. The file's header is read.
    ///
    /// Set the [`transform`](LazyImage::transform) first: the geometry of a picture without one is the picture as it is.
    ///
    /// # Errors
    ///
    /// As [`shape`](LazyImage::shape).
    pub fn geometry(&self) -> Result<Geometry, ImageError> {
        let geometry = self.open().and_then(|opened| self.geometry_of(&opened));
        geometry.map_err(|cause| self.error(cause))
    }

    /// Decodes and transforms the picture now, into a tensor of shape `[height, width, 3]`.
    ///
    /// # Errors
    ///
    /// [`ImageError`] as for the type.
    pub fn decode(self) -> Result<Tensor<u8>, ImageError> {
        self.decode_to_vec().map_err(|cause| self.error(cause))
    }

    fn decode_to_vec(&self) -> Result<Tensor<u8>, Cause> {
        let opened = self.open()?;
        let geometry = self.geometry_of(&opened)?;
        let shape = shape_of(geometry.size());
        let mut pixels = vec![0; shape.iter().product()];
        opened.draw(&geometry, self.look(), self.may_scale(), &mut pixels)?;
        Tensor::from_vec(pixels, &shape).map_err(|_| Cause::NotRgb(shape))
    }

    fn open(&self) -> Result<Opened<'_>, Cause> {
        match &self.source {
            Source::Rgb(pixels) => Ok(Opened::Rgb(pixels)),
            Source::Encoded(bytes) => {
                decode::open((**bytes).as_ref(), self.decoding).map(Opened::Encoded)
            }
        }
    }

    fn geometry_of(&self, opened: &Opened<'_>) -> Result<Geometry, Cause> {
        let max_pixels = self.decoding.max_pixels;
        Geometry::draw(
            opened.size(),
            self.transform.as_ref(),
            self.seed,
            max_pixels,
        )
    }

    fn look(&self) -> Look<3> {
        let plan = self.transform.as_ref();
        Look {
            interpolation: plan.map(ImageTransform::filter).unwrap_or_default(),
            fill: plan.map(ImageTransform::outside).unwrap_or_default(),
        }
    }

    fn may_scale(&self) -> bool {
        let plan = self.transform.as_ref();
        plan.is_some_and(ImageTransform::may_scale)
    }

    fn error(&self, cause: Cause) -> ImageError {
        ImageError::new(self.path.clone(), cause)
    }
}

fn shape_of(size: Size) -> Shape {
    Shape::from([size.height as usize, size.width as usize, 3].as_slice())
}

impl Sample for LazyImage {
    type Batch = Tensor<u8>;
    type Plan = Field<u8>;
    type Rest = ();
    const DENSE: Dense<Self> = Dense::YES;

    fn plan<'a>(
        mut samples: impl Iterator<Item = &'a Self> + Clone,
        layout: &mut Layout,
    ) -> Result<Field<u8>, CollateError> {
        match samples.next() {
            Some(first) => layout.field(&first.shape().map_err(load)?),
            None => layout.field(&[0, 0, 3]),
        }
    }

    fn fill(self, field: &Field<u8>, row: &mut Row<'_>) -> Result<(), CollateError> {
        if self.transform.is_none()
            && let Source::Rgb(pixels) = self.source
        {
            return row.take(field, pixels);
        }
        let _decoding = meter::Decoding::begin();
        let failed = |cause| load(self.error(cause));
        let opened = self.open().map_err(failed)?;
        let geometry = self.geometry_of(&opened).map_err(failed)?;
        let shape = shape_of(geometry.size());
        if shape != *field.row_shape() {
            return Err(row.mismatch(field, shape));
        }
        let out = row.slice_mut(field)?;
        opened
            .draw(&geometry, self.look(), self.may_scale(), out)
            .map_err(failed)
    }

    fn finish(field: Field<u8>, _: Vec<()>, filled: &mut Filled) -> Tensor<u8> {
        filled.take(field)
    }
}

fn load(error: ImageError) -> CollateError {
    CollateError::Load(Box::new(error))
}

impl fmt::Debug for LazyImage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let source = match &self.source {
            Source::Encoded(bytes) => format!("{} bytes", (**bytes).as_ref().len()),
            Source::Rgb(pixels) => format!("{:?}", pixels.shape()),
        };
        f.debug_struct("LazyImage")
            .field("source", &source)
            .field("path", &self.path)
            .field("transform", &self.transform)
            .finish_non_exhaustive()
    }
}
