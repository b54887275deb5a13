//! An event behind all work of a context, and captures that such an event would break.

use std::ffi::c_void;

use cudarc::driver::sys::{self, CUresult};

use super::objects::{EVERYWHERE, LEGACY};
use super::{CuEvent, CuStream, Cuda};
use crate::error::Result;
use crate::sync::Ordering;
use crate::sync::log;
use crate::sync::plain::AtomicUsize;

/// `cuCtxRecordEvent`, as of 12.5: behind all work that the context's streams hold, also such as wait for no other stream.
pub(super) type RecordContext =
    unsafe extern "C" fn(context: *mut c_void, event: *mut c_void) -> i32;

impl Cuda {
    /// `None`: the driver is older, and all work was waited for.
    pub(in crate::driver) fn record_everywhere(&self) -> Result<Option<CuEvent>> {
        let Some(record) = self.0.probe.record_context else {
            static SAID: AtomicUsize = AtomicUsize::new(0);
            if SAID.fetch_add(1, Ordering::Relaxed) == 0 {
                log::warn!(
                    "{}: the driver is older than CUDA 12.5 and has no event of all streams: where device memory is adrift, each sweep waits \
                     for the whole context",
                    self.name()
                );
            }
            self.synchronize_context()?;
            return Ok(None);
        };
        let _entered = self.enter()?;
        let event = self.take_event(EVERYWHERE, false)?;
        // SAFETY: both handles are alive, and the event is of this context.
        let code = unsafe { record(self.handle().cast(), event.handle().cast()) };
        match code {
            0 => Ok(Some(event)),
            code if code == CUresult::CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED as i32 => {
                Err(super::fault_of(
                    "cuCtxRecordEvent",
                    &self.name(),
                    code,
                    "a graph is being captured on a stream that the device does not know, or that another thread began to capture just now, \
                     and that capture fails because of this call. Hold a guard while you capture (Device::capture_guard)",
                ))
            }
            code => Err(super::fault_of(
                "cuCtxRecordEvent",
                &self.name(),
                code,
                "no event could be recorded behind the work of all streams",
            )),
        }
    }

    /// Whether the stream is being captured.
    pub(in crate::driver) fn is_capturing(&self, stream: &CuStream) -> Result<bool> {
        self.is_capturing_handle(stream.handle())
    }

    /// Whether a stream is captured that waits for the legacy default stream. Its capture goes on.
    pub(in crate::driver) fn is_capturing_by_default(&self) -> Result<bool> {
        self.is_capturing_handle(LEGACY as sys::CUstream)
    }

    fn is_capturing_handle(&self, stream: sys::CUstream) -> Result<bool> {
        let _entered = self.enter()?;
        let mut status = sys::CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_NONE;
        // SAFETY: the handle is alive, and the call writes one number.
        match unsafe { sys::cuStreamIsCapturing(stream, &mut status) } {
            // Of the legacy default stream: another one that waits for it.
            CUresult::CUDA_ERROR_STREAM_CAPTURE_IMPLICIT => Ok(true),
            result => {
                self.check("cuStreamIsCapturing", result)?;
                Ok(status != sys::CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_NONE)
            }
        }
    }
}
