//! Kernels of our own: loaded from PTX when they are first needed.

use std::ffi::{CStr, c_void};
use std::ptr;

use cudarc::driver::sys;

use super::{Cuda, Stream};
use crate::error::Result;

/// A loaded module. It lives as long as the context: it is never unloaded.
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
    /// Loads a module; the context is current.
    pub(super) fn load_module(&self, ptx: &CStr) -> Result<Module> {
        let mut module = ptr::null_mut();
        // SAFETY: the text ends in a zero.
        self.check("cuModuleLoadData", unsafe {
            sys::cuModuleLoadData(&mut module, ptx.as_ptr().cast())
        })?;
        Ok(Module(module))
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

/// PTX as the driver takes it.
pub(super) const fn ptx(text: &'static str) -> &'static CStr {
    match CStr::from_bytes_with_nul(text.as_bytes()) {
        Ok(text) => text,
        Err(_) => panic!("PTX is text that ends in a zero"),
    }
}
