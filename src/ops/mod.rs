//! Operations on device tensors: the library's own kernels make one tensor of another.
//!
//! An operation has a file here, with the public call, its checks and its documentation, and one in `driver/kernels`,
//! with the kernel on both backends. Between them is [`DeviceTensor::launch`](crate::device::DeviceTensor::launch), which
//! knows who may touch which memory when.

#[expect(unsafe_code, reason = "it says what kernels read and write")]
mod labels;
mod mixing;
#[expect(unsafe_code, reason = "it says what kernels read and write")]
mod normalize;

pub use self::mixing::{Mix, Mixing};
pub use self::normalize::Normalize;
