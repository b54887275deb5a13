//! Iterables that are not to be pulled any further.

use std::error::Error as StdError;
use std::fmt;

/// An iterable is not to be pulled any further: its epoch was left, its loader is being dropped, or an item took longer than the loader's
/// `timeout`. [`iterable::progress`](crate::iterable::progress) returns it; the iterable is dropped, and no batch of the program's has it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Interrupted;

impl fmt::Display for Interrupted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the program left the epoch, the loader is being dropped, or an item took longer than `timeout`: stop pulling")
    }
}

impl StdError for Interrupted {}
