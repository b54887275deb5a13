//! Why a picture could not be decoded.

use std::borrow::Cow;
use std::fmt;
use std::path::{Path, PathBuf};

use crate::tensor::Shape;

/// Why a picture could not be decoded or transformed. It names the file if the picture has one.
///
/// # Examples
///
/// ```
/// use pinfeed::image::LazyImage;
///
/// let page = LazyImage::encoded(b"<html>404</html>").with_path("cat.jpg");
/// if let Err(error) = page.decode() {
///     assert!(error.to_string().starts_with("cat.jpg: "));
///     assert_eq!(error.path().and_then(|path| path.to_str()), Some("cat.jpg"));
/// }
/// ```
pub struct ImageError {
    path: Option<PathBuf>,
    cause: Cause,
}

impl ImageError {
    pub(super) fn new(path: Option<PathBuf>, cause: Cause) -> ImageError {
        ImageError { path, cause }
    }

    /// The picture's file, if it is known.
    pub fn path(&self) -> Option<&Path> {
        self.path.as_deref()
    }
}

impl fmt::Display for ImageError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.path {
            Some(path) => write!(f, "{}: {}", path.display(), self.cause),
            None => write!(f, "an image: {}", self.cause),
        }
    }
}

/// The same as `{}`: `main` and `unwrap` print errors this way.
impl fmt::Debug for ImageError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self}")
    }
}

impl std::error::Error for ImageError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.cause.source()
    }
}

/// What is wrong with a picture.
#[derive(Debug, thiserror::Error)]
pub(super) enum Cause {
    #[error("there are no bytes: the file is empty")]
    Empty,
    #[error("the file has {bytes} bytes or more, and max_file_bytes is {max_file_bytes}")]
    FileTooLarge { bytes: u64, max_file_bytes: u64 },
    #[error("its content is not a picture in a known format")]
    UnknownFormat,
    #[error("its content is {0}, not a picture")]
    NoPicture(&'static str),
    #[error("its content is {0}, which is not decoded: {1}")]
    NotDecoded(Cow<'static, str>, Advice),
    #[error("{0}: {advice}", advice = Advice::Convert)]
    Unsupported(image::ImageError),
    #[error("the file is truncated: its {0} data ends too soon")]
    Truncated(&'static str),
    #[error("its header contradicts itself: {0}")]
    Contradiction(&'static str),
    #[error("its JPEG data are damaged: {what}{advice}", advice = if *turbo { DAMAGE_ADVICE } else { "" })]
    Damaged {
        what: &'static str,
        /// Whether libjpeg-turbo may decode it, and is not there.
        turbo: bool,
    },
    #[error("its TIFF data are damaged: {0}")]
    DamagedTiff(&'static str),
    #[error("its decoder panicked, which is a bug of the decoder: {0}")]
    Panicked(String),
    #[error("it has {0} scans, and at most {most} are decoded", most = MOST_SCANS)]
    TooManyScans(usize),
    #[error(
        "its header says {width} x {height} pixels ({size_bytes} bytes when decoded), and max_pixels is {max_pixels}"
    )]
    TooLarge {
        width: u32,
        height: u32,
        size_bytes: u64,
        max_pixels: u64,
    },
    #[error("a part of it has {width} x {height} pixels, and max_pixels is {max_pixels}")]
    PartTooLarge {
        width: u64,
        height: u64,
        max_pixels: u64,
    },
    #[error("its parts have {pixels} pixels together, and max_pixels is {max_pixels}")]
    PartsTooLarge { pixels: u64, max_pixels: u64 },
    #[error("the data that come with its pixels take more memory than a picture of its size may")]
    Memory,
    #[error("the transform makes {width} x {height} pixels of it, and max_pixels is {max_pixels}")]
    ResizedTooLarge {
        width: u32,
        height: u32,
        max_pixels: u64,
    },
    #[error("it has no pixels ({width} x {height})")]
    NoPixels { width: u32, height: u32 },
    #[error("its colour type, {0:?}, cannot become RGB")]
    Color(image::ColorType),
    #[error("an RGB picture has the shape [height, width, 3], and this has {0}")]
    NotRgb(Shape),
    #[error("a mask of labels has the shape [height, width], and this has {0}")]
    NotLabels(Shape),
    #[error(
        "its pixels are {0}, and those of a mask are labels of 8 bits: grey, or indices into a palette. A `LazyMap` takes ids of 16 bits, \
         and colours that stand for ids; or convert them to labels, and pass those to `LazyMask::labels`"
    )]
    NotAMask(String),
    #[error("its pixels are {what}, and those that are taken here are {wanted}")]
    NotAMap { what: String, wanted: &'static str },
    #[error(
        "it has the value {number}, which is more than a {kind} holds: decode it into u16, i32 or f32"
    )]
    TooLargeFor { number: u16, kind: &'static str },
    #[error(
        "the colour {colour:?}, in column {column}, row {row}, stands for nothing: the code gave None for it"
    )]
    NoCode {
        colour: [u8; 3],
        column: usize,
        row: usize,
    },
    #[error("the mask has {mask} pixels and its picture {picture} (width x height)")]
    OtherSize { mask: String, picture: String },
    #[error("there is no picture in it")]
    NoFrame,
    #[error("GIF: {0}")]
    Gif(gif::DecodingError),
    #[error(transparent)]
    Png(png::DecodingError),
    #[error(transparent)]
    Decode(image::ImageError),
    #[cfg(feature = "turbojpeg")]
    #[error("libjpeg-turbo: {0}")]
    Turbo(String),
    #[error("it could not be resampled: {0}")]
    Resample(String),
}

impl From<image::ImageError> for Cause {
    fn from(error: image::ImageError) -> Cause {
        match error {
            image::ImageError::Unsupported(_) => Cause::Unsupported(error),
            image::ImageError::Limits(_) => Cause::Memory,
            error if ends_early(&error) => Cause::Truncated("picture"),
            error => Cause::Decode(error),
        }
    }
}

impl From<gif::DecodingError> for Cause {
    fn from(error: gif::DecodingError) -> Cause {
        match error {
            gif::DecodingError::UnexpectedEof => Cause::Truncated("GIF"),
            error if ends_early(&error) => Cause::Truncated("GIF"),
            error => Cause::Gif(error),
        }
    }
}

impl From<png::DecodingError> for Cause {
    fn from(error: png::DecodingError) -> Cause {
        match error {
            error if ends_early(&error) => Cause::Truncated("PNG"),
            error => Cause::Png(error),
        }
    }
}

/// Whether a decoder ran out of bytes. Its own message would be "failed to fill whole buffer" or similar.
fn ends_early(error: &(dyn std::error::Error + 'static)) -> bool {
    let mut causes = std::iter::successors(Some(error), |error| error.source());
    causes.any(|error| match error.downcast_ref::<std::io::Error>() {
        Some(error) => error.kind() == std::io::ErrorKind::UnexpectedEof,
        // `image` and `png` forward the reader's message and source, so the reader's error is not in the chain.
        None => match (error.downcast_ref(), error.downcast_ref()) {
            (Some(image::ImageError::IoError(error)), _)
            | (_, Some(png::DecodingError::IoError(error))) => {
                error.kind() == std::io::ErrorKind::UnexpectedEof
            }
            _ => false,
        },
    })
}

impl Cause {
    /// What is not decoded, with this advice instead of its own.
    pub(super) fn with_advice(self, advice: Advice) -> Cause {
        match self {
            Cause::NotDecoded(what, _) => Cause::NotDecoded(what, advice),
            other => other,
        }
    }

    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        std::error::Error::source(self)
    }
}

/// What the user can do about a picture that is not decoded.
#[derive(Debug, Clone, Copy)]
pub(super) enum Advice {
    Convert,
    /// Build with the feature `turbojpeg`.
    Turbo,
    /// Enable a feature of the `image` crate.
    Feature,
    /// What pictures become would change a mask's labels, or a map's values.
    Labels,
    Values,
}

impl fmt::Display for Advice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Advice::Convert => "",
            Advice::Turbo => "build with pinfeed's feature `turbojpeg`, or ",
            Advice::Feature => "enable its feature of the `image` crate, or ",
            Advice::Labels => {
                return f.write_str(
                    "convert it to PNG in grey, or read it otherwise and pass its labels to `LazyMask::labels`",
                );
            }
            Advice::Values => {
                return f.write_str("read it otherwise, and pass its values to `LazyMap::values`");
            }
        })?;
        f.write_str("convert it to PNG, WebP or ordinary JPEG")
    }
}

/// The feature that decodes damaged JPEG files as far as possible. Not all: some damage ends libjpeg's decoding, too.
const DAMAGE_ADVICE: &str = " (pinfeed's feature `turbojpeg` decodes what libjpeg decodes of it, with the damage in the picture)";

/// Each scan takes as long as decoding a whole picture, and a file may claim thousands. Encoders write about ten. (This is
/// also the default decoder's limit for progressive files.)
pub(super) const MOST_SCANS: usize = 100;
