//! Streams that are not to be pulled any further.

use std::error::Error as StdError;
use std::fmt;

/// A stream is not to be pulled any further: its epoch was left, its loader is being dropped, or an item took longer than the loader's
/// `timeout`. [`stream::progress`](crate::stream::progress) returns it; the stream is dropped, and no batch of the program's has it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Interrupted;

impl fmt::Display for Interrupted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the program left the epoch, the loader is being dropped, or an item took longer than `timeout`: stop pulling")
    }
}

impl StdError for Interrupted {}
