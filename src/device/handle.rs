//! A device and its streams as users hold them.

use std::fmt;
use std::time::Duration;

mod download;
mod stream;
mod sweep;

pub use self::stream::Stream;
use super::inner::DeviceInner;
use crate::driver::{DeviceInfo, Driver, cpu};
#[cfg(feature = "testing")]
use crate::driver::{Way, cpu::Hostile};
#[cfg(not(feature = "cuda"))]
use crate::error::Error;
use crate::error::Result;
use crate::sync::Arc;
use crate::sync::log;

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
    /// device of a compute capability below 7.0 opens, but [`DeviceTensor::normalize`](crate::DeviceTensor::normalize) and the other kernels of this
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

    /// How many CUDA devices the driver shows to this process: those that [`cuda`](Device::cuda) may open. `CUDA_VISIBLE_DEVICES` hides the
    /// others. It makes no context, and takes no memory.
    ///
    /// # Errors
    ///
    /// As [`cuda`](Device::cuda), if there is no driver, or none that can be used; a driver that sees no device is `Ok(0)`.
    ///
    /// # Examples
    ///
    /// All of them, for [`split`](crate::loader::Epoch::split):
    ///
    /// ```no_run
    /// use pinfeed::{Device, Result};
    ///
    /// let devices = (0..Device::cuda_count()?).map(Device::cuda).collect::<Result<Vec<_>>>()?;
    /// # Ok::<(), pinfeed::Error>(())
    /// ```
    pub fn cuda_count() -> Result<usize> {
        #[cfg(feature = "cuda")]
        {
            crate::driver::cuda::Cuda::count()
        }
        #[cfg(not(feature = "cuda"))]
        {
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

    /// Opens a device on a backend.
    pub(crate) fn open(driver: Driver) -> Result<Device> {
        let inner = Arc::new(DeviceInner::open(driver)?);
        Ok(Device { inner })
    }

    /// The device's name: `cpu`, `cuda:0`.
    pub fn name(&self) -> String {
        self.inner.driver.name()
    }

    /// Whether it is the CPU: then its memory is host memory, which [`Loan::host_slice`](super::Loan::host_slice) reads in place.
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
    /// Shared by loaders (`pin_memory`), [`Tensor::pin`](crate::Tensor::pin), downloads, and copies that are staged because their memory is
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
    /// has let go of ([`Tensor::register`](crate::Tensor::register)). Returns the number of bytes.
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
        let (device_bytes, device_held_bytes, adrift_bytes, device_budget_bytes, device_leaked) =
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
            adrift_bytes,
            device_budget_bytes,
            decoder_bytes,
            decoder_pinned_bytes,
            leaked: self.inner.flights.leaked() + device_leaked,
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
    /// Bytes of registered memory whose last holder was a copy or a thread of the library ([`Tensor::register`](crate::Tensor::register)):
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
    /// Bytes of device memory that tensors held whose users are not all known by their streams
    /// ([`OwnedLoan::end_everywhere`](super::OwnedLoan::end_everywhere)): [`Device::sweep`] makes them free, behind all work of the
    /// context.
    pub adrift_bytes: usize,
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
