//! Normalising pictures by a kernel.

use std::ffi::{CStr, c_void};
use std::ptr;

use super::kernels::{Function, ptx};
use super::{Cuda, Stream};
use crate::driver::Normalizing;
use crate::error::Result;
use crate::shape::DType;

/// The kernels: made from normalize.cu by `nvcc -ptx`, for the oldest driver and device served.
const PTX: &CStr = ptx(concat!(include_str!("normalize.ptx"), "\0"));

/// Enough blocks to keep any device's memory busy; each thread goes on with further pixels.
const MOST_BLOCKS: usize = 4_096;
const THREADS: usize = 256;
const PIXELS_PER_THREAD: usize = 4;

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
        let name = match (work.dtype, work.channels_last) {
            (DType::F16, false) => c"pinfeed_normalize_f16_chw",
            (DType::F16, true) => c"pinfeed_normalize_f16_hwc",
            (DType::BF16, false) => c"pinfeed_normalize_bf16_chw",
            (DType::BF16, true) => c"pinfeed_normalize_bf16_hwc",
            (_, false) => c"pinfeed_normalize_f32_chw",
            (_, true) => c"pinfeed_normalize_f32_hwc",
        };
        let kernel = self.normalizing(name)?;
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
        let blocks = (work.images * work.pixels).div_ceil(THREADS * PIXELS_PER_THREAD);
        let blocks = blocks.clamp(1, MOST_BLOCKS) as u32;
        // SAFETY: the parameters are the kernel's: two addresses, two counts and six numbers; the caller's contract for what
        // they point to.
        unsafe { self.launch(kernel, (blocks, THREADS as u32), stream, &mut parameters) }
    }

    fn normalizing(&self, name: &CStr) -> Result<Function> {
        let module = match self.0.normalizing.get() {
            Some(module) => *module,
            None => {
                let module = self.load_module(PTX)?;
                *self.0.normalizing.get_or_init(|| module)
            }
        };
        self.function(module, name)
    }
}

#[cfg(test)]
mod tests {
    use super::PTX;

    /// Older drivers do not read newer PTX, and older devices do not run what was made for newer ones.
    #[test]
    fn the_kernels_are_made_for_the_oldest_that_are_served() {
        let text = PTX.to_str().unwrap();
        assert!(text.contains("\n.version 7.0\n.target sm_70\n"));
        let entries: Vec<_> = text.matches(".visible .entry pinfeed_normalize_").collect();
        assert_eq!(entries.len(), 6);
    }
}
