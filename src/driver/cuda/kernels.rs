//! Kernels of our own: loaded from PTX when they are first needed.

use std::ffi::{CStr, c_void};
use std::ptr;

use cudarc::driver::sys::{self, CUresult};

use super::{Cuda, Shared, Stream};
use crate::error::{Error, Result};

/// The oldest compute capability that the kernels are made for: Volta's. (Each PTX in this folder says `.target sm_70`.)
const OLDEST: (i32, i32) = (7, 0);

/// Whether the kernels run on a device of this compute capability.
pub(super) fn run_on(capability: (i32, i32)) -> bool {
    capability >= OLDEST
}

/// A loaded module. It lives as long as the driver's object, which unloads it.
#[derive(Clone, Copy)]
pub(super) struct Module(sys::CUmodule);

/// A kernel of one.
#[derive(Clone, Copy)]
pub(super) struct Function(sys::CUfunction);

// SAFETY: a module's handle may be used from any thread.
unsafe impl Send for Module {}
// SAFETY: as above.
unsafe impl Sync for Module {}
// SAFETY: a function's handle may be used from any thread.
unsafe impl Send for Function {}
// SAFETY: as above.
unsafe impl Sync for Function {}

impl Cuda {
    /// Loads a module; the context is current. `what`: what it is for.
    pub(super) fn load_module(&self, ptx: &CStr, what: &'static str) -> Result<Module> {
        let found = self.compute_capability();
        if !run_on(found) {
            return Err(Error::ComputeCapability {
                what,
                device: self.name(),
                found,
                required: OLDEST,
            });
        }
        let mut module = ptr::null_mut();
        // SAFETY: the text ends in a zero.
        self.check("cuModuleLoadData", unsafe {
            sys::cuModuleLoadData(&mut module, ptx.as_ptr().cast())
        })?;
        self.0.modules.lock().push(Module(module));
        Ok(Module(module))
    }

    /// As (major, minor); the context is current.
    pub(super) fn compute_capability(&self) -> (i32, i32) {
        use sys::CUdevice_attribute_enum as Attribute;
        (
            self.attribute(Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR),
            self.attribute(Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR),
        )
    }

    pub(super) fn function(&self, Module(module): Module, name: &CStr) -> Result<Function> {
        let mut function = ptr::null_mut();
        // SAFETY: the module is loaded, and the name ends in a zero.
        self.check("cuModuleGetFunction", unsafe {
            sys::cuModuleGetFunction(&mut function, module, name.as_ptr())
        })?;
        Ok(Function(function))
    }

    /// Launches a kernel of one dimension; the context is current.
    ///
    /// # Safety
    ///
    /// Each parameter must point to a value of the type that the kernel has in its place, and what the kernel reads and writes
    /// must be valid, and in no one else's use but as ordered by the stream, until it is done.
    pub(super) unsafe fn launch(
        &self,
        Function(function): Function,
        (blocks, threads): (u32, u32),
        stream: &Stream,
        parameters: &mut [*mut c_void],
    ) -> Result<()> {
        // SAFETY: the caller's contract.
        self.check("cuLaunchKernel", unsafe {
            sys::cuLaunchKernel(
                function,
                blocks,
                1,
                1,
                threads,
                1,
                1,
                0,
                stream.handle(),
                parameters.as_mut_ptr(),
                ptr::null_mut(),
            )
        })
    }
}

impl Shared {
    /// Unloads all modules, before the context goes. Their kernels are done: the list of flights and the pool of device memory,
    /// which hold this object, have waited for them.
    pub(super) fn unload_modules(&mut self) {
        let handle = self.handle();
        let modules = std::mem::take(self.modules.get_mut());
        if modules.is_empty() {
            return;
        }
        // SAFETY: the context is alive: `self` keeps the object, or the embedder keeps the handle.
        if unsafe { sys::cuCtxPushCurrent_v2(handle) } != CUresult::CUDA_SUCCESS {
            return;
        }
        for Module(module) in modules {
            // SAFETY: it was loaded in this context, and nobody launches its kernels any more. At process exit the driver may be
            // gone: then it says so, and there is nothing left to unload.
            let _ = unsafe { sys::cuModuleUnload(module) };
        }
        let mut popped = ptr::null_mut();
        // SAFETY: it takes back what was pushed above, on this thread.
        let _ = unsafe { sys::cuCtxPopCurrent_v2(&mut popped) };
    }
}

/// PTX as the driver takes it.
pub(super) const fn ptx(text: &'static str) -> &'static CStr {
    match CStr::from_bytes_with_nul(text.as_bytes()) {
        Ok(text) => text,
        Err(_) => panic!("PTX is text that ends in a zero"),
    }
}
