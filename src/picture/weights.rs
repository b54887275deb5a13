//! The weights of an antialiased filter along one axis: fast_image_resize's, bit for bit.

use super::Filter;

/// An axis of a picture, and what becomes of it.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Axis {
    /// Where the window begins, in pixels.
    pub(crate) start: f64,
    /// Its length.
    pub(crate) length: f64,
    /// How many pixels there are.
    pub(crate) inside: u32,
    /// How many become of the window.
    pub(crate) out: u32,
    pub(crate) filter: Filter,
}

/// For each pixel of the result, which pixels it is made of: `(sum of weight * pixel + half) >> precision`.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Weights {
    pub(crate) precision: u32,
    /// The most weights that a pixel has: its part of `weights`.
    pub(crate) taps: usize,
    /// The first pixel, and how many.
    pub(crate) spans: Vec<(u32, u32)>,
    pub(crate) weights: Vec<i16>,
}

/// The precision of pixels that are taken as they are.
const WHOLE_PRECISION: u32 = 14;

impl Filter {
    fn support(self) -> f64 {
        match self {
            Filter::Bilinear => 1.0,
            Filter::Bicubic => 2.0,
        }
    }

    fn weigh(self, x: f64) -> f64 {
        const A: f64 = -0.5;
        let x = x.abs();
        match self {
            Filter::Bilinear if x < 1.0 => 1.0 - x,
            Filter::Bicubic if x < 1.0 => ((A + 2.0) * x - (A + 3.0)) * x * x + 1.0,
            Filter::Bicubic if x < 2.0 => (((x - 5.0) * x + 8.0) * x - 4.0) * A,
            _ => 0.0,
        }
    }
}

impl Axis {
    /// Whether the pixels are taken as they are.
    pub(crate) fn is_whole(&self) -> bool {
        f64::from(self.out) == self.length && self.start == self.start.round()
    }

    /// How many pixels become one. (The crate knows the window's two ends.)
    pub(crate) fn scale(&self) -> f64 {
        let end = self.start + self.length;
        (end - self.start) / f64::from(self.out)
    }

    fn radius(&self) -> f64 {
        self.filter.support() * self.scale().max(1.0)
    }

    /// The most weights that a pixel of the result has.
    pub(crate) fn taps(&self) -> usize {
        match self.is_whole() {
            _ if self.out == 0 => 0,
            true => 1,
            false => self.radius().ceil() as usize * 2 + 1,
        }
    }

    /// The memory of its weights on a device: the precision in [`HEAD_BYTES`](Axis::HEAD_BYTES), a span of two `u32` for each pixel of the
    /// result, and the weights, [`taps`](Axis::taps) of 16 bits for each. A multiple of 16.
    pub(crate) fn table_bytes(&self) -> usize {
        let bytes = Axis::HEAD_BYTES + self.out as usize * (8 + 2 * self.taps());
        bytes.next_multiple_of(16)
    }

    pub(crate) const HEAD_BYTES: usize = 16;

    pub(crate) fn weights(&self) -> Weights {
        let taps = self.taps();
        if self.is_whole() {
            let first = self.start as u32;
            return Weights {
                precision: WHOLE_PRECISION,
                taps,
                spans: (first..first + self.out).map(|at| (at, 1)).collect(),
                weights: vec![1 << WHOLE_PRECISION; self.out as usize],
            };
        }
        let (scale, radius) = (self.scale(), self.radius());
        let narrowed = 1.0 / scale.max(1.0);
        let mut exact = vec![0.0f64; taps * self.out as usize];
        let mut spans = Vec::with_capacity(self.out as usize);
        for (out, exact) in exact.chunks_exact_mut(taps).enumerate() {
            let center = self.start + (out as f64 + 0.5) * scale;
            let first = (center - radius).floor().max(0.0) as u32;
            let end = (center + radius).ceil().min(f64::from(self.inside)) as u32;
            let center = center - 0.5;
            let (mut start, mut count, mut sum) = (first, 0, 0.0);
            for x in first..end {
                let weight = self.filter.weigh((f64::from(x) - center) * narrowed);
                if x == start && weight == 0.0 {
                    start += 1;
                } else {
                    exact[count] = weight;
                    count += 1;
                    sum += weight;
                }
            }
            while count > 0 && exact[count - 1] == 0.0 {
                count -= 1;
            }
            if sum != 0.0 {
                exact[..count].iter_mut().for_each(|weight| *weight /= sum);
            }
            spans.push((start, count as u32));
        }
        let precision = precision(exact.iter().copied().fold(0.0, f64::max));
        let whole = |weight: &f64| (weight * f64::from(1u32 << precision)).round() as i16;
        Weights {
            precision,
            taps,
            spans,
            weights: exact.iter().map(whole).collect(),
        }
    }
}

/// How many bits the weights have behind the point, so that the largest fits 16 bits.
fn precision(largest: f64) -> u32 {
    let fits = |bits: &u32| (largest * f64::from(1u32 << (bits + 1))).round() < 32_768.0;
    (0..21).find(|bits| !fits(bits)).unwrap_or(21)
}

impl Weights {
    /// The pixel at this place of the result, made of those that `pixel` gives.
    pub(crate) fn mixed(&self, out: usize, pixel: impl Fn(u32) -> [u8; 3]) -> [u8; 3] {
        let (start, count) = self.spans[out];
        let weights = &self.weights[out * self.taps..][..count as usize];
        let mut sums = [1i32 << (self.precision - 1); 3];
        for (at, weight) in (start..).zip(weights) {
            for (sum, channel) in sums.iter_mut().zip(pixel(at)) {
                *sum += i32::from(channel) * i32::from(*weight);
            }
        }
        sums.map(|sum| (sum >> self.precision).clamp(0, 255) as u8)
    }

    /// The pixels that are read: the first, and the one behind the last. (Where a cubic weight is all but zero, rounding decides whether
    /// it counts, so the spans need not ascend.)
    pub(crate) fn reads(&self) -> (u32, u32) {
        let first = self.spans.iter().map(|(start, _)| *start).min();
        let end = self.spans.iter().map(|(start, count)| start + count).max();
        (first.unwrap_or(0), end.unwrap_or(0))
    }
}
