//! What a device owns: its streams, the ring of page-locked memory, the pool of device memory, and the copies in flight.

use std::collections::VecDeque;

use super::captures::Captures;
use super::decoding::{Decoder, HeldSlabs, NotDecoded, Undecoded, WhenDecoded};
use super::flights::{Coming, Flight, Flights, Lane, Timing, drop_owner};
use super::pool::Pool;
use super::registered::Parking;
use super::ring::Ring;
use super::staged::Staged;
use crate::driver::{Driver, RawEvent, RawStream};
use crate::error::{Error, Result};
use crate::meter::{Enqueued, Meter, Settle};
use crate::sync::log;
use crate::sync::plain::AtomicUsize;
use crate::sync::{Arc, AtomicBool, Instant, Mutex, OnceLock, Ordering, planted};
use crate::tensor::{Element, Offload, Shape, Storage, Tensor};
use crate::tuning::BUDGET_DIVISOR;

/// What a device owns. All of its handles, and what lies in its memory, share it.
pub(crate) struct DeviceInner {
    /// Counts the devices that this process opened, from 1, because several may have the same name.
    pub(super) number: usize,
    /// Before `pool` and `driver`, because fields are dropped in order: copies in flight end before the memory that they use
    /// is freed.
    pub(crate) flights: Flights,
    pub(crate) pool: Pool,
    pub(super) captures: Arc<Captures>,
    /// Whether memory that is adrift is swept with each batch.
    pub(super) sweeps: AtomicBool,
    pub(crate) driver: Driver,
    pub(super) h2d: Arc<RawStream>,
    pub(super) d2h: Arc<RawStream>,
    /// For copies into existing tensors: they wait for kernels, which uploads must not.
    in_place: OnceLock<Arc<RawStream>>,
    /// For the library's own kernels, which wait for copies but hold none up.
    for_kernels: OnceLock<Arc<RawStream>>,
    pub(crate) ring: Arc<Ring>,
    pub(crate) staged: Arc<Staged>,
    /// Spans on the embedder's streams that have not ended.
    spans: Mutex<VecDeque<Timing>>,
    /// Decodes pictures of batches that were sent, once it is known that there will be any.
    decoder: OnceLock<Decoder>,
    /// What it has of the ring.
    pub(super) held: Arc<HeldSlabs>,
    /// Overrides where batches are cut, for tests.
    #[cfg(feature = "testing")]
    pub(super) cut_at: Mutex<Option<(usize, usize)>>,
    /// After `flights`, so it is dropped later: it unlocks what the last copies held.
    pub(super) parking: Arc<Parking>,
}

/// Copies whose time is measured: the event before them, and the meter that counts it.
pub(super) struct Measured {
    pub(super) start: RawEvent,
    pub(super) meter: Arc<Meter>,
    /// For how many uploads like this one it counts.
    pub(super) stands_for: u64,
    /// What is recorded of them.
    pub(super) enqueued: Option<Enqueued>,
}

impl Settle for DeviceInner {
    fn settle(&self) {
        DeviceInner::settle(self);
    }
}

impl DeviceInner {
    /// Opens a device on a backend. By default each budget is a quarter of the memory on its side.
    pub(super) fn open(driver: Driver) -> Result<DeviceInner> {
        let info = driver.info()?;
        let (h2d, d2h) = (
            Arc::new(driver.create_stream()?),
            Arc::new(driver.create_stream()?),
        );
        let captures = Arc::new(Captures::default());
        captures.know(&h2d);
        captures.know(&d2h);
        let pinned_budget = crate::system::usable_memory_bytes() / BUDGET_DIVISOR;
        static OPENED: AtomicUsize = AtomicUsize::new(0);
        let ring = Ring::pinned(driver.clone(), Arc::default(), pinned_budget);
        Ok(DeviceInner {
            number: OPENED.fetch_add(1, Ordering::Relaxed) + 1,
            flights: Flights::default(),
            pool: Pool::new(
                driver.clone(),
                info.total_memory_bytes / BUDGET_DIVISOR,
                Arc::clone(&captures),
            ),
            captures,
            sweeps: AtomicBool::new(false),
            h2d,
            d2h,
            in_place: OnceLock::new(),
            for_kernels: OnceLock::new(),
            staged: Arc::default(),
            spans: Mutex::default(),
            decoder: OnceLock::new(),
            held: HeldSlabs::new(&ring, &driver),
            ring,
            driver,
            #[cfg(feature = "testing")]
            cut_at: Mutex::default(),
            parking: Arc::default(),
        })
    }

    /// The error for something of this device that was used where `expected` is meant.
    pub(super) fn is_not(&self, expected: &DeviceInner, what: &'static str) -> Error {
        let names = [self, expected].map(|device| device.driver.name());
        let [found, expected] = match names[0] == names[1] {
            false => names,
            true => [self, expected].map(|device| {
                let (name, number) = (device.driver.name(), device.number);
                format!("{name} (device {number} of those that this process opened)")
            }),
        };
        Error::WrongDevice {
            what,
            found,
            expected,
        }
    }

    /// As [`Driver::resident_bytes`], unless a test overrides it.
    pub(crate) fn resident_bytes(&self) -> Option<(usize, usize)> {
        #[cfg(feature = "testing")]
        if let Some(bytes) = *self.cut_at.lock() {
            return Some(bytes);
        }
        self.driver.resident_bytes()
    }

    /// Records an event behind the copies that a lane's stream holds, and adds them to the list of flights, which keeps the
    /// host memory that they use. Waiters for a slab are told that there is now a copy to wait for.
    ///
    /// `measured`: what is known of the time that the copies take, if that is measured.
    ///
    /// If the event cannot be recorded, returns the host memory: copies may be using it.
    pub(super) fn add_flight(
        &self,
        lane: Lane,
        host: Vec<Arc<dyn Storage>>,
        measured: Option<Measured>,
    ) -> Result<RawEvent, (Error, Vec<Arc<dyn Storage>>)> {
        let record = || {
            let stream = self.stream_of(lane);
            let done = stream.and_then(|stream| self.driver.record(stream, measured.is_some()));
            let done = match done {
                Ok(done) => done,
                Err(error) => return Err((error, host)),
            };
            let timing = measured.map(|measured| Timing {
                start: measured.start,
                end: done.clone(),
                meter: measured.meter,
                sum: |meter, elapsed, stands_for| {
                    meter.transfer_ns.add(elapsed.saturating_mul(stands_for));
                    meter.transfer_times.count(elapsed);
                },
                stands_for: measured.stands_for,
                enqueued: measured.enqueued,
            });
            Ok(Flight { done, host, timing })
        };
        let done = self.flights.add(lane, record)?;
        if !planted("no news of a copy") {
            self.ring.news().notify_interested();
        }
        Ok(done)
    }

    /// What the device does itself with batches that are made for it.
    pub(crate) fn offload(&self) -> Offload {
        Offload {
            gathers: Some(self.driver.backend()),
            decodes: self.driver.decodes(),
            own: None, // each task's are its own
        }
    }

    /// What will bring a slab of the ring home: of `quota`, if given, or of any. If this finds nothing, then whatever
    /// was on its way before is at home.
    pub(crate) fn coming_home(&self, quota: Option<usize>) -> Coming {
        match self.flights.bringing_home(self.ring.name(), quota) {
            // Last: a staged upload counts as one until its copies are in the list.
            Coming::Nothing
                if quota.is_none()
                    && self.staged.is_sending()
                    && !planted("staged copies do not count") =>
            {
                Coming::Staged
            }
            Coming::Nothing if self.held.has(self.ring.name(), quota) => Coming::Decoding,
            coming => coming,
        }
    }

    /// Handles what has finished: copies let go of their memory, spans are counted.
    pub(crate) fn settle(&self) {
        self.land().into_iter().for_each(drop_owner);
    }

    /// As `settle`, but returns owners of host memory, which may be the program's to drop.
    #[must_use]
    pub(super) fn land(&self) -> Vec<Arc<dyn Storage>> {
        let owners = self.flights.land();
        // Batches are processed in order, so if the first span has not ended, neither have the others.
        let over = |span: &Timing| !matches!(span.end.is_complete(), Ok(false));
        loop {
            let span = {
                let mut spans = self.spans.lock();
                let first = spans.front().is_some_and(over);
                first.then(|| spans.pop_front()).flatten()
            };
            match span {
                Some(span) => span.settle(),
                None => return owners,
            }
        }
    }

    /// Adds a span, which is measured once it has ended.
    pub(super) fn measure(&self, span: Timing) {
        self.spans.lock().push_back(span);
    }

    /// The stream that a lane's copies are on.
    pub(super) fn stream_of(&self, lane: Lane) -> Result<&Arc<RawStream>> {
        match lane {
            Lane::Upload => Ok(&self.h2d),
            Lane::Download => Ok(&self.d2h),
            Lane::InPlace => self.stream_in(&self.in_place),
        }
    }

    /// The stream for the library's own kernels.
    pub(super) fn for_kernels(&self) -> Result<&Arc<RawStream>> {
        self.stream_in(&self.for_kernels)
    }

    /// A stream that is created when it is first needed.
    fn stream_in<'a>(&self, cell: &'a OnceLock<Arc<RawStream>>) -> Result<&'a Arc<RawStream>> {
        if let Some(stream) = cell.get() {
            return Ok(stream);
        }
        let stream = Arc::new(self.driver.create_stream()?);
        self.captures.know(&stream);
        Ok(cell.get_or_init(|| stream))
    }

    /// Sweeps memory that is adrift, if the program wants that with each batch. It is on the program's thread here.
    pub(crate) fn sweep_with_batch(&self) {
        if self.sweeps.load(Ordering::Relaxed)
            && let Err(error) = self.pool.sweep()
        {
            // If the device is broken, the batch says so itself; otherwise the next sweep is as good.
            log::warn!("device memory stays adrift: {error}");
        }
    }

    /// Host memory for a download: page-locked, or, if the ring has no room, pageable and counted as missed.
    pub(super) fn host_tensor<T: Element>(&self, shape: Shape) -> Tensor<T> {
        let bytes = shape.iter().product::<usize>() * size_of::<T>();
        self.settle();
        match self.ring.take(bytes) {
            Some(slab) => {
                let base = slab.base().cast();
                // SAFETY: the slab is as large as the tensor, page-aligned, initialized, and has no other holder.
                unsafe { Tensor::from_raw(base, shape, Arc::new(slab)) }
            }
            None => {
                self.ring.count_missed();
                log::warn!(
                    "{}: a download of {bytes} bytes goes to pageable memory: {}",
                    self.driver.name(),
                    self.ring.refusal(bytes)
                );
                Tensor::zeros(&shape)
            }
        }
    }
}

impl DeviceInner {
    /// Whether pictures that come now need not wait until the decoder is open: it is, or could not be opened.
    pub(crate) fn is_decoder_ready(&self) -> bool {
        self.decoder.get().is_some_and(Decoder::was_tried)
    }

    /// Begins to open the decoder: pictures will come. It does not wait. If opening fails, it is tried again when they are there, and they
    /// are told why.
    pub(crate) fn open_decoder(&self) {
        match self.decoder() {
            Ok(decoder) => decoder.open(),
            Err(error) => log::debug!("no decoder is opened ahead: {error}"),
        }
    }

    /// Has pictures decoded that were sent as they are.
    pub(crate) fn decode(&self, undecoded: Undecoded, when_decoded: WhenDecoded) {
        match self.decoder() {
            Ok(decoder) => decoder.decode(undecoded, when_decoded),
            Err(error) => {
                drop(undecoded); // its slab is at home then
                when_decoded(Err(NotDecoded::Failed(error)));
            }
        }
    }

    /// When the decoder was done with anything last, if it was.
    pub(crate) fn decoder_moved(&self) -> Option<Instant> {
        self.decoder.get()?.moved()
    }

    /// How many bytes the decoder has: of the device, and page-locked.
    pub(super) fn decoder_bytes(&self) -> [usize; 2] {
        self.decoder.get().map_or([0; 2], Decoder::bytes)
    }

    /// The decoder is not waited for any more. Until it goes on, the slabs that it has are not waited for, either.
    pub(crate) fn decoder_is_late(&self) {
        self.held.are_late();
    }

    /// The decoder's thread, which is started when it is needed first.
    fn decoder(&self) -> Result<&Decoder> {
        if let Some(decoder) = self.decoder.get() {
            return Ok(decoder);
        }
        let decoder = Decoder::start(&self.driver)?;
        // (Of two that were started at once, one ends here.)
        Ok(self.decoder.get_or_init(|| decoder))
    }
}
