//! A picture that a device decodes: its planes, how they become a row of a batch, how that is changed, and all of it in plain code.
//!
//! A hardware decoder gives planes of luma and chroma. A `Drawing` says which part of them becomes which pixels of the row.
//! `Drawing::render` makes them: the CPU device's answer, and the measure for the kernel (`driver/cuda/picture.cu`). For the same
//! planes it gives the bytes that libjpeg-turbo and fast_image_resize give, which the CPU path consists of.
//!
//! `Change`s follow. Their arithmetic (`Colour`, `Warp`) is that of all pictures: `image` uses it on the CPU, and
//! `driver/cuda/changes.cu` repeats it, byte for byte.
//!
//! Nothing here knows of files, threads or devices, so both `image`, which makes drawings, and `driver`, which carries them out, may
//! use it.

pub(crate) mod change;
mod colour;
pub(crate) mod drawing;
mod planes;
mod render;
mod warp;
pub(crate) mod weights;

pub use change::{Change, Cut};
pub use colour::Colour;
pub(crate) use drawing::Steps;
pub use drawing::{DecoderLimits, Drawing, EncodedPicture, Filter};
pub use planes::{PlaneLayout, Planes, Sampling};
pub use warp::Warp;

#[cfg(test)]
mod tests;

/// Paints over a part of a picture (left, top, width, height) with rows of `width` RGB pixels.
pub fn erase(pixels: &mut [u8], width: usize, place: [u32; 4], value: [u8; 3]) {
    let [left, top, across, down] = place.map(|side| side as usize);
    let (pixels, _) = pixels.as_chunks_mut::<3>();
    for row in pixels.chunks_exact_mut(width).skip(top).take(down) {
        row[left..][..across].fill(value);
    }
}
