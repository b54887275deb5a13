//! The owners of host tensors' memory.

use std::alloc::Layout;
use std::ptr::NonNull;

use super::{Element, Scattered};
use crate::meter::Meter;
use crate::sync::Arc;

/// An owner of host memory. The memory stays allocated, and does not move, as long as the owner lives.
///
/// Each separate piece (a whole `Vec`, one field of a slab) has its own `Arc`. The holder of the only reference may
/// write the piece; several holders may read it (invariant *one owner per slab* in docs/SAFETY.md).
pub(crate) trait Storage: Send + Sync {
    /// Whether the memory is page-locked (on the CPU device: from the ring).
    fn is_pinned(&self) -> bool;

    /// Whether the memory must never be written.
    fn is_read_only(&self) -> bool {
        false
    }

    /// Identifies the allocation that holds the memory: neighbouring pieces of one allocation may share a copy.
    fn slab(&self) -> Option<usize> {
        None
    }

    /// The ring that the memory returns to when its holders are gone, if any.
    fn home(&self) -> Option<Home> {
        None
    }

    /// The meter of the epoch that the memory was filled for.
    fn meter(&self) -> Option<&Arc<Meter>> {
        None
    }

    /// The backend whose devices can read the memory where it lies. Set for memory that the program registered.
    fn registered(&self) -> Option<Backend> {
        None
    }

    /// How much memory stays allocated for it, if that is known.
    fn allocated_bytes(&self) -> Option<usize> {
        None
    }

    /// Whether it is page-locked memory, or letting go of it may call a driver: then other libraries do not get it where it lies.
    #[cfg(feature = "dlpack")]
    fn needs_driver(&self) -> bool {
        self.is_pinned() || self.scattered().is_some()
    }

    /// The rows, if they lie elsewhere.
    fn scattered(&self) -> Option<&Scattered> {
        None
    }

    /// Releases the memory. If this may be the last holder, it moves what must not be dropped under a lock to `last`:
    /// an owner from the program, whose `Drop` may do anything, and registered memory.
    fn let_go(self: Arc<Self>, last: &mut Vec<Arc<dyn Storage>>) {
        let _ = last;
    }
}

/// A ring, and the quota that a slab of it counts against while it is out. Both are only identifiers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Home {
    pub(crate) ring: usize,
    /// `None` for a slab that belongs to no batch: one that stages copies, a tensor that the program pinned, a
    /// download.
    pub(crate) quota: Option<usize>,
}

/// A kind of device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Backend {
    Cpu,
    #[cfg(feature = "cuda")]
    Cuda,
}

/// A field's reference to its slab.
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

    #[cfg(feature = "dlpack")]
    fn needs_driver(&self) -> bool {
        self.0.needs_driver()
    }
}

/// Memory that something else owns. It is only read.
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

/// A `Vec` in parts, so that its memory can be reached through raw pointers.
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
    /// Zeros in fresh memory, whose pages are not touched if there are many; `None` if memory runs out.
    pub(super) fn zeroed(elements: usize) -> Option<(VecStorage<T>, NonNull<T>)> {
        let layout = Layout::array::<T>(elements).ok()?;
        if layout.size() == 0 {
            return Some(VecStorage::new(Vec::new()));
        }
        // SAFETY: the layout is not of size 0.
        let pointer = NonNull::new(unsafe { std::alloc::alloc_zeroed(layout) })?;
        let pointer = pointer.cast::<T>().as_ptr();
        // SAFETY: the memory comes from the allocator, with the layout of `elements` elements; it holds zeros (*an
        // Element accepts all bit patterns*).
        Some(VecStorage::new(unsafe {
            Vec::from_raw_parts(pointer, elements, elements)
        }))
    }
}

impl<T> Drop for VecStorage<T> {
    fn drop(&mut self) {
        // SAFETY: the three parts come from one `Vec`, which was not dropped (*one owner per slab*).
        drop(unsafe { Vec::from_raw_parts(self.pointer, self.length, self.capacity) });
    }
}

// SAFETY: it is a `Vec<T>` in parts, which is `Send` if `T` is.
unsafe impl<T: Send> Send for VecStorage<T> {}
// SAFETY: likewise `Sync`; the storage itself never touches the elements.
unsafe impl<T: Sync> Sync for VecStorage<T> {}

impl<T: Send + Sync> Storage for VecStorage<T> {
    fn is_pinned(&self) -> bool {
        false
    }

    fn allocated_bytes(&self) -> Option<usize> {
        let counts = 2 * size_of::<usize>(); // of its `Arc`
        Some(self.capacity * size_of::<T>() + size_of::<Self>() + counts)
    }
}
