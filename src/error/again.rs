//! Errors of iterables that stand in no item's place.

use std::error::Error as StdError;
use std::fmt;

use super::BoxError;

/// An iterable could not give its next item for now. It is where it was, and tries again when it is asked again: no item is lost, and none
/// is counted. Iterables around it pass it on (`iterable/ask.rs`); what makes batches gives it in place of a batch, and keeps the items of the
/// batch that it has begun.
///
/// It prints as the error inside, which is its [`source`](StdError::source).
#[derive(Debug)]
pub(crate) struct Again(pub(crate) BoxError);

/// An iterable cannot go on from where it stands, whoever asks again: what it reads is not what its state says, or its threads are in another
/// process, or its iterator says so ([`fatal`](crate::iterable::fatal)). Passed on as [`Again`] is; the epoch ends with it.
///
/// It prints as the error inside, which is its [`source`](StdError::source).
#[derive(Debug)]
pub(crate) struct Refused(pub(crate) BoxError);

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

impl fmt::Display for Refused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.0, f)
    }
}

impl StdError for Refused {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        Some(&*self.0)
    }
}
