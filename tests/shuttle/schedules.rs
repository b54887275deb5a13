//! The whole pipeline (workers, pin thread, consumer, the streams of a CPU device) under schedules that shuttle chooses: at each
//! lock, condition, atomic and clock another thread may go on. shuttle finds what is blocked for good; the scenarios assert the
//! rest, through what the crate's users have. How to run it: ci/shuttle.sh.
//!
//! The scenarios are worth what they find: `planted` holds them to finding bugs that are planted in the library.
#![cfg(shuttle)]
#![allow(clippy::unwrap_used, unreachable_pub)] // a panic is how a test fails
#![allow(clippy::mem_forget)] // programs may

mod adrift;
mod ahead;
mod any_order;
mod blocks;
mod boundaries;
mod bytes;
mod copies;
mod dropping;
mod duty;
mod early;
mod ends;
mod explore;
mod failures;
mod hanging;
mod loading;
mod parts;
mod pinning;
mod places;
mod planted;
mod runs;
mod seeing;
mod shards;
mod staged;
mod streams;
mod support;
mod together;
