//! Errors that end an iterable: [`fatal`].

use crate::error::{BoxError, Refused};

/// Makes of an error one that ends the iterable. Return it in place of an item ([`ItemIter::next`](super::ItemIter::next)) where nothing can
/// follow: a connection that is closed, an iterator of another library that has failed as a whole.
///
/// Any other error stands for one item: behind it, the iterator is asked again, and
/// [`OnError::Skip`](crate::loader::OnError::Skip) leaves it out. So an iterator that only ends behind its error would end its epoch too early,
/// with no word about it. After a fatal one, the iterator is dropped; the epoch ends with an [`Error::Iterable`](crate::Error::Iterable), in
/// the place of the batch that was being pulled, whatever `on_error` says. Iterables around it pass it on.
///
/// # Examples
///
/// ```
/// use pinfeed::loader::OnError;
/// use pinfeed::{DataLoader, Error, iterable};
///
/// let records = iterable::from_fn(|_, _| {
///     let good = (0..5i64).map(Ok);
///     Ok(good.chain([Err(iterable::fatal("the server has closed the connection"))]))
/// });
/// let loader = DataLoader::iterable(records).batch_size(2).on_error(OnError::Skip { at_most: 100 }).build()?;
/// let batches: Vec<_> = loader.epoch(0).collect();
/// assert_eq!(batches.len(), 3);
/// assert!(matches!(batches[2], Err(Error::Iterable { .. })));
/// # Ok::<(), pinfeed::Error>(())
/// ```
pub fn fatal(error: impl Into<BoxError>) -> BoxError {
    Refused(error.into()).into()
}
