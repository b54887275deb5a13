//! Random operations that change a picture in place: RandAugment, rotation, erasing.

use std::ops::RangeInclusive;

use super::operation::{Interpolation, check_probability, positive};
use crate::SampleRng;
use crate::image::pixels::{Change, Colour, Warp};
use crate::image::size::{Rect, Size};

/// RandAugment, for [`rand_augment`](crate::image::ImageTransform::rand_augment): a few operations of the same strength, drawn uniformly
/// from fourteen.
///
/// The fourteen operations, their strengths and their signs are those of torchvision's `RandAugment`, bin by bin, and their pixels
/// are Pillow's, bit for bit (Cubuk and others, "RandAugment: Practical automated data augmentation with a reduced search space", 2020).
///
/// # Examples
///
/// ```
/// use pinfeed::image::{ImageTransform, RandAugment};
///
/// let transform = ImageTransform::train(224).rand_augment(RandAugment::new().with_num_ops(2).with_magnitude(9));
/// # let _ = transform;
/// ```
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct RandAugment {
    count: usize,
    magnitude: usize,
    bins: usize,
    smooth: bool,
}

impl Default for RandAugment {
    fn default() -> RandAugment {
        RandAugment::new()
    }
}

impl RandAugment {
    /// Makes one with two operations and a magnitude of 9 out of 31 bins.
    pub fn new() -> RandAugment {
        RandAugment {
            count: 2,
            magnitude: 9,
            bins: 31,
            smooth: false,
        }
    }

    /// The number of operations, which run one after the other. Default: 2.
    pub fn with_num_ops(self, count: usize) -> RandAugment {
        RandAugment { count, ..self }
    }

    /// The strength of the operations: from 0, which changes little, to the number of bins minus one. Default: 9.
    ///
    /// # Panics
    ///
    /// If the number of bins is not larger.
    pub fn with_magnitude(self, magnitude: usize) -> RandAugment {
        RandAugment { magnitude, ..self }.checked()
    }

    /// The number of bins, which is the scale of the magnitude. Default: 31.
    ///
    /// # Panics
    ///
    /// If it is less than two, or not larger than the magnitude.
    pub fn with_num_magnitude_bins(self, bins: usize) -> RandAugment {
        RandAugment { bins, ..self }.checked()
    }

    /// The filter for rotating, shearing and shifting: [`Nearest`](Interpolation::Nearest), the default, or
    /// [`Bilinear`](Interpolation::Bilinear).
    ///
    /// # Panics
    ///
    /// For any other filter.
    pub fn with_interpolation(self, interpolation: Interpolation) -> RandAugment {
        let smooth = is_smooth("RandAugment", interpolation);
        RandAugment { smooth, ..self }
    }

    fn checked(self) -> RandAugment {
        assert!(
            self.bins >= 2 && self.magnitude < self.bins,
            "RandAugment: the magnitude {} is not among {} bins",
            self.magnitude,
            self.bins
        );
        self
    }

    /// Draws the changes to a picture of the given size.
    pub(in crate::image) fn draw(
        &self,
        size: Size,
        rng: &mut SampleRng,
        changes: &mut Vec<Change>,
    ) {
        for _ in 0..self.count {
            let operation = OPERATIONS[rng.below(OPERATIONS.len() as u64) as usize];
            let (strength, signed) = operation.strength(self.magnitude, self.bins, size);
            let strength = match signed && rng.bool(0.5) {
                true => -strength,
                false => strength,
            };
            changes.extend(operation.change(strength, size, self.smooth));
        }
    }
}

/// The operations of RandAugment, in torchvision's order.
const OPERATIONS: [AugmentOp; 14] = [
    AugmentOp::Identity,
    AugmentOp::ShearX,
    AugmentOp::ShearY,
    AugmentOp::TranslateX,
    AugmentOp::TranslateY,
    AugmentOp::Rotate,
    AugmentOp::Brightness,
    AugmentOp::Color,
    AugmentOp::Contrast,
    AugmentOp::Sharpness,
    AugmentOp::Posterize,
    AugmentOp::Solarize,
    AugmentOp::AutoContrast,
    AugmentOp::Equalize,
];

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum AugmentOp {
    Identity,
    ShearX,
    ShearY,
    TranslateX,
    TranslateY,
    Rotate,
    Brightness,
    Color,
    Contrast,
    Sharpness,
    Posterize,
    Solarize,
    AutoContrast,
    Equalize,
}

impl AugmentOp {
    /// The operation's strength in a bin, and whether its sign is drawn: torchvision's `_augmentation_space`.
    fn strength(self, bin: usize, bins: usize, size: Size) -> (f32, bool) {
        // torch.linspace: it counts from both ends towards the middle, with fused multiply-add.
        let linear = |start: f32, end: f32| {
            let step = (end - start) / (bins - 1) as f32;
            match bin < bins / 2 {
                true => step.mul_add(bin as f32, start),
                false => (-step).mul_add((bins - 1 - bin) as f32, end),
            }
        };
        match self {
            AugmentOp::Identity | AugmentOp::AutoContrast | AugmentOp::Equalize => (0.0, false),
            AugmentOp::ShearX | AugmentOp::ShearY => (linear(0.0, 0.3), true),
            AugmentOp::TranslateX => (
                linear(0.0, (150.0 / 331.0 * f64::from(size.width)) as f32),
                true,
            ),
            AugmentOp::TranslateY => (
                linear(0.0, (150.0 / 331.0 * f64::from(size.height)) as f32),
                true,
            ),
            AugmentOp::Rotate => (linear(0.0, 30.0), true),
            AugmentOp::Brightness
            | AugmentOp::Color
            | AugmentOp::Contrast
            | AugmentOp::Sharpness => (linear(0.0, 0.9), true),
            AugmentOp::Posterize => {
                let fewer = (bin as f32 / ((bins - 1) as f32 / 4.0)).round_ties_even();
                (8.0 - fewer, false)
            }
            AugmentOp::Solarize => (linear(255.0, 0.0), false),
        }
    }

    /// The change that the operation makes to a picture: torchvision's `_apply_op`.
    fn change(self, strength: f32, size: Size, smooth: bool) -> Option<Change> {
        let wide = f64::from(strength);
        let warp = |warp| Some(Change::Warp(warp));
        let colour = |colour| Some(Change::Colour(colour));
        match self {
            AugmentOp::Identity => None,
            AugmentOp::ShearX => warp(Warp::shear(wide, 0.0, smooth)),
            AugmentOp::ShearY => warp(Warp::shear(0.0, wide, smooth)),
            AugmentOp::TranslateX => warp(Warp::shift(strength as i32, 0, smooth)),
            AugmentOp::TranslateY => warp(Warp::shift(0, strength as i32, smooth)),
            AugmentOp::Rotate => warp(Warp::rotation(wide, size, smooth)),
            AugmentOp::Brightness => colour(Colour::Brightness((1.0 + wide) as f32)),
            AugmentOp::Color => colour(Colour::Saturation((1.0 + wide) as f32)),
            AugmentOp::Contrast => colour(Colour::Contrast((1.0 + wide) as f32)),
            AugmentOp::Sharpness => colour(Colour::Sharpness((1.0 + wide) as f32)),
            AugmentOp::Posterize => colour(Colour::Posterize(strength as u8)),
            AugmentOp::Solarize => colour(Colour::Solarize(strength)),
            AugmentOp::AutoContrast => colour(Colour::AutoContrast),
            AugmentOp::Equalize => colour(Colour::Equalize),
        }
    }
}

/// A rotation by a random angle, for [`random_rotation`](crate::image::ImageTransform::random_rotation): torchvision's
/// `RandomRotation`.
///
/// `RandomRotation::from(x)` draws angles from -x to x. The picture keeps its size, and uncovered corners are filled.
///
/// # Examples
///
/// ```
/// use pinfeed::image::{ImageTransform, Interpolation, RandomRotation};
///
/// let rotation = RandomRotation::from(30.0).with_interpolation(Interpolation::Bilinear);
/// let transform = ImageTransform::new().resize(256).random_rotation(rotation).center_crop(224);
/// # let _ = transform;
/// ```
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct RandomRotation {
    degrees: (f64, f64),
    smooth: bool,
}

impl RandomRotation {
    /// Takes the range of angles in degrees, counter-clockwise.
    ///
    /// # Panics
    ///
    /// If the range is empty, or a bound is not finite.
    pub fn new(degrees: RangeInclusive<f64>) -> RandomRotation {
        let (start, end) = degrees.into_inner();
        assert!(
            start <= end && start.is_finite() && end.is_finite(),
            "RandomRotation: {start}..={end} is not a range of angles"
        );
        RandomRotation {
            degrees: (start, end),
            smooth: false,
        }
    }

    /// The filter: [`Nearest`](Interpolation::Nearest), the default as in torchvision, or [`Bilinear`](Interpolation::Bilinear).
    /// (Masks always use the nearest pixel.)
    ///
    /// # Panics
    ///
    /// For any other filter.
    pub fn with_interpolation(self, interpolation: Interpolation) -> RandomRotation {
        let smooth = is_smooth("RandomRotation", interpolation);
        RandomRotation { smooth, ..self }
    }

    pub(in crate::image) fn draw(&self, size: Size, rng: &mut SampleRng) -> Warp {
        let degrees = rng.range(self.degrees.0..self.degrees.1);
        Warp::rotation(degrees, size, self.smooth)
    }
}

impl From<f64> for RandomRotation {
    /// Angles from `-degrees` to `degrees`.
    fn from(degrees: f64) -> RandomRotation {
        RandomRotation::new(-degrees..=degrees)
    }
}

impl From<RangeInclusive<f64>> for RandomRotation {
    fn from(degrees: RangeInclusive<f64>) -> RandomRotation {
        RandomRotation::new(degrees)
    }
}

fn is_smooth(what: &str, interpolation: Interpolation) -> bool {
    match interpolation {
        Interpolation::Nearest => false,
        Interpolation::Bilinear => true,
        other => {
            panic!(
                "{what}::with_interpolation: {other:?} is not supported: use Nearest or Bilinear"
            )
        }
    }
}

/// Paints over a rectangle at random, for [`random_erasing`](crate::image::ImageTransform::random_erasing): torchvision's
/// `RandomErasing` (Zhong and others, "Random erasing data augmentation", 2017).
///
/// The rectangle's area, as a share of the picture's, is drawn uniformly from [`with_scale`](RandomErasing::with_scale), its height divided
/// by its width log-uniformly from [`with_ratio`](RandomErasing::with_ratio), and then its place. If ten rectangles in a row do not fit,
/// nothing is painted.
///
/// # Examples
///
/// ```
/// use pinfeed::image::{ImageTransform, RandomErasing};
/// use pinfeed::ops::Normalize;
///
/// let erasing = RandomErasing::new().with_probability(0.1).with_value(Normalize::IMAGENET.mean_color());
/// let transform = ImageTransform::train(224).random_erasing(erasing);
/// # let _ = transform;
/// ```
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct RandomErasing {
    probability: f64,
    scale: (f64, f64),
    ratio: (f64, f64),
    value: [u8; 3],
}

impl RandomErasing {
    /// Makes one that paints over a picture with probability 0.5.
    pub fn new() -> RandomErasing {
        RandomErasing {
            probability: 0.5,
            scale: (0.02, 0.33),
            ratio: (0.3, 3.3),
            value: [0; 3],
        }
    }

    /// The probability that a picture is painted over. Default: 0.5.
    ///
    /// # Panics
    ///
    /// If it is not in 0..=1.
    pub fn with_probability(self, probability: f64) -> RandomErasing {
        check_probability("RandomErasing", probability);
        RandomErasing {
            probability,
            ..self
        }
    }

    /// The rectangle's area, as a share of the picture's. Default: `0.02..=0.33`.
    ///
    /// # Panics
    ///
    /// If the range is empty, or a bound is not a positive number.
    pub fn with_scale(self, scale: RangeInclusive<f64>) -> RandomErasing {
        let scale = positive("RandomErasing::with_scale", scale);
        RandomErasing { scale, ..self }
    }

    /// The rectangle's height divided by its width. Default: `0.3..=3.3`.
    ///
    /// # Panics
    ///
    /// If the range is empty, or a bound is not a positive number.
    pub fn with_ratio(self, ratio: RangeInclusive<f64>) -> RandomErasing {
        let ratio = positive("RandomErasing::with_ratio", ratio);
        RandomErasing { ratio, ..self }
    }

    /// The colour of the rectangle: red, green and blue. Default: black. torchvision's recipes erase after normalising,
    /// with 0, which corresponds to the mean colour before normalising:
    /// [`Normalize::mean_color`](crate::ops::Normalize::mean_color).
    pub fn with_value(self, value: [u8; 3]) -> RandomErasing {
        RandomErasing { value, ..self }
    }

    pub(in crate::image) fn draw(&self, size: Size, rng: &mut SampleRng) -> Option<Change> {
        const TRIES: usize = 10;
        if !rng.bool(self.probability) {
            return None;
        }
        let area = f64::from(size.width) * f64::from(size.height);
        for _ in 0..TRIES {
            let erased = area * rng.range(self.scale.0..self.scale.1);
            let ratio = rng.range(self.ratio.0.ln()..self.ratio.1.ln()).exp();
            let height = (erased * ratio).sqrt().round_ties_even();
            let width = (erased / ratio).sqrt().round_ties_even();
            if height < f64::from(size.height) && width < f64::from(size.width) {
                let (width, height) = (width as u32, height as u32);
                let top = rng.below(u64::from(size.height - height) + 1) as u32;
                let left = rng.below(u64::from(size.width - width) + 1) as u32;
                let place = Rect {
                    left,
                    top,
                    width,
                    height,
                };
                return Some(Change::Erase {
                    place,
                    value: self.value,
                });
            }
        }
        None
    }
}

impl Default for RandomErasing {
    fn default() -> RandomErasing {
        RandomErasing::new()
    }
}

#[cfg(test)]
mod tests;
