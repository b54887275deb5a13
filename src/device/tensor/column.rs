//! Tensors of a device as columns of tables: batches are rows of them (`device/table.rs`).

use std::any::Any;

use super::DeviceTensor;
use crate::device::block::DeviceBlock;
use crate::device::download::read_raw;
use crate::device::flights::Lane;
use crate::device::table::choose;
use crate::driver::rows::ChosenColumn;
use crate::error::Result;
use crate::sync::Arc;
use crate::sync::log;
use crate::tensor::{Element, Gathered, Storage, TableColumn};

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
