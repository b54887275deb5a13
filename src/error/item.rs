//! Errors of items that were to be loaded while their source was pulled.

use std::error::Error as StdError;
use std::fmt;

use super::{Again, BoxError, Interrupted};

/// An item of an iterable could not be had, for a [`Filter`](crate::iterable::Filter), a [`FlatMap`](crate::iterable::FlatMap) or a
/// [`BucketByLength`](crate::iterable::BucketByLength), which load items while they pull them.
///
/// It prints as the item's number and the cause, and its [`source`](StdError::source) begins behind the cause.
#[derive(Debug)]
#[non_exhaustive]
pub struct ItemError {
    /// How many items the source gave this rank before it, in the same epoch. It counts what was filtered out, too.
    pub item: u64,
    /// Of a [`FlatMap`](crate::iterable::FlatMap): how many parts the item gave before the one that failed. `None`: the item failed.
    pub part: Option<u64>,
    /// Why not: what the source, or the function, returned.
    pub cause: BoxError,
}

impl ItemError {
    /// Says of an error which item it is of. One that says so already is left as it is: the innermost source is the program's own.
    pub(crate) fn of(item: u64, part: Option<u64>, cause: BoxError) -> BoxError {
        match cause.is::<ItemError>() || cause.is::<Interrupted>() || cause.is::<Again>() {
            true => cause,
            false => ItemError { item, part, cause }.into(),
        }
    }
}

impl fmt::Display for ItemError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "item {} of the source", self.item)?;
        if let Some(part) = self.part {
            write!(f, ", part {part}")?;
        }
        write!(f, ": {}", self.cause)
    }
}

impl StdError for ItemError {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        self.cause.source()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_item_is_named_once_and_by_the_source_nearest_to_it() {
        let inner = ItemError::of(40, None, "no number".into());
        assert_eq!(inner.to_string(), "item 40 of the source: no number");
        let outer = ItemError::of(3, Some(1), inner);
        assert_eq!(outer.to_string(), "item 40 of the source: no number");
        let part = ItemError::of(3, Some(1), "cut off".into());
        assert_eq!(part.to_string(), "item 3 of the source, part 1: cut off");
        assert!(ItemError::of(3, None, Interrupted.into()).is::<Interrupted>());
    }
}
