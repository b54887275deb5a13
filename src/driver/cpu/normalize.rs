//! Normalising pictures on the CPU device: the same numbers as the CUDA kernel's.

use half::{bf16, f16};

use super::super::Normalizing;
use crate::shape::DType;
use crate::tensor::Float;

/// # Safety
///
/// As `Driver::normalize`, and the memory must be that of the CPU device.
pub(super) unsafe fn run(work: Normalizing) {
    match work.dtype {
        // SAFETY: the caller's contract, for the element type that it names.
        DType::F16 => unsafe { convert::<f16>(work) },
        // SAFETY: likewise.
        DType::BF16 => unsafe { convert::<bf16>(work) },
        // SAFETY: likewise; `Float` is implemented for no other type.
        _ => unsafe { convert::<f32>(work) },
    }
}

/// # Safety
///
/// As `run`; the target must be of `F`s.
unsafe fn convert<F: Float>(work: Normalizing) {
    let Normalizing {
        images,
        pixels,
        scale,
        bias,
        ..
    } = work;
    let elements = images * pixels * 3;
    // SAFETY: the caller's contract: there are as many bytes, and nobody writes them now.
    let from = unsafe { std::slice::from_raw_parts(work.from as *const u8, elements) };
    // SAFETY: the caller's contract: there are as many elements, aligned, and nobody else uses them now.
    let to = unsafe { std::slice::from_raw_parts_mut(work.to as *mut F, elements) };
    for (index, byte) in from.iter().enumerate() {
        let (pixel, channel) = (index / 3, index % 3);
        let place = match work.channels_last {
            true => index,
            false => (pixel / pixels * 3 + channel) * pixels + pixel % pixels,
        };
        to[place] = F::from_f32(f32::from(*byte) * scale[channel] + bias[channel]);
    }
}
