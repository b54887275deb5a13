//! What is asked between two items of an iterable: whether an epoch still waits for it. It also says that the iterable does not hang.
//!
//! The code that pulls an iterable for a loader [watches](watched) the calling thread meanwhile. So nothing need be passed from iterable to
//! iterable, and iterators can ask, too.

use std::cell::RefCell;

use crate::error::Interrupted;
use crate::sync::{Arc, thread_local};

/// What is told of each item that comes on a thread. It returns whether more are waited for.
pub(crate) type Watcher = Arc<dyn Fn() -> bool + Send + Sync>;

thread_local! {
    static WATCHER: RefCell<Option<Watcher>> = const { RefCell::new(None) };
}

/// Reports that an item came, and asks whether to pull another. Call it wherever an iterable pulls several items of another one (or reads
/// several records, files, answers) to give one itself: between two of them.
///
/// It does two things, and takes a few nanoseconds. It lets a dropped epoch or loader interrupt the iterable, which otherwise would be
/// pulled until its item is there. And it restarts the loader's [`timeout`](crate::loader::IterableBuilder::timeout), so that an iterable
/// that is slow is not taken for one that hangs. All iterables of this module call it.
///
/// On a thread that does not pull for a loader, it returns `Ok`. So it does where a loader has no workers, because then the program's own
/// thread pulls. (If that thread itself pulls for another loader, the answer is that loader's.) Call it on the thread that pulls.
///
/// # Errors
///
/// [`Interrupted`] if no epoch waits for the iterable any more. Return it, in place of an item or from `open` and `seek`; the iterable is
/// dropped then, and not asked again.
///
/// # Examples
///
/// An iterable that leaves out items of another one. However many they are, the loader can be dropped:
///
/// ```
/// use pinfeed::iterable::{self, ItemIter, Shard, IterableDataset};
/// use pinfeed::{BoxError, DataLoader, SampleRng};
///
/// struct Multiples<S>(S, i64);
///
/// struct Opened<I>(I, i64);
///
/// impl<S: IterableDataset<Item = i64>> IterableDataset for Multiples<S> {
///     type Item = i64;
///     type Sample = S::Sample;
///     type Iter = Opened<S::Iter>;
///
///     fn open(&self, epoch: u64, shard: Shard) -> Result<Self::Iter, BoxError> {
///         Ok(Opened(self.0.open(epoch, shard)?, self.1))
///     }
///
///     fn load(&self, item: i64, rng: &mut SampleRng) -> Result<S::Sample, BoxError> {
///         self.0.load(item, rng)
///     }
/// }
///
/// impl<I: ItemIter<Item = i64>> ItemIter for Opened<I> {
///     type Item = i64;
///
///     fn next(&mut self) -> Option<Result<i64, BoxError>> {
///         loop {
///             match self.0.next()? {
///                 Ok(number) if number % self.1 != 0 => {}
///                 item => return Some(item),
///             }
///             if let Err(interrupted) = iterable::progress() {
///                 return Some(Err(interrupted.into()));
///             }
///         }
///     }
/// }
///
/// let numbers = iterable::from_fn(|_, _| Ok((1..).map(Ok)));
/// let loader = DataLoader::iterable(Multiples(numbers, 1_000)).batch_size(3).num_workers(1).build()?;
/// assert_eq!(loader.epoch(0).next().unwrap()?.as_slice(), [1_000, 2_000, 3_000]);
/// # Ok::<(), pinfeed::Error>(())
/// ```
///
/// An iterator asks where it would go on: the records of this rank, of a file that all ranks read.
///
/// ```
/// use pinfeed::DataLoader;
/// use pinfeed::loader::World;
/// use pinfeed::iterable;
///
/// let records = iterable::from_fn(|_, shard| {
///     let all = (0..10_000u64).map(|number| (number, number as f32));
///     Ok(all.filter_map(move |(number, record)| match iterable::progress() {
///         Err(interrupted) => Some(Err(interrupted.into())),
///         Ok(()) => shard.keeps(number).then_some(Ok(record)),
///     }))
/// });
/// let loader = DataLoader::iterable(records).batch_size(3).world(World::new(7, 100)?).build()?;
/// assert_eq!(loader.epoch(0).next().unwrap()?.as_slice(), [7.0, 107.0, 207.0]);
/// # Ok::<(), pinfeed::Error>(())
/// ```
pub fn progress() -> Result<(), Interrupted> {
    let goes_on = WATCHER.with(|watcher| {
        let watcher = watcher.borrow();
        watcher.as_ref().is_none_or(|watcher| watcher())
    });
    if goes_on { Ok(()) } else { Err(Interrupted) }
}

/// Pulls on this thread, and is told of all items meanwhile. Without a watcher, that of an iterable around this one stays.
pub(crate) fn watched<R>(watcher: Option<Watcher>, pull: impl FnOnce() -> R) -> R {
    struct Restored(Option<Watcher>);

    impl Drop for Restored {
        fn drop(&mut self) {
            let ended = WATCHER.with(|watcher| watcher.replace(self.0.take()));
            drop(ended);
        }
    }

    let _restored = watcher.map(|watcher| {
        let before = WATCHER.with(|current| current.replace(Some(watcher)));
        Restored(before)
    });
    pull()
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

    use super::*;
    use crate::sync::{AtomicBool, AtomicUsize, Ordering};

    #[test]
    fn who_pulls_last_is_told_and_the_one_before_again_after_that() {
        let (goes_on, told) = (
            Arc::new(AtomicBool::new(true)),
            Arc::<AtomicUsize>::default(),
        );
        let watcher = |goes_on: &Arc<AtomicBool>| -> Option<Watcher> {
            let (goes_on, told) = (Arc::clone(goes_on), Arc::clone(&told));
            Some(Arc::new(move || {
                told.fetch_add(1, Ordering::Relaxed);
                goes_on.load(Ordering::Relaxed)
            }))
        };
        assert_eq!(progress(), Ok(()));
        watched(watcher(&goes_on), || {
            assert_eq!(progress(), Ok(()));
            goes_on.store(false, Ordering::Relaxed);
            assert_eq!(progress(), Err(Interrupted));
            watched(None, || assert_eq!(progress(), Err(Interrupted)));
            let others = watcher(&Arc::new(AtomicBool::new(true)));
            let panics = || watched(others, || resume_unwind(Box::new(progress().is_ok())));
            let panicked: Result<(), _> = catch_unwind(AssertUnwindSafe(panics));
            assert_eq!(panicked.unwrap_err().downcast_ref(), Some(&true));
            assert_eq!(progress(), Err(Interrupted));
        });
        assert_eq!((progress(), told.load(Ordering::Relaxed)), (Ok(()), 5));
    }
}
