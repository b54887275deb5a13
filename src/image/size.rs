//! Sizes of pictures, and rectangles in them.

/// The size of a picture in pixels. One number is the side of a square, two are (height, width), as in torchvision.
///
/// # Examples
///
/// ```
/// use pinfeed::image::ImageTransform;
///
/// let square = ImageTransform::new().center_crop(224);
/// let wide = ImageTransform::new().center_crop((224, 320)); // height, width
/// assert_eq!((square.output_size(), wide.output_size()), (Some((224, 224)), Some((224, 320))));
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ImageSize {
    /// The number of rows.
    pub height: usize,
    /// The number of pixels in a row.
    pub width: usize,
}

impl From<usize> for ImageSize {
    fn from(side: usize) -> ImageSize {
        ImageSize {
            height: side,
            width: side,
        }
    }
}

impl From<(usize, usize)> for ImageSize {
    fn from((height, width): (usize, usize)) -> ImageSize {
        ImageSize { height, width }
    }
}

/// A checked size: both sides are at least 1 and fit the 32 bits of the resampler.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Size {
    pub(super) width: u32,
    pub(super) height: u32,
}

impl From<ImageSize> for Size {
    fn from(size: ImageSize) -> Size {
        let side = |pixels: usize| u32::try_from(pixels).ok().filter(|&pixels| pixels > 0);
        match (side(size.width), side(size.height)) {
            (Some(width), Some(height)) => Size { width, height },
            _ => panic!(
                "{} x {} is not a size of pictures: each side has 1 to {} pixels",
                size.height,
                size.width,
                u32::MAX
            ),
        }
    }
}

/// A rectangle in pixels.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Rect<T> {
    pub(super) left: T,
    pub(super) top: T,
    pub(super) width: T,
    pub(super) height: T,
}

impl Rect<u32> {
    /// All of a picture.
    pub(super) fn whole(size: Size) -> Rect<u32> {
        Rect {
            left: 0,
            top: 0,
            width: size.width,
            height: size.height,
        }
    }
}

impl Rect<f64> {
    /// A whole picture.
    pub(super) fn of(size: Size) -> Rect<f64> {
        Rect {
            left: 0.0,
            top: 0.0,
            width: size.width.into(),
            height: size.height.into(),
        }
    }

    /// The intersection. It is empty where the two do not overlap.
    pub(super) fn and(self, other: Rect<f64>) -> Rect<f64> {
        let left = self.left.max(other.left);
        let top = self.top.max(other.top);
        let right = (self.left + self.width).min(other.left + other.width);
        let bottom = (self.top + self.height).min(other.top + other.height);
        Rect {
            left,
            top,
            width: (right - left).max(0.0),
            height: (bottom - top).max(0.0),
        }
    }

    pub(super) fn whole_pixels(self) -> Rect<u32> {
        Rect {
            left: self.left as u32,
            top: self.top as u32,
            width: self.width as u32,
            height: self.height as u32,
        }
    }
}
