//! Streams of the CPU backend: each is a queue of work with a thread that executes it in order.

use std::cell::Cell;

use super::Cpu;
use super::hostile::Delays;
use crate::driver::Gather;
use crate::error::{Error, Result};
use crate::sync::channel::{Sender, unbounded};
use crate::sync::log;
use crate::sync::plain::AtomicU64;
use crate::sync::{
    Arc, AtomicBool, AtomicUsize, Condvar, Instant, Mutex, Ordering, Weak, mark_own_thread, thread,
    thread_local,
};

/// A queue with its thread. When the last handle is dropped, the thread finishes the queued work and ends.
pub(crate) struct CpuStream {
    operations: Arc<Sender<StreamWork>>,
    end: Arc<StreamEnd>,
    /// Its number, and how many events were recorded on it.
    number: usize,
    recorded: AtomicU64,
}

/// A stream's queue. When the stream is dropped, its work is still done.
#[derive(Clone)]
pub(super) struct Queue {
    operations: Weak<Sender<StreamWork>>,
    end: Arc<StreamEnd>,
}

/// Whether all work of a stream that was dropped is done, and what comes after that.
#[derive(Default)]
struct StreamEnd(Mutex<(bool, Vec<Arc<Joint>>)>);

/// An event of several streams: it fires when the last of them has reached it.
struct Joint {
    left: AtomicUsize,
    state: Arc<EventState>,
}

impl Joint {
    fn reached(&self) {
        // AcqRel: what each stream did before is seen by the last one, which fires the event.
        if self.left.fetch_sub(1, Ordering::AcqRel) == 1 {
            self.state.fire();
        }
    }
}

/// Records an event behind all work of these streams.
pub(super) fn record_behind(queues: &[Queue], device: Cpu) -> CpuEvent {
    let state = Arc::new(EventState {
        recorded: (usize::MAX, 0), // on no stream, and behind no other event
        ..EventState::default()
    });
    let joint = Arc::new(Joint {
        left: AtomicUsize::new(queues.len() + 1),
        state: Arc::clone(&state),
    });
    queues.iter().for_each(|queue| queue.join(&joint));
    joint.reached();
    CpuEvent { state, device }
}

/// The end of the work now on a stream.
pub(super) struct End(Arc<EventState>);

thread_local! {
    static IS_STREAM: Cell<bool> = const { Cell::new(false) };
}

/// Whether the calling thread is a stream's thread, which must not wait for streams.
pub(super) fn is_on_one() -> bool {
    IS_STREAM.with(Cell::get)
}

impl Queue {
    #[cfg(all(test, feature = "nvjpeg", target_os = "linux"))]
    pub(super) fn is_alive(&self) -> bool {
        self.operations.strong_count() > 0
    }

    /// Whether the stream was dropped, and all of its work is done.
    pub(super) fn is_over(&self) -> bool {
        self.end.0.lock().0
    }

    /// Has the stream reach the event behind its work.
    fn join(&self, joint: &Arc<Joint>) {
        let sent = self.operations.upgrade().is_some_and(|operations| {
            operations
                .send(StreamWork::Reach(Arc::clone(joint)))
                .is_ok()
        });
        if sent {
            return;
        }
        let mut end = self.end.0.lock();
        match &mut *end {
            (true, _) => joint.reached(),
            (false, after) => after.push(Arc::clone(joint)),
        }
    }

    pub(super) fn end(&self) -> Option<End> {
        let operations = self.operations.upgrade()?;
        let state = Arc::new(EventState::default());
        let sent = operations.send(StreamWork::Fire(Arc::clone(&state)));
        sent.is_ok().then_some(End(state))
    }
}

impl End {
    pub(super) fn wait(&self) {
        self.0.wait();
    }
}

enum StreamWork {
    Copy {
        from: u64,
        to: u64,
        bytes: usize,
    },
    /// `table`: the address of the rows' addresses.
    Gather {
        table: u64,
        rows: usize,
        row_bytes: usize,
        to: u64,
    },
    Fire(Arc<EventState>),
    Reach(Arc<Joint>),
    Wait(Arc<EventState>),
    Run(Box<dyn FnOnce() + Send>),
}

/// A point in a stream.
#[derive(Clone)]
pub(crate) struct CpuEvent {
    state: Arc<EventState>,
    device: Cpu,
}

#[derive(Default)]
struct EventState {
    fired: Mutex<Option<Instant>>,
    changed: Condvar,
    /// The device can no longer tell whether it fired.
    is_lost: AtomicBool,
    /// Where it was recorded: on which stream of all, and as which event of it.
    recorded: (usize, u64),
}

impl EventState {
    fn fire(&self) {
        *self.fired.lock() = Some(Instant::now());
        self.changed.notify_all();
    }

    fn wait(&self) {
        let mut fired = self.fired.lock();
        while fired.is_none() {
            self.changed.wait(&mut fired);
        }
    }
}

impl CpuStream {
    pub(super) fn start(number: usize, delays: Option<Delays>) -> Result<CpuStream> {
        let (sender, operations) = unbounded::<StreamWork>();
        let name = format!("pinfeed-cpu-stream-{number}");
        let end = Arc::new(StreamEnd::default());
        let ends = Arc::clone(&end);
        thread::Builder::new()
            .name(name.clone())
            .spawn(move || {
                IS_STREAM.with(|is_stream| is_stream.set(true));
                mark_own_thread();
                let mut delays = delays;
                for operation in operations {
                    if let Some(delays) = &mut delays {
                        delays.sleep();
                    }
                    operation.run();
                }
                let after = {
                    let mut end = ends.0.lock();
                    end.0 = true;
                    std::mem::take(&mut end.1)
                };
                after.iter().for_each(|joint| joint.reached());
            })
            .map_err(|source| Error::Thread { name, source })?;
        Ok(CpuStream {
            operations: Arc::new(sender),
            end,
            number,
            recorded: AtomicU64::new(0),
        })
    }

    pub(super) fn queue(&self) -> Queue {
        Queue {
            operations: Arc::downgrade(&self.operations),
            end: Arc::clone(&self.end),
        }
    }

    pub(super) fn record(&self, device: Cpu) -> CpuEvent {
        let count = self.recorded.fetch_add(1, Ordering::Relaxed);
        let state = Arc::new(EventState {
            recorded: (self.number, count),
            ..EventState::default()
        });
        self.push(StreamWork::Fire(Arc::clone(&state)));
        CpuEvent { state, device }
    }

    pub(super) fn wait(&self, event: &CpuEvent) {
        self.push(StreamWork::Wait(Arc::clone(&event.state)));
    }

    pub(super) fn run(&self, f: Box<dyn FnOnce() + Send>) {
        self.push(StreamWork::Run(f));
    }

    /// # Safety
    ///
    /// Both ranges must be valid until the stream has passed the copy, and nothing else may use them except in the
    /// stream's order.
    pub(super) unsafe fn copy(&self, from: u64, to: u64, bytes: usize) {
        self.push(StreamWork::Copy { from, to, bytes });
    }

    /// # Safety
    ///
    /// As `copy`, for each row, the table of the rows and the target.
    pub(super) unsafe fn gather(&self, gather: Gather<'_>) {
        self.push(StreamWork::Gather {
            table: gather.rows.as_ptr() as u64,
            rows: gather.rows.len(),
            row_bytes: gather.row_bytes,
            to: gather.to,
        });
    }

    fn push(&self, operation: StreamWork) {
        // The thread ends only when this sender is dropped, so the channel is open.
        let sent = self.operations.send(operation);
        debug_assert!(sent.is_ok());
    }

    pub(crate) fn same(&self, other: &CpuStream) -> bool {
        Arc::ptr_eq(&self.operations, &other.operations)
    }
}

impl StreamWork {
    fn run(self) {
        match self {
            StreamWork::Copy { from, to, bytes } => {
                // SAFETY: `CpuStream::copy`'s contract: both are valid, and nothing else uses them now.
                unsafe { std::ptr::copy(from as *const u8, to as *mut u8, bytes) };
            }
            StreamWork::Gather {
                table,
                rows,
                row_bytes,
                to,
            } => {
                // SAFETY: `CpuStream::gather`'s contract: the table is valid, and unchanged.
                let rows = unsafe { std::slice::from_raw_parts(table as *const *const u8, rows) };
                for (index, &row) in rows.iter().enumerate() {
                    let to = to as usize + index * row_bytes;
                    // SAFETY: as for a copy.
                    unsafe { std::ptr::copy(row, to as *mut u8, row_bytes) };
                }
            }
            StreamWork::Fire(state) => state.fire(),
            StreamWork::Reach(joint) => joint.reached(),
            StreamWork::Wait(state) => state.wait(),
            // A panic of the user's function would end the stream and hang everything that waits for it.
            StreamWork::Run(f) => {
                if let Err(payload) = std::panic::catch_unwind(std::panic::AssertUnwindSafe(f)) {
                    let message = crate::error::panic_message(payload);
                    log::error!("a host function on a CPU stream panicked: {message}");
                }
            }
        }
    }
}

impl CpuEvent {
    pub(crate) fn is_behind(&self, other: &CpuEvent) -> bool {
        let ((stream, count), (others, before)) = (self.state.recorded, other.state.recorded);
        stream == others && count > before
    }

    pub(crate) fn same(&self, other: &CpuEvent) -> bool {
        Arc::ptr_eq(&self.state, &other.state)
    }

    pub(crate) fn is_complete(&self) -> Result<bool> {
        self.device.sticky()?;
        self.device.event_fails(&self.state.is_lost)?;
        Ok(self.state.fired.lock().is_some())
    }

    pub(crate) fn synchronize(&self) -> Result<()> {
        self.device.event_fails(&self.state.is_lost)?;
        self.state.wait();
        self.device.sticky()
    }

    pub(crate) fn elapsed_ns(&self, start: &CpuEvent) -> Option<u64> {
        let (start, end) = ((*start.state.fired.lock())?, (*self.state.fired.lock())?);
        u64::try_from(end.saturating_duration_since(start).as_nanos()).ok()
    }
}
