//! How an iterable asks the one inside it for an item: [`ask`].
//!
//! Not all that comes of that is an item, or an error in an item's place. [`Again`]: there is none for now, and the next call asks at the same
//! place. [`Interrupted`] and [`Refused`]: none is to be asked for any more. Such a thing is neither counted nor kept, by none of
//! the iterables around the one that says it: it ends their call, and they are where they were. So each of them asks by [`ask`], whose `?` does that, and
//! nowhere by `next`.

use super::ItemIter;
use crate::error::{Again, BoxError, Interrupted, Refused};

/// What came in no item's place: [`Again`], [`Interrupted`] or [`Refused`].
#[derive(Debug)]
pub(crate) struct NoItem(BoxError);

/// An item, or the error in its place; `None` at the end.
pub(crate) type Asked<T> = Result<Option<Result<T, BoxError>>, NoItem>;

impl NoItem {
    /// Nothing is to be asked for any more: what there is, is not what a state says.
    pub(super) fn refused(why: BoxError) -> NoItem {
        NoItem(Refused(why).into())
    }

    /// Whether there may be an item later.
    pub(super) fn is_again(&self) -> bool {
        self.0.is::<Again>()
    }
}

impl From<Interrupted> for NoItem {
    fn from(interrupted: Interrupted) -> NoItem {
        NoItem(interrupted.into())
    }
}

impl From<NoItem> for BoxError {
    fn from(none: NoItem) -> BoxError {
        none.0
    }
}

/// Asks an iterable for its next item.
pub(crate) fn ask<I: ItemIter>(inner: &mut I) -> Asked<I::Item> {
    inner.next().map(settled).transpose()
}

/// Tells an error that is an item's, or another result's own, from what came in no item's place.
pub(crate) fn settled<T>(result: Result<T, BoxError>) -> Result<Result<T, BoxError>, NoItem> {
    match result {
        Err(error) if error.is::<Again>() || error.is::<Interrupted>() || error.is::<Refused>() => {
            Err(NoItem(error))
        }
        result => Ok(result),
    }
}

/// What [`ItemIter::next`] returns.
pub(super) fn told<T>(asked: Asked<T>) -> Option<Result<T, BoxError>> {
    asked.unwrap_or_else(|NoItem(error)| Some(Err(error)))
}
