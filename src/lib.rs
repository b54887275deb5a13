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

pub use batch::{Arena, Batch, Collate, CollateFn, Relocation, Stack};
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
