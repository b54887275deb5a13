//! Samples stacked by a `collate_fn`.

use std::fmt;

use super::CollateError;

/// A sample that a `collate_fn` stacks does not fit the others, or failed to load.
///
/// # Examples
///
/// ```
/// use pinfeed::collate::Arena;
/// use pinfeed::{DataLoader, Error};
///
/// let words = vec![vec![1i64, 2, 3], vec![4]]; // not padded
/// let loader = DataLoader::builder(words)
///     .batch_size(2)
///     .collate_fn(|words: Vec<Vec<i64>>, arena: &mut Arena| Ok(arena.collate(words)?))
///     .build()?;
/// match loader.epoch(0).next() {
///     Some(Err(Error::CollateFn { source, .. })) => match source.downcast_ref() {
///         Some(Error::Stack(misfit)) => assert_eq!((misfit.place, misfit.count), (1, 2)),
///         _ => panic!("{source}"),
///     },
///     _ => panic!("they cannot be stacked"),
/// }
/// # Ok::<(), pinfeed::Error>(())
/// ```
#[derive(Debug)]
#[non_exhaustive]
pub struct StackMisfit {
    /// The sample's position among those to be stacked, from 0.
    pub place: usize,
    /// The number of samples to be stacked.
    pub count: usize,
    /// The position of the sample that the layout was planned from, if it is a different one.
    pub planned_from: Option<usize>,
    /// What does not fit.
    pub source: CollateError,
}

impl fmt::Display for StackMisfit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "of {} samples to stack, number {} ",
            self.count, self.place
        )?;
        if let CollateError::Load(_) = self.source {
            return f.write_str("failed to load");
        }
        f.write_str("does not fit the others")?;
        match self.planned_from {
            Some(place) => write!(f, ", whose layout was planned from number {place}"),
            None => Ok(()),
        }
    }
}

impl std::error::Error for StackMisfit {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match &self.source {
            CollateError::Load(error) => Some(&**error),
            error => Some(error),
        }
    }
}
