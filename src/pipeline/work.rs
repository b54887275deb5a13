//! The work on one batch, with data set and collate erased.

use std::ops::Range;
use std::panic::AssertUnwindSafe;
use std::time::Instant;

use crate::batch::{Collate, Failure, Opening, Request, Table};
use crate::dataset::Dataset;
use crate::device::Slab;
use crate::error::{CollateError, Error, Misfit, SampleId, panic_message};
use crate::meter::Meter;
use crate::rng::SampleRng;
use crate::sampler::Sampler;
use crate::sync::{Arc, AtomicBool, Ordering};
use crate::tensor::Backend;

/// How batches of type `B` are made: a data set, its order and a collate.
pub(crate) trait Recipe<B>: Send + Sync {
    /// Opens the work on a batch.
    fn open(&self, batch: BatchId, meter: Arc<Meter>) -> Arc<dyn Work<B>>;

    /// Whether samples came up that a device could gather itself.
    fn is_gatherable(&self) -> bool;
}

/// Which batch: where it lies in the order.
#[derive(Debug, Clone, Copy)]
pub(crate) struct BatchId {
    pub(crate) epoch: u64,
    pub(crate) batch: u64,
    /// The position of its first sample in the epoch's order.
    pub(crate) start: u64,
    pub(crate) rows: usize,
    /// The devices that gather the rows that they can reach.
    pub(crate) gathered_by: Option<Backend>,
}

/// One open batch.
pub(crate) trait Work<B>: Send + Sync {
    /// Loads rows. When the batch finds out how large a slab it needs, it calls `ask`, which may grant it at once.
    fn load(&self, rows: Range<usize>, ask: &dyn Fn(usize)) -> Result<(), Failed>;

    /// How large a slab the batch needs, asked once all samples are loaded.
    fn plan(&self) -> Result<usize, Failed>;

    fn grant(&self, slab: Slab);

    /// Makes the batch.
    fn finish(&mut self) -> Result<B, Failed>;
}

/// Why a batch failed, and at which row: of several rows that fail, the first is reported.
pub(crate) struct Failed {
    pub(crate) row: usize,
    pub(crate) error: Error,
}

pub(crate) struct DatasetRecipe<D, C> {
    pub(crate) dataset: Arc<D>,
    pub(crate) sampler: Arc<dyn Sampler>,
    pub(crate) collate: C,
    pub(crate) seed: u64,
    pub(crate) gatherable: Arc<AtomicBool>,
}

impl<D: Dataset, C: Collate<D::Sample>> Recipe<C::Batch> for DatasetRecipe<D, C> {
    fn open(&self, batch: BatchId, meter: Arc<Meter>) -> Arc<dyn Work<C::Batch>> {
        Arc::new(DatasetWork {
            dataset: Arc::clone(&self.dataset),
            sampler: Arc::clone(&self.sampler),
            table: self.collate.open(Opening {
                rows: batch.rows,
                gathered_by: batch.gathered_by,
                gatherable: &self.gatherable,
            }),
            seed: self.seed,
            batch,
            meter,
            collated: std::marker::PhantomData,
        })
    }

    fn is_gatherable(&self) -> bool {
        self.gatherable.load(Ordering::Relaxed)
    }
}

struct DatasetWork<D, T, B> {
    dataset: Arc<D>,
    sampler: Arc<dyn Sampler>,
    table: T,
    seed: u64,
    batch: BatchId,
    meter: Arc<Meter>,
    collated: std::marker::PhantomData<fn() -> B>,
}

/// Clocks are read around each sample only in short runs: in long ones, each is too short to be measured.
const TIMED_RUN: usize = 4;

impl<D: Dataset, B, T: Table<D::Sample, B>> DatasetWork<D, T, B> {
    /// Loads rows; `at` is the row that it is at, for the report of a panic.
    fn run(&self, rows: Range<usize>, ask: &dyn Fn(usize), at: &mut usize) -> Result<(), Failed> {
        let mut run = T::Run::default();
        let started = Instant::now();
        let (count, start) = (rows.len(), rows.start);
        // In a long run the first sample's split stands for all.
        let (mut get_ns, mut load_ns) = (0, 0);
        for row in rows {
            let timed = count <= TIMED_RUN || row == start;
            let before = timed.then(Instant::now);
            *at = row;
            let sample = self.get(row)?;
            let between = timed.then(Instant::now);
            let request = self
                .table
                .load(row, sample, &mut run)
                .map_err(|failure| self.failed(failure))?;
            if let (Some(before), Some(between)) = (before, between) {
                get_ns += (between - before).as_nanos() as u64;
                load_ns += between.elapsed().as_nanos() as u64;
            }
            if let Request::Slab { bytes } = request {
                ask(bytes);
            }
        }
        self.table.end_run(run);
        let total = started.elapsed().as_nanos() as u64;
        let measured = (get_ns + load_ns).max(1);
        let loading = if count <= TIMED_RUN {
            get_ns
        } else {
            (u128::from(total) * u128::from(get_ns) / u128::from(measured)) as u64
        };
        self.meter.loading_ns.add(loading);
        self.meter.collating_ns.add(if count <= TIMED_RUN {
            load_ns
        } else {
            total.saturating_sub(loading)
        });
        self.meter.samples.add(count as u64);
        Ok(())
    }

    fn get(&self, row: usize) -> Result<D::Sample, Failed> {
        let position = self.batch.start + row as u64;
        let index = self.sampler.index(self.batch.epoch, position);
        let failed = |error| Failed {
            row,
            error: Error::Sample(self.id(row, index), error),
        };
        let len = self.dataset.len();
        if index >= len {
            return Err(failed(
                format!("the sampler gave index {index}, and the data set has {len} samples")
                    .into(),
            ));
        }
        let mut rng = SampleRng::new(self.seed, self.batch.epoch, position);
        self.dataset.get(index, &mut rng).map_err(failed)
    }

    fn id(&self, row: usize, index: u64) -> SampleId {
        // The description is the user's code, and is asked for where something went wrong already.
        let describe = AssertUnwindSafe(|| self.dataset.describe(index));
        SampleId {
            index,
            row,
            batch: self.batch.batch,
            epoch: self.batch.epoch,
            description: std::panic::catch_unwind(describe).unwrap_or(None),
        }
    }

    fn id_of_row(&self, row: usize) -> SampleId {
        // The sampler is the user's code as well, and may be what went wrong.
        let index = || {
            self.sampler
                .index(self.batch.epoch, self.batch.start + row as u64)
        };
        let index = std::panic::catch_unwind(AssertUnwindSafe(index)).unwrap_or(u64::MAX);
        self.id(row, index)
    }

    fn failed(&self, failure: Failure) -> Failed {
        match failure {
            Failure::Row {
                row,
                error: CollateError::Load(error),
                ..
            } => Failed {
                row,
                error: Error::Sample(self.id_of_row(row), error),
            },
            Failure::Row {
                row,
                planned_from,
                error,
            } => Failed {
                row,
                error: Error::Collate(Box::new(Misfit {
                    sample: self.id_of_row(row),
                    planned_from: planned_from.map(|row| self.id_of_row(row)),
                    source: error,
                })),
            },
            Failure::Panicked { row, message } => self.sample_panicked(row, message),
            Failure::Function(source) => Failed {
                row: 0,
                error: Error::CollateFn {
                    epoch: self.batch.epoch,
                    batch: self.batch.batch,
                    source,
                },
            },
        }
    }

    fn sample_panicked(&self, row: usize, message: String) -> Failed {
        Failed {
            row,
            error: Error::SamplePanicked(self.id_of_row(row), message),
        }
    }

    fn collate_panicked(&self, message: String) -> Failed {
        Failed {
            row: 0,
            error: Error::CollatePanicked {
                epoch: self.batch.epoch,
                batch: self.batch.batch,
                message,
            },
        }
    }
}

impl<D: Dataset, B: 'static, T: Table<D::Sample, B>> Work<B> for DatasetWork<D, T, B> {
    fn load(&self, rows: Range<usize>, ask: &dyn Fn(usize)) -> Result<(), Failed> {
        let mut at = rows.start;
        // Unwind safety: what a panic leaves behind is only ever dropped, for the batch has failed.
        let run = AssertUnwindSafe(|| self.run(rows, ask, &mut at));
        match std::panic::catch_unwind(run) {
            Ok(result) => result,
            Err(payload) => Err(self.sample_panicked(at, panic_message(payload))),
        }
    }

    fn plan(&self) -> Result<usize, Failed> {
        match std::panic::catch_unwind(AssertUnwindSafe(|| self.table.loaded())) {
            Ok(Ok(Request::Slab { bytes })) => Ok(bytes),
            Ok(Ok(Request::Nothing)) => Ok(0),
            Ok(Err(failure)) => Err(self.failed(failure)),
            Err(payload) => Err(self.collate_panicked(panic_message(payload))),
        }
    }

    fn grant(&self, slab: Slab) {
        self.table.grant(slab);
    }

    fn finish(&mut self) -> Result<B, Failed> {
        let start = Instant::now();
        let finished = std::panic::catch_unwind(AssertUnwindSafe(|| self.table.finish()));
        self.meter.collating_ns.add_since(start);
        match finished {
            Ok(result) => result.map_err(|failure| self.failed(failure)),
            Err(payload) => Err(self.collate_panicked(panic_message(payload))),
        }
    }
}
