//! A picture that goes to the device as it is, and is decoded there.

use std::ops::Range;

use super::decode::{Baseline, DecodeOptions, OnCpu, check_size};
use super::geometry::{Frame, Geometry};
use super::pixels;
use super::plan::{ImageTransform, Interpolation};
use super::size::Size;
use crate::picture::{Change, Cut, DecoderLimits, Drawing, Filter, Sampling};

/// A file that a device decodes, and what becomes of its pixels.
#[derive(Debug, Clone)]
pub struct Encoded<'a> {
    file: Baseline<'a>,
    drawing: Drawing,
    changes: Vec<Change>,
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
        if decoding.exif_orientation && Baseline::is_turned(bytes) {
            return Err(OnCpu::Turned);
        }
        let geometry = Geometry::draw(size, plan, seed, decoding.max_pixels);
        let geometry = geometry.map_err(|_| OnCpu::TooLarge)?;
        let (drawing, changes) = draw(&geometry, plan, file.sampling)?;
        if drawing.decoder_bytes(&changes) > limits.picture_bytes {
            return Err(OnCpu::TooLarge);
        }
        Ok(Encoded {
            file,
            drawing,
            changes,
        })
    }

    /// The file for the decoder.
    pub fn to_vec(&self) -> Vec<u8> {
        self.file.to_vec()
    }

    /// What it has before and behind the file's [data](Encoded::data).
    pub(super) fn frame(&self) -> [Vec<u8>; 2] {
        [self.file.header(), Baseline::END.to_vec()]
    }

    /// Where its data are.
    pub(super) fn data(&self) -> Range<usize> {
        self.file.data.clone()
    }

    /// What becomes of its pixels.
    pub fn drawing(&self) -> &Drawing {
        &self.drawing
    }

    /// How they are changed then.
    pub fn changes(&self) -> &[Change] {
        &self.changes
    }
}

/// The geometry as a device carries it out.
fn draw(
    geometry: &Geometry,
    plan: Option<&ImageTransform>,
    sampling: Sampling,
) -> Result<(Drawing, Vec<Change>), OnCpu> {
    let [first, rest @ ..] = geometry.stages() else {
        return Err(OnCpu::Transform); // there is always one
    };
    let plan = plan.cloned().unwrap_or_default();
    let fill = plan.outside();
    if plan.may_scale() && first.frame.slack() > 1 {
        return Err(OnCpu::Scaled);
    }
    let source = [geometry.source().width, geometry.source().height];
    let drawing = drawing(&first.frame, source, &plan, sampling)?;
    let mut changes: Vec<Change> = Vec::new();
    changes.extend(first.changes.iter().map(|change| made(change, fill)));
    for stage in rest {
        // Only what is drawn first can be resampled.
        changes.push(Change::Cut(
            cut(&stage.frame, fill).ok_or(OnCpu::Transform)?,
        ));
        changes.extend(stage.changes.iter().map(|change| made(change, fill)));
    }
    match Change::are_sound(&changes, drawing.size) {
        true => Ok((drawing, changes)),
        false if changes.len() > Change::MOST => Err(OnCpu::Changes),
        false => Err(OnCpu::TooLarge),
    }
}

fn drawing(
    frame: &Frame,
    source: [u32; 2],
    plan: &ImageTransform,
    sampling: Sampling,
) -> Result<Drawing, OnCpu> {
    // A picture that is shown as it is needs no filter.
    let filter = match plan.filter() {
        Interpolation::Bilinear => Filter::Bilinear,
        Interpolation::Bicubic => Filter::Bicubic,
        Interpolation::Nearest | Interpolation::Lanczos => return Err(OnCpu::Filter),
    };
    let (bounds, size, place) = (frame.bounds, frame.size, place(frame));
    let (bounds, window) = match place {
        [_, _, 0, 0] => ([0; 4], [0.0; 4]), // what does not show may lie anywhere
        _ => (
            [bounds.left, bounds.top, bounds.width, bounds.height],
            frame.inner_window(),
        ),
    };
    let drawing = Drawing {
        source,
        sampling,
        bounds,
        window,
        place,
        size: [size.width, size.height],
        filter,
        flip: [frame.flip.across, frame.flip.down],
        fill: plan.outside(),
    };
    // The resampler refuses a window that rounding has moved out of the picture, and rows may be huge.
    drawing
        .is_sound()
        .then_some(drawing)
        .ok_or(OnCpu::Transform)
}

/// Where the frame's window lies in its result.
fn place(frame: &Frame) -> [u32; 4] {
    let place = frame.place;
    match place.width.min(place.height) {
        0 => [0; 4],
        _ => [place.left, place.top, place.width, place.height],
    }
}

/// The frame, if it shows pixels as they are.
fn cut(frame: &Frame, fill: [u8; 3]) -> Option<Cut> {
    let place = place(frame);
    let [left, top, width, height] = frame.inner_window();
    let is_whole = |at: f64, side: f64, pixels: u32| at.fract() == 0.0 && side == f64::from(pixels);
    let shows = place[2] > 0;
    let is_cut = is_whole(left, width, place[2]) && is_whole(top, height, place[3]);
    (!shows || is_cut).then(|| Cut {
        start: match shows {
            true => [
                frame.bounds.left + left as u32,
                frame.bounds.top + top as u32,
            ],
            false => [0; 2],
        },
        place,
        size: [frame.size.width, frame.size.height],
        flip: [frame.flip.across, frame.flip.down],
        fill,
    })
}

fn made(change: &pixels::Change, fill: [u8; 3]) -> Change {
    match *change {
        pixels::Change::Colour(colour) => Change::Colour(colour),
        pixels::Change::Warp(warp) => Change::Warp { warp: warp.0, fill },
        pixels::Change::Erase { place, value } => Change::Erase {
            place: [place.left, place.top, place.width, place.height],
            value,
        },
    }
}

#[cfg(test)]
mod tests;
