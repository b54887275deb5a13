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

mod colour;
mod warp;

pub use colour::Colour;
pub use warp::Warp;

#[cfg(feature = "nvjpeg")]
#[cfg_attr(
    any(not(target_os = "linux"), miri),
    allow(
        dead_code,
        reason = "passes are for the kernel, which is for Linux only"
    )
)]
mod change;
#[cfg(feature = "nvjpeg")]
mod drawing;
#[cfg(feature = "nvjpeg")]
mod planes;
#[cfg(feature = "nvjpeg")]
mod render;
#[cfg(feature = "nvjpeg")]
mod weights;

#[cfg(feature = "nvjpeg")]
pub(crate) use change::ChangeMemory;
#[cfg(feature = "nvjpeg")]
pub use change::{Change, Cut};
#[cfg(all(feature = "nvjpeg", target_os = "linux", not(miri)))]
pub(crate) use change::{Counts, passes};
#[cfg(feature = "nvjpeg")]
pub(crate) use drawing::Steps;
#[cfg(all(feature = "nvjpeg", target_os = "linux", not(miri)))]
pub(crate) use drawing::tiles;
#[cfg(feature = "nvjpeg")]
pub use drawing::{DecoderLimits, Drawing, EncodedPicture, Filter};
#[cfg(feature = "nvjpeg")]
pub use planes::{PlaneLayout, Planes, Sampling};
#[cfg(all(test, feature = "nvjpeg"))]
pub(crate) use weights::Axis;

#[cfg(all(test, feature = "nvjpeg"))]
mod tests;

/// Paints over a part of a picture (left, top, width, height) with rows of `width` RGB pixels.
pub fn erase(pixels: &mut [u8], width: usize, place: [u32; 4], value: [u8; 3]) {
    let [left, top, across, down] = place.map(|side| side as usize);
    let (pixels, _) = pixels.as_chunks_mut::<3>();
    for row in pixels.chunks_exact_mut(width).skip(top).take(down) {
        row[left..][..across].fill(value);
    }
}
