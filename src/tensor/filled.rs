//! Filled slabs, whose fields become tensors.

use std::ptr::NonNull;

use super::{Element, Field, Layout, Lease, Scattered, Shape, Sources, Storage, Tensor};
use crate::sync::Arc;

/// A slab whose rows are all written. Its fields are taken out as tensors.
///
/// # Examples
///
/// In [`Sample`](crate::Sample#examples).
pub struct Filled {
    layout: Layout,
    base: NonNull<u8>,
    slab: Arc<dyn Storage>,
    sources: Option<Arc<Sources>>,
}

// SAFETY: it is the only way to the fields' bytes until they are taken (*one owner per slab*), and touches none itself.
unsafe impl Send for Filled {}

impl Filled {
    /// # Safety
    ///
    /// `base` must be the start of at least `layout.size_bytes()` initialized bytes, aligned to `ALIGNMENT`, that
    /// `slab` keeps alive and in place, and that nothing else touches from now on. Each row must have been written
    /// through a `Row` with these `sources`.
    pub(crate) unsafe fn new(
        layout: Layout,
        base: NonNull<u8>,
        slab: Arc<dyn Storage>,
        sources: Option<Arc<Sources>>,
    ) -> Filled {
        Filled {
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
    /// If the field comes from another layout, or was already taken: both are bugs in the `Sample` implementation.
    pub fn take<T: Element>(&mut self, field: Field<T>) -> Tensor<T> {
        let spec = match self.layout.spec(&field) {
            Ok(spec) => spec,
            Err(error) => panic!("Filled::take: {error}"),
        };
        let (offset, row_bytes) = (spec.offset, spec.row_bytes);
        let (scattered, has_pictures) = (spec.is_scattered(), spec.has_pictures());
        let rows = spec.form.rows(self.layout.rows());
        let taken = self.layout.mark_taken(field.index);
        assert!(!taken, "Filled::take: this field was taken before");
        let shape = Shape::batched(rows, &field.row_shape);
        // SAFETY: the field lies inside the slab (*layouts are in bounds and aligned*).
        let base = unsafe { self.base.add(offset) };
        if let (true, Some(sources)) = (has_pictures, &self.sources) {
            let (pictures, reasons) = sources
                .pictures
                .take(field.index, self.slab.meter().map(|meter| &**meter));
            if !pictures.is_empty() {
                let slab = Arc::clone(&self.slab);
                // SAFETY: the field lies inside the slab, and `mark_taken` ensures that this is the only way to it; `Row` numbered the
                // pictures' rows.
                let storage = unsafe {
                    Scattered::of_pictures(slab, base, rows, row_bytes, (pictures, reasons))
                };
                // SAFETY: the rows have the shape's size, and bytes need no alignment but the field's.
                return unsafe { Tensor::from_rows(base.cast(), shape, storage) };
            }
        }
        let (true, Some(sources)) = (scattered, &self.sources) else {
            let lease = Arc::new(Lease(Arc::clone(&self.slab)));
            // SAFETY: the offset is aligned (*layouts are in bounds and aligned*); the bytes are initialized (`new`);
            // and `mark_taken` ensures that this lease is the only way to them.
            return unsafe { Tensor::from_raw(base.cast(), shape, lease) };
        };
        let (table, slab, sources) = (base.cast(), Arc::clone(&self.slab), Arc::clone(sources));
        let backend = self.layout.backend();
        // SAFETY: each row wrote the address of `row_bytes` bytes into the table and gave their owner to `sources`; the
        // table belongs to this field alone.
        let storage = unsafe { Scattered::new(slab, table, rows, row_bytes, sources, backend) };
        // SAFETY: the rows have the shape's size, and come from tensors of `T`, so they are aligned.
        unsafe { Tensor::from_rows(table, shape, storage) }
    }
}

impl std::fmt::Debug for Filled {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Filled")
            .field("layout", &self.layout)
            .finish()
    }
}
