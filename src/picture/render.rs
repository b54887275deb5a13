//! From planes to a row, in plain code.

use super::planes::Upsampled;
use super::{Drawing, Filter, Planes};

impl Drawing {
    /// Makes the row of the picture in these planes.
    ///
    /// # Panics
    ///
    /// If the drawing is not [sound](Drawing::is_sound), the planes are too small, or `row` has another size.
    pub fn render(&self, planes: Planes<'_>, row: &mut [u8]) {
        assert!(self.is_sound(), "{self:?}");
        let (row, rest) = row.as_chunks_mut::<3>();
        assert!(rest.is_empty() && row.len() * 3 == self.row_bytes());
        let (width, height) = (self.size[0] as usize, self.size[1] as usize);
        let mut put = |x: usize, y: usize, pixel: [u8; 3]| {
            let x = if self.flip[0] { width - 1 - x } else { x };
            let y = if self.flip[1] { height - 1 - y } else { y };
            row[y * width + x] = pixel;
        };
        let [left, top, across, down] = self.place.map(|side| side as usize);
        let is_shown = |x: usize, y: usize| {
            (left..left + across).contains(&x) && (top..top + down).contains(&y)
        };
        for y in 0..height {
            for x in 0..width {
                if !self.shows() || !is_shown(x, y) {
                    put(x, y, self.fill);
                }
            }
        }
        if !self.shows() {
            return;
        }
        let picture = Upsampled::new(planes, self.sampling, self.source);
        let [bounds_left, bounds_top, ..] = self.bounds;
        let pixel = |x: u32, y: u32| picture.pixel(bounds_left + x, bounds_top + y);
        let [columns, rows] = self.axes().map(|axis| axis.weights());
        // What the first pass makes is rounded, so the order matters. The CPU's filter that overshoots begins across, as Pillow does;
        // the other begins down, which is faster there.
        let (first_column, end_column) = columns.reads();
        let (first_row, end_row) = rows.reads();
        match self.filter {
            Filter::Bilinear => {
                let read = (end_column - first_column) as usize;
                let mut between = vec![[0; 3]; read * down];
                for (y, line) in between.chunks_exact_mut(read).enumerate() {
                    for (x, to) in (first_column..).zip(line) {
                        *to = rows.mixed(y, |row| pixel(x, row));
                    }
                }
                for (y, line) in between.chunks_exact(read).enumerate() {
                    for x in 0..across {
                        let made =
                            columns.mixed(x, |column| line[(column - first_column) as usize]);
                        put(left + x, top + y, made);
                    }
                }
            }
            Filter::Bicubic => {
                let mut between = vec![[0; 3]; (end_row - first_row) as usize * across];
                for (y, line) in (first_row..).zip(between.chunks_exact_mut(across)) {
                    for (x, to) in line.iter_mut().enumerate() {
                        *to = columns.mixed(x, |column| pixel(column, y));
                    }
                }
                for y in 0..down {
                    for x in 0..across {
                        let made =
                            rows.mixed(y, |row| between[(row - first_row) as usize * across + x]);
                        put(left + x, top + y, made);
                    }
                }
            }
        }
    }
}
