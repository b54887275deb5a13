//! Handing a tensor over into memory that another allocator made: a copy, or a kernel, on the program's own stream.
//!
//! It is one more use of the tensor, as a loan on that stream is: it waits for the last write, and the tensor's memory is free behind its
//! end.

use super::DeviceTensor;
use crate::device::Stream;
use crate::driver::{Driver, Kernel, RawStream};
use crate::error::{Error, Result};
use crate::tensor::Element;

/// What the library's kernels rely on: they write several elements at once.
const KERNEL_ALIGNMENT: u64 = 16;

impl<T: Element> DeviceTensor<T> {
    /// Enqueues a copy of the elements to an address, on the program's stream.
    ///
    /// # Safety
    ///
    /// From `to` on, there must be as many bytes as the tensor has, of memory of this device that does not overlap the tensor. In the
    /// stream's order they must be allocated and in no other use, until the copy is done.
    pub(crate) unsafe fn copy_into(&self, to: u64, stream: &Stream) -> Result<()> {
        let copy = |driver: &Driver, stream: &RawStream| {
            // SAFETY: the use keeps the source, which is written by now in the stream's order and not again before the copy is done
            // (*memory outlives its events*); the target is the caller's contract.
            unsafe { driver.copy_on_device(stream, self.address(), to, self.size_bytes()) }
        };
        self.hand_over("copy_to", to, 1, stream, copy)
    }

    /// Enqueues a kernel on the program's stream, which is given the addresses of this tensor and of the memory that it makes another of.
    ///
    /// # Safety
    ///
    /// The kernel must only read at the first address, and no more than this tensor's bytes. What it writes at the second must be memory of
    /// this device that does not overlap the tensor. In the stream's order that must be allocated and in no other use, until the kernel is
    /// done. The kernel must touch nothing else.
    pub(crate) unsafe fn launch_into<K: Kernel>(
        &self,
        call: &'static str,
        to: u64,
        stream: &Stream,
        kernel: impl FnOnce(u64, u64) -> K,
    ) -> Result<()> {
        let launch = |driver: &Driver, stream: &RawStream| {
            // SAFETY: as for the copy above; the kernel stays within both memories, by the caller's contract.
            unsafe { driver.launch(stream, kernel(self.address(), to)) }
        };
        self.hand_over(call, to, KERNEL_ALIGNMENT, stream, launch)
    }

    /// Enqueues work that reads this tensor and writes to an address of this alignment, as a use of the tensor on the stream.
    fn hand_over(
        &self,
        call: &'static str,
        to: u64,
        alignment: u64,
        stream: &Stream,
        enqueue: impl FnOnce(&Driver, &RawStream) -> Result<()>,
    ) -> Result<()> {
        stream.check(self.inner(), "the stream")?;
        if self.is_empty() {
            return Ok(());
        }
        if to == 0 {
            return Err(Error::option(
                call,
                "was given the address 0, where no memory is",
            ));
        }
        if !to.is_multiple_of(alignment) {
            let reason = format!(
                "writes to addresses that are multiples of {alignment}, and {to:#x} is none: hand over memory as its allocator gave it, or copy \
                 the bytes (`copy_to`) and convert them there"
            );
            return Err(Error::option(call, reason));
        }
        let driver = &self.inner().driver;
        let _entered = driver.enter()?;
        if driver.is_capturing(stream.raw())? {
            return Err(Error::option(
                call,
                "was given a stream that is being captured: each launch of the graph would read the tensor's memory, which other batches have \
                 by then. Hand over before the capture begins, into memory that the graph reads",
            ));
        }
        self.uses.block().is_processed_elsewhere();
        // (Where its end cannot be recorded, the use stays open, and the memory is kept.)
        let _reading = self.on(stream)?;
        enqueue(driver, stream.raw())
    }
}
