//! What the CPU device has for nvJPEG's sake.

use std::path::Path;

use super::Cpu;

impl Cpu {
    /// The library that stands in for nvJPEG, if there is one.
    pub(crate) fn nvjpeg(&self) -> Option<&Path> {
        self.0.hostility.as_ref()?.options.nvjpeg.as_deref()
    }

    /// How many streams there are.
    #[cfg(test)]
    pub(crate) fn live_streams(&self) -> usize {
        let queues = self.0.queues.lock();
        queues.iter().filter(|queue| queue.is_alive()).count()
    }
}
