//! Devices, their streams and their memory.
//!
//! A [`Device`] gives out [`Stream`]s and page-locks host memory. Batches become [`DeviceTensor`]s on it, which are lent to
//! kernels as a [`Loan`] or [`LoanMut`], on a stream that waits for the copy. [`Download`] is the way back.

// Host memory: a `ring` of page-locked blocks hands out `slab`s; the list of `flights` holds what a copy uses
// until its event fires. Device memory: a `pool` hands out blocks whose last users are done; `block` tracks the
// users of each tensor as events. `upload` and `download` copy between the two, through `staging` where host
// memory is pageable; `tensor` lends device memory to kernels, and `launch` runs the library's own. README.md in
// this folder has the state tables.

mod assembly;
mod block;
mod buffers;
mod byte_budget;
mod decoding;
mod download;
mod flights;
mod helpers;
mod host_memory;
mod launch;
mod pinning;
mod pool;
mod registered;
mod ring;
mod slab;
mod staging;
mod stream;
pub(crate) mod table;
mod tensor;
pub(crate) mod upload;

use std::collections::VecDeque;
use std::fmt;
use std::time::Duration;

pub(crate) use self::assembly::{Assembly, Rows, Unsent};
pub use self::buffers::{DeviceBuffers, Target};
pub(crate) use self::byte_budget::{ByteBudget, BytePermit};
#[cfg(feature = "nvjpeg")]
use self::decoding::Decoder;
use self::decoding::HeldSlabs;
pub(crate) use self::decoding::{NotDecoded, Undecoded, WhenDecoded};
pub use self::download::Download;
pub(crate) use self::flights::{Coming, Flights};
use self::flights::{Flight, Lane, Timing, drop_owner};
pub(crate) use self::host_memory::block_bytes;
use self::pool::Pool;
use self::registered::Parking;
pub(crate) use self::ring::{Kind, Reservation, Ring, SlabQuota};
pub(crate) use self::slab::{FillingSlab, Piece, Pieces, Slab};
pub(crate) use self::staging::HeldOff;
use self::staging::Staged;
pub use self::stream::Stream;
pub use self::tensor::{DeviceTensor, Loan, LoanMut};
pub(crate) use self::upload::{Tensors, Upload};
pub use crate::driver::DeviceInfo;
use crate::driver::{Driver, RawEvent, RawStream, cpu};
#[cfg(feature = "testing")]
pub use crate::driver::{Way, cpu::Hostile};
use crate::error::{Error, Result};
use crate::meter::{Enqueued, Meter, Settle};
use crate::sync::log;
use crate::sync::plain::AtomicUsize;
use crate::sync::{Arc, Mutex, OnceLock, Ordering, planted};
use crate::tensor::{Element, Offload, Shape, Storage, Tensor};
use crate::tuning::BUDGET_DIVISOR;

/// A device that batches go to: a CUDA device, or the CPU. Cloning it clones a reference.
///
/// It owns the ring of page-locked memory, the pool of device memory, and one stream for copies each way; loaders on
/// the same `Device` share them. Open it once and clone it.
///
/// # Examples
///
/// ```
/// use pinfeed::{Device, Tensor};
///
/// let device = Device::cpu();
/// let stream = device.stream()?;
/// let batch = (Tensor::from_vec(vec![1.0f32, 2.0], &[2])?, Tensor::from_vec(vec![3i64, 4], &[2])?);
///
/// let (x, y) = pinfeed::Batch::to_device(batch, &device, true)?; // returns at once
/// let x = x.on(&stream)?; // the stream waits for the copy, the CPU does not
/// assert_eq!(x.host_slice()?, Some(&[1.0, 2.0][..]));
/// # drop(y);
/// # Ok::<(), pinfeed::Error>(())
/// ```
#[derive(Clone)]
pub struct Device {
    pub(crate) inner: Arc<DeviceInner>,
}

pub(crate) struct DeviceInner {
    /// Counts the devices that this process opened, from 1, because several may have the same name.
    number: usize,
    /// Before `pool` and `driver`, because fields are dropped in order: copies in flight end before the memory that they use
    /// is freed.
    pub(crate) flights: Flights,
    pub(crate) pool: Pool,
    pub(crate) driver: Driver,
    h2d: Arc<RawStream>,
    d2h: Arc<RawStream>,
    /// For copies into existing tensors: they wait for kernels, which uploads must not.
    in_place: OnceLock<Arc<RawStream>>,
    /// For the library's own kernels, which wait for copies but hold none up.
    for_kernels: OnceLock<Arc<RawStream>>,
    pub(crate) ring: Arc<Ring>,
    pub(crate) staged: Arc<Staged>,
    /// Spans on the embedder's streams that have not ended.
    spans: Mutex<VecDeque<Timing>>,
    /// Decodes pictures of batches that were sent, once it is known that there will be any.
    #[cfg(feature = "nvjpeg")]
    decoder: OnceLock<Decoder>,
    /// What it has of the ring.
    held: HeldSlabs,
    /// Overrides where batches are cut, for tests.
    #[cfg(feature = "testing")]
    cut_at: Mutex<Option<(usize, usize)>>,
    /// After `flights`, so it is dropped later: it unlocks what the last copies held.
    parking: Arc<Parking>,
}

/// One device, where several may be named.
impl AsRef<[Device]> for Device {
    fn as_ref(&self) -> &[Device] {
        std::slice::from_ref(self)
    }
}

impl Device {
    /// The CPU as a device: each stream is a queue with a thread, events are events, and the same program runs.
    ///
    /// On this device *pinned* means "from the ring". Whether the system also locked the pages makes no difference to a
    /// copy.
    ///
    /// # Panics
    ///
    /// If the system gives no threads for the two copy streams.
    #[allow(clippy::expect_used)] // the panic is documented: without threads there is no program to write
    pub fn cpu() -> Device {
        Device::open(Driver::Cpu(cpu::Cpu::new(None)))
            .expect("the system gives threads for the copy streams")
    }

    /// A CPU device that delays, fails, runs short of memory and poisons idle memory: for testing your own program.
    ///
    /// # Errors
    ///
    /// The failures that it was told to produce, if they hit its construction.
    #[cfg(feature = "testing")]
    pub fn hostile(options: Hostile) -> Result<Device> {
        Device::open(Driver::Cpu(cpu::Cpu::new(Some(options))))
    }

    /// The CUDA device `ordinal`, counted from 0 as the driver counts.
    ///
    /// With the feature `nvjpeg`, on Linux, the first call sets `CUDA_DEVICE_MAX_CONNECTIONS=32` in the environment of the process, if it
    /// is not set and the program has no other thread yet: `image::Decode::Device` says what for. The context takes 0.3 s longer to make
    /// then (0.56 and 0.23 s on an H100); 8 in the environment leaves it as it is.
    ///
    /// # Errors
    ///
    /// [`NoDriver`](crate::Error::NoDriver), [`DriverTooOld`](crate::Error::DriverTooOld) (CUDA 12.0 is the oldest
    /// supported), [`StubDriver`](crate::Error::StubDriver), [`NoDevice`](crate::Error::NoDevice), or
    /// [`FeatureMissing`](crate::Error::FeatureMissing) without the feature `cuda`. It never falls back to the CPU. (A
    /// device of a compute capability below 7.0 opens, but [`DeviceTensor::normalize`] and the other kernels of this
    /// crate are errors there.)
    pub fn cuda(ordinal: usize) -> Result<Device> {
        #[cfg(feature = "cuda")]
        {
            Device::open(Driver::Cuda(crate::driver::cuda::Cuda::open(ordinal)?))
        }
        #[cfg(not(feature = "cuda"))]
        {
            let _ = ordinal;
            Err(Error::FeatureMissing { feature: "cuda" })
        }
    }

    /// Returns the first CUDA device, or the CPU if that cannot be opened; the reason is logged as a warning.
    ///
    /// # Panics
    ///
    /// As [`cpu`](Device::cpu), if it falls back to the CPU.
    pub fn available() -> Device {
        Device::cuda(0).unwrap_or_else(|error| {
            log::warn!("using the CPU: {error}");
            Device::cpu()
        })
    }

    /// Opens a device on a backend. By default each budget is a quarter of the memory on its side.
    pub(crate) fn open(driver: Driver) -> Result<Device> {
        let info = driver.info()?;
        let (h2d, d2h) = (
            Arc::new(driver.create_stream()?),
            Arc::new(driver.create_stream()?),
        );
        let pinned_budget = crate::system::usable_memory_bytes() / BUDGET_DIVISOR;
        static OPENED: AtomicUsize = AtomicUsize::new(0);
        Ok(Device {
            inner: Arc::new(DeviceInner {
                number: OPENED.fetch_add(1, Ordering::Relaxed) + 1,
                flights: Flights::default(),
                pool: Pool::new(driver.clone(), info.total_memory_bytes / BUDGET_DIVISOR),
                h2d,
                d2h,
                in_place: OnceLock::new(),
                for_kernels: OnceLock::new(),
                ring: Ring::pinned(driver.clone(), Arc::default(), pinned_budget),
                driver,
                staged: Arc::default(),
                spans: Mutex::default(),
                #[cfg(feature = "nvjpeg")]
                decoder: OnceLock::new(),
                held: HeldSlabs::default(),
                #[cfg(feature = "testing")]
                cut_at: Mutex::default(),
                parking: Arc::default(),
            }),
        })
    }

    /// The device's name: `cpu`, `cuda:0`.
    pub fn name(&self) -> String {
        self.inner.driver.name()
    }

    /// Whether it is the CPU: then its memory is host memory, which [`Loan::host_slice`] reads in place.
    pub fn is_cpu(&self) -> bool {
        self.inner.driver.is_host()
    }

    /// What the device reports about itself.
    ///
    /// # Errors
    ///
    /// [`Device`](crate::Error::Device) if the driver does not answer.
    pub fn info(&self) -> Result<DeviceInfo> {
        self.inner.driver.info()
    }

    /// Makes a new stream, which waits for no other stream, not even the legacy default stream.
    ///
    /// # Errors
    ///
    /// [`Device`](crate::Error::Device) if the driver refuses.
    pub fn stream(&self) -> Result<Stream> {
        Ok(Stream::new(
            self.inner.driver.create_stream()?,
            Arc::clone(&self.inner),
        ))
    }

    /// Sets how many bytes of host memory the ring may page-lock; a quarter of the usable memory by default.
    ///
    /// Shared by loaders (`pin_memory`), [`Tensor::pin`], downloads, and copies that are staged because their memory is
    /// pageable (a hundred MB are enough for those).
    ///
    /// Slabs that are in use when the budget is lowered stay page-locked when they become idle
    /// ([`MemoryStats::pinned_idle_bytes`]). They are used again, but never more at a time than the budget allows. They
    /// are given back when another slab needs the room, or when the program asks for it, by
    /// [`release_pinned`](Device::release_pinned) or by lowering the budget again.
    ///
    /// # Synchronization
    ///
    /// Raising the budget waits for nothing. Lowering it gives back what is idle beyond the new budget, and waits as
    /// [`release_pinned`](Device::release_pinned) does.
    pub fn set_pinned_budget_bytes(&self, bytes: usize) {
        self.inner.settle();
        self.inner.ring.set_budget_bytes(bytes);
    }

    /// Sets how many bytes of device memory the pool may hold; a quarter of the device's memory by default. The memory of the decoder of
    /// pictures comes on top ([`MemoryStats::decoder_bytes`]).
    ///
    /// # Synchronization
    ///
    /// Returns at once. Lowering the budget frees nothing by itself: [`release_device_memory`](Device::release_device_memory) does.
    pub fn set_device_budget_bytes(&self, bytes: usize) {
        self.inner.pool.set_budget_bytes(bytes);
    }

    /// Gives page-locked memory that is not in use back to the system: idle slabs, and registered memory that the program
    /// has let go of ([`Tensor::register`]). Returns the number of bytes.
    ///
    /// # Synchronization
    ///
    /// Does not wait for copies: what they use stays locked. Unlocking takes milliseconds and waits for running kernels,
    /// and CUDA's driver blocks the process's other calls meanwhile. Page-locking in progress is waited for.
    pub fn release_pinned(&self) -> usize {
        self.inner.settle();
        self.inner.ring.release() + self.inner.parking.release()
    }

    /// Gives device memory that no tensor holds back to the driver. Returns the number of bytes.
    ///
    /// # Synchronization
    ///
    /// Blocks until the kernels that last used the memory are done. Freeing may wait for the whole device.
    ///
    /// # Errors
    ///
    /// [`Device`](crate::Error::Device) if the device failed.
    pub fn release_device_memory(&self) -> Result<usize> {
        self.inner.pool.release()
    }

    /// Makes a CUDA device gather rows of registered memory in this way instead of the best way that its driver offers:
    /// for tests and benches. Returns whether the call came in time: the first gather fixes the way. (The CPU device has
    /// only one.)
    #[cfg(feature = "testing")]
    pub fn gather_by(&self, way: Way) -> bool {
        self.inner.driver.gather_by(way)
    }

    /// Cuts batches on their way to the device so that `resident_bytes` of slabs are filled in turn, in parts of at least
    /// `least_part_bytes`: for tests, whose batches are small. It applies to later epochs.
    #[cfg(feature = "testing")]
    pub fn cut_batches_at(&self, resident_bytes: usize, least_part_bytes: usize) {
        *self.inner.cut_at.lock() = Some((resident_bytes, least_part_bytes));
    }

    /// How many of the library's locks the calling thread holds: none where the program's code runs, which is what tests look at.
    #[cfg(feature = "testing")]
    #[doc(hidden)]
    pub fn locks_held() -> usize {
        crate::sync::locks_held()
    }

    /// Reports the memory that the device's ring and pool hold.
    pub fn memory(&self) -> MemoryStats {
        self.inner.settle();
        let (pinned_bytes, pinned_idle_bytes, pinned_budget_bytes) = self.inner.ring.bytes();
        let (device_bytes, device_held_bytes, device_budget_bytes, device_leaked) =
            self.inner.pool.bytes();
        let counters = &self.inner.ring.counters;
        let [decoder_bytes, decoder_pinned_bytes] = self.inner.decoder_bytes();
        MemoryStats {
            pinned_bytes,
            pinned_idle_bytes,
            pinned_budget_bytes,
            parked_bytes: self.inner.parking.bytes(),
            slabs_made: counters.made.get(),
            slabs_reused: counters.reused.get(),
            slabs_missed: counters.missed.get(),
            slabs_unlockable: counters.unlockable.get(),
            page_locking: counters.page_locking_ns.time(),
            unstaged: counters.unstaged.get(),
            device_bytes,
            device_held_bytes,
            device_budget_bytes,
            decoder_bytes,
            decoder_pinned_bytes,
            leaked: self.inner.flights.leaked() + device_leaked,
        }
    }
}

/// What a device's ring and pool hold ([`Device::memory`]).
///
/// # Examples
///
/// ```
/// use pinfeed::Device;
///
/// let device = Device::cpu();
/// device.set_pinned_budget_bytes(1 << 30);
/// let memory = device.memory();
/// println!("{} of {} bytes are page-locked", memory.pinned_bytes, memory.pinned_budget_bytes);
/// assert_eq!(memory.pinned_budget_bytes, 1 << 30);
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct MemoryStats {
    /// Page-locked bytes of the ring, in use or idle.
    pub pinned_bytes: usize,
    /// Page-locked bytes of the ring that are idle: [`Device::release_pinned`] gives them back.
    pub pinned_idle_bytes: usize,
    /// How many bytes the ring may page-lock.
    pub pinned_budget_bytes: usize,
    /// Bytes of registered memory whose last holder was a copy or a thread of the library ([`Tensor::register`]):
    /// [`Device::release_pinned`] gives them back.
    pub parked_bytes: usize,
    /// Slabs made. After warm-up this stays constant.
    pub slabs_made: u64,
    /// Slabs used again.
    pub slabs_reused: u64,
    /// Slabs that were to be page-locked, but for which the budget or an epoch's share had no room.
    pub slabs_missed: u64,
    /// Slabs that the system refused to page-lock. They stay in the ring as pageable memory.
    pub slabs_unlockable: u64,
    /// The time spent making slabs: touching and page-locking them. (With `serde`, in seconds.)
    #[cfg_attr(feature = "serde", serde(serialize_with = "crate::meter::seconds"))]
    pub page_locking: Duration,
    /// Large copies between pageable memory and the device that were left to the driver because the ring had no room to
    /// stage them. That is several times slower.
    pub unstaged: u64,
    /// Bytes of device memory in the pool, held by tensors or idle.
    pub device_bytes: usize,
    /// Bytes of device memory that tensors hold.
    pub device_held_bytes: usize,
    /// How many bytes the pool may hold.
    pub device_budget_bytes: usize,
    /// Bytes of device memory that the decoder of pictures has (feature `nvjpeg`), while it is open: 512 MiB at most. They are not in
    /// the pool, and count in no budget.
    pub decoder_bytes: usize,
    /// Page-locked bytes that it has, which are not in the ring.
    pub decoder_pinned_bytes: usize,
    /// Blocks of memory that were leaked on purpose, because the device failed and may still be using them.
    pub leaked: u64,
}

/// Copies whose time is measured: the event before them, and the meter that counts it.
struct Measured {
    start: RawEvent,
    meter: Arc<Meter>,
    /// For how many uploads like this one it counts.
    stands_for: u64,
    /// What is recorded of them.
    enqueued: Option<Enqueued>,
}

impl Settle for DeviceInner {
    fn settle(&self) {
        DeviceInner::settle(self);
    }
}

impl DeviceInner {
    /// The error for something of this device that was used where `expected` is meant.
    fn is_not(&self, expected: &DeviceInner, what: &'static str) -> Error {
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
    fn add_flight(
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
            #[cfg(feature = "nvjpeg")]
            decodes: self.driver.decodes(),
            #[cfg(feature = "nvjpeg")]
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
    fn land(&self) -> Vec<Arc<dyn Storage>> {
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
    fn measure(&self, span: Timing) {
        self.spans.lock().push_back(span);
    }

    /// The stream that a lane's copies are on.
    fn stream_of(&self, lane: Lane) -> Result<&Arc<RawStream>> {
        match lane {
            Lane::Upload => Ok(&self.h2d),
            Lane::Download => Ok(&self.d2h),
            Lane::InPlace => self.stream_in(&self.in_place),
        }
    }

    /// The stream for the library's own kernels.
    fn for_kernels(&self) -> Result<&Arc<RawStream>> {
        self.stream_in(&self.for_kernels)
    }

    /// A stream that is created when it is first needed.
    fn stream_in<'a>(&self, cell: &'a OnceLock<Arc<RawStream>>) -> Result<&'a Arc<RawStream>> {
        if let Some(stream) = cell.get() {
            return Ok(stream);
        }
        let stream = Arc::new(self.driver.create_stream()?);
        Ok(cell.get_or_init(|| stream))
    }

    /// Host memory for a download: page-locked, or, if the ring has no room, pageable and counted as missed.
    fn host_tensor<T: Element>(&self, shape: Shape) -> Tensor<T> {
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

impl fmt::Debug for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Device")
            .field("name", &self.name())
            .field("number", &self.inner.number)
            .finish_non_exhaustive()
    }
}
