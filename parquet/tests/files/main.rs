//! Parquet files: what pyarrow and Python's `datasets` wrote, as pyarrow reads it; one order over all files, resumed on other ranks; what is
//! left out and what is refused.
//!
//! The files in tests/fixtures are by other writers; make.py there says which.

#![allow(clippy::unwrap_used, clippy::expect_used)] // a panic is how a test fails

#[macro_use]
extern crate watch;

mod common;
mod filters;
mod hub;
mod interrupted;
mod numbers;
mod order;
mod refused;
mod types;
