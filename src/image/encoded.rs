//! A picture that goes to the device as it is, and is decoded there.

use super::decode::{Baseline, DecodeOptions, OnCpu, check_size, is_turned};
use super::geometry::Geometry;
use super::plan::{ImageTransform, Interpolation};
use super::size::Size;
use crate::picture::{DecoderLimits, Drawing, Filter, Sampling};

/// A file that a device decodes, and what becomes of its pixels.
#[derive(Debug, Clone)]
pub struct Encoded<'a> {
    file: Baseline<'a>,
    drawing: Drawing,
}

impl<'a> Encoded<'a> {
    /// Reads a file. `Err` leaves it to the CPU, which also says what is wrong with it, if anything is.
    pub(super) fn read(
        bytes: &'a [u8],
        decoding: DecodeOptions,
        plan: Option<&ImageTransform>,
        seed: u64,
        limits: DecoderLimits,
    ) -> Result<Encoded<'a>, OnCpu> {
        let file = Baseline::read(bytes)?;
        let [width, height] = file.size;
        let size = Size { width, height };
        let pixel_bytes = u64::from(width) * u64::from(height) * 3;
        if width.min(height) < limits.least_side {
            return Err(OnCpu::TooSmall);
        }
        if width.max(height) > limits.most_side || check_size(size, pixel_bytes, decoding).is_err()
        {
            return Err(OnCpu::TooLarge);
        }
        if decoding.exif_orientation && is_turned(bytes) {
            return Err(OnCpu::Turned);
        }
        let geometry = Geometry::draw(size, plan, seed, decoding.max_pixels);
        let geometry = geometry.map_err(|_| OnCpu::TooLarge)?;
        let drawing = draw(&geometry, plan, file.sampling)?;
        if drawing.decoder_bytes() > limits.picture_bytes {
            return Err(OnCpu::TooLarge);
        }
        Ok(Encoded { file, drawing })
    }

    /// How many bytes [`write`](Encoded::write) writes.
    pub fn bytes(&self) -> usize {
        self.file.len()
    }

    /// Writes the file for the decoder, and returns its bytes. `None` if `to` is too small: then nothing is written.
    pub fn write(&self, to: &mut [u8]) -> Option<usize> {
        self.file.write(to)
    }

    /// What becomes of its pixels.
    pub fn drawing(&self) -> &Drawing {
        &self.drawing
    }
}

/// The geometry as a device carries it out.
fn draw(
    geometry: &Geometry,
    plan: Option<&ImageTransform>,
    sampling: Sampling,
) -> Result<Drawing, OnCpu> {
    let [step] = geometry.stages() else {
        return Err(OnCpu::Transform);
    };
    if !step.changes.is_empty() {
        return Err(OnCpu::Transform);
    }
    let frame = &step.frame;
    let plan = plan.cloned().unwrap_or_default();
    if plan.may_scale() && frame.slack() > 1 {
        return Err(OnCpu::Scaled);
    }
    // A picture that is shown as it is needs no filter.
    let filter = match plan.filter() {
        Interpolation::Bilinear => Filter::Bilinear,
        Interpolation::Bicubic => Filter::Bicubic,
        Interpolation::Nearest | Interpolation::Lanczos => return Err(OnCpu::Filter),
    };
    let (bounds, place, size) = (frame.bounds, frame.place, frame.size);
    let drawing = Drawing {
        source: [geometry.source().width, geometry.source().height],
        sampling,
        bounds: [bounds.left, bounds.top, bounds.width, bounds.height],
        window: frame.inner_window(),
        place: match place.width.min(place.height) {
            0 => [0; 4], // it may lie anywhere
            _ => [place.left, place.top, place.width, place.height],
        },
        size: [size.width, size.height],
        filter,
        flip: [frame.flip.across, frame.flip.down],
        fill: plan.outside(),
    };
    match drawing.is_sound() {
        true => Ok(drawing),
        // The resampler refuses a window that rounding has moved out of the picture, and rows may be huge.
        false => Err(OnCpu::Transform),
    }
}

#[cfg(test)]
mod tests;
