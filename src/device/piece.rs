//! Pieces of slabs: what a batch has of one, in the states that it goes through.
//!
//! A [`Piece`] is all of a slab, or a part of one that several small batches share ([`Pieces`]). [`FillingSlab`] is such a piece with a
//! layout, whose rows workers write. It becomes [`Filled`], whose tensors hold the slab together. The last of them, or the
//! last transfer that reads it, brings it home.

use std::ptr::NonNull;

use super::ring::Slab;
use crate::sync::{Arc, planted};
use crate::tensor::{ALIGNMENT, Column, Filled, Layout, Row, Sources, copy_rows};

/// Bytes of a slab that one batch has to itself: all of them, or some of a slab that several batches share. (Public in name only, as
/// [`Slab`] is.)
pub struct Piece {
    slab: Arc<Slab>,
    base: NonNull<u8>,
    capacity: usize,
    /// What is made of it moves into a page-locked slab, so its rows are read on the host.
    moves: bool,
}

// SAFETY: it is the only way to its bytes until tensors are made of them (*one owner per slab*); the address is the slab's.
unsafe impl Send for Piece {}
// SAFETY: as above; through `&Piece` there is only the address.
unsafe impl Sync for Piece {}

impl Piece {
    /// Where it begins: at a multiple of [`ALIGNMENT`].
    pub(crate) fn base(&self) -> NonNull<u8> {
        self.base
    }

    pub(crate) fn capacity(&self) -> usize {
        self.capacity
    }

    pub(crate) fn slab(&self) -> &Arc<Slab> {
        &self.slab
    }

    /// What is made of it will move.
    pub(crate) fn that_moves(self) -> Piece {
        Piece {
            moves: true,
            ..self
        }
    }
}

impl From<Slab> for Piece {
    fn from(slab: Slab) -> Piece {
        Piece {
            base: slab.base(),
            capacity: slab.capacity(),
            slab: Arc::new(slab),
            moves: false,
        }
    }
}

impl std::fmt::Debug for Piece {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let mut piece = f.debug_struct("Piece");
        piece
            .field("capacity", &self.capacity)
            .finish_non_exhaustive()
    }
}

/// A slab that is given out piece by piece. It goes home when all pieces, and what became of them, are gone.
pub(crate) struct Pieces {
    slab: Arc<Slab>,
    /// Bytes before this were given out. It only grows, so no byte has two owners.
    used_bytes: usize,
}

impl Pieces {
    /// How much of a slab a piece takes.
    pub(crate) fn stride(bytes: usize) -> Option<usize> {
        bytes.checked_next_multiple_of(ALIGNMENT)
    }

    pub(crate) fn of(slab: Slab) -> Pieces {
        Pieces {
            slab: Arc::new(slab),
            used_bytes: 0,
        }
    }

    /// The next piece; `None` if not so much is left.
    pub(crate) fn next(&mut self, bytes: usize) -> Option<Piece> {
        let start = self.used_bytes;
        let end = start.checked_add(Pieces::stride(bytes)?)?;
        if end > self.slab.capacity() {
            return None;
        }
        if !planted("a piece is given out twice") {
            self.used_bytes = end;
        }
        Some(Piece {
            // SAFETY: the range lies inside the slab (*layouts are in bounds and aligned*).
            base: unsafe { self.slab.base().add(start) },
            capacity: end - start,
            slab: Arc::clone(&self.slab),
            moves: false,
        })
    }
}

/// A piece of a slab whose rows are being written, by a layout that the caller keeps.
pub(crate) struct FillingSlab {
    piece: Piece,
    size_bytes: usize,
    sources: Option<Arc<Sources>>,
    streaming: bool,
}

impl FillingSlab {
    /// # Panics
    ///
    /// If the layout does not fit the piece: the caller asked for too small a one.
    pub(crate) fn new(piece: Piece, layout: &Layout) -> FillingSlab {
        let size_bytes = layout.size_bytes();
        assert!(
            size_bytes <= piece.capacity(),
            "a slab is as large as its layout"
        );
        let moves = piece.moves;
        FillingSlab {
            streaming: piece.slab.outgrows_the_cache(size_bytes),
            piece,
            size_bytes,
            sources: layout.has_sources().then(|| Arc::new(Sources::new(moves))),
        }
    }

    /// Lends one row for writing.
    ///
    /// # Safety
    ///
    /// `layout` is the one that the slab was made for. Each row is lent to one thread at a time.
    #[inline]
    pub(crate) unsafe fn row<'a>(&'a self, layout: &'a Layout, row: usize) -> Row<'a> {
        debug_assert_eq!(layout.size_bytes(), self.size_bytes);
        let (base, sources) = (self.piece.base(), self.sources.as_deref());
        // SAFETY: the piece holds at least the layout's bytes, initialized and aligned, for as long as `self`;
        // the caller's contract keeps others away from the row (*one owner per slab*).
        unsafe { Row::new(layout, base, row, sources, self.streaming) }
    }

    /// Copies rows of a table into as many rows, from row `first` on. `false`: they do not fit.
    ///
    /// # Safety
    ///
    /// `layout` is the one that the slab was made for. These rows are not lent.
    pub(crate) unsafe fn copy_rows(
        &self,
        layout: &Layout,
        first: usize,
        columns: &[Column],
        indices: &[u64],
    ) -> bool {
        debug_assert_eq!(layout.size_bytes(), self.size_bytes);
        let (base, sources) = (self.piece.base(), self.sources.as_deref());
        let streaming = self.streaming;
        // SAFETY: as in `row`.
        unsafe { copy_rows(layout, base, first, sources, streaming, columns, indices) }
    }

    /// Ends the filling: no `Row` is left, because each borrows the slab.
    ///
    /// # Safety
    ///
    /// `layout` is the one that the slab was made for.
    pub(crate) unsafe fn finish(self, layout: Layout) -> Filled {
        let base = self.piece.base();
        // SAFETY: as in `row`; `self` is consumed, so nothing else reaches the fields' bytes (*one owner per slab*).
        unsafe { Filled::new(layout, base, self.piece.slab, self.sources) }
    }
}
