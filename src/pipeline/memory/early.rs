//! Slabs that are made as soon as the loader is built, where it is known how large they will be.

use crate::device::{Kind, Ring};

/// The slabs that the first epoch will have in any case: for whole batches.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Early {
    pub(crate) bytes: usize,
    pub(crate) slabs: usize,
}

impl Early {
    /// Makes one of them. `false`: there are as many, other loaders' among them, or it cannot be had.
    pub(super) fn make_one(self, ring: &Ring) -> bool {
        ring.make_ahead(Kind::Whole, self.bytes, Some(self.slabs))
    }
}
