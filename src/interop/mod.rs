//! Other libraries' devices, streams and tensors.
//!
//! - [`raw`]: contexts, streams and memory by their handles, for any CUDA binding;
//! - `cudarc` (with the feature `cuda`): its contexts, streams and slices;
//! - `dlpack` (with the feature `dlpack`): tensors that NumPy, PyTorch, CuPy, JAX and others take where they lie, and theirs;
//! - `candle` (with the feature `candle`): its tensors; on a GPU with the feature `candle-cuda`.
//! - `ndarray` (with the feature `ndarray`): views of host tensors, and tensors of arrays.
//!
//! Another library gets a batch in one of three ways. [`raw::copy_to`] writes it into memory of that library's allocator, on its stream:
//! the usual one, for the result is an ordinary tensor of its own. [`DeviceTensor::lend`](crate::DeviceTensor::lend) lends the memory where
//! it lies, to streams that are named; [`OwnedLoan::end_everywhere`](crate::device::OwnedLoan::end_everywhere) to a library that names
//! none.
//!
//! Frameworks that take no foreign device memory get a batch from the host. For burn, that is the package `pinfeed-burn`, which makes its
//! tensors of page-locked memory without a copy; for others, `as_slice`, `to_vec` and `shape` of a [`Tensor`](crate::Tensor). The README
//! has the lines for each.

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
#[cfg(feature = "dlpack")]
#[expect(
    unsafe_code,
    reason = "it gives structs of pointers out, and takes them in"
)]
pub mod dlpack;
#[cfg(feature = "ndarray")]
pub mod ndarray;
#[expect(unsafe_code, reason = "it takes handles and addresses")]
pub mod raw;
