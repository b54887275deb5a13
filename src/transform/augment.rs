//! Operations that are drawn anew for each picture and change it in place: RandAugment, random rotation, random erasing.

use std::ops::RangeInclusive;

use super::change::Change;
use super::colour::Colour;
use super::operation::{Interpolation, check_probability, positive};
use super::size::{Rect, Size};
use super::warp::Warp;
use crate::rng::SampleRng;

/// RandAugment, for [`rand_augment`](crate::ImageTransform::rand_augment): some operations, drawn evenly from fourteen, all of
/// one strength.
///
/// The fourteen, their strengths and their signs are those of torchvision's `RandAugment`, bin by bin, and each is Pillow's bit
/// for bit (Cubuk and others, "RandAugment: Practical automated data augmentation with a reduced search space", 2020).
///
/// # Examples
///
/// ```
/// use pinfeed::{ImageTransform, RandAugment};
///
/// let transform = ImageTransform::train(224).rand_augment(RandAugment::new().num_ops(2).magnitude(9));
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
    /// Makes one of two operations of strength 9, of 31.
    pub fn new() -> RandAugment {
        RandAugment {
            count: 2,
            magnitude: 9,
            bins: 31,
            smooth: false,
        }
    }

    /// How many operations, one after the other. Default: 2.
    pub fn num_ops(self, count: usize) -> RandAugment {
        RandAugment { count, ..self }
    }

    /// How strong they are: from 0, which changes little, to one less than the number of bins. Default: 9.
    ///
    /// # Panics
    ///
    /// If there are not as many bins.
    pub fn magnitude(self, magnitude: usize) -> RandAugment {
        RandAugment { magnitude, ..self }.checked()
    }

    /// In how many bins strengths are counted. Default: 31.
    ///
    /// # Panics
    ///
    /// If there are fewer than two, or no more than the magnitude.
    pub fn num_magnitude_bins(self, bins: usize) -> RandAugment {
        RandAugment { bins, ..self }.checked()
    }

    /// How pixels are fetched where the picture is rotated, sheared or shifted: [`Nearest`](Interpolation::Nearest), the
    /// default, or [`Bilinear`](Interpolation::Bilinear).
    ///
    /// # Panics
    ///
    /// If it is another one.
    pub fn interpolation(self, interpolation: Interpolation) -> RandAugment {
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

    /// Draws what is done to a picture of the given size.
    pub(super) fn draw(&self, size: Size, rng: &mut SampleRng, changes: &mut Vec<Change>) {
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
const OPERATIONS: [Operation; 14] = [
    Operation::Identity,
    Operation::ShearX,
    Operation::ShearY,
    Operation::TranslateX,
    Operation::TranslateY,
    Operation::Rotate,
    Operation::Brightness,
    Operation::Color,
    Operation::Contrast,
    Operation::Sharpness,
    Operation::Posterize,
    Operation::Solarize,
    Operation::AutoContrast,
    Operation::Equalize,
];

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Operation {
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

impl Operation {
    /// How strong the operation is in a bin, and whether its sign is drawn: torchvision's `_augmentation_space`.
    fn strength(self, bin: usize, bins: usize, size: Size) -> (f32, bool) {
        // torch.linspace: from both ends towards the middle, multiplying and adding in one rounding.
        let linear = |start: f32, end: f32| {
            let step = (end - start) / (bins - 1) as f32;
            match bin < bins / 2 {
                true => step.mul_add(bin as f32, start),
                false => (-step).mul_add((bins - 1 - bin) as f32, end),
            }
        };
        match self {
            Operation::Identity | Operation::AutoContrast | Operation::Equalize => (0.0, false),
            Operation::ShearX | Operation::ShearY => (linear(0.0, 0.3), true),
            Operation::TranslateX => (
                linear(0.0, (150.0 / 331.0 * f64::from(size.width)) as f32),
                true,
            ),
            Operation::TranslateY => (
                linear(0.0, (150.0 / 331.0 * f64::from(size.height)) as f32),
                true,
            ),
            Operation::Rotate => (linear(0.0, 30.0), true),
            Operation::Brightness
            | Operation::Color
            | Operation::Contrast
            | Operation::Sharpness => (linear(0.0, 0.9), true),
            Operation::Posterize => {
                let fewer = (bin as f32 / ((bins - 1) as f32 / 4.0)).round_ties_even();
                (8.0 - fewer, false)
            }
            Operation::Solarize => (linear(255.0, 0.0), false),
        }
    }

    /// What it does to a picture: torchvision's `_apply_op`.
    fn change(self, strength: f32, size: Size, smooth: bool) -> Option<Change> {
        let wide = f64::from(strength);
        let warp = |warp| Some(Change::Warp(warp));
        let colour = |colour| Some(Change::Colour(colour));
        match self {
            Operation::Identity => None,
            Operation::ShearX => warp(Warp::shear(wide, 0.0, smooth)),
            Operation::ShearY => warp(Warp::shear(0.0, wide, smooth)),
            Operation::TranslateX => warp(Warp::shift(strength as i32, 0, smooth)),
            Operation::TranslateY => warp(Warp::shift(0, strength as i32, smooth)),
            Operation::Rotate => warp(Warp::rotation(wide, size, smooth)),
            Operation::Brightness => colour(Colour::Brightness((1.0 + wide) as f32)),
            Operation::Color => colour(Colour::Saturation((1.0 + wide) as f32)),
            Operation::Contrast => colour(Colour::Contrast((1.0 + wide) as f32)),
            Operation::Sharpness => colour(Colour::Sharpness((1.0 + wide) as f32)),
            Operation::Posterize => colour(Colour::Posterize(strength as u8)),
            Operation::Solarize => colour(Colour::Solarize(strength)),
            Operation::AutoContrast => colour(Colour::AutoContrast),
            Operation::Equalize => colour(Colour::Equalize),
        }
    }
}

/// A rotation by a random angle, for [`random_rotation`](crate::ImageTransform::random_rotation): torchvision's
/// `RandomRotation`.
///
/// A number stands for the angles from minus it to it. The picture keeps its size; what comes from outside is filled.
///
/// # Examples
///
/// ```
/// use pinfeed::{ImageTransform, Interpolation, RandomRotation};
///
/// let rotation = RandomRotation::from(30.0).interpolation(Interpolation::Bilinear);
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

    /// How pixels are fetched: [`Nearest`](Interpolation::Nearest), the default as in torchvision, or
    /// [`Bilinear`](Interpolation::Bilinear). (Masks are always fetched from the nearest pixel.)
    ///
    /// # Panics
    ///
    /// If it is another one.
    pub fn interpolation(self, interpolation: Interpolation) -> RandomRotation {
        let smooth = is_smooth("RandomRotation", interpolation);
        RandomRotation { smooth, ..self }
    }

    pub(super) fn draw(&self, size: Size, rng: &mut SampleRng) -> Warp {
        let degrees = rng.range(self.degrees.0..self.degrees.1);
        Warp::rotation(degrees, size, self.smooth)
    }
}

impl From<f64> for RandomRotation {
    /// From minus so many degrees to so many.
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
        other => panic!("{what}::interpolation: {other:?}, where there are Nearest and Bilinear"),
    }
}

/// Paints over a rectangle at random, for [`random_erasing`](crate::ImageTransform::random_erasing): torchvision's
/// `RandomErasing` (Zhong and others, "Random erasing data augmentation", 2017).
///
/// The rectangle's area is drawn uniformly from [`scale`](RandomErasing::scale) times the picture's, its height divided by its
/// width log-uniformly from [`ratio`](RandomErasing::ratio), and then its place. If ten in a row do not fit, nothing is painted.
///
/// # Examples
///
/// ```
/// use pinfeed::{ImageTransform, Normalize, RandomErasing};
///
/// let erasing = RandomErasing::new().probability(0.1).value(Normalize::IMAGENET.mean_color());
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
    /// Makes one that paints every other picture, on average.
    pub fn new() -> RandomErasing {
        RandomErasing {
            probability: 0.5,
            scale: (0.02, 0.33),
            ratio: (0.3, 3.3),
            value: [0; 3],
        }
    }

    /// How probable it is. Default: 0.5.
    ///
    /// # Panics
    ///
    /// If it is not in 0..=1.
    pub fn probability(self, probability: f64) -> RandomErasing {
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
    pub fn scale(self, scale: RangeInclusive<f64>) -> RandomErasing {
        let scale = positive("RandomErasing::scale", scale);
        RandomErasing { scale, ..self }
    }

    /// The rectangle's height divided by its width. Default: `0.3..=3.3`.
    ///
    /// # Panics
    ///
    /// If the range is empty, or a bound is not a positive number.
    pub fn ratio(self, ratio: RangeInclusive<f64>) -> RandomErasing {
        let ratio = positive("RandomErasing::ratio", ratio);
        RandomErasing { ratio, ..self }
    }

    /// What is painted, red, green and blue. Default: black. What becomes 0 when it is normalised, as torchvision's recipes have
    /// it, is the mean colour: [`Normalize::mean_color`](crate::Normalize::mean_color).
    pub fn value(self, value: [u8; 3]) -> RandomErasing {
        RandomErasing { value, ..self }
    }

    pub(super) fn draw(&self, size: Size, rng: &mut SampleRng) -> Option<Change> {
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
