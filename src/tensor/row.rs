//! Rows: who may write which bytes of a slab that is being filled.

use std::collections::HashSet;
use std::ops::Range;
use std::ptr::NonNull;

use super::layout::{FieldSpec, Form};
use super::storage::VecStorage;
use super::{Element, Field, Layout, Shape, Sources, Tensor};
use crate::error::CollateError;
use crate::memory::copy_streaming;
use crate::meter::Decoding;
use crate::sync::Arc;
use crate::tuning::STREAMED_ROW_BYTES;

/// One sample's row of a batch, for writing: the sample's bytes of each field.
///
/// Each field must be written once, by [`write`](Row::write), [`take`](Row::take) or through
/// [`slice_mut`](Row::slice_mut); a row that was left incomplete is an error of its batch.
///
/// # Examples
///
/// In [`Sample`](crate::Sample#examples).
#[derive(Debug)]
pub struct Row<'a> {
    layout: &'a Layout,
    base: NonNull<u8>,
    row: usize,
    /// Bit i: field i was written.
    written: u64,
    /// Where a layout with scattered fields keeps who owns the rows.
    sources: Option<&'a Sources>,
    /// The slab is larger than what the processor keeps at hand.
    streaming: bool,
    /// What few rows have.
    more: Option<Box<More>>,
}

#[derive(Debug, Default)]
struct More {
    /// Fields from the 64th on that were written.
    written: Vec<usize>,
    /// Rows of scattered fields that were made here after all: field, and where.
    own: Vec<(usize, NonNull<u8>)>,
}

impl<'a> Row<'a> {
    /// # Safety
    ///
    /// `base` must be the start of at least `layout.size_bytes()` initialized bytes, aligned to `ALIGNMENT`, that stay
    /// valid for `'a`; for `'a`, nobody else may touch the bytes of row `row`. `sources` must be there if the layout is
    /// scattered.
    #[inline]
    pub(crate) unsafe fn new(
        layout: &'a Layout,
        base: NonNull<u8>,
        row: usize,
        sources: Option<&'a Sources>,
        streaming: bool,
    ) -> Row<'a> {
        assert!(
            row < layout.rows(),
            "row {row} of a layout for {} rows",
            layout.rows()
        );
        Row {
            layout,
            base,
            row,
            written: 0,
            sources,
            streaming,
            more: None,
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
        let (true, Some(sources)) = (
            spec.is_scattered() && self.layout.gathers(&tensor),
            self.sources,
        ) else {
            return self.write(field, tensor.as_slice());
        };
        self.mark(field.index);
        if let Some(more) = &mut self.more {
            more.own.retain(|(index, _)| *index != field.index);
        }
        sources.keep(tensor.storage());
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
    #[inline]
    pub fn slice_mut<T: Element>(&mut self, field: &Field<T>) -> Result<&mut [T], CollateError> {
        let spec = self.layout.spec(field)?;
        if !spec.is_dense() {
            return self.rows_elsewhere(field);
        }
        let offset = spec.offset + self.row * spec.row_bytes;
        let elements = spec.row_bytes / size_of::<T>();
        self.mark(field.index);
        // SAFETY: `spec` checked the field, so the row lies within the layout's bytes (*layouts are in bounds and aligned*).
        Ok(unsafe { self.lend(offset, elements) })
    }

    /// Runs what makes a row's elements, as decoding and transforming a picture do, and counts its time as decoding
    /// ([`Stats::decoding_ns`](crate::loader::Stats::decoding_ns)). All else that filling a row takes counts as collating.
    ///
    /// # Examples
    ///
    /// ```
    /// use pinfeed::error::CollateError;
    /// use pinfeed::sample::{Field, Filled, Layout, Row};
    /// use pinfeed::{DataLoader, Sample, Tensor, from_fn};
    ///
    /// /// Bytes that are unpacked, bit by bit, into their row of the batch.
    /// struct Packed(u64);
    ///
    /// impl Sample for Packed {
    ///     type Batch = Tensor<u8>;
    ///     type Plan = Field<u8>;
    ///     type Rest = ();
    ///
    ///     fn plan<'a>(
    ///         _: impl Iterator<Item = &'a Packed> + Clone,
    ///         layout: &mut Layout,
    ///     ) -> Result<Field<u8>, CollateError> {
    ///         layout.field(&[64])
    ///     }
    ///
    ///     fn fill(self, field: &Field<u8>, row: &mut Row<'_>) -> Result<(), CollateError> {
    ///         row.decoding(|row| {
    ///             let bits = row.slice_mut(field)?.iter_mut().enumerate();
    ///             bits.for_each(|(place, bit)| *bit = (self.0 >> place) as u8 & 1);
    ///             Ok(())
    ///         })
    ///     }
    ///
    ///     fn finish(field: Field<u8>, _: Vec<()>, filled: &mut Filled) -> Tensor<u8> {
    ///         filled.take(field)
    ///     }
    /// }
    ///
    /// let loader = DataLoader::builder(from_fn(8, |index, _| Ok(Packed(index)))).batch_size(8).build()?;
    /// let batch = loader.epoch(0).next().unwrap()?;
    /// assert_eq!(batch.row(5).as_slice()[..4], [1, 0, 1, 0]);
    /// println!("{}", loader.stats()); // decoding has a line of its own
    /// # Ok::<(), pinfeed::Error>(())
    /// ```
    pub fn decoding<R>(&mut self, decode: impl FnOnce(&mut Row<'a>) -> R) -> R {
        let _decoding = Decoding::begin();
        decode(self)
    }

    /// Lends what is not one row of many that lie one behind the other.
    #[cold]
    fn rows_elsewhere<T: Element>(&mut self, field: &Field<T>) -> Result<&mut [T], CollateError> {
        let spec = self.layout.spec(field)?;
        let elements = spec.row_bytes / size_of::<T>();
        let Form::Ragged(places) = &spec.form else {
            let pointer = self.own_row::<T>(field.index, spec, elements);
            // SAFETY: `own_row` made as many elements, which nobody else reaches until the batch is finished.
            return Ok(unsafe { std::slice::from_raw_parts_mut(pointer.as_ptr(), elements) });
        };
        let (first, end) = (places[self.row], places[self.row + 1]);
        self.mark(field.index);
        // SAFETY: `spec` checked the field, so all rows of a sample lie within the layout's bytes, and each is one sample's
        // (*layouts are in bounds and aligned*).
        Ok(unsafe {
            self.lend(
                spec.offset + first * spec.row_bytes,
                (end - first) * elements,
            )
        })
    }

    /// # Safety
    ///
    /// As many elements must lie in the slab, from `offset` on, aligned, and be this row's.
    #[inline]
    unsafe fn lend<T: Element>(&mut self, offset: usize, elements: usize) -> &mut [T] {
        // SAFETY: the caller says that they lie in the slab.
        let pointer = unsafe { self.base.add(offset) }.cast::<T>();
        // SAFETY: the bytes are initialized and any bit pattern is a `T` (*an Element accepts all bit patterns*);
        // `new`'s contract: only this `Row` reaches them, and it is borrowed (*one owner per slab*).
        unsafe { std::slice::from_raw_parts_mut(pointer.as_ptr(), elements) }
    }

    /// Which of the field's rows are this sample's.
    pub(super) fn place<T: Element>(&self, field: &Field<T>) -> Result<Range<usize>, CollateError> {
        Ok(match &self.layout.spec(field)?.form {
            Form::Dense | Form::Scattered => self.row..self.row + 1,
            Form::Ragged(places) => places[self.row]..places[self.row + 1],
        })
    }

    /// Notes that the field was written; says whether it was before.
    #[inline]
    fn mark(&mut self, field: usize) -> bool {
        if field >= 64 {
            return self.mark_more(field);
        }
        let before = self.written & 1 << field != 0;
        self.written |= 1 << field;
        before
    }

    #[cold]
    fn mark_more(&mut self, field: usize) -> bool {
        let written = &mut self.more.get_or_insert_default().written;
        let before = written.contains(&field);
        written.push(field);
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
    #[cold]
    fn own_row<T: Element>(
        &mut self,
        field: usize,
        spec: &FieldSpec,
        elements: usize,
    ) -> NonNull<T> {
        let before = self.mark(field);
        let own = &self.more.get_or_insert_default().own;
        if let Some((_, pointer)) = own.iter().find(|(index, _)| *index == field) {
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
        if let Some(sources) = self.sources {
            sources.keep_pageable(Arc::new(storage));
        }
        // SAFETY: the row's entry of the table is this `Row`'s alone (*one owner per slab*).
        unsafe { entry.write(pointer.as_ptr().cast()) };
        let own = &mut self.more.get_or_insert_default().own;
        own.push((field, pointer.cast()));
        pointer
    }

    /// Makes the error of a sample whose shape is not that of the field's rows. It names the field.
    ///
    /// [`write`](Row::write) and [`take`](Row::take) check this themselves; what fills a row through
    /// [`slice_mut`](Row::slice_mut) does not always know its shape before.
    pub fn mismatch<T: Element>(&self, field: &Field<T>, found: Shape) -> CollateError {
        CollateError::Shape {
            field: self.name(field),
            expected: field.row_shape.clone(),
            found,
        }
    }

    /// What the sample's own name for the field is.
    #[inline]
    pub(super) fn name<T: Element>(&self, field: &Field<T>) -> &'static str {
        let spec = self.layout.fields().get(field.index);
        spec.map_or("", |spec| spec.name)
    }

    /// Checks that each field was written.
    #[inline]
    pub(crate) fn complete(&self) -> Result<(), CollateError> {
        let fields = self.layout.fields().len();
        if fields < 64 && self.written.wrapping_add(1) == 1 << fields {
            return Ok(());
        }
        self.find_missing(fields)
    }

    #[cold]
    fn find_missing(&self, fields: usize) -> Result<(), CollateError> {
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
        let written = self.more.as_deref().map_or(&[][..], |more| &more.written);
        if written.iter().copied().eq(first..fields) {
            return Ok(()); // in their order, as most samples do
        }
        let written: HashSet<_> = written.iter().collect();
        match (first..fields).find(|index| !written.contains(index)) {
            Some(missing) => Err(self.unwritten(missing)),
            None => Ok(()),
        }
    }

    fn unwritten(&self, field: usize) -> CollateError {
        CollateError::Unwritten {
            field: self.layout.fields()[field].name,
        }
    }
}
