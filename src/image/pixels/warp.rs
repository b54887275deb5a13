//! Rotating, shearing and shifting: affine maps, bit for bit as in Pillow.

use crate::image::size::{Rect, Size};

/// Where each pixel of the result comes from, and by which filter.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(in crate::image) struct Warp {
    /// `[a, b, c, d, e, f]`: a point (x, y) of the result shows (a x + b y + c, d x + e y + f).
    from: [f64; 6],
    /// Bilinear between four pixels, instead of the nearest one.
    smooth: bool,
}

impl Warp {
    /// Counter-clockwise around the centre, in degrees: Pillow's `Image.rotate`, torchvision's `rotate`.
    pub(in crate::image) fn rotation(degrees: f64, size: Size, smooth: bool) -> Warp {
        let turn = -(degrees.rem_euclid(360.0)).to_radians();
        // Pillow rounds to make right angles exact.
        let round = |value: f64| (value * 1e15).round_ties_even() / 1e15;
        let [a, b, d, e] = [turn.cos(), turn.sin(), -turn.sin(), turn.cos()].map(round);
        let (x, y) = (f64::from(size.width) / 2.0, f64::from(size.height) / 2.0);
        let c = a * -x + b * -y + x;
        let f = d * -x + e * -y + y;
        Warp {
            from: [a, b, c, d, e, f],
            smooth,
        }
    }

    /// Moves rows to the left by `x` times their distance from the top, and columns up by `y` times theirs from the left.
    pub(in crate::image) fn shear(x: f64, y: f64, smooth: bool) -> Warp {
        Warp {
            from: [1.0, x, 0.0, y, 1.0, 0.0],
            smooth,
        }
    }

    /// Moves the picture to the right and down, by whole pixels.
    pub(in crate::image) fn shift(right: i32, down: i32, smooth: bool) -> Warp {
        Warp {
            from: [1.0, 0.0, f64::from(-right), 0.0, 1.0, f64::from(-down)],
            smooth,
        }
    }

    /// The same map with the nearest pixels.
    pub(in crate::image) fn sharp(self) -> Warp {
        Warp {
            smooth: false,
            ..self
        }
    }

    /// Maps a point of the picture to the result.
    pub(in crate::image) fn show(&self, [x, y]: [f64; 2]) -> [f64; 2] {
        let [a, b, c, d, e, f] = self.from;
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
        let (from, _) = from.as_chunks::<N>();
        let (to, _) = to.as_chunks_mut::<N>();
        if self.smooth {
            self.smoothly(from, to, size, fill);
        } else if self.fits_fixed_point(size) {
            self.in_fixed_point(from, to, size, fill);
        } else {
            self.nearest(from, to, size, fill);
        }
    }

    /// Pillow's nearest pixel, in fixed point with 16 fractional bits.
    fn in_fixed_point<const N: usize>(
        &self,
        from: &[[u8; N]],
        to: &mut [[u8; N]],
        size: Size,
        fill: [u8; N],
    ) {
        let fixed = |value: f64| (value * 65_536.0 + 0.5).floor() as i64;
        let [a, b, c, d, e, f] = self.from;
        let (mut first_x, mut first_y) =
            (fixed(c + a * 0.5 + b * 0.5), fixed(f + d * 0.5 + e * 0.5));
        let [a, b, d, e] = [a, b, d, e].map(fixed);
        let (width, height) = (i64::from(size.width), i64::from(size.height));
        for row in to.chunks_exact_mut(size.width as usize) {
            let (mut x, mut y) = (first_x, first_y);
            for pixel in row {
                let (column, line) = (x >> 16, y >> 16);
                let inside = (0..width).contains(&column) && (0..height).contains(&line);
                *pixel = match inside {
                    true => from[(line * width + column) as usize],
                    false => fill,
                };
                x += a;
                y += d;
            }
            first_x += b;
            first_y += e;
        }
    }

    /// Whether every corner fits Pillow's fixed point, which has 16 bits before the point.
    fn fits_fixed_point(&self, size: Size) -> bool {
        let [a, b, c, d, e, f] = self.from;
        let (width, height) = (f64::from(size.width), f64::from(size.height));
        let corners = [(0.0, 0.0), (width, 0.0), (0.0, height), (width, height)];
        corners.iter().all(|(x, y)| {
            (a * x + b * y + c).abs() < 32_768.0 && (d * x + e * y + f).abs() < 32_768.0
        })
    }

    fn nearest<const N: usize>(
        &self,
        from: &[[u8; N]],
        to: &mut [[u8; N]],
        size: Size,
        fill: [u8; N],
    ) {
        self.each_point(to, size, |[x, y], pixel| {
            let inside = inside([x, y], size);
            *pixel = match inside {
                true => from[y as usize * size.width as usize + x as usize],
                false => fill,
            };
        });
    }

    /// Pillow's bilinear filter for affine maps, which is never widened, and truncates.
    fn smoothly<const N: usize>(
        &self,
        from: &[[u8; N]],
        to: &mut [[u8; N]],
        size: Size,
        fill: [u8; N],
    ) {
        let (width, height) = (i64::from(size.width), i64::from(size.height));
        let at = |column: i64, line: i64| {
            let (column, line) = (column.clamp(0, width - 1), line.clamp(0, height - 1));
            from[(line * width + column) as usize].map(f64::from)
        };
        self.each_point(to, size, |[x, y], pixel| {
            if !inside([x, y], size) {
                *pixel = fill;
                return;
            }
            let (x, y) = (x - 0.5, y - 0.5);
            let (column, line) = (x.floor(), y.floor());
            let (right, down) = (x - column, y - line);
            let (column, line) = (column as i64, line as i64);
            let above = [at(column, line), at(column + 1, line)];
            let below = [at(column, line + 1), at(column + 1, line + 1)];
            *pixel = std::array::from_fn(|channel| {
                let across = |row: [[f64; N]; 2]| {
                    row[0][channel] + (row[1][channel] - row[0][channel]) * right
                };
                let (above, below) = (across(above), across(below));
                (above + (below - above) * down) as u8
            });
        });
    }

    fn each_point<const N: usize>(
        &self,
        to: &mut [[u8; N]],
        size: Size,
        mut write: impl FnMut([f64; 2], &mut [u8; N]),
    ) {
        let [a, b, c, d, e, f] = self.from;
        for (line, row) in to.chunks_exact_mut(size.width as usize).enumerate() {
            let y = line as f64 + 0.5;
            for (column, pixel) in row.iter_mut().enumerate() {
                let x = column as f64 + 0.5;
                write([a * x + b * y + c, d * x + e * y + f], pixel);
            }
        }
    }
}

fn inside([x, y]: [f64; 2], size: Size) -> bool {
    0.0 <= x && x < f64::from(size.width) && 0.0 <= y && y < f64::from(size.height)
}
