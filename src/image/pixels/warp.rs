//! Rotating, shearing and shifting: affine maps as in Pillow, for pixels, points and boxes.

use crate::image::size::{Rect, Size};
use crate::picture;

/// Where each pixel of the result comes from, and by which filter.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(in crate::image) struct Warp(pub(in crate::image) picture::Warp);

impl Warp {
    fn new(from: [f64; 6], smooth: bool) -> Warp {
        Warp(picture::Warp { from, smooth })
    }

    /// Counter-clockwise around the centre, in degrees: Pillow's `Image.rotate`, torchvision's `rotate`.
    pub(in crate::image) fn rotation(degrees: f64, size: Size, smooth: bool) -> Warp {
        let turn = -(degrees.rem_euclid(360.0)).to_radians();
        // Pillow rounds to make right angles exact.
        let round = |value: f64| (value * 1e15).round_ties_even() / 1e15;
        let [a, b, d, e] = [turn.cos(), turn.sin(), -turn.sin(), turn.cos()].map(round);
        let (x, y) = (f64::from(size.width) / 2.0, f64::from(size.height) / 2.0);
        let c = a * -x + b * -y + x;
        let f = d * -x + e * -y + y;
        Warp::new([a, b, c, d, e, f], smooth)
    }

    /// Moves rows to the left by `x` times their distance from the top, and columns up by `y` times theirs from the left.
    pub(in crate::image) fn shear(x: f64, y: f64, smooth: bool) -> Warp {
        Warp::new([1.0, x, 0.0, y, 1.0, 0.0], smooth)
    }

    /// Moves the picture to the right and down, by whole pixels.
    pub(in crate::image) fn shift(right: i32, down: i32, smooth: bool) -> Warp {
        let from = [1.0, 0.0, f64::from(-right), 0.0, 1.0, f64::from(-down)];
        Warp::new(from, smooth)
    }

    /// The same map with the nearest pixels.
    pub(in crate::image) fn sharp(self) -> Warp {
        Warp::new(self.0.from, false)
    }

    /// Maps a point of the picture to the result.
    pub(in crate::image) fn show(&self, [x, y]: [f64; 2]) -> [f64; 2] {
        let [a, b, c, d, e, f] = self.0.from;
        let determinant = a * e - b * d;
        let (x, y) = (x - c, y - f);
        [(e * x - b * y) / determinant, (a * y - d * x) / determinant]
    }

    /// Maps a rectangle to the smallest one around its four mapped corners.
    pub(in crate::image) fn show_box(&self, rect: Rect<f64>) -> Rect<f64> {
        let (right, bottom) = (rect.left + rect.width, rect.top + rect.height);
        let corners = [
            [rect.left, rect.top],
            [right, rect.top],
            [right, bottom],
            [rect.left, bottom],
        ];
        let corners = corners.map(|corner| self.show(corner));
        let least = |axis: usize| {
            corners
                .iter()
                .fold(f64::MAX, |least, at| least.min(at[axis]))
        };
        let most = |axis: usize| corners.iter().fold(f64::MIN, |most, at| most.max(at[axis]));
        Rect {
            left: least(0),
            top: least(1),
            width: most(0) - least(0),
            height: most(1) - least(1),
        }
    }

    /// Writes the result into `to`. Both pictures have the size `size` and `N` bytes a pixel. Pixels from outside are `fill`.
    pub(in crate::image) fn apply<const N: usize>(
        &self,
        from: &[u8],
        to: &mut [u8],
        size: Size,
        fill: [u8; N],
    ) {
        self.0.apply(from, to, [size.width, size.height], fill);
    }
}
