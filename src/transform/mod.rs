//! CPU work on samples: pictures, decoded and transformed on their way into the batch.
//!
//! An [`ImageTransform`] is a plan, not a chain of closures: for each picture it is drawn into a [`Geometry`], which folds its
//! operations into one rectangle of the picture, one resampling and one flip ([`frame`]), and what is changed in place behind
//! that ([`colour`], [`warp`]). A [`LazyImage`] holds the bytes of a file until its row of the batch is there, and decodes
//! ([`decode`]) and resamples ([`render`]) straight into it; a [`LazyMask`] goes through the geometry of its picture.

mod augment;
mod change;
mod colour;
mod decode;
mod error;
mod frame;
mod geometry;
mod lazy;
mod mask;
mod opened;
mod operation;
mod plan;
mod render;
mod scratch;
mod size;
#[cfg(feature = "turbojpeg")]
#[expect(unsafe_code, reason = "it calls libjpeg-turbo")]
mod turbo;

mod warp;

pub use augment::{RandAugment, RandomErasing, RandomRotation};
pub use error::ImageError;
pub use geometry::{Geometry, TransformedBoxes, TransformedPoints};
pub use lazy::LazyImage;
pub use mask::LazyMask;
pub use operation::{ColorJitter, Interpolation, Padding, RandomResizedCrop};
pub use plan::ImageTransform;
pub use size::ImageSize;

pub(crate) use decode::Decoding;

#[cfg(test)]
mod fixture;
#[cfg(test)]
#[expect(unsafe_code, reason = "the tests collate by hand, as a loader does")]
mod tests;
