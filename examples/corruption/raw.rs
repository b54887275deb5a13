//! The mistake on purpose, by cudarc's raw calls. Each call's answer is checked, and no memory is freed under a copy.

#![allow(unsafe_code)] // it calls the driver, and writes memory that a copy reads

use std::ffi::c_void;
use std::sync::Arc;
use std::time::Duration;

use cudarc::driver::{
    CudaContext, CudaFunction, CudaStream, LaunchConfig, PushKernelArg, result, sys,
};
use cudarc::nvrtc::Ptx;
use pinfeed::{BoxError, Device, DeviceTensor, interop};

/// What a batch is full of, and what the buffer holds before it or behind it.
const RIGHT: u64 = 0x0101_0101_0101_0101;
const WRONG: u64 = 0x0202_0202_0202_0202;

/// A page-locked buffer of the host, one of the device, and a stream.
pub(crate) struct Raw {
    stream: Arc<CudaStream>,
    slow: CudaFunction,
    bytes: usize,
    host: *mut c_void,
    there: sys::CUdeviceptr,
    scratch: sys::CUdeviceptr,
}

impl Raw {
    pub(crate) fn new(ordinal: usize, bytes: usize) -> Result<Raw, BoxError> {
        let context = CudaContext::new(ordinal)?;
        context.bind_to_thread()?;
        let kernels = Ptx::from_src(include_str!("../../tests/conformance/kernels.ptx"));
        let slow = context.load_module(kernels)?.load_function("fill_slowly")?;
        let mut raw = Raw {
            stream: context.new_stream()?,
            slow,
            bytes: bytes / 8 * 8,
            host: std::ptr::null_mut(),
            there: 0,
            scratch: 0,
        };
        // SAFETY: plain allocations, which `drop` frees.
        unsafe {
            raw.host = result::malloc_host(raw.bytes, 0)?;
            raw.there = result::malloc_sync(raw.bytes)?;
            raw.scratch = result::malloc_sync(4)?;
        }
        Ok(raw)
    }

    /// A copy to the device, behind a kernel that takes so long. The host fills the buffer for the next batch at once, or waits first. How many
    /// bytes are wrong on the device?
    pub(crate) fn overwritten(&self, step: Duration, waits: bool) -> Result<usize, BoxError> {
        self.fill(RIGHT);
        self.launch(self.scratch, 1, 0, step, &self.stream)?;
        // SAFETY: both sides are that long, and live until the stream was waited for.
        unsafe {
            sys::cuMemcpyHtoDAsync_v2(self.there, self.host, self.bytes, self.stream.cu_stream())
        }
        .result()?;
        if waits {
            self.stream.synchronize()?;
        }
        self.fill(WRONG); // without the wait, this is the mistake
        self.stream.synchronize()?;
        let mut seen = vec![0u8; self.bytes];
        // SAFETY: both sides are that long, and nothing else is under way.
        unsafe { result::memcpy_dtoh_sync(&mut seen, self.there) }?;
        Ok(seen.iter().filter(|byte| **byte != RIGHT as u8).count())
    }

    /// A copy from the device, behind a kernel that takes so long. The host reads at once, or waits first. How many bytes are wrong?
    pub(crate) fn read_early(&self, step: Duration, waits: bool) -> Result<usize, BoxError> {
        let right = vec![RIGHT as u8; self.bytes];
        // SAFETY: both sides are that long, and nothing else is under way.
        unsafe { result::memcpy_htod_sync(self.there, &right) }?;
        self.stream.context().synchronize()?; // (that call may return ahead of the last bytes, and this stream does not wait for it)
        self.fill(WRONG); // what was there before
        self.launch(self.scratch, 1, 0, step, &self.stream)?;
        // SAFETY: both sides are that long, and live until the stream was waited for.
        unsafe {
            sys::cuMemcpyDtoHAsync_v2(self.host, self.there, self.bytes, self.stream.cu_stream())
        }
        .result()?;
        if waits {
            self.stream.synchronize()?;
        }
        let wrong = self.wrong(); // without the wait, this is the mistake
        self.stream.synchronize()?;
        Ok(wrong)
    }

    /// Writes a tensor of the library's by a kernel that takes so long, on the library's terms: by a loan, on a stream that it knows.
    pub(crate) fn write_slowly(
        &self,
        device: &Device,
        tensor: &mut DeviceTensor<u32>,
        value: u32,
        duration: Duration,
    ) -> Result<u32, BoxError> {
        let stream = interop::cudarc::stream(device, &self.stream)?;
        let loan = tensor.on_mut(&stream)?;
        self.launch(
            loan.address(),
            loan.len() as u64,
            value,
            duration,
            &self.stream,
        )?;
        Ok(value)
    }

    /// A kernel that waits so long, and then writes `value` to so many words.
    fn launch(
        &self,
        at: u64,
        words: u64,
        value: u32,
        wait: Duration,
        stream: &Arc<CudaStream>,
    ) -> Result<(), BoxError> {
        let nanoseconds = wait.as_nanos() as u64;
        let mut launch = stream.launch_builder(&self.slow);
        launch.arg(&at).arg(&words).arg(&value).arg(&nanoseconds);
        let one_block = LaunchConfig {
            grid_dim: (1, 1, 1),
            block_dim: (1024, 1, 1),
            shared_mem_bytes: 0,
        };
        // SAFETY: the kernel takes these four, and there are so many words at that address.
        unsafe { launch.launch(one_block) }?;
        Ok(())
    }

    /// Fills the host's buffer, by writes that the compiler neither moves nor leaves out: a copy may be under way.
    fn fill(&self, pattern: u64) {
        let words = self.host.cast::<u64>();
        // SAFETY: the buffer has so many words.
        (0..self.bytes / 8).for_each(|word| unsafe { words.add(word).write_volatile(pattern) });
    }

    /// Counts the bytes of the host's buffer that are wrong, by reads that the compiler does not move.
    fn wrong(&self) -> usize {
        let words = self.host.cast::<u64>();
        let wrong = |word: usize| {
            // SAFETY: the buffer has so many words.
            let found = unsafe { words.add(word).read_volatile() };
            let bytes = found.to_ne_bytes().into_iter();
            bytes.filter(|byte| *byte != RIGHT as u8).count()
        };
        (0..self.bytes / 8).map(wrong).sum()
    }
}

impl Drop for Raw {
    fn drop(&mut self) {
        let waited = self
            .stream
            .context()
            .bind_to_thread()
            .and_then(|()| self.stream.synchronize());
        if let Err(error) = waited {
            eprintln!("note: buffers stay allocated: {error}");
            return;
        }
        // SAFETY: they came from these allocators (null and 0 are left out), and the stream was waited for.
        let freed = unsafe {
            let host = if self.host.is_null() {
                Ok(())
            } else {
                result::free_host(self.host)
            };
            let there = [self.there, self.scratch]
                .into_iter()
                .filter(|address| *address != 0);
            there
                .map(|address| result::free_sync(address))
                .fold(host, Result::and)
        };
        if let Err(error) = freed {
            eprintln!("note: a buffer stays allocated: {error}");
        }
    }
}
