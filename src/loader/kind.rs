//! The kinds of loaders: with an index or without one.

mod indexed;
mod iterable;

use std::fmt;
use std::hash::Hash;
use std::str::FromStr;

use super::iterable_state::IterableState;
use super::state::LoaderState;
use crate::error::Error;

pub(super) use self::indexed::state_from;
pub(super) use self::iterable::owner;
pub(super) use self::sealed::{Begun, GoesOn, Stands};

/// The kind of a loader whose samples have indices, and so a number: [`DataLoader::builder`](crate::DataLoader::builder) makes it. It is the default, so that
/// `DataLoader<B>` is a `DataLoader<B, Indexed>`.
///
/// Its epochs have a length, and can be split among devices; a run's state is a [`LoaderState`].
///
/// # Examples
///
/// ```
/// use pinfeed::loader::Indexed;
/// use pinfeed::{DataLoader, Tensor, from_fn};
///
/// let numbers = from_fn(100, |index, _| Ok(index as i64));
/// let loader: DataLoader<Tensor<i64>, Indexed> = DataLoader::builder(numbers).batch_size(8).build()?;
/// let loader: DataLoader<Tensor<i64>> = loader; // the same type
/// assert_eq!((loader.len(), loader.epoch(0).len()), (13, 13));
/// # Ok::<(), pinfeed::Error>(())
/// ```
#[derive(Debug)]
pub enum Indexed {}

/// The kind of a loader of an [`IterableDataset`](crate::iterable::IterableDataset): [`DataLoader::iterable`](crate::DataLoader::iterable) makes it.
///
/// What is left of an epoch is known when it has ended, so nothing of the loader has a length, and an epoch goes to one device. A run's
/// state is an [`IterableState`]. All else is as with [`Indexed`].
///
/// # Examples
///
/// A struct's field names the kind:
///
/// ```
/// use pinfeed::loader::Iterable;
/// use pinfeed::{DataLoader, Tensor, iterable};
///
/// struct Training {
///     loader: DataLoader<Tensor<i64>, Iterable>,
/// }
///
/// let numbers = iterable::from_fn(|_, _| Ok((0..100i64).map(Ok)));
/// let training = Training { loader: DataLoader::iterable(numbers).batch_size(8).build()? };
/// assert_eq!(training.loader.epoch(0).count(), 13);
/// # Ok::<(), pinfeed::Error>(())
/// ```
///
/// It has no length:
///
/// ```compile_fail,E0599
/// use pinfeed::{DataLoader, iterable};
///
/// let numbers = iterable::from_fn(|_, _| Ok((0..100i64).map(Ok)));
/// let loader = DataLoader::iterable(numbers).batch_size(8).build()?;
/// println!("{} steps", loader.len()); // no method named `len`
/// # Ok::<(), pinfeed::Error>(())
/// ```
#[derive(Debug)]
pub enum Iterable {}

/// What a loader's samples come from: [`Indexed`] or [`Iterable`]. The trait is sealed.
///
/// A function that takes loaders of both kinds has a parameter for it. It can do what both can: iterate epochs, on a device too, save
/// the state, and resume.
///
/// # Examples
///
/// ```
/// use pinfeed::loader::Kind;
/// use pinfeed::{DataLoader, Result, Tensor, from_fn, iterable};
///
/// /// Goes on where the saved state says, for at most so many steps. Returns the sum, and the state to save.
/// fn train<K: Kind>(loader: &DataLoader<Tensor<i64>, K>, saved: &str, steps: usize) -> Result<(i64, String)> {
///     let state: K::State = match saved {
///         "" => K::State::default(),
///         saved => saved.parse()?,
///     };
///     let mut sum = 0;
///     for batch in loader.resume(0..1, &state)?.flatten().take(steps) {
///         sum += batch?.as_slice().iter().sum::<i64>();
///     }
///     Ok((sum, loader.state().to_string()))
/// }
///
/// let numbers = from_fn(10, |index, _| Ok(index as i64));
/// let indexed = DataLoader::builder(numbers).batch_size(2).build()?;
/// let numbers = iterable::from_fn(|_, _| Ok((0..10i64).map(Ok)));
/// let iterable = DataLoader::iterable(numbers).batch_size(2).build()?;
///
/// let (first, saved) = train(&indexed, "", 3)?;
/// let (rest, _) = train(&indexed, &saved, 3)?;
/// assert_eq!((first, rest), (15, 30));
/// let (first, saved) = train(&iterable, "", 3)?;
/// let (rest, _) = train(&iterable, &saved, 3)?;
/// assert_eq!((first, rest), (15, 30));
/// # Ok::<(), pinfeed::Error>(())
/// ```
pub trait Kind: sealed::Kind + Sized + fmt::Debug + Send + Sync + 'static {
    /// Where a run stands: a [`LoaderState`] or an [`IterableState`], each a line of text. The default is where every run begins.
    type State: Stands<Self>
        + fmt::Display
        + FromStr<Err = Error>
        + fmt::Debug
        + Clone
        + Default
        + PartialEq
        + Eq
        + Hash
        + Send
        + Sync
        + 'static;
}

impl Kind for Indexed {
    type State = LoaderState;
}

impl Kind for Iterable {
    type State = IterableState;
}

impl sealed::Kind for Indexed {
    fn size_hint(left: u64) -> (usize, Option<usize>) {
        let left = usize::try_from(left);
        (left.unwrap_or(usize::MAX), left.ok())
    }
}

impl sealed::Kind for Iterable {
    fn size_hint(_: u64) -> (usize, Option<usize>) {
        (0, None)
    }
}

/// What the kinds do, in a module that programs cannot name.
#[expect(
    missing_debug_implementations,
    reason = "programs have no value of these types"
)]
mod sealed {
    use crate::batch::Batch;
    use crate::error::Result;
    use crate::loader::inner::LoaderInner;
    use crate::pipeline::{EpochHandle, Partition, Start};

    pub trait Kind {
        /// What an iterator says that has so many batches left, as far as the loader plans.
        fn size_hint(left: u64) -> (usize, Option<usize>);
    }

    /// A state: how the loaders of a kind make it, and go on from it.
    pub trait Stands<K: crate::loader::kind::Kind>: Sized {
        /// Where the run stands in the epoch that was begun last.
        fn of_run<B: Batch>(loader: &LoaderInner<B>) -> Self;

        /// Where the run stands in this epoch.
        fn of_epoch<B: Batch>(loader: &LoaderInner<B>, epoch: Begun<'_>) -> Self;

        /// Where to go on. An error: the state is not of the loader's run.
        fn go_on<B: Batch>(&self, loader: &LoaderInner<B>) -> Result<GoesOn>;
    }

    /// An epoch that was begun.
    pub struct Begun<'a> {
        pub(in crate::loader) handle: &'a EpochHandle,
        pub(in crate::loader) partition: &'a Partition,
    }

    /// Where a run goes on.
    pub struct GoesOn {
        pub(in crate::loader) start: Start,
        /// The state of the iterable there.
        pub(in crate::loader) iterable: Option<Vec<u8>>,
    }
}
