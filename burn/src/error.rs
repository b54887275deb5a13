//! What can go wrong between pinfeed and burn.

use burn::tensor::DType;
use pinfeed::BoxError;
use pinfeed::tensor::Shape;

/// Why a tensor, or a sample, cannot go from pinfeed to burn or back. [`Loader`](crate::Loader) gives it inside burn's `DatasetError`, as
/// its [`source`](std::error::Error::source).
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A tensor has another number of dimensions than the program says.
    #[error(
        "a tensor of shape {shape:?} has {} dimensions, and not {wanted}: write `into_burn::<{}>`, or `reshape` it before (a batch has a dimension \
         more than its samples)",
        shape.len(),
        shape.len()
    )]
    Rank {
        /// The tensor's shape.
        shape: Shape,
        /// The number of dimensions that was asked for.
        wanted: usize,
    },

    /// The device has no tensors of this type.
    #[error(
        "burn's device {device} has no tensors of {dtype:?}: let the samples have a type that it has, or convert on the host: \
         `into_data().convert_dtype(..)`"
    )]
    Unsupported {
        /// The element type.
        dtype: DType,
        /// Burn's device, as it shows itself.
        device: String,
    },

    /// Burn's data have another element type than the program says.
    #[error(
        "burn's data are {found:?}, and not {wanted:?}: convert them before, by `convert_dtype`"
    )]
    ElementType {
        /// The type of the data.
        found: DType,
        /// The type that was asked for.
        wanted: DType,
    },

    /// Burn's data cannot be read on the host.
    #[error("burn's data cannot be read on the host: {0}")]
    Read(String),

    /// A batch was loaded, and the program's function could not make burn's batch of it.
    #[error("a batch could not be made burn's: {0}")]
    Convert(#[source] BoxError),

    /// Burn could not begin the copies of a batch.
    #[error("burn could not copy a batch to its device: {0}")]
    Device(#[source] BoxError),

    /// A sample could not be loaded.
    #[error("sample {index}{} failed to load: {source}", described(.description))]
    Sample {
        /// The sample's index.
        index: usize,
        /// What the data set says of it: its path, for example.
        description: Option<String>,
        /// Why.
        source: BoxError,
    },

    /// A loader of pinfeed's could not be built, for a part of the data set.
    #[error("the loader of the samples {start}..{end} could not be built: {source}")]
    Slice {
        /// The first sample.
        start: usize,
        /// The sample behind the last one.
        end: usize,
        /// Why.
        source: std::sync::Arc<pinfeed::Error>,
    },
}

/// A sample's description behind its number.
fn described(description: &Option<String>) -> String {
    let shown = description.as_ref().map(|text| format!(" ({text})"));
    shown.unwrap_or_default()
}
