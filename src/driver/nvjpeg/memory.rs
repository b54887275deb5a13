//! The memory that nvJPEG works with: what it asks for, by functions that must not unwind, and what it is given.

use std::ffi::{c_int, c_uint, c_void};
use std::panic::{AssertUnwindSafe, catch_unwind};

use crate::driver::Driver;
use crate::error::Result;
use crate::sync::log;
use crate::sync::{AtomicBool, Ordering};

/// Where nvJPEG's own device memory comes from.
pub(crate) trait Memory: Send + Sync + 'static {
    /// Memory of the device, aligned to 256 bytes; `None` if there is none.
    fn take(&self, bytes: usize) -> Option<u64>;

    /// Takes it back. What was put on any stream before may still use it.
    fn give_back(&self, address: u64, bytes: usize);

    /// Counts what nvJPEG will take without asking; `false` if that would be too much.
    fn reserve(&self, bytes: usize) -> bool;

    /// It has given so much of that back.
    fn release(&self, bytes: usize);
}

/// Where its page-locked memory comes from.
pub(crate) trait HostMemory: Send + Sync + 'static {
    /// Page-locked memory; `None` if there is none.
    fn take(&self, bytes: usize) -> Option<*mut u8>;

    /// Takes it back.
    fn give_back(&self, address: *mut u8, bytes: usize);
}

/// The device's own. The code that passes it on counts it.
impl Memory for Driver {
    fn take(&self, bytes: usize) -> Option<u64> {
        self.alloc_device(bytes).ok()
    }

    fn give_back(&self, address: u64, bytes: usize) {
        // SAFETY: `take` allocated it with this size; nvJPEG is done with it, and freeing waits for the device.
        let _ = unsafe { self.free_device(address, bytes) };
    }

    fn reserve(&self, _: usize) -> bool {
        true
    }

    fn release(&self, _: usize) {}
}

impl HostMemory for Driver {
    fn take(&self, bytes: usize) -> Option<*mut u8> {
        self.alloc_host(bytes).ok()
    }

    fn give_back(&self, address: *mut u8, bytes: usize) {
        // SAFETY: likewise.
        let _ = unsafe { self.free_host(address, bytes) };
    }
}

type Malloc = unsafe extern "C" fn(*mut c_void, *mut *mut c_void, usize, *mut c_void) -> c_int;
type Free = unsafe extern "C" fn(*mut c_void, *mut c_void, usize, *mut c_void) -> c_int;

/// `nvjpegDevAllocatorV2_t`.
#[repr(C)]
pub(super) struct DeviceAllocator {
    malloc: Malloc,
    free: Free,
    context: *mut c_void,
}

/// `nvjpegPinnedAllocatorV2_t`.
#[repr(C)]
pub(super) struct HostAllocator {
    malloc: Malloc,
    free: Free,
    context: *mut c_void,
}

/// Both, at an address that does not change.
pub(super) struct Allocators {
    memory: Box<dyn Memory>,
    host: Box<dyn HostMemory>,
    /// The library was refused memory.
    have_refused: AtomicBool,
}

impl Allocators {
    pub(super) fn new(memory: Box<dyn Memory>, host: Box<dyn HostMemory>) -> Box<Allocators> {
        Box::new(Allocators {
            memory,
            host,
            have_refused: AtomicBool::new(false),
        })
    }

    /// Whether they have refused memory since this was asked.
    pub(super) fn have_refused(&self) -> bool {
        self.have_refused.swap(false, Ordering::Relaxed)
    }

    /// Keeps in mind that it was refused.
    fn refusing<T>(&self, memory: Option<T>) -> Option<T> {
        if memory.is_none() {
            self.have_refused.store(true, Ordering::Relaxed);
        }
        memory
    }

    /// Of the device.
    pub(super) fn device(&self) -> &dyn Memory {
        &*self.memory
    }

    /// As the library takes them. This object must stay where it is until the library's handle is destroyed.
    pub(super) fn as_given(&self) -> (DeviceAllocator, HostAllocator) {
        let context = std::ptr::from_ref(self).cast_mut().cast();
        let device = DeviceAllocator {
            malloc: take_device,
            free: free_device,
            context,
        };
        let host = HostAllocator {
            malloc: take_host,
            free: free_host,
            context,
        };
        (device, host)
    }
}

/// What the library reports as a failure of its allocator.
const FAILED: c_int = 1;

/// Runs what nvJPEG called; a panic is a failure.
fn guarded(f: impl FnOnce() -> Option<()>) -> c_int {
    match catch_unwind(AssertUnwindSafe(f)) {
        Ok(Some(())) => 0,
        Ok(None) => FAILED,
        Err(payload) => {
            let message = crate::error::panic_message(payload);
            log::error!("an allocator of nvJPEG's memory panicked: {message}");
            FAILED
        }
    }
}

/// # Safety
///
/// As the next three: nvJPEG calls it, with the context that `as_given` made, while the object is alive.
unsafe fn allocators<'a>(context: *mut c_void) -> &'a Allocators {
    // SAFETY: the caller's contract.
    unsafe { &*context.cast::<Allocators>() }
}

unsafe extern "C" fn take_device(
    context: *mut c_void,
    to: *mut *mut c_void,
    bytes: usize,
    _stream: *mut c_void,
) -> c_int {
    guarded(|| {
        // SAFETY: nvJPEG passes what `as_given` made.
        let allocators = unsafe { allocators(context) };
        let address = allocators.refusing(allocators.memory.take(bytes))?;
        // SAFETY: nvJPEG passes where the address goes.
        unsafe { to.write(address as *mut c_void) };
        Some(())
    })
}

unsafe extern "C" fn free_device(
    context: *mut c_void,
    address: *mut c_void,
    bytes: usize,
    _stream: *mut c_void,
) -> c_int {
    guarded(|| {
        if !address.is_null() {
            // SAFETY: nvJPEG passes what `as_given` made.
            let memory = &unsafe { allocators(context) }.memory;
            memory.give_back(address as u64, bytes);
        }
        Some(())
    })
}

unsafe extern "C" fn take_host(
    context: *mut c_void,
    to: *mut *mut c_void,
    bytes: usize,
    _stream: *mut c_void,
) -> c_int {
    guarded(|| {
        // SAFETY: nvJPEG passes what `as_given` made.
        let allocators = unsafe { allocators(context) };
        let address = allocators.refusing(allocators.host.take(bytes))?;
        // SAFETY: nvJPEG passes where the address goes.
        unsafe { to.write(address.cast()) };
        Some(())
    })
}

unsafe extern "C" fn free_host(
    context: *mut c_void,
    address: *mut c_void,
    bytes: usize,
    _stream: *mut c_void,
) -> c_int {
    guarded(|| {
        if !address.is_null() {
            // SAFETY: nvJPEG passes what `as_given` made.
            let memory = &unsafe { allocators(context) }.host;
            memory.give_back(address.cast(), bytes);
        }
        Some(())
    })
}

/// No flags are passed when a handle is made.
pub(super) const NO_FLAGS: c_uint = 0;

/// Device memory.
pub(super) struct Block {
    driver: Driver,
    pub(super) address: u64,
    pub(super) bytes: usize,
}

impl Block {
    pub(super) fn new(driver: &Driver, bytes: usize) -> Result<Block> {
        Ok(Block {
            address: driver.alloc_device(bytes)?,
            driver: driver.clone(),
            bytes,
        })
    }
}

impl Drop for Block {
    fn drop(&mut self) {
        // SAFETY: `new` allocated it, and its users have waited for the stream.
        let _ = unsafe { self.driver.free_device(self.address, self.bytes) };
    }
}

/// Page-locked memory.
pub(super) struct Locked {
    driver: Driver,
    pub(super) memory: *mut u8,
    bytes: usize,
}

// SAFETY: it owns its memory.
unsafe impl Send for Locked {}

impl Locked {
    pub(super) fn new(driver: &Driver, bytes: usize) -> Result<Locked> {
        Ok(Locked {
            memory: driver.alloc_host(bytes)?,
            driver: driver.clone(),
            bytes,
        })
    }

    /// No copy from or to it may be in flight.
    pub(super) fn slice(&mut self) -> &mut [u8] {
        // SAFETY: the memory is zeroed when it is allocated, and ours.
        unsafe { std::slice::from_raw_parts_mut(self.memory, self.bytes) }
    }
}

impl Drop for Locked {
    fn drop(&mut self) {
        // SAFETY: `new` allocated it, and its set has waited for the stream.
        let _ = unsafe { self.driver.free_host(self.memory, self.bytes) };
    }
}
