//! A part of a data set.

use std::fmt;

use super::{Dataset, IntoDataset, Pass, get_some, pass_on, sample_is_gone};
use crate::error::{BoxError, Error, Result};
use crate::fingerprint::{Fingerprint, spread};
use crate::rng::SampleRng;
use crate::sampler::Indices;
use crate::tensor::Column;

/// Some samples of a data set, as a data set; PyTorch's `Subset`.
///
/// Sample `i` is the sample at `indices[i]` of the data set inside. An index may be listed more than once. The list
/// takes 8 bytes for each, and clones share it; it takes none if each index is one more than the one before, as in a range.
/// [`random_split`](crate::dataset::random_split) makes several.
///
/// It has no [`blocks`](Dataset::blocks), whatever the data set inside has: its samples lie elsewhere in them, and not all are there. A data
/// set inside that reads blocks fetches each sample by itself. Split such data by blocks: make a data set of some of its shards.
///
/// # Examples
///
/// ```
/// use pinfeed::dataset::Subset;
/// use pinfeed::{DataLoader, Dataset};
///
/// let letters = vec![b'a', b'b', b'c', b'd'];
/// let vowels = Subset::new(letters, [0])?;
/// assert!(vowels.indices().eq([0]));
/// let batch = DataLoader::builder(vowels).build()?.epoch(0).next().unwrap()?;
/// assert_eq!(batch.as_slice(), b"a");
///
/// let error = Subset::new(vec![b'a', b'b'], 1..3).unwrap_err();
/// assert!(error.to_string().contains("index 2 is not below 2"));
/// # Ok::<(), pinfeed::Error>(())
/// ```
#[derive(Clone)]
pub struct Subset<D> {
    dataset: D,
    indices: Indices,
}

impl<D: Dataset> Subset<D> {
    /// Makes a data set of the samples at `indices`: a `Vec`, a range, or any iterator. Without any, it is empty.
    ///
    /// It looks at each index once. Those of a range take no memory, but as much time: a second for a billion.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidOption`] if an index is not below the data set's length (a data set that becomes shorter later makes
    /// errors of the batches that need what is gone), or if the list exceeds the memory that the process may use.
    pub fn new(
        dataset: impl IntoDataset<Dataset = D>,
        indices: impl IntoIterator<Item = u64>,
    ) -> Result<Subset<D>> {
        let dataset = dataset.into_dataset();
        let refused = |reason| Error::option("Subset::new", reason);
        let (indices, len) = (indices.into_iter(), dataset.len());
        let least = indices.size_hint().0;
        let mut outside = None;
        let inside = indices.zip(0u64..).map_while(|(index, at)| {
            if index >= len {
                outside = Some((index, at));
            }
            (index < len).then_some(index)
        });
        let indices = Indices::new(least, inside);
        if let Some((index, at)) = outside {
            return Err(refused(format!(
                "index {index} is not below {len}, the number of samples (it is the list's number {at})"
            )));
        }
        let indices = indices.map_err(|no_room| {
            refused(format!(
                "the list takes {no_room}: list fewer indices, or give a range, which takes none"
            ))
        })?;
        Ok(Subset { dataset, indices })
    }

    /// Of indices that are below the data set's length.
    pub(super) fn of(dataset: D, indices: Vec<u64>) -> Subset<D> {
        Subset {
            dataset,
            indices: Indices::from(indices),
        }
    }

    /// The samples' indices in the data set inside, in order.
    pub fn indices(&self) -> impl ExactSizeIterator<Item = u64> {
        let count = usize::try_from(self.indices.len()).unwrap_or(usize::MAX);
        (0..count).map(|at| self.indices.get(at as u64).unwrap_or_default()) // (there is one at each)
    }

    /// The data set inside.
    pub fn dataset(&self) -> &D {
        &self.dataset
    }

    /// The index in the data set inside, if there still is such a sample.
    fn inside(&self, index: u64) -> Option<u64> {
        let inside = self.indices.get(index)?;
        (inside < self.dataset.len()).then_some(inside)
    }
}

impl<D: Dataset> Dataset for Subset<D> {
    type Sample = D::Sample;

    fn len(&self) -> u64 {
        self.indices.len()
    }

    fn get(&self, index: u64, rng: &mut SampleRng) -> Result<D::Sample, BoxError> {
        match self.inside(index) {
            Some(inside) => self.dataset.get(inside, rng),
            None => Err(sample_is_gone(self.dataset.len())),
        }
    }

    fn get_many(
        &self,
        indices: &[u64],
        rngs: &mut [SampleRng],
    ) -> Vec<Result<D::Sample, BoxError>> {
        let inside: Vec<_> = indices.iter().map(|index| self.inside(*index)).collect();
        let mut results: Vec<_> = indices.iter().map(|_| None).collect();
        get_some(&self.dataset, &inside, rngs, &mut results);
        let gone = || Err(sample_is_gone(self.dataset.len()));
        results
            .into_iter()
            .map(|result| result.unwrap_or_else(gone))
            .collect()
    }

    fn at_once(&self) -> usize {
        self.dataset.at_once()
    }

    fn describe(&self, index: u64) -> Option<String> {
        self.dataset.describe(self.inside(index)?)
    }

    fn lookahead(&self) -> usize {
        self.dataset.lookahead()
    }

    fn will_need(&self, indices: &[u64], pass: Pass) {
        pass_on(&self.dataset, indices, pass, |index| self.inside(index));
    }

    fn pass_ended(&self, pass: Pass) {
        self.dataset.pass_ended(pass);
    }

    fn is_registered(&self) -> bool {
        self.dataset.is_registered()
    }

    fn has_encoded_pictures(&self) -> bool {
        self.dataset.has_encoded_pictures()
    }

    fn columns(&self, indices: &mut [u64]) -> Option<&[Column]> {
        for index in &mut *indices {
            *index = self.inside(*index)?;
        }
        self.dataset.columns(indices)
    }

    fn sample_bytes(&self) -> Option<usize> {
        self.dataset.sample_bytes()
    }

    /// Of the data set inside, and of 64 indices.
    fn fingerprint(&self) -> u32 {
        let mut print = Fingerprint::new();
        print.add_number(u64::from(self.dataset.fingerprint()));
        print.add_number(self.len());
        let indices = spread(self.len(), 64).filter_map(|at| self.indices.get(at));
        indices.for_each(|index| print.add_number(index));
        print.finish()
    }
}

impl<D> fmt::Debug for Subset<D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Subset")
            .field("len", &self.indices.len())
            .finish_non_exhaustive()
    }
}
