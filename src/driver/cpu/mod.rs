//! The CPU backend. Each stream runs on its own thread, and an event fires when its stream reaches it. Programs use the
//! backend on machines without a GPU; in [`Hostile`] mode, the tests use it.

mod hostile;
#[cfg(all(feature = "nvjpeg", target_os = "linux", not(miri)))]
mod nvjpeg;
mod stream;

use std::alloc::Layout;

pub use hostile::Hostile;
pub(crate) use stream::{CpuEvent, CpuStream};

use self::hostile::Hostility;
use super::{DeviceInfo, Gather, RawCopy, fault};
use crate::error::{Error, Result};
use crate::sync::{Arc, AtomicBool, AtomicUsize, Mutex, Ordering};
use crate::tensor::ALIGNMENT;

/// The CPU as a device.
#[derive(Clone)]
pub(crate) struct Cpu(Arc<CpuShared>);

struct CpuShared {
    hostility: Option<Hostility>,
    device_bytes: AtomicUsize,
    locked_bytes: AtomicUsize,
    streams: AtomicUsize,
    /// The queues of all live streams, for waits that cover all of them.
    queues: Mutex<Vec<stream::Queue>>,
}

const EVENT_QUERY: &str = "event_query";

/// The alignment of memory that stands in for page-locked memory.
const PAGE: usize = 4096;

/// A hostile device stages copies as a GPU does, but in small pieces, so that the tests' tensors are cut into many.
const STAGING_CHUNK_BYTES: usize = 16 << 10;

/// Small enough that the tests' batches are cut.
const RESIDENT_BYTES: usize = 2 << 10;
const LEAST_PART_BYTES: usize = 256;

impl Cpu {
    pub(crate) fn new(hostile: Option<Hostile>) -> Cpu {
        Cpu(Arc::new(CpuShared {
            hostility: hostile.map(Hostility::new),
            device_bytes: AtomicUsize::new(0),
            locked_bytes: AtomicUsize::new(0),
            streams: AtomicUsize::new(0),
            queues: Mutex::default(),
        }))
    }

    pub(super) fn name(&self) -> String {
        "cpu".to_owned()
    }

    pub(super) fn info(&self) -> Result<DeviceInfo> {
        Ok(DeviceInfo {
            name: format!(
                "CPU ({} threads)",
                std::thread::available_parallelism().map_or(1, usize::from)
            ),
            compute_capability: None,
            driver_version: None,
            total_memory_bytes: crate::system::usable_memory_bytes(),
            copy_engines: 2,
            pci_address: None,
        })
    }

    pub(super) fn same_device(&self, other: &Cpu) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }

    pub(super) fn create_stream(&self) -> Result<CpuStream> {
        self.may_fail("create_stream")?;
        let number = self.0.streams.fetch_add(1, Ordering::Relaxed);
        let hostility = self.0.hostility.as_ref();
        let delays = hostility.map(|hostility| hostility.delays(number));
        let stream = CpuStream::start(number, delays)?;
        let mut queues = self.0.queues.lock();
        queues.retain(stream::Queue::is_alive);
        queues.push(stream.queue());
        Ok(stream)
    }

    /// On a hostile device, waits for all work now on the streams, as a GPU does before it unlocks or frees memory.
    fn wait_as_a_gpu(&self) {
        if self.0.hostility.is_none() || stream::is_on_one() {
            return;
        }
        let queues = self.0.queues.lock().clone();
        let ends: Vec<_> = queues.iter().filter_map(stream::Queue::end).collect();
        ends.iter().for_each(stream::End::wait);
    }

    pub(super) fn record(&self, stream: &CpuStream) -> Result<CpuEvent> {
        self.may_fail("record_event")?;
        Ok(stream.record(self.clone()))
    }

    pub(super) fn stream_wait(&self, stream: &CpuStream, event: &CpuEvent) -> Result<()> {
        self.may_fail("stream_wait_event")?;
        stream.wait(event);
        Ok(())
    }

    pub(super) fn synchronize(&self, stream: &CpuStream) -> Result<()> {
        self.record(stream)?.synchronize()
    }

    pub(super) fn host_fn(&self, stream: &CpuStream, f: Box<dyn FnOnce() + Send>) -> Result<()> {
        self.may_fail("host_fn")?;
        stream.run(f);
        Ok(())
    }

    pub(super) fn alloc_device(&self, bytes: usize) -> Result<u64> {
        self.may_fail("alloc_device")?;
        let capacity = self
            .0
            .hostility
            .as_ref()
            .and_then(Hostility::device_capacity_bytes);
        self.charge(&self.0.device_bytes, bytes, capacity, "alloc_device")?;
        match allocate(bytes, ALIGNMENT) {
            Some(pointer) => Ok(pointer as u64),
            None => {
                self.0.device_bytes.fetch_sub(bytes, Ordering::Relaxed);
                Err(self.fault("alloc_device", 2, "out of memory"))
            }
        }
    }

    /// # Safety
    ///
    /// As `Driver::free_device`.
    pub(super) unsafe fn free_device(&self, address: u64, bytes: usize) -> Result<()> {
        self.wait_as_a_gpu();
        self.0.device_bytes.fetch_sub(bytes, Ordering::Relaxed);
        // SAFETY: the caller's contract: it was allocated with this size and alignment, and nothing uses it.
        unsafe { deallocate(address as *mut u8, bytes, ALIGNMENT) };
        Ok(())
    }

    /// Locks the pages if the system allows it. If not, that is no error, because nothing here depends on it.
    ///
    /// # Safety
    ///
    /// As `Driver::lock_pages`.
    pub(super) unsafe fn lock_pages(&self, pointer: *mut u8, bytes: usize, _: bool) -> Result<()> {
        self.may_fail("lock_pages")?;
        let capacity = self
            .0
            .hostility
            .as_ref()
            .and_then(Hostility::pinned_capacity_bytes);
        self.charge(&self.0.locked_bytes, bytes, capacity, "lock_pages")?;
        crate::system::lock_pages(pointer, bytes);
        Ok(())
    }

    /// # Safety
    ///
    /// As `Driver::unlock_pages`.
    pub(super) unsafe fn unlock_pages(&self, pointer: *mut u8, bytes: usize) -> Result<()> {
        self.wait_as_a_gpu();
        self.0.locked_bytes.fetch_sub(bytes, Ordering::Relaxed);
        crate::system::unlock_pages(pointer, bytes);
        Ok(())
    }

    pub(super) fn alloc_host(&self, bytes: usize) -> Result<*mut u8> {
        self.may_fail("alloc_host")?;
        let capacity = self
            .0
            .hostility
            .as_ref()
            .and_then(Hostility::pinned_capacity_bytes);
        self.charge(&self.0.locked_bytes, bytes, capacity, "alloc_host")?;
        allocate(bytes, PAGE).ok_or_else(|| {
            self.0.locked_bytes.fetch_sub(bytes, Ordering::Relaxed);
            self.fault("alloc_host", 2, "out of memory")
        })
    }

    /// # Safety
    ///
    /// As `Driver::free_host`.
    pub(super) unsafe fn free_host(&self, pointer: *mut u8, bytes: usize) -> Result<()> {
        self.wait_as_a_gpu();
        self.0.locked_bytes.fetch_sub(bytes, Ordering::Relaxed);
        // SAFETY: the caller's contract: it was allocated with this size and alignment, and nothing uses it.
        unsafe { deallocate(pointer, bytes, PAGE) };
        Ok(())
    }

    /// # Safety
    ///
    /// As `Driver::copy`.
    pub(super) unsafe fn copy(&self, stream: &CpuStream, copy: RawCopy) -> Result<()> {
        self.may_fail("copy")?;
        let (from, to, bytes) = match copy {
            RawCopy::ToDevice { from, to, bytes } => (from as u64, to, bytes),
            RawCopy::ToHost { from, to, bytes } => (from, to as u64, bytes),
        };
        // SAFETY: the caller's contract: both are valid, and nothing else uses them, until the copy is done.
        unsafe { stream.copy(from, to, bytes) };
        Ok(())
    }

    /// # Safety
    ///
    /// As `Driver::copy_on_device`.
    pub(super) unsafe fn copy_on_device(
        &self,
        stream: &CpuStream,
        from: u64,
        to: u64,
        bytes: usize,
    ) -> Result<()> {
        self.may_fail("copy")?;
        // SAFETY: the caller's contract: both are valid, and nothing else uses them, until the copy is done.
        unsafe { stream.copy(from, to, bytes) };
        Ok(())
    }

    /// The CPU copies equally fast from any memory, so staging would only add a copy.
    pub(super) fn staging_chunk_bytes(&self) -> Option<usize> {
        let hostility = self.0.hostility.as_ref();
        hostility.map(|_| STAGING_CHUNK_BYTES)
    }

    /// A hostile device cuts batches as a GPU does, but small ones.
    pub(super) fn resident_bytes(&self) -> Option<(usize, usize)> {
        let hostility = self.0.hostility.as_ref();
        hostility.map(|_| (RESIDENT_BYTES, LEAST_PART_BYTES))
    }

    /// # Safety
    ///
    /// As `Driver::gather`.
    pub(super) unsafe fn gather(&self, stream: &CpuStream, gather: Gather<'_>) -> Result<()> {
        self.may_fail("copy")?;
        // SAFETY: the caller's contract: all rows, the table and the target are valid, and nothing else uses them,
        // until the copy is done.
        unsafe { stream.gather(gather) };
        Ok(())
    }

    pub(super) fn launch(&self, stream: &CpuStream, work: Box<dyn FnOnce() + Send>) -> Result<()> {
        self.may_fail("launch")?;
        stream.run(work);
        Ok(())
    }

    /// # Safety
    ///
    /// As `Driver::poison`.
    pub(super) unsafe fn poison(&self, address: u64, bytes: usize) {
        if self.0.hostility.is_some() {
            // SAFETY: the caller's contract: the bytes are valid, and nothing else uses them.
            unsafe { std::ptr::write_bytes(address as *mut u8, hostile::POISON, bytes) };
        }
    }

    /// Fails if the hostile mode says so.
    fn may_fail(&self, operation: &'static str) -> Result<()> {
        match &self.0.hostility {
            Some(hostility) if hostility.fails(operation) => {
                Err(self.fault(operation, 999, "hostile failure"))
            }
            _ => Ok(()),
        }
    }

    /// Charges bytes to a capacity, if there is one.
    fn charge(
        &self,
        count: &AtomicUsize,
        bytes: usize,
        capacity: Option<usize>,
        operation: &'static str,
    ) -> Result<()> {
        let charged = count.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |held| {
            let held = held.checked_add(bytes)?;
            (held <= capacity.unwrap_or(usize::MAX)).then_some(held)
        });
        match charged {
            Ok(_) => Ok(()),
            Err(_) => Err(self.fault(operation, 2, "out of memory")),
        }
    }

    fn fault(&self, operation: &'static str, code: i32, message: &str) -> Error {
        fault(operation, self.name(), code, message)
    }

    /// Fails if the hostile mode makes this event fail, now or earlier.
    fn event_fails(&self, is_lost: &AtomicBool) -> Result<()> {
        let Some(hostility) = &self.0.hostility else {
            return Ok(());
        };
        if !is_lost.load(Ordering::Relaxed) && hostility.fails_by_name(EVENT_QUERY) {
            is_lost.store(true, Ordering::Relaxed);
        }
        match is_lost.load(Ordering::Relaxed) {
            true => Err(self.fault(EVENT_QUERY, 999, "hostile failure")),
            false => Ok(()),
        }
    }

    /// The fault of a device that has failed for good.
    fn sticky(&self) -> Result<()> {
        match &self.0.hostility {
            Some(hostility) if hostility.is_broken() => {
                Err(self.fault(EVENT_QUERY, 999, "hostile failure"))
            }
            _ => Ok(()),
        }
    }
}

fn allocate(bytes: usize, alignment: usize) -> Option<*mut u8> {
    let layout = Layout::from_size_align(bytes.max(1), alignment).ok()?;
    // SAFETY: the layout is not of size 0.
    let pointer = unsafe { std::alloc::alloc_zeroed(layout) };
    (!pointer.is_null()).then_some(pointer)
}

/// # Safety
///
/// The pointer must come from `allocate` with the same arguments, and nothing may use it any more.
unsafe fn deallocate(pointer: *mut u8, bytes: usize, alignment: usize) {
    if let Ok(layout) = Layout::from_size_align(bytes.max(1), alignment) {
        // SAFETY: the caller's contract; `allocate` made the same layout.
        unsafe { std::alloc::dealloc(pointer, layout) };
    }
}
