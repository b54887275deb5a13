//! What a loader is told when it is built, and what becomes of samples that fail, hang, or are large.

#![allow(clippy::unwrap_used)] // a panic is how a test fails

#[macro_use]
extern crate watch;

mod affinity;
mod bad_input;
mod bad_share;
mod builder;
mod bytes_in_flight;
mod errors;
mod on_error;
mod replay;
mod timeouts;
