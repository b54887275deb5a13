//! Data sets one behind the other.

use std::fmt;

use super::{Dataset, Pass, get_some, sample_is_gone};
use crate::error::{BoxError, Error, Result};
use crate::fingerprint::Fingerprint;
use crate::rng::SampleRng;
use crate::tuning::INDICES_AT_ONCE;

/// Data sets one behind the other, as one; PyTorch's `ConcatDataset`.
///
/// The first data set's samples come first. Data sets of different types are `Box<dyn Dataset<Sample = S>>`, with
/// samples of one type. Their lengths are asked for once, when it is made.
///
/// It has no [`blocks`](Dataset::blocks), whatever the data sets have, because openings are of one data set only; those that read blocks
/// fetch each sample by itself. Shards of one kind belong into one data set.
///
/// To shuffle all of it, nothing else is needed; to mix the data sets in other proportions than their lengths', there is
/// [`MixtureSampler`](crate::sampler::MixtureSampler).
///
/// # Examples
///
/// ```
/// use pinfeed::dataset::{ConcatDataset, VecDataset};
/// use pinfeed::{DataLoader, Dataset, from_fn};
///
/// let all = ConcatDataset::new(vec![
///     Box::new(VecDataset::new(vec![0i64, 1, 2])) as Box<dyn Dataset<Sample = i64>>,
///     Box::new(from_fn(2, |index, _| Ok(10 * index as i64))),
/// ])?;
/// let batch = DataLoader::builder(all).batch_size(5).build()?.epoch(0).next().unwrap()?;
/// assert_eq!(batch.as_slice(), [0, 1, 2, 0, 10]);
/// # Ok::<(), pinfeed::Error>(())
/// ```
pub struct ConcatDataset<D> {
    datasets: Vec<D>,
    /// Where each data set ends.
    ends: Vec<u64>,
}

impl<D: Dataset> ConcatDataset<D> {
    /// Puts data sets one behind the other. Some, or all, may be empty.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidOption`] if there is no data set, or if they have more than 2⁶⁴ samples.
    pub fn new(datasets: Vec<D>) -> Result<ConcatDataset<D>> {
        let refused = |reason| Err(Error::option("ConcatDataset::new", reason));
        if datasets.is_empty() {
            return refused("there are no data sets");
        }
        let (mut ends, mut end) = (Vec::with_capacity(datasets.len()), 0u64);
        for dataset in &datasets {
            end = match end.checked_add(dataset.len()) {
                Some(end) => end,
                None => return refused("the data sets have more than 2⁶⁴ samples"),
            };
            ends.push(end);
        }
        Ok(ConcatDataset { datasets, ends })
    }

    /// The data sets.
    pub fn datasets(&self) -> &[D] {
        &self.datasets
    }

    /// How many samples each data set has: what [`MixtureSampler`](crate::sampler::MixtureSampler) is made of.
    pub fn lengths(&self) -> Vec<u64> {
        (0..self.ends.len())
            .map(|at| self.ends[at] - self.start(at))
            .collect()
    }

    fn start(&self, dataset: usize) -> u64 {
        match dataset {
            0 => 0,
            _ => self.ends[dataset - 1],
        }
    }

    /// The data set that a sample belongs to, and its index there, which may be gone.
    fn find(&self, index: u64) -> Option<(usize, u64)> {
        let dataset = self.ends.partition_point(|end| *end <= index);
        (dataset < self.datasets.len()).then(|| (dataset, index - self.start(dataset)))
    }
}

impl<D: Dataset> Dataset for ConcatDataset<D> {
    type Sample = D::Sample;

    fn len(&self) -> u64 {
        self.ends.last().copied().unwrap_or(0)
    }

    fn get(&self, index: u64, rng: &mut SampleRng) -> Result<D::Sample, BoxError> {
        let Some((dataset, inside)) = self.find(index) else {
            return Err(sample_is_gone(self.len()));
        };
        let dataset = &self.datasets[dataset];
        match dataset.len() {
            len if inside < len => dataset.get(inside, rng),
            len => Err(sample_is_gone(len)),
        }
    }

    fn get_many(
        &self,
        indices: &[u64],
        rngs: &mut [SampleRng],
    ) -> Vec<Result<D::Sample, BoxError>> {
        let mut results: Vec<_> = indices.iter().map(|_| None).collect();
        for (at, dataset) in self.datasets.iter().enumerate() {
            let len = dataset.len();
            let own = |index: &u64| {
                let (of, inside) = self.find(*index)?;
                (of == at && inside < len).then_some(inside)
            };
            let inside: Vec<_> = indices.iter().map(own).collect();
            if inside.iter().any(Option::is_some) {
                get_some(dataset, &inside, rngs, &mut results);
            }
        }
        let gone = || Err(sample_is_gone(self.len()));
        results
            .into_iter()
            .map(|result| result.unwrap_or_else(gone))
            .collect()
    }

    /// The most of all.
    fn at_once(&self) -> usize {
        self.datasets.iter().map(D::at_once).max().unwrap_or(1)
    }

    fn describe(&self, index: u64) -> Option<String> {
        let (dataset, inside) = self.find(index)?;
        let dataset = &self.datasets[dataset];
        (inside < dataset.len()).then(|| dataset.describe(inside))?
    }

    /// The furthest of all; data sets that want to know less far ahead are told earlier than they asked for.
    fn lookahead(&self) -> usize {
        self.datasets.iter().map(D::lookahead).max().unwrap_or(0)
    }

    fn will_need(&self, indices: &[u64], pass: Pass) {
        if indices.is_empty() {
            let told = self
                .datasets
                .iter()
                .filter(|dataset| dataset.lookahead() > 0);
            return told.for_each(|dataset| dataset.will_need(&[], pass));
        }
        for chunk in indices.chunks(INDICES_AT_ONCE) {
            let mut left = [None; INDICES_AT_ONCE];
            for (found, index) in left.iter_mut().zip(chunk) {
                *found = self.find(*index);
            }
            // Each data set is told of all of its samples at once.
            for first in 0..chunk.len() {
                let Some((at, _)) = left[first] else {
                    continue;
                };
                let (mut own, mut count) = ([0; INDICES_AT_ONCE], 0);
                let dataset = &self.datasets[at];
                for found in &mut left[first..chunk.len()] {
                    if let Some((_, inside)) = found.take_if(|(dataset, _)| *dataset == at) {
                        own[count] = inside;
                        count += usize::from(inside < dataset.len());
                    }
                }
                if dataset.lookahead() > 0 && count > 0 {
                    dataset.will_need(&own[..count], pass);
                }
            }
        }
    }

    fn pass_ended(&self, pass: Pass) {
        self.datasets
            .iter()
            .for_each(|dataset| dataset.pass_ended(pass));
    }

    fn is_registered(&self) -> bool {
        self.datasets.iter().any(D::is_registered)
    }

    fn has_encoded_pictures(&self) -> bool {
        self.datasets.iter().any(D::has_encoded_pictures)
    }

    /// What the samples of all data sets have, if it is the same; those without samples do not count.
    fn sample_bytes(&self) -> Option<usize> {
        let mut datasets = self.datasets.iter().filter(|dataset| !dataset.is_empty());
        let bytes = datasets.next()?.sample_bytes()?;
        datasets
            .all(|dataset| dataset.sample_bytes() == Some(bytes))
            .then_some(bytes)
    }

    /// Of all data sets, and where each ends.
    fn fingerprint(&self) -> u32 {
        let mut print = Fingerprint::new();
        for (dataset, end) in self.datasets.iter().zip(&self.ends) {
            print.add_number(u64::from(dataset.fingerprint()));
            print.add_number(*end);
        }
        print.finish()
    }
}

impl<D> fmt::Debug for ConcatDataset<D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ConcatDataset")
            .field("ends", &self.ends)
            .finish_non_exhaustive()
    }
}
