//! CPU work on samples: pictures, decoded and transformed on their way into the batch.
//!
//! An [`ImageTransform`] is a plan, not a chain of closures: it sees all of its operations and folds them into one
//! rectangle of the picture, one resampling and one flip ([`geometry`]). A [`LazyImage`] holds the bytes of a file
//! until its row of the batch is there, and decodes ([`decode`]) and resamples ([`render`]) straight into it.

mod colour;
mod decode;
mod error;
mod geometry;
mod lazy;
mod opened;
mod operation;
mod plan;
mod render;
#[cfg(feature = "turbojpeg")]
#[expect(unsafe_code, reason = "it calls libjpeg-turbo")]
mod turbo;

pub use error::ImageError;
pub use lazy::LazyImage;
pub use operation::{ColorJitter, ImageSize, Interpolation, Padding, RandomResizedCrop};
pub use plan::ImageTransform;

pub(crate) use decode::Decoding;

#[cfg(test)]
#[expect(unsafe_code, reason = "the tests collate by hand, as a loader does")]
mod tests;
