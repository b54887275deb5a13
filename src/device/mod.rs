//! Devices, slabs and transfers: who owns which bytes, and when they may be touched.
//!
//! Host memory: a [`ring`] of page-locked blocks hands out [`slab`]s; what a copy uses is held by the list of
//! [`flights`] until its event fires. Device memory: a [`pool`] hands out blocks whose last users are done;
//! [`block`] knows the users of each tensor as events. [`upload`] and [`download`] move tensors between the two, from and
//! into pageable memory by way of [`staging`], and [`tensor`] lends device memory to kernels. README.md beside this file has the state tables.

mod aside;
mod assembly;
mod block;
mod download;
mod flights;
mod helpers;
mod host_memory;
#[expect(unsafe_code, reason = "it has the device read and write memory")]
mod labels;
mod mixing;
#[expect(unsafe_code, reason = "it has the device read and write memory")]
mod normalize;
mod pinning;
mod pool;
mod ring;
mod slab;
mod staging;
mod stream;
mod tensor;
mod transforming;
mod upload;

use std::collections::VecDeque;
use std::fmt;

use self::aside::{Aside, Finish};
pub(crate) use self::assembly::{Assembly, Rows, Unsent};
pub use self::download::Download;
pub(crate) use self::flights::{Coming, Flights};
use self::flights::{Flight, Timing};
pub use self::mixing::{Mix, Mixing};
pub use self::normalize::Normalize;
use self::pool::Pool;
pub(crate) use self::ring::{Account, Kind, Ring};
pub(crate) use self::slab::FillingSlab;
pub(crate) use self::slab::Slab;
pub(crate) use self::staging::HeldOff;
use self::staging::Staged;
pub use self::stream::Stream;
pub use self::tensor::{DeviceTensor, Loan, LoanMut};
pub use self::upload::{Tensors, Upload};
pub use crate::driver::DeviceInfo;
use crate::driver::{Driver, RawStream, cpu};
#[cfg(feature = "testing")]
pub use crate::driver::{Way, cpu::Hostile};
use crate::error::{Error, Result};
use crate::meter::Settle;
use crate::sync::plain::AtomicUsize;
use crate::sync::{Arc, Mutex, OnceLock, Ordering, planted};
use crate::tensor::{Element, Shape, Tensor};

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
    /// Counts the devices that the process opened, from 1: several may have one name.
    number: usize,
    /// First, so that it goes first: copies in flight end before the memory that they use.
    pub(crate) flights: Flights,
    pub(crate) pool: Pool,
    pub(crate) driver: Driver,
    h2d: Arc<RawStream>,
    d2h: Arc<RawStream>,
    /// For copies into tensors that exist: they wait for kernels, which uploads must not.
    in_place: OnceLock<Arc<RawStream>>,
    /// For kernels of our own, which wait for copies and hold none up.
    transforming: OnceLock<Arc<RawStream>>,
    pub(crate) ring: Arc<Ring>,
    pub(crate) staged: Arc<Staged>,
    /// Spans on the embedder's streams that are not over.
    spans: Mutex<VecDeque<Timing>>,
    /// Where batches are cut, as a test has it.
    #[cfg(feature = "testing")]
    cut_at: Mutex<Option<(usize, usize)>>,
    /// Last, so that it goes last: what the others leave to unlock is unlocked.
    finish: Finish,
}

impl Device {
    /// The CPU as a device: streams are queues with a thread each, events are events, and the same program runs.
    ///
    /// There *pinned* means "from the ring"; whether the system also locked the pages does not matter to a copy.
    ///
    /// # Panics
    ///
    /// If the system gives no threads for the two copy streams.
    #[allow(clippy::expect_used)] // the panic is documented: without threads there is no program to write
    pub fn cpu() -> Device {
        Device::open(Driver::Cpu(cpu::Cpu::new(None)))
            .expect("the system gives threads for the copy streams")
    }

    /// A CPU device that delays, fails, runs short and poisons what is idle: for testing one's own program.
    ///
    /// # Errors
    ///
    /// The failures that it was asked for, where they strike its making.
    #[cfg(feature = "testing")]
    pub fn hostile(options: Hostile) -> Result<Device> {
        Device::open(Driver::Cpu(cpu::Cpu::new(Some(options))))
    }

    /// The CUDA device `ordinal`, counted from 0 as the driver counts.
    ///
    /// # Errors
    ///
    /// [`NoDriver`](crate::Error::NoDriver), [`DriverTooOld`](crate::Error::DriverTooOld) (CUDA 12.0 is the oldest
    /// served), [`StubDriver`](crate::Error::StubDriver), [`NoDevice`](crate::Error::NoDevice), or
    /// [`FeatureMissing`](crate::Error::FeatureMissing) without the feature `cuda`; none is ever replaced by the CPU.
    /// (On devices of a compute capability below 7.0 it opens, and [`DeviceTensor::normalize`] and others that are kernels of this
    /// crate are errors.)
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

    /// The first CUDA device, or the CPU where there is none; the reason is logged.
    pub fn available() -> Device {
        Device::cuda(0).unwrap_or_else(|error| {
            log::warn!("using the CPU: {error}");
            Device::cpu()
        })
    }

    /// Opens a device on a backend, by default with budgets of a quarter of the memory on either side.
    pub(crate) fn open(driver: Driver) -> Result<Device> {
        let info = driver.info()?;
        let (h2d, d2h) = (
            Arc::new(driver.create_stream()?),
            Arc::new(driver.create_stream()?),
        );
        let pinned_budget = crate::system::usable_memory_bytes() / 4;
        let aside = Aside::default();
        static OPENED: AtomicUsize = AtomicUsize::new(0);
        Ok(Device {
            inner: Arc::new(DeviceInner {
                number: OPENED.fetch_add(1, Ordering::Relaxed) + 1,
                flights: Flights::new(aside.clone()),
                pool: Pool::new(driver.clone(), info.total_memory_bytes / 4),
                h2d,
                d2h,
                in_place: OnceLock::new(),
                transforming: OnceLock::new(),
                ring: Ring::pinned(driver.clone(), Arc::default(), aside.clone(), pinned_budget),
                driver,
                staged: Arc::default(),
                spans: Mutex::default(),
                #[cfg(feature = "testing")]
                cut_at: Mutex::default(),
                finish: Finish(aside),
            }),
        })
    }

    /// The device's name: `cpu`, `cuda:0`.
    pub fn name(&self) -> String {
        self.inner.driver.name()
    }

    /// Whether it is the CPU: then its memory is host memory, which [`Loan::host_slice`] reads where it lies.
    pub fn is_cpu(&self) -> bool {
        self.inner.driver.is_host()
    }

    /// What the device says of itself.
    ///
    /// # Errors
    ///
    /// [`Device`](crate::Error::Device) if the driver does not answer.
    pub fn info(&self) -> Result<DeviceInfo> {
        self.inner.driver.info()
    }

    /// Makes a new stream, which waits for no other (not for the legacy default stream either).
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
    /// Loaders (`pin_memory`), [`Tensor::pin`], downloads, and copies that are staged because their memory is pageable
    /// (for these a hundred MB are enough) share it. What is page-locked beyond a lowered budget is
    /// given back as it falls idle, by a thread of its own. That waits for running kernels, and CUDA's driver holds up the process's
    /// other calls meanwhile: lower the budget where a stall does no harm.
    pub fn set_pinned_budget_bytes(&self, bytes: usize) {
        self.inner.ring.set_budget_bytes(bytes);
    }

    /// Sets how many bytes of device memory the pool may hold; a quarter of the device's memory by default.
    pub fn set_device_budget_bytes(&self, bytes: usize) {
        self.inner.pool.set_budget_bytes(bytes);
    }

    /// Gives page-locked memory that is not in use back to the system; returns how many bytes.
    ///
    /// # Synchronization
    ///
    /// Does not wait for copies: what they use stays. Unlocking pages can take milliseconds, and waits for running kernels;
    /// page-locking that is under way is waited for.
    pub fn release_pinned(&self) -> usize {
        self.inner.settle();
        self.inner.ring.release()
    }

    /// Gives device memory that no tensor holds back to the driver; returns how many bytes.
    ///
    /// # Synchronization
    ///
    /// Blocks until the kernels that last used it are done; freeing may wait for the whole device.
    ///
    /// # Errors
    ///
    /// [`Device`](crate::Error::Device) if the device failed.
    pub fn release_device_memory(&self) -> Result<usize> {
        self.inner.pool.release()
    }

    /// Has a CUDA device gather rows of registered memory in this way, instead of the best that its driver has: for
    /// tests and benches. Says whether it came in time: the first rows decide. (The CPU device has one way only.)
    #[cfg(feature = "testing")]
    pub fn gather_by(&self, way: Way) -> bool {
        self.inner.driver.gather_by(way)
    }

    /// Has batches on their way to the device cut into parts so that so many bytes of slabs are filled in turn, of at least so
    /// many each: for tests, whose batches are small. It holds for epochs to come.
    #[cfg(feature = "testing")]
    pub fn cut_batches_at(&self, resident_bytes: usize, least_part_bytes: usize) {
        *self.inner.cut_at.lock() = Some((resident_bytes, least_part_bytes));
    }

    /// Counts the memory that the device's ring and pool hold.
    pub fn memory(&self) -> MemoryStats {
        self.inner.settle();
        let (pinned_bytes, pinned_idle_bytes, pinned_budget_bytes) = self.inner.ring.bytes();
        let (device_bytes, device_held_bytes, device_budget_bytes, device_leaked) =
            self.inner.pool.bytes();
        let counters = &self.inner.ring.counters;
        MemoryStats {
            pinned_bytes,
            pinned_idle_bytes,
            pinned_budget_bytes,
            slabs_made: counters.made.get(),
            slabs_reused: counters.reused.get(),
            slabs_missed: counters.missed.get(),
            slabs_unlockable: counters.unlockable.get(),
            page_locking_ns: counters.page_locking_ns.get(),
            unstaged: counters.unstaged.get(),
            device_bytes,
            device_held_bytes,
            device_budget_bytes,
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
    /// Page-locked bytes of the ring that are idle: what [`Device::release_pinned`] would give back.
    pub pinned_idle_bytes: usize,
    /// How many bytes the ring may page-lock.
    pub pinned_budget_bytes: usize,
    /// Slabs made: after warm-up this stands still.
    pub slabs_made: u64,
    /// Slabs used again.
    pub slabs_reused: u64,
    /// Slabs that were wanted page-locked, and that the budget or an epoch's share did not give.
    pub slabs_missed: u64,
    /// Slabs that the system would not page-lock, and that stay in the ring as pageable memory.
    pub slabs_unlockable: u64,
    /// The time spent making slabs, in nanoseconds: touching and page-locking.
    pub page_locking_ns: u64,
    /// Large copies between pageable memory and the device for which the ring had no room to stage them: the driver did,
    /// which is several times slower.
    pub unstaged: u64,
    /// Bytes of device memory in the pool, held by tensors or idle.
    pub device_bytes: usize,
    /// Bytes of device memory that tensors hold.
    pub device_held_bytes: usize,
    /// How many bytes the pool may hold.
    pub device_budget_bytes: usize,
    /// Pieces of memory given up, because nobody could say when the device was done with them.
    pub leaked: u64,
}

impl Settle for DeviceInner {
    fn settle(&self) {
        DeviceInner::settle(self);
    }
}

impl DeviceInner {
    /// The error of something of this device that was used where `expected` is meant.
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

    /// As [`Driver::resident_bytes`], unless a test has it otherwise.
    pub(crate) fn resident_bytes(&self) -> Option<(usize, usize)> {
        #[cfg(feature = "testing")]
        if let Some(bytes) = *self.cut_at.lock() {
            return Some(bytes);
        }
        self.driver.resident_bytes()
    }

    /// What is done without anybody waiting for it.
    fn aside(&self) -> &Aside {
        &self.finish.0
    }

    /// Enters a copy into the list, and tells who waits for a slab that there is a copy to wait for.
    fn submitted(&self, flight: Flight) {
        self.flights.push(flight);
        if !planted("no news of a copy") {
            self.ring.news().notify_interested();
        }
    }

    /// What is on its way to bring a slab of the ring home: one of `account`, if it is named, or any. Who finds nothing here
    /// finds at home what was on its way before.
    pub(crate) fn coming_home(&self, account: Option<usize>) -> Coming {
        match self.flights.bringing_home(self.ring.name(), account) {
            // Asked last: a staged upload counts as one until its copies are in the list.
            Coming::Nothing
                if account.is_none()
                    && self.staged.is_sending()
                    && !planted("staged copies do not count") =>
            {
                Coming::Staged
            }
            coming => coming,
        }
    }

    /// Looks after what is over: finished copies let go of their memory, finished spans are counted.
    pub(crate) fn settle(&self) {
        self.flights.reap();
        // Batches are processed in their order, so the first tells of the others.
        let over = |span: &Timing| !matches!(span.end.is_complete(), Ok(false));
        loop {
            let span = {
                let mut spans = self.spans.lock();
                let first = spans.front().is_some_and(over);
                first.then(|| spans.pop_front()).flatten()
            };
            match span {
                Some(span) => span.settle(),
                None => return,
            }
        }
    }

    /// Enters a span that is measured once it is over.
    fn measure(&self, span: Timing) {
        self.spans.lock().push_back(span);
    }

    /// The stream for copies into tensors that exist.
    fn in_place(&self) -> Result<&Arc<RawStream>> {
        self.stream_in(&self.in_place)
    }

    /// The stream for kernels of our own.
    fn transforming(&self) -> Result<&Arc<RawStream>> {
        self.stream_in(&self.transforming)
    }

    /// A stream that is made when it is first needed.
    fn stream_in<'a>(&self, cell: &'a OnceLock<Arc<RawStream>>) -> Result<&'a Arc<RawStream>> {
        if let Some(stream) = cell.get() {
            return Ok(stream);
        }
        let stream = Arc::new(self.driver.create_stream()?);
        Ok(cell.get_or_init(|| stream))
    }

    /// Host memory for a download: page-locked, or, where the ring has no room, pageable and counted.
    fn host_tensor<T: Element>(&self, shape: Shape) -> Tensor<T> {
        let bytes = shape.iter().product::<usize>() * size_of::<T>();
        self.settle();
        match self.ring.take(bytes) {
            Some(slab) => {
                let base = slab.base().cast();
                // SAFETY: the slab is as large as the tensor, page-aligned, initialized, and nobody else's.
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
