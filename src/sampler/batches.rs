//! Batches that the program puts together itself: lists of indices.

use std::fmt;

use crate::fingerprint::{Fingerprint, spread};
use crate::sync::Arc;
use crate::system::room::{NoRoom, list_of};

/// Puts batches together: which samples each batch of an epoch has; PyTorch's `batch_sampler`.
///
/// [`Builder::batch_sampler`](crate::loader::Builder::batch_sampler) takes one, instead of a batch size and an order. The module has
/// ready-made ones: [`GroupedBatchSampler`](super::GroupedBatchSampler) for samples that go well together,
/// [`TokenBatchSampler`](super::TokenBatchSampler) for sequences under a budget, [`FixedBatchSampler`](super::FixedBatchSampler) for
/// any order. A `Vec<Vec<u64>>` gives the same batches in each epoch. A `Box` or an `Arc` of one is one, too.
///
/// It is a pure function of the epoch: all ranks must get the same lists, and a resumed run those that it had. For random
/// numbers, use [`SampleRng::for_sampler`](crate::SampleRng::for_sampler).
///
/// # Examples
///
/// Short and long texts apart, in another order in each epoch:
///
/// ```
/// use pinfeed::sampler::{BatchSampler, Batches, RandomSampler, Sampler};
/// use pinfeed::{DataLoader, from_fn};
///
/// struct ShortAndLong {
///     short: Vec<u64>,
///     long: Vec<u64>,
/// }
///
/// impl BatchSampler for ShortAndLong {
///     fn batches(&self, epoch: u64) -> Batches {
///         let mut batches = Batches::new();
///         for (texts, size) in [(&self.short, 4), (&self.long, 2)] {
///             let order = RandomSampler::with_seed(texts.len(), 17);
///             let shuffled: Vec<u64> = (0..order.len()).map(|at| texts[order.index(epoch, at) as usize]).collect();
///             shuffled.chunks(size).for_each(|batch| batches.push(batch.iter().copied()));
///         }
///         batches
///     }
/// }
///
/// let texts = from_fn(10, |index, _| Ok(index as i64));
/// let lists = ShortAndLong { short: vec![0, 1, 2, 5, 6, 9], long: vec![3, 4, 7, 8] };
/// let loader = DataLoader::builder(texts).batch_sampler(lists).build()?;
/// let sizes: Vec<usize> = loader.epoch(0).map(|batch| Ok(batch?.len())).collect::<pinfeed::Result<_>>()?;
/// assert_eq!(sizes, [4, 2, 2, 2]);
/// # Ok::<(), pinfeed::Error>(())
/// ```
pub trait BatchSampler: Send + Sync + 'static {
    /// Makes the batches of an epoch.
    ///
    /// It is called once for each epoch of each loader, before anything of the epoch is loaded: by a worker for an epoch that follows
    /// another ([`DataLoader::epochs`](crate::DataLoader::epochs)), otherwise by the thread that begins the epoch. (It is called again if
    /// the program comes back to an epoch after others.) It must not ask that loader for its length, batch size, state or an epoch: that
    /// would wait for itself, and panics instead. If it panics, the epoch has one batch, which is that error. An empty list is an error of
    /// its batch, unless the builder says otherwise ([`OnEmpty`](crate::loader::OnEmpty)).
    fn batches(&self, epoch: u64) -> Batches;

    /// Takes the loader's seed, as [`Sampler::set_seed`](crate::sampler::Sampler::set_seed). Default: does nothing.
    fn set_seed(&mut self, seed: u64) {
        let _ = seed;
    }

    /// A fingerprint of all epochs' batches, by which [`DataLoader::resume`](crate::DataLoader::resume) tells another batch sampler.
    /// Default: of epochs 0 and 1, which it makes: of how many lists and samples they have, of where 32 of the lists end, and of 32
    /// indices.
    fn fingerprint(&self) -> u32 {
        let mut print = Fingerprint::new();
        for epoch in 0..2 {
            self.batches(epoch).add_to(&mut print);
        }
        print.finish()
    }
}

/// The same lists in each epoch.
impl BatchSampler for Vec<Vec<u64>> {
    fn batches(&self, _epoch: u64) -> Batches {
        self.iter().collect()
    }
}

/// Forwards all methods to the batch sampler inside.
macro_rules! forwarded {
    ($($holder:ident, |$held:ident| $inner:expr;)*) => {$(
        impl<S: BatchSampler + ?Sized> BatchSampler for $holder<S> {
            fn batches(&self, epoch: u64) -> Batches {
                (**self).batches(epoch)
            }

            fn set_seed(&mut self, seed: u64) {
                let $held = self;
                if let Some(sampler) = $inner {
                    sampler.set_seed(seed);
                }
            }

            fn fingerprint(&self) -> u32 {
                (**self).fingerprint()
            }
        }
    )*};
}

forwarded! {
    Box, |held| Some(&mut **held);
    Arc, |held| Arc::get_mut(held);
}

impl fmt::Debug for dyn BatchSampler {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BatchSampler").finish_non_exhaustive()
    }
}

/// The batches of one epoch: lists of indices, in two allocations. What a [`BatchSampler`] makes.
///
/// A list takes 8 bytes for each index, and 8 more.
///
/// # Examples
///
/// ```
/// use pinfeed::sampler::Batches;
///
/// let mut batches = Batches::new();
/// batches.push([3, 1]);
/// batches.push(4..7);
/// assert_eq!(batches, Batches::from(vec![vec![3, 1], vec![4, 5, 6]]));
/// assert_eq!(batches, [vec![3, 1], vec![4, 5, 6]].iter().collect());
/// assert_eq!((batches.len(), batches.samples()), (2, 5));
/// assert_eq!(batches.get(1), Some(&[4, 5, 6][..]));
/// ```
#[derive(Clone, PartialEq, Eq, Default)]
pub struct Batches {
    /// All lists, one after the other.
    indices: Vec<u64>,
    /// Where each list ends.
    ends: Vec<u64>,
}

impl Batches {
    /// Makes no batches.
    pub fn new() -> Batches {
        Batches::default()
    }

    /// Makes no batches, with room for so many samples in so many of them.
    pub fn with_capacity(samples: usize, batches: usize) -> Batches {
        Batches {
            indices: Vec::with_capacity(samples),
            ends: Vec::with_capacity(batches),
        }
    }

    /// Room for an epoch's order.
    pub(super) fn order_of(samples: u64) -> Result<Vec<u64>, NoRoom> {
        list_of(samples, 0)
    }

    /// Cuts an order into batches of this size; the last one has what is left.
    pub(super) fn of_size(mut order: Vec<u64>, batch_size: usize, drop_last: bool) -> Batches {
        if drop_last {
            order.truncate(order.len() / batch_size * batch_size);
        }
        let whole = (batch_size..=order.len()).step_by(batch_size);
        let last = (!order.len().is_multiple_of(batch_size)).then_some(order.len());
        Batches {
            ends: whole.chain(last).map(|end| end as u64).collect(),
            indices: order,
        }
    }

    /// Adds a batch of these samples. The builder says what becomes of an empty one ([`OnEmpty`](crate::loader::OnEmpty)).
    pub fn push(&mut self, indices: impl IntoIterator<Item = u64>) {
        self.indices.extend(indices);
        self.ends.push(self.indices.len() as u64);
    }

    /// How many batches there are.
    pub fn len(&self) -> usize {
        self.ends.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.ends.is_empty()
    }

    /// How many samples all batches have together.
    pub fn samples(&self) -> u64 {
        self.indices.len() as u64
    }

    /// The samples of a batch.
    pub fn get(&self, batch: usize) -> Option<&[u64]> {
        let end = *self.ends.get(batch)? as usize;
        self.indices.get(self.start(batch) as usize..end)
    }

    /// The batches, one after the other.
    pub fn iter(&self) -> impl Iterator<Item = &[u64]> {
        self.ends.iter().scan(0, |start, end| {
            let list = *start..*end as usize;
            *start = list.end;
            Some(&self.indices[list])
        })
    }

    /// The position of a batch's first sample: how many samples the batches before it have. For the number of batches: how many all
    /// have.
    pub(crate) fn start(&self, batch: usize) -> u64 {
        batch.checked_sub(1).map_or(0, |before| self.ends[before])
    }

    /// How many batches end at a position or before it.
    pub(crate) fn ending_by(&self, position: u64) -> usize {
        self.ends.partition_point(|end| *end <= position)
    }

    /// All batches' samples, one batch after the other.
    pub(crate) fn indices(&self) -> &[u64] {
        &self.indices
    }

    fn add_to(&self, print: &mut Fingerprint) {
        for numbers in [&self.ends, &self.indices] {
            let len = numbers.len() as u64;
            print.add_number(len);
            spread(len, 32).for_each(|at| print.add_number(numbers[at as usize]));
        }
    }
}

impl From<Vec<Vec<u64>>> for Batches {
    fn from(lists: Vec<Vec<u64>>) -> Batches {
        lists.iter().collect()
    }
}

/// Each item is the list of a batch: a `Vec<u64>`, a range, a slice, or any other list of `u64` or `&u64`.
impl<L> FromIterator<L> for Batches
where
    L: IntoIterator,
    L::Item: std::borrow::Borrow<u64>,
{
    fn from_iter<I: IntoIterator<Item = L>>(lists: I) -> Batches {
        let mut batches = Batches::new();
        batches.extend(lists);
        batches
    }
}

impl<L> Extend<L> for Batches
where
    L: IntoIterator,
    L::Item: std::borrow::Borrow<u64>,
{
    fn extend<I: IntoIterator<Item = L>>(&mut self, lists: I) {
        use std::borrow::Borrow;
        for list in lists {
            self.push(list.into_iter().map(|index| *index.borrow()));
        }
    }
}

impl fmt::Debug for Batches {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.iter()).finish()
    }
}
