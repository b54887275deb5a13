//! What owns the memory under a host tensor.

use std::alloc::Layout;
use std::ptr::NonNull;

use super::{Element, Scattered};
use crate::meter::Meter;
use crate::sync::Arc;

/// An owner of host memory. The memory stays where it is, and stays allocated, for as long as the owner lives.
///
/// Each unique piece (a whole `Vec`, one field of a slab) has an `Arc` of its own: whoever holds the only one may
/// write the piece, and several may read (invariant *one owner per slab* in docs/SAFETY.md).
pub(crate) trait Storage: Send + Sync {
    /// Whether the memory is page-locked (on the CPU device: from the ring).
    fn is_pinned(&self) -> bool;

    /// Whether nobody may ever write the memory.
    fn is_read_only(&self) -> bool {
        false
    }

    /// Names the allocation that the memory lies in, where neighbouring pieces may be copied in one go.
    fn slab(&self) -> Option<usize> {
        None
    }

    /// Where the memory goes when its holders are gone, if that is a ring.
    fn home(&self) -> Option<Home> {
        None
    }

    /// The meter of the epoch that the memory was filled for.
    fn meter(&self) -> Option<&Arc<Meter>> {
        None
    }

    /// Whose devices can read the memory where it lies: set for what the program registered.
    fn registered(&self) -> Option<Backend> {
        None
    }

    /// The rows, if they lie elsewhere.
    fn scattered(&self) -> Option<&Scattered> {
        None
    }

    /// Lets go of the memory. What must not be dropped under a lock goes to `last`, if this may be its last holder: an owner of
    /// the program's, whose `Drop` may do anything, and registered memory.
    fn let_go(self: Arc<Self>, last: &mut Vec<Arc<dyn Storage>>) {
        let _ = last;
    }
}

/// A ring, and the account in it that a slab counts in while it is out. Both are names, which tell them apart.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Home {
    pub(crate) ring: usize,
    /// `None` for what is no batch's: a slab that stages copies, a tensor that the program pinned, a download.
    pub(crate) account: Option<usize>,
}

/// Whose devices.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Backend {
    Cpu,
    #[cfg(feature = "cuda")]
    Cuda,
}

/// A field's own hold on the slab that it lies in.
pub(crate) struct Lease(pub(crate) Arc<dyn Storage>);

impl Storage for Lease {
    fn is_pinned(&self) -> bool {
        self.0.is_pinned()
    }

    fn slab(&self) -> Option<usize> {
        Some(Arc::as_ptr(&self.0).cast::<()>() as usize)
    }

    fn home(&self) -> Option<Home> {
        self.0.home()
    }

    fn meter(&self) -> Option<&Arc<Meter>> {
        self.0.meter()
    }
}

/// Memory that something else owns, and that is only read.
pub(super) struct Owned<O>(pub(super) O);

impl<O: Send + Sync + 'static> Storage for Owned<O> {
    fn is_pinned(&self) -> bool {
        false
    }

    fn is_read_only(&self) -> bool {
        true
    }

    fn let_go(self: Arc<Self>, last: &mut Vec<Arc<dyn Storage>>) {
        last.push(self);
    }
}

/// A `Vec` taken apart, so that its memory can be reached through plain pointers.
pub(super) struct VecStorage<T> {
    pointer: *mut T,
    length: usize,
    capacity: usize,
}

impl<T> VecStorage<T> {
    pub(super) fn new(vec: Vec<T>) -> (VecStorage<T>, NonNull<T>) {
        let mut vec = std::mem::ManuallyDrop::new(vec);
        let storage = VecStorage {
            pointer: vec.as_mut_ptr(),
            length: vec.len(),
            capacity: vec.capacity(),
        };
        // SAFETY: a `Vec`'s pointer is never null.
        let pointer = unsafe { NonNull::new_unchecked(storage.pointer) };
        (storage, pointer)
    }
}

impl<T: Element> VecStorage<T> {
    /// As many zeros, in fresh memory that nobody touched where they are many; `None` where there is not as much.
    pub(super) fn zeroed(elements: usize) -> Option<(VecStorage<T>, NonNull<T>)> {
        let layout = Layout::array::<T>(elements).ok()?;
        if layout.size() == 0 {
            return Some(VecStorage::new(Vec::new()));
        }
        // SAFETY: the layout is not of size 0.
        let pointer = NonNull::new(unsafe { std::alloc::alloc_zeroed(layout) })?;
        let pointer = pointer.cast::<T>().as_ptr();
        // SAFETY: the memory is the allocator's, with the layout of as many elements; it holds zeros (*an Element accepts all
        // bit patterns*).
        Some(VecStorage::new(unsafe {
            Vec::from_raw_parts(pointer, elements, elements)
        }))
    }
}

impl<T> Drop for VecStorage<T> {
    fn drop(&mut self) {
        // SAFETY: the three parts are those of one `Vec`, which was not dropped (*one owner per slab*).
        drop(unsafe { Vec::from_raw_parts(self.pointer, self.length, self.capacity) });
    }
}

// SAFETY: it is a `Vec<T>` by other means, which is `Send` where `T` is.
unsafe impl<T: Send> Send for VecStorage<T> {}
// SAFETY: likewise `Sync`; the storage itself never touches the elements.
unsafe impl<T: Sync> Sync for VecStorage<T> {}

impl<T: Send + Sync> Storage for VecStorage<T> {
    fn is_pinned(&self) -> bool {
        false
    }
}
