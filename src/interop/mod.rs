//! Other libraries' devices, streams and tensors. Each is a file of its own and uses the crate's public surface.
//!
//! - [`raw`]: contexts, streams and memory by their handles, for whatever binds CUDA;
//! - `cudarc` (with the feature `cuda`): its contexts, streams and slices;
//! - `candle` (with the feature `candle`): its tensors; on a GPU with the feature `candle-cuda`.

#[cfg(feature = "candle")]
pub mod candle;
#[cfg(feature = "cuda")]
pub mod cudarc;
#[cfg(feature = "cuda")]
pub mod raw;
