//! Gathering: rows that lie apart in page-locked memory go to the device in one call.
//!
//! Where the driver has it (12.8 and newer), by one batch of copies, which the copy engine works off. Where it has not,
//! by a kernel that reads the rows over the link, from a few blocks; and where the device cannot read host memory by the
//! host's addresses, row by row.

use std::ffi::{CStr, c_void};

use cudarc::driver::sys;

use super::kernels::ptx;
use super::{Cuda, Stream};
use crate::driver::{Gather, Way};
use crate::error::Result;

/// `cuMemcpyBatchAsync` as of 12.8. (What cuda.h of 13.0 calls by that name is `cuMemcpyBatchAsync_v2` in the library.)
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

/// The sources are read in the stream's order: they stay as they are until the event behind the copies.
const IN_STREAM_ORDER: i32 = 1;

/// The kernel: made from gather.cu by `nvcc -ptx`, for the oldest driver and device served.
const PTX: &CStr = ptx(concat!(include_str!("gather.ptx"), "\0"));

/// Blocks of the kernel. As many bytes are in flight as the link holds, and most of the device is left to others.
const BLOCKS: u32 = 32;
const THREADS: u32 = 256;

impl Cuda {
    /// # Safety
    ///
    /// As `Driver::gather`.
    pub(in crate::driver) unsafe fn gather(
        &self,
        stream: &Stream,
        gather: Gather<'_>,
    ) -> Result<()> {
        let _entered = self.enter()?;
        match (self.way(), self.0.probe.memcpy_batch) {
            // SAFETY: the caller's contract.
            (Way::Batch, Some(batch)) => unsafe { self.gather_by_batch(batch, stream, gather) },
            // SAFETY: likewise.
            (Way::Kernel, _) if gather.is_table_locked => unsafe {
                self.gather_by_kernel(stream, gather)
            },
            // SAFETY: likewise.
            _ => unsafe { self.gather_by_row(stream, gather) },
        }
    }

    fn way(&self) -> Way {
        *self.0.way.get_or_init(|| {
            if !self.reads_host_addresses() {
                return Way::Rows;
            }
            match self.0.probe.memcpy_batch {
                Some(_) => Way::Batch,
                None => Way::Kernel,
            }
        })
    }

    /// Has rows gathered in this way from now on; says whether it came in time, before the first were.
    #[cfg(feature = "testing")]
    pub(in crate::driver) fn gather_by(&self, way: Way) -> bool {
        self.0.way.set(way).is_ok()
    }

    /// Whether registered memory has the same address for the device; the context is current.
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
        stream: &Stream,
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
        // SAFETY: the caller's contract for the rows and the target; the lists are as long as each other, and the driver
        // has read them when it returns.
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
    unsafe fn gather_by_kernel(&self, stream: &Stream, gather: Gather<'_>) -> Result<()> {
        let kernel = match self.0.gathering.get() {
            Some(kernel) => *kernel,
            None => {
                let kernel = self.function(self.load_module(PTX)?, c"pinfeed_gather")?;
                *self.0.gathering.get_or_init(|| kernel)
            }
        };
        let mut table = gather.rows.as_ptr() as u64;
        let (mut rows, mut row_bytes, mut to) =
            (gather.rows.len() as u64, gather.row_bytes as u64, gather.to);
        let mut parameters: [*mut c_void; 4] = [
            (&raw mut table).cast(),
            (&raw mut rows).cast(),
            (&raw mut row_bytes).cast(),
            (&raw mut to).cast(),
        ];
        // SAFETY: the parameters are the kernel's; the caller's contract for what they point to.
        unsafe { self.launch(kernel, (BLOCKS, THREADS), stream, &mut parameters) }
    }

    /// # Safety
    ///
    /// As `gather`.
    unsafe fn gather_by_row(&self, stream: &Stream, gather: Gather<'_>) -> Result<()> {
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
