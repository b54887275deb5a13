//! Parquet files: what pyarrow and Python's `datasets` wrote, as pyarrow reads it; one order over all files, resumed on other ranks; what is
//! left out and what is refused.
//!
//! The files in tests/fixtures are by other writers; make.py there says which.

#![allow(clippy::unwrap_used, clippy::expect_used)] // a panic is how a test fails

#[macro_use]
extern crate watch;

mod broken_objects;
mod common;
mod filters;
mod hub;
mod interrupted;
mod numbers;
mod order;
mod refused;
#[cfg(feature = "object-store")]
#[allow(dead_code)] // (the library's own tests need more of it)
#[path = "../../../tests/remote/server.rs"]
mod server;
mod types;
