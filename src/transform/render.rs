//! From decoded pixels to a row of the batch, and the memory that decoding and resampling need on the way.

use std::cell::RefCell;

use fast_image_resize::images::{
    TypedCroppedImage, TypedCroppedImageMut, TypedImage, TypedImageRef,
};
use fast_image_resize::pixels::U8x3;
use fast_image_resize::{FilterType, ResizeAlg, ResizeOptions, Resizer};

use super::error::Cause;
use super::geometry::{Flip, Geometry};
use super::operation::{Interpolation, Size};

/// What a thread keeps for the next picture, of each kind of memory: enough for 22 million pixels.
const KEEP_BYTES: usize = 64 << 20;

thread_local! {
    static SCRATCH: RefCell<Scratch> = RefCell::default();
}

/// The memory that a thread reuses from picture to picture.
#[derive(Default)]
pub(super) struct Scratch {
    /// Pixels as the decoder gives them, where they are not RGB.
    pub(super) raw: Buffer,
    /// The whole picture.
    pub(super) rgb: Buffer,
    pub(super) resizer: Resizer,
}

impl Scratch {
    /// Lends this thread's scratch memory.
    pub(super) fn with<R>(f: impl FnOnce(&mut Scratch) -> R) -> R {
        SCRATCH.with_borrow_mut(|scratch| {
            let result = f(scratch);
            scratch.raw.shrink();
            scratch.rgb.shrink();
            if scratch.resizer.size_of_internal_buffers() > KEEP_BYTES {
                scratch.resizer.reset_internal_buffers();
            }
            result
        })
    }
}

/// Bytes that are allocated once and used again.
#[derive(Default)]
pub(super) struct Buffer(Vec<u8>);

impl Buffer {
    /// Lends `len` bytes. They are zero, so that nothing of an earlier picture shows where a decoder leaves gaps.
    pub(super) fn zeroed(&mut self, len: usize) -> &mut [u8] {
        if self.0.len() < len {
            self.0 = Vec::new(); // freed first: both together might be too much
            self.0 = vec![0; len];
        } else {
            self.0[..len].fill(0);
        }
        &mut self.0[..len]
    }

    fn shrink(&mut self) {
        if self.0.len() > KEEP_BYTES {
            self.0 = Vec::new();
        }
    }
}

/// Resamples what `geometry` shows of the picture into `out`, which has three bytes for each pixel of the result.
pub(super) fn render(
    resizer: &mut Resizer,
    pixels: &[u8],
    source: Size,
    geometry: &Geometry,
    interpolation: Interpolation,
    out: &mut [u8],
) -> Result<(), Cause> {
    let Geometry {
        bounds,
        window,
        place,
        size,
        flip,
    } = *geometry;
    if (place.width, place.height) != (size.width, size.height) {
        out.fill(0);
    }
    if place.width > 0 && place.height > 0 {
        let image = TypedImageRef::<U8x3>::from_buffer(source.width, source.height, pixels);
        let image = image.map_err(resample)?;
        let image =
            TypedCroppedImage::new(image, bounds.left, bounds.top, bounds.width, bounds.height);
        let canvas = TypedImage::<U8x3>::from_buffer(size.width, size.height, out);
        let canvas = canvas.map_err(resample)?;
        let canvas =
            TypedCroppedImageMut::new(canvas, place.left, place.top, place.width, place.height);
        // What rounding may have added at the far edges is cut off: the resampler takes no hair's breadth beyond.
        let left = (window.left - f64::from(bounds.left)).max(0.0);
        let top = (window.top - f64::from(bounds.top)).max(0.0);
        let width = window.width.min(f64::from(bounds.width) - left);
        let height = window.height.min(f64::from(bounds.height) - top);
        let options = ResizeOptions::new()
            .resize_alg(algorithm(interpolation))
            .crop(left, top, width, height);
        resizer
            .resize_typed(
                &image.map_err(resample)?,
                &mut canvas.map_err(resample)?,
                &options,
            )
            .map_err(resample)?;
    }
    swap(out, size.width as usize, flip);
    Ok(())
}

/// Swaps sides of a picture of rows of `width` pixels.
pub(super) fn swap(pixels: &mut [u8], width: usize, flip: Flip) {
    let (pixels, _) = pixels.as_chunks_mut::<3>();
    // Both at once is the order of all pixels.
    match (flip.across, flip.down) {
        (false, false) => {}
        (true, true) => pixels.reverse(),
        (true, false) => pixels.chunks_exact_mut(width).for_each(<[_]>::reverse),
        (false, true) => {
            let mut rows = pixels.chunks_exact_mut(width);
            while let (Some(top), Some(bottom)) = (rows.next(), rows.next_back()) {
                top.swap_with_slice(bottom);
            }
        }
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
