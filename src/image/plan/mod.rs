//! What the program asked for: [`ImageTransform`], a list of operations.

mod augment;
mod operation;

pub use augment::{RandAugment, RandomErasing, RandomRotation};
pub use operation::{ColorJitter, Interpolation, Padding, RandomResizedCrop};

use std::sync::Arc;

use self::operation::check_probability;
use super::size::{ImageSize, Size};

/// What to do with each picture: a plan of operations under torchvision's names, with torchvision's semantics.
///
/// The plan runs as one step: its operations are folded into one rectangle of the decoded picture, which is resampled once and
/// flipped, straight into the sample's row of the batch. (What follows a rotation, or another operation that cannot be folded,
/// is a second step.) The result is `u8` RGB of shape `[height, width, 3]`. An empty plan leaves the picture as it is.
/// [`Normalize`](crate::ops::Normalize) turns the bytes into floating point numbers on the device.
///
/// Masks, boxes and key points go through the same plan by [`LazyImage::geometry`](crate::image::LazyImage::geometry).
///
/// A plan that makes all pictures the same size ([`resize_exact`](ImageTransform::resize_exact),
/// [`center_crop`](ImageTransform::center_crop), [`random_resized_crop`](ImageTransform::random_resized_crop)) can be batched
/// from files of any size.
///
/// # Differences from torchvision
///
/// - Operations on colours run in their order, but after the crops, flips and resizings that directly follow them.
/// - Two resamplings in a row become one of the decoded picture, which blurs less.
/// - Random numbers come from the sample's own [`SampleRng`](crate::SampleRng), so their values differ.
///
/// # Examples
///
/// ```
/// use pinfeed::image::{ImageTransform, Interpolation, RandomResizedCrop};
///
/// let train = ImageTransform::train(224);
/// // The same, written out, but with larger crops and the bicubic filter:
/// let train = ImageTransform::new()
///     .random_resized_crop(RandomResizedCrop::new(224).with_scale(0.25..=1.0))
///     .random_horizontal_flip(0.5)
///     .with_interpolation(Interpolation::Bicubic);
/// let eval = ImageTransform::new().resize(256).center_crop(224); // ImageTransform::eval(224)
/// ```
#[derive(Debug, Clone, Default, PartialEq)]
pub struct ImageTransform {
    ops: Arc<Vec<Op>>,
    interpolation: Interpolation,
    fill: [u8; 3],
    scaled_decoding: bool,
}

impl ImageTransform {
    /// Makes an empty plan, which only decodes.
    pub fn new() -> ImageTransform {
        ImageTransform::default()
    }

    /// Makes the usual plan for training on ImageNet: a [`RandomResizedCrop`] to `size` x `size` pixels, and a
    /// horizontal flip with probability 0.5.
    ///
    /// # Panics
    ///
    /// If `size` is 0.
    pub fn train(size: usize) -> ImageTransform {
        ImageTransform::new()
            .random_resized_crop(size)
            .random_horizontal_flip(0.5)
    }

    /// Makes the usual plan for evaluating on ImageNet: the short side becomes `size` * 256 / 224 pixels (rounded),
    /// and the central `size` x `size` pixels are kept.
    ///
    /// # Panics
    ///
    /// If `size` is 0.
    pub fn eval(size: usize) -> ImageTransform {
        ImageTransform::new()
            .resize(size.saturating_mul(256).saturating_add(112) / 224)
            .center_crop(size)
    }

    /// Resizes the picture so that its short side has `short` pixels. The long side keeps the proportions, rounded down.
    ///
    /// This is torchvision's `Resize(short)`. Pictures of different proportions still differ in size: crop them, or use
    /// [`resize_exact`](ImageTransform::resize_exact).
    ///
    /// # Panics
    ///
    /// If `short` is 0.
    pub fn resize(self, short: usize) -> ImageTransform {
        let short = Size::from(ImageSize::from(short)).width;
        self.push(Op::Resize { short })
    }

    /// Resizes the picture to exactly `height` x `width` pixels, whatever its proportions.
    ///
    /// This is torchvision's `Resize((height, width))`.
    ///
    /// # Panics
    ///
    /// If one of them is 0.
    pub fn resize_exact(self, height: usize, width: usize) -> ImageTransform {
        let size = ImageSize { height, width }.into();
        self.push(Op::ResizeExact { size })
    }

    /// Keeps the central pixels: `size` is the side of a square, or (height, width). A smaller picture gets a border
    /// ([`with_fill`](ImageTransform::with_fill)).
    ///
    /// This is torchvision's `CenterCrop`.
    ///
    /// # Panics
    ///
    /// If the size is 0.
    pub fn center_crop(self, size: impl Into<ImageSize>) -> ImageTransform {
        let size = size.into().into();
        self.push(Op::CenterCrop { size })
    }

    /// Crops a rectangle of random size, proportions and place, and resizes it. `crop` is the side of a square,
    /// (height, width), or a [`RandomResizedCrop`] with its own scales and ratios.
    ///
    /// This is torchvision's `RandomResizedCrop`.
    ///
    /// # Panics
    ///
    /// If the size is 0.
    pub fn random_resized_crop(self, crop: impl Into<RandomResizedCrop>) -> ImageTransform {
        self.push(Op::RandomResizedCrop(crop.into()))
    }

    /// Swaps left and right with the given probability.
    ///
    /// This is torchvision's `RandomHorizontalFlip`.
    ///
    /// # Panics
    ///
    /// If `probability` is not in 0..=1.
    pub fn random_horizontal_flip(self, probability: f64) -> ImageTransform {
        check_probability("random_horizontal_flip", probability);
        self.push(Op::RandomHorizontalFlip { probability })
    }

    /// Swaps top and bottom with the given probability.
    ///
    /// This is torchvision's `RandomVerticalFlip`.
    ///
    /// # Panics
    ///
    /// If `probability` is not in 0..=1.
    pub fn random_vertical_flip(self, probability: f64) -> ImageTransform {
        check_probability("random_vertical_flip", probability);
        self.push(Op::RandomVerticalFlip { probability })
    }

    /// Adds a border around the picture ([`with_fill`](ImageTransform::with_fill)). `padding` is its width on every side, (left and right,
    /// top and bottom), or (left, top, right, bottom).
    ///
    /// This is torchvision's `Pad`. A later resizing keeps the edge sharp.
    pub fn pad(self, padding: impl Into<Padding>) -> ImageTransform {
        self.push(Op::Pad(padding.into()))
    }

    /// Crops a rectangle at a random place: `size` is the side of a square, or (height, width). A smaller picture is placed at
    /// random within it.
    ///
    /// This is torchvision's `RandomCrop` with `pad_if_needed`. For its `padding`, call [`pad`](ImageTransform::pad) first.
    ///
    /// # Panics
    ///
    /// If the size is 0.
    pub fn random_crop(self, size: impl Into<ImageSize>) -> ImageTransform {
        let size = size.into().into();
        self.push(Op::RandomCrop { size })
    }

    /// Changes brightness, contrast, saturation and hue at random, as Pillow does.
    ///
    /// This is torchvision's `ColorJitter`.
    pub fn color_jitter(self, jitter: ColorJitter) -> ImageTransform {
        self.push(Op::ColorJitter(jitter))
    }

    /// Makes the picture grey with the given probability. It keeps three channels.
    ///
    /// This is torchvision's `RandomGrayscale`; with a probability of 1 its `Grayscale(3)`.
    ///
    /// # Panics
    ///
    /// If `probability` is not in 0..=1.
    pub fn random_grayscale(self, probability: f64) -> ImageTransform {
        check_probability("random_grayscale", probability);
        self.push(Op::RandomGrayscale { probability })
    }

    /// Rotates the picture around its centre by a random angle: takes the largest angle in either direction in degrees, a range
    /// of degrees, or a [`RandomRotation`] that interpolates. The picture keeps its size, and uncovered corners are filled
    /// ([`with_fill`](ImageTransform::with_fill)).
    ///
    /// This is torchvision's `RandomRotation`, with Pillow's pixels.
    pub fn random_rotation(self, rotation: impl Into<RandomRotation>) -> ImageTransform {
        self.push(Op::RandomRotation(rotation.into()))
    }

    /// Runs a few operations, drawn from fourteen.
    ///
    /// This is torchvision's `RandAugment`, with Pillow's pixels.
    pub fn rand_augment(self, augment: RandAugment) -> ImageTransform {
        self.push(Op::RandAugment(augment))
    }

    /// Paints over a random rectangle.
    ///
    /// This is torchvision's `RandomErasing`.
    pub fn random_erasing(self, erasing: RandomErasing) -> ImageTransform {
        self.push(Op::RandomErasing(erasing))
    }

    /// Sets the colour outside the picture, which a crop, padding or rotation may show: red, green and blue. Default:
    /// black. (Masks have [their own](crate::image::LazyMask::with_fill).)
    pub fn with_fill(self, color: [u8; 3]) -> ImageTransform {
        ImageTransform {
            fill: color,
            ..self
        }
    }

    /// Sets the filter for resampling. Default: [`Interpolation::Bilinear`].
    pub fn with_interpolation(self, interpolation: Interpolation) -> ImageTransform {
        ImageTransform {
            interpolation,
            ..self
        }
    }

    /// Whether JPEG files may be decoded at a half, a quarter or an eighth of their size, as long as the visible part
    /// is no smaller than the result. Default: no, because it softens: fine detail is averaged over whole blocks before
    /// the filter sees it.
    ///
    /// It saves most of the work of decoding large photos. Only libjpeg-turbo can do it (feature `turbojpeg`), for pictures that
    /// their EXIF orientation does not turn. For all others, this has no effect.
    pub fn with_scaled_decoding(self, scaled: bool) -> ImageTransform {
        ImageTransform {
            scaled_decoding: scaled,
            ..self
        }
    }

    /// The size of the transformed pictures, if it is the same for all: (height, width).
    pub fn output_size(&self) -> Option<(usize, usize)> {
        self.ops
            .iter()
            .rev()
            .find_map(|op| match op {
                Op::Resize { .. } => Some(None),
                Op::ResizeExact { size } | Op::CenterCrop { size } | Op::RandomCrop { size } => {
                    Some(Some(*size))
                }
                Op::RandomResizedCrop(crop) => Some(Some(crop.size)),
                // The size is no longer that of an earlier operation.
                Op::Pad(padding) => (*padding != Padding::default()).then_some(None),
                Op::RandomHorizontalFlip { .. }
                | Op::RandomVerticalFlip { .. }
                | Op::ColorJitter(_)
                | Op::RandomGrayscale { .. }
                | Op::RandomRotation(_)
                | Op::RandAugment(_)
                | Op::RandomErasing(_) => None,
            })?
            .map(|size| (size.height as usize, size.width as usize))
    }

    pub(in crate::image) fn filter(&self) -> Interpolation {
        self.interpolation
    }

    pub(in crate::image) fn ops(&self) -> &[Op] {
        &self.ops
    }

    pub(in crate::image) fn may_scale(&self) -> bool {
        self.scaled_decoding
    }

    pub(in crate::image) fn outside(&self) -> [u8; 3] {
        self.fill
    }

    /// Whether the result depends on random numbers.
    pub(in crate::image) fn is_random(&self) -> bool {
        self.ops.iter().any(Op::is_random)
    }

    fn push(mut self, op: Op) -> ImageTransform {
        Arc::make_mut(&mut self.ops).push(op);
        self
    }
}

/// One operation.
#[derive(Debug, Clone, PartialEq)]
pub(in crate::image) enum Op {
    /// Sets the short side. The long one keeps the proportions.
    Resize {
        short: u32,
    },
    ResizeExact {
        size: Size,
    },
    CenterCrop {
        size: Size,
    },
    RandomResizedCrop(RandomResizedCrop),
    RandomHorizontalFlip {
        probability: f64,
    },
    RandomVerticalFlip {
        probability: f64,
    },
    Pad(Padding),
    RandomCrop {
        size: Size,
    },
    ColorJitter(ColorJitter),
    RandomGrayscale {
        probability: f64,
    },
    RandomRotation(RandomRotation),
    RandAugment(RandAugment),
    RandomErasing(RandomErasing),
}

impl Op {
    /// Whether the result depends on random numbers.
    pub(in crate::image) fn is_random(&self) -> bool {
        !matches!(
            self,
            Op::Resize { .. } | Op::ResizeExact { .. } | Op::CenterCrop { .. } | Op::Pad(_)
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_operation_that_sets_a_size_tells_the_output() {
        assert_eq!(ImageTransform::train(224).output_size(), Some((224, 224)));
        assert_eq!(ImageTransform::eval(192).output_size(), Some((192, 192)));
        let exact = ImageTransform::new().resize_exact(10, 20);
        assert_eq!(exact.output_size(), Some((10, 20)));
        assert_eq!(exact.clone().resize(5).output_size(), None);
        assert_eq!(
            exact.resize(5).center_crop((3, 4)).output_size(),
            Some((3, 4))
        );
        let flips = ImageTransform::new().random_horizontal_flip(0.5);
        assert_eq!(flips.random_vertical_flip(0.5).output_size(), None);
        let crop = ImageTransform::new().pad(4).random_crop(32);
        assert_eq!(crop.output_size(), Some((32, 32)));
        assert_eq!(crop.clone().pad((0, 0)).output_size(), Some((32, 32)));
        assert_eq!(crop.pad(1).output_size(), None);
    }

    #[test]
    fn the_short_side_for_evaluation_is_rounded() {
        let short = |size| match ImageTransform::eval(size).ops()[0] {
            Op::Resize { short } => short,
            _ => 0,
        };
        assert_eq!(
            (short(224), short(192), short(160), short(1)),
            (256, 219, 183, 1)
        );
    }

    #[test]
    #[should_panic(expected = "0 x 7 is not a size of pictures")]
    fn an_empty_size_is_refused() {
        let _ = ImageTransform::new().center_crop((0, 7));
    }

    #[test]
    #[should_panic(expected = "scale: 1..=0.5 is not a range")]
    #[allow(clippy::reversed_empty_ranges)]
    fn a_reversed_range_is_refused() {
        let _ = RandomResizedCrop::new(224).with_scale(1.0..=0.5);
    }
}
