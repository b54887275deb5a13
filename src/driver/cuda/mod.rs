//! The CUDA backend: the driver's own calls, through cudarc's bindings.
//!
//! Each call makes the device's context current while it runs, and restores the previous one. Meanwhile the thread is in
//! the relaxed capture mode. Calls that follow each other do so once ([`Cuda::enter`]). So neither the embedder's choice of
//! device nor a graph capture on another thread is disturbed.

#[cfg(all(feature = "nvjpeg", target_os = "linux", not(miri)))]
mod connections;
mod everywhere;
mod fault;
mod gather;
mod launch;
mod objects;
mod probe;

use std::cell::Cell;
use std::ffi::CStr;
use std::mem::MaybeUninit;

use cudarc::driver::CudaContext;
use cudarc::driver::sys::{self, CUresult};

pub(crate) use objects::{CuEvent, CuStream, PER_THREAD};

use self::fault::{driver_fault, fault_of};
use super::{DeviceInfo, RawCopy};
use crate::error::Result;
use crate::sync::log;
use crate::sync::plain::AtomicU64;
use crate::sync::{Arc, Mutex, OnceLock, thread_local};

/// One CUDA device, through one context.
#[derive(Clone)]
pub(crate) struct Cuda(Arc<CudaShared>);

struct CudaShared {
    context: Context,
    ordinal: usize,
    /// Events that are not in use, timed and untimed: creating one costs more than using it.
    events: [Mutex<Vec<RawHandle>>; 2],
    /// How many were recorded.
    recorded: AtomicU64,
    probe: &'static probe::Probe,
    /// How rows are gathered, and the kernel if that needs one.
    way: OnceLock<super::Way>,
    gathering: OnceLock<Option<launch::Function>>,
    loaded: Mutex<launch::LoadedKernels>,
}

enum Context {
    /// Our own object on the primary context, or the embedder's, which this keeps alive.
    Object(Arc<CudaContext>),
    /// The embedder's handle. The embedder keeps it alive.
    Handle(sys::CUcontext),
}

/// A `CUevent`. It may be used from any thread.
struct RawHandle(sys::CUevent);

// SAFETY: the driver's handles may be used from any thread; cudarc sends them likewise.
unsafe impl Send for RawHandle {}
// SAFETY: a context handle may be used from any thread at once; the rest of `CudaShared` is behind locks.
unsafe impl Sync for CudaShared {}
// SAFETY: as above.
unsafe impl Send for CudaShared {}

impl Cuda {
    /// Opens a device, with a context object of our own on its primary context.
    /// How many devices the driver sees.
    pub(crate) fn count() -> Result<usize> {
        probe::count()
    }

    pub(crate) fn open(ordinal: usize) -> Result<Cuda> {
        let probe = probe::probe(ordinal)?;
        let previous = current_context();
        let context = CudaContext::new(ordinal)
            .map_err(|error| driver_fault("cuDevicePrimaryCtxRetain", ordinal, error.0));
        // `CudaContext::new` leaves its context current on this thread; the embedder's choice is restored.
        if let Some(previous) = previous {
            // SAFETY: it was current a moment ago, or is null, which means "none".
            let _ = unsafe { sys::cuCtxSetCurrent(previous) };
        }
        Ok(Cuda::with(Context::Object(context?), ordinal, probe))
    }

    /// Uses the embedder's context object.
    pub(crate) fn from_context(context: Arc<CudaContext>) -> Result<Cuda> {
        let ordinal = context.ordinal();
        Ok(Cuda::with(
            Context::Object(context),
            ordinal,
            probe::probe(ordinal)?,
        ))
    }

    /// Uses the embedder's context, by its handle.
    ///
    /// # Safety
    ///
    /// `context` must be a `CUcontext` of the device `ordinal`, and outlive everything made from it.
    pub(crate) unsafe fn from_handle(
        ordinal: usize,
        context: *mut std::ffi::c_void,
    ) -> Result<Cuda> {
        Ok(Cuda::with(
            Context::Handle(context.cast()),
            ordinal,
            probe::probe(ordinal)?,
        ))
    }

    fn with(context: Context, ordinal: usize, probe: &'static probe::Probe) -> Cuda {
        Cuda(Arc::new(CudaShared {
            context,
            ordinal,
            events: Default::default(),
            recorded: AtomicU64::new(0),
            probe,
            way: OnceLock::new(),
            gathering: OnceLock::new(),
            loaded: Mutex::default(),
        }))
    }

    /// Whether the context is on this device.
    pub(crate) fn is_on(&self, context: &CudaContext) -> bool {
        self.handle() == context.cu_ctx()
    }

    /// Blocks until all work of the context is done.
    pub(super) fn synchronize_context(&self) -> Result<()> {
        let _entered = self.enter()?;
        // SAFETY: the context is current.
        self.check("cuCtxSynchronize", unsafe { sys::cuCtxSynchronize() })
    }

    /// Which of the devices it is, as the driver counts.
    #[cfg(feature = "dlpack")]
    pub(crate) fn ordinal(&self) -> usize {
        self.0.ordinal
    }

    /// Whether the stream is of this context.
    ///
    /// # Safety
    ///
    /// It must be the handle of a stream, and no default stream's, which have no context of their own.
    #[cfg(feature = "dlpack")]
    pub(crate) unsafe fn has_stream(&self, stream: *mut std::ffi::c_void) -> Result<bool> {
        let _entered = self.enter()?;
        let mut context = std::ptr::null_mut();
        // SAFETY: the caller's contract; the call writes one handle.
        let result = unsafe { sys::cuStreamGetCtx(stream.cast(), &mut context) };
        self.check("cuStreamGetCtx", result)?;
        Ok(context == self.handle())
    }

    fn handle(&self) -> sys::CUcontext {
        self.0.handle()
    }

    /// Makes the context current, if it is not, until the guard is dropped. Within a guard of this context, another one costs nothing;
    /// no code of the program's runs within one.
    pub(super) fn enter(&self) -> Result<Entered> {
        let outer = ENTERED.get();
        if outer == self.handle() {
            return Ok(Entered {
                pushed: false,
                mode: None,
                outer,
            });
        }
        let pushed = current_context() != Some(self.handle());
        if pushed {
            // SAFETY: the context is alive: `CudaShared` keeps the object, or the embedder keeps the handle.
            let result = unsafe { sys::cuCtxPushCurrent_v2(self.handle()) };
            self.check("cuCtxPushCurrent", result)?;
        }
        let mut mode = sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED;
        // SAFETY: it swaps the thread's mode with `mode`.
        let swapped = unsafe { sys::cuThreadExchangeStreamCaptureMode(&mut mode) };
        ENTERED.set(self.handle());
        Ok(Entered {
            pushed,
            mode: (swapped == CUresult::CUDA_SUCCESS).then_some(mode),
            outer,
        })
    }

    fn check(&self, operation: &'static str, result: CUresult) -> Result<()> {
        match result {
            CUresult::CUDA_SUCCESS => Ok(()),
            code => Err(driver_fault(operation, self.0.ordinal, code)),
        }
    }

    pub(super) fn name(&self) -> String {
        format!("cuda:{}", self.0.ordinal)
    }

    pub(super) fn same_device(&self, other: &Cuda) -> bool {
        self.handle() == other.handle()
    }

    pub(super) fn info(&self) -> Result<DeviceInfo> {
        let _entered = self.enter()?;
        let mut device = 0;
        // SAFETY: it writes the current context's device.
        self.check("cuCtxGetDevice", unsafe {
            sys::cuCtxGetDevice(&mut device)
        })?;
        let mut name = [0; 256];
        // SAFETY: it writes at most the given number of bytes, with a zero at the end.
        self.check("cuDeviceGetName", unsafe {
            sys::cuDeviceGetName(name.as_mut_ptr(), 255, device)
        })?;
        // SAFETY: the buffer ends in a zero: it is one byte longer than the length given.
        let name = unsafe { CStr::from_ptr(name.as_ptr()) };
        let attribute = |attribute| {
            let mut value = 0;
            // SAFETY: it writes one integer.
            let result = unsafe { sys::cuDeviceGetAttribute(&mut value, attribute, device) };
            self.check("cuDeviceGetAttribute", result).map(|()| value)
        };
        use sys::CUdevice_attribute_enum as Attribute;
        let (_, total) = self.memory_info()?;
        Ok(DeviceInfo {
            name: name.to_string_lossy().into_owned(),
            compute_capability: Some((
                attribute(Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR)?,
                attribute(Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR)?,
            )),
            driver_version: Some(self.0.probe.version),
            total_memory_bytes: total,
            copy_engines: attribute(Attribute::CU_DEVICE_ATTRIBUTE_ASYNC_ENGINE_COUNT)?,
            pci_address: self.pci_address(device),
        })
    }

    fn pci_address(&self, device: sys::CUdevice) -> Option<String> {
        let mut address = [0; 32];
        // SAFETY: it writes at most the given number of bytes, with a zero at the end.
        let result = unsafe { sys::cuDeviceGetPCIBusId(address.as_mut_ptr(), 31, device) };
        self.check("cuDeviceGetPCIBusId", result).ok()?;
        // SAFETY: the buffer ends in a zero: it is one byte longer than the length given.
        let address = unsafe { CStr::from_ptr(address.as_ptr()) };
        Some(address.to_string_lossy().into_owned())
    }

    /// Free and total device memory in bytes; the context must be current.
    fn memory_info(&self) -> Result<(usize, usize)> {
        let (mut free, mut total) = (0, 0);
        // SAFETY: it writes two integers.
        self.check("cuMemGetInfo", unsafe {
            sys::cuMemGetInfo_v2(&mut free, &mut total)
        })?;
        Ok((free, total))
    }

    pub(super) fn create_stream(&self) -> Result<CuStream> {
        let _entered = self.enter()?;
        let mut handle = MaybeUninit::uninit();
        let flags = sys::CUstream_flags::CU_STREAM_NON_BLOCKING as u32;
        // SAFETY: it writes one handle.
        self.check("cuStreamCreate", unsafe {
            sys::cuStreamCreate(handle.as_mut_ptr(), flags)
        })?;
        // SAFETY: the call succeeded, so the handle was written.
        Ok(CuStream::owned(
            unsafe { handle.assume_init() },
            self.clone(),
        ))
    }

    pub(super) fn record(&self, stream: &CuStream, timed: bool) -> Result<CuEvent> {
        let _entered = self.enter()?;
        let event = self.take_event(stream.handle() as usize, timed)?;
        // SAFETY: both handles are alive, and of this context.
        self.check("cuEventRecord", unsafe {
            sys::cuEventRecord(event.handle(), stream.handle())
        })?;
        Ok(event)
    }

    /// An event to be recorded on the stream of this handle; the context is current.
    fn take_event(&self, stream: usize, timed: bool) -> Result<CuEvent> {
        let pooled = self.0.events[usize::from(timed)].lock().pop();
        if let Some(RawHandle(handle)) = pooled {
            return Ok(CuEvent::new(handle, timed, stream, self.clone()));
        }
        let mut flags = sys::CUevent_flags::CU_EVENT_BLOCKING_SYNC as u32;
        if !timed {
            flags |= sys::CUevent_flags::CU_EVENT_DISABLE_TIMING as u32;
        }
        let mut handle = MaybeUninit::uninit();
        // SAFETY: it writes one handle.
        self.check("cuEventCreate", unsafe {
            sys::cuEventCreate(handle.as_mut_ptr(), flags)
        })?;
        // SAFETY: the call succeeded, so the handle was written.
        Ok(CuEvent::new(
            unsafe { handle.assume_init() },
            timed,
            stream,
            self.clone(),
        ))
    }

    pub(super) fn stream_wait(&self, stream: &CuStream, event: &CuEvent) -> Result<()> {
        let _entered = self.enter()?;
        // SAFETY: both handles are alive.
        self.check("cuStreamWaitEvent", unsafe {
            sys::cuStreamWaitEvent(stream.handle(), event.handle(), 0)
        })
    }

    pub(super) fn synchronize(&self, stream: &CuStream) -> Result<()> {
        let _entered = self.enter()?;
        // SAFETY: the handle is alive.
        self.check("cuStreamSynchronize", unsafe {
            sys::cuStreamSynchronize(stream.handle())
        })
    }

    pub(super) fn host_fn(&self, stream: &CuStream, f: Box<dyn FnOnce() + Send>) -> Result<()> {
        unsafe extern "C" fn run(data: *mut std::ffi::c_void) {
            // SAFETY: `host_fn` made the pointer from a box, and the driver calls this once.
            let f = unsafe { Box::from_raw(data.cast::<Box<dyn FnOnce() + Send>>()) };
            // A panic must not cross into the driver.
            if let Err(payload) = std::panic::catch_unwind(std::panic::AssertUnwindSafe(f)) {
                let message = crate::error::panic_message(payload);
                log::error!("a host function on a CUDA stream panicked: {message}");
            }
        }
        let _entered = self.enter()?;
        let data = Box::into_raw(Box::new(f));
        // SAFETY: the handle is alive, and `run` takes what `data` is.
        let result = unsafe { sys::cuLaunchHostFunc(stream.handle(), Some(run), data.cast()) };
        if result != CUresult::CUDA_SUCCESS {
            // SAFETY: the driver refused, so it will not take the box.
            drop(unsafe { Box::from_raw(data) });
        }
        self.check("cuLaunchHostFunc", result)
    }

    pub(super) fn alloc_device(&self, bytes: usize) -> Result<u64> {
        let _entered = self.enter()?;
        let mut address = 0;
        // SAFETY: it writes one address.
        self.check("cuMemAlloc", unsafe {
            sys::cuMemAlloc_v2(&mut address, bytes.max(1))
        })?;
        Ok(address)
    }

    /// # Safety
    ///
    /// As `Driver::free_device`.
    pub(super) unsafe fn free_device(&self, address: u64, _: usize) -> Result<()> {
        let _entered = self.enter()?;
        // SAFETY: the caller's contract.
        self.check("cuMemFree", unsafe { sys::cuMemFree_v2(address) })
    }

    /// # Safety
    ///
    /// As `Driver::lock_pages`.
    pub(super) unsafe fn lock_pages(
        &self,
        pointer: *mut u8,
        bytes: usize,
        read_only: bool,
    ) -> Result<()> {
        let _entered = self.enter()?;
        let mut flags = sys::CU_MEMHOSTREGISTER_PORTABLE;
        if read_only {
            // Seen on Linux 6.18 with driver 580: a request to lock such pages never returns.
            let refused = if crate::system::is_private_and_read_only(pointer, bytes) {
                Some(
                    "the memory is a private mapping that may only be read: map the file shared, or copy it into a tensor of its own",
                )
            } else if !self.registers_read_only() {
                Some(
                    "the device does not page-lock memory that may only be read: copy it into a tensor of its own",
                )
            } else {
                None
            };
            if let Some(reason) = refused {
                let code = CUresult::CUDA_ERROR_NOT_SUPPORTED as i32;
                return Err(fault_of("cuMemHostRegister", &self.name(), code, reason));
            }
            flags |= sys::CU_MEMHOSTREGISTER_READ_ONLY;
        }
        // SAFETY: the caller's contract: the range is allocated.
        let result = unsafe { sys::cuMemHostRegister_v2(pointer.cast(), bytes, flags) };
        self.check("cuMemHostRegister", result)
    }

    /// Whether memory that the process may only read can be page-locked; the context is current.
    fn registers_read_only(&self) -> bool {
        self.attribute(
            sys::CUdevice_attribute_enum::CU_DEVICE_ATTRIBUTE_READ_ONLY_HOST_REGISTER_SUPPORTED,
        ) != 0
    }

    /// An attribute of the current context's device; 0 if the driver does not know the attribute.
    fn attribute(&self, attribute: sys::CUdevice_attribute) -> i32 {
        let (mut device, mut value) = (0, 0);
        // SAFETY: it writes the current context's device.
        let found = unsafe { sys::cuCtxGetDevice(&mut device) };
        // SAFETY: it writes one integer.
        let asked = unsafe { sys::cuDeviceGetAttribute(&mut value, attribute, device) };
        let answered = found == CUresult::CUDA_SUCCESS && asked == CUresult::CUDA_SUCCESS;
        if answered { value } else { 0 }
    }

    /// # Safety
    ///
    /// As `Driver::unlock_pages`.
    pub(super) unsafe fn unlock_pages(&self, pointer: *mut u8, _: usize) -> Result<()> {
        let _entered = self.enter()?;
        // SAFETY: the caller's contract: it was registered, and nothing is in flight.
        self.check("cuMemHostUnregister", unsafe {
            sys::cuMemHostUnregister(pointer.cast())
        })
    }

    pub(super) fn alloc_host(&self, bytes: usize) -> Result<*mut u8> {
        let _entered = self.enter()?;
        let mut pointer = std::ptr::null_mut();
        // SAFETY: it writes one pointer. Not write-combined: such memory is very slow to read.
        let result = unsafe {
            sys::cuMemHostAlloc(&mut pointer, bytes.max(1), sys::CU_MEMHOSTALLOC_PORTABLE)
        };
        self.check("cuMemHostAlloc", result)?;
        // SAFETY: the driver just allocated this many bytes, and nothing else uses them.
        unsafe { std::ptr::write_bytes(pointer.cast::<u8>(), 0, bytes) };
        Ok(pointer.cast())
    }

    /// # Safety
    ///
    /// As `Driver::free_host`.
    pub(super) unsafe fn free_host(&self, pointer: *mut u8, _: usize) -> Result<()> {
        let _entered = self.enter()?;
        // SAFETY: the caller's contract.
        self.check("cuMemFreeHost", unsafe {
            sys::cuMemFreeHost(pointer.cast())
        })
    }

    /// # Safety
    ///
    /// As `Driver::copy`.
    pub(super) unsafe fn copy(&self, stream: &CuStream, copy: RawCopy) -> Result<()> {
        let _entered = self.enter()?;
        let stream = stream.handle();
        match copy {
            RawCopy::ToDevice { from, to, bytes } => {
                // SAFETY: the caller's contract: both are valid, and nothing else uses them, until the copy is done.
                let result = unsafe { sys::cuMemcpyHtoDAsync_v2(to, from.cast(), bytes, stream) };
                self.check("cuMemcpyHtoDAsync", result)
            }
            RawCopy::ToHost { from, to, bytes } => {
                // SAFETY: likewise.
                let result = unsafe { sys::cuMemcpyDtoHAsync_v2(to.cast(), from, bytes, stream) };
                self.check("cuMemcpyDtoHAsync", result)
            }
        }
    }

    /// # Safety
    ///
    /// As `Driver::copy_on_device`.
    pub(super) unsafe fn copy_on_device(
        &self,
        stream: &CuStream,
        from: u64,
        to: u64,
        bytes: usize,
    ) -> Result<()> {
        let _entered = self.enter()?;
        // SAFETY: the caller's contract: both are valid, and nothing else uses them, until the copy is done.
        let result = unsafe { sys::cuMemcpyDtoDAsync_v2(to, from, bytes, stream.handle()) };
        self.check("cuMemcpyDtoDAsync", result)
    }
}

impl CudaShared {
    fn handle(&self) -> sys::CUcontext {
        match &self.context {
            Context::Object(context) => context.cu_ctx(),
            Context::Handle(context) => *context,
        }
    }
}

impl Drop for CudaShared {
    fn drop(&mut self) {
        self.unload_modules();
        let previous = current_context();
        let [untimed, timed] = &mut self.events;
        for RawHandle(event) in untimed.get_mut().drain(..).chain(timed.get_mut().drain(..)) {
            // SAFETY: the pool owns the event, and nothing else holds it. At process exit the driver may be gone: then
            // the call fails, and there is nothing left to destroy.
            let _ = unsafe { sys::cuEventDestroy_v2(event) };
        }
        // On drop, cudarc's object makes its context current; the previous one is restored.
        self.context = Context::Handle(std::ptr::null_mut());
        if let Some(previous) = previous {
            // SAFETY: it was current a moment ago; if it is the context that was just released, the driver refuses.
            let _ = unsafe { sys::cuCtxSetCurrent(previous) };
        }
    }
}

thread_local! {
    /// The context of the innermost guard on this thread; null if there is none.
    static ENTERED: Cell<sys::CUcontext> = const { Cell::new(std::ptr::null_mut()) };
}

/// While this lives, the context is current on this thread.
pub(crate) struct Entered {
    pushed: bool,
    mode: Option<sys::CUstreamCaptureMode>,
    outer: sys::CUcontext,
}

impl Drop for Entered {
    fn drop(&mut self) {
        ENTERED.set(self.outer);
        if let Some(mut mode) = self.mode {
            // SAFETY: it restores the thread's mode.
            let _ = unsafe { sys::cuThreadExchangeStreamCaptureMode(&mut mode) };
        }
        if !self.pushed {
            return;
        }
        let mut popped = std::ptr::null_mut();
        // SAFETY: it pops what `enter` pushed on this thread.
        let _ = unsafe { sys::cuCtxPopCurrent_v2(&mut popped) };
    }
}

/// The thread's current context, which may be null (none); `None` if the driver does not tell.
fn current_context() -> Option<sys::CUcontext> {
    let mut context = std::ptr::null_mut();
    // SAFETY: it writes one handle.
    let result = unsafe { sys::cuCtxGetCurrent(&mut context) };
    (result == CUresult::CUDA_SUCCESS).then_some(context)
}
