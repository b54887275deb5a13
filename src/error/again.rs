//! Errors of iterables that stand in no item's place.

use std::error::Error as StdError;
use std::fmt;

use super::BoxError;

/// An iterable could not give its next item for now. It is where it was, and tries again when it is asked again: no item is lost, and none
/// is counted. What puts items of an iterable together (a window) goes on without it; what makes batches ends the one that it has begun.
///
/// It prints as the error inside, which is its [`source`](StdError::source).
#[derive(Debug)]
pub(crate) struct Again(pub(crate) BoxError);

impl fmt::Display for Again {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.0, f)
    }
}

impl StdError for Again {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        Some(&*self.0)
    }
}
