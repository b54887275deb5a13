//! What is decided before an epoch is loaded, as values: which batches there are, of which samples, for which rank and device, and how they
//! are loaded.

pub(super) mod bad_share;
pub(super) mod delivered;
pub(super) mod epoch_plan;
pub(super) mod indices;
pub(super) mod lister;
pub(super) mod options;
pub(super) mod partition;
pub(super) mod shard;
