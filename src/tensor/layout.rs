//! Where the fields of a batch lie in their slab.

use std::cell::Cell;
use std::marker::PhantomData;

use super::{Backend, Column, DType, Element, Offload, Shape, Tensor};
use crate::error::CollateError;
use crate::picture::DecoderLimits;
use crate::sync::{Arc, Ordering, plain, thread_local};
use crate::tuning::GATHERED_ROW_BYTES;

/// Each field of a slab begins at a multiple of this, which suits device kernels and wide loads.
pub(crate) const ALIGNMENT: usize = 256;

/// The plan of one batch: its fields, one after the other in a single slab, each at a 256-byte boundary.
///
/// The library makes it and lends it to [`Sample::plan`](crate::Sample::plan), which adds fields. It cannot be copied or replaced: where a
/// batch's rows lie, and what keeps them, follows from the layout that its own table was made with.
///
/// # Examples
///
/// In [`Sample`](crate::Sample#examples).
#[derive(Debug)]
pub struct Layout {
    /// No other layout has this number.
    serial: u64,
    rows: usize,
    name: &'static str,
    fields: Vec<FieldSpec>,
    size_bytes: usize,
    /// What is left to the device.
    offload: Offload,
    /// Some rows are in such memory.
    is_gatherable: bool,
    /// A device may decode some rows.
    has_pictures: bool,
}

/// What the layout knows about a field.
#[derive(Debug)]
pub(super) struct FieldSpec {
    pub(super) name: &'static str,
    dtype: DType,
    pub(super) offset: usize,
    pub(super) row_bytes: usize,
    pub(super) form: Form,
    /// The field was taken out of the filled slab.
    taken: bool,
}

/// How a field's rows lie in the slab.
#[derive(Debug)]
pub(super) enum Form {
    /// Consecutive, one for each sample.
    Dense,
    /// The slab holds the rows' addresses instead of the rows.
    Scattered,
    /// Consecutive, one for each sample. A row may hold nothing yet, because the device decodes a picture into it.
    Pictures,
    /// Consecutive; sample `i` has the rows from `places[i]` to `places[i + 1]`. Places ascend, and there is one more
    /// of them than samples. The last one is the number of rows.
    Ragged(Arc<[usize]>),
}

/// One field of a batch: a tensor with one row for each sample, or with all rows of its [`Ragged`](crate::Ragged)
/// samples. [`Layout::field`] makes it.
///
/// # Examples
///
/// In [`Sample`](crate::Sample#examples).
#[derive(Debug)]
pub struct Field<T> {
    pub(super) index: usize,
    row_bytes: usize,
    pub(super) row_shape: Shape,
    element: PhantomData<fn() -> T>,
}

impl<T: Element> Field<T> {
    /// The shape of one row: the tensor's shape without its first dimension.
    pub fn row_shape(&self) -> &Shape {
        &self.row_shape
    }
}

const EXCHANGED: &str =
    "`plan` put the layout of another batch in place of the one that it was lent";

/// The next number of a layout. Each thread takes many at once, for batches may be tiny.
fn next_serial() -> u64 {
    const AT_ONCE: u64 = 1 << 20;
    static TAKEN: plain::AtomicU64 = plain::AtomicU64::new(0);
    thread_local! {
        static NEXT: Cell<u64> = const { Cell::new(0) };
    }
    NEXT.with(|next| {
        let serial = match next.get() {
            used_up if used_up.is_multiple_of(AT_ONCE) => {
                TAKEN.fetch_add(AT_ONCE, Ordering::Relaxed)
            }
            serial => serial,
        };
        next.set(serial + 1);
        serial
    })
}

impl Layout {
    pub(crate) fn new(rows: usize) -> Layout {
        Layout {
            serial: next_serial(),
            rows,
            name: "",
            fields: Vec::new(),
            size_bytes: 0,
            offload: Offload::default(),
            is_gatherable: false,
            has_pictures: false,
        }
    }

    /// Leaves rows where they are, or as they are, if the batch's device can gather or decode them.
    pub(crate) fn offload(mut self, offload: Offload) -> Layout {
        self.offload = offload;
        self
    }

    /// Lends it to `plan`, which may be the program's code, and sees that what comes back is what was lent: there may be another, if a
    /// batch is planned while another one is.
    pub(crate) fn lend<P>(
        mut self,
        plan: impl FnOnce(&mut Layout) -> Result<P, CollateError>,
    ) -> Result<(P, Layout), CollateError> {
        let serial = self.serial;
        let plan = plan(&mut self)?;
        match self.serial == serial {
            true => Ok((plan, self)),
            false => Err(CollateError::Other(EXCHANGED.into())),
        }
    }

    /// The number of samples in the batch.
    #[inline]
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Adds a field whose rows have the given shape: in the batch it is a tensor of shape `[rows, row_shape..]`.
    ///
    /// # Errors
    ///
    /// [`CollateError::TooLarge`] if the batch's size does not fit a machine word.
    pub fn field<T: Element>(&mut self, row_shape: &[usize]) -> Result<Field<T>, CollateError> {
        self.push::<T>(row_shape, row_bytes::<T>(row_shape)?, Form::Dense)
    }

    /// Adds a field in which sample `i` has the rows from `places[i]` to `places[i + 1]`: in the batch it is a tensor
    /// of shape `[last place, row_shape..]`. Rows before the first place belong to no sample.
    pub(super) fn ragged_field<T: Element>(
        &mut self,
        row_shape: &[usize],
        places: Arc<[usize]>,
    ) -> Result<Field<T>, CollateError> {
        if places.len().checked_sub(1) != Some(self.rows) {
            return Err(CollateError::Other(
                "a batch of `Ragged` samples is planned from all of them: `Sample::ALIKE` of what holds them must be false".into(),
            ));
        }
        // Each row of the slab has one writer.
        assert!(places.is_sorted(), "places ascend");
        self.push::<T>(row_shape, row_bytes::<T>(row_shape)?, Form::Ragged(places))
    }

    /// Adds a field of pictures, which the batch's device may decode: as [`field`](Layout::field) otherwise.
    #[doc(hidden)]
    pub fn pictures(&mut self, row_shape: &[usize]) -> Result<Field<u8>, CollateError> {
        let form = match self.offload.decodes {
            Some(_) => Form::Pictures,
            None => Form::Dense,
        };
        let field = self.push::<u8>(row_shape, row_bytes::<u8>(row_shape)?, form)?;
        self.has_pictures = true;
        Ok(field)
    }

    /// What the device decodes into the rows of this field, if it does.
    pub(super) fn decodes(&self, field: &Field<u8>) -> Option<DecoderLimits> {
        let spec = self.spec(field).ok()?;
        self.offload.decodes.filter(|_| spec.has_pictures())
    }

    /// Whether the picture of this row is the device's, where the CPU decodes others.
    pub(super) fn is_devices_own(&self, row: usize) -> bool {
        self.offload.own.is_some_and(|own| own.has(row))
    }

    /// Whether some device could decode rows.
    pub(crate) fn has_pictures(&self) -> bool {
        self.has_pictures
    }

    pub(crate) fn is_gatherable(&self) -> bool {
        self.is_gatherable
    }

    /// Adds a field whose rows have this tensor's shape.
    pub(super) fn field_like<T: Element>(
        &mut self,
        sample: &Tensor<T>,
    ) -> Result<Field<T>, CollateError> {
        let long = sample.size_bytes() >= GATHERED_ROW_BYTES;
        self.is_gatherable |= long && sample.storage().registered().is_some();
        let form = match long && self.gathers(sample) {
            true => Form::Scattered,
            false => Form::Dense,
        };
        self.push::<T>(sample.shape(), sample.size_bytes(), form)
    }

    /// Whether the device can gather this row itself.
    pub(super) fn gathers<T: Element>(&self, row: &Tensor<T>) -> bool {
        self.offload.gathers.is_some() && row.storage().registered() == self.offload.gathers
    }

    /// The backend whose devices gather the rows that stay where they are.
    pub(super) fn backend(&self) -> Option<Backend> {
        self.offload.gathers
    }

    fn push<T: Element>(
        &mut self,
        row_shape: &[usize],
        row_bytes: usize,
        form: Form,
    ) -> Result<Field<T>, CollateError> {
        let bytes = row_bytes
            .checked_mul(form.rows(self.rows))
            .ok_or(CollateError::TooLarge)?;
        let bytes = match form {
            Form::Scattered => self.rows * size_of::<*const u8>(),
            Form::Dense | Form::Pictures | Form::Ragged(_) => bytes,
        };
        let offset = self
            .size_bytes
            .checked_next_multiple_of(ALIGNMENT)
            .ok_or(CollateError::TooLarge)?;
        self.size_bytes = offset
            .checked_add(bytes)
            .filter(|&size| size <= isize::MAX as usize - ALIGNMENT)
            .ok_or(CollateError::TooLarge)?;
        self.fields.push(FieldSpec {
            name: self.name,
            dtype: T::DTYPE,
            offset,
            row_bytes,
            form,
            taken: false,
        });
        Ok(Field {
            index: self.fields.len() - 1,
            row_bytes,
            row_shape: row_shape.into(),
            element: PhantomData,
        })
    }

    /// Names the fields that `plan` adds, for error messages. The derive macro calls it with the struct's field names.
    pub fn named<R>(&mut self, name: &'static str, plan: impl FnOnce(&mut Layout) -> R) -> R {
        let outer = std::mem::replace(&mut self.name, name);
        let result = plan(self);
        self.name = outer;
        result
    }

    /// The name of the fields that are being planned.
    pub(super) fn name(&self) -> &'static str {
        self.name
    }

    /// The size of the slab in bytes.
    #[inline]
    pub fn size_bytes(&self) -> usize {
        self.size_bytes
    }

    /// The size of one sample's rows in bytes, wherever they lie; the mean where it differs between samples.
    pub(crate) fn sample_bytes(&self) -> usize {
        let rows = self.fields.iter().map(|spec| match &spec.form {
            Form::Dense | Form::Scattered | Form::Pictures => spec.row_bytes,
            Form::Ragged(_) => {
                (spec.row_bytes * spec.form.rows(self.rows)).div_ceil(self.rows.max(1))
            }
        });
        rows.fold(0, usize::saturating_add)
    }

    #[inline]
    pub(super) fn fields(&self) -> &[FieldSpec] {
        &self.fields
    }

    /// Whether any field's rows lie elsewhere, or may.
    pub(crate) fn has_sources(&self) -> bool {
        self.fields.iter().any(FieldSpec::has_sources)
    }

    /// Whether the batch is nothing but these columns' rows, each in a row of its field.
    pub(super) fn is_of(&self, columns: &[Column]) -> bool {
        self.fields.len() == columns.len()
            && self.fields.iter().zip(columns).all(|(spec, column)| {
                let is_alike = spec.dtype == column.dtype() && spec.row_bytes == column.row_bytes();
                is_alike
                    && match spec.form {
                        Form::Dense => true,
                        Form::Scattered => column.registered() == self.offload.gathers,
                        Form::Pictures | Form::Ragged(_) => false,
                    }
            })
    }

    /// Finds a field, which must come from this layout or an identical one.
    #[inline]
    pub(super) fn spec<T: Element>(&self, field: &Field<T>) -> Result<&FieldSpec, CollateError> {
        match self.fields.get(field.index) {
            Some(spec) if spec.dtype == T::DTYPE && spec.row_bytes == field.row_bytes => Ok(spec),
            _ => Err(CollateError::ForeignField { found: T::DTYPE }),
        }
    }

    /// Marks a field as taken. Returns whether it was already.
    pub(super) fn mark_taken(&mut self, index: usize) -> bool {
        std::mem::replace(&mut self.fields[index].taken, true)
    }
}

impl FieldSpec {
    /// Whether the slab has one row for each sample, which holds what is written there.
    #[inline]
    pub(super) fn is_dense(&self) -> bool {
        matches!(self.form, Form::Dense)
    }

    /// Whether the rows lie elsewhere.
    #[inline]
    pub(super) fn is_scattered(&self) -> bool {
        matches!(self.form, Form::Scattered)
    }

    /// Whether the device decodes pictures into rows.
    pub(super) fn has_pictures(&self) -> bool {
        matches!(self.form, Form::Pictures)
    }

    /// Whether rows lie elsewhere, or some may.
    fn has_sources(&self) -> bool {
        self.is_scattered() || self.has_pictures()
    }
}

impl Form {
    /// The number of rows for this many samples.
    pub(super) fn rows(&self, samples: usize) -> usize {
        match self {
            Form::Dense | Form::Scattered | Form::Pictures => samples,
            Form::Ragged(places) => places.last().copied().unwrap_or(0),
        }
    }
}

fn row_bytes<T: Element>(row_shape: &[usize]) -> Result<usize, CollateError> {
    let bytes =
        Shape::elements(row_shape).and_then(|elements| elements.checked_mul(size_of::<T>()));
    bytes.ok_or(CollateError::TooLarge)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_comes_back_is_what_was_lent() {
        let lent = Layout::new(3).lend(|layout| layout.field::<u8>(&[2]));
        assert_eq!(lent.unwrap().1.rows(), 3);
        // A batch is planned while another is, and they exchange their layouts: neither is filled.
        let outer = Layout::new(3).lend(|outer| {
            let inner = Layout::new(1000).lend(|inner| {
                std::mem::swap(inner, outer);
                Ok(())
            });
            assert!(inner.unwrap_err().to_string().contains("another batch"));
            Ok(())
        });
        assert!(outer.is_err());
    }

    #[test]
    fn numbers_are_used_once() {
        let numbers = || (0..1000).map(|_| next_serial()).collect::<Vec<_>>();
        let mut all = numbers();
        for _ in 0..4 {
            let on_another = || std::thread::scope(|scope| scope.spawn(numbers).join());
            all.extend(on_another().unwrap());
        }
        all.sort_unstable();
        all.dedup();
        assert_eq!(all.len(), 5000);
    }
}
