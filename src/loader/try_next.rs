//! What a call gives that does not wait for a batch, or not for long.

use std::task::Poll;
use std::time::Duration;

use crate::pipeline::Patience;
use crate::sync::Instant;

/// What [`try_next`](crate::loader::Epoch::try_next) and [`next_timeout`](crate::loader::Epoch::next_timeout) return: a batch, or why there
/// is none.
///
/// `T` is what the epoch's iterator gives, a `Result` of a batch: an error takes its batch's place.
///
/// It is no [`Poll`]: nothing wakes a task when the next batch comes. The program asks again.
///
/// # Examples
///
/// A loop that has something else to do:
///
/// ```
/// use pinfeed::loader::TryNext;
/// use pinfeed::{DataLoader, from_fn};
///
/// let loader = DataLoader::builder(from_fn(8, |index, _| Ok(index as i64))).batch_size(4).num_workers(2).build()?;
/// let (mut epoch, mut rows) = (loader.epoch(0), 0);
/// loop {
///     match epoch.try_next() {
///         TryNext::Batch(batch) => rows += batch?.len(),
///         TryNext::NotYet => std::thread::yield_now(), // draws, answers, ..
///         TryNext::End => break,
///     }
/// }
/// assert_eq!(rows, 8);
/// # Ok::<(), pinfeed::Error>(())
/// ```
///
/// As many batches as are there:
///
/// ```
/// # use pinfeed::{DataLoader, from_fn};
/// # let loader = DataLoader::builder(from_fn(8, |index, _| Ok(index as i64))).batch_size(4).build()?;
/// let mut epoch = loader.epoch(0);
/// while let Some(batch) = epoch.try_next().batch() {
///     assert_eq!(batch?.len(), 4);
/// }
/// # Ok::<(), pinfeed::Error>(())
/// ```
#[must_use = "it may hold a batch, which no later call gives again"]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TryNext<T> {
    /// The next batch, or the error in its place.
    Batch(T),
    /// The next batch is not ready. A later call gives it.
    NotYet,
    /// The epoch is over: all batches were given.
    End,
}

impl<T> TryNext<T> {
    /// The batch, if there is one. `None` does not tell [`NotYet`](TryNext::NotYet) from [`End`](TryNext::End).
    pub fn batch(self) -> Option<T> {
        match self {
            TryNext::Batch(batch) => Some(batch),
            TryNext::NotYet | TryNext::End => None,
        }
    }

    pub(super) fn map<U>(self, f: impl FnOnce(T) -> U) -> TryNext<U> {
        match self {
            TryNext::Batch(batch) => TryNext::Batch(f(batch)),
            TryNext::NotYet => TryNext::NotYet,
            TryNext::End => TryNext::End,
        }
    }

    pub(super) fn of(next: Poll<Option<T>>) -> TryNext<T> {
        match next {
            Poll::Ready(Some(batch)) => TryNext::Batch(batch),
            Poll::Ready(None) => TryNext::End,
            Poll::Pending => TryNext::NotYet,
        }
    }
}

/// Until when a call waits that is given a time.
pub(super) fn until(timeout: Duration) -> Patience {
    if timeout.is_zero() {
        return Patience::None;
    }
    let end = Instant::now().checked_add(timeout);
    end.map_or(Patience::Forever, Patience::Until)
}

/// What a call gives that waits for ever.
pub(super) fn waited<T>(next: Poll<Option<T>>) -> Option<T> {
    match next {
        Poll::Ready(next) => next,
        Poll::Pending => unreachable!("it waits for ever"),
    }
}
