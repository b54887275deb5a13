//! The memory that nvJPEG works with: it asks for it by functions, which must not unwind.
//!
//! It has several blocks for each picture of a chunk, and exchanges one for a larger one whenever a picture needs more than those before it:
//! all through an epoch. But freeing memory waits for the device, and who launches kernels waits meanwhile: beside a network, each such
//! exchange would let the device run dry. So what nvJPEG gives back is kept for it.

use std::cell::Cell;
use std::collections::HashMap;
use std::ffi::{c_int, c_uint, c_void};
use std::panic::{AssertUnwindSafe, catch_unwind};

use crate::driver::Driver;
use crate::sync::Mutex;

/// Where nvJPEG's own device memory comes from.
pub(crate) trait Memory: Send + Sync + 'static {
    /// Memory of the device, aligned to 256 bytes; `None` if there is none.
    fn take(&self, bytes: usize) -> Option<u64>;

    /// Takes it back. What was put on any stream before may still use it.
    fn give_back(&self, address: u64, bytes: usize);
}

/// Where its page-locked memory comes from.
pub(crate) trait HostMemory: Send + Sync + 'static {
    /// Page-locked memory; `None` if there is none.
    fn take(&self, bytes: usize) -> Option<*mut u8>;

    /// Takes it back.
    fn give_back(&self, address: *mut u8, bytes: usize);
}

/// The device's own. Whoever passes it on counts it.
impl Memory for Driver {
    fn take(&self, bytes: usize) -> Option<u64> {
        self.alloc_device(bytes).ok()
    }

    fn give_back(&self, address: u64, bytes: usize) {
        // SAFETY: `take` allocated it with this size; nvJPEG is done with it, and freeing waits for the device.
        let _ = unsafe { self.free_device(address, bytes) };
    }
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
    /// Of the device, and page-locked.
    device_blocks: Mutex<Blocks>,
    host_blocks: Mutex<Blocks>,
}

/// What the library has of one kind of memory, and what it gave back.
#[derive(Default)]
struct Blocks {
    /// The sizes of those that it has, by their addresses.
    out: HashMap<usize, usize>,
    spare: Vec<Spare>,
}

/// A block that is kept.
#[derive(Clone, Copy)]
struct Spare {
    address: usize,
    bytes: usize,
    /// Who gave it back: nobody else may have it, whose stream is another.
    user: User,
    /// What its user did with it is over.
    is_settled: bool,
}

/// Whose call makes the library ask: a state's number, or 0.
pub(super) type User = u64;

thread_local! {
    /// Who calls the library on this thread. (It has no threads of its own; what they gave back would be kept for nobody.)
    static USER: Cell<User> = const { Cell::new(0) };
}

impl Blocks {
    /// The smallest block that is kept for this user and large enough, but not wasted.
    fn again(&mut self, bytes: usize, user: User) -> Option<usize> {
        let most = bytes.saturating_mul(2);
        let is_fit = |spare: &Spare| {
            spare.is_settled && spare.user == user && (bytes..=most).contains(&spare.bytes)
        };
        let fits = self.spare.iter().enumerate().filter(|(_, one)| is_fit(one));
        let (at, _) = fits.min_by_key(|(_, one)| one.bytes)?;
        let Spare { address, bytes, .. } = self.spare.swap_remove(at);
        self.out.insert(address, bytes);
        Some(address)
    }

    /// Takes out what is kept: of one user, or of all.
    fn give_up(&mut self, user: Option<User>) -> Vec<Spare> {
        let is_meant = |spare: &mut Spare| user.is_none_or(|user| spare.user == user);
        self.spare.extract_if(.., is_meant).collect()
    }

    fn settle(&mut self, user: User) {
        let own = self.spare.iter_mut().filter(|spare| spare.user == user);
        own.for_each(|spare| spare.is_settled = true);
    }
}

/// Sizes that pictures share: a quarter larger at most. `None`: nobody has as much.
fn shared_size(bytes: usize) -> Option<usize> {
    let step = (bytes.checked_next_power_of_two()? / 8).max(512);
    bytes.max(1).checked_next_multiple_of(step)
}

/// Takes a block of one kind of memory. Where there is none, what is kept is freed, and it is tried once more.
fn take(
    blocks: &Mutex<Blocks>,
    bytes: usize,
    alloc: impl Fn(usize) -> Option<usize>,
    free: impl Fn(Spare),
) -> Option<usize> {
    let bytes = shared_size(bytes)?;
    if let Some(address) = blocks.lock().again(bytes, USER.get()) {
        return Some(address);
    }
    let address = alloc(bytes).or_else(|| {
        let kept = blocks.lock().give_up(None);
        (!kept.is_empty()).then(|| kept.into_iter().for_each(free))?;
        alloc(bytes)
    })?;
    blocks.lock().out.insert(address, bytes);
    Some(address)
}

/// Keeps a block that the library gives back.
fn keep(blocks: &Mutex<Blocks>, address: usize) {
    let mut blocks = blocks.lock();
    if let Some(bytes) = blocks.out.remove(&address) {
        blocks.spare.push(Spare {
            address,
            bytes,
            user: USER.get(),
            is_settled: false,
        });
    }
}

impl Allocators {
    pub(super) fn new(memory: Box<dyn Memory>, host: Box<dyn HostMemory>) -> Box<Allocators> {
        Box::new(Allocators {
            memory,
            host,
            device_blocks: Mutex::default(),
            host_blocks: Mutex::default(),
        })
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

    /// From now on, this thread calls the library for this user; and all that it did before is over, so what it gave back may be used again.
    pub(super) fn begins(&self, user: User) {
        USER.set(user);
        for blocks in [&self.device_blocks, &self.host_blocks] {
            blocks.lock().settle(user);
        }
    }

    /// There is no such user any more.
    pub(super) fn ends(&self, user: User) {
        self.free_kept(Some(user));
    }

    fn free_kept(&self, user: Option<User>) {
        let kept = self.device_blocks.lock().give_up(user);
        kept.into_iter().for_each(|one| self.free_device(one));
        let kept = self.host_blocks.lock().give_up(user);
        kept.into_iter().for_each(|one| self.free_host(one));
    }

    fn take_device(&self, bytes: usize) -> Option<usize> {
        let alloc = |bytes| self.memory.take(bytes).map(|address| address as usize);
        take(&self.device_blocks, bytes, alloc, |one| {
            self.free_device(one)
        })
    }

    fn take_host(&self, bytes: usize) -> Option<usize> {
        let alloc = |bytes| self.host.take(bytes).map(<*mut u8>::expose_provenance);
        take(&self.host_blocks, bytes, alloc, |one| self.free_host(one))
    }

    fn free_device(&self, one: Spare) {
        self.memory.give_back(one.address as u64, one.bytes);
    }

    fn free_host(&self, one: Spare) {
        let address = std::ptr::with_exposed_provenance_mut(one.address);
        self.host.give_back(address, one.bytes);
    }
}

impl Drop for Allocators {
    fn drop(&mut self) {
        self.free_kept(None);
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
        let address = unsafe { allocators(context) }.take_device(bytes)?;
        // SAFETY: nvJPEG passes where the address goes.
        unsafe { to.write(address as *mut c_void) };
        Some(())
    })
}

unsafe extern "C" fn free_device(
    context: *mut c_void,
    address: *mut c_void,
    _bytes: usize,
    _stream: *mut c_void,
) -> c_int {
    guarded(|| {
        // SAFETY: nvJPEG passes what `as_given` made.
        keep(
            &unsafe { allocators(context) }.device_blocks,
            address.addr(),
        );
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
        let address = unsafe { allocators(context) }.take_host(bytes)?;
        // SAFETY: nvJPEG passes where the address goes.
        unsafe { to.write(std::ptr::with_exposed_provenance_mut(address)) };
        Some(())
    })
}

unsafe extern "C" fn free_host(
    context: *mut c_void,
    address: *mut c_void,
    _bytes: usize,
    _stream: *mut c_void,
) -> c_int {
    guarded(|| {
        // SAFETY: nvJPEG passes what `as_given` made.
        keep(&unsafe { allocators(context) }.host_blocks, address.addr());
        Some(())
    })
}

/// No flags are passed when a handle is made.
pub(super) const NO_FLAGS: c_uint = 0;
