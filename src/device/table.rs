//! Columns of tables in device memory: the rows of a batch are chosen by a kernel, and only their numbers cross the link.
//!
//! All kernels that read a table run on the stream of the uploads, or, where a batch is sent by another handle of the device, on that
//! handle's, for which the first then waits. So the table's memory is free behind an event that is recorded on the first when the table is
//! dropped, and nothing needs to be noted for each batch.

use super::handle::Device;
use super::inner::DeviceInner;
use crate::driver::rows::{COLUMNS, Choosing, ChosenColumn, FEW_ROWS};
use crate::driver::{Driver, RawEvent, RawStream};
use crate::error::{Error, Result};
use crate::sync::Arc;
use crate::tensor::{RowList, Scattered, Storage, TableColumn};

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
