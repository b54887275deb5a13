//! The two backends, as one closed enum: what a device does in terms of addresses, streams and events.
//!
//! This folder and `interop` are the only ones that name cudarc. Everything here is raw: [`device`](crate::device), one
//! layer up, decides what owns which bytes and when they may be touched. A call returns when its work is *enqueued*,
//! unless its comment says that it waits.
//!
//! Events are one-shot: [`Driver::record`] makes one, which is complete once the stream has reached it, and stays
//! complete.

#[cfg_attr(
    not(feature = "testing"),
    expect(unreachable_pub, reason = "`Hostile` is public with the feature")
)]
pub(crate) mod cpu;
#[cfg(feature = "cuda")]
pub(crate) mod cuda;
mod kernels;
#[cfg(all(feature = "nvjpeg", target_os = "linux", not(miri)))]
pub(crate) mod nvjpeg;

pub(crate) use self::kernels::{Kernel, Labelling, Mixture, Normalizing, Weights, rows};
use crate::error::{DeviceFault, Error, Result};
use crate::picture::DecoderLimits;
use crate::tensor::Backend;

/// A backend, open on one device. Cloning it clones a reference.
#[derive(Clone)]
pub(crate) enum Driver {
    Cpu(cpu::Cpu),
    #[cfg(feature = "cuda")]
    Cuda(cuda::Cuda),
}

/// A stream of one backend. It is destroyed on drop if the backend created it.
pub(crate) enum RawStream {
    Cpu(cpu::CpuStream),
    #[cfg(feature = "cuda")]
    Cuda(cuda::CuStream),
}

/// A point in a stream's work. Cloning it clones a reference.
#[derive(Clone)]
pub(crate) enum RawEvent {
    Cpu(cpu::CpuEvent),
    #[cfg(feature = "cuda")]
    Cuda(cuda::CuEvent),
}

/// While it lives, calls of one device need not make it current.
pub(crate) enum Entered {
    Cpu,
    #[cfg(feature = "cuda")]
    Cuda(#[expect(dead_code, reason = "it is held")] cuda::Entered),
}

/// What a device reports about itself.
///
/// # Examples
///
/// ```
/// let info = pinfeed::Device::cpu().info()?;
/// println!("{}, {} bytes of memory", info.name, info.total_memory_bytes);
/// assert_eq!(info.compute_capability, None); // on an H200: Some((9, 0))
/// # Ok::<(), pinfeed::Error>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct DeviceInfo {
    /// The device's name.
    pub name: String,
    /// The compute capability, as (major, minor); `None` on the CPU device.
    pub compute_capability: Option<(i32, i32)>,
    /// The driver's CUDA version, counted as 1000 x major + 10 x minor; `None` on the CPU device.
    pub driver_version: Option<i32>,
    /// The memory of the device in bytes (on the CPU device: what this process may use).
    pub total_memory_bytes: usize,
    /// The number of engines that copy while kernels run.
    pub copy_engines: i32,
    /// The device's address on the PCI bus, as the driver writes it (`0000:3B:00.0`); `None` on the CPU device.
    pub pci_address: Option<String>,
}

/// Calls the method on the backend. For calls without streams and events.
macro_rules! dispatch {
    ($self:ident, $driver:ident => $call:expr) => {
        match $self {
            Driver::Cpu($driver) => $call,
            #[cfg(feature = "cuda")]
            Driver::Cuda($driver) => $call,
        }
    };
}

impl Driver {
    /// The device's name in messages: `cpu`, `cuda:0`.
    pub(crate) fn name(&self) -> String {
        dispatch!(self, driver => driver.name())
    }

    pub(crate) fn backend(&self) -> Backend {
        match self {
            Driver::Cpu(_) => Backend::Cpu,
            #[cfg(feature = "cuda")]
            Driver::Cuda(_) => Backend::Cuda,
        }
    }

    pub(crate) fn info(&self) -> Result<DeviceInfo> {
        dispatch!(self, driver => driver.info())
    }

    /// Whether both are open on the same device (and, on CUDA, the same context).
    pub(crate) fn same_device(&self, other: &Driver) -> bool {
        match (self, other) {
            (Driver::Cpu(one), Driver::Cpu(other)) => one.same_device(other),
            #[cfg(feature = "cuda")]
            (Driver::Cuda(one), Driver::Cuda(other)) => one.same_device(other),
            #[cfg(feature = "cuda")]
            _ => false,
        }
    }

    /// Makes several calls cheaper that follow each other on this thread: the device is made current once. The guard does not keep the
    /// device open: the caller does. No code of the program's may run while it lives, but for what logs.
    pub(crate) fn enter(&self) -> Result<Entered> {
        match self {
            Driver::Cpu(_) => Ok(Entered::Cpu),
            #[cfg(feature = "cuda")]
            Driver::Cuda(driver) => driver.enter().map(Entered::Cuda),
        }
    }

    pub(crate) fn create_stream(&self) -> Result<RawStream> {
        match self {
            Driver::Cpu(driver) => driver.create_stream().map(RawStream::Cpu),
            #[cfg(feature = "cuda")]
            Driver::Cuda(driver) => driver.create_stream().map(RawStream::Cuda),
        }
    }

    /// Records an event after all work now on the stream. Two `timed` events give the time between them.
    pub(crate) fn record(&self, stream: &RawStream, timed: bool) -> Result<RawEvent> {
        match (self, stream) {
            (Driver::Cpu(driver), RawStream::Cpu(stream)) => {
                driver.record(stream).map(RawEvent::Cpu)
            }
            #[cfg(feature = "cuda")]
            (Driver::Cuda(driver), RawStream::Cuda(stream)) => {
                driver.record(stream, timed).map(RawEvent::Cuda)
            }
            #[cfg(feature = "cuda")]
            _ => Err(self.foreign("stream")),
        }
        .inspect(|_| _ = timed)
    }

    /// Makes the stream's later work wait for the event.
    pub(crate) fn stream_wait(&self, stream: &RawStream, event: &RawEvent) -> Result<()> {
        match (self, stream, event) {
            (Driver::Cpu(driver), RawStream::Cpu(stream), RawEvent::Cpu(event)) => {
                driver.stream_wait(stream, event)
            }
            #[cfg(feature = "cuda")]
            (Driver::Cuda(driver), RawStream::Cuda(stream), RawEvent::Cuda(event)) => {
                driver.stream_wait(stream, event)
            }
            #[cfg(feature = "cuda")]
            _ => Err(self.foreign("stream")),
        }
    }

    /// Blocks until all work now on the stream is done.
    pub(crate) fn synchronize(&self, stream: &RawStream) -> Result<()> {
        match (self, stream) {
            (Driver::Cpu(driver), RawStream::Cpu(stream)) => driver.synchronize(stream),
            #[cfg(feature = "cuda")]
            (Driver::Cuda(driver), RawStream::Cuda(stream)) => driver.synchronize(stream),
            #[cfg(feature = "cuda")]
            _ => Err(self.foreign("stream")),
        }
    }

    /// Blocks until all work of the context is done, on all streams.
    #[cfg(feature = "cuda")]
    pub(crate) fn synchronize_context(&self) -> Result<()> {
        match self {
            Driver::Cpu(_) => Ok(()),
            Driver::Cuda(driver) => driver.synchronize_context(),
        }
    }

    /// Enqueues a host function. On CUDA it must not call CUDA.
    pub(crate) fn host_fn(&self, stream: &RawStream, f: Box<dyn FnOnce() + Send>) -> Result<()> {
        match (self, stream) {
            (Driver::Cpu(driver), RawStream::Cpu(stream)) => driver.host_fn(stream, f),
            #[cfg(feature = "cuda")]
            (Driver::Cuda(driver), RawStream::Cuda(stream)) => driver.host_fn(stream, f),
            #[cfg(feature = "cuda")]
            _ => Err(self.foreign("stream")),
        }
    }

    /// Allocates device memory, aligned to 256 bytes. It may wait for the device.
    pub(crate) fn alloc_device(&self, bytes: usize) -> Result<u64> {
        dispatch!(self, driver => driver.alloc_device(bytes))
    }

    /// Frees device memory. It may wait for the device.
    ///
    /// # Safety
    ///
    /// `address` must come from `alloc_device` with the same number of bytes, and nothing may use it any more.
    pub(crate) unsafe fn free_device(&self, address: u64, bytes: usize) -> Result<()> {
        // SAFETY: the caller's contract is the backend's.
        dispatch!(self, driver => unsafe { driver.free_device(address, bytes) })
    }

    /// Page-locks memory, for copies from and to any device; with `read_only`, only from it.
    ///
    /// # Safety
    ///
    /// The bytes must be allocated, and stay so until `unlock_pages`.
    pub(crate) unsafe fn lock_pages(
        &self,
        pointer: *mut u8,
        bytes: usize,
        read_only: bool,
    ) -> Result<()> {
        // SAFETY: the caller's contract is the backend's.
        dispatch!(self, driver => unsafe { driver.lock_pages(pointer, bytes, read_only) })
    }

    /// Undoes `lock_pages`.
    ///
    /// # Safety
    ///
    /// The range must have been locked by `lock_pages`, and no copy from or to it may be in flight.
    pub(crate) unsafe fn unlock_pages(&self, pointer: *mut u8, bytes: usize) -> Result<()> {
        // SAFETY: the caller's contract is the backend's.
        dispatch!(self, driver => unsafe { driver.unlock_pages(pointer, bytes) })
    }

    /// Has the driver allocate page-locked memory: zeroed, page-aligned.
    pub(crate) fn alloc_host(&self, bytes: usize) -> Result<*mut u8> {
        dispatch!(self, driver => driver.alloc_host(bytes))
    }

    /// Frees memory of `alloc_host`.
    ///
    /// # Safety
    ///
    /// `pointer` must come from `alloc_host` with the same number of bytes, and nothing may use it any more.
    pub(crate) unsafe fn free_host(&self, pointer: *mut u8, bytes: usize) -> Result<()> {
        // SAFETY: the caller's contract is the backend's.
        dispatch!(self, driver => unsafe { driver.free_host(pointer, bytes) })
    }

    /// Enqueues one copy on the stream.
    ///
    /// # Safety
    ///
    /// Source and destination must be valid for the bytes until the copy is done. Until then nothing may write the
    /// source or touch the destination, except work that the stream orders.
    pub(crate) unsafe fn copy(&self, stream: &RawStream, copy: RawCopy) -> Result<()> {
        match (self, stream) {
            // SAFETY: the caller's contract is the backend's.
            (Driver::Cpu(driver), RawStream::Cpu(stream)) => unsafe { driver.copy(stream, copy) },
            #[cfg(feature = "cuda")]
            // SAFETY: likewise.
            (Driver::Cuda(driver), RawStream::Cuda(stream)) => unsafe { driver.copy(stream, copy) },
            #[cfg(feature = "cuda")]
            _ => Err(self.foreign("stream")),
        }
    }

    /// Enqueues a copy from device memory to device memory, which another allocator may have made.
    ///
    /// # Safety
    ///
    /// As [`copy`](Driver::copy); source and destination must not overlap.
    pub(crate) unsafe fn copy_on_device(
        &self,
        stream: &RawStream,
        from: u64,
        to: u64,
        bytes: usize,
    ) -> Result<()> {
        match (self, stream) {
            // SAFETY: the caller's contract is the backend's.
            (Driver::Cpu(driver), RawStream::Cpu(stream)) => unsafe {
                driver.copy_on_device(stream, from, to, bytes)
            },
            #[cfg(feature = "cuda")]
            // SAFETY: likewise.
            (Driver::Cuda(driver), RawStream::Cuda(stream)) => unsafe {
                driver.copy_on_device(stream, from, to, bytes)
            },
            #[cfg(feature = "cuda")]
            _ => Err(self.foreign("stream")),
        }
    }

    /// Whether the stream's work goes into a graph now, instead of being done.
    pub(crate) fn is_capturing(&self, stream: &RawStream) -> Result<bool> {
        match (self, stream) {
            (Driver::Cpu(_), RawStream::Cpu(_)) => Ok(false),
            #[cfg(feature = "cuda")]
            (Driver::Cuda(driver), RawStream::Cuda(stream)) => driver.is_capturing(stream),
            #[cfg(feature = "cuda")]
            _ => Err(self.foreign("stream")),
        }
    }

    /// Enqueues the copies of scattered rows, which become contiguous on the device.
    ///
    /// # Safety
    ///
    /// As [`copy`](Driver::copy), for each row and for the table of the rows, which is read until the copies are done.
    /// The rows must lie in memory that `lock_pages` of this backend has locked.
    pub(crate) unsafe fn gather(&self, stream: &RawStream, gather: Gather<'_>) -> Result<()> {
        match (self, stream) {
            // SAFETY: the caller's contract is the backend's.
            (Driver::Cpu(driver), RawStream::Cpu(stream)) => unsafe {
                driver.gather(stream, gather)
            },
            #[cfg(feature = "cuda")]
            // SAFETY: likewise.
            (Driver::Cuda(driver), RawStream::Cuda(stream)) => unsafe {
                driver.gather(stream, gather)
            },
            #[cfg(feature = "cuda")]
            _ => Err(self.foreign("stream")),
        }
    }

    /// Makes the device gather rows in this way. Returns whether the call came in time.
    #[cfg(feature = "testing")]
    pub(crate) fn gather_by(&self, way: Way) -> bool {
        match self {
            Driver::Cpu(_) => {
                let _ = way; // the CPU device has only one way
                false
            }
            #[cfg(feature = "cuda")]
            Driver::Cuda(driver) => driver.gather_by(way),
        }
    }

    /// Tells the backend that the content of this memory is no longer needed. A hostile backend overwrites it, so that
    /// a reader that comes too late or too early is caught.
    ///
    /// # Safety
    ///
    /// The bytes (host memory, or device memory of the CPU backend) must be valid, and nothing else may touch them.
    pub(crate) unsafe fn poison(&self, address: u64, bytes: usize) {
        match self {
            // SAFETY: the caller's contract is the backend's.
            Driver::Cpu(driver) => unsafe { driver.poison(address, bytes) },
            #[cfg(feature = "cuda")]
            Driver::Cuda(_) => {}
        }
    }

    /// Whether kernels read page-locked memory of the host by the host's addresses.
    pub(crate) fn reads_host_memory(&self) -> bool {
        match self {
            Driver::Cpu(_) => true,
            #[cfg(feature = "cuda")]
            Driver::Cuda(driver) => driver.reads_host_memory(),
        }
    }

    /// What pictures the device decodes itself, if it does.
    pub(crate) fn decodes(&self) -> Option<DecoderLimits> {
        let has_decoder = match self {
            Driver::Cpu(_) => true, // what stands in for one
            #[cfg(feature = "cuda")]
            Driver::Cuda(_) => cfg!(target_os = "linux"), // there is no other nvJPEG
        };
        (cfg!(feature = "nvjpeg") && has_decoder).then_some(DecoderLimits {
            least_side: 1,
            most_side: crate::tuning::MOST_DECODED_SIDE,
            picture_bytes: crate::tuning::DECODER_PICTURE_BYTES,
        })
    }

    /// Whether device memory is host memory, which a program may read in place.
    pub(crate) fn is_host(&self) -> bool {
        matches!(self, Driver::Cpu(_))
    }

    /// The size of the pieces in which a large copy between pageable memory and the device is staged; `None` if the
    /// backend's own copy of pageable memory is as good.
    pub(crate) fn staging_chunk_bytes(&self) -> Option<usize> {
        match self {
            Driver::Cpu(driver) => driver.staging_chunk_bytes(),
            #[cfg(feature = "cuda")]
            Driver::Cuda(_) => Some(crate::tuning::STAGED_PIECE_BYTES),
        }
    }

    /// The total size of slabs that stays in the last-level cache until the device has read them, and the smallest part
    /// that a batch should be cut into for that; `None` if the backend gains nothing by it.
    pub(crate) fn resident_bytes(&self) -> Option<(usize, usize)> {
        match self {
            Driver::Cpu(driver) => driver.resident_bytes(),
            #[cfg(feature = "cuda")]
            Driver::Cuda(_) => Some((
                (crate::system::cache_bytes() as f64 * crate::tuning::RESIDENT_CACHE_SHARE)
                    as usize,
                crate::tuning::LEAST_PART_BYTES,
            )),
        }
    }

    #[cfg(feature = "cuda")]
    fn foreign(&self, what: &'static str) -> Error {
        Error::WrongDevice {
            what,
            found: "another backend".to_owned(),
            expected: self.name(),
        }
    }
}

/// One copy, by addresses. On CUDA the call blocks if the host memory is not page-locked.
#[derive(Debug, Clone, Copy)]
pub(crate) enum RawCopy {
    ToDevice {
        from: *const u8,
        to: u64,
        bytes: usize,
    },
    ToHost {
        from: u64,
        to: *mut u8,
        bytes: usize,
    },
}

/// Rows of one length, by their addresses, and where they go on the device.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Gather<'a> {
    pub(crate) rows: &'a [*const u8],
    pub(crate) row_bytes: usize,
    pub(crate) to: u64,
    /// Whether the table of the rows is itself page-locked.
    #[cfg_attr(not(feature = "cuda"), allow(dead_code))]
    pub(crate) is_table_locked: bool,
}

/// How a CUDA device gathers scattered rows. It chooses by itself, unless told
/// ([`Device::gather_by`](crate::Device::gather_by)).
#[cfg_attr(
    not(feature = "testing"),
    expect(unreachable_pub, reason = "it is public with the feature")
)]
#[cfg_attr(not(feature = "cuda"), allow(dead_code))]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Way {
    /// One call for all rows, which the copy engine executes; drivers of 12.8 and newer have it.
    Batch,
    /// A kernel that reads the rows over the link.
    Kernel,
    /// One copy for each row.
    Rows,
}

impl RawCopy {
    pub(crate) fn bytes(&self) -> usize {
        match *self {
            RawCopy::ToDevice { bytes, .. } | RawCopy::ToHost { bytes, .. } => bytes,
        }
    }
}

impl RawEvent {
    /// As [`Driver::enter`], for calls on events. `None` if that fails: each call will say so itself.
    pub(crate) fn enter(&self) -> Option<Entered> {
        match self {
            RawEvent::Cpu(_) => None,
            #[cfg(feature = "cuda")]
            RawEvent::Cuda(event) => event.enter().map(Entered::Cuda),
        }
    }

    /// Whether the stream has reached the event. Never blocks.
    pub(crate) fn is_complete(&self) -> Result<bool> {
        match self {
            RawEvent::Cpu(event) => event.is_complete(),
            #[cfg(feature = "cuda")]
            RawEvent::Cuda(event) => event.is_complete(),
        }
    }

    /// Whether the stream is known to have reached the event, without asking the device.
    pub(crate) fn has_fired(&self) -> bool {
        match self {
            RawEvent::Cpu(_) => false,
            #[cfg(feature = "cuda")]
            RawEvent::Cuda(event) => event.has_fired(),
        }
    }

    /// Blocks until the stream has reached the event. The caller wants to continue at once, so it may spin.
    pub(crate) fn synchronize(&self) -> Result<()> {
        match self {
            RawEvent::Cpu(event) => event.synchronize(),
            #[cfg(feature = "cuda")]
            RawEvent::Cuda(event) => event.synchronize(),
        }
    }

    /// Blocks until the stream has reached the event, without using the processor.
    pub(crate) fn sleep(&self) -> Result<()> {
        match self {
            RawEvent::Cpu(event) => event.synchronize(),
            #[cfg(feature = "cuda")]
            RawEvent::Cuda(event) => event.sleep(),
        }
    }

    /// Whether it was recorded on the other's stream, and later, so that it does not fire before the other has. Where two threads recorded
    /// at once, the answer may be wrong.
    pub(crate) fn is_behind(&self, other: &RawEvent) -> bool {
        match (self, other) {
            (RawEvent::Cpu(one), RawEvent::Cpu(other)) => one.is_behind(other),
            #[cfg(feature = "cuda")]
            (RawEvent::Cuda(one), RawEvent::Cuda(other)) => one.is_behind(other),
            #[cfg(feature = "cuda")]
            _ => false,
        }
    }

    /// Whether both are the same event.
    pub(crate) fn same(&self, other: &RawEvent) -> bool {
        match (self, other) {
            (RawEvent::Cpu(one), RawEvent::Cpu(other)) => one.same(other),
            #[cfg(feature = "cuda")]
            (RawEvent::Cuda(one), RawEvent::Cuda(other)) => one.same(other),
            #[cfg(feature = "cuda")]
            _ => false,
        }
    }

    /// The time from `start` to this event in nanoseconds, if both are timed and complete.
    pub(crate) fn elapsed_ns(&self, start: &RawEvent) -> Option<u64> {
        match (self, start) {
            (RawEvent::Cpu(end), RawEvent::Cpu(start)) => end.elapsed_ns(start),
            #[cfg(feature = "cuda")]
            (RawEvent::Cuda(end), RawEvent::Cuda(start)) => end.elapsed_ns(start),
            #[cfg(feature = "cuda")]
            _ => None,
        }
    }
}

impl RawStream {
    /// Whether both name the same stream.
    pub(crate) fn same(&self, other: &RawStream) -> bool {
        match (self, other) {
            (RawStream::Cpu(one), RawStream::Cpu(other)) => one.same(other),
            #[cfg(feature = "cuda")]
            (RawStream::Cuda(one), RawStream::Cuda(other)) => one.same(other),
            #[cfg(feature = "cuda")]
            _ => false,
        }
    }

    /// Whether the calling thread may use the stream: a per-thread default stream belongs to one thread.
    pub(crate) fn on_its_thread(&self) -> bool {
        match self {
            RawStream::Cpu(_) => true,
            #[cfg(feature = "cuda")]
            RawStream::Cuda(stream) => stream.on_its_thread(),
        }
    }
}

fn fault(operation: &'static str, device: String, code: i32, message: impl Into<String>) -> Error {
    Error::Device {
        operation,
        device,
        cause: DeviceFault {
            code,
            message: message.into(),
        },
    }
}

/// What the system says of a library that cannot be loaded; the error's own text only names the call that failed.
#[cfg(feature = "cuda")]
fn loader_says(error: &libloading::Error) -> String {
    match std::error::Error::source(error) {
        Some(source) => source.to_string(),
        None => error.to_string(),
    }
}
