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
    rows: usize,
    row_bytes: usize,
    dtype: DType,
    content: Content,
}

enum Content {
    /// The rows lie one after the other from here on, and this keeps them.
    Memory(NonNull<u8>, Arc<dyn Storage>),
    /// Each row is its own number: the table is elsewhere.
    Numbers,
}

// SAFETY: the rows are only read, and their storage keeps them.
unsafe impl Send for Column {}
// SAFETY: as above.
unsafe impl Sync for Column {}

impl Column {
    /// The rows of a tensor, which has a first dimension.
    pub(crate) fn new<T: Element>(tensor: &Tensor<T>) -> Column {
        let rows = tensor.shape().first().copied().unwrap_or(0);
        Column {
            rows,
            row_bytes: tensor.size_bytes() / rows.max(1),
            dtype: T::DTYPE,
            content: Content::Memory(tensor.base().cast(), Arc::clone(tensor.storage())),
        }
    }

    /// The numbers of so many rows, as `i64`.
    pub(crate) fn numbers(rows: usize) -> Column {
        Column {
            rows,
            row_bytes: size_of::<i64>(),
            dtype: DType::I64,
            content: Content::Numbers,
        }
    }

    pub(super) fn dtype(&self) -> DType {
        self.dtype
    }

    pub(super) fn row_bytes(&self) -> usize {
        self.row_bytes
    }

    /// What keeps the rows, if they lie in memory.
    pub(super) fn storage(&self) -> Option<&Arc<dyn Storage>> {
        match &self.content {
            Content::Memory(_, storage) => Some(storage),
            Content::Numbers => None,
        }
    }

    /// The backend whose devices can reach the rows where they lie.
    pub(super) fn registered(&self) -> Option<Backend> {
        self.storage().and_then(|storage| storage.registered())
    }

    /// Whether there are rows of all these indices.
    pub(super) fn has(&self, indices: &[u64]) -> bool {
        are_below(indices.iter().copied(), self.rows)
    }

    /// Copies the rows of these indices to `to`, side by side. `streaming`: around the cache, where rows are long enough for that.
    ///
    /// # Safety
    ///
    /// The column [has](Column::has) the indices. `to` must be valid for writing all of these rows, and overlap none.
    pub(super) unsafe fn copy_rows(&self, indices: &[u64], to: *mut u8, streaming: bool) {
        let bytes = self.row_bytes;
        if let Content::Numbers = self.content {
            // (There is a row of each, so they fit an `i64`, as which they read the same.)
            // SAFETY: the caller's contract: these are as many rows.
            return unsafe {
                copy_nonoverlapping(indices.as_ptr().cast(), to, size_of_val(indices))
            };
        }
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
                32 => self.copy_rows_of::<32>(indices, to),
                _ => self.copy_long_rows(indices, to),
            }
        }
    }

    /// Fetches a row into the cache, which is copied soon. It is a hint: there may be no such row.
    pub(crate) fn fetch_ahead(&self, index: u64) {
        if let Content::Memory(base, _) = &self.content
            && self.row_bytes > 0
        {
            let at = (index as usize).wrapping_mul(self.row_bytes);
            prefetch_row(base.as_ptr().wrapping_add(at), self.row_bytes);
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
                prefetch_row(ahead, bytes);
            }
            // SAFETY: the caller's contract.
            unsafe { copy_nonoverlapping(self.row(*index), to.add(at * bytes), bytes) };
        }
    }

    /// Where a row lies, if it does.
    ///
    /// # Safety
    ///
    /// The column [has](Column::has) the index.
    #[inline]
    pub(super) unsafe fn row(&self, index: u64) -> *const u8 {
        match &self.content {
            // SAFETY: the rows lie one after the other, and there is one of this index.
            Content::Memory(base, _) => unsafe {
                base.as_ptr().add(index as usize * self.row_bytes)
            },
            Content::Numbers => std::ptr::null(),
        }
    }
}

/// Whether there are as many rows that each number is one of them. It looks at all of them, several at once.
pub(crate) fn are_below(numbers: impl Iterator<Item = u64>, rows: usize) -> bool {
    let Some(last) = rows.checked_sub(1) else {
        return numbers.count() == 0;
    };
    // The highest bit is set in a number that is as large as that, or in the difference.
    let bits = numbers.fold(0, |bits, number| {
        bits | number | (last as u64).wrapping_sub(number)
    });
    bits >> 63 == 0
}

/// Fetches the first lines of a row of so many bytes, and the one that the last of these is in. The processor sees by itself how a longer row goes
/// on. Any address will do.
#[inline]
fn prefetch_row(row: *const u8, bytes: usize) {
    let some = bytes.min(FETCHED_ROW_BYTES);
    let lines = (0..some).step_by(LINE);
    lines.for_each(|line| prefetch(row.wrapping_add(line)));
    prefetch(row.wrapping_add(some.saturating_sub(1)));
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

#[cfg(test)]
mod tests {
    use super::are_below;

    #[test]
    fn no_number_is_beyond_the_rows() {
        let most = isize::MAX as usize;
        for (rows, number, is_below) in [
            (1, 0, true),
            (1, 1, false),
            (7, 6, true),
            (7, 7, false),
            (7, u64::MAX, false),
            (7, 1 << 63, false),
            (most, most as u64 - 1, true),
            (most, most as u64, false),
            (most, u64::MAX, false),
            (0, 0, false),
        ] {
            let among = [0, number, 0].into_iter();
            assert_eq!(are_below(among, rows), is_below, "{number} of {rows}");
            assert_eq!(
                are_below([number].into_iter(), rows),
                is_below,
                "{number} of {rows}"
            );
        }
        assert!(are_below([].into_iter(), 0));
    }
}
