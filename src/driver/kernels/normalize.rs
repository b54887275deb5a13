//! Normalising pictures, and mixing them with each other at the same time.

#[cfg(feature = "cuda")]
use std::ffi::CStr;

use half::{bf16, f16};

use super::Kernel;
#[cfg(feature = "cuda")]
use super::{Argument, Launch, ptx};
use crate::shape::DType;
use crate::tensor::Float;

/// Pictures of three interleaved channels become floating point numbers: `x * scale + bias`.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Normalizing {
    /// The pictures' bytes.
    pub(crate) from: u64,
    /// The same number of elements of `dtype`.
    pub(crate) to: u64,
    pub(crate) images: u64,
    /// The pixels of each image.
    pub(crate) pixels: u64,
    /// The element type of the result.
    pub(crate) dtype: DType,
    /// Whether the result is interleaved as well, or channel by channel.
    pub(crate) channels_last: bool,
    pub(crate) scale: [f32; 3],
    pub(crate) bias: [f32; 3],
    /// How they are then mixed with each other, if they are.
    pub(crate) mixture: Option<Mixture>,
}

/// Each picture is mixed with the one before (the first one with the last): within the box, `own * x + other * before`,
/// of normalised values. It is passed to the kernel as it is.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub(crate) struct Mixture {
    /// The width of each picture.
    pub(crate) width: u64,
    pub(crate) left: u64,
    pub(crate) top: u64,
    pub(crate) right: u64,
    pub(crate) bottom: u64,
    pub(crate) own: f32,
    pub(crate) other: f32,
}

/// The kernels without mixing.
#[cfg(feature = "cuda")]
const NORMALIZE: &CStr = ptx(concat!(include_str!("../cuda/normalize.ptx"), "\0"));

/// The kernels that mix, for pictures and labels.
#[cfg(feature = "cuda")]
pub(super) const MIX: &CStr = ptx(concat!(include_str!("../cuda/mix.ptx"), "\0"));

impl Kernel for Normalizing {
    unsafe fn run(&self) {
        match self.dtype {
            // SAFETY: the caller's contract, for the element type that it names.
            DType::F16 => unsafe { self.convert::<f16>() },
            // SAFETY: likewise.
            DType::BF16 => unsafe { self.convert::<bf16>() },
            // SAFETY: likewise; `Float` is implemented for no other type.
            _ => unsafe { self.convert::<f32>() },
        }
    }

    #[cfg(feature = "cuda")]
    fn launch(&self) -> Launch<'_> {
        let function = match (self.mixture.is_some(), self.dtype, self.channels_last) {
            (false, DType::F16, false) => c"pinfeed_normalize_f16_chw",
            (false, DType::F16, true) => c"pinfeed_normalize_f16_hwc",
            (false, DType::BF16, false) => c"pinfeed_normalize_bf16_chw",
            (false, DType::BF16, true) => c"pinfeed_normalize_bf16_hwc",
            (false, _, false) => c"pinfeed_normalize_f32_chw",
            (false, _, true) => c"pinfeed_normalize_f32_hwc",
            (true, DType::F16, false) => c"pinfeed_mix_f16_chw",
            (true, DType::F16, true) => c"pinfeed_mix_f16_hwc",
            (true, DType::BF16, false) => c"pinfeed_mix_bf16_chw",
            (true, DType::BF16, true) => c"pinfeed_mix_bf16_hwc",
            (true, _, false) => c"pinfeed_mix_f32_chw",
            (true, _, true) => c"pinfeed_mix_f32_hwc",
        };
        // Two addresses, two counts, six numbers, and the mixture if the kernel mixes.
        let counts = [&self.from, &self.to, &self.images, &self.pixels];
        let numbers = self.scale.iter().chain(&self.bias);
        let arguments = counts.into_iter().map(Argument::new);
        let arguments = arguments.chain(numbers.map(Argument::new));
        let arguments = arguments.chain(self.mixture.iter().map(Argument::new));
        Launch {
            purpose: "normalizing",
            ptx: match self.mixture {
                None => NORMALIZE,
                Some(_) => MIX,
            },
            function,
            items: self.images * self.pixels,
            arguments: arguments.collect(),
        }
    }
}

impl Normalizing {
    /// # Safety
    ///
    /// As `run`; `F` must be the target's element type.
    unsafe fn convert<F: Float>(&self) {
        let (images, pixels) = (self.images as usize, self.pixels as usize);
        let elements = images * pixels * 3;
        // SAFETY: the caller's contract: there are that many bytes, and nothing writes them now.
        let from = unsafe { std::slice::from_raw_parts(self.from as *const u8, elements) };
        // SAFETY: the caller's contract: there are that many elements, aligned, and nothing else uses them now.
        let to = unsafe { std::slice::from_raw_parts_mut(self.to as *mut F, elements) };
        let normal =
            |byte: u8, channel: usize| f32::from(byte) * self.scale[channel] + self.bias[channel];
        for (index, byte) in from.iter().enumerate() {
            let (pixel, channel) = (index / 3, index % 3);
            let place = match self.channels_last {
                true => index,
                false => (pixel / pixels * 3 + channel) * pixels + pixel % pixels,
            };
            let mut value = normal(*byte, channel);
            if let Some(mixture) = self.mixture.filter(|mix| mix.holds(pixel % pixels)) {
                let before = (index + elements - pixels * 3) % elements;
                value = value * mixture.own + normal(from[before], channel) * mixture.other;
            }
            to[place] = F::from_f32(value);
        }
    }
}

impl Mixture {
    /// Whether the pixel lies in the box.
    fn holds(&self, pixel: usize) -> bool {
        let (x, y) = (pixel as u64 % self.width, pixel as u64 / self.width);
        (self.left..self.right).contains(&x) && (self.top..self.bottom).contains(&y)
    }
}

#[cfg(all(test, feature = "cuda"))]
mod tests {
    use super::*;

    /// Older drivers do not read newer PTX, and older devices do not run code for newer ones.
    #[test]
    fn the_kernels_are_made_for_the_oldest_that_are_served() {
        let text = [NORMALIZE, MIX].map(|ptx| ptx.to_str().unwrap());
        let entries = |text: &str, name: &str| {
            let entry = format!(".visible .entry pinfeed_{name}_");
            text.matches(&entry).count()
        };
        for text in text {
            assert!(text.contains("\n.version 7.0\n.target sm_70\n"));
        }
        assert_eq!(entries(text[0], "normalize"), 6);
        assert_eq!(entries(text[1], "mix"), 6);
        assert_eq!(entries(text[1], "labels"), 2);
    }
}
