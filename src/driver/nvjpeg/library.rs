//! The library: where it is, and its functions, each looked up by its name.

use std::ffi::{OsStr, OsString, c_int, c_uint, c_void};
use std::path::{Path, PathBuf};

use super::fault::{DecoderFault, Status};
use super::memory::{DeviceAllocator, HostAllocator};
use crate::driver::loader_says;

/// The oldest version that is used.
const OLDEST: (i32, i32) = (12, 0);

/// The names that the loader searches for, with the CUDA version that each is of: the newest first.
const NAMES: &[(&str, i32)] = &[("libnvjpeg.so.13", 13), ("libnvjpeg.so.12", 12)];

/// Where a toolkit has its libraries, below its folder.
const TOOLKIT: &[&str] = &[
    "lib64",
    "targets/x86_64-linux/lib",
    "targets/sbsa-linux/lib",
    "lib",
];

/// `libraryPropertyType`.
const MAJOR: c_int = 0;
const MINOR: c_int = 1;

/// `nvjpegImage_t`.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub(super) struct Image {
    pub(super) channel: [*mut u8; 4],
    pub(super) pitch: [usize; 4],
}

pub(super) type Handle = *mut c_void;

/// The functions, as in nvjpeg.h.
pub(super) struct Functions {
    pub(super) get_property: unsafe extern "C" fn(c_int, *mut c_int) -> c_int,
    pub(super) create: unsafe extern "C" fn(
        c_int,
        *mut DeviceAllocator,
        *mut HostAllocator,
        c_uint,
        *mut Handle,
    ) -> c_int,
    pub(super) destroy: unsafe extern "C" fn(Handle) -> c_int,
    pub(super) hardware_info: unsafe extern "C" fn(Handle, *mut c_uint, *mut c_uint) -> c_int,
    pub(super) create_state: unsafe extern "C" fn(Handle, *mut Handle) -> c_int,
    pub(super) destroy_state: unsafe extern "C" fn(Handle) -> c_int,
    pub(super) initialize: unsafe extern "C" fn(Handle, Handle, c_int, c_int, c_int) -> c_int,
    pub(super) decode: unsafe extern "C" fn(
        Handle,
        Handle,
        *const *const u8,
        *const usize,
        *mut Image,
        *mut c_void,
    ) -> c_int,
}

/// The library, open.
pub(crate) struct Library {
    pub(super) functions: Functions,
    path: PathBuf,
    version: (i32, i32),
    /// Keeps the functions valid.
    _library: libloading::Library,
}

impl Library {
    /// Opens the library: the file or folder of this path, or else what the system's loader finds (`LD_LIBRARY_PATH` comes first), or
    /// else that of a toolkit. `driver` is the driver's version, as CUDA counts it; without one, any library will do.
    ///
    /// # Errors
    ///
    /// If there is none, or what there is cannot be used. If a path is given, nothing else is tried. (Of a folder, a library that is too
    /// new for the driver comes last, and says so.)
    pub(crate) fn open(given: Option<&Path>, driver: Option<i32>) -> Result<Library, DecoderFault> {
        let fits = |cuda: i32| driver.is_none_or(|driver| cuda < 13 || driver >= 1000 * cuda);
        let (mut tried, too_new): (Vec<_>, Vec<_>) = candidates(given)
            .into_iter()
            .partition(|(_, cuda)| cuda.is_none_or(fits));
        let mut details = Vec::new();
        match given {
            Some(_) => tried.extend(too_new),
            None => details.extend(
                too_new
                    .iter()
                    .map(|(path, _)| format!("{}: it needs a newer driver", path.display())),
            ),
        }
        for (path, _) in tried {
            // SAFETY: loading it runs its constructors, as in every program that uses nvJPEG.
            match unsafe { libloading::Library::new(&path) } {
                Ok(library) => return Library::examine(library, path, driver),
                Err(error) => details.push(loader_says(&error)),
            }
        }
        Err(DecoderFault::Missing {
            detail: details.join("; "),
        })
    }

    fn examine(
        library: libloading::Library,
        path: PathBuf,
        driver: Option<i32>,
    ) -> Result<Library, DecoderFault> {
        let functions = Functions::find(&library).map_err(|symbol| DecoderFault::Symbol {
            path: path.clone(),
            symbol,
        })?;
        let property = |which| {
            let mut value = 0;
            // SAFETY: it writes one integer, and needs no device.
            match unsafe { (functions.get_property)(which, &mut value) } {
                0 => Ok(value),
                code => Err(DecoderFault::NoVersion {
                    path: path.clone(),
                    status: Status(code),
                }),
            }
        };
        let version = (property(MAJOR)?, property(MINOR)?);
        if version < OLDEST {
            return Err(DecoderFault::TooOld {
                path,
                found: version,
                required: OLDEST,
            });
        }
        if let Some(driver) = driver.filter(|driver| version.0 >= 13 && *driver < 1000 * version.0)
        {
            return Err(DecoderFault::NewerThanDriver {
                path,
                library: version.0,
                driver,
            });
        }
        Ok(Library {
            functions,
            path,
            version,
            _library: library,
        })
    }

    /// As it was found: a name, if the system's loader did.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Its version, as (major, minor).
    pub(crate) fn version(&self) -> (i32, i32) {
        self.version
    }
}

/// How many connections to the device a context has, if more than the driver's eight. The driver reads it when the program's first context
/// is made.
pub(crate) const CONNECTIONS: &str = "CUDA_DEVICE_MAX_CONNECTIONS";

/// A variable of the environment. One that is empty is not set: as a folder, it would be the one that the program runs in.
pub(crate) fn variable(name: &str) -> Option<OsString> {
    std::env::var_os(name).filter(|value| !value.is_empty())
}

/// What is tried, in order, with the CUDA version that a name is of.
pub(super) fn candidates(given: Option<&Path>) -> Vec<(PathBuf, Option<i32>)> {
    let named = |folder: PathBuf| {
        NAMES
            .iter()
            .map(move |(name, cuda)| (folder.join(name), Some(*cuda)))
    };
    if let Some(given) = given {
        return match given.is_dir() {
            true => named(given.to_owned()).collect(),
            false => vec![(given.to_owned(), None)],
        };
    }
    let toolkits = ["CUDA_HOME", "CUDA_PATH"].into_iter().filter_map(variable);
    let toolkits = toolkits.chain([OsStr::new("/usr/local/cuda").to_owned()]);
    let folders = toolkits.flat_map(|toolkit| {
        TOOLKIT
            .iter()
            .map(move |below| Path::new(&toolkit).join(below))
    });
    named(PathBuf::new())
        .chain(folders.flat_map(named))
        .collect()
}

impl Functions {
    /// Looks all of them up; an error is the name of the one that is missing.
    fn find(library: &libloading::Library) -> Result<Functions, &'static str> {
        macro_rules! find {
            ($name:literal) => {
                // SAFETY: it has this signature in nvjpeg.h of CUDA 12.0 to 13.3.
                *unsafe { library.get($name.as_bytes()) }.map_err(|_| $name)?
            };
        }
        Ok(Functions {
            get_property: find!("nvjpegGetProperty"),
            create: find!("nvjpegCreateExV2"),
            destroy: find!("nvjpegDestroy"),
            hardware_info: find!("nvjpegGetHardwareDecoderInfo"),
            create_state: find!("nvjpegJpegStateCreate"),
            destroy_state: find!("nvjpegJpegStateDestroy"),
            initialize: find!("nvjpegDecodeBatchedInitialize"),
            decode: find!("nvjpegDecodeBatched"),
        })
    }
}
