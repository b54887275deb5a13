//! Folders of pictures, and what becomes of a file's pixels.

#![cfg(feature = "image")]
#![allow(clippy::unwrap_used)] // a panic is how a test fails

#[macro_use]
extern crate watch;

mod folder;
mod formats;
mod maps;
mod sequences;
mod stored;
