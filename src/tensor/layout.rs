//! Where the fields of a batch lie in their slab, and who may write which bytes.

use std::marker::PhantomData;
use std::ptr::NonNull;

use super::{DType, Element, Lease, Shape, Storage, Tensor};
use crate::error::CollateError;
use crate::sync::Arc;

/// Each field of a slab begins at a multiple of this: what device kernels and wide loads like best.
pub(crate) const ALIGNMENT: usize = 256;

/// The plan of one batch: its fields, one behind the other in a single slab, each at a 256-byte boundary.
#[derive(Debug, Clone)]
pub struct Layout {
    rows: usize,
    name: &'static str,
    fields: Vec<FieldSpec>,
    size_bytes: usize,
}

#[derive(Debug, Clone)]
struct FieldSpec {
    name: &'static str,
    dtype: DType,
    offset: usize,
    row_bytes: usize,
}

/// One field of a batch: a tensor of as many rows as the batch has samples. [`Layout::field`] makes it.
#[derive(Debug)]
pub struct Field<T> {
    index: usize,
    row_shape: Shape,
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
        }
    }

    /// How many samples the batch has.
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
        self.push(T::DTYPE, row_bytes)?;
        Ok(Field {
            index: self.fields.len() - 1,
            row_shape: row_shape.into(),
            element: PhantomData,
        })
    }

    fn push(&mut self, dtype: DType, row_bytes: usize) -> Result<(), CollateError> {
        let bytes = row_bytes
            .checked_mul(self.rows)
            .ok_or(CollateError::TooLarge)?;
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
            dtype,
            offset,
            row_bytes,
        });
        Ok(())
    }

    /// Names the fields that `plan` adds, for errors. The derive macro calls it with the struct's field names.
    pub fn named<R>(&mut self, name: &'static str, plan: impl FnOnce(&mut Layout) -> R) -> R {
        let outer = std::mem::replace(&mut self.name, name);
        let result = plan(self);
        self.name = outer;
        result
    }

    /// The size of the slab in bytes.
    pub fn size_bytes(&self) -> usize {
        self.size_bytes
    }

    fn spec<T: Element>(&self, field: &Field<T>) -> Result<&FieldSpec, CollateError> {
        self.fields
            .get(field.index)
            .filter(|spec| {
                spec.dtype == T::DTYPE
                    && Shape::elements(&field.row_shape)
                        .is_some_and(|n| n * size_of::<T>() == spec.row_bytes)
            })
            .ok_or(CollateError::ForeignField { found: T::DTYPE })
    }
}

/// One sample's row of a batch, for writing: the sample's bytes of each field.
///
/// Each field must be written once, by [`write`](Row::write), [`take`](Row::take) or through
/// [`slice_mut`](Row::slice_mut); a row that was left incomplete is an error of its batch.
#[derive(Debug)]
pub struct Row<'a> {
    layout: &'a Layout,
    base: NonNull<u8>,
    row: usize,
    /// Bit i: field i was written. Fields from the 64th on are counted in `rest`.
    written: u64,
    rest: Vec<usize>,
}

impl<'a> Row<'a> {
    /// # Safety
    ///
    /// `base` must be the start of at least `layout.size_bytes()` initialized bytes, aligned to [`ALIGNMENT`], that
    /// stay valid for `'a`; for `'a`, nobody else may touch the bytes of row `row`.
    pub(crate) unsafe fn new(layout: &'a Layout, base: NonNull<u8>, row: usize) -> Row<'a> {
        assert!(
            row < layout.rows,
            "row {row} of a layout for {} rows",
            layout.rows
        );
        Row {
            layout,
            base,
            row,
            written: 0,
            rest: Vec::new(),
        }
    }

    /// Copies one row's elements.
    ///
    /// # Errors
    ///
    /// [`CollateError::Shape`] if there are not as many elements as the field's rows have;
    /// [`CollateError::ForeignField`] if the field comes from another layout.
    pub fn write<T: Element>(
        &mut self,
        field: &Field<T>,
        elements: &[T],
    ) -> Result<(), CollateError> {
        let row = self.slice_mut(field)?;
        if row.len() != elements.len() {
            return Err(self.mismatch(field, [elements.len()].as_slice().into()));
        }
        row.copy_from_slice(elements);
        Ok(())
    }

    /// Takes a tensor as the row: its elements must have the field's row shape.
    ///
    /// Prefer it to [`write`](Row::write) where there is a tensor: its shape is checked as well.
    ///
    /// # Errors
    ///
    /// As [`write`](Row::write).
    pub fn take<T: Element>(
        &mut self,
        field: &Field<T>,
        tensor: Tensor<T>,
    ) -> Result<(), CollateError> {
        if tensor.shape() != &field.row_shape {
            return Err(self.mismatch(field, tensor.shape().clone()));
        }
        self.write(field, tensor.as_slice())
    }

    /// Lends the row's elements for writing, for samples that make their elements in place. They hold what an earlier
    /// batch left there: write all of them.
    ///
    /// # Errors
    ///
    /// [`CollateError::ForeignField`] if the field comes from another layout.
    pub fn slice_mut<T: Element>(&mut self, field: &Field<T>) -> Result<&mut [T], CollateError> {
        let spec = self.layout.spec(field)?;
        let offset = spec.offset + self.row * spec.row_bytes;
        let elements = spec.row_bytes / size_of::<T>();
        match 1u64.checked_shl(field.index as u32) {
            Some(bit) => self.written |= bit,
            None => self.rest.push(field.index),
        }
        // SAFETY: `spec` checked the field, so the row lies within the layout's bytes (*layouts are in bounds and
        // aligned*).
        let pointer = unsafe { self.base.add(offset) }.cast::<T>();
        // SAFETY: the bytes are initialized and any bit pattern is a `T` (*an Element accepts all bit patterns*);
        // `new`'s contract: only this `Row` reaches them, and it is borrowed (*one owner per slab*).
        Ok(unsafe { std::slice::from_raw_parts_mut(pointer.as_ptr(), elements) })
    }

    /// The error of a sample whose shape is not the field's.
    pub(crate) fn mismatch<T: Element>(&self, field: &Field<T>, found: Shape) -> CollateError {
        CollateError::Shape {
            field: self
                .layout
                .fields
                .get(field.index)
                .map_or("", |spec| spec.name),
            expected: field.row_shape.clone(),
            found,
        }
    }

    /// Checks that each field was written.
    pub(crate) fn complete(mut self) -> Result<(), CollateError> {
        let fields = self.layout.fields.len();
        let first = fields.min(64);
        let all = if first == 64 {
            u64::MAX
        } else {
            (1 << first) - 1
        };
        if self.written & all != all {
            let missing = (!self.written).trailing_zeros() as usize;
            return Err(self.unwritten(missing));
        }
        self.rest.sort_unstable();
        self.rest.dedup();
        match (64..fields).find(|index| self.rest.binary_search(index).is_err()) {
            Some(missing) => Err(self.unwritten(missing)),
            None => Ok(()),
        }
    }

    fn unwritten(&self, field: usize) -> CollateError {
        CollateError::Unwritten {
            field: self.layout.fields[field].name,
        }
    }
}

/// A slab whose rows are all written: its fields are taken out as tensors.
pub struct Filled {
    layout: Layout,
    base: NonNull<u8>,
    slab: Arc<dyn Storage>,
    taken: Vec<bool>,
}

// SAFETY: it is the only way to the fields' bytes until they are taken (*one owner per slab*), and touches none itself.
unsafe impl Send for Filled {}

impl Filled {
    /// # Safety
    ///
    /// `base` must be the start of at least `layout.size_bytes()` initialized bytes, aligned to [`ALIGNMENT`], that
    /// `slab` keeps alive and in place, and that nobody else touches from now on.
    pub(crate) unsafe fn new(layout: Layout, base: NonNull<u8>, slab: Arc<dyn Storage>) -> Filled {
        Filled {
            taken: vec![false; layout.fields.len()],
            layout,
            base,
            slab,
        }
    }

    /// Takes one field out, as a tensor of shape `[rows, row_shape..]`.
    ///
    /// # Panics
    ///
    /// If the field comes from another layout, or was taken before: both are mistakes in an own `Sample`.
    pub fn take<T: Element>(&mut self, field: Field<T>) -> Tensor<T> {
        let offset = match self.layout.spec(&field) {
            Ok(spec) => spec.offset,
            Err(error) => panic!("Filled::take: {error}"),
        };
        let taken = std::mem::replace(&mut self.taken[field.index], true);
        assert!(!taken, "Filled::take: this field was taken before");
        let shape = Shape::batched(self.layout.rows, &field.row_shape);
        let lease = Arc::new(Lease(Arc::clone(&self.slab)));
        // SAFETY: the field lies inside of the slab, at an aligned offset (*layouts are in bounds and aligned*); its
        // bytes are initialized (`new`); and `taken` sees to it that its lease is the only way to them.
        unsafe { Tensor::from_raw(self.base.add(offset).cast(), shape, lease) }
    }
}

impl std::fmt::Debug for Filled {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Filled")
            .field("layout", &self.layout)
            .finish()
    }
}
