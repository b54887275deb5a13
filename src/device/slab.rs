//! Slabs: one allocation for all tensors of a batch, or of several small ones, in the states that a batch goes through.
//!
//! [`Slab`] is memory on loan from a ring, and a [`Piece`] of it is what a batch has. [`FillingSlab`] is such a piece with a
//! layout, whose rows workers write. It becomes [`Filled`], whose tensors hold the slab together. The last of them, or the
//! last transfer that reads it, brings it home. Small batches may share a slab ([`Pieces`]).

use std::ptr::NonNull;

use super::byte_budget::BytePermit;
use super::host_memory::HostBlock;
use super::ring::{Kind, Ring, SlabQuota};
use crate::meter::Meter;
use crate::sync::{Arc, planted};
use crate::tensor::{
    ALIGNMENT, Column, Element, Filled, Home, Layout, Row, Sources, Storage, copy_rows,
};

/// Host memory on loan from a ring. (Public in name only: the sealed `Collate` mentions it.)
pub struct Slab {
    block: Option<HostBlock>,
    kind: Kind,
    base: NonNull<u8>,
    capacity: usize,
    ring: Arc<Ring>,
    quota: Option<Arc<SlabQuota>>,
    meter: Option<Arc<Meter>>,
    /// Its bytes among those in flight, if these are limited.
    permit: Option<Arc<BytePermit>>,
}

// SAFETY: it owns its block; the address is the block's.
unsafe impl Send for Slab {}
// SAFETY: as above; through `&Slab` there is only the address.
unsafe impl Sync for Slab {}

impl Slab {
    pub(super) fn new(
        block: HostBlock,
        kind: Kind,
        ring: Arc<Ring>,
        quota: Option<Arc<SlabQuota>>,
    ) -> Slab {
        Slab {
            base: block.base(),
            capacity: block.capacity(),
            block: Some(block),
            kind,
            ring,
            quota,
            meter: None,
            permit: None,
        }
    }

    /// Names the epoch that the slab's transfers are measured for.
    pub(crate) fn for_epoch(mut self, meter: Arc<Meter>) -> Slab {
        self.meter = Some(meter);
        self
    }

    /// Counts among the bytes in flight until it is home, or this is released.
    pub(crate) fn charged(mut self, permit: Option<Arc<BytePermit>>) -> Slab {
        self.permit = permit;
        self
    }

    /// Its share of the bytes in flight.
    pub(crate) fn permit(&self) -> Option<Arc<BytePermit>> {
        self.permit.clone()
    }

    pub(crate) fn base(&self) -> NonNull<u8> {
        self.base
    }

    pub(crate) fn capacity(&self) -> usize {
        self.capacity
    }

    /// Copies into memory of the slab that only the caller holds.
    pub(crate) fn copy<T: Element>(&self, from: &[T], to: &mut [T]) {
        self.ring.helpers().copy(from, to);
    }

    fn outgrows_the_cache(&self, bytes: usize) -> bool {
        let quota = self.quota.as_ref();
        self.is_page_locked() && quota.is_some_and(|quota| quota.outgrows_the_cache(bytes))
    }

    pub(crate) fn is_page_locked(&self) -> bool {
        self.block.as_ref().is_some_and(HostBlock::is_pinned)
    }
}

impl Storage for Slab {
    fn is_pinned(&self) -> bool {
        self.is_page_locked()
    }

    fn home(&self) -> Option<Home> {
        Some(Home {
            ring: self.ring.name(),
            quota: self.quota.as_ref().map(SlabQuota::name),
        })
    }

    fn meter(&self) -> Option<&Arc<Meter>> {
        self.meter.as_ref()
    }
}

impl Drop for Slab {
    fn drop(&mut self) {
        let is_stray = self.quota.is_none();
        if planted("news of a slab before it is home") {
            self.ring.news().notify_interested();
        }
        if planted("bytes are given back before the block is")
            && let Some(quota) = self.quota.take()
        {
            quota.release();
        }
        // The block first, so that a thread that finds room in the quota finds a block for it, and makes none.
        if let Some(block) = self.block.take() {
            self.ring.put(block, self.kind, is_stray);
        }
        if let Some(quota) = &self.quota {
            quota.release();
        }
        if let Some(permit) = &self.permit {
            permit.release();
        }
        // The news last, so that a thread that is woken finds both.
        if !planted("no news of a slab") && !planted("news of a slab before it is home") {
            self.ring.news().notify_interested();
        }
    }
}

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

impl std::fmt::Debug for Slab {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Slab")
            .field("capacity", &self.capacity)
            .field("is_page_locked", &self.is_page_locked())
            .finish()
    }
}
