//! Batches of samples that go well together.

use std::collections::HashMap;
use std::fmt;
use std::hash::Hash;

use super::fixed::{check_batch_size, check_lists, lists_exceed};
use super::permutation::Permutation;
use super::{BatchSampler, Batches, RandomSampler, Sampler};
use crate::error::Result;
use crate::fingerprint::{Fingerprint, spread};
use crate::sync::Arc;
use crate::system::room;
use crate::tuning::INDICES_AT_ONCE;

/// Batches of samples of one group: of one aspect ratio, one resolution, one length; as torchvision's `GroupedBatchSampler`.
///
/// Each sample comes once in an epoch. Its batch has samples of its group only, drawn at random; batches of all groups come in random
/// order. Each group has at most one batch with fewer samples than the others. (torchvision fills these up with samples that came
/// already.) An epoch takes memory and time for all of its samples.
///
/// # Examples
///
/// Pictures of equal sizes in each batch, so that nothing is cropped or padded:
///
/// ```
/// use pinfeed::DataLoader;
/// use pinfeed::sampler::GroupedBatchSampler;
///
/// let pictures: Vec<Vec<u8>> = (0..100).map(|index| vec![0; if index % 3 == 0 { 640 } else { 480 }]).collect();
/// let sizes: Vec<usize> = pictures.iter().map(Vec::len).collect();
/// let loader = DataLoader::builder(pictures).batch_sampler(GroupedBatchSampler::new(sizes, 8, 17)?).build()?;
/// for batch in &loader {
///     assert!(batch?.shape()[0] <= 8); // no batch is refused because its samples differ
/// }
/// # Ok::<(), pinfeed::Error>(())
/// ```
#[derive(Clone)]
pub struct GroupedBatchSampler {
    /// Each sample's group, counted from 0 as they came up.
    groups: Arc<Vec<u32>>,
    count: usize,
    batch_size: usize,
    seed: u64,
    shuffle: bool,
    drop_last: bool,
}

impl GroupedBatchSampler {
    /// Makes batches of at most `batch_size` samples with equal keys. `keys` has a key for each sample of the data set, in its order.
    ///
    /// A key is anything that can be compared: the size of a picture, the class, or a bucket such as `length / 32`.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidOption`](crate::Error::InvalidOption) if `batch_size` is 0, or if the lists of an epoch exceed the memory that the process may
    /// use.
    pub fn new<K: Hash + Eq>(
        keys: impl IntoIterator<Item = K>,
        batch_size: usize,
        seed: u64,
    ) -> Result<GroupedBatchSampler> {
        check_batch_size("GroupedBatchSampler::new", batch_size)?;
        let mut numbers = HashMap::new();
        let groups = keys.into_iter().map(|key| {
            let next = numbers.len() as u32;
            *numbers.entry(key).or_insert(next)
        });
        const NEW: &str = "GroupedBatchSampler::new";
        let groups = room::collect(groups).map_err(|no_room| lists_exceed(NEW, no_room))?;
        check_lists(NEW, groups.len() as u64, LISTS)?;
        Ok(GroupedBatchSampler {
            groups: Arc::new(groups),
            count: numbers.len(),
            batch_size,
            seed,
            shuffle: true,
            drop_last: false,
        })
    }

    /// Whether samples and batches come in random order; on by default. Otherwise a batch comes where its last sample stands in the
    /// data set, and batches with fewer samples come last.
    pub fn with_shuffle(self, shuffle: bool) -> GroupedBatchSampler {
        GroupedBatchSampler { shuffle, ..self }
    }

    /// The order in which samples come, if it is not the data set's.
    fn random(&self) -> Option<RandomSampler> {
        let samples = self.groups.len() as u64;
        self.shuffle
            .then(|| RandomSampler::with_seed(samples, self.seed))
    }

    /// Leaves out batches that have fewer samples than the others: up to one of each group, of other samples in each epoch. Off by
    /// default.
    pub fn with_drop_last(self, drop_last: bool) -> GroupedBatchSampler {
        GroupedBatchSampler { drop_last, ..self }
    }
}

/// How often a sample is listed while an epoch's batches are made: where it waits for others of its group, in its batch, and in the
/// batches' order.
pub(super) const LISTS: usize = 3;

impl BatchSampler for GroupedBatchSampler {
    fn batches(&self, epoch: u64) -> Batches {
        let samples = self.groups.len();
        let mut open = vec![Vec::new(); self.count];
        let mut batches = Batches::with_capacity(samples, samples / self.batch_size + self.count);
        in_windows(samples, INDICES_AT_ONCE, self.random(), epoch, |indices| {
            for &mut index in indices {
                let batch = &mut open[self.groups[index as usize] as usize];
                batch.push(index);
                if batch.len() == self.batch_size {
                    batches.push(batch.drain(..));
                }
            }
        });
        if !self.drop_last {
            let left = open.iter().filter(|batch| !batch.is_empty());
            batches.extend(left);
        }
        match self.shuffle {
            true => shuffled(&batches, self.seed, epoch),
            false => batches,
        }
    }

    fn fingerprint(&self) -> u32 {
        let mut print = Fingerprint::new();
        let flags = [self.shuffle, self.drop_last].map(u64::from);
        let numbers = [self.count, self.batch_size, self.groups.len()].map(|number| number as u64);
        let numbers = numbers.into_iter().chain([self.seed]).chain(flags);
        numbers.for_each(|number| print.add_number(number));
        let samples = self.groups.len() as u64;
        spread(samples, 64).for_each(|at| print.add_number(self.groups[at as usize].into()));
        print.finish()
    }
}

impl fmt::Debug for GroupedBatchSampler {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("GroupedBatchSampler")
            .field("samples", &self.groups.len())
            .field("groups", &self.count)
            .field("batch_size", &self.batch_size)
            .field("seed", &self.seed)
            .field("shuffle", &self.shuffle)
            .field("drop_last", &self.drop_last)
            .finish()
    }
}

/// Calls `take` with all samples of an epoch, so many at a time, in random order or in the data set's.
pub(super) fn in_windows(
    samples: usize,
    window: usize,
    random: Option<RandomSampler>,
    epoch: u64,
    mut take: impl FnMut(&mut [u64]),
) {
    let mut indices = vec![0; window.min(samples)];
    for start in (0..samples).step_by(window) {
        let indices = &mut indices[..window.min(samples - start)];
        match &random {
            Some(order) => order.indices(epoch, start as u64, indices),
            None => (start as u64..)
                .zip(&mut *indices)
                .for_each(|(own, index)| *index = own),
        }
        take(indices);
    }
}

/// The same batches, in random order.
pub(super) fn shuffled(batches: &Batches, seed: u64, epoch: u64) -> Batches {
    let mut order: Vec<u64> = (0..batches.len() as u64).collect();
    // As if it were another pass through samples: another order than theirs.
    Permutation::new(order.len() as u64, seed, epoch, u64::MAX).apply(&mut order);
    let mut shuffled = Batches::with_capacity(batches.samples() as usize, batches.len());
    shuffled.extend(
        order
            .iter()
            .filter_map(|&batch| batches.get(batch as usize)),
    );
    shuffled
}
