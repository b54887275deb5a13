//! Keeps a GPU fed.
mod dataset;
mod error;
mod rng;
mod sync;
mod tensor;
#[cfg(feature = "image")]
mod transform;

#[cfg(feature = "image")]
pub use dataset::ImageFolder;
pub use dataset::{Dataset, FromFn, Map, TensorDataset, TensorRows, from_fn};
pub use error::{BoxError, CollateError, DeviceFault, Error, Result, SampleId, ShapeError};
pub use rng::SampleRng;
pub use tensor::{DType, Element, Field, Filled, Host, Layout, Row, Sample, Shape, Tensor};
#[cfg(feature = "image")]
pub use transform::{
    ImageError, ImageSize, ImageTransform, Interpolation, LazyImage, RandomResizedCrop,
};
