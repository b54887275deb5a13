//! Relocation: a batch that was built elsewhere is copied into a slab.

use crate::device::{Slab, Tensors};
use crate::sync::Arc;
use crate::tensor::{ALIGNMENT, Element, Lease, Storage, Tensor};

/// A slab that a batch's tensors move into ([`Batch::relocate`](crate::Batch::relocate)). Tensors that are page-locked
/// already stay where they are.
///
/// # Examples
///
/// In [`Batch`](crate::Batch#examples).
#[derive(Debug)]
pub struct Relocation {
    slab: Arc<Slab>,
    used_bytes: usize,
}

/// How large a slab must be for the tensors that are not page-locked; 0 if all are.
pub(crate) fn relocated_bytes(tensors: &Tensors<'_>) -> usize {
    let pageable = tensors
        .regions()
        .iter()
        .filter(|region| !region.is_in_place());
    pageable.fold(0, |end: usize, region| {
        end.next_multiple_of(ALIGNMENT) + region.bytes
    })
}

impl Relocation {
    pub(crate) fn new(slab: Slab) -> Relocation {
        Relocation {
            slab: Arc::new(slab),
            used_bytes: 0,
        }
    }

    /// Moves one tensor.
    ///
    /// # Panics
    ///
    /// If the slab is too small: `Batch::tensors` did not show the tensor, a mistake in an own `Batch`.
    pub fn tensor<T: Element>(&mut self, tensor: Tensor<T>) -> Tensor<T> {
        if tensor.storage().is_pinned() {
            return tensor;
        }
        let start = self.used_bytes.next_multiple_of(ALIGNMENT);
        self.used_bytes = start + tensor.size_bytes();
        assert!(
            self.used_bytes <= self.slab.capacity(),
            "Relocation::tensor: Batch::tensors did not show this tensor"
        );
        // SAFETY: the range lies inside of the slab (*layouts are in bounds and aligned*).
        let base = unsafe { self.slab.base().add(start) }.cast::<T>();
        // SAFETY: the range is initialized memory that was handed to nobody else (*one owner per slab*).
        let target = unsafe { std::slice::from_raw_parts_mut(base.as_ptr(), tensor.len()) };
        self.slab.copy(tensor.as_slice(), target);
        let lease = Arc::new(Lease(Arc::clone(&self.slab) as Arc<dyn Storage>));
        // SAFETY: the elements were just written, and `lease` is the only way to them.
        unsafe { Tensor::from_raw(base, tensor.shape().clone(), lease) }
    }
}
