//! Loads the library's kernels from PTX when they are first needed, and launches them.

use std::ffi::{CStr, c_void};
use std::ptr;

use cudarc::driver::sys::{self, CUresult};

use super::{CuStream, Cuda, CudaShared};
use crate::driver::kernels::Launch;
use crate::error::{Error, Result};
use crate::tuning::{BLOCK_THREADS, ITEMS_PER_THREAD, MOST_BLOCKS};

/// The oldest compute capability that the kernels support: Volta's. (Each PTX in this folder says `.target sm_70`.)
const OLDEST: (i32, i32) = (7, 0);

/// Whether the kernels run on a device of this compute capability.
pub(super) fn run_on(capability: (i32, i32)) -> bool {
    capability >= OLDEST
}

/// A loaded module. It lives as long as the driver's object, which unloads it.
#[derive(Clone, Copy)]
struct Module(sys::CUmodule);

/// A kernel of a module.
#[derive(Clone, Copy)]
pub(super) struct Function(sys::CUfunction);

/// What has been loaded: few enough for a linear search.
#[derive(Default)]
pub(super) struct LoadedKernels {
    modules: Vec<(&'static CStr, Module)>,
    functions: Vec<(&'static CStr, Function)>,
}

// SAFETY: a module's handle may be used from any thread.
unsafe impl Send for Module {}
// SAFETY: as above.
unsafe impl Sync for Module {}
// SAFETY: a function's handle may be used from any thread.
unsafe impl Send for Function {}
// SAFETY: as above.
unsafe impl Sync for Function {}

impl Cuda {
    /// Launches a kernel with as many threads as its items need.
    ///
    /// # Safety
    ///
    /// As `Driver::launch`; each argument must have the type of the kernel's parameter at its position.
    pub(in crate::driver) unsafe fn launch(
        &self,
        stream: &CuStream,
        launch: &Launch<'_>,
    ) -> Result<()> {
        let _entered = self.enter()?;
        let function = self.function(launch.ptx, launch.function, launch.purpose)?;
        let mut arguments: Vec<_> = launch.arguments.iter().map(|one| one.pointer()).collect();
        // SAFETY: the caller's contract.
        unsafe { self.launch_grid(function, grid(launch.items), stream, &mut arguments) }
    }

    /// Returns the kernel of this name in the module of this PTX; the context is current. `purpose` is for the error.
    pub(super) fn function(
        &self,
        ptx: &'static CStr,
        name: &'static CStr,
        purpose: &'static str,
    ) -> Result<Function> {
        // Held while the driver compiles, so that two threads that need a kernel at once compile it once.
        let mut loaded = self.0.loaded.lock();
        if let Some((_, function)) = loaded.functions.iter().find(|(known, _)| *known == name) {
            return Ok(*function);
        }
        let module = loaded.modules.iter().find(|(known, _)| *known == ptx);
        let Module(module) = match module {
            Some((_, module)) => *module,
            None => {
                let module = self.load_module(ptx, purpose)?;
                loaded.modules.push((ptx, module));
                module
            }
        };
        let mut function = ptr::null_mut();
        // SAFETY: the module is loaded, and the name ends in a zero.
        self.check("cuModuleGetFunction", unsafe {
            sys::cuModuleGetFunction(&mut function, module, name.as_ptr())
        })?;
        loaded.functions.push((name, Function(function)));
        Ok(Function(function))
    }

    fn load_module(&self, ptx: &CStr, purpose: &'static str) -> Result<Module> {
        let found = self.compute_capability();
        if !run_on(found) {
            return Err(Error::ComputeCapability {
                what: purpose,
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
        Ok(Module(module))
    }

    /// The device's compute capability, as (major, minor); the context is current.
    pub(super) fn compute_capability(&self) -> (i32, i32) {
        use sys::CUdevice_attribute_enum as Attribute;
        (
            self.attribute(Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR),
            self.attribute(Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR),
        )
    }

    /// Launches a kernel on a one-dimensional grid of this many blocks and threads per block; the context is current.
    ///
    /// # Safety
    ///
    /// Each argument must point to a value of the type of the kernel's parameter at its position. What the kernel reads
    /// and writes must be valid until it is done, and nothing else may use it except in the stream's order.
    pub(super) unsafe fn launch_grid(
        &self,
        Function(function): Function,
        (blocks, threads): (u32, u32),
        stream: &CuStream,
        arguments: &mut [*mut c_void],
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
                arguments.as_mut_ptr(),
                ptr::null_mut(),
            )
        })
    }
}

impl CudaShared {
    /// Unloads all modules before the context goes. Their kernels are done: the list of flights and the pool of device
    /// memory, which hold this object, have waited for them.
    pub(super) fn unload_modules(&mut self) {
        let handle = self.handle();
        let LoadedKernels { modules, .. } = std::mem::take(self.loaded.get_mut());
        if modules.is_empty() {
            return;
        }
        // SAFETY: the context is alive: `self` keeps the object, or the embedder keeps the handle.
        if unsafe { sys::cuCtxPushCurrent_v2(handle) } != CUresult::CUDA_SUCCESS {
            return;
        }
        for (_, Module(module)) in modules {
            // SAFETY: it was loaded in this context, and its kernels are not launched any more. At process exit the
            // driver may be gone: then the call fails, and there is nothing left to unload.
            let _ = unsafe { sys::cuModuleUnload(module) };
        }
        let mut popped = ptr::null_mut();
        // SAFETY: it pops what was pushed above, on this thread.
        let _ = unsafe { sys::cuCtxPopCurrent_v2(&mut popped) };
    }
}

/// The number of blocks, and the number of threads in each.
fn grid(items: u64) -> (u32, u32) {
    let blocks = items.div_ceil(u64::from(BLOCK_THREADS) * ITEMS_PER_THREAD);
    (blocks.clamp(1, MOST_BLOCKS) as u32, BLOCK_THREADS)
}
