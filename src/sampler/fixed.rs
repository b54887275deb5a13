//! Any order, in batches of one size.

use std::fmt;

use super::{BatchSampler, Batches, Sampler};
use crate::error::{Error, Result};
use crate::fingerprint::Fingerprint;
use crate::sync::Arc;
use crate::system::room::{NoRoom, check_room};

/// Batches of one size, out of any order; PyTorch's `BatchSampler`.
///
/// A loader with [`batch_size`](crate::loader::Builder::batch_size) and [`sampler`](crate::loader::Builder::sampler) does the same by
/// itself: prefer these, which store no lists, and cut batches into parts where that is faster. Use this type where a program chooses
/// between batch samplers, or changes the lists of one.
///
/// # Examples
///
/// ```
/// use pinfeed::sampler::{BatchSampler, Batches, FixedBatchSampler, SequentialSampler};
///
/// let sampler = FixedBatchSampler::new(SequentialSampler::new(7), 3)?;
/// assert_eq!(sampler.batches(0), Batches::from(vec![vec![0, 1, 2], vec![3, 4, 5], vec![6]]));
/// assert_eq!(sampler.with_drop_last(true).batches(0).len(), 2);
/// # Ok::<(), pinfeed::Error>(())
/// ```
#[derive(Clone)]
pub struct FixedBatchSampler {
    sampler: Arc<dyn Sampler>,
    batch_size: usize,
    drop_last: bool,
}

impl FixedBatchSampler {
    /// Makes batches of `batch_size` samples of the sampler's order; the last one has what is left. Clones share the sampler.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidOption`] if `batch_size` is 0, or if the lists of an epoch exceed the memory that the process may use.
    pub fn new(sampler: impl Sampler, batch_size: usize) -> Result<FixedBatchSampler> {
        check_batch_size("FixedBatchSampler::new", batch_size)?;
        check_lists("FixedBatchSampler::new", sampler.len(), 1)?;
        Ok(FixedBatchSampler {
            sampler: Arc::new(sampler),
            batch_size,
            drop_last: false,
        })
    }

    /// Leaves out the last batch if it has fewer samples than the others; off by default.
    pub fn with_drop_last(self, drop_last: bool) -> FixedBatchSampler {
        FixedBatchSampler { drop_last, ..self }
    }
}

impl BatchSampler for FixedBatchSampler {
    fn batches(&self, epoch: u64) -> Batches {
        // (It may have become longer since.)
        let mut order = Batches::order_of(self.sampler.len()).unwrap_or_else(|no_room| {
            panic!("the indices of an epoch take {no_room}");
        });
        self.sampler.indices(epoch, 0, &mut order);
        Batches::of_size(order, self.batch_size, self.drop_last)
    }

    fn set_seed(&mut self, seed: u64) {
        self.sampler.set_seed(seed);
    }

    fn fingerprint(&self) -> u32 {
        let mut print = Fingerprint::new();
        print.add_number(u64::from(self.sampler.fingerprint()));
        print.add_number(self.batch_size as u64);
        print.add_number(u64::from(self.drop_last));
        print.finish()
    }
}

impl fmt::Debug for FixedBatchSampler {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FixedBatchSampler")
            .field("sampler", &self.sampler)
            .field("batch_size", &self.batch_size)
            .field("drop_last", &self.drop_last)
            .finish()
    }
}

/// Refuses epochs of so many samples, which are listed so many times when their batches are made.
pub(super) fn check_lists(option: &'static str, samples: u64, lists: usize) -> Result<()> {
    let checked = check_room(samples, lists * size_of::<u64>());
    checked.map_err(|no_room| lists_exceed(option, no_room))
}

pub(super) fn lists_exceed(option: &'static str, no_room: NoRoom) -> Error {
    Error::option(
        option,
        format!(
            "the lists of an epoch take {no_room}: batches of one size, by `batch_size` and `sampler`, take no lists"
        ),
    )
}

pub(super) fn check_batch_size(option: &'static str, batch_size: usize) -> Result<()> {
    match batch_size {
        0 => Err(Error::option(
            option,
            "the batch size is 0: a batch has at least one sample",
        )),
        _ => Ok(()),
    }
}
