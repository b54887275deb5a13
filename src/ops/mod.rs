//! Operations on the device: normalising and mixing pictures, and making soft labels.
//!
//! The methods are on [`DeviceTensor`](crate::DeviceTensor) (`normalize`, `normalize_mixed`, `soft_labels`); this
//! module has their parameters.

// Each operation has a file here, with its public calls, checks and documentation, and one in `driver/kernels`, with
// the kernel for both backends. Between them is `DeviceTensor::launch`, which orders the kernel with the memory's other
// users.

#[expect(unsafe_code, reason = "it says what kernels read and write")]
mod labels;
mod mixing;
#[expect(unsafe_code, reason = "it says what kernels read and write")]
mod normalize;

pub use self::mixing::{Mixup, MixupDraw};
pub use self::normalize::Normalize;
