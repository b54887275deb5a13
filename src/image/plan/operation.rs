//! The parameters of operations: colours, padding, crops, filters.

use std::ops::RangeInclusive;

use crate::image::size::{ImageSize, Size};

/// By how much colours vary, for [`color_jitter`](crate::image::ImageTransform::color_jitter). Default: not at all.
///
/// The four changes run in a random order, each with a random factor. This is torchvision's `ColorJitter`.
///
/// # Examples
///
/// ```
/// use pinfeed::image::{ColorJitter, ImageTransform};
///
/// let colours = ColorJitter::new().with_brightness(0.4).with_contrast(0.4).with_saturation(0.4).with_hue(0.1);
/// let transform = ImageTransform::train(224).color_jitter(colours);
/// # let _ = transform;
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct ColorJitter {
    pub(in crate::image) brightness: f64,
    pub(in crate::image) contrast: f64,
    pub(in crate::image) saturation: f64,
    pub(in crate::image) hue: f64,
}

impl ColorJitter {
    /// Makes one that changes nothing.
    pub fn new() -> ColorJitter {
        ColorJitter::default()
    }

    /// Draws the factor of the brightness from 1 - `by` (at least 0) to 1 + `by`.
    ///
    /// # Panics
    ///
    /// If it is negative, or no number.
    pub fn with_brightness(self, by: f64) -> ColorJitter {
        ColorJitter {
            brightness: not_negative("brightness", by, f64::MAX),
            ..self
        }
    }

    /// Draws the factor of the contrast from 1 - `by` (at least 0) to 1 + `by`.
    ///
    /// # Panics
    ///
    /// If it is negative, or no number.
    pub fn with_contrast(self, by: f64) -> ColorJitter {
        ColorJitter {
            contrast: not_negative("contrast", by, f64::MAX),
            ..self
        }
    }

    /// Draws the factor of the saturation from 1 - `by` (at least 0) to 1 + `by`.
    ///
    /// # Panics
    ///
    /// If it is negative, or no number.
    pub fn with_saturation(self, by: f64) -> ColorJitter {
        ColorJitter {
            saturation: not_negative("saturation", by, f64::MAX),
            ..self
        }
    }

    /// Turns the hue by at most `by` of a circle, in either direction.
    ///
    /// # Panics
    ///
    /// If it is not in 0..=0.5.
    pub fn with_hue(self, by: f64) -> ColorJitter {
        ColorJitter {
            hue: not_negative("hue", by, 0.5),
            ..self
        }
    }
}

fn not_negative(what: &str, by: f64, most: f64) -> f64 {
    assert!(
        (0.0..=most).contains(&by),
        "ColorJitter::with_{what}: {by} is not a number from 0 to {most}"
    );
    by
}

/// The border that [`pad`](crate::image::ImageTransform::pad) adds, in pixels. One number is the same on every side, two are (left and
/// right, top and bottom), four are (left, top, right, bottom), as in torchvision.
///
/// # Examples
///
/// ```
/// use pinfeed::image::ImageTransform;
///
/// let cifar = ImageTransform::new().pad(4).random_crop(32); // 4 pixels on each side
/// let wide = ImageTransform::new().pad((16, 0)); // left and right only
/// # let _ = (cifar, wide);
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Padding {
    /// Before the first column.
    pub left: u16,
    /// Above the first row.
    pub top: u16,
    /// After the last column.
    pub right: u16,
    /// Below the last row.
    pub bottom: u16,
}

impl From<u16> for Padding {
    fn from(pixels: u16) -> Padding {
        (pixels, pixels).into()
    }
}

impl From<(u16, u16)> for Padding {
    fn from((across, down): (u16, u16)) -> Padding {
        (across, down, across, down).into()
    }
}

impl From<(u16, u16, u16, u16)> for Padding {
    fn from((left, top, right, bottom): (u16, u16, u16, u16)) -> Padding {
        Padding {
            left,
            top,
            right,
            bottom,
        }
    }
}

/// A random crop that is resized: for [`random_resized_crop`](crate::image::ImageTransform::random_resized_crop).
///
/// The crop's area, as a share of the picture's, is drawn uniformly from [`with_scale`](RandomResizedCrop::with_scale), and its width
/// divided by its height log-uniformly from [`with_ratio`](RandomResizedCrop::with_ratio). Then its place is drawn uniformly. If ten
/// crops in a row do not fit the picture, the largest central crop whose ratio is in range is taken. This is torchvision's
/// `RandomResizedCrop`, step by step (Szegedy and others, "Going deeper with convolutions", 2015).
///
/// # Examples
///
/// ```
/// use pinfeed::image::{ImageTransform, RandomResizedCrop};
///
/// let gentle = RandomResizedCrop::new(224).with_scale(0.5..=1.0).with_ratio(0.9..=1.1);
/// let transform = ImageTransform::new().random_resized_crop(gentle).random_horizontal_flip(0.5);
/// assert_eq!(transform.output_size(), Some((224, 224)));
/// ```
#[derive(Debug, Clone, PartialEq)]
pub struct RandomResizedCrop {
    pub(in crate::image) size: Size,
    pub(in crate::image) scale: (f64, f64),
    pub(in crate::image) ratio: (f64, f64),
}

impl RandomResizedCrop {
    /// Makes a crop that is resized to `size`, the side of a square or (height, width).
    ///
    /// # Panics
    ///
    /// If the size is 0.
    pub fn new(size: impl Into<ImageSize>) -> RandomResizedCrop {
        RandomResizedCrop {
            size: size.into().into(),
            scale: (0.08, 1.0),
            ratio: (3.0 / 4.0, 4.0 / 3.0),
        }
    }

    /// The crop's area, as a share of the picture's. Default: `0.08..=1.0`.
    ///
    /// # Panics
    ///
    /// If the range is empty, or a bound is not a positive number.
    pub fn with_scale(self, scale: RangeInclusive<f64>) -> RandomResizedCrop {
        RandomResizedCrop {
            scale: positive("RandomResizedCrop::with_scale", scale),
            ..self
        }
    }

    /// The crop's width divided by its height. Default: `3.0 / 4.0..=4.0 / 3.0`.
    ///
    /// # Panics
    ///
    /// If the range is empty, or a bound is not a positive number.
    pub fn with_ratio(self, ratio: RangeInclusive<f64>) -> RandomResizedCrop {
        RandomResizedCrop {
            ratio: positive("RandomResizedCrop::with_ratio", ratio),
            ..self
        }
    }
}

impl<S: Into<ImageSize>> From<S> for RandomResizedCrop {
    fn from(size: S) -> RandomResizedCrop {
        RandomResizedCrop::new(size)
    }
}

pub(super) fn positive(what: &str, range: RangeInclusive<f64>) -> (f64, f64) {
    let (start, end) = range.into_inner();
    assert!(
        0.0 < start && start <= end && end.is_finite(),
        "{what}: {start}..={end} is not a range of positive numbers"
    );
    (start, end)
}

/// The filter for resampling. When a picture shrinks, the filter is widened so that every pixel counts. torchvision calls
/// this `antialias=True`, and Pillow always does it.
///
/// # Examples
///
/// ```
/// use pinfeed::image::{ImageTransform, Interpolation};
///
/// let transform = ImageTransform::eval(224).with_interpolation(Interpolation::Bicubic);
/// # let _ = transform;
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
#[non_exhaustive]
pub enum Interpolation {
    /// The nearest pixel, never widened: for masks and label maps.
    Nearest,
    /// The triangle filter, torchvision's default.
    #[default]
    Bilinear,
    /// The cubic filter with a = -0.5 (Catmull-Rom), as in Pillow.
    Bicubic,
    /// The Lanczos filter with three lobes.
    Lanczos,
}

pub(super) fn check_probability(operation: &str, probability: f64) {
    assert!(
        (0.0..=1.0).contains(&probability),
        "{operation}: {probability} is not a probability"
    );
}
