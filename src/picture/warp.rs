//! Rotating, shearing and shifting: affine maps, bit for bit as in Pillow.

/// Where each pixel of the result comes from, and by which filter.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Warp {
    /// `[a, b, c, d, e, f]`: a point (x, y) of the result shows (a x + b y + c, d x + e y + f).
    pub from: [f64; 6],
    /// Bilinear between four pixels, instead of the nearest one.
    pub smooth: bool,
}

impl Warp {
    /// Writes the result into `to`. Both pictures have the size `size` (width, height) and `N` bytes a pixel. Pixels from outside are
    /// `fill`.
    pub fn apply<const N: usize>(&self, from: &[u8], to: &mut [u8], size: [u32; 2], fill: [u8; N]) {
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
        size: [u32; 2],
        fill: [u8; N],
    ) {
        let fixed = |value: f64| (value * 65_536.0 + 0.5).floor() as i64;
        let [a, b, c, d, e, f] = self.from;
        let (mut first_x, mut first_y) =
            (fixed(c + a * 0.5 + b * 0.5), fixed(f + d * 0.5 + e * 0.5));
        let [a, b, d, e] = [a, b, d, e].map(fixed);
        let (width, height) = (i64::from(size[0]), i64::from(size[1]));
        for row in to.chunks_exact_mut(size[0] as usize) {
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
    pub(crate) fn fits_fixed_point(&self, size: [u32; 2]) -> bool {
        let [a, b, c, d, e, f] = self.from;
        let (width, height) = (f64::from(size[0]), f64::from(size[1]));
        let corners = [(0.0, 0.0), (width, 0.0), (0.0, height), (width, height)];
        corners.iter().all(|(x, y)| {
            (a * x + b * y + c).abs() < 32_768.0 && (d * x + e * y + f).abs() < 32_768.0
        })
    }

    fn nearest<const N: usize>(
        &self,
        from: &[[u8; N]],
        to: &mut [[u8; N]],
        size: [u32; 2],
        fill: [u8; N],
    ) {
        self.each_point(to, size, |[x, y], pixel| {
            let inside = inside([x, y], size);
            *pixel = match inside {
                true => from[y as usize * size[0] as usize + x as usize],
                false => fill,
            };
        });
    }

    /// Pillow's bilinear filter for affine maps, which is never widened, and truncates.
    fn smoothly<const N: usize>(
        &self,
        from: &[[u8; N]],
        to: &mut [[u8; N]],
        size: [u32; 2],
        fill: [u8; N],
    ) {
        let (width, height) = (i64::from(size[0]), i64::from(size[1]));
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
        size: [u32; 2],
        mut write: impl FnMut([f64; 2], &mut [u8; N]),
    ) {
        let [a, b, c, d, e, f] = self.from;
        for (line, row) in to.chunks_exact_mut(size[0] as usize).enumerate() {
            let y = line as f64 + 0.5;
            for (column, pixel) in row.iter_mut().enumerate() {
                let x = column as f64 + 0.5;
                write([a * x + b * y + c, d * x + e * y + f], pixel);
            }
        }
    }
}

fn inside([x, y]: [f64; 2], size: [u32; 2]) -> bool {
    0.0 <= x && x < f64::from(size[0]) && 0.0 <= y && y < f64::from(size[1])
}
