//! Streams and events of the CUDA backend.

use std::any::Any;
use std::time::Duration;

use cudarc::driver::sys::{self, CUresult};

use super::{Cuda, RawHandle};
use crate::error::Result;
use crate::sync::{Arc, AtomicBool, Instant, Ordering, spin_loop, thread};
use crate::tuning::EVENT_SPIN_MS;

/// A `CUstream`: our own, which is destroyed on drop, or the embedder's.
pub(crate) struct CuStream {
    handle: sys::CUstream,
    owner: Owner,
    /// The thread of a per-thread default stream: its handle names another stream on every thread.
    thread: Option<thread::ThreadId>,
}

enum Owner {
    /// This object destroys the stream, in this context.
    Ours(Cuda),
    /// The embedder does; this keeps the stream alive, unless the embedder promised to.
    Theirs {
        _keep: Option<Arc<dyn Any + Send + Sync>>,
    },
}

// SAFETY: a stream's handle may be used from any thread; the per-thread default stream is checked (`on_its_thread`).
unsafe impl Send for CuStream {}
// SAFETY: as above, also concurrently: the driver locks.
unsafe impl Sync for CuStream {}

/// `CU_STREAM_PER_THREAD` of cuda.h.
pub(crate) const PER_THREAD: usize = 2;

/// `CU_STREAM_LEGACY` of cuda.h.
pub(super) const LEGACY: usize = 1;

/// No stream's handle: an event behind the work of all.
pub(super) const EVERYWHERE: usize = usize::MAX;

impl CuStream {
    pub(super) fn owned(handle: sys::CUstream, cuda: Cuda) -> CuStream {
        CuStream {
            handle,
            owner: Owner::Ours(cuda),
            thread: None,
        }
    }

    /// # Safety
    ///
    /// `handle` must be a stream of the context that it is used with, and live as long as `keep` or this object.
    pub(crate) unsafe fn foreign(
        handle: *mut std::ffi::c_void,
        keep: Option<Arc<dyn Any + Send + Sync>>,
    ) -> CuStream {
        CuStream {
            handle: handle.cast(),
            owner: Owner::Theirs { _keep: keep },
            thread: (handle as usize == PER_THREAD).then(|| thread::current().id()),
        }
    }

    pub(crate) fn handle(&self) -> sys::CUstream {
        self.handle
    }

    pub(crate) fn on_its_thread(&self) -> bool {
        self.thread
            .is_none_or(|thread| thread == thread::current().id())
    }

    pub(crate) fn is_of_one_thread(&self) -> bool {
        self.thread.is_some()
    }

    pub(crate) fn same(&self, other: &CuStream) -> bool {
        self.handle == other.handle && self.thread == other.thread
    }
}

impl Drop for CuStream {
    fn drop(&mut self) {
        if let Owner::Ours(cuda) = &self.owner
            && let Ok(_entered) = cuda.enter()
        {
            // SAFETY: the handle is ours alone. The driver lets queued work finish first.
            let _ = unsafe { sys::cuStreamDestroy_v2(self.handle) };
        }
    }
}

/// A recorded event, from the device's pool of events.
#[derive(Clone)]
pub(crate) struct CuEvent(Arc<Recorded>);

struct Recorded {
    handle: RawHandle,
    timed: bool,
    /// Where it was recorded: on which stream (or [`EVERYWHERE`]), and as which of all events.
    stream: usize,
    number: u64,
    /// Once complete, always complete: later queries need no driver.
    complete: AtomicBool,
    cuda: Cuda,
}

// SAFETY: an event's handle may be used from several threads concurrently: the driver locks.
unsafe impl Sync for RawHandle {}

impl CuEvent {
    /// An event that is about to be recorded on the stream of this handle.
    pub(super) fn new(handle: sys::CUevent, timed: bool, stream: usize, cuda: Cuda) -> CuEvent {
        CuEvent(Arc::new(Recorded {
            handle: RawHandle(handle),
            timed,
            stream,
            number: cuda.0.recorded.fetch_add(1, Ordering::Relaxed),
            complete: AtomicBool::new(false),
            cuda,
        }))
    }

    pub(super) fn handle(&self) -> sys::CUevent {
        self.0.handle.0
    }

    pub(crate) fn same(&self, other: &CuEvent) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }

    pub(crate) fn is_behind(&self, other: &CuEvent) -> bool {
        // (The per-thread default stream is one stream for each thread.)
        self.0.stream == other.0.stream
            && self.0.stream != PER_THREAD
            && self.0.number > other.0.number
    }

    pub(crate) fn enter(&self) -> Option<super::Entered> {
        self.0.cuda.enter().ok()
    }

    /// Whether it is known to be complete.
    pub(crate) fn has_fired(&self) -> bool {
        // Acquire pairs with the Release below: copied memory that was visible to the thread that queried is visible
        // here, too.
        self.0.complete.load(Ordering::Acquire)
    }

    pub(crate) fn is_complete(&self) -> Result<bool> {
        if self.has_fired() {
            return Ok(true);
        }
        let _entered = self.0.cuda.enter()?;
        self.query()
    }

    /// Queries the driver; the context is current.
    fn query(&self) -> Result<bool> {
        // SAFETY: the handle is alive.
        match unsafe { sys::cuEventQuery(self.handle()) } {
            CUresult::CUDA_ERROR_NOT_READY => Ok(false),
            result => {
                self.0.cuda.check("cuEventQuery", result)?;
                self.0.complete.store(true, Ordering::Release);
                Ok(true)
            }
        }
    }

    /// Spins for as long as a large copy takes, as the driver's own waits do, and then sleeps (figures:
    /// [`EVENT_SPIN_MS`]).
    pub(crate) fn synchronize(&self) -> Result<()> {
        if self.has_fired() {
            return Ok(());
        }
        let start = Instant::now();
        {
            let _entered = self.0.cuda.enter()?;
            while start.elapsed() < Duration::from_millis(EVENT_SPIN_MS) {
                if self.query()? {
                    return Ok(());
                }
                spin_loop();
            }
        }
        self.sleep()
    }

    /// Sleeps until the event fires: for threads that keep no caller waiting.
    pub(crate) fn sleep(&self) -> Result<()> {
        if self.is_complete()? {
            return Ok(());
        }
        let _entered = self.0.cuda.enter()?;
        // SAFETY: the handle is alive.
        self.0.cuda.check("cuEventSynchronize", unsafe {
            sys::cuEventSynchronize(self.handle())
        })?;
        self.0.complete.store(true, Ordering::Release);
        Ok(())
    }

    pub(crate) fn elapsed_ns(&self, start: &CuEvent) -> Option<u64> {
        if !self.0.timed || !start.0.timed {
            return None;
        }
        let _entered = self.0.cuda.enter().ok()?;
        let mut milliseconds = 0.0f32;
        // SAFETY: both handles are alive and were made with timing.
        let code = unsafe {
            (self.0.cuda.0.probe.elapsed_time)(
                &mut milliseconds,
                start.handle().cast(),
                self.handle().cast(),
            )
        };
        (code == 0).then(|| (f64::from(milliseconds) * 1e6) as u64)
    }
}

impl Drop for Recorded {
    fn drop(&mut self) {
        let handle = RawHandle(self.handle.0);
        self.cuda.0.events[usize::from(self.timed)]
            .lock()
            .push(handle);
    }
}
