//! Where the fields of a batch lie in their slab.

use std::marker::PhantomData;

use super::{Backend, DType, Element, Shape, Tensor};
use crate::error::CollateError;

/// Each field of a slab begins at a multiple of this: what device kernels and wide loads like best.
pub(crate) const ALIGNMENT: usize = 256;

/// The plan of one batch: its fields, one behind the other in a single slab, each at a 256-byte boundary.
#[derive(Debug, Clone)]
pub struct Layout {
    rows: usize,
    name: &'static str,
    fields: Vec<FieldSpec>,
    size_bytes: usize,
    /// Rows in memory that was registered for these devices stay where they are.
    gathered_by: Option<Backend>,
    /// There are such rows.
    is_gatherable: bool,
}

/// What the layout knows of a field.
#[derive(Debug, Clone)]
pub(super) struct FieldSpec {
    pub(super) name: &'static str,
    dtype: DType,
    pub(super) offset: usize,
    pub(super) row_bytes: usize,
    /// The slab holds the rows' addresses instead of the rows.
    pub(super) scattered: bool,
    /// It was taken out of the filled slab.
    taken: bool,
}

/// Shorter rows are copied on the host: a device gathers them one by one, each at a cost of its own.
const GATHERED_ROW_BYTES: usize = 16 << 10;

/// One field of a batch: a tensor of as many rows as the batch has samples. [`Layout::field`] makes it.
#[derive(Debug)]
pub struct Field<T> {
    pub(super) index: usize,
    row_bytes: usize,
    pub(super) row_shape: Shape,
    element: PhantomData<fn() -> T>,
}

impl<T: Element> Field<T> {
    /// The shape of one row: the batch's without its first dimension.
    pub fn row_shape(&self) -> &Shape {
        &self.row_shape
    }
}

impl Layout {
    pub(crate) fn new(rows: usize) -> Layout {
        Layout {
            rows,
            name: "",
            fields: Vec::new(),
            size_bytes: 0,
            gathered_by: None,
            is_gatherable: false,
        }
    }

    /// Rows that these devices can gather themselves stay where they are.
    pub(crate) fn gathered_by(mut self, backend: Option<Backend>) -> Layout {
        self.gathered_by = backend;
        self
    }

    /// How many samples the batch has.
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
        let row_bytes = Shape::elements(row_shape)
            .and_then(|elements| elements.checked_mul(size_of::<T>()))
            .ok_or(CollateError::TooLarge)?;
        self.push::<T>(row_shape, row_bytes, false)
    }

    pub(crate) fn is_gatherable(&self) -> bool {
        self.is_gatherable
    }

    /// Adds a field whose rows are like this tensor.
    pub(super) fn field_like<T: Element>(
        &mut self,
        sample: &Tensor<T>,
    ) -> Result<Field<T>, CollateError> {
        let long = sample.size_bytes() >= GATHERED_ROW_BYTES;
        self.is_gatherable |= long && sample.storage().registered().is_some();
        let scattered = long && self.gathers(sample);
        self.push::<T>(sample.shape(), sample.size_bytes(), scattered)
    }

    /// Whether the device can gather this row itself.
    pub(super) fn gathers<T: Element>(&self, row: &Tensor<T>) -> bool {
        self.gathered_by.is_some() && row.storage().registered() == self.gathered_by
    }

    /// Whose devices gather the rows that stay where they are.
    pub(super) fn backend(&self) -> Option<Backend> {
        self.gathered_by
    }

    fn push<T: Element>(
        &mut self,
        row_shape: &[usize],
        row_bytes: usize,
        scattered: bool,
    ) -> Result<Field<T>, CollateError> {
        let bytes = row_bytes
            .checked_mul(self.rows)
            .ok_or(CollateError::TooLarge)?;
        let bytes = if scattered {
            self.rows * size_of::<*const u8>()
        } else {
            bytes
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
            scattered,
            taken: false,
        });
        Ok(Field {
            index: self.fields.len() - 1,
            row_bytes,
            row_shape: row_shape.into(),
            element: PhantomData,
        })
    }

    /// Names the fields that `plan` adds, for errors. The derive macro calls it with the struct's field names.
    pub fn named<R>(&mut self, name: &'static str, plan: impl FnOnce(&mut Layout) -> R) -> R {
        let outer = std::mem::replace(&mut self.name, name);
        let result = plan(self);
        self.name = outer;
        result
    }

    /// The size of the slab in bytes.
    #[inline]
    pub fn size_bytes(&self) -> usize {
        self.size_bytes
    }

    /// How many bytes one sample's rows have, wherever they lie.
    pub(crate) fn sample_bytes(&self) -> usize {
        let rows = self.fields.iter().map(|spec| spec.row_bytes);
        rows.fold(0, usize::saturating_add)
    }

    #[inline]
    pub(super) fn fields(&self) -> &[FieldSpec] {
        &self.fields
    }

    /// Whether rows of some field lie elsewhere.
    pub(crate) fn is_scattered(&self) -> bool {
        self.fields.iter().any(|spec| spec.scattered)
    }

    /// Finds a field, which must be of this layout, or of one just like it.
    #[inline]
    pub(super) fn spec<T: Element>(&self, field: &Field<T>) -> Result<&FieldSpec, CollateError> {
        match self.fields.get(field.index) {
            Some(spec) if spec.dtype == T::DTYPE && spec.row_bytes == field.row_bytes => Ok(spec),
            _ => Err(CollateError::ForeignField { found: T::DTYPE }),
        }
    }

    /// Marks a field as taken out; says whether it was before.
    pub(super) fn mark_taken(&mut self, index: usize) -> bool {
        std::mem::replace(&mut self.fields[index].taken, true)
    }
}
