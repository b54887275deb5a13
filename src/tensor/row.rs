//! Rows: which bytes of a slab a sample may write while the slab is being filled.

use std::collections::HashSet;
use std::ops::Range;
use std::ptr::NonNull;

use super::layout::{FieldSpec, Form};
use super::pictures::{Content, EncodedFile};
use super::storage::VecStorage;
use super::{Column, Element, Field, Layout, Shape, Sources, Tensor};
use crate::error::CollateError;
use crate::memory::copy_streaming;
use crate::meter::Decoding;
use crate::picture::{DecoderLimits, EncodedPicture, Steps};
use crate::sync::Arc;
use crate::tuning::STREAMED_ROW_BYTES;

/// One sample's row of a batch, for writing: the sample's bytes in each field.
///
/// Each field must be written once, by [`write`](Row::write), [`take`](Row::take) or through
/// [`slice_mut`](Row::slice_mut). An incomplete row is an error of its batch.
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
    /// The owners of scattered rows, if the layout has scattered fields.
    sources: Option<&'a Sources>,
    /// Rows are copied with non-temporal stores.
    streaming: bool,
    /// State that few rows need.
    more: Option<Box<More>>,
}

#[derive(Debug, Default)]
struct More {
    /// The fields from the 64th on that were written.
    written: Vec<usize>,
    /// Scattered fields whose row was made here instead: the field, and the row's address.
    own: Vec<(usize, NonNull<u8>)>,
}

impl<'a> Row<'a> {
    /// # Safety
    ///
    /// `base` must be the start of at least `layout.size_bytes()` initialized bytes, aligned to `ALIGNMENT`, that stay
    /// valid for `'a`; for `'a`, nothing else may touch the bytes of row `row`. `sources` must be `Some` if the layout
    /// is scattered.
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
    /// [`CollateError::Shape`] if the number of elements is not that of the field's rows;
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
        copy(elements, row, streaming);
        Ok(())
    }

    /// Copies fewer elements than a row has, and writes `padding` behind them. `None` if there are more.
    pub(super) fn write_padded<T: Element>(
        &mut self,
        field: &Field<T>,
        elements: &[T],
        padding: T,
    ) -> Result<Option<()>, CollateError> {
        let streaming = self.streaming;
        let Some((front, back)) = self.slice_mut(field)?.split_at_mut_checked(elements.len())
        else {
            return Ok(None);
        };
        copy(elements, front, streaming);
        back.fill(padding);
        Ok(Some(()))
    }

    /// Takes a tensor as the row: its elements must have the field's row shape.
    ///
    /// Prefer it to [`write`](Row::write) if you have a tensor: it also checks the shape.
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
        // SAFETY: this `Row` owns the row's entry of the table (*one owner per slab*).
        unsafe { entry.write(tensor.identity().as_ptr()) };
        Ok(())
    }

    /// Borrows the row's elements for writing, for samples that produce their elements in place. They still hold what
    /// an earlier batch left there: overwrite all of them.
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

    /// What the batch's device decodes into this field, if it does; or why it decodes nothing of this batch. If the device `shares` the
    /// pictures with the CPU, `None` says too that this one is the CPU's. (Public in name only.)
    #[doc(hidden)]
    pub fn decoder(
        &self,
        field: &Field<u8>,
        shares: bool,
    ) -> Option<Result<DecoderLimits, &'static str>> {
        let (sources, limits) = (self.sources?, self.layout.decodes(field)?);
        if shares {
            sources.pictures.share();
            if !self.layout.is_devices_own(self.row) {
                return None;
            }
        }
        Some(match sources.moves {
            false => Ok(limits),
            true => Err("no page-locked memory"),
        })
    }

    /// Leaves the row to the batch's device, which decodes the picture into it. `file` is its file, as a device's decoder takes it; if it
    /// fits into the row, it is copied there and dropped. (Public in name only.)
    ///
    /// # Errors
    ///
    /// [`CollateError::Shape`] if the picture's row has another size.
    ///
    /// # Panics
    ///
    /// If the device does [not decode](Row::decoder), or if what the picture says of its pixels is not sound.
    #[doc(hidden)]
    pub fn leave_encoded(
        &mut self,
        field: &Field<u8>,
        picture: Box<dyn EncodedPicture>,
        file: impl AsRef<[u8]> + Send + Sync + 'static,
    ) -> Result<(), CollateError> {
        let (Some(_), Some(sources)) = (self.layout.decodes(field), self.sources) else {
            panic!("Row::leave_encoded: the batch's device does not decode");
        };
        let Some(steps) = Steps::of(&*picture) else {
            panic!("Row::leave_encoded: the picture's drawing or changes are not sound");
        };
        let [width, height] = steps.size().map(|side| side as usize);
        if field.row_shape[..] != [height, width, 3] {
            return Err(self.mismatch(field, [height, width, 3].as_slice().into()));
        }
        self.mark(field.index);
        let spec = self.layout.spec(field)?;
        let (streaming, offset) = (self.streaming, spec.offset + self.row * spec.row_bytes);
        // SAFETY: a field of pictures has a row for each sample, and `spec` checked it, so the row lies within the layout's bytes (*layouts are in bounds
        // and aligned*).
        let room: &mut [u8] = unsafe { self.lend(offset, spec.row_bytes) };
        let bytes = file.as_ref();
        let file = match room.split_at_mut_checked(bytes.len()) {
            Some((row, _)) => {
                copy(bytes, row, streaming);
                EncodedFile::InRow(bytes.len())
            }
            None => EncodedFile::Elsewhere(Box::new(file)),
        };
        let content = Content::Picture(steps, picture, file);
        sources.pictures.note(field.index, self.row, content);
        Ok(())
    }

    /// Says why a row was written whose picture the batch's device does not decode, for the statistics. (Public in name only.)
    #[doc(hidden)]
    pub fn is_left_to_cpu(&mut self, field: &Field<u8>, reason: &'static str) {
        if let (Some(_), Some(sources)) = (self.layout.decodes(field), self.sources) {
            let content = Content::PixelsBecause(reason);
            sources.pictures.note(field.index, self.row, content);
        }
    }

    /// Runs code that produces a row's elements, such as decoding and transforming an image, and counts its time as
    /// decoding ([`Stats::decoding`](crate::loader::Stats::decoding)). The rest of the time to fill a row counts
    /// as collating.
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
    /// println!("{}", loader.stats()); // decoding has its own line
    /// # Ok::<(), pinfeed::Error>(())
    /// ```
    pub fn decoding<R>(&mut self, decode: impl FnOnce(&mut Row<'a>) -> R) -> R {
        let _decoding = Decoding::begin();
        decode(self)
    }

    /// Borrows the rows of a field that is not dense: of pictures, the row that is written here after all.
    #[cold]
    fn rows_elsewhere<T: Element>(&mut self, field: &Field<T>) -> Result<&mut [T], CollateError> {
        let spec = self.layout.spec(field)?;
        let elements = spec.row_bytes / size_of::<T>();
        let (first, end) = match &spec.form {
            Form::Dense => (self.row, self.row + 1),
            Form::Pictures => {
                if let Some(sources) = self.sources {
                    let content = Content::Pixels;
                    sources.pictures.note(field.index, self.row, content);
                }
                (self.row, self.row + 1)
            }
            Form::Ragged(places) => (places[self.row], places[self.row + 1]),
            Form::Scattered => {
                let pointer = self.own_row::<T>(field.index, spec, elements);
                // SAFETY: `own_row` made this many elements, and nothing else reaches them until the batch is finished.
                return Ok(unsafe { std::slice::from_raw_parts_mut(pointer.as_ptr(), elements) });
            }
        };
        self.mark(field.index);
        // SAFETY: `spec` checked the field, so all rows of a sample lie within the layout's bytes, and each belongs to
        // one sample (*layouts are in bounds and aligned*).
        Ok(unsafe {
            self.lend(
                spec.offset + first * spec.row_bytes,
                (end - first) * elements,
            )
        })
    }

    /// # Safety
    ///
    /// `offset` must be the start of this many aligned elements in the slab, and they must belong to this row.
    #[inline]
    unsafe fn lend<T: Element>(&mut self, offset: usize, elements: usize) -> &mut [T] {
        // SAFETY: by the caller's contract, the elements lie in the slab.
        let pointer = unsafe { self.base.add(offset) }.cast::<T>();
        // SAFETY: the bytes are initialized and any bit pattern is a `T` (*an Element accepts all bit patterns*);
        // `new`'s contract: only this `Row` reaches them, and it is borrowed (*one owner per slab*).
        unsafe { std::slice::from_raw_parts_mut(pointer.as_ptr(), elements) }
    }

    /// The range of the field's rows that belong to this sample.
    pub(super) fn place<T: Element>(&self, field: &Field<T>) -> Result<Range<usize>, CollateError> {
        Ok(match &self.layout.spec(field)?.form {
            Form::Dense | Form::Scattered | Form::Pictures => self.row..self.row + 1,
            Form::Ragged(places) => places[self.row]..places[self.row + 1],
        })
    }

    /// Marks the field as written. Returns whether it already was.
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

    /// Makes memory for a row that cannot stay where it lies, in a field with scattered rows.
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
            // SAFETY: the entry is the address of `row_bytes` bytes, which `sources` keeps; only this call uses the new
            // memory.
            unsafe {
                std::ptr::copy_nonoverlapping(taken, pointer.as_ptr().cast(), spec.row_bytes)
            };
        }
        if let Some(sources) = self.sources {
            sources.keep_pageable(Arc::new(storage));
        }
        // SAFETY: this `Row` owns the row's entry of the table (*one owner per slab*).
        unsafe { entry.write(pointer.as_ptr().cast()) };
        let own = &mut self.more.get_or_insert_default().own;
        own.push((field, pointer.cast()));
        pointer
    }

    /// Makes the error for a sample whose shape differs from that of the field's rows. The error names the field.
    ///
    /// [`write`](Row::write) and [`take`](Row::take) check this themselves; code that fills a row through
    /// [`slice_mut`](Row::slice_mut) may not know the shape beforehand.
    pub fn mismatch<T: Element>(&self, field: &Field<T>, found: Shape) -> CollateError {
        CollateError::Shape {
            field: self.name(field),
            expected: field.row_shape.clone(),
            found,
        }
    }

    /// The name that the sample gave the field.
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
            return Ok(()); // in order, as most samples write them
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

/// Copies rows of a table into as many rows of a batch, from row `first` on. `false`: they do not fit.
///
/// # Safety
///
/// As [`Row::new`], for each of these rows.
pub(crate) unsafe fn copy_rows(
    layout: &Layout,
    base: NonNull<u8>,
    first: usize,
    sources: Option<&Sources>,
    streaming: bool,
    columns: &[Column],
    indices: &[u64],
) -> bool {
    let is_within = first + indices.len() <= layout.rows();
    if !is_within || !layout.is_of(columns) || !columns.iter().all(|column| column.has(indices)) {
        return false;
    }
    for (spec, column) in layout.fields().iter().zip(columns) {
        if spec.is_scattered() {
            let (Some(sources), Some(storage)) = (sources, column.storage()) else {
                return false;
            };
            sources.keep(storage);
            let offset = spec.offset + first * size_of::<*const u8>();
            // SAFETY: the layout has an entry for each of its rows (*layouts are in bounds and aligned*).
            let entries = unsafe { base.add(offset) }.cast::<*const u8>();
            for (at, index) in indices.iter().enumerate() {
                // SAFETY: the column has the index; the entry is as above, and the caller has it to itself.
                unsafe { entries.add(at).write(column.row(*index)) };
            }
        } else {
            // SAFETY: the rows lie within the layout's bytes (*layouts are in bounds and aligned*).
            let to = unsafe { base.add(spec.offset + first * spec.row_bytes) };
            // SAFETY: the column has the indices; the caller has these rows to itself, and they are in no table.
            unsafe { column.copy_rows(indices, to.as_ptr(), streaming) };
        }
    }
    true
}

/// Copies elements into as many others.
#[inline]
fn copy<T: Element>(elements: &[T], row: &mut [T], streaming: bool) {
    let bytes = size_of_val(elements);
    if !streaming || bytes < STREAMED_ROW_BYTES {
        return row.copy_from_slice(elements);
    }
    assert_eq!(row.len(), elements.len());
    let (from, to) = (elements.as_ptr().cast(), row.as_mut_ptr().cast());
    // SAFETY: both are borrowed, have the same length, and do not overlap: the row is borrowed exclusively.
    unsafe { copy_streaming(from, to, bytes) };
}
