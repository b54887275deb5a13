//! DLPack: tensors that NumPy, PyTorch, CuPy, JAX and others take, and give, where they lie.
//!
//! [`Exported`] is a tensor of ours on its way out, [`Imported`] one of theirs that came in. The protocol is a C struct with a `deleter`: who
//! takes the tensor calls it when it is done. Both forms are there: [`DLManagedTensorVersioned`] (DLPack 1.x, with flags), and
//! [`DLManagedTensor`] of the time before.
//!
//! # Who frees what, when, and on which thread
//!
//! | memory | how it leaves | what its deleter does |
//! | --- | --- | --- |
//! | ordinary host memory | where it lies ([`Exported::host`]); read-only, unless nothing else holds it | drops the tensor |
//! | page-locked host memory, or a loader's for a device | as a copy only ([`Exported::host_copy`]) | frees the copy |
//! | device memory | where it lies ([`Exported::device`]) | lets go of [`Adrift`](crate::device::Adrift) memory: [`Device::sweep`](crate::Device::sweep) makes it free |
//!
//! A deleter runs on any thread, perhaps in a callback of the driver's, or after an interpreter has ended. So those of this library call no
//! driver, wait for nothing, and catch panics. (A tensor over an owner of the program's, [`Tensor::from_owner`](crate::Tensor::from_owner),
//! drops that owner there.) It is called once: by the consumer, or, for what no consumer took, when the [`Exported`] is dropped.
//!
//! # Two holes of the protocol
//!
//! *A deleter is told no stream.* PyTorch lets go of a tensor while its kernel is queued, and JAX names another stream than the one that it
//! computes on. So exported device memory is reused only behind an event of the whole context, which the program allows
//! ([`Device::sweep`](crate::Device::sweep)), however early a deleter comes.
//!
//! *A copy of page-locked memory outlives its owner.* PyTorch's `non_blocking=True` enqueues a copy and lets go of foreign page-locked memory at
//! once, with no error; what is written there next is what arrives. It asks the driver whether memory is page-locked, whatever DLPack says.
//! So page-locked memory never leaves where it lies.
//!
//! # Examples
//!
//! ```
//! use pinfeed::Tensor;
//! use pinfeed::interop::dlpack::{Exported, Imported};
//!
//! let tensor = Tensor::from_vec(vec![1.0f32, 2.0, 3.0, 4.0, 5.0, 6.0], &[2, 3])?;
//! let address = tensor.as_slice().as_ptr();
//! let theirs = Exported::host(tensor)?.into_versioned(); // a `DLManagedTensorVersioned*`, for any library
//!
//! // And back, as another library's would come. SAFETY: it is such a pointer, and nobody else uses it, or writes the elements.
//! let imported = unsafe { Imported::from_versioned(theirs) }?;
//! assert_eq!(imported.shape(), [2, 3]);
//! let tensor = imported.into_host::<f32>()?;
//! assert_eq!(tensor.as_slice().as_ptr(), address); // no copy
//! # Ok::<(), pinfeed::Error>(())
//! ```

mod abi;
mod export;
mod import;
#[cfg(feature = "cuda")]
mod stream;

pub use self::abi::{
    DLDataType, DLDevice, DLManagedTensor, DLManagedTensorVersioned, DLPackVersion, DLTensor,
};
pub use self::export::Exported;
pub use self::import::Imported;
#[cfg(feature = "cuda")]
pub use self::stream::consumer_stream;

#[cfg(test)]
mod tests;
