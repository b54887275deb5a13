//! Where samples come from: data sets, tables, streams, files of lines, and requests that are made ahead.

#![allow(clippy::unwrap_used)] // a panic is how a test fails

#[macro_use]
extern crate watch;

mod arrays;
/// The same tests, where blocks are tables.
#[allow(clippy::duplicate_mod)]
#[path = "blocks.rs"]
mod block_tables;
mod blocks;
mod broken_objects;
mod buckets;
mod datasets;
mod disk_cache;
mod fatal;
mod filtered;
mod get_many;
mod interrupted;
mod lines;
mod lookahead;
#[cfg(feature = "webdataset")]
mod shard_streams;
mod staged;
mod staged_async;
mod staged_hanging;
mod stores;
mod streams;
mod tables;
#[cfg(feature = "webdataset")]
mod webdataset;
