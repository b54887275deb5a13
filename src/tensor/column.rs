//! Columns: the rows of a table that lies in memory, of which samples are copies.
//!
//! A sample that is a view of its row holds the table's owner, so two counters are written for each row and field, by all workers. A
//! run of rows that is copied from columns borrows the owner once.

use std::ptr::{NonNull, copy_nonoverlapping};

use super::{Backend, DType, Element, Storage, Tensor};
use crate::memory::copy_streaming;
use crate::sync::Arc;
use crate::tuning::{FETCHED_ROW_BYTES, ROWS_AHEAD, STREAMED_ROW_BYTES};

/// The size of a cache line, or half of one.
const LINE: usize = 64;

/// A tensor as a table's column: row `i` belongs to sample `i`. (Public in name only: a hidden method of `Dataset` mentions it.)
pub struct Column {
    base: NonNull<u8>,
    rows: usize,
    row_bytes: usize,
    dtype: DType,
    storage: Arc<dyn Storage>,
}

// SAFETY: the rows are only read, and `storage` keeps them.
unsafe impl Send for Column {}
// SAFETY: as above.
unsafe impl Sync for Column {}

impl Column {
    /// The rows of a tensor, which has a first dimension.
    pub(crate) fn new<T: Element>(tensor: &Tensor<T>) -> Column {
        let rows = tensor.shape().first().copied().unwrap_or(0);
        Column {
            base: tensor.base().cast(),
            rows,
            row_bytes: tensor.size_bytes() / rows.max(1),
            dtype: T::DTYPE,
            storage: Arc::clone(tensor.storage()),
        }
    }

    pub(super) fn dtype(&self) -> DType {
        self.dtype
    }

    pub(super) fn row_bytes(&self) -> usize {
        self.row_bytes
    }

    pub(super) fn storage(&self) -> &Arc<dyn Storage> {
        &self.storage
    }

    /// The backend whose devices can reach the rows where they lie.
    pub(super) fn registered(&self) -> Option<Backend> {
        self.storage.registered()
    }

    /// Whether there are rows of all these indices.
    pub(super) fn has(&self, indices: &[u64]) -> bool {
        let rows = self.rows as u64;
        indices.iter().all(|index| *index < rows)
    }

    /// Copies the rows of these indices to `to`, side by side. `streaming`: around the cache, where rows are long enough for that.
    ///
    /// # Safety
    ///
    /// The column [has](Column::has) the indices. `to` must be valid for writing all of these rows, and overlap none.
    pub(super) unsafe fn copy_rows(&self, indices: &[u64], to: *mut u8, streaming: bool) {
        let bytes = self.row_bytes;
        // SAFETY: the caller's contract, in each of these.
        unsafe {
            match bytes {
                0 => {}
                _ if streaming && bytes >= STREAMED_ROW_BYTES => {
                    for (at, index) in indices.iter().enumerate() {
                        copy_streaming(self.row(*index), to.add(at * bytes), bytes);
                    }
                }
                // A copy of a known length is a few instructions.
                1 => self.copy_rows_of::<1>(indices, to),
                2 => self.copy_rows_of::<2>(indices, to),
                4 => self.copy_rows_of::<4>(indices, to),
                8 => self.copy_rows_of::<8>(indices, to),
                16 => self.copy_rows_of::<16>(indices, to),
                _ => self.copy_long_rows(indices, to),
            }
        }
    }

    /// # Safety
    ///
    /// As [`copy_rows`](Column::copy_rows); rows are `N` bytes long.
    unsafe fn copy_rows_of<const N: usize>(&self, indices: &[u64], to: *mut u8) {
        for (at, index) in indices.iter().enumerate() {
            // SAFETY: the caller's contract.
            unsafe { copy_nonoverlapping(self.row(*index), to.add(at * N), N) };
        }
    }

    /// # Safety
    ///
    /// As [`copy_rows`](Column::copy_rows).
    unsafe fn copy_long_rows(&self, indices: &[u64], to: *mut u8) {
        let bytes = self.row_bytes;
        for (at, index) in indices.iter().enumerate() {
            if let Some(ahead) = indices.get(at + ROWS_AHEAD) {
                // SAFETY: the caller's contract.
                let ahead = unsafe { self.row(*ahead) };
                // The first lines, and the one that the last of these bytes is in. The processor sees by itself how a longer row
                // goes on.
                let some = bytes.min(FETCHED_ROW_BYTES);
                let lines = (0..some).step_by(LINE);
                lines.for_each(|line| prefetch(ahead.wrapping_add(line)));
                prefetch(ahead.wrapping_add(some - 1));
            }
            // SAFETY: the caller's contract.
            unsafe { copy_nonoverlapping(self.row(*index), to.add(at * bytes), bytes) };
        }
    }

    /// Where a row lies.
    ///
    /// # Safety
    ///
    /// The column [has](Column::has) the index.
    #[inline]
    pub(super) unsafe fn row(&self, index: u64) -> *const u8 {
        // SAFETY: the rows lie one after the other, and there is one of this index.
        unsafe { self.base.as_ptr().add(index as usize * self.row_bytes) }
    }
}

/// Fetches the line of an address into the cache. It is a hint, and any address will do.
#[inline]
fn prefetch(address: *const u8) {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        // SAFETY: every x86-64 processor has SSE, and nothing is accessed.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(address.cast()) };
    }
    #[cfg(not(all(target_arch = "x86_64", not(miri))))]
    let _ = address;
}

impl std::fmt::Debug for Column {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Column")
            .field("dtype", &self.dtype)
            .field("rows", &self.rows)
            .finish_non_exhaustive()
    }
}
