//! Gathering: scattered rows of page-locked memory go to the device in one call.
//!
//! Drivers of 12.8 and newer take a batch of copies, which the copy engine executes. For older ones, a kernel of a few
//! blocks reads the rows over the link. If the device cannot read host memory by the host's addresses, or is too old for
//! the kernel, the rows are copied one by one.

use std::ffi::{CStr, c_void};

use cudarc::driver::sys;

use super::launch::{self, Function};
use super::{CuStream, Cuda};
use crate::driver::kernels::ptx;
use crate::driver::{Gather, Way};
use crate::error::Result;
use crate::sync::log;
use crate::tuning::{BLOCK_THREADS, GATHER_BLOCKS};

/// `cuMemcpyBatchAsync` as of 12.8. (In cuda.h of 13.0, that name means the library's `cuMemcpyBatchAsync_v2`.)
pub(super) type MemcpyBatch = unsafe extern "C" fn(
    targets: *const u64,
    sources: *const u64,
    sizes: *const usize,
    count: usize,
    attributes: *const Attributes,
    attribute_starts: *const usize,
    attribute_count: usize,
    failed: *mut usize,
    stream: *mut c_void,
) -> i32;

/// `CUmemcpyAttributes`.
#[repr(C)]
pub(super) struct Attributes {
    /// `CUmemcpySrcAccessOrder`.
    source_access_order: i32,
    /// Two `CUmemLocation`s, for managed memory only.
    hints: [[i32; 2]; 2],
    flags: u32,
}

/// The sources are read in the stream's order: they do not change until the event after the copies.
const IN_STREAM_ORDER: i32 = 1;

/// The kernel, made from gather.cu by `nvcc -ptx`, for the oldest driver and device supported.
const PTX: &CStr = ptx(concat!(include_str!("gather.ptx"), "\0"));

impl Cuda {
    /// # Safety
    ///
    /// As `Driver::gather`.
    pub(in crate::driver) unsafe fn gather(
        &self,
        stream: &CuStream,
        gather: Gather<'_>,
    ) -> Result<()> {
        let _entered = self.enter()?;
        match (self.way(), self.0.probe.memcpy_batch) {
            // SAFETY: the caller's contract.
            (Way::Batch, Some(batch)) => unsafe { self.gather_by_batch(batch, stream, gather) },
            (Way::Kernel, _) if gather.is_table_locked => match self.gathering() {
                // SAFETY: likewise.
                Some(kernel) => unsafe { self.gather_by_kernel(kernel, stream, gather) },
                // SAFETY: likewise.
                None => unsafe { self.gather_by_row(stream, gather) },
            },
            // SAFETY: likewise.
            _ => unsafe { self.gather_by_row(stream, gather) },
        }
    }

    /// The kernel; `None` if it cannot be loaded, which is logged once. The context is current.
    fn gathering(&self) -> Option<Function> {
        *self.0.gathering.get_or_init(|| {
            self.function(PTX, c"pinfeed_gather", "gathering rows")
                .inspect_err(|error| {
                    log::warn!(
                        "{}: rows of registered memory are copied one by one, which is slow: {error}",
                        self.name()
                    );
                })
                .ok()
        })
    }

    /// How rows are gathered; the context is current.
    fn way(&self) -> Way {
        *self.0.way.get_or_init(|| {
            let has_batch = self.0.probe.memcpy_batch.is_some();
            let runs_kernels = launch::run_on(self.compute_capability());
            best_way(self.reads_host_addresses(), has_batch, runs_kernels)
        })
    }

    /// Whether kernels read page-locked memory by the host's addresses.
    pub(in crate::driver) fn reads_host_memory(&self) -> bool {
        // (Of no context, the driver tells nothing, and the first answer stands.)
        self.enter().is_ok_and(|_entered| self.way() != Way::Rows)
    }

    /// Makes the device gather rows in this way from now on. Returns whether the call came before the first gather.
    #[cfg(feature = "testing")]
    pub(in crate::driver) fn gather_by(&self, way: Way) -> bool {
        self.0.way.set(way).is_ok()
    }

    /// Whether the device reaches registered memory by the host's addresses; the context is current.
    fn reads_host_addresses(&self) -> bool {
        self.attribute(
            sys::CUdevice_attribute_enum::CU_DEVICE_ATTRIBUTE_CAN_USE_HOST_POINTER_FOR_REGISTERED_MEM,
        ) != 0
    }

    /// # Safety
    ///
    /// As `gather`.
    unsafe fn gather_by_batch(
        &self,
        batch: MemcpyBatch,
        stream: &CuStream,
        gather: Gather<'_>,
    ) -> Result<()> {
        let count = gather.rows.len();
        let targets: Vec<u64> = (0..count as u64)
            .map(|row| gather.to + row * gather.row_bytes as u64)
            .collect();
        let sizes = vec![gather.row_bytes; count];
        let attributes = Attributes {
            source_access_order: IN_STREAM_ORDER,
            hints: [[0; 2]; 2],
            flags: 0,
        };
        let (start, mut failed) = (0, 0);
        // SAFETY: the caller's contract for the rows and the target; the lists are equally long, and the driver has read
        // them when it returns.
        let code = unsafe {
            batch(
                targets.as_ptr(),
                gather.rows.as_ptr().cast(),
                sizes.as_ptr(),
                count,
                &attributes,
                &start,
                1,
                &mut failed,
                stream.handle().cast(),
            )
        };
        match code {
            0 => Ok(()),
            code => Err(super::fault_of(
                "cuMemcpyBatchAsync",
                &self.name(),
                code,
                "the rows were not copied",
            )),
        }
    }

    /// # Safety
    ///
    /// As `gather`; the table must be page-locked too.
    unsafe fn gather_by_kernel(
        &self,
        kernel: Function,
        stream: &CuStream,
        gather: Gather<'_>,
    ) -> Result<()> {
        let mut table = gather.rows.as_ptr() as u64;
        let (mut rows, mut row_bytes, mut to) =
            (gather.rows.len() as u64, gather.row_bytes as u64, gather.to);
        let mut arguments: [*mut c_void; 4] = [
            (&raw mut table).cast(),
            (&raw mut rows).cast(),
            (&raw mut row_bytes).cast(),
            (&raw mut to).cast(),
        ];
        let grid = (GATHER_BLOCKS, BLOCK_THREADS);
        // SAFETY: the arguments are the kernel's; the caller's contract covers what they point to.
        unsafe { self.launch_grid(kernel, grid, stream, &mut arguments) }
    }

    /// # Safety
    ///
    /// As `gather`.
    unsafe fn gather_by_row(&self, stream: &CuStream, gather: Gather<'_>) -> Result<()> {
        for (row, &from) in gather.rows.iter().enumerate() {
            let to = gather.to + (row * gather.row_bytes) as u64;
            // SAFETY: the caller's contract.
            let result = unsafe {
                sys::cuMemcpyHtoDAsync_v2(to, from.cast(), gather.row_bytes, stream.handle())
            };
            self.check("cuMemcpyHtoDAsync", result)?;
        }
        Ok(())
    }
}

/// The best way to gather rows for a device that may read host memory by the host's addresses, and may run the kernel.
fn best_way(reads_host_addresses: bool, has_batch: bool, runs_kernels: bool) -> Way {
    match (has_batch, runs_kernels) {
        _ if !reads_host_addresses => Way::Rows,
        (true, _) => Way::Batch,
        (false, true) => Way::Kernel,
        (false, false) => Way::Rows,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_are_gathered_as_well_as_can_be() {
        assert_eq!(best_way(true, true, true), Way::Batch);
        // A new driver on an old device: the copy engine needs no kernel.
        assert_eq!(best_way(true, true, false), Way::Batch);
        assert_eq!(best_way(true, false, true), Way::Kernel);
        assert_eq!(best_way(true, false, false), Way::Rows);
        for (has_batch, runs_kernels) in [(true, true), (false, true), (false, false)] {
            assert_eq!(best_way(false, has_batch, runs_kernels), Way::Rows);
        }
    }

    #[test]
    fn kernels_run_on_what_they_are_made_for() {
        assert!(
            [(7, 0), (7, 5), (8, 9), (9, 0), (12, 0)]
                .into_iter()
                .all(launch::run_on)
        );
        assert!(
            ![(5, 2), (6, 0), (6, 1), (6, 2), (0, 0)]
                .into_iter()
                .any(launch::run_on)
        );
    }
}
