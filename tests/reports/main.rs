//! What the library says of itself: statistics, timelines, lines in the log, and how many workers it took.
//!
//! Times are compared here. So no test of this process computes for long, such as one that draws many cases does.

#![allow(clippy::unwrap_used)] // a panic is how a test fails

#[macro_use]
extern crate watch;

mod notices;
mod stats;
mod timeline;
mod workers;
