//! Tries to break the loader: late copies, devices that fail at any call, little memory, panics wherever the user's code
//! runs, handles that are forgotten, and ends in any order. What must hold: every batch is right or an error in its
//! place, and nothing hangs.
//!
//! Each test draws from a random seed that is printed when it fails or hangs; `PINFEED_SEED` sets it.
#![allow(unsafe_code)] // kernels write and read memory by its address
#![allow(clippy::expect_used, clippy::unwrap_used)] // a panic is how a test fails
#![allow(clippy::disallowed_methods)] // threads of one line need no names
#![allow(clippy::mem_forget)] // forgotten handles are what is tested
#![allow(unreachable_pub)] // a binary has no public items

#[macro_use]
extern crate watch;

mod boundaries;
mod dlpack;
mod drops;
mod ends;
mod failures;
mod forgotten;
#[cfg(all(unix, not(miri)))]
mod forked;
mod giving_back;
mod growth;
mod hanging;
mod itself;
mod lent;
mod memory;
mod order;
mod owners;
mod senders;
mod sharing;
mod support;
mod traps;
mod user_code;
