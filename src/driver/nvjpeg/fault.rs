//! What can go wrong with nvJPEG.

use std::ffi::OsString;
use std::fmt;
use std::path::PathBuf;

use crate::error::Error;

/// Why nothing can be decoded. A single picture that is refused is no such fault ([`Verdict`](super::state::Verdict)).
#[derive(Debug, thiserror::Error)]
pub(crate) enum DecoderFault {
    #[error(
        "nvJPEG was not found ({detail}). It is in CUDA's toolkit, from 12.0 on, and in the Python packages `nvidia-nvjpeg` (CUDA 13) \
         and `nvidia-nvjpeg-cu12`: put its folder into LD_LIBRARY_PATH, or give its path"
    )]
    Missing {
        /// What the loader said of each place.
        detail: String,
    },
    #[error(
        "{path} does not say its version (nvjpegGetProperty failed: {status}): its installation is broken"
    )]
    NoVersion { path: PathBuf, status: Status },
    #[error(
        "{path} is nvJPEG {}.{}, and {}.{} or newer is needed: install that of CUDA 12 or 13", found.0, found.1, required.0, required.1
    )]
    TooOld {
        path: PathBuf,
        found: (i32, i32),
        required: (i32, i32),
    },
    #[error(
        "{path} is of CUDA {library}, which needs a driver of CUDA {library}.0, and this one supports {}.{}: update the driver, or \
         use nvJPEG of CUDA 12 (`nvidia-nvjpeg-cu12`)", driver / 1000, driver % 1000 / 10
    )]
    NewerThanDriver {
        path: PathBuf,
        library: i32,
        driver: i32,
    },
    #[error(
        "{path} lacks `{symbol}`: it is not nvJPEG of CUDA 12 or 13, or its installation is broken"
    )]
    Symbol { path: PathBuf, symbol: &'static str },
    #[error(
        "nvJPEG finds no hardware decoder on {device}. Large GPUs have one, from the A100 on; in a container, it takes the driver \
         capability `video` (NVIDIA_DRIVER_CAPABILITIES=compute,utility,video)"
    )]
    NoEngine { device: String },
    #[error(
        "PINFEED_NVJPEG_BACKEND is {name:?}: it may be `hardware` or `gpu_hybrid`, or not be set"
    )]
    Backend { name: OsString },
    #[error("{call} failed on {device}: {status}")]
    Call {
        call: &'static str,
        device: String,
        status: Status,
    },
    #[error(transparent)]
    Device(Error),
}

/// What a call of nvJPEG returned, which is not success.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Status(pub(super) i32);

impl Status {
    pub(super) const ALLOCATOR_FAILURE: Status = Status(5);
    pub(super) const ARCH_MISMATCH: Status = Status(7);

    /// Whether it speaks of the picture, and not of the decoder: `BAD_JPEG`, `JPEG_NOT_SUPPORTED`, `IMPLEMENTATION_NOT_SUPPORTED` and
    /// `INCOMPLETE_BITSTREAM`.
    pub(super) fn is_of_picture(self) -> bool {
        matches!(self.0, 3 | 4 | 9 | 10)
    }
}

impl fmt::Display for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = match self.0 {
            1 => "NOT_INITIALIZED",
            2 => "INVALID_PARAMETER",
            3 => "BAD_JPEG",
            4 => "JPEG_NOT_SUPPORTED",
            5 => "ALLOCATOR_FAILURE",
            6 => "EXECUTION_FAILED",
            7 => "ARCH_MISMATCH",
            8 => "INTERNAL_ERROR",
            9 => "IMPLEMENTATION_NOT_SUPPORTED",
            10 => "INCOMPLETE_BITSTREAM",
            other => return write!(f, "status {other}"),
        };
        write!(f, "{name} ({})", self.0)
    }
}
