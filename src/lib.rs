//! Keeps a GPU fed.
mod batch;
mod dataset;
mod device;
mod driver;
mod error;
pub mod interop;
mod loader;
mod meter;
mod pipeline;
mod rng;
mod sampler;
mod sync;
mod system;
mod tensor;
#[cfg(feature = "image")]
mod transform;

pub use batch::{Arena, Batch, Collate, CollateFn, Relocation, Stack};
#[cfg(feature = "image")]
pub use dataset::ImageFolder;
pub use dataset::{Dataset, FromFn, Map, TensorDataset, TensorRows, from_fn};
#[cfg(feature = "testing")]
pub use device::Hostile;
pub use device::{
    Device, DeviceInfo, DeviceTensor, Download, Loan, LoanMut, MemoryStats, Stream, Tensors, Upload,
};
pub use error::{BoxError, CollateError, DeviceFault, Error, Misfit, Result, SampleId, ShapeError};
pub use loader::{Builder, DataLoader, DeviceEpoch, Epoch, Limit, Stats};
pub use rng::SampleRng;
pub use sampler::{RandomSampler, Sampler, SequentialSampler};
pub use tensor::{DType, Element, Field, Filled, Host, Layout, Row, Sample, Shape, Tensor};
#[cfg(feature = "image")]
pub use transform::{
    ImageError, ImageSize, ImageTransform, Interpolation, LazyImage, RandomResizedCrop,
};

/// Makes a struct collatable: a batch of it has the same fields, each holding that field of all samples.
///
/// For `struct Example` there are then `ExampleBatch`, with the fields' [`Sample::Batch`], and `ExampleDeviceBatch`, with
/// what these become on a device. Both are as visible as the struct, their fields as its fields, and they are `Debug` where
/// their fields are. Fields can be of any type that can be collated, derived structs among them; structs can be tuple
/// structs, and can have type parameters.
///
/// # Examples
///
/// ```
/// use pinfeed::{Batch, DataLoader, Device, Tensor, from_fn};
///
/// #[derive(pinfeed::Sample)]
/// struct Example {
///     image: Tensor<u8>,
///     label: i64,
///     path: String,
/// }
///
/// let examples = from_fn(64, |index, _| {
///     Ok(Example {
///         image: Tensor::zeros(&[3, 32, 32]),
///         label: index as i64,
///         path: format!("{index}.jpg"),
///     })
/// });
/// let loader = DataLoader::builder(examples).batch_size(16).build()?;
/// for batch in &loader {
///     let batch: ExampleBatch = batch?;
///     assert_eq!(batch.image.shape()[..], [16, 3, 32, 32]);
///     assert_eq!(batch.path.len(), batch.label.len());
///     let batch: ExampleDeviceBatch = batch.to_device(&Device::cpu(), true)?;
/// #   let _ = batch;
/// }
/// # Ok::<(), pinfeed::Error>(())
/// ```
#[cfg(feature = "derive")]
pub use pinfeed_derive::Sample;
