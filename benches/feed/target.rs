//! A device to measure on, and the bare loops on the same hardware.

use std::time::Duration;

use pinfeed::Device;

use crate::Outcome;
use crate::args::DeviceName;
#[cfg(feature = "cuda")]
use crate::bare::{Bare, PinnedLink};
use crate::gather::{self, Direction, Memcpy, Rows, Slab};

/// How long a bare loop runs: once before and once after what it is compared with.
pub const LIMIT: Duration = Duration::from_millis(500);

/// How many slabs a bare loop goes round.
pub const SLABS: usize = 4;

/// A device by its name, with cudarc's bare calls where it is a CUDA device.
pub struct Target {
    pub name: DeviceName,
    #[cfg(feature = "cuda")]
    pub bare: Option<Bare>,
}

impl Target {
    pub fn open(name: DeviceName) -> Outcome<Target> {
        // First by the library, which says best what is missing.
        drop(open(name)?);
        Ok(Target {
            name,
            #[cfg(feature = "cuda")]
            bare: match name {
                DeviceName::Cpu => None,
                DeviceName::Cuda(ordinal) => Some(Bare::new(ordinal)?),
            },
        })
    }

    /// The device, opened afresh: with nothing page-locked.
    pub fn device(&self) -> Outcome<Device> {
        open(self.name)
    }

    /// The rate that a loader can reach at best: of bare pinned copies of the size of a batch; on the CPU, of the bare
    /// loop.
    pub fn feed_limit(&self, rows: Rows<'_>, threads: usize) -> Outcome<f64> {
        #[cfg(feature = "cuda")]
        if self.bare.is_some() {
            return self.copy_limit(Direction::ToDevice, rows.batch * rows.row_bytes);
        }
        self.bare_loop(rows, threads)
    }

    /// The rate of the bare loop: so many threads gather rows into slabs, which travel to the device one by one.
    pub fn bare_loop(&self, rows: Rows<'_>, threads: usize) -> Outcome<f64> {
        let (threads, bytes) = (threads.max(1), rows.batch * rows.row_bytes);
        #[cfg(feature = "cuda")]
        if let Some(bare) = &self.bare {
            let mut link = PinnedLink::new(bare, SLABS, bytes)?;
            let slabs = link.slabs();
            return gather::rate(rows, threads, LIMIT, &slabs, &mut link);
        }
        let mut memory: Vec<Vec<u8>> = (0..SLABS).map(|_| vec![1; bytes]).collect();
        let slabs: Vec<Slab> = memory
            .iter_mut()
            .map(|slab| Slab {
                base: slab.as_mut_ptr(),
                bytes,
            })
            .collect();
        gather::rate(rows, threads, LIMIT, &slabs, &mut Memcpy::new(&slabs))
    }

    /// Batches/s of threads that each fill page-locked slabs and copy them to the device, so many batches a slab, where it has bare copies.
    /// `fill` writes a batch, by its number.
    pub fn bare_sending(
        &self,
        threads: usize,
        together: usize,
        bytes: usize,
        fill: impl Fn(usize, &mut [u8]) + Sync,
    ) -> Outcome<Option<f64>> {
        #[cfg(feature = "cuda")]
        if let Some(bare) = &self.bare {
            return bare
                .sending_rate(threads.max(1), together, bytes, fill)
                .map(Some);
        }
        let _ = (threads, together, bytes, fill);
        Ok(None)
    }

    /// GB/s and cores of gathering rows of registered memory by bare calls of the driver, where it has such.
    pub fn bare_gather(&self, rows: Rows<'_>) -> Outcome<Option<(f64, f64)>> {
        #[cfg(feature = "cuda")]
        if let Some(bare) = &self.bare {
            return bare.gather_rate(rows, LIMIT);
        }
        let _ = rows;
        Ok(None)
    }

    /// The rate of bare copies of one size: from or to page-locked memory; on the CPU, a memcpy by one thread.
    pub fn copy_limit(&self, direction: Direction, bytes: usize) -> Outcome<f64> {
        self.copy_rate(direction, bytes, LIMIT)
    }

    /// The rate of copies of one size within the device's memory; on the CPU, a memcpy by one thread.
    pub fn within_limit(&self, bytes: usize) -> Outcome<f64> {
        #[cfg(feature = "cuda")]
        if let Some(bare) = &self.bare {
            return bare.within_rate(bytes, LIMIT);
        }
        Ok(gather::memcpy_rate(bytes, 1, LIMIT))
    }

    /// The same, for so long.
    pub fn copy_rate(
        &self,
        direction: Direction,
        bytes: usize,
        duration: Duration,
    ) -> Outcome<f64> {
        #[cfg(feature = "cuda")]
        if let Some(bare) = &self.bare {
            // Copies of a gigabyte need no second slab to keep the link busy.
            let slots = if bytes > 256 << 20 { 1 } else { SLABS };
            return bare.pinned_rate(direction, bytes, slots, duration);
        }
        let _ = direction;
        Ok(gather::memcpy_rate(bytes, 1, duration))
    }
}

/// Opens a device of the library.
pub fn open(name: DeviceName) -> Outcome<Device> {
    match name {
        DeviceName::Cpu => Ok(Device::cpu()),
        DeviceName::Cuda(ordinal) => {
            Device::cuda(ordinal).map_err(|error| format!("--device {name}: {error}").into())
        }
    }
}
