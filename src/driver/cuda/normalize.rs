//! Normalising pictures, and mixing them and their labels, by kernels.

use std::ffi::{CStr, c_void};
use std::ptr;

use super::kernels::{Function, ptx};
use super::{Cuda, Stream};
use crate::driver::{Labelling, Normalizing};
use crate::error::Result;
use crate::shape::DType;
use crate::tuning::{BLOCK_THREADS, ITEMS_PER_THREAD, MOST_BLOCKS};

/// The kernels, without mixing and with it: made from normalize.cu by `nvcc -ptx`, for the oldest driver and device served.
const PTX: [&CStr; 2] = [
    ptx(concat!(include_str!("normalize.ptx"), "\0")),
    ptx(concat!(include_str!("mix.ptx"), "\0")),
];

impl Cuda {
    /// # Safety
    ///
    /// As `Driver::normalize`.
    pub(in crate::driver) unsafe fn normalize(
        &self,
        stream: &Stream,
        work: Normalizing,
    ) -> Result<()> {
        let _entered = self.enter()?;
        let name = match (work.mixture.is_some(), work.dtype, work.channels_last) {
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
        let kernel = self.normalizing(work.mixture.is_some(), name, "normalizing")?;
        let (mut from, mut to) = (work.from, work.to);
        let (mut images, mut pixels) = (work.images as u64, work.pixels as u64);
        let mut numbers = [work.scale, work.bias].concat();
        let mut parameters: Vec<*mut c_void> = vec![
            (&raw mut from).cast(),
            (&raw mut to).cast(),
            (&raw mut images).cast(),
            (&raw mut pixels).cast(),
        ];
        parameters.extend(
            numbers
                .iter_mut()
                .map(|number| ptr::from_mut(number).cast()),
        );
        let mut mixture = work.mixture;
        if let Some(mixture) = &mut mixture {
            parameters.push(ptr::from_mut(mixture).cast());
        }
        let grid = grid(work.images * work.pixels);
        // SAFETY: the parameters are the kernel's: two addresses, two counts, six numbers, and the mixture of those that mix; the
        // caller's contract for what they point to.
        unsafe { self.launch(kernel, grid, stream, &mut parameters) }
    }

    /// # Safety
    ///
    /// As `Driver::label`.
    pub(in crate::driver) unsafe fn label(&self, stream: &Stream, work: Labelling) -> Result<()> {
        let _entered = self.enter()?;
        let name = match work.element_bytes {
            2 => c"pinfeed_labels_16",
            _ => c"pinfeed_labels_32",
        };
        let kernel = self.normalizing(true, name, "making soft labels")?;
        let (mut from, mut to) = (work.from, work.to);
        let (mut rows, mut classes) = (work.rows as u64, work.classes as u64);
        let (mut mixed, mut weights) = (u32::from(work.is_mixed), work.weights);
        let mut parameters: [*mut c_void; 6] = [
            (&raw mut from).cast(),
            (&raw mut to).cast(),
            (&raw mut rows).cast(),
            (&raw mut classes).cast(),
            (&raw mut mixed).cast(),
            (&raw mut weights).cast(),
        ];
        let grid = grid(work.rows * work.classes);
        // SAFETY: the parameters are the kernel's; the caller's contract for what they point to.
        unsafe { self.launch(kernel, grid, stream, &mut parameters) }
    }

    fn normalizing(&self, mixes: bool, name: &CStr, what: &'static str) -> Result<Function> {
        let (loaded, ptx) = (
            &self.0.normalizing[usize::from(mixes)],
            PTX[usize::from(mixes)],
        );
        let module = match loaded.get() {
            Some(module) => *module,
            None => {
                let module = self.load_module(ptx, what)?;
                *loaded.get_or_init(|| module)
            }
        };
        self.function(module, name)
    }
}

/// Blocks, and threads of each.
fn grid(items: usize) -> (u32, u32) {
    let blocks = items.div_ceil(BLOCK_THREADS as usize * ITEMS_PER_THREAD);
    (blocks.clamp(1, MOST_BLOCKS) as u32, BLOCK_THREADS)
}

#[cfg(test)]
mod tests {
    use super::PTX;

    /// Older drivers do not read newer PTX, and older devices do not run what was made for newer ones.
    #[test]
    fn the_kernels_are_made_for_the_oldest_that_are_served() {
        let text = PTX.map(|ptx| ptx.to_str().unwrap());
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
