//! What a user of the bridge would notice: on burn's CPU backends, Flex and ndarray, and beside burn's own loader.

#![allow(clippy::unwrap_used, clippy::expect_used)] // a panic is how a test fails
#![allow(unreachable_pub)] // modules of a test: what is `pub` in them is for the others

#[macro_use]
extern crate watch;

mod datasets;
mod held;
mod interrupted;
mod learner;
mod loaders;
mod net;
mod tensors;
