//! WebDataset tar shards.

mod braces;
mod error;
mod index;
mod members;
mod names;
mod window;

pub use error::ShardError;
