//! What a plan means for one picture: its random numbers are drawn, and its operations are folded into few steps.

use super::change::Change;
use super::colour::{Colour, jittered};
use super::error::Cause;
use super::frame::{Canvas, Frame};
use super::plan::{ImageTransform, Op};
use super::size::{Rect, Size};
use super::warp::Warp;
use crate::rng::SampleRng;

/// What a transform shows of one picture, and where: for what belongs to it.
///
/// [`LazyImage::geometry`](crate::LazyImage::geometry) makes it. A mask ([`LazyMask`](crate::LazyMask)), boxes and key points go
/// through the same crop, flip, resizing and rotation as the picture.
///
/// # Examples
///
/// ```
/// use pinfeed::{ImageTransform, LazyImage, SampleRng, Tensor};
///
/// let pixels = Tensor::zeros(&[40, 80, 3]);
/// let crop = ImageTransform::new().center_crop(40); // columns 20 to 60
/// let image = LazyImage::rgb(pixels)?.transform(&crop, &mut SampleRng::new(17, 0, 0));
/// let geometry = image.geometry()?;
/// let boxes = geometry.boxes(&[[10.0, 5.0, 35.0, 25.0], [62.0, 0.0, 80.0, 40.0]]);
/// assert_eq!(boxes.boxes[0], [0.0, 5.0, 15.0, 25.0]); // what is left of it
/// assert_eq!(boxes.remaining, [true, false]); // of the other nothing is
/// assert_eq!(boxes.keep([7, 9]), [7]); // so it has no label either
/// # Ok::<(), pinfeed::BoxError>(())
/// ```
#[derive(Debug, Clone, PartialEq)]
pub struct Geometry {
    source: Size,
    /// At least one.
    stages: Vec<Stage>,
}

/// A part of the picture is shown, and what is shown is changed in place.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Stage {
    pub(super) frame: Frame,
    pub(super) changes: Vec<Change>,
}

impl Geometry {
    /// Carries out the plan on a picture of the given size; its random numbers follow from `seed`. Pictures of the steps have at
    /// most `max_pixels`.
    pub(super) fn draw(
        source: Size,
        plan: Option<&ImageTransform>,
        seed: u64,
        max_pixels: u64,
    ) -> Result<Geometry, Cause> {
        // What moves pixels has one stream of random numbers, what changes them another.
        let (mut frames, mut colours) = (SampleRng::new(seed, 0, 0), SampleRng::new(seed, 1, 0));
        let mut canvas = Canvas::new(source);
        let mut changes = Vec::new();
        let mut stages = Vec::new();
        for op in plan.map_or(&[][..], ImageTransform::ops) {
            match op {
                Op::RandomRotation(rotation) => {
                    changes.push(Change::Warp(rotation.draw(canvas.size, &mut frames)));
                }
                Op::ColorJitter(jitter) => {
                    changes.extend(jittered(jitter, &mut colours).map(Change::Colour));
                }
                Op::RandomGrayscale { probability } => {
                    let grey = colours.bool(*probability);
                    changes.extend(grey.then_some(Change::Colour(Colour::Grey)));
                }
                Op::RandAugment(augment) => augment.draw(canvas.size, &mut colours, &mut changes),
                Op::RandomErasing(erasing) => {
                    changes.extend(erasing.draw(canvas.size, &mut colours));
                }
                frame => {
                    // Colours are changed behind what is shown; what has a place is not.
                    if changes.iter().any(Change::has_a_place) {
                        let next = Canvas::new(canvas.size);
                        let frame = std::mem::replace(&mut canvas, next).finish();
                        let changes = std::mem::take(&mut changes);
                        stages.push(Stage { frame, changes });
                    }
                    canvas.carry_out(frame, &mut frames);
                }
            }
        }
        let frame = canvas.finish();
        stages.push(Stage { frame, changes });
        let mut sizes = stages.iter().map(|stage| stage.frame.size);
        let too_large = |size: &Size| u64::from(size.width) * u64::from(size.height) > max_pixels;
        if let Some(Size { width, height }) = sizes.find(too_large) {
            return Err(Cause::ResizedTooLarge {
                width,
                height,
                max_pixels,
            });
        }
        Ok(Geometry { source, stages })
    }

    /// The size of the picture that it is the geometry of: (height, width).
    pub fn source_size(&self) -> (usize, usize) {
        (self.source.height as usize, self.source.width as usize)
    }

    /// The size of the transformed picture: (height, width).
    pub fn output_size(&self) -> (usize, usize) {
        let size = self.size();
        (size.height as usize, size.width as usize)
    }

    /// Takes boxes `[left, top, right, bottom]` in pixels of the picture, and gives them in pixels of the transformed picture,
    /// clipped to what it shows. Rotated boxes become the smallest ones around their corners, as in torchvision.
    ///
    /// All boxes are given back, with a mask of those that remain: what has its left behind its right, or is no number, does
    /// not.
    pub fn boxes(&self, boxes: &[[f32; 4]]) -> TransformedBoxes {
        let shown = boxes.iter().map(|corners| self.show_box(*corners));
        let shown: Vec<_> = shown.collect();
        let is_one = |[left, top, right, bottom]: &[f32; 4]| left <= right && top <= bottom;
        let has_a_pixel =
            |[left, top, right, bottom]: &[f32; 4]| right - left >= 1.0 && bottom - top >= 1.0;
        let both = boxes.iter().zip(&shown);
        let remaining = both.map(|(given, shown)| is_one(given) && has_a_pixel(shown));
        TransformedBoxes {
            remaining: remaining.collect(),
            boxes: shown,
        }
    }

    /// Takes points `[x, y]` in pixels of the picture, and gives them in pixels of the transformed picture, with a mask of those
    /// that lie in it. They are not clipped.
    pub fn points(&self, points: &[[f32; 2]]) -> TransformedPoints {
        let (height, width) = self.output_size();
        let points: Vec<_> = points.iter().map(|point| self.show_point(*point)).collect();
        let inside = |[x, y]: &[f32; 2]| {
            (0.0..=width as f32).contains(x) && (0.0..=height as f32).contains(y)
        };
        let remaining = points.iter().map(inside).collect();
        TransformedPoints { points, remaining }
    }

    fn show_point(&self, [x, y]: [f32; 2]) -> [f32; 2] {
        let mut point = [x.into(), y.into()];
        for stage in &self.stages {
            point = stage.frame.show(point);
            for warp in stage.warps() {
                point = warp.show(point);
            }
        }
        point.map(|at| at as f32)
    }

    fn show_box(&self, [left, top, right, bottom]: [f32; 4]) -> [f32; 4] {
        let mut shown = Rect {
            left: f64::from(left),
            top: f64::from(top),
            width: f64::from(right) - f64::from(left),
            height: f64::from(bottom) - f64::from(top),
        };
        for stage in &self.stages {
            let frame = &stage.frame;
            let [x, y] = frame.show([shown.left, shown.top]);
            let [other_x, other_y] =
                frame.show([shown.left + shown.width, shown.top + shown.height]);
            shown = Rect {
                left: x.min(other_x),
                top: y.min(other_y),
                width: (x - other_x).abs(),
                height: (y - other_y).abs(),
            };
            shown = clipped(shown, frame.shown());
            for warp in stage.warps() {
                shown = clipped(warp.show_box(shown), Rect::of(frame.size));
            }
        }
        let corners = [
            shown.left,
            shown.top,
            shown.left + shown.width,
            shown.top + shown.height,
        ];
        corners.map(|at| at as f32)
    }

    pub(super) fn source(&self) -> Size {
        self.source
    }

    pub(super) fn size(&self) -> Size {
        self.stages
            .last()
            .map_or(self.source, |stage| stage.frame.size)
    }

    pub(super) fn stages(&self) -> &[Stage] {
        &self.stages
    }
}

impl Stage {
    fn warps(&self) -> impl Iterator<Item = &Warp> {
        self.changes.iter().filter_map(|change| match change {
            Change::Warp(warp) => Some(warp),
            _ => None,
        })
    }
}

/// Boxes of a transformed picture: [`Geometry::boxes`].
///
/// # Examples
///
/// In [`Geometry`](crate::Geometry#examples).
#[derive(Debug, Clone, PartialEq, Default)]
pub struct TransformedBoxes {
    /// All boxes, `[left, top, right, bottom]`, clipped.
    pub boxes: Vec<[f32; 4]>,
    /// Which of them are at least one pixel wide and high.
    pub remaining: Vec<bool>,
}

impl TransformedBoxes {
    /// Keeps of the boxes' values (their labels, say) those whose boxes remain.
    pub fn keep<T>(&self, values: impl IntoIterator<Item = T>) -> Vec<T> {
        kept(values, &self.remaining)
    }

    /// The boxes that remain.
    pub fn kept(&self) -> Vec<[f32; 4]> {
        kept(self.boxes.iter().copied(), &self.remaining)
    }
}

/// Points of a transformed picture: [`Geometry::points`].
///
/// # Examples
///
/// In [`Geometry`](crate::Geometry#examples).
#[derive(Debug, Clone, PartialEq, Default)]
pub struct TransformedPoints {
    /// All points, `[x, y]`.
    pub points: Vec<[f32; 2]>,
    /// Which of them lie in the picture.
    pub remaining: Vec<bool>,
}

/// What of a rectangle lies in another; where nothing does, it is at the border.
fn clipped(rect: Rect<f64>, within: Rect<f64>) -> Rect<f64> {
    let (right, bottom) = (within.left + within.width, within.top + within.height);
    let left = rect.left.clamp(within.left, right);
    let top = rect.top.clamp(within.top, bottom);
    Rect {
        left,
        top,
        width: (rect.left + rect.width).clamp(within.left, right) - left,
        height: (rect.top + rect.height).clamp(within.top, bottom) - top,
    }
}

fn kept<T>(values: impl IntoIterator<Item = T>, remaining: &[bool]) -> Vec<T> {
    let values = values.into_iter().zip(remaining);
    values
        .filter_map(|(value, remains)| remains.then_some(value))
        .collect()
}

#[cfg(test)]
mod tests;
