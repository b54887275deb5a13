//! What runs on the device for its own sake: pictures are normalised and mixed there.
//!
//! [`DeviceTensor`](crate::DeviceTensor) has the methods (`normalize`, `normalize_mixed`, `soft_labels`); here is what they
//! are told.

// An operation has a file here, with what a program calls, its checks and its documentation; and one in `driver/kernels`,
// with the kernel on both backends. `DeviceTensor::launch` is what lies between: it knows who may touch which memory when.

#[expect(unsafe_code, reason = "it says what kernels read and write")]
mod labels;
mod mixing;
#[expect(unsafe_code, reason = "it says what kernels read and write")]
mod normalize;

pub use self::mixing::{Mix, Mixing};
pub use self::normalize::Normalize;
