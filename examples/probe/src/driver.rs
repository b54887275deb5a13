//! Bare calls of the CUDA driver, without the library: what the link and the card give any program. (The crate `cudarc` finds the driver
//! at run time; no toolkit is needed.)

#![allow(unsafe_code)] // it calls the driver

use std::ffi::c_void;
use std::ptr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use cudarc::driver::{CudaContext, CudaStream, result, sys};

use crate::Result;
use crate::copies::Link;
use crate::report::{Memory, Way};

/// A device's context, with a stream for copies each way.
pub struct Bare {
    context: Arc<CudaContext>,
    to_device: Arc<CudaStream>,
    back: Arc<CudaStream>,
}

impl Bare {
    pub fn new(ordinal: usize) -> Result<Bare> {
        let context = CudaContext::new(ordinal)?;
        Ok(Bare {
            to_device: context.new_stream()?,
            back: context.new_stream()?,
            context,
        })
    }

    /// Memory for copies of up to so many bytes: page-locked and on the device, for each way.
    pub fn buffers(&self, bytes: usize) -> Result<Buffers<'_>> {
        self.context.bind_to_thread()?;
        let mut buffers = Buffers {
            bare: self,
            pinned: Vec::new(),
            there: Vec::new(),
            pageable: vec![1; bytes],
            bytes,
        };
        for _ in [Way::ToDevice, Way::Back] {
            // SAFETY: plain allocations, which `Buffers` frees. The pages are written before anything reads them.
            unsafe {
                let base = result::malloc_host(bytes, 0)?;
                buffers.pinned.push(base);
                ptr::write_bytes(base.cast::<u8>(), 1, bytes);
                buffers.there.push(result::malloc_sync(bytes)?);
            }
        }
        Ok(buffers)
    }

    /// How long `cuMemHostAlloc` takes for so many bytes, and `cuMemFreeHost`.
    pub fn host_alloc(&self, bytes: usize) -> Result<(Duration, Duration)> {
        self.context.bind_to_thread()?;
        let begun = Instant::now();
        // SAFETY: a plain allocation, freed below.
        let base = unsafe { result::malloc_host(bytes, 0) }?;
        let locked = begun.elapsed();
        let begun = Instant::now();
        // SAFETY: it was just allocated, and no copy uses it.
        unsafe { result::free_host(base) }?;
        Ok((locked, begun.elapsed()))
    }

    /// How long `cuMemHostRegister` takes for this memory, and `cuMemHostUnregister`.
    pub fn register(&self, memory: &mut [u8]) -> Result<(Duration, Duration)> {
        self.context.bind_to_thread()?;
        let base: *mut c_void = memory.as_mut_ptr().cast();
        let begun = Instant::now();
        // SAFETY: the memory is borrowed until it is unregistered below.
        unsafe { sys::cuMemHostRegister_v2(base, memory.len(), 1) }.result()?;
        let locked = begun.elapsed();
        let begun = Instant::now();
        // SAFETY: it was just registered, and no copy uses it.
        unsafe { sys::cuMemHostUnregister(base) }.result()?;
        Ok((locked, begun.elapsed()))
    }

    /// The bandwidth of the card's memory in GB/s, from its clock and the width of its bus: two bits a clock and line.
    pub fn nominal_gb_s(&self) -> Option<f64> {
        use sys::CUdevice_attribute::{
            CU_DEVICE_ATTRIBUTE_GLOBAL_MEMORY_BUS_WIDTH, CU_DEVICE_ATTRIBUTE_MEMORY_CLOCK_RATE,
        };
        let clock_khz = self
            .context
            .attribute(CU_DEVICE_ATTRIBUTE_MEMORY_CLOCK_RATE);
        let bits = self
            .context
            .attribute(CU_DEVICE_ATTRIBUTE_GLOBAL_MEMORY_BUS_WIDTH);
        let (clock_khz, bits) = clock_khz.ok().zip(bits.ok())?;
        let is_known = clock_khz > 0 && bits > 0; // some drivers answer 0
        is_known.then(|| 2.0 * f64::from(clock_khz) * 1e3 * f64::from(bits) / 8.0 / 1e9)
    }
}

/// Memory for copies. It is freed when all copies are done.
pub struct Buffers<'a> {
    bare: &'a Bare,
    /// One for each way.
    pinned: Vec<*mut c_void>,
    there: Vec<sys::CUdeviceptr>,
    pageable: Vec<u8>,
    bytes: usize,
}

impl Buffers<'_> {
    fn enqueue(&mut self, memory: Memory, way: Way, bytes: usize) -> Result<()> {
        if way == Way::Both {
            self.enqueue(memory, Way::ToDevice, bytes)?;
            return self.enqueue(memory, Way::Back, bytes);
        }
        let index = usize::from(way == Way::Back);
        let host = match memory {
            Memory::Pinned => self.pinned[index],
            Memory::Pageable | Memory::Staged => self.pageable.as_mut_ptr().cast(),
        };
        let there = self.there[index];
        // SAFETY: `seconds` refuses more bytes than the memory on either side has, and waits before it returns, also after an error;
        // until then, `self` is borrowed.
        let enqueued = unsafe {
            match way {
                Way::Back => {
                    sys::cuMemcpyDtoHAsync_v2(host, there, bytes, self.bare.back.cu_stream())
                }
                _ => sys::cuMemcpyHtoDAsync_v2(there, host, bytes, self.bare.to_device.cu_stream()),
            }
        };
        Ok(enqueued.result()?)
    }

    /// Waits for both streams.
    fn wait(&self) -> Result<()> {
        let (to, back) = (
            self.bare.to_device.synchronize(),
            self.bare.back.synchronize(),
        );
        to?;
        Ok(back?)
    }

    /// How many seconds so many copies of the whole memory within the device take.
    pub fn within_seconds(&mut self, times: usize) -> Result<f64> {
        self.bare.context.bind_to_thread()?;
        let (from, to, stream) = (self.there[0], self.there[1], &self.bare.to_device);
        let begun = Instant::now();
        let copied = (0..times).try_for_each(|_| {
            // SAFETY: both are as long, and live until the stream was waited for below.
            unsafe { sys::cuMemcpyDtoDAsync_v2(to, from, self.bytes, stream.cu_stream()) }.result()
        });
        stream.synchronize()?;
        copied?;
        Ok(begun.elapsed().as_secs_f64())
    }
}

impl Link for Buffers<'_> {
    fn seconds(&mut self, memory: Memory, way: Way, bytes: usize, times: usize) -> Result<f64> {
        if bytes > self.bytes {
            return Err(format!("a copy of {bytes} bytes from memory of {}", self.bytes).into());
        }
        self.bare.context.bind_to_thread()?;
        let begun = Instant::now();
        let enqueued = (0..times).try_for_each(|_| self.enqueue(memory, way, bytes));
        let waited = self.wait();
        enqueued.and(waited)?;
        Ok(begun.elapsed().as_secs_f64())
    }
}

impl Drop for Buffers<'_> {
    fn drop(&mut self) {
        // Where a copy may still be under way, the memory stays.
        if self.bare.context.bind_to_thread().is_err() || self.wait().is_err() {
            std::mem::take(&mut self.pageable).leak();
            return;
        }
        for base in self.pinned.drain(..) {
            // SAFETY: it came from `malloc_host`, and all copies are done.
            let _ = unsafe { result::free_host(base) };
        }
        for address in self.there.drain(..) {
            // SAFETY: it came from `malloc_sync`, and all copies are done.
            let _ = unsafe { result::free_sync(address) };
        }
    }
}
