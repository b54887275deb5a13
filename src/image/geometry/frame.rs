//! What a run of crops, flips and resizings shows: one rectangle of the picture, in one size, perhaps mirrored.

use crate::SampleRng;
use crate::image::plan::{Op, Padding, RandomResizedCrop};
use crate::image::size::{Rect, Size};

/// Where the pixels of the result come from.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(in crate::image) struct Frame {
    /// The pixels that may be read. A filter does not read beyond them.
    pub(in crate::image) bounds: Rect<u32>,
    /// The part of the picture that is shown, within `bounds`, to fractions of a pixel.
    pub(in crate::image) window: Rect<f64>,
    /// The area that the whole result covers. It is larger than the window if it extends beyond the picture.
    canvas: Rect<f64>,
    /// Where the window lies in the result. The rest of the result is filled.
    pub(in crate::image) place: Rect<u32>,
    /// The size of the result.
    pub(in crate::image) size: Size,
    /// Which sides are swapped at the end.
    pub(in crate::image) flip: Flip,
}

/// Which sides of a picture are swapped.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(in crate::image) struct Flip {
    /// Left and right.
    pub(in crate::image) across: bool,
    /// Top and bottom.
    pub(in crate::image) down: bool,
}

impl Frame {
    /// The same frame, of a part of the picture that contains `bounds`.
    pub(in crate::image) fn within(mut self, part: Rect<u32>) -> Frame {
        self.bounds.left -= part.left;
        self.bounds.top -= part.top;
        for rect in [&mut self.window, &mut self.canvas] {
            rect.left -= f64::from(part.left);
            rect.top -= f64::from(part.top);
        }
        self
    }

    /// The window from the bounds' corner, as the resampler takes it: left, top, width, height.
    pub(in crate::image) fn inner_window(&self) -> [f64; 4] {
        let Frame { bounds, window, .. } = self;
        // Rounding may have moved the far edges outwards: the resampler refuses a window that is even slightly too large.
        let left = (window.left - f64::from(bounds.left)).max(0.0);
        let top = (window.top - f64::from(bounds.top)).max(0.0);
        let width = window.width.min(f64::from(bounds.width) - left);
        let height = window.height.min(f64::from(bounds.height) - top);
        [left, top, width, height]
    }

    /// By how much the picture may be scaled down before it is resampled, so that it is still no smaller than the result.
    pub(in crate::image) fn slack(&self) -> u32 {
        let across = self.window.width / f64::from(self.place.width.max(1));
        let down = self.window.height / f64::from(self.place.height.max(1));
        let enough = |by: &u32| across.min(down) >= f64::from(*by);
        [8, 4, 2].into_iter().find(enough).unwrap_or(1)
    }

    /// The same frame, of a picture that was scaled down.
    pub(in crate::image) fn of_shrunk(mut self, by: u32) -> Frame {
        for rect in [&mut self.window, &mut self.canvas] {
            let sides = [
                &mut rect.left,
                &mut rect.top,
                &mut rect.width,
                &mut rect.height,
            ];
            sides.into_iter().for_each(|side| *side /= f64::from(by));
        }
        let Rect {
            left,
            top,
            width,
            height,
        } = self.bounds;
        let (right, bottom) = ((left + width).div_ceil(by), (top + height).div_ceil(by));
        let (left, top) = (left / by, top / by);
        self.bounds = Rect {
            left,
            top,
            width: right - left,
            height: bottom - top,
        };
        self
    }

    /// Whether the result is the whole picture in its own size, perhaps mirrored.
    pub(in crate::image) fn is_whole(&self, source: Size) -> bool {
        let whole = Canvas::new(source).finish();
        let flip = self.flip;
        *self == Frame { flip, ..whole }
    }

    /// Maps a point of the picture to the result. It may lie outside.
    pub(in crate::image) fn show(&self, [x, y]: [f64; 2]) -> [f64; 2] {
        let Frame { canvas, size, .. } = self;
        let x = (x - canvas.left) * f64::from(size.width) / canvas.width;
        let y = (y - canvas.top) * f64::from(size.height) / canvas.height;
        [
            if self.flip.across {
                f64::from(size.width) - x
            } else {
                x
            },
            if self.flip.down {
                f64::from(size.height) - y
            } else {
                y
            },
        ]
    }

    /// The part of the result that shows the picture, without the filled border.
    pub(in crate::image) fn shown(&self) -> Rect<f64> {
        let Frame {
            place, size, flip, ..
        } = *self;
        Rect {
            left: match flip.across {
                true => size.width - place.left - place.width,
                false => place.left,
            }
            .into(),
            top: match flip.down {
                true => size.height - place.top - place.height,
                false => place.top,
            }
            .into(),
            width: place.width.into(),
            height: place.height.into(),
        }
    }
}

/// The state of the picture after the operations so far.
pub(in crate::image) struct Canvas {
    /// What the canvas shows, in pixels of the source.
    window: Rect<f64>,
    /// The part of the source that remains, in its pixels. The rest of the window is filled.
    visible: Rect<f64>,
    /// The pixels that a filter may read.
    bounds: Rect<u32>,
    pub(in crate::image) size: Size,
    /// Which sides the canvas swaps. The window itself is never mirrored.
    flip: Flip,
    /// Whether `size` is no longer the window's own size.
    resized: bool,
}

impl Canvas {
    pub(in crate::image) fn new(source: Size) -> Canvas {
        let whole = Rect::of(source);
        Canvas {
            window: whole,
            visible: whole,
            bounds: whole.whole_pixels(),
            size: source,
            flip: Flip::default(),
            resized: false,
        }
    }

    /// Applies an operation if it only changes which part of the picture is shown, and returns whether it does.
    pub(in crate::image) fn carry_out(&mut self, op: &Op, rng: &mut SampleRng) -> bool {
        match *op {
            Op::Resize { short } => self.resize(with_short_side(self.size, short)),
            Op::ResizeExact { size } => self.resize(size),
            Op::CenterCrop { size } => self.crop(central(self.size, size)),
            Op::RandomResizedCrop(ref crop) => {
                self.crop(random_crop(self.size, crop, rng));
                self.resize(crop.size);
            }
            Op::RandomHorizontalFlip { probability } => self.flip.across ^= rng.bool(probability),
            Op::RandomVerticalFlip { probability } => self.flip.down ^= rng.bool(probability),
            Op::Pad(padding) => self.crop(padded(self.size, padding)),
            Op::RandomCrop { size } => self.crop(somewhere(self.size, size, rng)),
            Op::RandomRotation(_)
            | Op::ColorJitter(_)
            | Op::RandomGrayscale { .. }
            | Op::RandAugment(_)
            | Op::RandomErasing(_) => return false,
        }
        true
    }

    pub(in crate::image) fn resize(&mut self, size: Size) {
        self.resized |= self.size != size;
        self.size = size;
    }

    /// Keeps a part, in pixels of the canvas. It may extend beyond the canvas.
    pub(in crate::image) fn crop(&mut self, part: Rect<i64>) {
        let left = match self.flip.across {
            true => i64::from(self.size.width) - part.left - part.width,
            false => part.left,
        };
        let top = match self.flip.down {
            true => i64::from(self.size.height) - part.top - part.height,
            false => part.top,
        };
        let across = self.window.width / f64::from(self.size.width);
        let down = self.window.height / f64::from(self.size.height);
        self.window = Rect {
            left: self.window.left + left as f64 * across,
            top: self.window.top + top as f64 * down,
            width: part.width as f64 * across,
            height: part.height as f64 * down,
        };
        // (A larger picture is refused later for its size.)
        let side = |pixels: i64| u32::try_from(pixels).unwrap_or(u32::MAX);
        self.size = Size {
            width: side(part.width),
            height: side(part.height),
        };
        self.visible = self.visible.and(self.window);
        if !self.resized {
            // The crop precedes the resampling, which must not see the pixels that were cut off. All numbers are integers here.
            self.bounds = self.visible.whole_pixels();
        }
    }

    pub(in crate::image) fn finish(self) -> Frame {
        let Canvas {
            window, visible, ..
        } = self;
        let across = f64::from(self.size.width) / window.width;
        let down = f64::from(self.size.height) / window.height;
        let place = Rect {
            left: ((visible.left - window.left) * across).round(),
            top: ((visible.top - window.top) * down).round(),
            width: 0.0,
            height: 0.0,
        };
        let right = ((visible.left + visible.width - window.left) * across).round();
        let bottom = ((visible.top + visible.height - window.top) * down).round();
        let place = Rect {
            width: right - place.left,
            height: bottom - place.top,
            ..place
        };
        Frame {
            bounds: self.bounds,
            window: visible,
            canvas: window,
            place: place.whole_pixels(),
            size: self.size,
            flip: self.flip,
        }
    }
}

/// The size whose short side is `short`: torchvision's `_compute_resized_output_size`.
pub(in crate::image) fn with_short_side(size: Size, short: u32) -> Size {
    let long = |long: u32, by: u32| {
        let long = u64::from(short) * u64::from(long) / u64::from(by);
        u32::try_from(long).unwrap_or(u32::MAX)
    };
    if size.width <= size.height {
        Size {
            width: short,
            height: long(size.height, size.width),
        }
    } else {
        Size {
            width: long(size.width, size.height),
            height: short,
        }
    }
}

/// The central part of the given size: torchvision's `center_crop`, which pads a picture that is too small, and rounds halves to
/// even.
pub(in crate::image) fn central(size: Size, part: Size) -> Rect<i64> {
    let start = |whole: u32, part: u32| {
        if part > whole {
            -i64::from((part - whole) / 2)
        } else {
            (f64::from(whole - part) / 2.0).round_ties_even() as i64
        }
    };
    Rect {
        left: start(size.width, part.width),
        top: start(size.height, part.height),
        width: part.width.into(),
        height: part.height.into(),
    }
}

/// The picture and its border.
pub(in crate::image) fn padded(size: Size, padding: Padding) -> Rect<i64> {
    let [left, top, right, bottom] =
        [padding.left, padding.top, padding.right, padding.bottom].map(i64::from);
    Rect {
        left: -left,
        top: -top,
        width: i64::from(size.width) + left + right,
        height: i64::from(size.height) + top + bottom,
    }
}

/// A part of the given size at a random place: torchvision's `RandomCrop.get_params`. A picture that is too small is placed at
/// random within it.
fn somewhere(size: Size, part: Size, rng: &mut SampleRng) -> Rect<i64> {
    let mut start = |whole: u32, part: u32| {
        let at = rng.below(u64::from(whole.abs_diff(part)) + 1) as i64;
        if part > whole { -at } else { at }
    };
    Rect {
        top: start(size.height, part.height),
        left: start(size.width, part.width),
        width: part.width.into(),
        height: part.height.into(),
    }
}

/// A crop of random size, proportions and place: torchvision's `RandomResizedCrop.get_params`.
fn random_crop(size: Size, crop: &RandomResizedCrop, rng: &mut SampleRng) -> Rect<i64> {
    const TRIES: usize = 10;
    let (width, height) = (f64::from(size.width), f64::from(size.height));
    for _ in 0..TRIES {
        let area = width * height * rng.range(crop.scale.0..crop.scale.1);
        let ratio = rng.range(crop.ratio.0.ln()..crop.ratio.1.ln()).exp();
        let w = (area * ratio).sqrt().round_ties_even();
        let h = (area / ratio).sqrt().round_ties_even();
        if (1.0..=width).contains(&w) && (1.0..=height).contains(&h) {
            let (w, h) = (w as u32, h as u32);
            let top = rng.below(u64::from(size.height - h) + 1) as i64;
            let left = rng.below(u64::from(size.width - w) + 1) as i64;
            return Rect {
                left,
                top,
                width: w.into(),
                height: h.into(),
            };
        }
    }
    let proportions = width / height;
    let (w, h) = if proportions < crop.ratio.0 {
        (width, (width / crop.ratio.0).round_ties_even())
    } else if proportions > crop.ratio.1 {
        ((height * crop.ratio.1).round_ties_even(), height)
    } else {
        (width, height)
    };
    // With extreme ratios, rounding can give 0, or more than the picture.
    let (w, h) = (w.clamp(1.0, width) as i64, h.clamp(1.0, height) as i64);
    Rect {
        left: (i64::from(size.width) - w) / 2,
        top: (i64::from(size.height) - h) / 2,
        width: w,
        height: h,
    }
}

#[cfg(test)]
mod tests;
