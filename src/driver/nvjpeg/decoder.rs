//! A decoder of one device.

use std::ffi::{OsStr, c_int, c_uint};
use std::panic::resume_unwind;
use std::ptr;

use super::fault::{DecoderFault, Status};
use super::library::{Handle, Library};
use super::memory::{Allocators, HostMemory, Memory, NO_FLAGS};
use crate::driver::Driver;
use crate::sync::log;
use crate::sync::{Arc, Mutex, thread};

/// Which of the GPU's units decodes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Backend {
    /// The hardware decoder.
    Hardware,
    /// Kernels, for all of it in batches of 50 and more (as measured; its header says 100); in smaller ones, the CPU decodes the Huffman
    /// codes.
    Gpu,
}

impl Backend {
    /// The backend that nvJPEG names so.
    pub(crate) fn named(name: &OsStr) -> Result<Backend, DecoderFault> {
        match name.to_str() {
            Some("hardware") => Ok(Backend::Hardware),
            Some("gpu_hybrid") => Ok(Backend::Gpu),
            _ => Err(DecoderFault::Backend {
                name: name.to_owned(),
            }),
        }
    }
}

/// nvJPEG on one device. Cloning it clones a reference.
#[derive(Clone)]
pub(crate) struct Decoder(pub(super) Arc<Shared>);

pub(super) struct Shared {
    pub(super) handle: Handle,
    pub(super) driver: Driver,
    pub(super) engines: u32,
    /// One that is not in use yet.
    spare_state: Mutex<Option<Handle>>,
    /// The library holds their address.
    pub(super) allocators: Box<Allocators>,
    pub(super) library: Arc<Library>,
}

// SAFETY: nvJPEG's handle may be used from any thread at once; the allocators are `Send` and `Sync`.
unsafe impl Send for Shared {}
// SAFETY: as above.
unsafe impl Sync for Shared {}

impl Decoder {
    /// Makes a handle of the library for this device. With the hardware backend, there must be engines.
    pub(crate) fn open(
        library: Arc<Library>,
        driver: &Driver,
        backend: Backend,
        memory: Box<dyn Memory>,
        host: Box<dyn HostMemory>,
    ) -> Result<Decoder, DecoderFault> {
        let allocators = Allocators::new(memory, host);
        let (mut device_allocator, mut host_allocator) = allocators.as_given();
        let number = match backend {
            Backend::Gpu => 2,
            Backend::Hardware => 3,
        };
        let _entered = driver.enter().map_err(DecoderFault::Device)?;
        let mut handle = ptr::null_mut();
        // SAFETY: it copies the allocators, which stay valid for as long as the handle (`Shared`), and writes one handle.
        let code = unsafe {
            (library.functions.create)(
                number,
                &mut device_allocator,
                &mut host_allocator,
                NO_FLAGS,
                &mut handle,
            )
        };
        let no_engine = || DecoderFault::NoEngine {
            device: driver.name(),
        };
        if backend == Backend::Hardware && Status(code) == Status::ARCH_MISMATCH {
            return Err(no_engine());
        }
        check("nvjpegCreateExV2", driver, code)?;
        let mut shared = Shared {
            handle,
            driver: driver.clone(),
            engines: 0,
            spare_state: Mutex::default(),
            allocators,
            library,
        };
        if backend == Backend::Hardware {
            shared.engines = shared.count_engines_beside_a_state()?;
            if shared.engines == 0 {
                return Err(no_engine());
            }
        }
        Ok(Decoder(Arc::new(shared)))
    }

    /// How many hardware engines there are; 0 if another backend decodes.
    pub(crate) fn engines(&self) -> u32 {
        self.0.engines
    }

    /// Whether kernels decode, for there is no hardware.
    pub(super) fn has_kernels_only(&self) -> bool {
        self.0.engines == 0
    }

    pub(crate) fn library(&self) -> &Library {
        &self.0.library
    }
}

impl Shared {
    /// How many engines the hardware has. That takes a quarter of a second, and making a state a third: so the first state is made
    /// meanwhile.
    fn count_engines_beside_a_state(&self) -> Result<u32, DecoderFault> {
        let counts = || self.count_engines();
        thread::scope(|scope| {
            let named = thread::Builder::new().name("pinfeed-engines".to_owned());
            let counted = named.spawn_scoped(scope, counts);
            match self.create_state() {
                Ok(state) => *self.spare_state.lock() = Some(state),
                Err(fault) => log::debug!("{fault}"), // it is tried again when one is needed
            }
            match counted {
                Ok(counted) => counted.join().unwrap_or_else(|panic| resume_unwind(panic)),
                Err(_) => counts(),
            }
        })
    }

    fn count_engines(&self) -> Result<u32, DecoderFault> {
        let _entered = self.driver.enter().map_err(DecoderFault::Device)?;
        let (mut engines, mut cores): (c_uint, c_uint) = (0, 0);
        // SAFETY: the handle is alive, and may be used by several threads; it writes two numbers.
        let code = unsafe {
            (self.library.functions.hardware_info)(self.handle, &mut engines, &mut cores)
        };
        match Status(code) {
            Status::ARCH_MISMATCH => Ok(0),
            _ => check("nvjpegGetHardwareDecoderInfo", &self.driver, code).map(|()| engines),
        }
    }

    /// Makes a state; the context is current. Its holder destroys it.
    pub(super) fn create_state(&self) -> Result<Handle, DecoderFault> {
        if let Some(state) = self.spare_state.lock().take() {
            return Ok(state);
        }
        let mut state = ptr::null_mut();
        // SAFETY: the handle is alive; it writes one state, which belongs to the current device.
        let code = unsafe { (self.library.functions.create_state)(self.handle, &mut state) };
        check("nvjpegJpegStateCreate", &self.driver, code)?;
        Ok(state)
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        let _entered = self.driver.enter();
        if let Some(state) = self.spare_state.get_mut().take() {
            // SAFETY: it was never handed out.
            let _ = unsafe { (self.library.functions.destroy_state)(state) };
        }
        // SAFETY: nothing uses the handle after this; all states, which hold this object, are gone.
        let _ = unsafe { (self.library.functions.destroy)(self.handle) };
    }
}

pub(super) fn check(call: &'static str, driver: &Driver, code: c_int) -> Result<(), DecoderFault> {
    match code {
        0 => Ok(()),
        code => Err(DecoderFault::Call {
            call,
            device: driver.name(),
            status: Status(code),
        }),
    }
}
