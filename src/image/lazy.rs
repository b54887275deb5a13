//! The sample: a picture that is decoded straight into its row of the batch.

#[cfg_attr(not(feature = "nvjpeg"), path = "lazy/no_device.rs")]
mod on_device;

use std::fmt;
use std::path::PathBuf;

pub(super) use self::on_device::OnDevice;
use super::ImageError;
use super::decode::{self, DecodeOptions};
use super::error::Cause;
use super::file::FileBytes;
use super::geometry::Geometry;
use super::opened::Opened;
use super::pixels::Look;
use super::plan::ImageTransform;
use super::size::Size;
use crate::error::CollateError;
use crate::sample::{Field, Filled, Layout, Row};
use crate::tensor::Shape;
use crate::{Sample, SampleRng, Tensor};

/// A picture that is decoded, transformed and written into its row of the batch in one step.
///
/// A batch of them is a `Tensor<u8>` of RGB pixels, of shape `[n, height, width, 3]`. Until the batch has memory, a
/// `LazyImage` holds only the bytes of its file. [`ImageFolder`](crate::image::ImageFolder) returns such samples; your own data set
/// makes them from bytes ([`encoded`](LazyImage::encoded)) or pixels ([`rgb`](LazyImage::rgb)).
///
/// The formats are JPEG, PNG, WebP, GIF, TIFF, BMP and PNM, and any others that the program enables in the `image` crate.
/// The format is recognized by the content. Grey is repeated in all three channels. Palettes are looked up. Alpha is dropped:
/// transparent pixels keep the colour that the file stores, and what the first frame of a GIF does not cover has its
/// transparent colour. Where TIFF says that colours were multiplied by alpha (`ExtraSamples` is 1), they are divided by it, as Pillow
/// does; pixels whose alpha is 0 become black. Other channels of TIFF beside RGB, such as infrared, are dropped. Of 16 bits, the
/// upper 8 are kept. Grey of 1, 2 or 4 bits is stretched to 0..=255. CMYK is converted without a colour profile. Of an animation, or
/// of a file with several pages, the first picture is taken.
///
/// With the feature `turbojpeg`, libjpeg-turbo decodes JPEG files in grey and YCbCr. If the transform begins with a crop, it
/// decodes only the box that the crop needs. Its pixels differ from the default decoder's by rounding (by at most 4 of 255
/// where chroma is not subsampled), and do not depend on how much was decoded. The default decoder takes all other JPEG files.
///
/// # Errors
///
/// An empty, truncated or broken file is an error of its sample: an [`ImageError`] that names the file. So is one at which a
/// decoder panics.
///
/// A JPEG file with damage inside its data is refused if the damage can be detected: a code that is in no table, data that end
/// too soon, a missing restart marker. Of files with one damaged place, that is about a quarter; with restart markers, 4 in 10;
/// of progressive files, 6 in 10. Other damage decodes to a valid picture that nothing can tell from an intact one; libjpeg
/// decodes the same pixels without a warning. (In 1 file of 250, the damaged data have the right length but impossible
/// coefficients. There the damaged blocks differ from libjpeg's.) With the feature `turbojpeg`, files in grey and YCbCr decode
/// as with libjpeg: the damage is in the picture. What libjpeg itself gives up on, even behind the last row, is an error.
///
/// A file that is not supported is an error that names what it is and says what to do: other formats; JPEG with 12 bits, lossless JPEG, or
/// more than 100 scans; TIFF in other colours than grey, RGB, a palette or CMYK (YCbCr, L\*a\*b\*, a camera's raw samples, ...), in signed
/// integers, in integers of 12, 32 or 64 bits, in floating point (except RGB of 32 bits), in grey or a palette with more than one other
/// channel, or compressed by anything but LZW, deflate, PackBits, Group 4 fax and JPEG. Without the feature `turbojpeg`, so are JPEG files
/// with arithmetic coding and a few rare layouts: rare sampling factors (3, or 4 and 2 down); luma coarser than chroma; subsampled channels
/// that are not interleaved; at most four columns with half as many of chroma. A PNG file is refused if the checksum of its pixels or its
/// palette is wrong (Pillow ignores that of the pixels). The checksums of other chunks are ignored.
///
/// # Examples
///
/// ```
/// use pinfeed::image::{ImageTransform, LazyImage};
/// use pinfeed::rng::RngKey;
/// use pinfeed::{Dataset, SampleRng, Tensor, from_fn};
///
/// let transform = ImageTransform::train(32);
/// let data = from_fn(100, move |index, rng| {
///     let pixels = Tensor::from_vec(vec![index as u8; 60 * 80 * 3], &[60, 80, 3])?;
///     Ok((LazyImage::rgb(pixels)?.transform(&transform, rng), index as i64))
/// });
/// let (image, label) = data.get(7, &mut SampleRng::for_sample(RngKey { seed: 17, epoch: 0, position: 0 }))?;
/// let image = image.decode()?; // a loader does this on its workers, straight into the batch
/// assert_eq!((&image.shape()[..], image.as_slice()[0], label), (&[32, 32, 3][..], 7, 7));
/// # Ok::<(), pinfeed::BoxError>(())
/// ```
pub struct LazyImage {
    source: ImageSource,
    path: Option<PathBuf>,
    transform: Option<ImageTransform>,
    /// The seed of the transform's random numbers.
    seed: u64,
    decoding: DecodeOptions,
    /// How it is left to the device that decodes it; `None`: the CPU does.
    on_device: Option<OnDevice>,
}

enum ImageSource {
    File(FileBytes),
    Encoded(Box<dyn AsRef<[u8]> + Send>),
    Rgb(Tensor<u8>),
}

impl ImageSource {
    /// The file; `Err` has pixels.
    fn encoded(&self) -> Result<&[u8], &Tensor<u8>> {
        match self {
            ImageSource::File(file) => Ok(file.as_ref()),
            ImageSource::Encoded(bytes) => Ok((**bytes).as_ref()),
            ImageSource::Rgb(pixels) => Err(pixels),
        }
    }
}

impl LazyImage {
    /// Makes one from the content of a file: a `Vec<u8>`, an `Arc<[u8]>`, a slice of a memory map, or anything else
    /// that holds bytes.
    pub fn encoded(bytes: impl AsRef<[u8]> + Send + 'static) -> LazyImage {
        LazyImage::new(ImageSource::Encoded(Box::new(bytes)))
    }

    pub(super) fn of_file(file: FileBytes) -> LazyImage {
        LazyImage::new(ImageSource::File(file))
    }

    /// Makes one from pixels, of shape `[height, width, 3]`.
    ///
    /// # Errors
    ///
    /// [`ImageError`] if the shape is different, or there are no pixels.
    pub fn rgb(pixels: Tensor<u8>) -> Result<LazyImage, ImageError> {
        match pixels.shape()[..] {
            [height, width, 3]
                if height.min(width) > 0 && u32::try_from(height.max(width)).is_ok() =>
            {
                Ok(LazyImage::new(ImageSource::Rgb(pixels)))
            }
            _ => Err(ImageError::new(None, Cause::NotRgb(pixels.shape().clone()))),
        }
    }

    fn new(source: ImageSource) -> LazyImage {
        LazyImage {
            source,
            path: None,
            transform: None,
            seed: 0,
            decoding: DecodeOptions::default(),
            on_device: None,
        }
    }

    /// Sets the transform. Its random numbers are drawn from `rng`, the generator passed to the data set's `get`.
    ///
    /// Pictures with clones of one generator draw the same numbers. Masks, boxes and key points follow their picture
    /// through its [`geometry`](LazyImage::geometry).
    pub fn transform(mut self, transform: &ImageTransform, rng: &mut SampleRng) -> LazyImage {
        if transform.is_random() {
            self.seed = rng.next_u64();
        }
        self.transform = Some(transform.clone());
        self
    }

    /// Names the file in errors.
    pub fn with_path(mut self, path: impl Into<PathBuf>) -> LazyImage {
        self.path = Some(path.into());
        self
    }

    /// Whether to turn the picture by its EXIF orientation, or by the orientation tag of TIFF. Default: no, as in torchvision's
    /// `ImageFolder`. (There, TIFF is an exception: Pillow always turns it.)
    pub fn with_exif_orientation(mut self, apply: bool) -> LazyImage {
        self.decoding.exif_orientation = apply;
        self
    }

    /// The most pixels that a picture may have, in its file and as transformed. Default: 178,956,970, Pillow's limit.
    ///
    /// A larger picture is an error before any memory is allocated for it, and so is a file that embeds a larger one. Pictures
    /// with 16 bits a channel count about twice, because the decoded picture may also take no more than 4 bytes for each pixel of
    /// the limit. Decoders allocate more on top: 6 bytes a pixel for a progressive JPEG, up to 64 MB for a profile in PNG.
    /// The tiles of a TIFF file, which reach beyond its edges, may have four times as many pixels together.
    pub fn with_max_pixels(mut self, pixels: u64) -> LazyImage {
        self.decoding.max_pixels = pixels;
        self
    }

    pub(super) fn on_device(mut self, on_device: Option<OnDevice>) -> LazyImage {
        self.on_device = on_device;
        self
    }

    /// The rows of a batch that begins with this picture.
    fn field(&self, layout: &mut Layout) -> Result<Field<u8>, CollateError> {
        let shape = self.shape().map_err(load)?;
        match self.on_device {
            Some(device) => device.field(&shape, layout),
            None => layout.field(&shape),
        }
    }

    pub(super) fn decoding(mut self, decoding: DecodeOptions) -> LazyImage {
        self.decoding = decoding;
        self
    }

    /// The shape of the decoded and transformed picture: `[height, width, 3]`. If it does not follow from the transform, the
    /// file's header is read.
    ///
    /// # Errors
    ///
    /// [`ImageError`] if the header cannot be read, or asks for more than [`with_max_pixels`](LazyImage::with_max_pixels).
    pub fn shape(&self) -> Result<Shape, ImageError> {
        if let Some((height, width)) = self.transform.as_ref().and_then(|t| t.output_size()) {
            return Ok([height, width, 3].as_slice().into());
        }
        let (height, width) = self.geometry()?.output_size();
        Ok([height, width, 3].as_slice().into())
    }

    /// Which part of the picture the transform shows, and where, for the picture's masks, boxes and key points. This
    /// reads the file's header.
    ///
    /// Set the [`transform`](LazyImage::transform) first. Without one, the geometry shows the picture as it is.
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
        match self.source.encoded() {
            Ok(file) => decode::open(file, self.decoding).map(Opened::Encoded),
            Err(pixels) => Ok(Opened::Rgb(pixels)),
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

    fn draw_into(&self, field: &Field<u8>, row: &mut Row<'_>) -> Result<(), CollateError> {
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
    const DENSE: bool = true;

    fn plan<'a>(
        mut samples: impl Iterator<Item = &'a Self> + Clone,
        layout: &mut Layout,
    ) -> Result<Field<u8>, CollateError> {
        match samples.next() {
            Some(first) => first.field(layout),
            None => layout.field(&[0, 0, 3]),
        }
    }

    fn fill(self, field: &Field<u8>, row: &mut Row<'_>) -> Result<(), CollateError> {
        if self.transform.is_none()
            && let ImageSource::Rgb(pixels) = self.source
        {
            return row.take(field, pixels);
        }
        match self.on_device {
            Some(device) => device.fill(self, field, row),
            None => row.decoding(|row| self.draw_into(field, row)),
        }
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
        let source = match self.source.encoded() {
            Ok(file) => format!("{} bytes", file.len()),
            Err(pixels) => format!("{:?}", pixels.shape()),
        };
        f.debug_struct("LazyImage")
            .field("source", &source)
            .field("path", &self.path)
            .field("transform", &self.transform)
            .finish_non_exhaustive()
    }
}
