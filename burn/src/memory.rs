//! A tensor's memory as burn's: [`Held`] is burn's owner of it.
//!
//! Nothing is copied. The memory goes back to its ring when burn drops its last owner, on whichever thread that is.
//!
//! | burn asks for | what it gets |
//! | --- | --- |
//! | bytes to read | those of the tensor |
//! | bytes to write, and the tensor is the only holder of its memory | those of the tensor |
//! | bytes to write, otherwise | a copy of its own, if it allows one |
//! | a clone | the same memory once more: the next write makes a copy |
//! | a `Vec` | none: the memory is of another allocator, so burn copies |

use std::mem::MaybeUninit;

use burn::tensor::{AllocationProperty, Bytes};
use burn_std::{AccessError, AccessPolicy, AllocationController};
use pinfeed::Tensor;
use pinfeed::tensor::Element;

/// Burn's owner of a tensor's memory.
struct Held<T: Element> {
    tensor: Tensor<T>,
}

/// Makes bytes of burn's of a tensor's memory.
pub(crate) fn bytes<T: Element>(tensor: Tensor<T>) -> Bytes {
    let len = tensor.size_bytes();
    // SAFETY: the controller shows exactly that many bytes, all of them initialized (*an Element accepts all bit patterns*).
    unsafe { Bytes::from_controller(Box::new(Held { tensor }), len) }
}

impl<T: Element> AllocationController for Held<T> {
    fn alloc_align(&self) -> usize {
        align_of::<T>()
    }

    /// Page-locked memory is copied to a GPU as it is. Memory that is not would be copied into page-locked memory before; burn's CPU
    /// backends read it in place, as they would not if it were said to be of Rust's allocator.
    fn property(&self) -> AllocationProperty {
        match self.tensor.is_pinned() {
            true => AllocationProperty::Pinned,
            false => AllocationProperty::Other,
        }
    }

    unsafe fn memory_mut(
        &mut self,
        policy: AccessPolicy,
    ) -> Result<&mut [MaybeUninit<u8>], AccessError> {
        if self.tensor.as_mut_slice().is_none() {
            if !policy.copy_allowed() {
                return Err(AccessError::WouldCopy);
            }
            // A view, or a read-only owner: the others keep what they have.
            let copy = Tensor::from_slice(self.tensor.as_slice(), self.tensor.shape());
            self.tensor = copy.map_err(|error| AccessError::Read(error.to_string()))?;
        }
        let elements = self.tensor.as_mut_slice().unwrap_or_default();
        let bytes = elements.as_mut_ptr().cast::<MaybeUninit<u8>>();
        // SAFETY: these are the elements' bytes, borrowed exclusively as the elements are. The caller writes initialized bytes only, and
        // elements accept all of these (*an Element accepts all bit patterns*).
        Ok(unsafe { std::slice::from_raw_parts_mut(bytes, size_of_val(elements)) })
    }

    fn memory(&self, _: AccessPolicy) -> Result<&[MaybeUninit<u8>], AccessError> {
        let elements = self.tensor.as_slice();
        let bytes = elements.as_ptr().cast::<MaybeUninit<u8>>();
        // SAFETY: these are the elements' bytes, borrowed as the elements are; numbers have no padding.
        Ok(unsafe { std::slice::from_raw_parts(bytes, size_of_val(elements)) })
    }

    fn capacity(&self) -> usize {
        self.tensor.size_bytes()
    }

    fn duplicate(&self) -> Option<Box<dyn AllocationController>> {
        let tensor = self.tensor.view();
        Some(Box::new(Held { tensor }))
    }
}

/// `Bytes` goes to any thread, whatever its controller says of itself.
const _: () = {
    const fn goes_anywhere<T: Send + Sync + 'static>() {}
    goes_anywhere::<Held<f32>>();
};
