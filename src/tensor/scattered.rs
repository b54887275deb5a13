//! Scattered fields: the batch holds the addresses of rows that lie in page-locked memory of the data set.
//!
//! In an epoch that goes to a device, a row of registered memory is not copied on the host: filling it writes its
//! address into a table in the batch's slab, and the upload gathers the rows. If such a tensor is read on the host
//! after all (by a user's own `Batch` or `Sample`), its rows are gathered then, once, into pageable memory.

use std::ptr::NonNull;

use super::storage::VecStorage;
use super::{Backend, Home, Storage};
use crate::meter::Meter;
use crate::sync::{Arc, AtomicBool, Mutex, OnceLock, Ordering};

/// The owners of the rows in a batch's scattered fields.
#[derive(Default)]
pub(crate) struct Sources {
    /// Usually there is only one owner, and checking it takes no lock.
    first: OnceLock<Arc<dyn Storage>>,
    others: Mutex<Vec<Arc<dyn Storage>>>,
    /// Some rows lie in pageable memory, so the device must not gather the batch.
    pageable: AtomicBool,
}

impl Sources {
    /// Keeps the owner of a row in registered memory.
    pub(super) fn keep(&self, storage: &Arc<dyn Storage>) {
        let first = self.first.get_or_init(|| Arc::clone(storage));
        if is_same(first, storage) {
            return;
        }
        let mut others = self.others.lock();
        if !others.last().is_some_and(|last| is_same(last, storage)) {
            others.push(Arc::clone(storage));
        }
    }

    /// Keeps a row that was made for the batch.
    pub(super) fn keep_pageable(&self, storage: Arc<dyn Storage>) {
        // Relaxed: the thread that finishes the batch reads it, and the board's lock synchronizes the two.
        self.pageable.store(true, Ordering::Relaxed);
        self.others.lock().push(storage);
    }
}

impl std::fmt::Debug for Sources {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Sources").finish_non_exhaustive()
    }
}

fn is_same(one: &Arc<dyn Storage>, other: &Arc<dyn Storage>) -> bool {
    Arc::as_ptr(one).cast::<()>() == Arc::as_ptr(other).cast::<()>()
}

/// The storage of a scattered field: a table of its rows' addresses in the slab, and the rows' owners.
pub(crate) struct Scattered {
    slab: Arc<dyn Storage>,
    table: NonNull<*const u8>,
    rows: usize,
    row_bytes: usize,
    sources: Arc<Sources>,
    /// The backend whose devices can reach the rows, unless some are pageable.
    backend: Option<Backend>,
    gathered: OnceLock<(VecStorage<i64>, NonNull<i64>)>,
}

// SAFETY: the table is no longer written, and `slab` keeps it; the rows are only read, and `sources` keeps them.
unsafe impl Send for Scattered {}
// SAFETY: as above.
unsafe impl Sync for Scattered {}

impl Scattered {
    /// # Safety
    ///
    /// `table` must be the start of `rows` addresses, in memory that `slab` keeps alive and that is no longer written.
    /// At each address, `sources` must keep `row_bytes` initialized bytes alive, and nothing may write them.
    pub(super) unsafe fn new(
        slab: Arc<dyn Storage>,
        table: NonNull<*const u8>,
        rows: usize,
        row_bytes: usize,
        sources: Arc<Sources>,
        backend: Option<Backend>,
    ) -> Scattered {
        Scattered {
            slab,
            table,
            rows,
            row_bytes,
            sources,
            backend,
            gathered: OnceLock::new(),
        }
    }

    /// Where each row lies.
    pub(crate) fn table(&self) -> &[*const u8] {
        // SAFETY: `new`'s contract.
        unsafe { std::slice::from_raw_parts(self.table.as_ptr(), self.rows) }
    }

    pub(crate) fn is_table_locked(&self) -> bool {
        self.slab.is_pinned()
    }

    /// The backend whose devices can gather the rows, if any.
    pub(crate) fn backend(&self) -> Option<Backend> {
        self.backend
    }

    /// Whether a device can gather the rows. Not if they were already gathered on the host (and maybe written since),
    /// nor if some are pageable.
    pub(super) fn is_gatherable(&self) -> bool {
        !self.is_gathered() && self.is_pinned()
    }

    /// Whether the rows were gathered on the host, into pageable memory.
    pub(super) fn is_gathered(&self) -> bool {
        self.gathered.get().is_some()
    }

    /// All rows, consecutively. The first call gathers them.
    pub(crate) fn gathered(&self) -> NonNull<u8> {
        let (_, base) = self.gathered.get_or_init(|| {
            let bytes = self.rows * self.row_bytes;
            let zeroed = VecStorage::<i64>::zeroed(bytes.div_ceil(size_of::<i64>()));
            let Some((storage, base)) = zeroed else {
                panic!("a batch of {bytes} bytes is read on the host, which has not enough memory to gather it");
            };
            let target = base.as_ptr().cast::<u8>();
            for (row, &source) in self.table().iter().enumerate() {
                // SAFETY: the row lies within the vector that was just made.
                let to = unsafe { target.add(row * self.row_bytes) };
                // SAFETY: `new`'s contract for the source; only this call uses the vector.
                unsafe { std::ptr::copy_nonoverlapping(source, to, self.row_bytes) };
            }
            (storage, base)
        });
        base.cast()
    }
}

impl Storage for Scattered {
    fn is_pinned(&self) -> bool {
        // Relaxed: see `keep_pageable`.
        !self.sources.pageable.load(Ordering::Relaxed)
    }

    fn home(&self) -> Option<Home> {
        self.slab.home()
    }

    fn meter(&self) -> Option<&Arc<Meter>> {
        self.slab.meter()
    }

    fn scattered(&self) -> Option<&Scattered> {
        Some(self)
    }

    fn let_go(self: Arc<Self>, last: &mut Vec<Arc<dyn Storage>>) {
        // The slab goes home at once; the rows' owners may follow.
        let sources = Arc::clone(&self.sources);
        drop(self);
        sources.let_go(last);
    }
}

impl Storage for Sources {
    fn is_pinned(&self) -> bool {
        !self.pageable.load(Ordering::Relaxed)
    }

    fn let_go(self: Arc<Self>, last: &mut Vec<Arc<dyn Storage>>) {
        if let Some(sources) = Arc::into_inner(self) {
            let first = sources.first.into_inner();
            let all = first.into_iter().chain(sources.others.into_inner());
            all.for_each(|storage| storage.let_go(last));
        }
    }
}
