//! Batches that reach the device in parts: one block of device memory, into which each part is copied on its own.

use super::block::DeviceBlock;
use super::buffer_set::Size;
use super::buffers::{self, Rows, Target};
use super::decoding::Undecoded;
use super::inner::DeviceInner;
use super::upload::{CopyRun, Counted, Placed, Region, Tensors, Upload, submit};
use crate::driver::RawEvent;
use crate::error::{CollateError, Error, Result};
use crate::sync::Arc;
use crate::tensor::{DType, Shape};

/// A batch some of whose parts have been sent. If it is dropped, its memory is free once their copies are done.
pub(crate) struct Assembly {
    device: Arc<DeviceInner>,
    block: Arc<DeviceBlock>,
    fields: Vec<FieldPlace>,
    rows: usize,
    /// The end of the last field.
    end: u64,
    /// After the copies of the part that was sent last, and so after all of them.
    done: Option<RawEvent>,
}

/// Where a field's rows go, consecutively.
struct FieldPlace {
    address: u64,
    dtype: DType,
    row_bytes: usize,
    row_shape: Shape,
}

/// Why a part was not sent.
pub(crate) enum Unsent {
    Failed(Error),
    /// Its rows differ from those of the parts before.
    Unlike(CollateError),
}

impl Assembly {
    /// Takes device memory for a batch whose tensors are like these except for the number of rows. `waits`: also waits
    /// for memory that the program gave back but whose kernels have not finished.
    pub(crate) fn begin(
        target: &Target,
        part: &Tensors<'_>,
        rows: Rows,
        waits: bool,
    ) -> Result<Assembly> {
        let device = &target.device().inner;
        let mut sizes = Vec::with_capacity(part.regions().len());
        let mut fields = Vec::with_capacity(part.regions().len());
        for region in part.regions() {
            let row_shape = region.shape.get(1..).unwrap_or_default();
            let row_bytes = Shape::elements(row_shape)
                .and_then(|elements| elements.checked_mul(region.dtype.size_bytes()))
                .unwrap_or(usize::MAX);
            fields.push(FieldPlace {
                address: 0,
                dtype: region.dtype,
                row_bytes,
                row_shape: row_shape.into(),
            });
            // (It saturates: the other parts are yet to come, and no device has that much memory.)
            sizes.push(Size {
                bytes: row_bytes.saturating_mul(rows.of),
                most: row_bytes.saturating_mul(rows.most.max(rows.of)),
            });
        }
        let meter = part.meter();
        if let Some(meter) = &meter {
            meter.measured_by(device);
        }
        let (block, addresses) = buffers::take(target, &sizes, meter, waits)?;
        for (field, address) in fields.iter_mut().zip(&addresses) {
            field.address = *address;
        }
        let ends = addresses.iter().zip(&sizes);
        let ends = ends.map(|(address, size)| address.saturating_add(size.bytes as u64));
        Ok(Assembly {
            device: Arc::clone(device),
            block: Arc::new(block),
            fields,
            rows: rows.of,
            end: ends.max().unwrap_or(0),
            done: None,
        })
    }

    /// Starts the copies of one part. Once all parts were sent, the result trades the part's tensors for those of the
    /// batch.
    pub(crate) fn send(&mut self, part: Tensors<'_>, rows: Rows) -> Result<Upload, Unsent> {
        let mut regions = part.into_regions();
        self.check(&regions, rows)?;
        for region in &mut regions {
            region
                .gather_for(&self.device, true)
                .map_err(Unsent::Failed)?;
        }
        let counted = Counted::of(&self.device, &regions);
        let places = || self.fields.iter().enumerate();
        let runs: Vec<CopyRun> = places()
            .map(|(index, place)| {
                let to = place.address + (rows.first * place.row_bytes) as u64;
                CopyRun::alone(index, &regions[index], to)
            })
            .collect();
        let placed = places().map(|(index, place)| {
            let shape = Shape::batched(self.rows, &place.row_shape);
            Placed::new(&regions[index], &self.block, place.address, Some(shape))
        });
        let placed: Vec<Placed> = placed.collect();
        let mut undecoded = Undecoded::default();
        for (index, place) in places() {
            let to = place.address + (rows.first * place.row_bytes) as u64;
            regions[index].note_pictures(&self.device, (&self.block, to), &mut undecoded);
        }
        let host = regions.into_iter().map(Region::into_storage).collect();
        let blocks = std::slice::from_ref(&self.block);
        let done = submit(&self.device, &runs, blocks, host, counted).map_err(Unsent::Failed)?;
        self.done = done.or(self.done.take());
        Ok(Upload::new(&self.device, placed, self.done.clone()).and_decodes(undecoded))
    }

    /// Whether a part's tensors fit the memory that was taken. This is what keeps a batch that is not what it claimed to
    /// be from writing memory that is not its own, so it runs in every build.
    fn check(&self, regions: &[Region], rows: Rows) -> Result<(), Unsent> {
        let (found, expected) = (regions.len(), self.fields.len());
        if found != expected {
            return Err(unlike(format!(
                "its part of the batch has {found} tensors, and that of the samples before has {expected}"
            )));
        }
        let mut pairs = regions.iter().zip(&self.fields);
        pairs.try_for_each(|(region, place)| self.check_one(region, place, rows))
    }

    fn check_one(&self, region: &Region, place: &FieldPlace, rows: Rows) -> Result<(), Unsent> {
        let (found, expected) = (region.dtype, place.dtype);
        if found != expected {
            return Err(unlike(format!(
                "its elements are {found}, and those of the samples before are {expected}"
            )));
        }
        let Some((&count, row_shape)) = region.shape.split_first() else {
            return Err(unlike(
                "its part of the batch has a scalar, which has no rows".to_owned(),
            ));
        };
        if *row_shape != *place.row_shape {
            return Err(Unsent::Unlike(CollateError::Shape {
                field: "",
                expected: place.row_shape.clone(),
                found: row_shape.into(),
            }));
        }
        if count != rows.count {
            return Err(unlike(format!(
                "its part of the batch has {count} rows, of {} samples",
                rows.count
            )));
        }
        let last = rows.first.checked_add(count);
        let end = last.filter(|last| *last <= self.rows && rows.of == self.rows);
        let end = end.and_then(|last| last.checked_mul(place.row_bytes));
        let end = end.and_then(|bytes| place.address.checked_add(bytes as u64));
        let is_within = end.is_some_and(|end| end <= self.end);
        if !is_within || count.checked_mul(place.row_bytes) != Some(region.bytes) {
            return Err(unlike(format!(
                "its part of the batch has {} bytes, and there is no room for as many",
                region.bytes
            )));
        }
        Ok(())
    }
}

fn unlike(reason: String) -> Unsent {
    Unsent::Unlike(CollateError::Other(reason.into()))
}

#[cfg(test)]
mod tests {
    use super::super::handle::Device;
    use super::*;
    use crate::tensor::{Element, Tensor};

    fn tensors<T: Element>(shape: &[usize]) -> Tensors<'static> {
        let mut tensors = Tensors::default();
        tensors.add(&Tensor::<T>::zeros(shape));
        tensors
    }

    /// Half of a batch of 8 samples, of 2 x 3 numbers each.
    const FIRST: Rows = Rows {
        first: 0,
        count: 4,
        of: 8,
        most: 8,
        is_dense: true,
    };
    const SECOND: Rows = Rows { first: 4, ..FIRST };

    fn begun() -> Assembly {
        let device = Device::cpu();
        let first = tensors::<i16>(&[4, 2, 3]);
        let mut assembly = Assembly::begin(&Target::from(&device), &first, FIRST, true).unwrap();
        assert!(assembly.send(first, FIRST).is_ok());
        assembly
    }

    fn refused(part: Tensors<'_>, rows: Rows) -> String {
        match begun().send(part, rows) {
            Err(Unsent::Unlike(error)) => error.to_string(),
            Err(Unsent::Failed(error)) => panic!("{error}"),
            Ok(_) => panic!("the part was sent"),
        }
    }

    /// In every build: these numbers decide what is copied.
    #[test]
    fn a_part_that_is_not_like_the_first_is_refused() {
        assert!(begun().send(tensors::<i16>(&[4, 2, 3]), SECOND).is_ok());

        let mut two = tensors::<i16>(&[4, 2, 3]);
        two.add(&Tensor::<i16>::zeros(&[4, 2, 3]));
        for part in [two, Tensors::default()] {
            assert!(
                refused(part, SECOND).contains("tensors, and that of the samples before has 1")
            );
        }
        // The same number of bytes, and eight times as many.
        assert_eq!(
            refused(tensors::<u16>(&[4, 2, 3]), SECOND),
            "its elements are u16, and those of the samples before are i16"
        );
        assert!(refused(tensors::<f64>(&[4, 2, 3]), SECOND).contains("f64"));
        assert!(refused(tensors::<i16>(&[4, 3, 2]), SECOND).contains("its shape is [3, 2]"));
        assert!(refused(tensors::<i16>(&[4, 2_000, 3]), SECOND).contains("its shape is [2000, 3]"));
        assert!(refused(tensors::<i16>(&[]), SECOND).contains("a scalar"));
        for rows in [0, 3, 5, 4_000] {
            let error = refused(tensors::<i16>(&[rows, 2, 3]), SECOND);
            assert!(
                error.contains(&format!("has {rows} rows, of 4 samples")),
                "{error}"
            );
        }
        // Rows that the batch does not have.
        for first in [5, 4_000, usize::MAX] {
            let error = refused(tensors::<i16>(&[4, 2, 3]), Rows { first, ..FIRST });
            assert!(error.contains("no room"), "{error}");
        }
    }

    /// The other parts are checked against the first, but the first one is checked as well.
    #[test]
    fn a_first_part_of_other_rows_is_refused() {
        let device = Device::cpu();
        for shape in [&[][..], &[3, 2], &[5, 2], &[0], &[0, 0]] {
            let begin =
                |part: &Tensors<'_>| Assembly::begin(&Target::from(&device), part, FIRST, true);
            let mut assembly = begin(&tensors::<i16>(shape)).unwrap();
            let sent = assembly.send(tensors::<i16>(shape), FIRST);
            assert!(matches!(sent, Err(Unsent::Unlike(_))), "{shape:?}");
        }
    }
}
