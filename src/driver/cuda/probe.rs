//! Examines the driver's library before cudarc does, because cudarc panics if there is none.

use libloading::{Library, Symbol};

use super::everywhere::RecordContext;
use super::gather::MemcpyBatch;
use crate::driver::loader_says;
use crate::error::{Error, Result};
use crate::sync::OnceLock;

/// The oldest driver supported: CUDA 12.0.
pub(crate) const OLDEST_DRIVER: i32 = 12_000;

/// What the probe found, once for the process, and symbols that cudarc does not bind for every version.
pub(super) struct Probe {
    pub(super) version: i32,
    /// `cuEventElapsedTime`, under the name that every supported driver has: bindings for 12.8 and newer call `_v2`.
    pub(super) elapsed_time: ElapsedTime,
    /// Drivers of 12.8 and newer have it.
    pub(super) memcpy_batch: Option<MemcpyBatch>,
    /// Drivers of 12.5 and newer have it.
    pub(super) record_context: Option<RecordContext>,
    /// Keeps the symbols valid.
    _library: Library,
}

pub(super) type ElapsedTime =
    unsafe extern "C" fn(*mut f32, *mut std::ffi::c_void, *mut std::ffi::c_void) -> i32;
type Init = unsafe extern "C" fn(u32) -> i32;
type Version = unsafe extern "C" fn(*mut i32) -> i32;
type Count = unsafe extern "C" fn(*mut i32) -> i32;

const NAMES: &[&str] = if cfg!(windows) {
    &["nvcuda.dll"]
} else {
    &["libcuda.so.1", "libcuda.so"]
};

// The driver's own codes, from cuda.h.
const SUCCESS: i32 = 0;
const STUB_LIBRARY: i32 = 34;
const NO_DEVICE: i32 = 100;

/// Checks that the driver can be called.
fn driver() -> Result<&'static Probe> {
    static PROBE: OnceLock<Probe> = OnceLock::new();
    match PROBE.get() {
        Some(probe) => Ok(probe),
        None => {
            let found = load()?;
            Ok(PROBE.get_or_init(|| found))
        }
    }
}

/// How many devices the driver sees.
pub(super) fn count() -> Result<usize> {
    driver()?.device_count()
}

/// Checks that the driver can be called and sees a device of this number.
pub(super) fn probe(ordinal: usize) -> Result<&'static Probe> {
    let probe = driver()?;
    let count = probe.device_count()?;
    if ordinal >= count {
        return Err(Error::NoDevice { ordinal, count });
    }
    Ok(probe)
}

fn load() -> Result<Probe> {
    let mut details = Vec::new();
    // SAFETY: loading the driver's library runs its constructors, as every CUDA program does.
    let library = NAMES
        .iter()
        .find_map(|name| match unsafe { Library::new(*name) } {
            Ok(library) => Some(library),
            Err(error) => {
                details.push(loader_says(&error));
                None
            }
        });
    let Some(library) = library else {
        let detail = details.join("; ");
        return Err(Error::NoDriver { detail });
    };
    let mut version = 0;
    {
        // SAFETY: the symbol has had this signature since CUDA 2.0.
        let driver_version: Symbol<'_, Version> =
            unsafe { library.get(b"cuDriverGetVersion") }.map_err(missing)?;
        // SAFETY: it writes one integer, and may be called before cuInit.
        match unsafe { driver_version(&mut version) } {
            SUCCESS => {}
            STUB_LIBRARY => return Err(Error::StubDriver),
            code => {
                return Err(super::fault_of(
                    "cuDriverGetVersion",
                    "cuda",
                    code,
                    "the driver does not say its version",
                ));
            }
        }
    }
    if version < OLDEST_DRIVER {
        return Err(Error::DriverTooOld {
            found: version,
            required: OLDEST_DRIVER,
        });
    }
    #[cfg(all(feature = "nvjpeg", target_os = "linux", not(miri)))]
    super::connections::ask_for_more();
    {
        // SAFETY: the symbol has had this signature since CUDA 2.0.
        let init: Symbol<'_, Init> = unsafe { library.get(b"cuInit") }.map_err(missing)?;
        // SAFETY: flags must be 0; calling it twice is allowed.
        match unsafe { init(0) } {
            // Without a device, cuInit fails; the count below leads to our own error.
            SUCCESS | NO_DEVICE => {}
            STUB_LIBRARY => return Err(Error::StubDriver),
            code => {
                return Err(super::fault_of(
                    "cuInit",
                    "cuda",
                    code,
                    "the driver did not start",
                ));
            }
        }
    }
    // SAFETY: the symbol has had this signature in every driver since CUDA 2.0.
    let elapsed_time =
        *unsafe { library.get::<ElapsedTime>(b"cuEventElapsedTime") }.map_err(missing)?;
    // SAFETY: the symbol has had this signature since 12.8, where it was introduced.
    let memcpy_batch = unsafe { library.get::<MemcpyBatch>(b"cuMemcpyBatchAsync") };
    // SAFETY: the symbol has had this signature since 12.5, where it was introduced.
    let record_context = unsafe { library.get::<RecordContext>(b"cuCtxRecordEvent") };
    Ok(Probe {
        version,
        elapsed_time,
        memcpy_batch: memcpy_batch.ok().map(|symbol| *symbol),
        record_context: record_context.ok().map(|symbol| *symbol),
        _library: library,
    })
}

/// The error for a library without a symbol that every driver has.
fn missing(error: libloading::Error) -> Error {
    Error::NoDriver {
        detail: format!(
            "the library that was found is not a CUDA driver: {}",
            loader_says(&error)
        ),
    }
}

impl Probe {
    fn device_count(&self) -> Result<usize> {
        // SAFETY: the symbol has had this signature since CUDA 2.0.
        let count: std::result::Result<Symbol<'_, Count>, _> =
            unsafe { self._library.get(b"cuDeviceGetCount") };
        let count = count.map_err(missing)?;
        let mut devices = 0;
        // SAFETY: it writes one integer; cuInit was called.
        match unsafe { count(&mut devices) } {
            SUCCESS => Ok(usize::try_from(devices).unwrap_or(0)),
            // 3 (not initialized) is the answer after a cuInit that saw no device.
            3 | NO_DEVICE => Ok(0),
            code => Err(super::fault_of(
                "cuDeviceGetCount",
                "cuda",
                code,
                "the driver does not count its devices",
            )),
        }
    }
}
