//! Device memory and its users: which work may still touch it, as events.

use super::buffer_set::{BufferSet, Home, Passing};
use super::flights::Timing;
use super::inner::DeviceInner;
use super::pool::Memory;
use crate::driver::{RawEvent, RawStream};
use crate::error::{Error, Result};
use crate::meter::Meter;
use crate::sync::log;
use crate::sync::{Arc, Mutex, Weak};

/// A block of the device pool, shared by the tensors that lie in it.
pub(crate) struct DeviceBlock {
    memory: Memory,
    device: Arc<DeviceInner>,
    /// The events after which the memory is free, left here by tensors that were dropped.
    pending: Mutex<Vec<RawEvent>>,
    leaked: crate::sync::AtomicBool,
    /// Not all of its users are known by their streams.
    adrift: crate::sync::AtomicBool,
    /// The last stream that was made to wait for the upload: it need not wait again for the block's other tensors.
    waiting: Mutex<Option<Weak<RawStream>>>,
    /// The meter that counts how long the batch is processed, if that is measured.
    meter: Option<Arc<Meter>>,
    span: Mutex<Span>,
    home: Home,
}

/// From the first loan of a batch to its last, on the consumer's stream.
#[derive(Default)]
struct Span {
    first: Option<RawEvent>,
    last: Option<RawEvent>,
    /// It is not measured: the batch is copied, and processed where it was copied to.
    is_elsewhere: bool,
}

impl Span {
    fn is_to_begin(&self) -> bool {
        self.first.is_none() && !self.is_elsewhere
    }
}

impl DeviceBlock {
    pub(super) fn take(
        device: &Arc<DeviceInner>,
        bytes: usize,
        meter: Option<Arc<Meter>>,
        waits: bool,
    ) -> Result<DeviceBlock> {
        let memory = device.pool.take(bytes, waits)?;
        Ok(DeviceBlock::new(memory, device, meter, Home::Pool))
    }

    /// Of memory that has no other holder, and whose last users are done.
    pub(super) fn new(
        mut memory: Memory,
        device: &Arc<DeviceInner>,
        meter: Option<Arc<Meter>>,
        home: Home,
    ) -> DeviceBlock {
        DeviceBlock {
            pending: Mutex::new(std::mem::take(&mut memory.list)),
            memory,
            device: Arc::clone(device),
            leaked: false.into(),
            adrift: false.into(),
            waiting: Mutex::default(),
            meter,
            span: Mutex::default(),
            home,
        }
    }

    pub(super) fn address(&self) -> u64 {
        self.memory.address
    }

    pub(super) fn device(&self) -> &Arc<DeviceInner> {
        &self.device
    }

    /// If it is one of the program's buffers: says that a thread of the library holds it, which will let go of it first.
    pub(super) fn passing(&self) -> Option<Passing> {
        self.set().map(Passing::new)
    }

    /// Adds events after which the memory is free.
    pub(super) fn free_behind(&self, events: impl IntoIterator<Item = RawEvent>) {
        self.pending.lock().extend(events);
    }

    /// Never hands the memory out again: there is no way to tell when its last user is done.
    pub(super) fn leak(&self) {
        self.leaked.store(true, crate::sync::Ordering::Relaxed);
    }

    /// Hands the memory out again only behind an event of the whole context.
    fn set_adrift(&self) {
        self.adrift.store(true, crate::sync::Ordering::Relaxed);
    }

    /// The set of fixed buffers that its memory belongs to, if it does.
    pub(super) fn set(&self) -> Option<&Arc<BufferSet>> {
        match &self.home {
            Home::Pool => None,
            Home::Buffer(set, _) => Some(set),
        }
    }

    /// The stream was made to wait for the upload.
    fn ordered_before(&self, stream: &Arc<RawStream>) {
        *self.waiting.lock() = Some(Arc::downgrade(stream));
    }

    /// Whether the stream is known to wait for the upload.
    fn is_ordered_before(&self, stream: &Arc<RawStream>) -> bool {
        let waiting = self.waiting.lock();
        // (Another object may name the same stream. None has this one's address while it is named here.)
        let is = |waiting: &Weak<RawStream>| std::ptr::eq(waiting.as_ptr(), Arc::as_ptr(stream));
        waiting.as_ref().is_some_and(is)
    }

    /// Whether the start of the batch's processing is measured, and has not been marked.
    fn is_to_begin(&self) -> bool {
        self.meter.is_some() && self.span.lock().is_to_begin()
    }

    /// Marks it, at the first loan.
    fn begin(&self, stream: &RawStream) -> Result<()> {
        if self.meter.is_some() {
            let mut span = self.span.lock();
            if span.is_to_begin() {
                span.first = Some(self.device.driver.record(stream, true)?);
            }
        }
        Ok(())
    }

    /// Whether loans should end with a timed event.
    fn is_timed(&self) -> bool {
        self.meter.is_some() && !self.span.lock().is_elsewhere
    }

    /// The batch is handed over by a copy: unless its processing has begun here, that is not measured, and its events are not timed.
    pub(super) fn is_processed_elsewhere(&self) {
        if self.meter.is_some() {
            let mut span = self.span.lock();
            span.is_elsewhere = span.first.is_none();
        }
    }

    fn end(&self, event: &RawEvent) {
        if self.is_timed() {
            self.span.lock().last = Some(event.clone());
        }
    }
}

impl Drop for DeviceBlock {
    fn drop(&mut self) {
        let is_adrift = *self.adrift.get_mut() && !*self.leaked.get_mut();
        if is_adrift {
            // No driver is called here, and no lock is taken under which another thread calls one. (When it was processed is not known,
            // either.)
            let memory = Memory {
                address: self.memory.address,
                capacity: self.memory.capacity,
                list: Vec::new(),
            };
            return self.device.pool.put_adrift(memory, self.home.outside());
        }
        let span = std::mem::take(self.span.get_mut());
        if let (Some(meter), Some(start), Some(end)) = (self.meter.take(), span.first, span.last) {
            self.device.measure(Timing {
                start,
                end,
                meter,
                sum: |meter, elapsed, _| {
                    meter.processed.add(1);
                    meter.processing_ns.add(elapsed);
                },
                stands_for: 1,
                enqueued: None,
            });
        }
        let memory = Memory {
            address: self.memory.address,
            capacity: self.memory.capacity,
            list: Vec::new(),
        };
        let pending = std::mem::take(self.pending.get_mut());
        let is_leaked = *self.leaked.get_mut();
        match &self.home {
            Home::Pool if is_leaked => self.device.pool.leak(&memory),
            Home::Pool => self.device.pool.put(memory, pending),
            Home::Buffer(set, index) => set.put(*index, memory, (!is_leaked).then_some(pending)),
        }
    }
}

/// The users of one tensor's memory: its last writer, and the readers since.
///
/// A loan is entered when it is *made*. A loan that was forgotten (`mem::forget`) is still open when the tensor is
/// dropped or next borrowed exclusively. It cannot be held any more then, and an event after the stream's work so far
/// ends it.
pub(super) struct Uses {
    block: Arc<DeviceBlock>,
    state: Mutex<UseList>,
}

#[derive(Default)]
struct UseList {
    write: Option<Use>,
    reads: Vec<Use>,
    next: u64,
}

/// The number of the write with which a tensor begins. All tensors of a block have the same.
const UPLOAD: u64 = 0;

struct Use {
    id: u64,
    progress: Progress,
}

enum Progress {
    /// A loan on this stream is open: its kernels are still being launched.
    Open(Arc<RawStream>),
    /// All work of this use comes before the event.
    Closed(RawEvent),
}

impl Uses {
    /// The memory's last write is done when `written` fires.
    pub(super) fn new(block: Arc<DeviceBlock>, written: Option<RawEvent>) -> Uses {
        Uses {
            block,
            state: Mutex::new(UseList {
                write: written.map(|event| Use {
                    id: UPLOAD,
                    progress: Progress::Closed(event),
                }),
                reads: Vec::new(),
                next: 1,
            }),
        }
    }

    pub(super) fn block(&self) -> &Arc<DeviceBlock> {
        &self.block
    }

    fn device(&self) -> &DeviceInner {
        &self.block.device
    }

    /// Makes the stream wait for the last writer, and enters a reader on it.
    pub(super) fn begin_read(&self, stream: &Arc<RawStream>) -> Result<u64> {
        let mut state = self.state.lock();
        // Where nothing is to be enqueued, the driver is not called.
        if self.block.is_to_begin() || !state.is_written_before(&self.block, stream) {
            let _entered = self.device().driver.enter()?;
            self.settle_write(&mut state)?;
            if let Some((event, is_upload)) = state.written_behind() {
                self.device().driver.stream_wait(stream, event)?;
                if is_upload {
                    self.block.ordered_before(stream);
                }
            }
            // After the wait: the copy's time is not part of the processing.
            self.block.begin(stream)?;
        }
        let id = state.next_id();
        state.reads.push(Use {
            id,
            progress: Progress::Open(Arc::clone(stream)),
        });
        Ok(id)
    }

    /// Makes the stream wait for the last writer and for all readers, and enters a writer on it. The caller borrows
    /// the tensor exclusively.
    pub(super) fn begin_write(&self, stream: &Arc<RawStream>) -> Result<u64> {
        let _entered = self.device().driver.enter()?;
        let mut state = self.state.lock();
        self.settle_all(&mut state)?;
        for event in state.events() {
            self.device().driver.stream_wait(stream, event)?;
        }
        self.block.begin(stream)?;
        // The new writer waits for the others, so its event covers theirs, and they can be forgotten.
        let id = state.next_id();
        state.reads.clear();
        state.write = Some(Use {
            id,
            progress: Progress::Open(Arc::clone(stream)),
        });
        Ok(id)
    }

    /// Ends a loan: records an event after its stream's work.
    pub(super) fn end(&self, id: u64) {
        let driver = &self.device().driver;
        let mut state = self.state.lock();
        let Some(user) = state.find(id) else {
            return;
        };
        let Progress::Open(stream) = &user.progress else {
            return;
        };
        let _entered = driver.enter();
        match driver.record(stream, self.block.is_timed()) {
            Ok(event) => {
                self.block.end(&event);
                user.progress = Progress::Closed(event);
                state.reads.retain(|read| read.id == id || !read.is_done());
            }
            // The device failed: the use stays open, and the memory is leaked when the tensor is dropped.
            Err(error) => log::error!("a loan could not be ended: {error}"),
        }
    }

    /// Ends all loans but this one, as [`end`](Uses::end) does: of a tensor that is lent to an owner, which has moved on.
    pub(super) fn end_others(&self, id: Option<u64>) {
        let open: Vec<u64> = {
            let state = self.state.lock();
            let users = state.write.iter().chain(&state.reads);
            let open = users.filter(|user| user.event().is_none());
            open.map(|user| user.id).collect()
        };
        let others = open.into_iter().filter(|open| Some(*open) != id);
        others.for_each(|open| self.end(open));
    }

    /// Any stream may use the memory from now on: when it is free, only an event of the whole context tells, which is behind all uses that
    /// are entered here, too.
    pub(super) fn end_everywhere(&mut self) {
        *self.state.get_mut() = UseList::default();
        self.block.set_adrift();
    }

    /// The event of the last write, unless it has fired.
    pub(super) fn last_write(&self) -> Result<Option<RawEvent>> {
        let mut state = self.state.lock();
        self.settle_write(&mut state)?;
        Ok(state.written_behind().map(|(event, _)| event.clone()))
    }

    /// Every event that a new writer must wait for. The caller borrows the tensor exclusively.
    pub(super) fn all_events(&mut self) -> Result<Vec<RawEvent>> {
        let mut state = self.state.lock();
        self.settle_all(&mut state)?;
        Ok(state.events().cloned().collect())
    }

    /// Enters a reader whose work comes before this event.
    pub(super) fn read_behind(&self, event: RawEvent) {
        let mut state = self.state.lock();
        let id = state.next_id();
        state.reads.retain(|read| !read.is_done());
        state.reads.push(Use {
            id,
            progress: Progress::Closed(event),
        });
    }

    /// Enters a writer that waited for all others and whose work comes before this event.
    pub(super) fn written_behind(&mut self, event: RawEvent) {
        let state = self.state.get_mut();
        let id = state.next_id();
        state.reads.clear();
        state.write = Some(Use {
            id,
            progress: Progress::Closed(event),
        });
    }

    /// Closes a write loan that was forgotten: a shared borrow of the tensor proves that it is not held any more.
    fn settle_write(&self, state: &mut UseList) -> Result<()> {
        match &mut state.write {
            Some(write) => self.settle(write),
            None => Ok(()),
        }
    }

    /// Closes all loans that were forgotten: an exclusive borrow proves that none is held any more.
    fn settle_all(&self, state: &mut UseList) -> Result<()> {
        self.settle_write(state)?;
        state
            .reads
            .iter_mut()
            .try_for_each(|read| self.settle(read))
    }

    fn settle(&self, user: &mut Use) -> Result<()> {
        if let Progress::Open(stream) = &user.progress {
            if !stream.on_its_thread() {
                return Err(Error::WrongThread);
            }
            let event = self.device().driver.record(stream, self.block.is_timed())?;
            self.block.end(&event);
            user.progress = Progress::Closed(event);
        }
        Ok(())
    }
}

impl UseList {
    fn next_id(&mut self) -> u64 {
        self.next += 1;
        self.next
    }

    fn find(&mut self, id: u64) -> Option<&mut Use> {
        self.write
            .iter_mut()
            .chain(&mut self.reads)
            .find(|user| user.id == id)
    }

    /// The last writer's event, which is forgotten once it has fired, so that later loans wait for nothing. And whether it is that of the
    /// upload.
    fn written_behind(&mut self) -> Option<(&RawEvent, bool)> {
        if self.write.as_ref().is_some_and(Use::is_done) {
            self.write = None;
        }
        let write = self.write.as_ref()?;
        Some((write.event()?, write.id == UPLOAD))
    }

    /// Whether the last write is known to come before all that the stream will do.
    fn is_written_before(&self, block: &DeviceBlock, stream: &Arc<RawStream>) -> bool {
        let Some(write) = &self.write else {
            return true;
        };
        let has_fired = write.event().is_some_and(RawEvent::has_fired);
        has_fired || (write.id == UPLOAD && block.is_ordered_before(stream))
    }

    fn events(&self) -> impl Iterator<Item = &RawEvent> {
        self.write.iter().chain(&self.reads).filter_map(Use::event)
    }
}

impl Use {
    fn event(&self) -> Option<&RawEvent> {
        match &self.progress {
            Progress::Open(_) => None,
            Progress::Closed(event) => Some(event),
        }
    }

    fn is_done(&self) -> bool {
        self.event()
            .is_some_and(|event| matches!(event.is_complete(), Ok(true)))
    }
}

impl Drop for Uses {
    /// The tensor is dropped: its memory is free after the events of all its users.
    fn drop(&mut self) {
        let mut state = std::mem::take(self.state.get_mut());
        match self.settle_all(&mut state) {
            Ok(()) => self.block.free_behind(state.events().cloned()),
            // A forgotten loan on another thread's default stream, or a device that failed.
            Err(error) => {
                log::warn!(
                    "device memory is leaked: the end of its last use cannot be known ({error})"
                );
                self.block.leak();
            }
        }
    }
}
