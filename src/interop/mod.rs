//! Other libraries' devices, streams and tensors.
//!
//! - [`raw`]: contexts, streams and memory by their handles, for any CUDA binding;
//! - `cudarc` (with the feature `cuda`): its contexts, streams and slices;
//! - `candle` (with the feature `candle`): its tensors; on a GPU with the feature `candle-cuda`.
//!
//! Frameworks that take no foreign device memory (burn, tch) get a batch from the host: `as_slice`, `to_vec` and `shape` of a
//! [`Tensor`](crate::Tensor). The README has the lines for each.

// Each library has its own file, which uses the crate's public API.

#[cfg(feature = "candle")]
#[cfg_attr(
    feature = "candle-cuda",
    expect(unsafe_code, reason = "it copies to an address of candle's")
)]
pub mod candle;
#[cfg(feature = "cuda")]
#[expect(unsafe_code, reason = "it takes handles and addresses of cudarc's")]
pub mod cudarc;
#[expect(unsafe_code, reason = "it takes handles and addresses")]
pub mod raw;
