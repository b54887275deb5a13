//! From decoded pixels to a row of the batch: runs the steps of a geometry.

use fast_image_resize::images::{
    TypedCroppedImage, TypedCroppedImageMut, TypedImage, TypedImageRef,
};
use fast_image_resize::pixels::{U8, U8x2, U8x3, U8x4};
use fast_image_resize::{FilterType, PixelTrait, ResizeAlg, ResizeOptions};

use super::change::Change;
use super::mirror;
use super::scratch::{Buffer, Resampler, Scratch};
use crate::image::error::Cause;
use crate::image::geometry::{Flip, Frame, Geometry, GeometryStep};
use crate::image::plan::Interpolation;
use crate::image::size::{Rect, Size};
use crate::picture;

/// The meaning of pixels of `N` bytes.
pub(in crate::image) trait PixelKind<const N: usize> {
    type Pixel: PixelTrait;
    /// Whether the values are colours. Labels are neither mixed nor changed.
    const COLOURS: bool;
}

/// `u8` RGB.
pub(in crate::image) struct Rgb;

/// Labels, ids or distances of 8, 16 or 32 bits, as bytes.
pub(in crate::image) struct Labels;

impl PixelKind<3> for Rgb {
    type Pixel = U8x3;
    const COLOURS: bool = true;
}

impl PixelKind<1> for Labels {
    type Pixel = U8;
    const COLOURS: bool = false;
}

impl PixelKind<2> for Labels {
    type Pixel = U8x2;
    const COLOURS: bool = false;
}

impl PixelKind<4> for Labels {
    type Pixel = U8x4;
    const COLOURS: bool = false;
}

/// How to compute pixels that the picture does not have: between its pixels, and outside.
#[derive(Debug, Clone, Copy)]
pub(in crate::image) struct Look<const N: usize> {
    pub(in crate::image) interpolation: Interpolation,
    /// The value outside the picture.
    pub(in crate::image) fill: [u8; N],
}

/// Runs all steps into `out`, which has `N` bytes for each pixel of the result. `first` draws the first frame.
pub(in crate::image) fn carry_out<K: PixelKind<N>, const N: usize>(
    geometry: &Geometry,
    look: Look<N>,
    scratch: &mut Scratch,
    out: &mut [u8],
    first: impl FnOnce(&Frame, &mut Scratch, &mut [u8]) -> Result<(), Cause>,
) -> Result<(), Cause> {
    let mut first = Some(first);
    let [mut made, mut next] = std::mem::take(&mut scratch.made);
    let mut before = geometry.source();
    let mut stages = geometry.stages().iter().peekable();
    while let Some(GeometryStep { frame, changes }) = stages.next() {
        let target = match stages.peek() {
            Some(_) => next.zeroed(bytes::<N>(frame.size)),
            None => &mut *out,
        };
        match first.take() {
            Some(first) => first(frame, scratch, target)?,
            None => {
                let from = made.filled(bytes::<N>(before));
                render::<K, N>(&mut scratch.resampler, from, before, frame, look, target)?;
            }
        }
        for change in changes {
            apply::<K, N>(change, frame.size, look, &mut scratch.moved, target);
        }
        before = frame.size;
        std::mem::swap(&mut made, &mut next);
    }
    scratch.made = [made, next];
    Ok(())
}

fn bytes<const N: usize>(size: Size) -> usize {
    size.width as usize * size.height as usize * N
}

/// Changes pixels in place.
fn apply<K: PixelKind<N>, const N: usize>(
    change: &Change,
    size: Size,
    look: Look<N>,
    moved: &mut Buffer,
    pixels: &mut [u8],
) {
    let width = size.width as usize;
    match change {
        Change::Warp(warp) => {
            let before = moved.zeroed(pixels.len());
            before.copy_from_slice(pixels);
            match K::COLOURS {
                true => *warp,
                false => warp.sharp(),
            }
            .apply(before, pixels, size, look.fill);
        }
        Change::Colour(_) | Change::Erase { .. } if !K::COLOURS => {}
        Change::Colour(colour) => colour.apply(pixels, width),
        Change::Erase { place, value } => {
            let place = [place.left, place.top, place.width, place.height];
            picture::erase(pixels, width, place, *value);
        }
    }
}

/// Resamples the part of the picture that `frame` shows into `out`, which has `N` bytes for each pixel of the result.
pub(in crate::image) fn render<K: PixelKind<N>, const N: usize>(
    resampler: &mut Resampler,
    pixels: &[u8],
    source: Size,
    frame: &Frame,
    look: Look<N>,
    out: &mut [u8],
) -> Result<(), Cause> {
    let Frame {
        bounds,
        place,
        size,
        flip,
        ..
    } = *frame;
    if (place.width, place.height) != (size.width, size.height) {
        out.as_chunks_mut::<N>().0.fill(look.fill);
    }
    if place.width > 0 && place.height > 0 {
        let canvas = TypedImage::<K::Pixel>::from_buffer(size.width, size.height, out);
        let canvas = canvas.map_err(resample)?;
        let canvas =
            TypedCroppedImageMut::new(canvas, place.left, place.top, place.width, place.height);
        let mut canvas = canvas.map_err(resample)?;
        let [left, top, width, height] = frame.inner_window();
        let options = ResizeOptions::new().resize_alg(algorithm(look.interpolation));
        let image = image::<K::Pixel>(pixels, source, bounds)?;
        let Resampler { resizer, between } = resampler;
        if overshoots(look.interpolation) {
            // A filter that overshoots is clipped after the first pass, so the order of the passes matters. Pillow's first pass is
            // horizontal. (The resampler would begin with the vertical one, which is faster.)
            let size = Size {
                width: place.width,
                height: bounds.height,
            };
            let pixels = between.zeroed(bytes::<N>(size));
            let target = TypedImage::<K::Pixel>::from_buffer(size.width, size.height, pixels);
            let across = options.crop(left, 0.0, width, bounds.height.into());
            resizer
                .resize_typed(&image, &mut target.map_err(resample)?, &across)
                .map_err(resample)?;
            let whole = Rect {
                left: 0,
                top: 0,
                width: size.width,
                height: size.height,
            };
            let image = self::image::<K::Pixel>(pixels, size, whole)?;
            let down = options.crop(0.0, top, size.width.into(), height);
            resizer
                .resize_typed(&image, &mut canvas, &down)
                .map_err(resample)?;
        } else {
            let both = options.crop(left, top, width, height);
            resizer
                .resize_typed(&image, &mut canvas, &both)
                .map_err(resample)?;
        }
    }
    swap::<N>(out, size.width as usize, flip);
    Ok(())
}

/// A part of a picture, as the resampler takes it.
fn image<P: PixelTrait>(
    pixels: &[u8],
    size: Size,
    part: Rect<u32>,
) -> Result<TypedCroppedImage<'_, TypedImageRef<'_, P>>, Cause> {
    let image = TypedImageRef::from_buffer(size.width, size.height, pixels).map_err(resample)?;
    TypedCroppedImage::new(image, part.left, part.top, part.width, part.height).map_err(resample)
}

/// Whether a filter can give values outside the range of its inputs.
fn overshoots(interpolation: Interpolation) -> bool {
    match interpolation {
        Interpolation::Nearest | Interpolation::Bilinear => false,
        Interpolation::Bicubic | Interpolation::Lanczos => true,
    }
}

/// Swaps the sides of a picture with rows of `width` pixels.
pub(in crate::image) fn swap<const N: usize>(pixels: &mut [u8], width: usize, flip: Flip) {
    // Both at once reverse the order of all pixels.
    match (flip.across, flip.down) {
        (false, false) => {}
        (true, true) => reverse::<N>(pixels),
        (true, false) => pixels.chunks_exact_mut(width * N).for_each(reverse::<N>),
        (false, true) => {
            let mut rows = pixels.chunks_exact_mut(width * N);
            while let (Some(top), Some(bottom)) = (rows.next(), rows.next_back()) {
                top.swap_with_slice(bottom);
            }
        }
    }
}

/// Reverses the order of pixels of `N` bytes.
fn reverse<const N: usize>(pixels: &mut [u8]) {
    match N {
        3 => mirror::reverse(pixels.as_chunks_mut().0),
        _ => pixels.as_chunks_mut::<N>().0.reverse(),
    }
}

fn algorithm(interpolation: Interpolation) -> ResizeAlg {
    match interpolation {
        Interpolation::Nearest => ResizeAlg::Nearest,
        Interpolation::Bilinear => ResizeAlg::Convolution(FilterType::Bilinear),
        Interpolation::Bicubic => ResizeAlg::Convolution(FilterType::CatmullRom),
        Interpolation::Lanczos => ResizeAlg::Convolution(FilterType::Lanczos3),
    }
}

fn resample(error: impl std::fmt::Display) -> Cause {
    Cause::Resample(error.to_string())
}
