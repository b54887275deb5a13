//! Batches on their way to a device.

pub(super) mod queue;
pub(super) mod send;
mod turns;
