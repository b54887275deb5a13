//! Staged copies: between pageable memory and the device, through slabs of the ring. Several threads copy pieces between
//! the program's memory and the slabs while the copy engine moves others between the slabs and the device.
//!
//! The driver does the same with its own buffers and one thread, at a third of the speed. Here all pieces have one size,
//! and whichever thread is free takes the next one, copies it and enqueues its copy. Each is a copy of its own, so their
//! order does not matter. README.md in this folder has the states of a slab.

use std::collections::VecDeque;

use super::inner::DeviceInner;
use super::ring::Slab;
use super::staged::Staged;
use crate::driver::{Driver, RawCopy, RawEvent, RawStream};
use crate::error::Result;
use crate::memory::copy_streaming;
use crate::sync::{Arc, AtomicBool, AtomicUsize, Mutex, Ordering};
use crate::tensor::{Home, Storage};
use crate::tuning::{
    COPY_THREADS, FULLY_STAGED_COPIES, LEAST_STAGED_PIECES, LEAST_STAGING_SLABS,
    STAGING_CACHE_SHARE, STAGING_SLABS_PER_THREAD,
};

/// How many slabs a transfer wants.
const SLABS: usize = COPY_THREADS * STAGING_SLABS_PER_THREAD;

/// A call that stages an upload, until its slabs are at home or held by a copy in the list of flights.
struct StagedUpload<'a>(&'a DeviceInner);

impl<'a> StagedUpload<'a> {
    fn begin(device: &'a DeviceInner) -> StagedUpload<'a> {
        device.staged.begin(&device.ring);
        StagedUpload(device)
    }
}

impl Drop for StagedUpload<'_> {
    fn drop(&mut self) {
        self.0.staged.end(&self.0.ring);
    }
}

/// Stages the copies of one call on one stream. It takes slabs when it first needs them and uses them for all of the
/// call's copies. They must be held until those are done ([`Staging::hold`]); then it is dropped.
pub(super) struct Staging<'a> {
    device: &'a DeviceInner,
    stream: &'a Arc<RawStream>,
    places: VecDeque<StagingPlace>,
    /// After `places`, so it is dropped later.
    sending: Option<StagedUpload<'a>>,
    /// The size of a piece, once there has been one.
    chunk: Option<usize>,
}

/// What became of a copy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum CopyOutcome {
    /// It was enqueued, as by [`Driver::copy`].
    Enqueued,
    /// It was staged. To the device: the source has been read, and the rest is enqueued on the stream. To the host: the
    /// bytes have arrived.
    Staged,
}

/// A slab, and the copy that uses it.
struct StagingPlace {
    slab: StagingSlab,
    /// The last copy from or to the slab; `None` if there was none, or it is done.
    busy: Option<RawEvent>,
    /// The piece that this copy brings to the host.
    arriving: Option<Piece>,
}

/// A part of the region that is copied.
#[derive(Debug, Clone, Copy)]
struct Piece {
    start: usize,
    bytes: usize,
}

impl<'a> Staging<'a> {
    pub(super) fn new(device: &'a DeviceInner, stream: &'a Arc<RawStream>) -> Staging<'a> {
        Staging {
            device,
            stream,
            places: VecDeque::new(),
            sending: None,
            chunk: None,
        }
    }

    /// Copies through slabs, if the host memory is pageable, the copy is large and the ring has room. If not, enqueues
    /// the copy as it is.
    ///
    /// A staged copy blocks. If it fails, some pieces may still be in flight from or into the slabs, but the program's
    /// memory is not in use any more.
    ///
    /// # Safety
    ///
    /// As [`Driver::copy`] if the copy is enqueued; a staged one needs the host memory only during the call.
    pub(super) unsafe fn copy(&mut self, copy: RawCopy, is_pinned: bool) -> Result<CopyOutcome> {
        let driver = &self.device.driver;
        let bytes = copy.bytes();
        match driver.staging_chunk_bytes() {
            Some(least) if !is_pinned && bytes >= LEAST_STAGED_PIECES * least => {
                let chunk = *self.chunk.get_or_insert_with(|| chunk_for(bytes, least));
                if self.begin()? && self.find_places(chunk, bytes.div_ceil(chunk)) {
                    return self.stage(copy, chunk).map(|()| CopyOutcome::Staged);
                }
                self.device.ring.counters.unstaged.add(1);
            }
            _ => {}
        }
        // SAFETY: the caller's contract.
        unsafe { driver.copy(self.stream, copy) }.map(|()| CopyOutcome::Enqueued)
    }

    /// The slabs, which may be in use until an event that is recorded on the stream now has fired.
    pub(super) fn hold(&mut self) -> impl Iterator<Item = Arc<dyn Storage>> {
        let hold = |place: StagingPlace| Arc::new(place.slab) as Arc<dyn Storage>;
        self.places.drain(..).map(hold)
    }

    /// Called before the first slab is taken. `false`: the call is held off.
    fn begin(&mut self) -> Result<bool> {
        if !self.places.is_empty() {
            return Ok(true);
        }
        let device = self.device;
        let held_off = || device.staged.held_off.load(Ordering::Relaxed) > 0;
        if Arc::ptr_eq(self.stream, &device.h2d) {
            // Before the call is announced: a batch that learns of it waits for this call, and holds off later ones.
            if held_off() {
                return Ok(false);
            }
            self.sending
                .get_or_insert_with(|| StagedUpload::begin(device));
            return Ok(true);
        }
        // Other streams wait for kernels. The caller waits for those before it has slabs, which others could use
        // meanwhile, and before the helpers are involved, which others need.
        device.driver.record(self.stream, false)?.synchronize()?;
        Ok(!held_off())
    }

    /// Takes slabs for this many pieces, as far as there are any. Returns whether there are enough.
    fn find_places(&mut self, chunk: usize, pieces: usize) -> bool {
        let (ring, staged) = (&self.device.ring, &self.device.staged);
        while self.places.len() < pieces.min(SLABS) {
            let out = staged.slabs.load(Ordering::Relaxed);
            if self.places.len() >= LEAST_STAGING_SLABS && out >= FULLY_STAGED_COPIES * SLABS {
                break;
            }
            match ring.take(chunk) {
                Some(slab) if slab.is_page_locked() => self.places.push_back(StagingPlace {
                    slab: StagingSlab::new(slab, staged),
                    busy: None,
                    arriving: None,
                }),
                _ => break,
            }
        }
        let enough = self.places.len() >= LEAST_STAGING_SLABS;
        if !enough {
            self.places.clear(); // unused: a transfer has its slabs from its start
            self.sending = None;
        }
        enough
    }

    fn stage(&mut self, copy: RawCopy, chunk: usize) -> Result<()> {
        let driver = &self.device.driver;
        let threads = self.places.len().min(COPY_THREADS);
        let transfer = Arc::new(Transfer {
            driver: driver.clone(),
            stream: Arc::clone(self.stream),
            region: TransferRegion::new(copy),
            chunk,
            around_the_cache: outgrow_the_cache(chunk),
            next: AtomicUsize::new(0),
            ready: Mutex::new(std::mem::take(&mut self.places)),
            finished: Mutex::default(),
            has_failed: AtomicBool::new(false),
            error: Mutex::default(),
        });
        let work = Arc::clone(&transfer);
        let helpers = self.device.ring.helpers();
        helpers.together(threads, move || work.run());
        self.places.append(&mut transfer.ready.lock());
        self.places.append(&mut transfer.finished.lock());
        let error = transfer.error.lock().take();
        error.map_or(Ok(()), Err)
    }
}

/// Twice the size if there are enough pieces: the engine then has fewer copies to start.
fn chunk_for(bytes: usize, least: usize) -> usize {
    match bytes / (2 * least) >= SLABS {
        true => 2 * least,
        false => least,
    }
}

/// Whether the slabs of a transfer do not stay in the last-level cache until the engine has read them.
fn outgrow_the_cache(chunk: usize) -> bool {
    let share = crate::system::cache_bytes() as f64 * STAGING_CACHE_SHARE;
    SLABS * chunk > share as usize
}

/// The region that is copied, by addresses, because threads share it.
#[derive(Debug, Clone, Copy)]
struct TransferRegion {
    host: usize,
    device: u64,
    bytes: usize,
    to_device: bool,
}

impl TransferRegion {
    fn new(copy: RawCopy) -> TransferRegion {
        let (host, device, to_device) = match copy {
            RawCopy::ToDevice { from, to, .. } => (from as usize, to, true),
            RawCopy::ToHost { from, to, .. } => (to as usize, from, false),
        };
        TransferRegion {
            host,
            device,
            bytes: copy.bytes(),
            to_device,
        }
    }
}

/// One region's way through the slabs: what the threads that copy it share.
struct Transfer {
    driver: Driver,
    stream: Arc<RawStream>,
    region: TransferRegion,
    chunk: usize,
    /// Whether slabs are written by non-temporal stores.
    around_the_cache: bool,
    /// The start of the first piece that no thread has taken.
    next: AtomicUsize,
    /// The slabs that no thread is working on, about in the order in which their copies were enqueued.
    ready: Mutex<VecDeque<StagingPlace>>,
    /// The slabs for which no piece was left.
    finished: Mutex<VecDeque<StagingPlace>>,
    has_failed: AtomicBool,
    error: Mutex<Option<crate::error::Error>>,
}

impl Transfer {
    /// What each thread does: it takes the first slab of the queue and moves it on.
    ///
    /// A thread that finds no slab leaves: other threads are working on all of them, or no piece is left. Each slab goes
    /// back into the queue until no piece is left, so none is forgotten.
    fn run(&self) {
        loop {
            if self.has_failed.load(Ordering::Relaxed) {
                return;
            }
            let Some(mut place) = self.ready.lock().pop_front() else {
                return;
            };
            let advanced = if self.region.to_device {
                self.send(&mut place)
            } else {
                self.receive(&mut place)
            };
            match advanced {
                Ok(true) => self.ready.lock().push_back(place),
                Ok(false) => self.finished.lock().push_back(place),
                Err(error) => {
                    self.finished.lock().push_back(place);
                    self.error.lock().get_or_insert(error);
                    self.has_failed.store(true, Ordering::Relaxed);
                }
            }
        }
    }

    /// Sends the next piece to the device. Returns whether there was one.
    fn send(&self, place: &mut StagingPlace) -> Result<bool> {
        let Some(piece) = self.next_piece() else {
            return Ok(false);
        };
        place.wait()?;
        let from = (self.region.host + piece.start) as *const u8;
        // SAFETY: the piece lies within the source, which the caller of `Staging::copy` keeps until all threads are done.
        // It fits into the slab, which only this thread uses, because its last copy is done (*no access while in
        // flight*).
        unsafe { put(from, place.slab.base(), piece.bytes, self.around_the_cache) };
        let copy = RawCopy::ToDevice {
            from: place.slab.base(),
            to: self.region.device + piece.start as u64,
            bytes: piece.bytes,
        };
        // SAFETY: the place keeps the slab from being written or given away before the copy is done (*no access while in
        // flight*); the target is valid by the contract of `Staging::copy`, and pieces do not overlap.
        unsafe { self.enqueue(place, copy) }?;
        Ok(true)
    }

    /// Copies what arrived into the program's memory, and enqueues the copy of the next piece. Returns whether there was
    /// one.
    fn receive(&self, place: &mut StagingPlace) -> Result<bool> {
        place.wait()?;
        if let Some(piece) = place.arriving.take() {
            let to = (self.region.host + piece.start) as *mut u8;
            // SAFETY: the piece lies within the target, which nothing else uses and which the caller of `Staging::copy`
            // keeps until all threads are done; the copy into the slab is done. (Non-temporal, because it is not read
            // soon, and what is staged is larger than most caches.)
            unsafe { copy_streaming(place.slab.base(), to, piece.bytes) };
        }
        let Some(piece) = self.next_piece() else {
            return Ok(false);
        };
        let copy = RawCopy::ToHost {
            from: self.region.device + piece.start as u64,
            to: place.slab.base(),
            bytes: piece.bytes,
        };
        // SAFETY: the place keeps the slab from being touched or given away before the copy is done (*no access while in
        // flight*); the source is valid by the contract of `Staging::copy`.
        unsafe { self.enqueue(place, copy) }?;
        place.arriving = Some(piece);
        Ok(true)
    }

    /// # Safety
    ///
    /// As [`Driver::copy`].
    unsafe fn enqueue(&self, place: &mut StagingPlace, copy: RawCopy) -> Result<()> {
        // SAFETY: the caller's contract.
        unsafe { self.driver.copy(&self.stream, copy) }?;
        // Without an event, the slab is not used again: the transfer has failed.
        place.busy = Some(self.driver.record(&self.stream, false)?);
        Ok(())
    }

    fn next_piece(&self) -> Option<Piece> {
        let start = self.next.fetch_add(self.chunk, Ordering::Relaxed);
        (start < self.region.bytes).then(|| Piece {
            start,
            bytes: self.chunk.min(self.region.bytes - start),
        })
    }
}

impl StagingPlace {
    /// Waits until the copy that uses the slab is done.
    fn wait(&mut self) -> Result<()> {
        if let Some(busy) = &self.busy {
            busy.synchronize()?;
            self.busy = None;
        }
        Ok(())
    }
}

/// Copies between the program's memory and a slab.
///
/// # Safety
///
/// As [`copy_streaming`].
unsafe fn put(from: *const u8, to: *mut u8, bytes: usize, around_the_cache: bool) {
    if around_the_cache {
        // SAFETY: the caller's contract.
        unsafe { copy_streaming(from, to, bytes) };
    } else {
        // SAFETY: the caller's contract.
        unsafe { std::ptr::copy_nonoverlapping(from, to, bytes) };
    }
}

/// A slab that stages copies. It is counted while it is out.
struct StagingSlab {
    slab: Slab,
    staged: Arc<Staged>,
}

impl StagingSlab {
    fn new(slab: Slab, staged: &Arc<Staged>) -> StagingSlab {
        staged.slabs.fetch_add(1, Ordering::Relaxed);
        StagingSlab {
            slab,
            staged: Arc::clone(staged),
        }
    }

    fn base(&self) -> *mut u8 {
        self.slab.base().as_ptr()
    }
}

impl Storage for StagingSlab {
    fn is_pinned(&self) -> bool {
        true
    }

    fn home(&self) -> Option<Home> {
        self.slab.home()
    }
}

impl Drop for StagingSlab {
    fn drop(&mut self) {
        self.staged.slabs.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::Device;

    /// A batch that learns of a copy holds off later ones, but not the one that it is going to wait for.
    #[test]
    fn a_copy_is_not_held_off_by_who_learns_of_it() {
        let device = Device::cpu();
        let mut first = Staging::new(&device.inner, &device.inner.h2d);
        assert!(first.begin().unwrap());
        let held_off = device.inner.staged.hold_off();
        assert!(first.find_places(4096, 4));
        let mut next = Staging::new(&device.inner, &device.inner.h2d);
        assert!(!next.begin().unwrap());
        drop((first, held_off));
        assert!(next.begin().unwrap() && next.find_places(4096, 4));
    }
}
