//! What a batch is: its samples, its place in the epoch, and which of its rows are real.

use std::fmt;

use crate::pipeline::{Changes, EpochOrder, Place};
use crate::rng::{RngKey, SampleRng};

/// Tells what a batch is: [`Epoch::with_info`](super::Epoch::with_info) and
/// [`DeviceEpoch::with_info`](super::DeviceEpoch::with_info) give it with each batch.
///
/// # Examples
///
/// An evaluation that counts each sample once, although all batches are equally large:
///
/// ```
/// use pinfeed::loader::LastBatch;
/// use pinfeed::{DataLoader, from_fn};
///
/// let loader = DataLoader::builder(from_fn(10, |index, _| Ok(index as f32)))
///     .batch_size(4)
///     .last_batch(LastBatch::Fill)
///     .build()?;
/// let (mut sum, mut count) = (0.0, 0);
/// for batch in loader.epoch(0).with_info() {
///     let (numbers, info) = batch?;
///     assert_eq!(numbers.len(), 4);
///     sum += numbers.as_slice()[..info.real_rows()].iter().sum::<f32>();
///     count += info.real_rows();
/// }
/// assert_eq!((sum, count), (45.0, 10));
/// # Ok::<(), pinfeed::Error>(())
/// ```
#[derive(Clone)]
pub struct BatchInfo {
    /// Of the whole batch.
    place: Place,
    seed: u64,
    order: EpochOrder,
    /// What became of samples that failed.
    changes: Option<Box<Changes>>,
}

impl BatchInfo {
    pub(super) fn new(
        place: Place,
        seed: u64,
        order: EpochOrder,
        changes: Option<&Changes>,
    ) -> BatchInfo {
        BatchInfo {
            place,
            seed,
            order,
            changes: changes.map(|changes| Box::new(changes.clone())),
        }
    }

    /// Returns the epoch's number.
    pub fn epoch(&self) -> u64 {
        self.place.epoch
    }

    /// Returns the batch's number on this rank, counted from 0 where the epoch began, or where it was resumed. With
    /// [`in_order(false)`](crate::loader::Builder::in_order), it is the number that the batch has in order; and where an epoch was resumed,
    /// 0 is the first that was missing.
    pub fn batch(&self) -> u64 {
        self.place.batch
    }

    /// Returns the position of its first row in the epoch's order, which all ranks share.
    pub fn position(&self) -> u64 {
        self.place.start
    }

    /// Returns how many rows the batch has.
    pub fn rows(&self) -> usize {
        self.place.rows - self.skipped().len()
    }

    fn skipped(&self) -> &[usize] {
        self.changes
            .as_deref()
            .map_or(&[], |changes| &changes.skipped)
    }

    /// Returns how many of them are real: all, except in a last batch with filler rows
    /// ([`LastBatch`](crate::loader::LastBatch)), which are its last ones.
    pub fn real_rows(&self) -> usize {
        let real = self.place.real_rows();
        real - self.skipped().iter().filter(|row| **row < real).count()
    }

    /// Returns which rows are real, row by row.
    pub fn mask(&self) -> Vec<bool> {
        (0..self.rows()).map(|row| row < self.real_rows()).collect()
    }

    /// Returns the rows' indices in the data set: those that the sampler, or the batch sampler, gives for their positions, or of what
    /// replaced them ([`OnError`](crate::loader::OnError)). Of an iterable, they are the numbers of this rank's items, counted from 0 in each
    /// epoch.
    pub fn indices(&self) -> Vec<u64> {
        let mut indices = self.planned_indices();
        if let Some(changes) = &self.changes {
            for replaced in &changes.replaced {
                // (An empty batch has none: what told its rows was replaced.)
                if let Some(index) = indices.get_mut(replaced.row) {
                    *index = replaced.index;
                }
            }
            let mut row = 0..;
            indices.retain(|_| {
                row.next()
                    .is_some_and(|row| !changes.skipped.contains(&row))
            });
        }
        indices
    }

    /// As the sampler gives them.
    fn planned_indices(&self) -> Vec<u64> {
        let (mut indices, mut row) = (vec![0; self.place.rows], 0);
        while row < indices.len() {
            let left = &mut indices[row..];
            let side_by_side = usize::try_from(self.place.side_by_side(row)).unwrap_or(usize::MAX);
            let run = left.len().min(side_by_side);
            let position = self.place.position(row);
            self.order.indices(self.epoch(), position, &mut left[..run]);
            row += run;
        }
        indices
    }

    /// Makes the generator for what is drawn once for the whole batch, such as [`Mixup::draw`](crate::ops::Mixup::draw): keyed by
    /// the loader's seed, the epoch and the batch's [`position`](BatchInfo::position), so a resumed run draws no number twice.
    pub fn rng(&self) -> SampleRng {
        SampleRng::for_batch(RngKey {
            seed: self.seed,
            epoch: self.epoch(),
            position: self.position(),
        })
    }
}

impl fmt::Debug for BatchInfo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BatchInfo")
            .field("epoch", &self.epoch())
            .field("batch", &self.batch())
            .field("position", &self.position())
            .field("rows", &self.rows())
            .field("real_rows", &self.real_rows())
            .finish()
    }
}
