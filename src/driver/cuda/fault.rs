//! The driver's error codes as errors.

use std::ffi::CStr;

use cudarc::driver::sys::{self, CUresult};

use crate::driver::fault;
use crate::error::Error;

/// An error with the driver's text.
pub(super) fn driver_fault(operation: &'static str, ordinal: usize, code: CUresult) -> Error {
    match code {
        CUresult::CUDA_ERROR_STUB_LIBRARY => return Error::StubDriver,
        CUresult::CUDA_ERROR_NO_DEVICE => return Error::NoDevice { ordinal, count: 0 },
        _ => {}
    }
    let words = |get: unsafe fn(CUresult, *mut *const std::ffi::c_char) -> CUresult| {
        let mut text = std::ptr::null();
        // SAFETY: it writes one pointer, to a text that lives as long as the driver.
        let result = unsafe { get(code, &mut text) };
        if result != CUresult::CUDA_SUCCESS || text.is_null() {
            return "unknown".to_owned();
        }
        // SAFETY: the driver's texts end in a zero.
        unsafe { CStr::from_ptr(text) }
            .to_string_lossy()
            .into_owned()
    };
    let message = format!(
        "{}: {}",
        words(sys::cuGetErrorName),
        words(sys::cuGetErrorString)
    );
    fault(operation, format!("cuda:{ordinal}"), code as i32, message)
}

/// An error with our own text.
pub(super) fn fault_of(operation: &'static str, device: &str, code: i32, message: &str) -> Error {
    fault(operation, device.to_owned(), code, message)
}
