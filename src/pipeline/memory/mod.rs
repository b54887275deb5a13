//! Slabs for the batches that are made.

pub(super) mod pageable;
pub(super) mod pinned;
