//! Devices, their streams and their memory.
//!
//! A [`Device`] gives out [`Stream`]s and page-locks host memory. Batches become [`DeviceTensor`]s on it, which are lent to kernels as a
//! [`Loan`] or [`LoanMut`], on a stream that waits for the copy; as an [`OwnedLoan`] or [`OwnedLoanMut`] to code that keeps them beyond a
//! scope. [`Download`] is the way back.

// Host memory: a `ring` of page-locked blocks hands out slabs, of which each batch has a `piece`; the list of `flights` holds what a copy
// uses until its event fires. Device memory: a `pool` hands out blocks whose last users are done; `block` tracks the users of each tensor
// as events. `inner` owns all of that, and `handle` is how a program holds it. `upload` and `download` copy between the two, through
// `staging` where host memory is pageable; `tensor` lends device memory to kernels, and runs the library's own. README.md in this folder
// has the state tables.

mod assembly;
mod block;
mod buffer_set;
mod buffers;
mod byte_budget;
mod captures;
mod decoding;
mod download;
mod flights;
mod handle;
mod helpers;
mod host_memory;
mod inner;
mod piece;
mod pinning;
mod pool;
mod registered;
mod ring;
mod staged;
mod staging;
pub(crate) mod table;
mod tensor;
pub(crate) mod upload;

pub(crate) use self::assembly::{Assembly, Unsent};
pub(crate) use self::buffer_set::Passing;
pub(crate) use self::buffers::Rows;
pub use self::buffers::{DeviceBuffers, Target};
pub(crate) use self::byte_budget::{ByteBudget, BytePermit};
pub use self::captures::CaptureGuard;
pub(crate) use self::decoding::{NotDecoded, Undecoded, WhenDecoded};
pub use self::download::Download;
pub(crate) use self::flights::Coming;
pub use self::handle::{Device, MemoryStats, Stream};
pub(crate) use self::host_memory::block_bytes;
pub(crate) use self::inner::DeviceInner;
pub(crate) use self::piece::{FillingSlab, Piece, Pieces};
pub(crate) use self::ring::{Kind, Reservation, Ring, Slab, SlabQuota};
pub(crate) use self::staged::HeldOff;
pub use self::tensor::{Adrift, DeviceTensor, Loan, LoanMut, OwnedLoan, OwnedLoanMut};
pub(crate) use self::upload::{Tensors, Upload};
pub use crate::driver::DeviceInfo;
#[cfg(feature = "testing")]
pub use crate::driver::{Way, cpu::Hostile};
