//! An error, and what it is caused by: [`causes`].

use std::error::Error as StdError;

use super::{Again, DocumentError, Error, ItemError, Refused, Temporary};

/// An error, and one after the other what it is caused by. (Many print their cause, which is not their source then. It is among these.)
pub(crate) fn causes<'a>(
    error: &'a (dyn StdError + 'static),
) -> impl Iterator<Item = &'a (dyn StdError + 'static)> {
    std::iter::successors(Some(error), |error| cause(*error))
}

fn cause<'a>(error: &'a (dyn StdError + 'static)) -> Option<&'a (dyn StdError + 'static)> {
    if let Some(error) = error.downcast_ref::<Error>() {
        return error.cause();
    }
    let document = error
        .downcast_ref()
        .map(|error: &DocumentError| &error.cause);
    let item = error.downcast_ref().map(|error: &ItemError| &error.cause);
    let temporary = error.downcast_ref().map(|error: &Temporary| &error.0);
    let again = error.downcast_ref().map(|error: &Again| &error.0);
    let refused = error.downcast_ref().map(|error: &Refused| &error.0);
    match document.or(item).or(temporary).or(again).or(refused) {
        Some(cause) => Some(&**cause),
        None => error.source(),
    }
}
