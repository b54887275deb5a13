//! Normalising pictures, and mixing them and their labels, on the CPU device: the same numbers as the CUDA kernels'.

use half::{bf16, f16};

use super::super::{Labelling, Mixture, Normalizing};
use crate::shape::DType;
use crate::tensor::Float;

/// # Safety
///
/// As `Driver::normalize`, and the memory must be that of the CPU device.
pub(super) unsafe fn normalize(work: Normalizing) {
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
/// As `normalize`; the target must be of `F`s.
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
    let normal = |byte: u8, channel: usize| f32::from(byte) * scale[channel] + bias[channel];
    for (index, byte) in from.iter().enumerate() {
        let (pixel, channel) = (index / 3, index % 3);
        let place = match work.channels_last {
            true => index,
            false => (pixel / pixels * 3 + channel) * pixels + pixel % pixels,
        };
        let mut value = normal(*byte, channel);
        if let Some(mixture) = work.mixture.filter(|mix| mix.holds(pixel % pixels)) {
            let before = (index + elements - pixels * 3) % elements;
            value = value * mixture.own + normal(from[before], channel) * mixture.other;
        }
        to[place] = F::from_f32(value);
    }
}

impl Mixture {
    /// Whether the pixel lies in the box.
    fn holds(&self, pixel: usize) -> bool {
        let (x, y) = (pixel as u64 % self.width, pixel as u64 / self.width);
        (self.left..self.right).contains(&x) && (self.top..self.bottom).contains(&y)
    }
}

/// # Safety
///
/// As `Driver::label`, and the memory must be that of the CPU device.
pub(super) unsafe fn label(work: Labelling) {
    match work.element_bytes {
        // SAFETY: the caller's contract, for numbers of that size.
        2 => unsafe { weigh(work, |bits| bits as u16) },
        // SAFETY: likewise; there is no third.
        _ => unsafe { weigh(work, |bits| bits) },
    }
}

/// # Safety
///
/// As `label`; the target must be of numbers of `B`'s size.
unsafe fn weigh<B>(work: Labelling, number: fn(u32) -> B) {
    let Labelling {
        rows,
        classes,
        weights,
        ..
    } = work;
    // SAFETY: the caller's contract: there are as many labels, and nobody writes them now.
    let labels = unsafe { std::slice::from_raw_parts(work.from as *const i64, rows) };
    // SAFETY: the caller's contract: there are as many numbers, aligned, and nobody else uses them now.
    let to = unsafe { std::slice::from_raw_parts_mut(work.to as *mut B, rows * classes) };
    for (row, to) in to.chunks_exact_mut(classes).enumerate() {
        let own = labels[row];
        let other = match work.is_mixed {
            true => labels[(row + rows - 1) % rows],
            false => own,
        };
        let is_class = |label: i64| usize::try_from(label).is_ok_and(|label| label < classes);
        let is_valid = is_class(own) && is_class(other);
        for (class, to) in to.iter_mut().enumerate() {
            let (is_own, is_other) = (own == class as i64, other == class as i64);
            *to = number(match (is_own, is_other && work.is_mixed) {
                _ if !is_valid => weights.invalid,
                (false, false) => weights.none,
                (true, false) => weights.own,
                (false, true) => weights.other,
                (true, true) => weights.both,
            });
        }
    }
}
