//! A plan applied to one picture: its random numbers are drawn, and its operations are folded into few steps.

mod frame;

pub(super) use frame::{Flip, Frame};

use self::frame::Canvas;
use super::error::Cause;
use super::pixels::{Change, Colour, Warp, jittered};
use super::plan::{ImageTransform, Op};
use super::size::{Rect, Size};
use crate::SampleRng;
use crate::rng::RngKey;

/// Which part of one picture a transform shows, and where.
///
/// [`LazyImage::geometry`](crate::image::LazyImage::geometry) makes it. A mask ([`LazyMask`](crate::image::LazyMask)), boxes and key points
/// follow the picture through the same crops, flips, resizing and rotation.
///
/// # Examples
///
/// ```
/// use pinfeed::image::{ImageTransform, LazyImage};
/// use pinfeed::rng::RngKey;
/// use pinfeed::{SampleRng, Tensor};
///
/// let pixels = Tensor::zeros(&[40, 80, 3]);
/// let crop = ImageTransform::new().center_crop(40); // columns 20 to 60
/// let image = LazyImage::rgb(pixels)?.transform(&crop, &mut SampleRng::for_sample(RngKey { seed: 17, epoch: 0, position: 0 }));
/// let geometry = image.geometry()?;
/// let boxes = geometry.boxes(&[[10.0, 5.0, 35.0, 25.0], [62.0, 0.0, 80.0, 40.0]]);
/// assert_eq!(boxes.boxes[0], [0.0, 5.0, 15.0, 25.0]); // the part that is visible
/// assert_eq!(boxes.remaining, [true, false]); // the other box is not
/// assert_eq!(boxes.keep([7, 9]), [7]); // so its label is dropped
/// # Ok::<(), pinfeed::BoxError>(())
/// ```
#[derive(Debug, Clone, PartialEq)]
pub struct Geometry {
    source: Size,
    /// At least one.
    stages: Vec<GeometryStep>,
}

/// One step: a part of the picture is shown, and its pixels are then changed in place.
#[derive(Debug, Clone, PartialEq)]
pub(in crate::image) struct GeometryStep {
    pub(in crate::image) frame: Frame,
    pub(in crate::image) changes: Vec<Change>,
}

impl Geometry {
    /// Applies the plan to a picture of the given size. Its random numbers follow from `seed`. Each step's picture may have at
    /// most `max_pixels`.
    pub(in crate::image) fn draw(
        source: Size,
        plan: Option<&ImageTransform>,
        seed: u64,
        max_pixels: u64,
    ) -> Result<Geometry, Cause> {
        // Operations that move pixels and those that only change them draw from two streams.
        let (mut frames, mut colours) = (
            SampleRng::for_sample(RngKey {
                seed,
                epoch: 0,
                position: 0,
            }),
            SampleRng::for_sample(RngKey {
                seed,
                epoch: 1,
                position: 0,
            }),
        );
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
                    // A change of colours may wait until after this crop. One that depends on positions may not: it ends the step.
                    if changes.iter().any(Change::has_a_place) {
                        let next = Canvas::new(canvas.size);
                        let frame = std::mem::replace(&mut canvas, next).finish();
                        let changes = std::mem::take(&mut changes);
                        stages.push(GeometryStep { frame, changes });
                    }
                    canvas.carry_out(frame, &mut frames);
                }
            }
        }
        let frame = canvas.finish();
        stages.push(GeometryStep { frame, changes });
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

    /// The size of the original picture: (height, width).
    pub fn source_size(&self) -> (usize, usize) {
        (self.source.height as usize, self.source.width as usize)
    }

    /// The size of the transformed picture: (height, width).
    pub fn output_size(&self) -> (usize, usize) {
        let size = self.size();
        (size.height as usize, size.width as usize)
    }

    /// Maps boxes `[left, top, right, bottom]` from pixels of the picture to pixels of the transformed picture, and clips them
    /// to it. A rotated box becomes the smallest box around its corners, as in torchvision.
    ///
    /// All boxes are returned, with a mask of those that remain. A box whose left is greater than its right, or that contains
    /// NaN, does not remain.
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

    /// Maps points `[x, y]` from pixels of the picture to pixels of the transformed picture, with a mask of those that lie
    /// within it. Points are not clipped.
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

    pub(in crate::image) fn source(&self) -> Size {
        self.source
    }

    pub(in crate::image) fn size(&self) -> Size {
        self.stages
            .last()
            .map_or(self.source, |stage| stage.frame.size)
    }

    pub(in crate::image) fn stages(&self) -> &[GeometryStep] {
        &self.stages
    }
}

impl GeometryStep {
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
/// In [`Geometry`](crate::image::Geometry#examples).
#[derive(Debug, Clone, PartialEq, Default)]
pub struct TransformedBoxes {
    /// All boxes `[left, top, right, bottom]`, clipped.
    pub boxes: Vec<[f32; 4]>,
    /// Which of them are at least one pixel wide and high.
    pub remaining: Vec<bool>,
}

impl TransformedBoxes {
    /// Keeps the values (labels, for example) of the boxes that remain.
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
/// In [`Geometry`](crate::image::Geometry#examples).
#[derive(Debug, Clone, PartialEq, Default)]
pub struct TransformedPoints {
    /// All points, `[x, y]`.
    pub points: Vec<[f32; 2]>,
    /// Which of them lie in the picture.
    pub remaining: Vec<bool>,
}

/// Clips a rectangle to another. If they do not overlap, the result is an empty rectangle at the border.
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
