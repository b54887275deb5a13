//! `src/image/` uses the crate as a program does: here it is compiled as a part of another crate, where `crate::` is what
//! pinfeed makes public. Nothing runs: that it compiles is the test.

#![allow(unused, unreachable_pub, missing_docs)] // its tests run in the crate

use pinfeed::*;

#[path = "../src/image/mod.rs"]
mod image;

fn main() {}
