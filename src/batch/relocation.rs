//! Relocation: copies a batch that was built elsewhere into a slab.

use std::ops::Range;

use crate::device::{Slab, Tensors};
use crate::sync::Arc;
use crate::tensor::{ALIGNMENT, Element, Lease, Storage, Tensor};

/// A slab that a batch's tensors move into ([`Batch::relocate`](crate::Batch::relocate)). Tensors that are already
/// page-locked stay where they are.
///
/// # Examples
///
/// In [`Batch`](crate::Batch#examples).
#[derive(Debug)]
pub struct Relocation {
    slab: Arc<Slab>,
    used_bytes: usize,
}

/// The size of a slab for the tensors that are not page-locked; 0 if all are. `None` if it exceeds any memory, as the
/// views of one tensor together may.
pub(crate) fn relocated_bytes(tensors: &Tensors<'_>) -> Option<usize> {
    let mut pageable = tensors
        .regions()
        .iter()
        .filter(|region| !region.is_in_place());
    pageable.try_fold(0, |end, region| {
        Some(place(end, region.bytes)?.end).filter(|end| *end <= isize::MAX as usize)
    })
}

/// Where the next tensor lies, after those that end at `end`.
fn place(end: usize, bytes: usize) -> Option<Range<usize>> {
    let start = end.checked_next_multiple_of(ALIGNMENT)?;
    Some(start..start.checked_add(bytes)?)
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
    /// If the slab is too small: `Batch::tensors` did not list the tensor, which is a bug in the `Batch`
    /// implementation.
    pub fn tensor<T: Element>(&mut self, tensor: Tensor<T>) -> Tensor<T> {
        if tensor.storage().is_pinned() {
            return tensor;
        }
        let place = place(self.used_bytes, tensor.size_bytes());
        let Some(Range { start, end }) = place.filter(|place| place.end <= self.slab.capacity())
        else {
            panic!("Relocation::tensor: Batch::tensors did not list this tensor");
        };
        self.used_bytes = end;
        // SAFETY: the range lies inside the slab (*layouts are in bounds and aligned*).
        let base = unsafe { self.slab.base().add(start) }.cast::<T>();
        // SAFETY: the range is initialized memory that was not handed out before (*one owner per slab*).
        let target = unsafe { std::slice::from_raw_parts_mut(base.as_ptr(), tensor.len()) };
        self.slab.copy(tensor.as_slice(), target);
        let lease = Arc::new(Lease(Arc::clone(&self.slab) as Arc<dyn Storage>));
        // SAFETY: the elements were just written, and `lease` is the only way to them.
        unsafe { Tensor::from_raw(base, tensor.shape().clone(), lease) }
    }
}

#[cfg(test)]
mod tests {
    use std::ptr::NonNull;

    use super::*;

    /// Memory that does not exist and is never accessed.
    struct Nowhere;

    impl Storage for Nowhere {
        fn is_pinned(&self) -> bool {
            false
        }
    }

    fn tensors(count: usize, bytes: usize) -> Tensors<'static> {
        let storage: Arc<dyn Storage> = Arc::new(Nowhere);
        let shape = [bytes].as_slice().into();
        // SAFETY: no element is ever read or written.
        let tensor = unsafe { Tensor::<u8>::from_raw(NonNull::dangling(), shape, storage) };
        let mut tensors = Tensors::default();
        (0..count).for_each(|_| tensors.add(&tensor));
        tensors
    }

    /// Views of the same elements can add up to more bytes than there are addresses.
    #[test]
    fn a_sum_that_does_not_fit_is_no_small_one() {
        assert_eq!(relocated_bytes(&tensors(0, 100)), Some(0));
        assert_eq!(relocated_bytes(&tensors(3, 100)), Some(612));
        assert_eq!(relocated_bytes(&tensors(1 << 19, 1 << 45)), None);
        assert_eq!(relocated_bytes(&tensors((1 << 19) + 1, 1 << 45)), None);
        assert_eq!(relocated_bytes(&tensors(3, isize::MAX as usize)), None);
    }
}
