//! The samples of one task: where its rows come from, and the errors of those that fail.

use std::ops::Range;
use std::panic::AssertUnwindSafe;

use super::on_error::Retry;
use crate::batch::Failure;
use crate::dataset::Dataset;
use crate::error::{BoxError, CollateError, Error, Misfit, NotDrawn, SampleId, is_temporary};
use crate::meter::nanoseconds_between;
use crate::pipeline::epoch::EpochContext;
use crate::pipeline::plan::partition::{EpochOrder, Place};
use crate::pipeline::traits::{Changes, Failed};
use crate::rng::{RngKey, SampleRng};
use crate::sync::{Instant, Mutex};

/// Where a task's samples come from.
pub(crate) struct Source<'a, D> {
    pub(crate) dataset: &'a D,
    pub(crate) seed: u64,
    pub(crate) context: &'a EpochContext,
    pub(crate) place: Place,
    /// Which of the place's rows are made, if the task is made again: some may be left out.
    pub(crate) kept: Option<&'a [usize]>,
    /// What became of samples that failed. It is looked at only if one has.
    pub(crate) changes: &'a Mutex<Changes>,
    pub(crate) retry: &'a Retry,
}

impl<D: Dataset> Source<'_, D> {
    /// Whether the task is made again: it may have other samples than its place says, or fewer.
    pub(crate) fn is_changed(&self) -> bool {
        self.kept.is_some()
    }

    /// Refuses the rows of a batch for which the batch sampler gave nothing to load.
    #[inline]
    pub(crate) fn check(&self) -> Result<(), Failed> {
        match &self.context.order {
            EpochOrder::Sampled(_) => Ok(()),
            EpochOrder::Listed(listed) => listed.check_batch(&self.place).map_err(Failed::of_task),
        }
    }

    /// How many rows the task will have.
    pub(crate) fn rows_of_batch(&self) -> usize {
        match self.place.is_empty() {
            true => 0,
            false => self.rows(),
        }
    }

    /// How many rows are loaded. Rows are counted without those that are left out.
    pub(crate) fn rows(&self) -> usize {
        self.kept.map_or(self.place.loaded_rows(), <[usize]>::len)
    }

    /// Which row of its place this is.
    pub(crate) fn row_of_place(&self, row: usize) -> usize {
        match self.kept {
            None => row,
            Some(kept) => kept[row],
        }
    }

    /// Which of the rows that are made is this row of the place.
    pub(crate) fn row_made(&self, in_place: usize) -> usize {
        match self.kept {
            None => in_place,
            // (They ascend.)
            Some(kept) => kept.partition_point(|row| *row < in_place),
        }
    }

    /// The generator of the row with this key.
    #[inline]
    fn rng(&self, key: u64) -> SampleRng {
        SampleRng::for_sample(RngKey {
            seed: self.seed,
            epoch: self.place.epoch,
            position: key,
        })
        .of_pass(self.context.short_id)
    }

    /// Gets the sample of a row, which is row `in_place` of the place.
    #[inline]
    pub(crate) fn get(&self, row: usize, in_place: usize, index: u64) -> Result<D::Sample, Failed> {
        if index >= self.dataset.len() {
            return Err(self.out_of_range(row, index));
        }
        let key = self.place.key(in_place);
        let mut rng = self.rng(key);
        match self.dataset.get(index, &mut rng) {
            Ok(sample) => Ok(sample),
            Err(error) => self.get_again(row, in_place, index, error),
        }
    }

    /// Gets the samples of several rows in one call.
    pub(crate) fn get_many(
        &self,
        rows: Range<usize>,
        indices: &[u64],
    ) -> Vec<(usize, Result<D::Sample, Failed>)> {
        let len = self.dataset.len();
        if indices.iter().any(|index| *index >= len) {
            let each = rows.zip(indices);
            return each
                .map(|(row, index)| (row, self.get(row, row, *index)))
                .collect();
        }
        let rngs = rows.clone().map(|row| self.rng(self.place.key(row)));
        let mut rngs: Vec<SampleRng> = rngs.collect();
        let got = self.dataset.get_many(indices, &mut rngs);
        if got.len() != indices.len() {
            let (got, asked) = (got.len(), indices.len());
            let error = format!("`get_many` returned {got} results for {asked} indices");
            let failed = Failed {
                is_samples_own: false,
                ..self.not_loaded(rows.start, indices[0], error.into())
            };
            return vec![(rows.start, Err(failed))];
        }
        let each = rows.zip(indices).zip(got);
        let settled = each.map(|((row, index), sample)| {
            let sample = sample.or_else(|error| self.get_again(row, row, *index, error));
            (row, sample)
        });
        settled.collect()
    }

    /// Tries again while the error says that it may go away.
    #[cold]
    fn get_again(
        &self,
        row: usize,
        in_place: usize,
        index: u64,
        mut error: BoxError,
    ) -> Result<D::Sample, Failed> {
        for attempt in 0..self.retry.attempts() {
            if !is_temporary(&error) {
                break;
            }
            let begins = self
                .retry
                .begin(&self.id(row, index), &error, &self.context.meter);
            if !begins || !self.retry.wait(attempt) {
                break;
            }
            let key = self.place.key(in_place);
            let mut rng = self.rng(key);
            match self.dataset.get(index, &mut rng) {
                Ok(sample) => return Ok(sample),
                Err(again) => error = again,
            }
        }
        Err(self.not_loaded(row, index, error))
    }

    /// Tells the data set which samples come, if it wants to know: these rows, and those that follow them. Returns how long it took (if it
    /// `is_timed`), and how much of that the sampler, in nanoseconds.
    pub(crate) fn announce(&self, rows: Range<usize>, is_timed: bool) -> (u64, u64) {
        // (The pattern of an empty batch is not announced, because the batch sampler did not ask for it.)
        let announced = self.context.announced.as_ref();
        let Some(announced) = announced.filter(|_| !self.place.is_empty()) else {
            return (0, 0);
        };
        let start = is_timed.then(Instant::now);
        let sampling_ns = announced.announce(&self.place, rows);
        let ns = start.map_or(0, |start| nanoseconds_between(start, Instant::now()));
        (ns, sampling_ns)
    }

    /// The index of the sample that takes the row of one that failed.
    #[cold]
    pub(crate) fn index_of_other(&self, row: usize, attempt: u32) -> u64 {
        let (epoch, place) = (self.place.epoch, &self.place);
        let row = self.row_of_place(row);
        let instead = self
            .context
            .order
            .instead(epoch, place.position(row), attempt);
        if let Some(index) = instead {
            return index;
        }
        let mut rng = SampleRng::for_replacement(RngKey {
            seed: self.seed,
            epoch,
            position: place.key(row),
        });
        let others = (place.rows as u64).saturating_sub(1);
        let is_listed = matches!(self.context.order, EpochOrder::Listed(_));
        let mut position = 0;
        for _ in 0..attempt {
            position = match is_listed && others > 0 {
                // One of the same list: it was put together because its samples go together.
                true => place.start + (row as u64 + 1 + rng.below(others)) % (others + 1),
                false => rng.below(place.samples),
            };
        }
        self.context.order.index(epoch, position)
    }

    #[cold]
    fn out_of_range(&self, row: usize, index: u64) -> Failed {
        let len = self.dataset.len();
        let error = format!("the sampler gave index {index}, and the data set has {len} samples");
        Failed {
            is_samples_own: false,
            ..self.not_loaded(row, index, error.into())
        }
    }

    #[cold]
    fn not_loaded(&self, row: usize, index: u64, error: BoxError) -> Failed {
        Failed::of_sample(row, Error::Sample(self.id(row, index), error))
    }

    pub(crate) fn id(&self, row: usize, index: u64) -> SampleId {
        // The description is the user's code, called when something has gone wrong already.
        let describe = || match index < self.dataset.len() {
            true => self.dataset.describe(index),
            false => None,
        };
        let describe = AssertUnwindSafe(describe);
        SampleId {
            index,
            row: self.place.first_row + self.row_of_place(row),
            batch: self.place.batch,
            epoch: self.place.epoch,
            description: std::panic::catch_unwind(describe).unwrap_or(None),
        }
    }

    pub(crate) fn id_of_row(&self, row: usize) -> SampleId {
        self.id(row, self.index_of_row(row).unwrap_or(u64::MAX))
    }

    /// `None` if the sampler panics: it is the user's code too, and may be what went wrong.
    fn index_of_row(&self, row: usize) -> Option<u64> {
        let row = self.row_of_place(row);
        if let Some(replaced) = self.changes.lock().of(row) {
            return Some(replaced.index);
        }
        let position = self.place.position(row);
        let index = AssertUnwindSafe(|| self.context.order.index(self.place.epoch, position));
        match std::panic::catch_unwind(index) {
            Ok(index) => Some(index),
            Err(payload) => {
                drop(crate::error::panic_message(payload));
                None
            }
        }
    }

    pub(crate) fn failed(&self, failure: Failure) -> Failed {
        match failure {
            Failure::Row {
                row,
                error: CollateError::Load(error),
                ..
            } => Failed::of_sample(row, Error::Sample(self.id_of_row(row), error)),
            Failure::Row {
                row,
                planned_from,
                error,
            } => Failed {
                row,
                ..Failed::of_task(Error::Collate(Box::new(Misfit {
                    sample: self.id_of_row(row),
                    planned_from: planned_from.map(|row| self.id_of_row(row)),
                    source: error,
                })))
            },
            Failure::NoMemory { bytes } => Failed::too_large(bytes),
            Failure::Function(source) => Failed::of_task(Error::CollateFn {
                epoch: self.place.epoch,
                batch: self.place.batch,
                source,
            }),
        }
    }

    /// The user's code panicked while a row was loaded: the sample, or the sampler when asked for its index.
    pub(crate) fn sample_panicked(&self, row: usize, message: String) -> Failed {
        match self.index_of_row(row) {
            Some(index) => {
                Failed::of_sample(row, Error::SamplePanicked(self.id(row, index), message))
            }
            None => self.sampler_panicked(row, message),
        }
    }

    pub(crate) fn sampler_panicked(&self, row: usize, message: String) -> Failed {
        let error = Error::SamplerPanicked {
            epoch: self.place.epoch,
            batch: self.place.batch,
            position: self.place.position(self.row_of_place(row)),
            message,
        };
        Failed {
            row,
            ..Failed::of_task(error)
        }
    }

    /// The first sample does not match that of an earlier part of its batch.
    pub(crate) fn unlike(&self, like: &Self, error: CollateError) -> Error {
        Error::Collate(Box::new(Misfit {
            sample: self.id_of_row(0),
            planned_from: (like.place.start != self.place.start).then(|| like.id_of_row(0)),
            source: error,
        }))
    }

    /// The batch's own code reads a picture on the host that was left to a device, and that cannot be decoded. Without the device, its
    /// sample fails to load.
    pub(crate) fn not_drawn(&self, NotDrawn { row, error }: NotDrawn) -> Failed {
        Failed {
            can_rebuild: true,
            ..Failed::of_sample(row, Error::Sample(self.id_of_row(row), error))
        }
    }

    pub(crate) fn collate_panicked(&self, message: String) -> Failed {
        Failed::of_task(Error::CollatePanicked {
            epoch: self.place.epoch,
            batch: self.place.batch,
            message,
        })
    }
}
