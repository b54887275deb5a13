//! Batches that come to the device in parts: one block of device memory, into which each part is copied on its own.

use super::block::DeviceBlock;
use super::upload::{Placed, Region, Run, Tensors, Upload, submit};
use super::{Device, DeviceInner};
use crate::driver::RawEvent;
use crate::error::{CollateError, Error, Result};
use crate::sync::Arc;
use crate::tensor::{ALIGNMENT, Shape};

/// A batch of which some parts are on their way. The memory of one that is dropped is free behind its copies.
pub(crate) struct Assembly {
    device: Arc<DeviceInner>,
    block: Arc<DeviceBlock>,
    fields: Vec<Place>,
    rows: usize,
    /// Behind the copies of the part that was sent last, and so of all.
    done: Option<RawEvent>,
}

/// Where a field's rows go, one behind the other.
struct Place {
    address: u64,
    row_bytes: usize,
    row_shape: Shape,
}

/// Some of a batch's rows.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Rows {
    pub(crate) first: usize,
    pub(crate) count: usize,
    /// How many the batch has.
    pub(crate) of: usize,
}

/// Why a part was not sent.
pub(crate) enum Unsent {
    Failed(Error),
    /// Its rows are not like those of the parts before.
    Unlike(CollateError),
}

impl Assembly {
    /// Takes device memory for a batch whose tensors are like these, but for the number of rows. `waits`: for memory that the
    /// program gave back, and whose kernels have not run.
    pub(crate) fn begin(
        device: &Device,
        part: &Tensors<'_>,
        rows: Rows,
        waits: bool,
    ) -> Result<Assembly> {
        let device = &device.inner;
        let mut bytes = 0;
        let mut fields = Vec::with_capacity(part.regions().len());
        for region in part.regions() {
            let row_bytes = region.bytes / rows.count;
            fields.push(Place {
                address: bytes as u64,
                row_bytes,
                row_shape: region.shape[1..].into(),
            });
            bytes = end_of(bytes, row_bytes, rows.of);
        }
        let meter = part.meter();
        if let Some(meter) = &meter {
            meter.measured_by(device);
        }
        let block = DeviceBlock::take(device, bytes, meter, waits)?;
        for field in &mut fields {
            field.address += block.address();
        }
        Ok(Assembly {
            device: Arc::clone(device),
            block: Arc::new(block),
            fields,
            rows: rows.of,
            done: None,
        })
    }

    /// Starts the copies of one part. What is returned trades the part's tensors for those of the batch, once all parts
    /// were sent.
    pub(crate) fn send(&mut self, part: Tensors<'_>, rows: Rows) -> Result<Upload, Unsent> {
        let mut regions = part.into_regions();
        self.check(&regions, rows)?;
        let backend = self.device.driver.backend();
        for region in &mut regions {
            region.gather_for(backend);
        }
        let meter = regions.iter().find_map(Region::meter);
        let places = || self.fields.iter().enumerate();
        let runs: Vec<Run> = places()
            .map(|(index, place)| {
                let to = place.address + (rows.first * place.row_bytes) as u64;
                Run::alone(index, &regions[index], to)
            })
            .collect();
        let placed = places().map(|(index, place)| {
            let shape = Shape::batched(self.rows, &place.row_shape);
            Placed::new(&regions[index], &self.block, place.address, Some(shape))
        });
        let placed: Vec<Placed> = placed.collect();
        let host = regions.into_iter().map(Region::into_storage).collect();
        let blocks = std::slice::from_ref(&self.block);
        let done = submit(&self.device, &runs, blocks, host, meter).map_err(Unsent::Failed)?;
        self.done = done.or(self.done.take());
        Ok(Upload::new(&self.device, placed, self.done.clone()))
    }

    fn check(&self, regions: &[Region], rows: Rows) -> Result<(), Unsent> {
        let unlike = |(region, place): (&Region, &Place)| {
            let found = Shape::from(&region.shape[1..]);
            debug_assert_eq!(region.shape[0], rows.count);
            (*found != *place.row_shape).then(|| CollateError::Shape {
                field: "",
                expected: place.row_shape.clone(),
                found,
            })
        };
        debug_assert_eq!(regions.len(), self.fields.len());
        match regions.iter().zip(&self.fields).find_map(unlike) {
            Some(error) => Err(Unsent::Unlike(error)),
            None => Ok(()),
        }
    }
}

/// Where a field ends, and the next begins. The other parts are yet to come, so it need not be a number: no device has as
/// much memory then.
fn end_of(start: usize, row_bytes: usize, rows: usize) -> usize {
    let end = row_bytes.saturating_mul(rows).saturating_add(start);
    end.checked_next_multiple_of(ALIGNMENT)
        .unwrap_or(usize::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_batch_that_is_too_large_is_no_small_one() {
        assert_eq!(end_of(256, 100, 3), 768);
        assert_eq!(end_of(256, 1 << 24, 1 << 40), usize::MAX);
        assert_eq!(end_of(usize::MAX - 300, 10, 10), usize::MAX);
        assert_eq!(end_of(usize::MAX, 10, 10), usize::MAX);
    }
}
