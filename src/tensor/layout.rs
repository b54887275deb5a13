//! Where the fields of a batch lie in their slab, and who may write which bytes.

use std::marker::PhantomData;
use std::ptr::NonNull;

use super::storage::VecStorage;
use super::{Backend, DType, Element, Lease, Scattered, Shape, Sources, Storage, Tensor};
use crate::error::CollateError;
use crate::memory::copy_streaming;
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
    /// Rows in memory that was registered for these devices stay where they are.
    gathered_by: Option<Backend>,
    /// There are such rows.
    is_gatherable: bool,
}

#[derive(Debug, Clone)]
struct FieldSpec {
    name: &'static str,
    dtype: DType,
    offset: usize,
    row_bytes: usize,
    /// The slab holds the rows' addresses instead of the rows.
    scattered: bool,
}

/// Shorter rows are copied by ordinary stores.
const STREAMED_ROW_BYTES: usize = 4 << 10;

/// Shorter rows are copied on the host: a device gathers them one by one, each at a cost of its own.
const GATHERED_ROW_BYTES: usize = 16 << 10;

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
    fn gathers<T: Element>(&self, row: &Tensor<T>) -> bool {
        self.gathered_by.is_some() && row.storage().registered() == self.gathered_by
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
        });
        Ok(Field {
            index: self.fields.len() - 1,
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
    sources: &'a Sources,
    /// The slab is larger than what the processor keeps at hand.
    streaming: bool,
    /// Rows of scattered fields that were made here after all: field, and where.
    own: Vec<(usize, NonNull<u8>)>,
}

impl<'a> Row<'a> {
    /// # Safety
    ///
    /// `base` must be the start of at least `layout.size_bytes()` initialized bytes, aligned to [`ALIGNMENT`], that
    /// stay valid for `'a`; for `'a`, nobody else may touch the bytes of row `row`.
    pub(crate) unsafe fn new(
        layout: &'a Layout,
        base: NonNull<u8>,
        row: usize,
        sources: &'a Sources,
        streaming: bool,
    ) -> Row<'a> {
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
            sources,
            streaming,
            own: Vec::new(),
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
        let streaming = self.streaming;
        let row = self.slice_mut(field)?;
        if row.len() != elements.len() {
            return Err(self.mismatch(field, [elements.len()].as_slice().into()));
        }
        let bytes = size_of_val(elements);
        if streaming && bytes >= STREAMED_ROW_BYTES {
            let (from, to) = (elements.as_ptr().cast(), row.as_mut_ptr().cast());
            // SAFETY: both are borrowed, as long as each other, and apart: the row is borrowed exclusively.
            unsafe { copy_streaming(from, to, bytes) };
        } else {
            row.copy_from_slice(elements);
        }
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
        let spec = self.layout.spec(field)?;
        if !spec.scattered || !self.layout.gathers(&tensor) {
            return self.write(field, tensor.as_slice());
        }
        self.mark(field.index);
        self.own.retain(|(index, _)| *index != field.index);
        self.sources.keep(tensor.storage());
        let entry = self.entry(spec);
        // SAFETY: the row's entry of the table is this `Row`'s alone (*one owner per slab*).
        unsafe { entry.write(tensor.identity().as_ptr()) };
        Ok(())
    }

    /// Lends the row's elements for writing, for samples that make their elements in place. They hold what an earlier
    /// batch left there: write all of them.
    ///
    /// # Errors
    ///
    /// [`CollateError::ForeignField`] if the field comes from another layout.
    pub fn slice_mut<T: Element>(&mut self, field: &Field<T>) -> Result<&mut [T], CollateError> {
        let spec = self.layout.spec(field)?;
        let elements = spec.row_bytes / size_of::<T>();
        if spec.scattered {
            let pointer = self.own_row::<T>(field.index, spec, elements);
            // SAFETY: `own_row` made as many elements, which nobody else reaches until the batch is finished.
            return Ok(unsafe { std::slice::from_raw_parts_mut(pointer.as_ptr(), elements) });
        }
        let offset = spec.offset + self.row * spec.row_bytes;
        self.mark(field.index);
        // SAFETY: `spec` checked the field, so the row lies within the layout's bytes (*layouts are in bounds and
        // aligned*).
        let pointer = unsafe { self.base.add(offset) }.cast::<T>();
        // SAFETY: the bytes are initialized and any bit pattern is a `T` (*an Element accepts all bit patterns*);
        // `new`'s contract: only this `Row` reaches them, and it is borrowed (*one owner per slab*).
        Ok(unsafe { std::slice::from_raw_parts_mut(pointer.as_ptr(), elements) })
    }

    /// Notes that the field was written; says whether it was before.
    fn mark(&mut self, field: usize) -> bool {
        let Some(bit) = 1u64.checked_shl(field as u32) else {
            let before = self.rest.contains(&field);
            self.rest.push(field);
            return before;
        };
        let before = self.written & bit != 0;
        self.written |= bit;
        before
    }

    /// The row's entry in the table of a scattered field.
    fn entry(&self, spec: &FieldSpec) -> NonNull<*const u8> {
        // SAFETY: the layout has an entry for each of its rows (*layouts are in bounds and aligned*).
        unsafe {
            self.base
                .add(spec.offset + self.row * size_of::<*const u8>())
        }
        .cast()
    }

    /// Memory for a row that is not taken from where it lies, although others of its field are.
    fn own_row<T: Element>(
        &mut self,
        field: usize,
        spec: &FieldSpec,
        elements: usize,
    ) -> NonNull<T> {
        let before = self.mark(field);
        if let Some((_, pointer)) = self.own.iter().find(|(index, _)| *index == field) {
            return pointer.cast();
        }
        let (storage, pointer) = VecStorage::new(vec![T::default(); elements]);
        let entry = self.entry(spec);
        if before {
            // SAFETY: an earlier call wrote the entry.
            let taken = unsafe { entry.read() };
            // SAFETY: it is the address of as many bytes, which `sources` keeps; the new memory is this call's alone.
            unsafe {
                std::ptr::copy_nonoverlapping(taken, pointer.as_ptr().cast(), spec.row_bytes)
            };
        }
        self.sources.keep_pageable(Arc::new(storage));
        // SAFETY: the row's entry of the table is this `Row`'s alone (*one owner per slab*).
        unsafe { entry.write(pointer.as_ptr().cast()) };
        self.own.push((field, pointer.cast()));
        pointer
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
    sources: Arc<Sources>,
    taken: Vec<bool>,
}

// SAFETY: it is the only way to the fields' bytes until they are taken (*one owner per slab*), and touches none itself.
unsafe impl Send for Filled {}

impl Filled {
    /// # Safety
    ///
    /// `base` must be the start of at least `layout.size_bytes()` initialized bytes, aligned to [`ALIGNMENT`], that
    /// `slab` keeps alive and in place, and that nobody else touches from now on. Each row must have been written through a
    /// [`Row`] with these `sources`.
    pub(crate) unsafe fn new(
        layout: Layout,
        base: NonNull<u8>,
        slab: Arc<dyn Storage>,
        sources: Arc<Sources>,
    ) -> Filled {
        Filled {
            taken: vec![false; layout.fields.len()],
            layout,
            base,
            slab,
            sources,
        }
    }

    /// Takes one field out, as a tensor of shape `[rows, row_shape..]`.
    ///
    /// # Panics
    ///
    /// If the field comes from another layout, or was taken before: both are mistakes in an own `Sample`.
    pub fn take<T: Element>(&mut self, field: Field<T>) -> Tensor<T> {
        let spec = match self.layout.spec(&field) {
            Ok(spec) => spec,
            Err(error) => panic!("Filled::take: {error}"),
        };
        let taken = std::mem::replace(&mut self.taken[field.index], true);
        assert!(!taken, "Filled::take: this field was taken before");
        let shape = Shape::batched(self.layout.rows, &field.row_shape);
        // SAFETY: the field lies inside of the slab (*layouts are in bounds and aligned*).
        let base = unsafe { self.base.add(spec.offset) };
        if !spec.scattered {
            let lease = Arc::new(Lease(Arc::clone(&self.slab)));
            // SAFETY: the offset is aligned (*layouts are in bounds and aligned*); the bytes are initialized (`new`); and
            // `taken` sees to it that the lease is the only way to them.
            return unsafe { Tensor::from_raw(base.cast(), shape, lease) };
        }
        let (table, slab, sources) = (
            base.cast(),
            Arc::clone(&self.slab),
            Arc::clone(&self.sources),
        );
        // SAFETY: each row wrote the address of as many bytes into the table, and gave their owner to `sources`; the
        // table is this field's alone.
        let rows =
            unsafe { Scattered::new(slab, table, self.layout.rows, spec.row_bytes, sources) };
        // SAFETY: the rows are those of the shape, and come from tensors of `T`s, which are aligned.
        unsafe { Tensor::from_rows(table, shape, rows) }
    }
}

impl std::fmt::Debug for Filled {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Filled")
            .field("layout", &self.layout)
            .finish()
    }
}
