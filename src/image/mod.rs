//! Pictures: from files in folders to the rows of a batch.
//!
//! An [`ImageTransform`] is a plan, not a chain of closures. For each picture, the plan is drawn into a [`Geometry`],
//! which folds its operations into one rectangle of the picture, one resampling and one flip, followed by changes in
//! place. A [`LazyImage`] holds the bytes of a file until its row of the batch exists, then decodes and resamples
//! straight into it; a [`LazyMask`] follows the geometry of its picture, and so does a [`LazyMap`] of ids or depth. [`ImageFolder`] yields
//! such samples.

// This is the top layer: it uses the crate's public API only, as a program does. README.md in this folder has the
// reading order.

mod decode;
#[cfg(feature = "nvjpeg")]
mod decoder;
#[cfg(feature = "nvjpeg")]
mod encoded;
mod error;
mod file;
mod folder;
mod geometry;
mod lazy;
mod map;
mod mask;
mod opened;
mod pixels;
mod plan;
mod size;

#[cfg(feature = "nvjpeg")]
#[doc(hidden)]
pub use decode::OnCpu;
#[cfg(feature = "nvjpeg")]
pub use decoder::Decode;
#[cfg(feature = "nvjpeg")]
#[doc(hidden)]
pub use encoded::Encoded;
pub use error::ImageError;
pub use folder::{ImageFolder, ListingProgress, StoredFolder};
pub use geometry::{Geometry, TransformedBoxes, TransformedPoints};
pub use lazy::LazyImage;
pub use map::{LazyMap, MapValue, panoptic_id};
pub use mask::LazyMask;
pub use plan::{
    ColorJitter, ImageTransform, Interpolation, Padding, RandAugment, RandomErasing,
    RandomResizedCrop, RandomRotation,
};
pub use size::ImageSize;

#[cfg(test)]
mod fixture;
#[cfg(test)]
mod tests;
