//! Columns of tables in device memory: the rows of a batch are chosen by a kernel, and only their numbers cross the link.
//!
//! All kernels that read a table run on the stream of the uploads, or, where a batch is sent by another handle of the device, on that
//! handle's, for which the first then waits. So the table's memory is free behind an event that is recorded on the first when the table is
//! dropped, and nothing needs to be noted for each batch.

use std::any::Any;

use super::block::DeviceBlock;
use super::download::read_raw;
use super::flights::Lane;
use super::handle::Device;
use super::inner::DeviceInner;
use super::tensor::DeviceTensor;
use crate::driver::rows::{COLUMNS, Choosing, ChosenColumn, FEW_ROWS};
use crate::driver::{Driver, RawEvent, RawStream};
use crate::error::{Error, Result};
use crate::sync::Arc;
use crate::sync::log;
use crate::tensor::{Element, Gathered, RowList, Scattered, Storage, TableColumn};

/// A tensor on a device, of which batches are rows. It cannot be written any more.
struct DeviceColumn<T: Element> {
    tensor: DeviceTensor<T>,
    row_bytes: usize,
}

impl<T: Element> DeviceTensor<T> {
    /// Makes the tensor a column of a table. Waits until it has been written.
    pub(crate) fn into_column(self) -> Result<Arc<dyn TableColumn>> {
        self.synchronize()?;
        let rows = self.shape().first().copied().unwrap_or(0);
        Ok(Arc::new(DeviceColumn {
            row_bytes: self.size_bytes() / rows.max(1),
            tensor: self,
        }))
    }
}

impl<T: Element> TableColumn for DeviceColumn<T> {
    fn address(&self) -> u64 {
        self.tensor.address()
    }

    fn device(&self) -> &dyn Any {
        self.tensor.inner()
    }

    fn read(&self, numbers: &[i64], slab: &Arc<dyn Storage>) -> Gathered {
        match self.try_read(numbers, slab) {
            Ok(gathered) => gathered,
            Err(error) => {
                panic!(
                    "a batch of a table on a device is read on the host, and the device fails: {error}"
                )
            }
        }
    }
}

impl<T: Element> DeviceColumn<T> {
    fn try_read(&self, numbers: &[i64], slab: &Arc<dyn Storage>) -> Result<Gathered> {
        let device = self.tensor.inner();
        let bytes = numbers.len() * self.row_bytes;
        let block = DeviceBlock::take(device, bytes, None, true)?;
        let column = ChosenColumn {
            numbers,
            from: self.tensor.address(),
            to: block.address(),
            row_bytes: self.row_bytes,
        };
        // SAFETY: the flight keeps the slab with the numbers until the event fires; the column has their rows; there is no other holder of
        // the block, whose last users are done.
        let chosen = unsafe { choose(&device.driver, &device.h2d, &[column], slab.is_pinned()) };
        match device.add_flight(Lane::Upload, vec![Arc::clone(slab)], None) {
            Ok(done) => {
                block.free_behind([done.clone()]);
                chosen?;
                // SAFETY: the block has as many bytes, which are written when the event fires. It is not written again before this
                // returns, when they have been read.
                unsafe { read_raw(device, block.address(), bytes, done) }
            }
            Err((error, host)) => {
                // The kernel may be running, and nothing will tell when it ends.
                device.flights.leak(host);
                block.leak();
                Err(chosen.err().unwrap_or(error))
            }
        }
    }
}

impl<T: Element> Drop for DeviceColumn<T> {
    fn drop(&mut self) {
        let device = self.tensor.inner();
        match device.driver.record(&device.h2d, false) {
            Ok(event) => self.tensor.uses().read_behind(event),
            Err(error) => {
                log::warn!(
                    "a table's device memory is leaked: the end of its last use cannot be known ({error})"
                );
                self.tensor.uses().block().leak();
            }
        }
    }
}

/// Whether the column is in this device's memory.
pub(super) fn is_on(column: &dyn TableColumn, device: &DeviceInner) -> bool {
    let found = column.device().downcast_ref::<Arc<DeviceInner>>();
    found.is_some_and(|found| found.driver.same_device(&device.driver))
}

/// Checks that the column is in this device's memory.
pub(super) fn check(column: &dyn TableColumn, device: &Arc<DeviceInner>) -> Result<()> {
    if is_on(column, device) {
        return Ok(());
    }
    let found = column.device().downcast_ref::<Arc<DeviceInner>>();
    Err(Error::WrongDevice {
        what: "the table",
        found: found.map_or_else(String::new, |found| found.driver.name()),
        expected: device.driver.name(),
    })
}

/// Lets go of tables whose rows a kernel gathers on this device's stream for uploads. `done`: the event behind it, if there is one.
///
/// A table that was made by another handle of the device is freed behind that handle's stream, which has to wait for this one.
pub(super) fn let_go(
    device: &Arc<DeviceInner>,
    tables: Vec<Arc<dyn Storage>>,
    done: Option<&RawEvent>,
) {
    let is_ordered = |table: &Arc<dyn Storage>| {
        let Some(RowList::Numbers(_, column)) = table.scattered().map(Scattered::list) else {
            return true;
        };
        match column.device().downcast_ref::<Arc<DeviceInner>>() {
            Some(maker) if !Arc::ptr_eq(maker, device) => {
                done.is_some_and(|done| maker.driver.stream_wait(&maker.h2d, done).is_ok())
            }
            _ => true,
        }
    };
    let (_, lost): (Vec<_>, Vec<_>) = tables.into_iter().partition(is_ordered);
    device.flights.leak(lost); // nothing tells when the kernel is done
}

/// Enqueues kernels that copy the rows of these numbers, from each column to where they go.
///
/// # Safety
///
/// The columns must have rows of all their numbers, and nothing may write them before the kernels are done. The targets must be valid for
/// writing until then, and nothing else may touch them except in the stream's order. The lists must stay as they are until then, and be
/// page-locked if that is said.
pub(super) unsafe fn choose(
    driver: &Driver,
    stream: &RawStream,
    columns: &[ChosenColumn<'_>],
    are_lists_locked: bool,
) -> Result<()> {
    let launch = |kernel: Choosing| match kernel.is_empty() {
        true => Ok(()),
        // SAFETY: the caller's contract.
        false => unsafe { driver.launch(stream, kernel) },
    };
    if driver.is_host() || are_lists_locked && driver.reads_host_memory() {
        let mut kernels = columns.chunks(COLUMNS);
        return kernels.try_for_each(|columns| launch(Choosing::listed(columns)));
    }
    let of_one_list = columns.chunk_by(|one, other| std::ptr::eq(one.numbers, other.numbers));
    for columns in of_one_list.flat_map(|columns| columns.chunks(COLUMNS)) {
        let rows = columns[0].numbers.len();
        for first in (0..rows).step_by(FEW_ROWS) {
            let few = first..rows.min(first + FEW_ROWS);
            let mut columns = columns.to_vec();
            for column in &mut columns {
                column.numbers = &column.numbers[few.clone()];
                column.to += (first * column.row_bytes) as u64;
            }
            launch(Choosing::few(&columns))?;
        }
    }
    Ok(())
}

/// Checks that tensors are on one device.
pub(crate) fn same_device<'a>(mut devices: impl Iterator<Item = &'a Device>) -> Result<()> {
    let Some(first) = devices.next() else {
        return Ok(());
    };
    match devices.find(|other| !other.inner.driver.same_device(&first.inner.driver)) {
        None => Ok(()),
        Some(other) => Err(Error::WrongDevice {
            what: "a table's tensor",
            found: other.inner.driver.name(),
            expected: first.inner.driver.name(),
        }),
    }
}
