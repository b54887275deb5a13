//! What a batch is made of: kinds of samples, structs with derives, rows that are padded, ragged or packed, and pictures that are mixed.

#![allow(clippy::unwrap_used)] // a panic is how a test fails

#[macro_use]
extern crate watch;

mod derive;
mod derive_batch;
mod derive_pairs;
mod mixing;
mod optional;
mod packed;
mod packed_streams;
mod padded;
mod ragged;
mod samples;
