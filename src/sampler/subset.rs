//! Some samples, in random order.

use std::fmt;

use super::{Indices, RandomSampler, Sampler};
use crate::error::{Error, Result};

/// Listed samples once, in a random order that differs in each epoch; PyTorch's `SubsetRandomSampler`.
///
/// An index that is listed twice comes up twice. The list is not compared with the data set: an index that is not below its length is an
/// error of the batch that needs it. The list takes 8 bytes for each index, and none if each is one more than the one before, as in a
/// range; the order is evaluated as [`RandomSampler`]'s is. An empty list makes empty epochs.
///
/// For a subset that is a data set of its own, such as the one that validates, see
/// [`Subset`](crate::dataset::Subset) and [`random_split`](crate::dataset::random_split).
///
/// # Examples
///
/// ```
/// use pinfeed::DataLoader;
/// use pinfeed::sampler::SubsetRandomSampler;
///
/// let samples: Vec<i64> = (0..100).collect();
/// let odd = SubsetRandomSampler::new((0..100).filter(|index| index % 2 == 1), 17)?;
/// let loader = DataLoader::builder(samples).batch_size(25).sampler(odd).build()?;
/// let mut seen = Vec::new();
/// for batch in &loader {
///     seen.extend(batch?.to_vec());
/// }
/// seen.sort();
/// assert!(seen.into_iter().eq((1..100).step_by(2)));
/// # Ok::<(), pinfeed::Error>(())
/// ```
#[derive(Clone)]
pub struct SubsetRandomSampler {
    indices: Indices,
    order: RandomSampler,
}

impl SubsetRandomSampler {
    /// Makes random orders of the samples at `indices`: a `Vec`, a range, or any iterator. It looks at each of them once, also at those of
    /// a range, which take no memory.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidOption`] if the list exceeds the memory that the process may use.
    pub fn new(indices: impl IntoIterator<Item = u64>, seed: u64) -> Result<SubsetRandomSampler> {
        let indices = indices.into_iter();
        let indices = Indices::new(indices.size_hint().0, indices).map_err(|no_room| {
            let reason = format!(
                "the list takes {no_room}: list fewer indices, or give a range, which takes none"
            );
            Error::option("SubsetRandomSampler::new", reason)
        })?;
        let order = RandomSampler::with_seed(indices.len(), seed);
        Ok(SubsetRandomSampler { indices, order })
    }
}

impl Sampler for SubsetRandomSampler {
    fn len(&self) -> u64 {
        self.order.len()
    }

    fn index(&self, epoch: u64, position: u64) -> u64 {
        let mut index = [self.order.index(epoch, position)];
        self.indices.look_up(&mut index);
        index[0]
    }

    fn indices(&self, epoch: u64, start: u64, indices: &mut [u64]) {
        self.order.indices(epoch, start, indices);
        self.indices.look_up(indices);
    }
}

impl fmt::Debug for SubsetRandomSampler {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SubsetRandomSampler")
            .field("order", &self.order)
            .finish_non_exhaustive()
    }
}
