//! How batches are made of samples. Nothing here knows which thread it runs on.

pub(super) mod factory;
pub(super) mod fill;
pub(super) mod iterable;
pub(super) mod on_error;
mod progress;
pub(super) mod samples;
pub(super) mod stopwatch;
