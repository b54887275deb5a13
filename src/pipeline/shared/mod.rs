//! What all threads of a loader share, under one lock.

pub(super) mod data;
pub(super) mod deferred;
pub(super) mod lock;
pub(super) mod report;
pub(super) mod session;
pub(super) mod sessions;
pub(super) mod sizing;
pub(super) mod slab_size;
pub(super) mod state;
pub(super) mod workers;
