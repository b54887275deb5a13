//! Lists without samples, and what becomes of them.
//!
//! A batch without samples has a position of its own all the same, so that a state tells it from the list behind it. What stands there is
//! a *pattern*: a sample of the epoch, which is loaded, tells what rows are like, and is no part of the batch.

use crate::sampler::Batches;

/// What becomes of an empty list of a [batch sampler](crate::sampler::BatchSampler): a batch without samples, as
/// [Poisson sampling](https://arxiv.org/abs/1908.10530) draws it for differential privacy.
///
/// Whatever it is, all ranks have equally many batches. A run must be resumed with the same: in the [state](crate::loader::LoaderState) of
/// one with `Keep` or `Fail`, an empty list counts as one position, and with `Skip` as none.
///
/// # Examples
///
/// ```
/// use pinfeed::loader::OnEmpty;
/// use pinfeed::{DataLoader, from_fn};
///
/// let rows = |on_empty| -> pinfeed::Result<Vec<Option<Vec<usize>>>> {
///     let lists = vec![vec![0, 1, 2], vec![], vec![3]];
///     let loader = DataLoader::builder(from_fn(4, |index, _| Ok([index as f32; 8])))
///         .batch_sampler(lists)
///         .on_empty(on_empty)
///         .build()?;
///     Ok(loader.epoch(0).map(|batch| batch.ok().map(|batch| batch.shape().to_vec())).collect())
/// };
/// assert_eq!(rows(OnEmpty::Keep)?, [Some(vec![3, 8]), Some(vec![0, 8]), Some(vec![1, 8])]);
/// assert_eq!(rows(OnEmpty::Skip)?, [Some(vec![3, 8]), Some(vec![1, 8])]);
/// assert_eq!(rows(OnEmpty::Fail)?, [Some(vec![3, 8]), None, Some(vec![1, 8])]);
/// # Ok::<(), pinfeed::Error>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
#[non_exhaustive]
pub enum OnEmpty {
    /// Its batch is an error ([`Error::BatchSampler`](crate::Error::BatchSampler)), in the batch's place. The default.
    #[default]
    Fail,
    /// It becomes an empty batch, in its place: tensors of shape `[0, row_shape..]`, and no values on the host. A step on it is one of
    /// noise alone, if the training adds some, and must not divide by the number of rows.
    ///
    /// Rows are like those of the first sample in the epoch's lists (of sample 0, if all lists are empty), which is loaded for it. If
    /// that is bad, [`OnError`](crate::loader::OnError) may let another stand for it. A [`Padded`](crate::Padded) batch is `[0, 0,
    /// row_shape..]`. A [`collate_fn`](crate::loader::Builder::collate_fn) is called with no samples, and no sample is loaded for it.
    ///
    /// A rank without a list at the end of an epoch ([`LastBatch`](crate::loader::LastBatch)) has an empty batch, instead of one of a
    /// filler row.
    Keep,
    /// It is left out, as if the batch sampler had not given it: an epoch has fewer batches then, on all ranks.
    ///
    /// For differential privacy, that is wrong: a step without samples counts as any.
    Skip,
}

impl OnEmpty {
    /// What tells the epochs that it makes from those of the default, of a batch sampler with this fingerprint.
    pub(crate) fn mark(self, print: u32) -> u32 {
        match self {
            OnEmpty::Fail => print,
            OnEmpty::Keep => print ^ 0x5eed_0001,
            OnEmpty::Skip => print ^ 0x5eed_0002,
        }
    }

    /// The lists that are loaded, and which of them are empty: those have a pattern in their place.
    pub(super) fn settle(self, batches: Batches) -> (Batches, Vec<usize>) {
        let numbered = || batches.iter().enumerate();
        let empty = numbered().filter(|(_, list)| list.is_empty());
        let empty: Vec<usize> = empty.map(|(number, _)| number).collect();
        if empty.is_empty() {
            return (batches, empty);
        }
        if self == OnEmpty::Skip {
            let kept = batches.iter().filter(|list| !list.is_empty());
            return (kept.collect(), Vec::new());
        }
        let pattern = [batches.indices().first().copied().unwrap_or(0)];
        let samples = batches.indices().len() + empty.len();
        let mut lists = Batches::with_capacity(samples, batches.len());
        for list in batches.iter() {
            let list = if list.is_empty() { &pattern } else { list };
            lists.push(list.iter().copied());
        }
        (lists, empty)
    }
}
